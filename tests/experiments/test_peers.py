"""The peers: each formula against its definition, and each learns."""

import numpy as np
import polars as pl
import pytest

from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError
from tandemrank.experiments import peers, tuning
from tandemrank.experiments.peers import PEERS, Evidence
from tandemrank.logs.counting import from_impressions
from tandemrank.logs.impressions import Impressions

Q, D, K, F = 60, 30, 5, 4
THETA = 1 / np.arange(1.0, K + 1)


def world(seed: int = 0, N: int = 3000) -> tuple[Evidence, np.ndarray]:
    """Uniform lists, clicks by taste: R = sigmoid of a low-rank score."""
    rng = np.random.default_rng(seed)
    users, items = rng.normal(size=(Q, F)), rng.normal(size=(D, F))
    R = 1 / (1 + np.exp(3 - 1.5 * users @ items.T - rng.normal(size=D)))
    query = rng.integers(Q, size=N).astype(np.int32)
    shown = rng.permuted(np.tile(np.arange(D), (N, 1)), axis=1)[:, :K].astype(np.int32)
    clicks = (rng.random((N, K)) < THETA * R[query[:, None], shown]).astype(np.uint8)
    ids = Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))
    half = N // 2
    parts = [Impressions(query[a], shown[a], clicks[a]) for a in (slice(half), slice(half, N))]
    one, two = (from_impressions([part], ids) for part in parts)
    log = from_impressions(parts, ids)
    vectors = users.astype(np.float32)
    return Evidence(log, (one, two), THETA, items.astype(np.float32), vectors, vectors), R


EVIDENCE, R = world()
ALL = np.arange(Q)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_every_peer_learns(peer) -> None:
    if peer.name.startswith("ALS"):
        pytest.importorskip("implicit", reason="the extra `peers` is not installed")
        pytest.importorskip("lightgbm", reason="the extra `peers` is not installed")
    scores = peer.fit(EVIDENCE, peer.settings[0])
    found = tuning.lists_of(scores, ALL, K, EVIDENCE.binary).plain
    assert found.shape == (Q, K)
    assert all(len(set(row)) == K for row in found.tolist())
    assert R[ALL[:, None], found].mean() > 1.2 * R.mean()


def test_ease_is_the_least_squares_with_a_zero_diagonal() -> None:
    X, ridge = EVIDENCE.binary.toarray().astype(float), 5.0
    B = np.zeros((D, D))
    for d in range(D):  # each column is a ridge regression on all other items
        others = np.delete(np.arange(D), d)
        A = X[:, others]
        B[others, d] = np.linalg.solve(A.T @ A + ridge * np.eye(D - 1), A.T @ X[:, d])
    assert peers.ease(EVIDENCE, {"ridge": ridge})(ALL) == pytest.approx(X @ B, abs=1e-4)


def test_the_ridge_autoencoder_is_its_formula() -> None:
    X, ridge = EVIDENCE.binary.toarray().astype(float), 5.0
    G = X.T @ X
    expected = X @ np.linalg.solve(G + ridge * np.eye(D), G)
    assert peers.ridge_autoencoder(EVIDENCE, {"ridge": ridge})(ALL) == pytest.approx(expected, abs=1e-4)


def test_the_bayesian_regression_is_the_posterior_mean() -> None:
    """The minimum of the quadratic that it stands for, found by plain gradient descent for one query."""
    setting = {"noise": 0.3, "scale": 0.2}
    found = peers.bayesian_regression(EVIDENCE, setting)(np.array([7]))[0]
    V = np.column_stack([EVIDENCE.items, np.ones(D)]).astype(float)
    known = np.column_stack([EVIDENCE.queries, np.zeros(Q)])
    known = known / (known @ V.T).std() * 0.2
    S = np.cov(known.T) + np.diag([1e-6] * F + [0.04])
    c, e = (m[[7]].toarray()[0] for m in (EVIDENCE.clicks, EVIDENCE.examined))
    x, precision = known.mean(0), np.linalg.inv(S)
    step = 0.5 / np.linalg.eigvalsh(precision + (V * e[:, None]).T @ V / 0.3).max()
    for _ in range(200_000):
        x = x - step * (precision @ (x - known.mean(0)) + V.T @ (e * (V @ x) - c) / 0.3)
    assert found == pytest.approx(V @ x, abs=1e-3)


def test_without_embeddings_the_regression_is_refused() -> None:
    bare = Evidence(EVIDENCE.log, EVIDENCE.halves, THETA)
    with pytest.raises(ConfigError, match="needs production's embeddings"):
        peers.bayesian_regression(bare, {"noise": 1.0, "scale": 1.0})
    with pytest.raises(ConfigError, match="needs production's embeddings"):
        peers.production(bare, {})


def test_without_the_libraries_nothing_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda name: None if name == "lightgbm" else name)
    with pytest.raises(ConfigError, match=r"the extra `peers` \(lightgbm not found\)"):
        peers.check_libraries()
