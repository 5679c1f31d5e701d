"""The weights of the ranks: as asked, and such that the re-ranker always has a say."""

import numpy as np
import pytest
import torch

from tandemrank.gradients import race
from tandemrank.training.weights import rank_weights

THETA = torch.tensor([1.0, 0.5, 0.3])


@pytest.mark.parametrize(
    ("wanted", "clicked", "K2", "alpha"),
    [
        ("examination", 1, 500, [1.0, 0.5, 0.3]),
        ("flat", 1, 1000, [1.0] * 100),
        ("flat", 5, 1000, [1.0] * 40),
        ("flat", 1000, 1000, [1.0] * 20),
        ("flat", 1, 50, [1.0] * 10),  # a fifth of the candidates
        ("flat", 1, 20, [1.0] * 4),  # which is more than what is shown
        ("flat", 1, 19, [1 / np.log2(k + 1) for k in range(1, 7)]),  # no more: twice as many count, the first most
        ("flat", 1, 5, [1.0, 0.6309298, 0.5, 0.4306766, 0.3868528]),
        ("flat", 1, 3, [1.0, 0.6309298, 0.5]),
    ],
)
def test_list_utility_the_weights_of_the_ranks(wanted, clicked, K2, alpha) -> None:
    assert rank_weights(wanted, THETA, clicked, K2).tolist() == pytest.approx(alpha)


@pytest.mark.parametrize(("K2", "K"), [(3, 3), (4, 3), (5, 3), (6, 3), (40, 10), (20, 10), (10, 10)])
def test_the_re_ranker_has_a_gradient_whatever_the_number_of_candidates(K2, K) -> None:
    rng = np.random.default_rng(0)
    s, r = (torch.tensor(rng.normal(size=(4, 50)), dtype=torch.float32, requires_grad=True) for _ in range(2))
    w = torch.tensor((rng.random((4, 50)) < 0.2).astype(np.float32))
    alpha = rank_weights("flat", 1 / torch.arange(1.0, K + 1), 10, K2)
    race.utility(s, r, w, alpha, K2, samples=20, generator=torch.Generator().manual_seed(0)).sum().backward()
    assert r.grad is not None
    assert float(r.grad.abs().max()) > 1e-3
