"""A group of threads in the place of processes: each has its own queries, and all wait for each other."""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from tandemrank._base.cluster import Group


class _Table:
    """What a group of so many puts down for each other."""

    def __init__(self, size: int) -> None:
        self.barrier, self.places, self.lock = threading.Barrier(size), [None] * size, threading.Lock()


class Threads(Group):
    """One of a group of threads."""

    def __init__(self, rank: int, size: int, table: _Table) -> None:
        self.rank, self.size, self.table = rank, size, table

    def _all(self, mine: Any) -> list[Any]:
        self.table.places[self.rank] = mine
        self.table.barrier.wait()
        found = list(self.table.places)
        self.table.barrier.wait()
        return found

    def sum(self, x: np.ndarray) -> np.ndarray:
        return np.sum(self._all(np.asarray(x, np.float64)), axis=0)

    def gather(self, x: np.ndarray) -> np.ndarray:
        return np.concatenate(self._all(x))

    def shared(self, works: Sequence[Callable[[], Any]]) -> list[Any]:
        def alone(work: Callable[[], Any]) -> Any:
            with self.table.lock:  # all threads have one source of torch's random numbers
                return work()

        return super().shared([partial(alone, work) for work in works])

    def exchange(self, parts: Sequence[Any]) -> list[Any]:
        return [given[self.rank] for given in self._all(parts)]


def in_group(size: int, work: Callable[[Threads], Any]) -> list[Any]:
    """What each of a group makes."""
    table, found, wrong = _Table(size), [None] * size, []

    def run(rank: int) -> None:
        try:
            found[rank] = work(Threads(rank, size, table))
        except BaseException as error:
            wrong.append(error)
            table.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise next((x for x in wrong if not isinstance(x, threading.BrokenBarrierError)), wrong[0])
    return found
