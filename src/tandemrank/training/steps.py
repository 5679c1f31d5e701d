"""Steps of the optimisers: along the direction of a row's gradient, and Adam of sparse gradients too."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from tandemrank.policies.scorers import Scorer
from tandemrank.training.config import TrainingConfig

# Adam divides by the size of the gradient, noise included, and a sample of the items makes theirs noisier: their steps would be
# shorter than with the dense race. So much longer, in minibatches of so many queries, they move as far (synthetic world, 600
# users and 3,706 items: 1.82 and 1.82 on average, 1.42 without it), whatever comes of it.
SPARSE_PACE, SPARSE_PACE_AT = 1.5, 50


def sparse_pace(minibatch: int) -> float:
    """How much longer the steps of items are in the sparse race: sqrt(1 + c min(1, 50 / B)), 1.5 for B = 50 queries or fewer.

    The noise of a sample adds to the mean square of a gradient that Adam divides by; as it is independent from query to query,
    what it adds falls with the queries of a minibatch.
    """
    return math.sqrt(1 + (SPARSE_PACE**2 - 1) * min(1.0, SPARSE_PACE_AT / minibatch))


def minibatch_size(config: TrainingConfig, queries: int) -> int:
    """Queries per minibatch: a dozen steps in an epoch or more; with fewer, what all queries share would hardly move."""
    return config.minibatch or max(min(256, queries // 12), 1)


class RowNormalisedStep(torch.optim.Optimizer):
    """x_q <- x_q - lr g_q / (rms(g_q) + eps): a row with a gradient moves by lr sqrt(F), along its gradient. It has no state.

    A row meets one minibatch an epoch, so what Adam remembers of it is an epoch old or more: of when its clicks were not
    learned yet, and its gradient longer. Divided by that memory, steps become short long before there is nothing left to
    learn. Adam also takes a step of about the same size along every coordinate, however small the gradient is there; one
    length for the row keeps the gradient's direction.  Shapes: parameters [n, F].
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float, eps: float = 1e-8) -> None:
        super().__init__(parameters, {"lr": lr, "eps": eps})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One step on the gradients as they are; rows without one stay where they are."""
        for group in self.param_groups:
            for x in group["params"]:
                if x.grad is None:
                    continue
                if x.grad.is_sparse:
                    rows, g = _rows(x.grad)
                    x[rows] -= group["lr"] * g / g.square().mean(1, keepdim=True).sqrt_().add_(group["eps"])
                else:
                    # A query that has learned its clicks has gradients whose squares are 0: eps keeps it where it is.
                    scale = x.grad.square().mean(1, keepdim=True).sqrt_().add_(group["eps"])
                    x.addcdiv_(x.grad, scale, value=-group["lr"])


def _rows(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The rows that have a gradient, each once, and their gradients.  Shapes: [n, F] sparse -> [m], [m, F]."""
    gradient = gradient.coalesce()
    return gradient.indices()[0], gradient.values()


class WholeAdam(torch.optim.Adam):
    """Adam of every row, also where a sparse gradient touches few: what a row remembers goes on moving it.

    A step of the rows with a gradient alone would take a tenth of each gradient, the rest of which is momentum, and lose what
    fades before the row's next one. Every row costs some 30 bytes of traffic per number and minibatch, where exact
    retrieval costs as many multiplications as there are queries in it.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        super().__init__(parameters, lr, fused=True)
        self._dense: dict[int, Tensor] = {}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step on the gradients as they are; sparse ones are written into a dense one that is kept, and taken out again."""
        touched = []
        for x in (x for group in self.param_groups for x in group["params"]):
            if x.grad is not None and x.grad.is_sparse:
                rows, g = _rows(x.grad)
                if id(x) not in self._dense:
                    self._dense[id(x)] = torch.zeros_like(x)
                x.grad = self._dense[id(x)]
                x.grad[rows] = g
                touched.append((x, rows))
        super().step(closure)
        for x, rows in touched:
            x.grad[rows] = 0.0
            x.grad = None


def optimisers_of(
    model: Scorer, config: TrainingConfig, pace: float, sampled: int | None = None
) -> list[torch.optim.Optimizer]:
    """In an epoch a query's own parameters meet one minibatch, what all queries share meets every one: it goes slower.

    `sampled`: the queries of a minibatch, where the gradient is that of the sparse race: vectors of items go faster by
    `sparse_pace` then.
    """
    own = {id(parameter) for parameter in model.per_query_parameters()}
    items = {id(p) for p in model.parameters() if sampled and p.ndim == 2 and len(p) == model.spec()["D"]} - own
    rate, shared = config.learning_rate * pace, config.learning_rate * pace * config.shared_rate
    of_items = shared * sparse_pace(sampled or 1)
    found: list[torch.optim.Optimizer] = []
    for is_own, is_item, lr in ((True, False, rate), (False, False, shared), (False, True, of_items)):
        parameters = [p for p in model.parameters() if (id(p) in own, id(p) in items) == (is_own, is_item)]
        # Scores that were given have no vector per query, so no direction either.
        by_direction = is_own and config.optimiser == "rows" and all(p.ndim == 2 for p in parameters)
        if parameters:
            if by_direction:
                found.append(RowNormalisedStep(parameters, lr))
            else:
                found.append(WholeAdam(parameters, lr))
    return found


def own_tensors(model: Scorer, optimisers: Iterable[torch.optim.Optimizer]) -> list[tuple[Tensor, Tensor]]:
    """What belongs to single queries, a model's parameters and what the optimisers remember of each of their numbers, with the
    query of every row."""
    found = []
    for x, owner in zip(model.per_query_parameters(), model.owners(), strict=True):
        moments = [t for one in optimisers for t in one.state.get(x, {}).values() if t.shape == x.shape]
        found += [(t, owner) for t in (x.data, *moments)]
    return found
