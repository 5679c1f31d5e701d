"""The noise of impressions, by sums alone."""

from dataclasses import replace
from itertools import product

import numpy as np
import polars as pl
import pytest

from tandemrank._base.ids import Vocabulary
from tandemrank.logs.counting import from_impressions
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy.estimators import Estimate
from tandemrank.offpolicy.uncertainty import impression_covariance, unmet_variance


def read(query: list[int], items: np.ndarray, clicks: np.ndarray) -> Feedback:
    """The sums of impressions of three items.  Shapes: query [n]; items, clicks [n, K]."""
    words = Vocabulary(pl.Series(sorted(set(query))), pl.Series(range(3)))
    return from_impressions(
        [Impressions(np.array(query, np.int32), items.astype(np.int32), clicks.astype(np.uint8))], words
    )


def test_covariance_over_impressions_is_without_bias_by_enumeration() -> None:
    """Lists of one item, two queries with two impressions each: every outcome of lists and clicks, by its chance."""
    shown, liked = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]]), np.array([[0.9, 0.4, 0.1], [0.2, 0.8, 0.5]])
    w = np.array([[[2.0, 0.5, 3.0], [1.0, 4.0, 0.3]], [[1.0, 1.0, 1.0], [0.2, 0.0, 2.0]]])  # of two values
    chance = np.stack([shown * (1 - liked), shown * liked], axis=2).reshape(2, 6)  # item, then clicked or not
    queries, expected, values, total = [0, 0, 1, 1], np.zeros((2, 2)), [], []
    for outcome in product(range(6), repeat=4):
        items, clicks = (np.array(x)[:, None] for x in zip(*((o // 2, o % 2) for o in outcome), strict=True))
        log = read(queries, items, clicks)
        p = float(np.prod([chance[q, o] for q, o in zip(queries, outcome, strict=True)]))
        weights = [one[log.query, log.item] for one in w]
        expected += p * impression_covariance(weights, log, most=1)
        values.append([float(x @ log.clicks) / 4 for x in weights])
        total.append(p)
    assert sum(total) == pytest.approx(1)
    assert expected == pytest.approx(np.cov(np.array(values).T, aweights=total, bias=True))


def test_weights_that_met_no_click_are_in_the_noise() -> None:
    """90 showings of weight 1 with 9 clicks, 10 of weight 5 with none: one click beforehand at the rate of all, 9 in 100."""
    items = np.repeat([0, 1], [90, 10])[:, None]
    log = read([0] * 100, items, (np.arange(100) < 9)[:, None])
    weights = np.where(log.item == 1, 5.0, 1.0)
    found = unmet_variance(weights, log)
    light, heavy = (1 + 9) / (100 / 9 + 90), 1 / (100 / 9 + 10)
    assert found == pytest.approx((light * 90 + heavy * 25 * 10 - 9) / 100**2)
    assert unmet_variance(np.stack([weights, np.zeros(2)]), log) == found
    met = read([0] * 100, items, np.isin(np.arange(100), [*range(9), 95, 96, 97])[:, None])
    assert unmet_variance(weights, met) == 0
    assert unmet_variance(weights, read([0] * 100, items, np.zeros((100, 1)))) == 0


@pytest.mark.parametrize("several", [False, True])
def test_covariance_over_impressions_is_that_of_clicks_drawn_anew(several: bool) -> None:
    """One query, lists of three: one click at most, or several, which come together by chance; without `others` at most so."""
    rng, n = np.random.default_rng(0), 40_000
    chance = np.array([0.3, 0.2, 0.1])
    clicks = rng.random((n, 3)) < chance if several else rng.random((n, 1)) < np.cumsum(chance)
    if not several:
        clicks = np.diff(clicks.astype(int), axis=1, prepend=0) > 0
    log = read([0] * n, np.tile(np.arange(3), (n, 1)), clicks)
    weights = [np.ones(3), np.array([2.0, 0.0, 1.0]), np.array([0.1, 3.0, 0.5])]
    found = impression_covariance(weights, log, most=3)
    wanted = np.cov((clicks @ np.stack(weights, axis=1)).T) / n
    assert np.abs(found - wanted).max() < 0.05 * np.diag(wanted).max()
    bare = impression_covariance(weights, replace(log, others=None), most=3)
    assert (np.diag(bare) > np.diag(wanted)).all()


def test_a_query_that_came_once_counts_by_its_distance_from_all() -> None:
    """Its own impressions cannot say how much they differ; where every query came once, the error is that over queries."""
    rng, n = np.random.default_rng(1), 50
    items, clicks = rng.integers(3, size=(n, 1)), rng.random((n, 1)) < 0.5
    log = read(list(range(n)), items, clicks)
    w = np.array([0.5, 1.0, 2.0])[log.item]
    terms = Estimate(np.bincount(log.query, w * log.clicks, n), np.ones(n))
    assert impression_covariance([w], log, most=1)[0, 0] == pytest.approx(terms.standard_error**2)
