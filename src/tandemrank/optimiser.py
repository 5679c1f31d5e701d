"""A step along the direction of the gradient, row by row: what one query owns moves alike for every query."""

from collections.abc import Iterable

import torch
from torch import Tensor


class Direction(torch.optim.Optimizer):
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
