"""The models of the study: factorisations that are the best of their rank."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from tandemrank.errors import ConfigError
from tandemrank.experiments.stage_models import low_rank, truncated_svd
from tandemrank.policies.scorers import MatrixFactorisation

NUMBERS = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)


def test_truncated_svd_is_the_best_approximation() -> None:
    rng = np.random.default_rng(0)
    ratings = csr_matrix(rng.integers(0, 6, size=(30, 20)) * (rng.random((30, 20)) < 0.5))
    users, items = truncated_svd(ratings, 4)
    U, sigma, Vt = np.linalg.svd(ratings.toarray())
    assert users @ items.T == pytest.approx((U[:, :4] * sigma[:4]) @ Vt[:4], abs=1e-4)
    assert np.array_equal(users, truncated_svd(ratings, 4)[0])
    with pytest.raises(ConfigError, match="rank: a factorisation of"):
        truncated_svd(ratings, 20)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_low_rank_is_the_best_approximation_up_to_a_constant_of_each_query(rank: int) -> None:
    scorer, q = MatrixFactorisation(NUMBERS[:6], NUMBERS[6:14]), torch.arange(6)
    full = scorer(q).detach().numpy().astype(np.float64)
    U, S, Vt = np.linalg.svd(full - full.mean(1, keepdims=True))
    found = low_rank(scorer, rank)(q).detach().numpy()
    assert found == pytest.approx(U[:, :rank] * S[:rank] @ Vt[:rank], abs=1e-5)
