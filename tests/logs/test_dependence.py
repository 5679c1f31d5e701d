"""Clicks of one list: independent given the list, or those of readers who stop, or of users in moods."""

import numpy as np
import pytest

from tandemrank.logs.impressions import Impressions
from tandemrank.logs.pairs import FEW, Dependence, dependence

Q, D, K = 40, 8, 3
THETA = np.array([1.0, 0.6, 0.4])


def lists(n: int, seed: int, *, stops: float = 0.0, moods: float = 0.0) -> Impressions:
    """Random lists; readers who stop after a click with a chance; users whose clicks all rise and fall together."""
    rng = np.random.default_rng(seed)
    R = np.random.default_rng(0).uniform(0.05, 0.6, (Q, D))
    query = rng.integers(0, Q, n)
    items = np.argsort(rng.random((n, D)), axis=1)[:, :K]
    mood = 1 + moods * rng.choice([-1.0, 1.0], n)
    reading, clicks = np.ones(n, np.bool_), np.zeros((n, K), np.uint8)
    for k in range(K):
        chance = THETA[k] * R[query, items[:, k]] * mood
        clicks[:, k] = reading & (rng.random(n) < chance)
        reading &= (clicks[:, k] == 0) | (rng.random(n) >= stops)
    return Impressions(query.astype(np.int32), items.astype(np.int32), clicks)


def test_products_of_residuals_by_hand() -> None:
    """Every pair of ranks of every list, by plain loops."""
    log = lists(60, 1)
    pairs: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for i, q in enumerate(log.query):
        for k in range(K):
            pairs.setdefault((int(q), int(log.items[i, k])), []).append((i, k, int(log.clicks[i, k])))

    def residual(i: int, k: int) -> tuple[float, float, float]:
        others = [(j, c) for m, j, c in pairs[int(log.query[i]), int(log.items[i, k])] if m != i]
        seen = sum(THETA[j] for j, _ in others)
        if not seen:
            return 0.0, 0.0, 0.0
        expected = min(THETA[k] * sum(c for _, c in others) / seen, 1.0)
        return seen / (seen + FEW), log.clicks[i, k] - expected, expected

    total, squares, observed, hoped = 0.0, 0.0, 0.0, 0.0
    for i in range(60):
        own = 0.0
        for j in range(K):
            for k in range(j + 1, K):
                (a, r, _), (b, s, expected) = residual(i, j), residual(i, k)
                own += a * b * r * s
                observed += a * b * log.clicks[i, j] * log.clicks[i, k]
                hoped += a * b * log.clicks[i, j] * expected
        total, squares = total + own, squares + own**2
    found = dependence(log, THETA)
    assert found is not None
    assert found.z == pytest.approx(total / np.sqrt(squares))
    assert found.ratio == pytest.approx(observed / hoped)


def test_independent_clicks_pass_whatever_the_relevance() -> None:
    every = [found for seed in range(20) if (found := dependence(lists(3000, seed))) is not None]
    z = [found.z for found in every]
    assert len(z) == 20
    assert abs(np.mean(z)) < 5 / np.sqrt(len(z))
    assert np.std(z) < 2
    assert not any(found.stops for found in every)


def test_readers_who_stop_are_found_and_moods_do_no_harm() -> None:
    stopping, moody = dependence(lists(5000, 1, stops=0.8)), dependence(lists(20_000, 1, moods=0.6))
    assert stopping is not None
    assert stopping.stops
    assert stopping.ratio < 0.4
    assert (np.triu(stopping.by_ranks, 1)[np.triu_indices(K, 1)] < -3).all()
    assert "readers stop after a click" in stopping.words
    assert moody is not None
    assert moody.z > 5
    assert not moody.stops
    assert "no harm" in moody.words


def test_edges_nothing_to_compare() -> None:
    one = lists(50, 0)
    assert dependence(one.head(0)) is None
    assert dependence(Impressions(one.query, one.items[:, :1], one.clicks[:, :1])) is None
    assert dependence(Impressions(one.query, one.items, np.zeros_like(one.clicks))) is None
    alone = Impressions(np.arange(50, dtype=np.int32), one.items, one.clicks)  # no query comes twice
    assert dependence(alone) is None
    more = lists(500, 0)
    short = Impressions(more.query, np.where(np.arange(K) < 2, more.items, -1).astype(np.int32), more.clicks)
    assert isinstance(dependence(short), Dependence)
