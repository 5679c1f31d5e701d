"""Timing side by side: jobs take turns, on a fixed number of threads."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Inside, compiled code and torch use n threads."""
    import numba

    before = numba.get_num_threads(), torch.get_num_threads()
    numba.set_num_threads(n)
    torch.set_num_threads(n)
    try:
        yield
    finally:
        numba.set_num_threads(before[0])
        torch.set_num_threads(before[1])


def seconds(
    jobs: Sequence[Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """The median time of each job. They take turns, so that a busy moment of the machine hits all of them.

    With `time.process_time` as the clock it is the time of the CPU, which other processes hardly change.
    """
    for job in jobs:
        job()
    taken = np.empty((repeats, len(jobs)))
    for i in range(repeats):
        for j, job in enumerate(jobs):
            start = clock()
            job()
            taken[i, j] = clock() - start
    return [float(x) for x in np.median(taken, 0)]
