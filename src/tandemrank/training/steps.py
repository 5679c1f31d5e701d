"""A step along the direction of the gradient, row by row: what one query owns moves alike for every query."""

from collections.abc import Iterable

import torch
from torch import Tensor

from tandemrank.policies.scorers import Scorer
from tandemrank.training.config import TrainingConfig


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
                if x.grad is not None:
                    # A query that has learned its clicks has gradients whose squares are 0: eps keeps it where it is.
                    scale = x.grad.square().mean(1, keepdim=True).sqrt_().add_(group["eps"])
                    x.addcdiv_(x.grad, scale, value=-group["lr"])


def optimisers_of(model: Scorer, config: TrainingConfig, pace: float) -> list[torch.optim.Optimizer]:
    """In an epoch a query's own parameters meet one minibatch, what all queries share meets every one: it goes slower."""
    own = {id(parameter) for parameter in model.per_query_parameters()}
    rate = config.learning_rate * pace
    found: list[torch.optim.Optimizer] = []
    for is_own, lr in ((True, rate), (False, rate * config.shared_rate)):
        parameters = [p for p in model.parameters() if (id(p) in own) == is_own]
        # Scores that were given have no vector per query, so no direction either.
        by_direction = is_own and config.query_step == "direction" and all(p.ndim == 2 for p in parameters)
        if parameters:
            found.append(
                RowNormalisedStep(parameters, lr) if by_direction else torch.optim.Adam(parameters, lr, fused=True)
            )
    return found
