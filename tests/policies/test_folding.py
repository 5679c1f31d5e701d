"""Vectors by the scores of another model: exact where scores are products, by the formula where they are not."""

import numpy as np
import torch

from tandemrank.policies import folding


def test_scores_that_are_products_give_their_vectors_and_constants_back() -> None:
    rng = np.random.default_rng(0)
    x, y = (torch.from_numpy(rng.normal(size=(n, 3)).astype(np.float32)) for n in (5, 40))
    c = torch.arange(5.0)
    found, constant = folding.nearest(x @ y.T + c[:, None], y)
    assert torch.allclose(found, x, atol=2e-3)
    assert torch.allclose(constant, c, atol=2e-3)


def test_it_is_the_least_weighted_square_error_near_the_top() -> None:
    rng = np.random.default_rng(1)
    s, Y = rng.normal(size=(1, 12)), rng.normal(size=(12, 2))
    m = 12 * np.exp(s[0]) / np.exp(s[0]).sum() + 0.1
    A = np.vstack([np.column_stack([Y, np.ones(12)]) * np.sqrt(m)[:, None], np.eye(3)])
    A[12:] *= np.sqrt([1e-4 * np.square(Y).mean() * 12 + 1e-9] * 2 + [1e-9])[:, None]
    expected = np.linalg.lstsq(A, np.append(s[0] * np.sqrt(m), np.zeros(3)))[0]
    x, c = folding.nearest(torch.from_numpy(s), torch.from_numpy(Y))
    assert np.allclose(x[0], expected[:2], atol=1e-5)
    assert np.isclose(c[0], expected[2], atol=1e-5)


def test_without_a_constant_a_level_is_in_the_vectors() -> None:
    y = torch.tensor([[1.0, 2.0], [1.0, -1.0], [1.0, 0.5]])
    x, c = folding.nearest(torch.tensor([[3.0, 3.0, 3.0]]), y, constant=False)
    assert torch.allclose(x, torch.tensor([[3.0, 0.0]]), atol=2e-3)
    assert not c.any()


def test_some_are_spread_evenly_and_never_more_than_there_are() -> None:
    assert folding.some(3).tolist() == [0, 1, 2]
    assert folding.some(100, 3).tolist() == [0, 49, 99]
