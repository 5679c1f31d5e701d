"""Chunks cover all rows once, in order of their numbers, whatever the number of threads."""

import numba
import numpy as np
import pytest

from tandemrank.beliefs.chunks import CHUNKS, in_chunks


@pytest.mark.parametrize("n", [0, 1, 5, CHUNKS, CHUNKS + 1, 1000])
def test_every_row_is_in_one_chunk(n: int) -> None:
    seen = np.zeros(n, np.int64)

    def work(own: slice) -> None:
        seen[own] += 1

    in_chunks(work, n)
    assert (seen == 1).all()


def test_chunks_do_not_depend_on_threads() -> None:
    before, found = numba.get_num_threads(), []
    try:
        for threads in {1, min(2, numba.config.NUMBA_NUM_THREADS)}:
            numba.set_num_threads(threads)
            starts: list[int] = []
            in_chunks(lambda own, starts=starts: starts.append(own.start), 100)  # type: ignore[misc]
            found.append(sorted(starts))
    finally:
        numba.set_num_threads(before)
    assert all(x == found[0] for x in found)
    assert len(found[0]) == CHUNKS


def test_an_error_in_a_chunk_is_raised() -> None:
    def work(own: slice) -> None:
        if own.start > 50:
            raise ValueError(f"row {own.start}")

    with pytest.raises(ValueError, match="row"):
        in_chunks(work, 100)
