import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import svds

import enumeration
from tandemrank.errors import ConfigError
from tandemrank.experiments import synthetic
from tandemrank.experiments.synthetic import synthetic_world


def ndcg_at_10(relevant: NDArray[np.bool_], scores: NDArray[np.float32]) -> float:
    """Mean NDCG@10 of the ten highest scores, binary gains. Shapes: relevant [Q, D], scores [Q, D] or [1, D]."""
    discount = 1 / np.log2(np.arange(2, 12))
    shown = np.broadcast_to(np.argsort(-scores, axis=1, kind="stable")[:, :10], (len(relevant), 10))
    dcg = np.take_along_axis(relevant, shown, axis=1) @ discount
    ideal = np.cumsum(discount)[np.minimum(relevant.sum(axis=1), 10) - 1]
    return float(np.mean(dcg / ideal))


def svd_scores(ratings: csr_matrix, rank: int) -> NDArray[np.float32]:
    u, s, vt = svds(ratings, rank, v0=np.ones(min(ratings.shape), np.float32))
    scores: NDArray[np.float32] = (u * s) @ vt
    return scores


@pytest.fixture(scope="module")
def full() -> csr_matrix:
    return synthetic_world(6040, 3706, seed=0)[0]


class TestFullSizeResemblesMovieLens1M:
    """The figures of MovieLens-1M itself stand in the comments."""

    def test_ratings_and_positives(self, full: csr_matrix) -> None:
        assert full.shape == (6040, 3706)
        assert full.nnz == pytest.approx(1_000_209, rel=0.01)
        assert (full.data > 3).sum() == pytest.approx(575_281, rel=0.03)
        assert set(np.unique(full.data)) == {1, 2, 3, 4, 5}

    def test_activity_is_long_tailed(self, full: csr_matrix) -> None:
        activity = full.getnnz(axis=1)
        assert activity.min() == 20  # 20
        assert np.median(activity) == pytest.approx(96, rel=0.1)  # 96
        assert np.quantile(activity, 0.99) == pytest.approx(906, rel=0.1)  # 906

    def test_popularity_is_long_tailed(self, full: csr_matrix) -> None:
        views = np.sort(full.getnnz(axis=0))[::-1]
        assert views[:370].sum() / views.sum() == pytest.approx(0.444, abs=0.03)  # 0.444
        assert np.median(views) == pytest.approx(123, rel=0.1)  # 123
        assert views[0] == pytest.approx(3428, rel=0.15)  # 3,428

    def test_popularity_and_svd_rank_as_there(self, full: csr_matrix) -> None:
        relevant = full.toarray() > 3
        popularity = relevant.sum(axis=0, dtype=np.float32)[None]
        assert ndcg_at_10(relevant, popularity) == pytest.approx(0.40, abs=0.03)  # 0.403
        assert ndcg_at_10(relevant, svd_scores(full, 50)) == pytest.approx(0.82, abs=0.06)  # 0.817

    def test_production_policy_of_a_tenth_of_the_users_starts_as_there(self, full: csr_matrix) -> None:
        tenth = np.random.default_rng(1).permutation(6040)[:604]
        rest = np.setdiff1d(np.arange(6040), tenth)
        mean_user = svd_scores(full[tenth], 50).mean(axis=0)[None]
        assert ndcg_at_10(full[rest].toarray() > 3, mean_user) == pytest.approx(0.40, abs=0.03)  # 0.401


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_other_seeds_have_the_same_popularity_level(seed: int) -> None:
    relevant = synthetic_world(6040, 3706, seed=seed)[0].toarray() > 3
    assert ndcg_at_10(relevant, relevant.sum(axis=0, dtype=np.float32)[None]) == pytest.approx(0.40, abs=0.03)


def test_same_seed_same_world() -> None:
    first, again, other = (synthetic_world(300, 200, seed=seed)[0] for seed in (4, 4, 5))
    assert (first != again).nnz == 0
    assert (first != other).nnz > 0


def test_a_small_world_can_be_learned_too() -> None:
    ratings = synthetic_world(1000, 500)[0]
    relevant = ratings.toarray() > 3
    by_popularity = ndcg_at_10(relevant, relevant.sum(axis=0, dtype=np.float32)[None])
    assert 0.4 < by_popularity < 0.6
    assert ndcg_at_10(relevant, svd_scores(ratings, 20)) > by_popularity + 0.2


@settings(max_examples=40, deadline=None)
@given(queries=st.integers(1, 60), items=st.integers(1, 60), seed=st.integers(0, 9))
def test_worlds_of_any_size(queries: int, items: int, seed: int) -> None:
    ratings = synthetic_world(queries, items, seed=seed)[0]
    assert ratings.shape == (queries, items)
    assert ratings.dtype == np.float32
    assert ratings.has_canonical_format
    assert np.isin(ratings.data, [1, 2, 3, 4, 5]).all()
    assert ((ratings > 3).getnnz(axis=1) >= 1).all(), "every query likes something"
    if items >= 10:
        assert ratings.getnnz(axis=1).min() >= 5
        assert ratings.getnnz(axis=1).max() < items, "nobody has rated everything"


@pytest.mark.parametrize(("queries", "items", "seed"), [(0, 5, 0), (5, 0, 0), (5, 5, -1)])
def test_impossible_worlds_are_refused(queries: int, items: int, seed: int) -> None:
    with pytest.raises(ConfigError, match=f"got {queries} queries, {items} items and seed {seed}"):
        synthetic_world(queries, items, seed=seed)[0]


def test_lazy_watching_has_the_law_of_the_race() -> None:
    """How often each of five items is among the two that are watched, against enumeration; users and items in order."""
    n, rng = 20_000, np.random.default_rng(0)
    p, x = np.tile([0.5, -0.3], (n, 1)), rng.standard_normal((5, 2))
    popularity = np.array([0.2, 1.0, 3.0, 0.5, 1.0])
    parts = zip(*synthetic._watch_lazily(p, x, popularity, np.full(n, 2), rng), strict=True)
    u, d, match = map(np.concatenate, parts)
    assert np.array_equal(u, np.repeat(np.arange(n), 2))
    assert (d[0::2] < d[1::2]).all()
    assert np.allclose(match, (p[u] * x[d]).sum(1))
    expected = np.zeros(5)
    for y, chance, _ in enumeration.rankings((p[0] @ x.T + np.log(popularity)).tolist(), range(5), 2):
        expected[list(y)] += chance
    assert np.all(np.abs(np.bincount(d) / n - expected) <= 5 * np.sqrt(expected * (1 - expected) / n))
