"""Graded relevance against sums over its levels, showing by showing, and against differences."""

import numpy as np
import pytest

from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.grades import Grades

FAMILIES = [Grades.bit(0.9, 0.05), Grades.graded(0.1, 0.7), Grades.graded(0.02, 1.5), Grades.graded(0.3, 0.25)]
THETA = np.array([1.0, 0.6, 0.3])
# Showings of four pairs as (rank, clicked).
SHOWINGS = [[(0, 1)], [(0, 0), (1, 0), (2, 0)], [(1, 1), (1, 0), (0, 1)], [(2, 0)]]


def counts() -> Counts:
    rows = [(pair, rank, clicked) for pair, seen in enumerate(SHOWINGS) for rank, clicked in seen]
    pair, rank, clicked = (np.array(x) for x in zip(*rows, strict=True))
    return Counts.of_rows(
        pair // 2, pair % 2, THETA[rank], np.ones(len(pair)), clicked.astype(float), impressions=np.full(2, 9.0), D=2
    )


def enumerated(grades: Grades, s: float, seen: list[tuple[int, int]]) -> tuple[float, float, float]:
    """Log-likelihood of showings, mean and variance of R after them: the sum over levels, one showing after the other."""
    if grades.is_bit:
        prior = np.array([1, np.exp(s)])
    else:
        prior = np.exp(-((np.log(grades.R / (1 - grades.R)) - s) ** 2) / (2 * grades.spread**2))
    prior /= prior.sum()
    both = prior.copy()
    for rank, clicked in seen:
        click = THETA[rank] * grades.R
        both *= click if clicked else 1 - click
    after = both / both.sum()
    mean = after @ grades.R
    return float(np.log(both.sum())), float(mean), float(after @ grades.R**2 - mean**2)


@pytest.mark.parametrize("grades", FAMILIES)
def test_mean_variance_and_likelihood_are_those_of_the_sum_over_levels(grades: Grades) -> None:
    L, best = counts().likelihood(grades.R)
    for s in (-3.0, -1.0, 0.5):
        at = np.full(4, s)
        value = grades.terms(at, L)[0] + best
        marginal = grades.marginal(at, np.zeros(4), L) + best
        mean, variance = grades.posterior(at, np.zeros(4), L)
        for pair, seen in enumerate(SHOWINGS):
            expected = enumerated(grades, s, seen)
            assert value[pair] == pytest.approx(expected[0], abs=2e-5)
            assert marginal[pair] == pytest.approx(expected[0], abs=2e-5)
            assert mean[pair] == pytest.approx(expected[1], abs=2e-5)
            assert variance[pair] == pytest.approx(expected[2], abs=2e-5)


@pytest.mark.parametrize("grades", FAMILIES)
def test_slope_and_curvature_are_derivatives_of_the_sum_over_levels(grades: Grades) -> None:
    L, _ = counts().likelihood(grades.R)
    step = 1e-4
    for s in (-2.0, -0.7, 0.4):
        _, slope, h = grades.terms(np.full(4, s), L)
        for pair, seen in enumerate(SHOWINGS):
            low, middle, high = (enumerated(grades, s + d, seen)[0] for d in (-step, 0.0, step))
            assert slope[pair] == pytest.approx((high - low) / (2 * step), abs=1e-3)
            second = -(high - 2 * middle + low) / step**2
            assert h[pair] == pytest.approx(max(second, 0.0), abs=5e-3)


def test_the_bit_is_the_log_likelihood_ratio() -> None:
    grades = Grades.bit(0.9, 0.05)
    L, _ = counts().likelihood(grades.R)
    ratio = np.log(L[:, 1]) - np.log(L[:, 0])
    mean, _ = grades.posterior(np.full(4, -1.0), np.zeros(4), L)
    assert mean == pytest.approx(0.05 + 0.85 / (1 + np.exp(1.0 - ratio)), rel=1e-4)


def test_a_wide_spread_believes_the_pair_and_a_small_one_the_model() -> None:
    many = Counts.of_rows(
        np.array([0]), np.array([0]), np.ones(1), np.array([400.0]), np.array([120.0]), impressions=np.ones(1), D=1
    )
    found = {}
    for spread in (0.25, 2.5):
        grades = Grades.graded(0.1, spread)
        L = many.likelihood(grades.R)[0]
        found[spread] = float(grades.remembered(many, np.array([-2.2]), np.zeros(1), L)[0][0])
    assert 0.25 < found[0.25] < found[2.5]
    assert abs(found[2.5] - 0.3) < 0.005


def test_rates_of_pairs_that_were_shown_often_are_told_apart() -> None:
    clicks = np.array([520.0, 540.0, 560.0, 580.0])
    counts = Counts.of_rows(
        np.zeros(4, np.int64), np.arange(4), np.ones(4), np.full(4, 2000.0), clicks, impressions=np.full(1, 8000.0), D=4
    )
    grades = Grades.graded(0.1, 0.7)
    found = grades.remembered(counts, np.full(4, -2.0), np.zeros(4), counts.likelihood(grades.R)[0])[0]
    assert np.abs(found - clicks / 2000).max() < 0.004
    assert (np.diff(found) > 0.005).all()


def test_relevance_of_pairs_never_shown_is_the_mean_over_what_is_not_known_of_s() -> None:
    rng = np.random.default_rng(0)
    for grades in FAMILIES[1:3]:
        s, variance = np.array([-3.0, -1.0]), np.array([0.5, 1.0])
        drawn = s[:, None] + np.sqrt(variance)[:, None] * rng.normal(size=(2, 20_000))
        expected = grades.rate(drawn.ravel()).reshape(2, -1).mean(1)
        assert grades.prior(s, variance) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("grades", FAMILIES)
def test_terms_by_kind_are_those_of_each_pair(grades: Grades) -> None:
    rng = np.random.default_rng(0)
    table = rng.random((len(grades.R), 5)).astype(np.float32)
    kind, s = rng.integers(0, 5, 9000).astype(np.int32), rng.normal(-1, 1, 9000)
    for found, expected in zip(grades.terms_of_kinds(s, table, kind), grades.terms(s, table.T[kind]), strict=True):
        assert np.array_equal(found, expected)


def test_the_highest_and_the_lowest_s_have_finite_terms() -> None:
    for grades in FAMILIES:
        L, _ = counts().likelihood(grades.R)
        for s in (-1e4, 1e4):
            assert all(np.isfinite(x).all() for x in grades.terms(np.full(4, s), L))
