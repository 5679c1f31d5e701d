"""Steps of the optimisers: along the direction of a row's gradient, and Adam that touches only the rows with a gradient."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from tandemrank.policies.scorers import Scorer
from tandemrank.policies.trees import boosting_of
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


class RowAdam(torch.optim.Optimizer):
    """Adam whose step costs what its gradient touches: rows without a gradient, and what is remembered of them, stay.

    A dense gradient makes the usual step. Between two gradients of a row its memory fades as if every step had brought it none,
    m <- beta_1^n m, v <- beta_2^n v for n steps, so an item that is seldom asked about has no stale memory.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float, eps: float = 1e-8) -> None:
        super().__init__(parameters, {"lr": lr, "eps": eps, "betas": (0.9, 0.999)})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """One step on the gradients as they are."""
        for group in self.param_groups:
            for x in group["params"]:
                if x.grad is not None:
                    self._move(x, group)

    def _move(self, x: Tensor, group: dict[str, Any]) -> None:
        state = self.state[x]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(x), torch.zeros_like(x)
            state["last"] = torch.zeros(len(x) if x.ndim else 1)
        state["step"] += 1
        step = float(state["step"])
        rows, g = _rows(x.grad) if x.grad is not None and x.grad.is_sparse else (slice(None), x.grad)
        assert g is not None
        first, second = group["betas"]
        passed = (step - state["last"][rows]).view(-1, *[1] * (x.ndim - 1))
        m = state["exp_avg"][rows] * first**passed + (1 - first) * g
        v = state["exp_avg_sq"][rows] * second**passed + (1 - second) * g.square()
        state["exp_avg"][rows], state["exp_avg_sq"][rows], state["last"][rows] = m, v, step
        scale = v.div_(1 - second**step).sqrt_().add_(group["eps"])
        x[rows] -= group["lr"] / (1 - first**step) * m / scale


def optimisers_of(
    model: Scorer, config: TrainingConfig, pace: float, sparse: bool = False
) -> list[torch.optim.Optimizer]:
    """In an epoch a query's own parameters meet one minibatch, what all queries share meets every one: it goes slower."""
    own = {id(parameter) for parameter in model.per_query_parameters()}
    rate = config.learning_rate * pace
    found = boosting_of(model, rate)
    for is_own, lr in ((True, rate), (False, rate * config.shared_rate)):
        parameters = [p for p in model.parameters() if (id(p) in own) == is_own]
        # Scores that were given have no vector per query, so no direction either.
        by_direction = is_own and config.query_step == "direction" and all(p.ndim == 2 for p in parameters)
        if parameters:
            if by_direction:
                found.append(RowNormalisedStep(parameters, lr))
            else:
                found.append(RowAdam(parameters, lr) if sparse else torch.optim.Adam(parameters, lr, fused=True))
    return found
