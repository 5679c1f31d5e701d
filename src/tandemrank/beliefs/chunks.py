"""Compiled loops over chunks of rows, in several threads; what comes out does not depend on how many threads there are."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numba

from tandemrank.gradients._bridge import compiling

CHUNKS = 32  # at most


def in_chunks(work: Callable[[slice], None], n: int, least: int = 1) -> None:
    """Calls `work` on parts of n rows; it must be compiled code that needs no lock, and no part may touch another's rows.

    `least`: rows that are worth a thread.
    """
    number = min(-(-n // least), CHUNKS)
    parts = [slice(n * k // number, n * (k + 1) // number) for k in range(number)]
    if number == 1:
        with compiling():
            return work(parts[0])
    with compiling(), ThreadPoolExecutor(numba.get_num_threads()) as pool:
        for _ in pool.map(work, parts):  # an error in a thread is raised here
            pass
