"""Adam with weight decay (Loshchilov and Hutter 2019), to the bit as `torch.optim.AdamW` on a CPU.

    x <- (1 - lr decay) x,    x <- x - lr m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps),    m, v running means of g and g^2

The first optimiser of torch's own in a process imports its compiler: 85 MB and two seconds of CPU, of no use here.
"""

import math
from collections.abc import Iterable

import torch
from torch import Tensor

B1, B2, EPS = 0.9, 0.999, 1e-8


class Adam:
    """Steps of some parameters; `lr` may change between them."""

    def __init__(
        self, parameters: Iterable[Tensor], lr: float, *, decay: float = 0.0, plain: Iterable[Tensor] = ()
    ) -> None:
        """`plain`: parameters without decay."""
        self.lr, self.steps = lr, 0
        self.state = [
            (x, own, torch.zeros_like(x), torch.zeros_like(x))
            for own, group in ((decay, parameters), (0.0, plain))
            for x in group
            if x.requires_grad
        ]

    def zero_grad(self) -> None:
        """Forgets the gradients."""
        for x, *_ in self.state:
            x.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step on the gradients as they are; what has none stays where it is."""
        self.steps += 1
        rate, root = self.lr / (1 - B1**self.steps), math.sqrt(1 - B2**self.steps)
        for x, decay, mean, square in self.state:
            if x.grad is not None:
                x.mul_(1 - self.lr * decay)
                mean.lerp_(x.grad, 1 - B1)
                square.mul_(B2).addcmul_(x.grad, x.grad, value=1 - B2)
                x.addcdiv_(mean, (square.sqrt() / root).add_(EPS), value=-rate)
