"""Propensities that change over time: what is shown by their harmonic mean, clicks by those of their own showings.

The simulator is plain NumPy: two Plackett-Luce loggers, one after the other, all lists enumerated.
"""

from dataclasses import dataclass
from itertools import permutations

import numpy as np
import polars as pl
import pytest

from tandemrank.logs import reading
from tandemrank.logs.feedback import Feedback, click_moments, exposure
from tandemrank.logs.sums import merge
from tandemrank.offpolicy import bounds, estimators
from tandemrank.offpolicy.propensities import row_propensities

Q, D, THETA = 6, 5, np.array([1.0, 0.4])
LISTS = np.array(list(permutations(range(D), 2)))
RNG = np.random.default_rng(3)
RELEVANCE = RNG.uniform(0.05, 0.6, (Q, D))
BEFORE, AFTER, TARGET = (RNG.normal(scale=1.2, size=(Q, D)) for _ in range(3))


def chances(scores: np.ndarray) -> np.ndarray:
    """P(list) of Plackett-Luce.  Shapes: scores [Q, D] -> [Q, lists]."""
    e = np.exp(scores)
    first, second = (e[:, LISTS[:, k]] for k in (0, 1))
    return first / e.sum(1, keepdims=True) * second / (e.sum(1, keepdims=True) - first)


def rho(scores: np.ndarray) -> np.ndarray:
    """Exposure of each item: sum over lists of P(list) theta_k.  Shapes: -> [Q, D]."""
    found = np.zeros((Q, D))
    for k in (0, 1):
        np.add.at(found.T, LISTS[:, k], THETA[k] * chances(scores).T)
    return found


TRUTH = float((rho(TARGET) * RELEVANCE).sum(1).mean())


@dataclass(frozen=True)
class Simulated:
    """Shown lists and what each impression knows.  Shapes: query [n]; items, clicks, propensity [n, 2]."""

    query: np.ndarray
    items: np.ndarray
    clicks: np.ndarray
    propensity: np.ndarray

    def frame(self) -> pl.DataFrame:
        lists = {"items": self.items, "clicks": self.clicks, "propensities": self.propensity}
        return pl.DataFrame({"query_id": self.query, **{n: pl.Series(x).arr.to_list() for n, x in lists.items()}})

    def row_by_row(self) -> float:
        """IPS with each impression's own propensities: 1/N sum_i sum_d rho_cr(d) / p_i(d) c_i(d)."""
        weights = rho(TARGET)[self.query[:, None], self.items] / self.propensity
        return float((weights * self.clicks).sum() / len(self.query))


def simulate(n: int, seed: int) -> Simulated:
    """Half of the impressions by the first logger, then it is retrained."""
    rng = np.random.default_rng(seed)
    query, parts, own = rng.integers(0, Q, n), [], []
    for scores, q in zip((BEFORE, AFTER), np.split(query, [n // 2]), strict=True):
        p = chances(scores).cumsum(1)
        parts.append(LISTS[(rng.random((len(q), 1)) * p[q, -1:] > p[q]).sum(1)])
        own.append(rho(scores)[q[:, None], parts[-1]])
    items = np.concatenate(parts)
    clicks = (rng.random(items.shape) < THETA * RELEVANCE[query[:, None], items]).astype(np.int64)
    return Simulated(query, items, clicks, np.concatenate(own))


def target(log: Feedback) -> np.ndarray:
    """The exposures of the target in the rows of a log, whose ids are 0, 1, 2, ..."""
    return rho(TARGET)[log.query, log.item]


def by_sums(log: Feedback, rho_0: np.ndarray | None = None) -> float:
    rho_0 = row_propensities(log, THETA, "logged") if rho_0 is None else rho_0
    return estimators.ips(target(log), rho_0, log.by_own_propensity()).value


def test_the_propensity_of_a_row_is_the_harmonic_mean_by_weight() -> None:
    frame = pl.DataFrame(
        {"query_id": [1, 1], "items": [[2], [2]], "clicks": [[0], [1]], "propensities": [[0.5], [0.1]]}
    )
    assert reading.read(frame).propensity == pytest.approx([2 / (1 / 0.5 + 1 / 0.1)], rel=1e-15)
    weighted = reading.read(frame.with_columns(weight=pl.Series([3.0, 1.0])))
    assert weighted.propensity == pytest.approx([4 / (3 / 0.5 + 1 / 0.1)], rel=1e-15)
    assert reading.read(frame.drop("propensities")).propensity is None


def test_what_was_shown_is_weighed_as_impression_by_impression() -> None:
    """Exactly: sum(theta rho_cr / p), of which balance, self-normalisation and the model's part are made."""
    simulated = simulate(2000, 0)
    log = reading.read(simulated.frame())
    weights = THETA * rho(TARGET)[simulated.query[:, None], simulated.items] / simulated.propensity
    expected = np.bincount(simulated.query, weights.sum(1))
    found = np.bincount(log.query, exposure(log, THETA) * target(log) / log.propensity)
    assert found == pytest.approx(expected, rel=1e-13)


def test_clicks_count_by_the_propensities_of_their_own_showings() -> None:
    """Exactly the sum impression by impression; without propensities as they are."""
    simulated = simulate(2000, 2)
    log = reading.read(simulated.frame())
    assert by_sums(log) == pytest.approx(simulated.row_by_row(), rel=1e-13)
    weights = rng_weights(2000)
    weighted = reading.read(simulated.frame().with_columns(weight=weights))
    of_rows = (rho(TARGET)[simulated.query[:, None], simulated.items] / simulated.propensity * simulated.clicks).sum(1)
    assert by_sums(weighted) == pytest.approx(of_rows @ weights / weights.sum(), rel=1e-13)
    plain = log.without_propensities()
    assert plain.by_own_propensity() is plain


def rng_weights(n: int) -> np.ndarray:
    return np.random.default_rng(7).uniform(0.5, 3, n)


def test_moments_of_clicks_are_those_of_the_impressions() -> None:
    """sum 1, h, h^2 and m, m h, m h^2 over the clicks of a row, h = p / p_i; h^2 as if m had nothing to do with it."""
    simulated = simulate(500, 3)
    log = reading.read(simulated.frame())
    each, together = click_moments(log, 2.0)
    found = np.zeros((6, len(log.query)))
    for q, items, clicks, own in zip(
        simulated.query, simulated.items, simulated.clicks, simulated.propensity, strict=True
    ):
        for k in np.flatnonzero(clicks):
            row = np.flatnonzero((log.query == q) & (log.item == items[k]) & (log.rank == k))
            h, m = log.propensity[row] / own[k], clicks.sum()
            found[:, row] += np.array([h**0, h, h**2, m * h**0, m * h, m * h**2])
    assert together == pytest.approx(found[3:], rel=1e-12)
    assert each[:2] == pytest.approx(found[:2], rel=1e-12)
    assert each[2].sum() == pytest.approx(found[2].sum(), rel=0.02)
    plain, of_lists = click_moments(log.without_propensities(), 2.0)
    assert (plain == log.clicks).all()
    assert (of_lists == log.clicks + log.others).all()


def test_a_bound_takes_every_click_by_its_own_propensity() -> None:
    """The sums of a difference to production, and of two policies, are those of the impressions."""
    simulated = simulate(800, 4)
    log = reading.read(simulated.frame())
    w = target(log) / log.propensity
    moving = rho(TARGET)[simulated.query[:, None], simulated.items] / simulated.propensity
    live = bounds.both_weights(np.ones(len(w)), fixed=True)
    for old, v in ((live, moving - 1), (0.5 * w, 0.5 * moving)):
        sums = bounds.difference_sums(w, old, log, most=2.0)
        assert sums.total == pytest.approx((v * simulated.clicks).sum(), rel=1e-12)
        squares = (simulated.clicks.sum(1) * (v**2 * simulated.clicks).sum(1)).sum()
        assert sums.squares == pytest.approx(squares, rel=1e-12)


def test_a_logger_that_was_retrained_once() -> None:
    """The truth within five standard errors; the mean of the shown propensities, which are size-biased, misses it."""
    runs = [simulate(3000, seed) for seed in range(60)]
    logs = [reading.read(run.frame()) for run in runs]
    ours = np.array([by_sums(log) for log in logs])
    biased = []
    for run, log in zip(runs, logs, strict=True):
        key = (run.query[:, None] * D + run.items) * 2 + np.arange(2)
        mean = np.bincount(key.ravel(), run.propensity.ravel()) / np.maximum(np.bincount(key.ravel()), 1)
        biased.append(by_sums(log.without_propensities(), mean[(log.query * D + log.item) * 2 + log.rank]))
    assert abs(ours.mean() - TRUTH) < 5 * ours.std(ddof=1) / np.sqrt(len(ours))
    assert np.mean(biased) < TRUTH - 20 * np.std(biased) / np.sqrt(len(biased))


def test_merged_logs_of_two_loggers_are_pooled_as_one() -> None:
    run = simulate(1000, 1)
    frame = run.frame()
    whole = reading.read(frame)
    halves = merge([reading.read(frame[500:]), reading.read(frame[:500])])
    for name in ("propensity", "weighed", "weighed_together", "weighed_squares"):
        assert np.array_equal(getattr(halves, name), getattr(whole, name))
