"""Features as the prior mean: they speak of queries and items without history, and leave the rest as it is."""

import numpy as np
import polars as pl
import pytest

from tandemrank._base.ids import Vocabulary
from tandemrank.errors import InputError
from tandemrank.logs import counting
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy.reward import featured, posterior
from tandemrank.offpolicy.reward.tables import Tables

Q, D, K, COLD = 300, 60, 4, 10
THETA = 1 / np.arange(1.0, K + 1)


def world() -> tuple[Feedback, Tables, np.ndarray]:
    """Tastes come from features; the last queries were never seen, the last items never shown."""
    rng = np.random.default_rng(3)
    u, z = rng.normal(size=(Q, 3)), rng.normal(size=(D, 3))
    R = (rng.random((Q, D)) < 1 / (1 + np.exp(1.5 - 1.5 * u @ z.T))).astype(float)
    query = rng.integers(Q - COLD, size=12_000)
    items = np.argsort(rng.random((len(query), D - COLD)), axis=1)[:, :K]
    clicks = rng.random(items.shape) < THETA * np.where(R[query[:, None], items] > 0, 0.95, 0.02)
    part = Impressions(query.astype(np.int32), items.astype(np.int32), clicks.astype(np.uint8))
    vocabulary = Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))
    return counting.from_impressions([part], vocabulary), Tables(u, z), R


def area(scores: np.ndarray, R: np.ndarray) -> float:
    """The chance that a relevant pair has the higher score."""
    good, bad = scores[R > 0], scores[R == 0]
    return float((good[:, None] > bad[None, :]).mean() + 0.5 * (good[:, None] == bad[None, :]).mean())


def test_cold_queries_and_items_are_known_by_their_features() -> None:
    log, tables, R = world()
    found, alone = featured.fit(log, THETA, tables), posterior.fit(log, THETA)
    q = np.arange(Q)
    new, old = found.matrix(q)[:, :D], alone.matrix(q)[:, :D]
    cold_queries, cold_items = slice(Q - COLD, None), slice(D - COLD, None)
    both = cold_queries, cold_items
    assert area(new[both].ravel(), R[both].ravel()) > 0.75  # by nothing but features
    for part in ((cold_queries, slice(D - COLD)), (slice(Q - COLD), cold_items)):
        assert area(new[part].ravel(), R[part].ravel()) > area(old[part].ravel(), R[part].ravel()) + 0.1
    warm = slice(Q - COLD), slice(D - COLD)
    assert (
        area(new[warm].ravel()[::5], R[warm].ravel()[::5]) > area(old[warm].ravel()[::5], R[warm].ravel()[::5]) - 0.01
    )
    assert found.chosen.source == "the log and features"


def test_features_that_say_nothing_change_next_to_nothing() -> None:
    log, _, R = world()
    rng = np.random.default_rng(9)
    found = featured.fit(log, THETA, Tables(rng.normal(size=(Q, 2)), rng.normal(size=(D, 2))))
    alone, q = posterior.fit(log, THETA), np.arange(Q)
    a, b = (area(model.matrix(q)[:, :D].ravel()[::7], R.ravel()[::7]) for model in (found, alone))
    assert a == pytest.approx(b, abs=0.02)
    same = featured.fit(log, THETA, Tables())
    assert np.array_equal(same.queries, alone.queries)


def test_the_ridge_finds_a_line_and_leaves_noise_alone() -> None:
    rng = np.random.default_rng(0)
    X, A = rng.normal(size=(400, 3)), np.array([[1.0, -2.0], [0.0, 0.5], [3.0, 0.0]])
    assert featured.ridge(X, X @ A, np.ones(400)) == pytest.approx(A, abs=0.05)
    assert (
        not featured.ridge(X, rng.normal(size=(400, 2)), np.ones(400)).any()
        or np.abs(featured.ridge(X, rng.normal(size=(400, 2)), np.ones(400))).max() < 0.15
    )


def test_what_does_not_fit_is_refused() -> None:
    log, tables, _ = world()
    with pytest.raises(InputError, match=r"features of items must be finite, one row for each of 60; \(3, 2\) came"):
        featured.fit(log, THETA, Tables(tables.queries, np.zeros((3, 2))))
