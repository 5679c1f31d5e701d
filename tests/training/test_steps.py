"""A query's vector moves along its gradient, by steps of one length."""

import pytest
import torch

from tandemrank.training.steps import RowNormalisedStep


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e6])
def test_every_row_moves_along_its_gradient_by_one_length(size) -> None:
    x = torch.nn.Parameter(torch.zeros(4, 3))
    x.grad = (
        torch.randn(4, 3, generator=torch.Generator().manual_seed(0)) * size * torch.tensor([[1.0], [10], [0.1], [3]])
    )
    RowNormalisedStep([x], 0.1).step()
    wanted = -0.1 * 3**0.5 * x.grad / x.grad.norm(dim=1, keepdim=True)
    torch.testing.assert_close(x.detach(), wanted, rtol=1e-3, atol=0)


def test_a_gradient_whose_square_vanishes_moves_nothing() -> None:
    x = torch.nn.Parameter(torch.ones(1, 3))
    x.grad = torch.full((1, 3), 1e-22)
    RowNormalisedStep([x], 0.1).step()
    assert x.detach().tolist() == [[1.0, 1.0, 1.0]]


def test_a_row_without_a_gradient_stays_however_often_the_others_move() -> None:
    x = torch.nn.Parameter(torch.ones(2, 3))
    optimiser = RowNormalisedStep([x], 0.1)
    for _ in range(3):
        x.grad = torch.tensor([[3.0, 0.0, 0.01], [0.0, 0.0, 0.0]])
        optimiser.step()
        x.grad = torch.zeros(2, 3)
        optimiser.step()
    assert x.detach()[1].tolist() == [1.0, 1.0, 1.0]
    assert x.detach()[0, 0] == pytest.approx(1 - 3 * 0.1 * 3**0.5, rel=1e-4)
    assert not optimiser.state_dict()["state"]
