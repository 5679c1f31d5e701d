"""The optimiser against PyTorch's Adam, and against its formula by row."""

import numpy as np
import torch

from tandemrank.optimiser import Adam


def gradients(n: int, shape: tuple[int, ...]) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(n)
    return [torch.randn(shape, generator=random) * 10**i for i in range(n)]


def test_without_rows_it_is_adam() -> None:
    ours, theirs = (torch.nn.Parameter(torch.ones(5, 3)) for _ in range(2))
    optimisers = Adam([{"params": [ours], "lr": 0.1}]), torch.optim.Adam([theirs], lr=0.1)
    for g in gradients(6, (5, 3)):
        for x, optimiser in zip((ours, theirs), optimisers, strict=True):
            x.grad = g.clone()
            optimiser.step()
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_by_row_each_row_has_one_scale() -> None:
    x = torch.nn.Parameter(torch.zeros(4, 3))
    optimiser = Adam([{"params": [x], "lr": 0.1, "by_row": True}])
    wanted, m, v = np.zeros((4, 3)), np.zeros((4, 3)), np.zeros(4)
    for n, g in enumerate(gradients(5, (4, 3)), 1):
        x.grad = g.clone()
        optimiser.step()
        g = g.double().numpy()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * (g**2).mean(1)
        wanted -= 0.1 * m / (1 - 0.9**n) / (np.sqrt(v / (1 - 0.999**n)) + 1e-8)[:, None]
        np.testing.assert_allclose(x.detach().numpy(), wanted, rtol=1e-4, atol=1e-6)


def test_a_row_moves_along_its_gradient() -> None:
    x = torch.nn.Parameter(torch.zeros(2, 3))
    x.grad = torch.tensor([[3.0, 0.0, 0.01], [0.0, 0.0, 0.0]])
    Adam([{"params": [x], "lr": 0.1, "by_row": True}]).step()
    direction = x.detach()[0] / x.detach()[0].norm()
    torch.testing.assert_close(direction, -x.grad[0] / x.grad[0].norm())
    assert not x.detach()[1].any()
