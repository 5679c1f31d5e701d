"""Who trains which queries: one process all of them, or each worker of a team its own.

The workers of a team go through the same minibatches in lockstep and draw the same keys, but each computes for its own queries
alone. The gradients of what all queries share are added up over the team,

    g = sum over workers of  d/dx  1/B sum over the worker's queries of the minibatch U_q

so every worker takes the step that one process takes, up to rounding. The parameters of a query, and what an optimiser
remembers of them, move at its own worker only; when an epoch ends everybody gets them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

from tandemrank.errors import JobError
from tandemrank.gradients._bridge import keys_for
from tandemrank.policies.scorers import Scorer


@dataclass(frozen=True)
class Share:
    """The queries of a minibatch that are ours, and who draws their keys, new ones each time.

    A worker with none of them takes another and counts it with weight 0: it then draws and adds up as the others do.
    """

    q: Tensor
    keys: Callable[[], NDArray[np.uint64]]
    weight: float = 1.0


class Team:
    """A team of one: everything is ours, and there is nobody to talk to. `Workers` are several."""

    is_first = True  # who writes checkpoints
    size = 1

    def share(self, q: Tensor, generator: torch.Generator) -> Share:
        """Ours of the queries of a minibatch.  Shapes: q [B]."""
        return Share(q, lambda: keys_for(len(q), generator))

    def add_up(self, models: Iterable[Scorer]) -> None:
        """Adds up the gradients of what all queries share; each query's own are whole already."""

    def gather(self, own: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Gives everybody what belongs to single queries, as the worker of each has it: numbers, and the query of every row."""

    def total(self, value: float) -> float:
        """The sum over the team."""
        return value

    def check_same(self, state: Sequence[int]) -> None:
        """Refuses workers that are not at the same place."""


ALONE = Team()


def share_of(Q: int, rank: int, size: int) -> tuple[int, int]:
    """The first of the Q queries that belong to a worker, and the one after the last."""
    return -(-Q * rank // size), -(-Q * (rank + 1) // size)


class Workers(Team):
    """The processes of `torch.distributed`, whose group exists already; each has a range of the Q queries (`share_of`)."""

    def __init__(self, Q: int) -> None:
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()
        self.is_first = self.rank == 0
        self.queries = share_of(Q, self.rank, self.size)

    def _is_ours(self, q: Tensor) -> Tensor:
        first, stop = self.queries
        return (q >= first) & (q < stop)

    def share(self, q: Tensor, generator: torch.Generator) -> Share:
        """Every worker draws for all and keeps its own; without any it takes one of its queries, which counts for nothing."""
        mine = torch.nonzero(self._is_ours(q))[:, 0]
        rows = mine if len(mine) else torch.zeros(1, dtype=torch.int64)
        own = q[rows] if len(mine) else torch.tensor([self.queries[0]])
        return Share(own, lambda: keys_for(len(q), generator)[rows.numpy()], float(len(mine) > 0))

    def add_up(self, models: Iterable[Scorer]) -> None:
        """Sparse gradients as their rows, unless dense ones are smaller; all dense ones in one piece."""
        dense: list[Tensor] = []
        for model in models:
            own = {id(parameter) for parameter in model.per_query_parameters()}
            for x in (p for p in model.parameters() if id(p) not in own):
                rows = self._everybodys(_rows_of(x.grad))
                if all(n == NONE for n in rows):
                    continue
                if DENSE not in rows and sum(max(n, 0) for n in rows) < len(x):
                    x.grad = self._rows_added_up(x, max(rows))
                else:
                    x.grad = _dense(x)
                    dense.append(x.grad)
        if dense:
            flat = torch.cat([g.reshape(-1) for g in dense])
            distributed.all_reduce(flat)
            for g, part in zip(dense, torch.split(flat, [g.numel() for g in dense]), strict=True):
                g.copy_(part.view_as(g))

    def _everybodys(self, number: int) -> list[int]:
        found = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        distributed.all_gather(found, torch.tensor([number]))
        return [int(x) for x in found]

    def _rows_added_up(self, x: Tensor, most: int) -> Tensor:
        """The sum of sparse gradients: everybody's rows, filled up to the longest with rows of 0."""
        index, values = torch.zeros(most, dtype=torch.int64), torch.zeros(most, *x.shape[1:], dtype=x.dtype)
        if x.grad is not None:
            own = x.grad.coalesce()
            n = own.indices().shape[1]
            index[:n], values[:n] = own.indices()[0], own.values()
        indices = [torch.empty_like(index) for _ in range(self.size)]
        distributed.all_gather(indices, index)
        everything = [torch.empty_like(values) for _ in range(self.size)]
        distributed.all_gather(everything, values)
        return torch.sparse_coo_tensor(
            torch.cat(indices)[None], torch.cat(everything), x.shape, check_invariants=False
        ).coalesce()

    def gather(self, own: Iterable[tuple[Tensor, Tensor]]) -> None:
        """As integers of the same bits, 0 but at one worker, so that their sum is exact."""
        for t, owner in own:
            bits = t.detach().view(torch.int32)
            bits[~self._is_ours(owner)] = 0
            distributed.all_reduce(bits)

    def total(self, value: float) -> float:
        """The sum over the team."""
        found = torch.tensor([value], dtype=torch.float64)
        distributed.all_reduce(found)
        return float(found)

    def check_same(self, state: Sequence[int]) -> None:
        """Refuses workers of which some read a checkpoint that others do not see."""
        for number in state:
            if len(set(found := self._everybodys(number))) > 1:
                raise JobError(
                    f"the workers found different checkpoints ({found}): their folder must be one that every node sees."
                )


NONE, DENSE = -2, -1  # what a worker says of a gradient that is not there, or not sparse


def _rows_of(gradient: Tensor | None) -> int:
    """The rows of a sparse gradient, or what it is instead."""
    if gradient is None:
        return NONE
    return int(gradient.coalesce().indices().shape[1]) if gradient.is_sparse else DENSE


def _dense(x: Tensor) -> Tensor:
    if x.grad is None:
        return torch.zeros_like(x)
    return x.grad.to_dense() if x.grad.is_sparse else x.grad
