"""A group of processes of which each has some queries of a log: what is about all queries is added up, or put together.

All call the same functions in the same order, each with its own queries. A group of one is a process with all queries.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Numbers = TypeVar("Numbers", bound=np.generic)
Anything = TypeVar("Anything")

PATIENCE = timedelta(days=1)  # with others, who may have much more to do; who has died is noticed at once


class Group:
    """A process that has all queries."""

    rank, size = 0, 1

    def sum(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum over the group.  Shapes: x any -> the same."""
        return x

    def gather(self, x: NDArray[Numbers]) -> NDArray[Numbers]:
        """Everybody's rows, one after the other.  Shapes: x [n, ...] -> [n of all, ...]."""
        return x

    def first(self, work: Callable[[], Anything]) -> Anything:
        """What the first of the group makes, for everybody."""
        return work()

    def exchange(self, parts: Sequence[Anything]) -> list[Anything]:
        """Gives a part to each; returns what everybody gave to us."""
        return list(parts)

    def total(self, *values: float) -> tuple[float, ...]:
        """Sums of single numbers."""
        return tuple(self.sum(np.array(values, np.float64)).tolist())

    def before(self, n: int) -> tuple[int, int]:
        """Of things that everybody has some of, n of them ours: how many come before ours, and how many there are."""
        each = self.gather(np.array([n]))
        return int(each[: self.rank].sum()), int(each.sum())


ALONE = Group()


class Processes(Group):
    """The processes of `torch.distributed` (gloo), by their addresses."""

    def __init__(self, rank: int, size: int, address: str) -> None:
        from torch import distributed

        self.rank, self.size, self.group = rank, size, distributed
        distributed.init_process_group(
            "gloo", init_method=f"tcp://{address}", rank=rank, world_size=size, timeout=PATIENCE
        )

    def sum(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum over the group."""
        import torch

        found = torch.from_numpy(np.array(x, np.float64))
        self.group.all_reduce(found)
        return found.numpy()

    def gather(self, x: NDArray[Numbers]) -> NDArray[Numbers]:
        """Everybody's rows, one after the other."""
        found: list[Any] = [None] * self.size
        self.group.all_gather_object(found, np.ascontiguousarray(x))
        return np.concatenate(found)

    def first(self, work: Callable[[], Anything]) -> Anything:
        """What the first of the group makes, for everybody."""
        found = [work() if self.rank == 0 else None]
        self.group.broadcast_object_list(found, src=0)
        return found[0]  # type: ignore[return-value]

    def exchange(self, parts: Sequence[Anything]) -> list[Anything]:
        """Gives a part to each, one receiver after the other."""
        ours: list[Any] = []
        for rank, part in enumerate(parts):
            found: list[Any] | None = [None] * self.size if rank == self.rank else None
            self.group.gather_object(part, found, dst=rank)
            ours = ours if found is None else found
        return ours
