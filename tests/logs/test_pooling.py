"""Propensities that change over time: pooled by the harmonic mean they give the truth, and less noise than row by row.

The simulator is plain NumPy: two Plackett-Luce loggers, one after the other, all lists enumerated.
"""

from dataclasses import dataclass
from itertools import permutations

import numpy as np
import polars as pl
import pytest

from tandemrank.logs import reading
from tandemrank.logs.feedback import Feedback, exposure
from tandemrank.logs.sums import merge
from tandemrank.offpolicy import estimators
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


def pooled(log: Feedback, rho_0: np.ndarray | None = None) -> float:
    return estimators.ips(target(log), row_propensities(log, THETA, "logged") if rho_0 is None else rho_0, log).value


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


def test_clicks_are_weighed_by_their_expectation_given_the_sums() -> None:
    """Rao-Blackwell: the mean of row-by-row IPS over all ways to deal a row's clicks to its impressions."""
    p, c = np.array([0.5, 0.2, 0.1, 0.4]), np.array([1, 0, 1, 0])
    frame = pl.DataFrame({"query_id": 1, "items": [[2]] * 4, "clicks": c[:, None], "propensities": p[:, None]})
    log = reading.read(frame.with_columns(pl.col("clicks", "propensities").arr.to_list()))
    dealt = [sum(x / y for x, y in zip(clicks, p, strict=True)) for clicks in permutations(c)]
    assert log.clicks / log.propensity == pytest.approx([np.mean(dealt)], rel=1e-14)


def test_a_logger_that_was_retrained_once() -> None:
    """The truth within five standard errors; the mean of the shown propensities, which are size-biased, misses it."""
    runs = [simulate(3000, seed) for seed in range(60)]
    logs = [reading.read(run.frame()) for run in runs]
    ours, rows = np.array([pooled(log) for log in logs]), np.array([run.row_by_row() for run in runs])
    biased = []
    for run, log in zip(runs, logs, strict=True):
        key = (run.query[:, None] * D + run.items) * 2 + np.arange(2)
        mean = np.bincount(key.ravel(), run.propensity.ravel()) / np.maximum(np.bincount(key.ravel()), 1)
        biased.append(pooled(log, mean[(log.query * D + log.item) * 2 + log.rank]))
    for found, bound in ((ours, 5), (rows, 5)):
        assert abs(found.mean() - TRUTH) < bound * found.std(ddof=1) / np.sqrt(len(found))
    assert np.mean(biased) < TRUTH - 20 * np.std(biased) / np.sqrt(len(biased))
    assert ours.std() < rows.std()


def test_merged_logs_of_two_loggers_are_pooled_as_one() -> None:
    run = simulate(1000, 1)
    frame = run.frame()
    whole = reading.read(frame)
    halves = merge([reading.read(frame[500:]), reading.read(frame[:500])])
    assert np.array_equal(halves.propensity, whole.propensity)
