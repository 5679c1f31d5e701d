"""Adam, with one scale for a whole row where a row is what one query owns."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class Adam(torch.optim.Optimizer):
    """Adam (Kingma and Ba 2015); groups with `by_row` divide by the root mean square of a row's gradient.

        m <- b1 m + (1 - b1) g,   v <- b2 v + (1 - b2) g^2 (by row: the mean of g^2 over the row),
        x <- x - lr m / (1 - b1^n) / (sqrt(v / (1 - b2^n)) + eps)

    Plain Adam takes a step of about the same size along every coordinate, however small the gradient is there. The vector of a
    query with three clicks would move as far along directions in which items hardly differ as along those that tell
    them apart; one scale a row keeps the direction of the gradient. (The same idea as FBGEMM's partial row-wise Adam, which
    saves memory with it.)
    Shapes: parameters [n, ...]; v is [n, 1, ...] by row.
    """

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "by_row": False})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One step on the gradients as they are."""
        for group in self.param_groups:
            for x in group["params"]:
                if x.grad is not None:
                    self._move(x, x.grad, group)

    def _move(self, x: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        (b1, b2), by_row = group["betas"], group["by_row"] and x.ndim > 1
        state = self.state[x]
        if not state:
            rows = x.new_zeros((len(x),) + (1,) * (x.ndim - 1)) if by_row else torch.zeros_like(x)
            state.update(step=torch.zeros(()), m=torch.zeros_like(x), v=rows)
        state["step"] += 1
        n, m, v = float(state["step"]), state["m"], state["v"]
        m.lerp_(g, 1 - b1)
        square = g.square().mean(tuple(range(1, g.ndim)), keepdim=True) if by_row else g.square()
        v.lerp_(square, 1 - b2)
        scale = v.sqrt().mul_((1 - b2**n) ** -0.5).add_(group["eps"])
        x.addcdiv_(m, scale, value=-group["lr"] / (1 - b1**n))
