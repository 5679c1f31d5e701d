"""The credit-assigned policy gradient against complete enumeration: what it estimates, and how far that is from the truth."""

import numpy as np
import torch
from scipy.sparse import csr_matrix

import credit
import enumeration
from worlds import seeded

S, R = [0.3, -0.4, 0.9, 0.1, -0.8], [1.5, 0.2, -1.0, 0.4, 0.6]
W, K2 = [1.0, 0.0, 0.0, 0.5, 0.0], 3


def limit(theta: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """The credit-assigned gradient and the true one, both by enumeration."""
    D = len(S)
    rho = np.array(enumeration.exposure(S, R, theta, K2))
    chance = np.array(enumeration.exposure(S, [0.0] * D, [1.0] * K2, K2))
    v = (np.array(W) * rho / chance).tolist()
    _, assigned, _ = enumeration.utility(S, [0.0] * D, v, [1.0] * K2, K2)
    _, true, _ = enumeration.utility(S, R, W, theta, K2)
    return np.array(assigned), np.array(true)


def estimates(theta: list[float], rows: int, samples: int) -> torch.Tensor:
    s, r = (torch.tensor([x] * rows, dtype=torch.float32) for x in (S, R))
    w = csr_matrix(np.tile(np.array(W, np.float32), (rows, 1)))
    return credit.gradient(s, r, w, torch.tensor(theta), K2, samples=samples, generator=seeded(0)).double()


def test_it_estimates_what_enumeration_gives_and_that_is_not_the_gradient() -> None:
    assigned, true = limit([1.0, 0.5])
    found = estimates([1.0, 0.5], rows=200, samples=2000)
    error = found.std(0) / len(found) ** 0.5
    assert torch.all((found.mean(0) - torch.tensor(assigned)).abs() <= 5 * error + 2e-4)
    bias = np.linalg.norm(assigned - true) / np.linalg.norm(true)
    assert 0.1 < bias < 0.2
    assert not torch.all((found.mean(0) - torch.tensor(true)).abs() <= 5 * error + 2e-4)


def test_without_a_re_ranker_to_decide_it_is_unbiased() -> None:
    """Every candidate is shown and counts the same: then being a candidate is all that matters."""
    assigned, true = limit([1.0] * K2)
    np.testing.assert_allclose(assigned, true, atol=1e-9)
