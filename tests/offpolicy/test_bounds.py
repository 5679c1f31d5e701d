"""Bounds on means: identities with plain arithmetic, limits, edges; and coverage in simulations that share no code."""

import itertools
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bound_worlds
import bounds as bench
from tandemrank.errors import ConfigError, InputError
from tandemrank.offpolicy import bounds, diagnostics, verdicts
from tandemrank.offpolicy.bounds import Stakes, Terms
from tandemrank.offpolicy.estimators import Estimate


def ones(n: int) -> np.ndarray:
    return np.ones(n)


def wealth(values: list[float], sizes: list[float], floor: float, u: float, stakes: Stakes) -> float:
    """The averaged wealth as it is written, in plain Python."""
    total, largest = 0.0, max(sizes)
    for f, share in zip(stakes.fractions, stakes.shares, strict=True):
        product = 1.0
        for x, n in zip(values, sizes, strict=True):
            product *= 1 + f * ((x + floor * n) / (u + floor) - n) / largest
        total += share * product
    return total


def gamma(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.gamma(2.6, 0.37, n)


# --- betting: exact ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("floor", [0.0, 3.0])
def test_betting_is_the_smallest_mean_that_the_wealth_does_not_speak_against(floor: float) -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 6, 37).astype(float)
    values = (gamma(rng, 37) - (0.5 if floor else 0.0)) * sizes
    stakes = bounds.spread_stakes()
    u = bounds.betting(Terms(values, sizes, floor), 0.9, stakes=stakes)
    assert wealth(list(values), list(sizes), floor, u, stakes) == pytest.approx(10, rel=1e-6)
    assert wealth(list(values), list(sizes), floor, u + 0.01, stakes) < 10
    assert wealth(list(values), list(sizes), floor, u, stakes) >= 10  # on the safe side of the root
    by_log = bounds.log_wealth(Terms(values, sizes, floor), u, stakes.fractions)
    assert np.exp(stakes.log_mean(by_log)) == pytest.approx(10, rel=1e-6)


def test_the_expected_wealth_at_the_truth_is_at_most_one_over_all_outcomes() -> None:
    """Every outcome of four queries with values of their own and different sizes: the claim that the bound rests on.

    And the chance, counted, that the bound is above the truth.
    """
    sizes, floor = np.array([1.0, 4.0, 2.0, 2.0]), 1.0
    outcomes = [((-1.0, 0.6), (3.0, 0.4)), ((0.0, 0.9), (8.0, 0.1)), ((2.0, 1.0),), ((-2.0, 0.5), (6.0, 0.5))]
    truth = sum(x * p for query in outcomes for x, p in query) / 9
    expected, above = 0.0, 0.0
    for outcome in itertools.product(*outcomes):
        values, chance = [x for x, _ in outcome], math.prod(p for _, p in outcome)
        expected += chance * wealth(values, list(sizes), floor, truth, bounds.spread_stakes())
        terms = Terms(np.array(values), sizes, floor)
        above += chance * sum(bounds.betting(terms, level) > truth for level in (0.5,))
    assert expected <= 1
    assert expected > 0.9
    assert above <= 0.5


def test_equal_terms_may_come_as_counts_and_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(0, 4, 1000).astype(float)
    plain = bounds.betting(Terms(values, ones(1000)), 0.95)
    counted = Terms(np.arange(5.0), ones(5), times=np.bincount(values.astype(int), minlength=5).astype(float))
    assert bounds.betting(counted, 0.95) == pytest.approx(plain, rel=1e-9)
    assert len(counted) == 4  # what never came is no row
    monkeypatch.setattr(bounds, "CELLS", 300)
    assert bounds.betting(Terms(values, ones(1000)), 0.95) == pytest.approx(plain, rel=1e-9)


def test_the_bound_moves_with_the_scale_and_with_a_shift() -> None:
    x = gamma(np.random.default_rng(2), 100)
    u = bounds.betting(Terms(x, ones(100)))
    assert bounds.betting(Terms(7 * x, ones(100))) == pytest.approx(7 * u)
    assert bounds.betting(Terms(7 * x, 7 * ones(100))) == pytest.approx(u)
    stakes = bounds.spread_stakes()
    shifted = bounds.betting(Terms(x - 2, ones(100), 2.0), stakes=stakes)
    assert shifted == pytest.approx(bounds.betting(Terms(x, ones(100)), stakes=stakes) - 2)


def test_different_numbers_of_impressions_are_no_noise_to_betting() -> None:
    """Every query is worth the same: with terms per query the sizes would look like noise."""
    rng = np.random.default_rng(3)
    sizes = np.minimum(1 + np.floor(rng.pareto(1.2, 500) * 5), 200)
    terms = Terms(0.9 * sizes, sizes)
    assert bounds.betting(terms) > 0.75


def test_more_queries_and_a_lower_level_come_closer() -> None:
    rng = np.random.default_rng(4)
    x = rng.pareto(2.5, 50_000)
    found = [bounds.betting(Terms(x[:n], ones(n))) for n in (5, 50, 500, 5000, 50_000)]
    assert found == sorted(found)
    assert 0.97 / 1.5 < found[-1] < 1 / 1.5
    levels = [bounds.betting(Terms(x[:500], ones(500)), level) for level in (0.5, 0.9, 0.99)]
    assert levels == sorted(levels, reverse=True)
    assert max(levels) < x[:500].mean()


@pytest.mark.parametrize(("gap", "floor"), [(0.3, 0.0), (0.1, 1.0), (0.1, 10.0)])
def test_the_terms_needed_are_about_those_after_which_the_bound_speaks(gap: float, floor: float) -> None:
    """A sample of that size reaches the null in the middle: in some 20 to 80% of the draws."""
    rng = np.random.default_rng(10)
    n = round(bounds.terms_needed(1.0, 0.6, null=1 - gap, floor=floor))
    reached = [bounds.betting(Terms(rng.gamma(2.78, 0.36, n), ones(n), floor)) > 1 - gap for _ in range(100)]
    assert 0.2 < np.mean(reached) < 0.8
    stream = bounds.terms_needed(1.0, 0.6, null=1 - gap, floor=floor, stakes=bounds.spread_stakes())
    assert n < stream < 3 * n


def test_the_terms_needed_at_the_edges() -> None:
    assert bounds.terms_needed(0.0, 1.0, floor=1.0) == np.inf
    assert bounds.terms_needed(1.0, 1.0, floor=0.0) == np.inf  # nothing can be below 0: there is nothing to rule out
    assert 3 < bounds.terms_needed(100.0, 0.0, null=1.0, floor=1.0) < 100
    assert (
        bounds.terms_needed(1e-7, 1.0, floor=1.0, stakes=bounds.spread_stakes()) == np.inf
    )  # its smallest stake is too much


# --- differences, upper bounds ----------------------------------------------------------------------------------------


def test_terms_of_a_difference_and_of_production() -> None:
    n = np.array([2.0, 3.0, 0.0])
    new, old = Estimate(np.array([4.0, 0.0, 0.0]), n), Estimate(np.array([1.0, 2.0, 0.0]), n)
    terms = bounds.difference_terms(new, old, floor=5.0)
    assert (terms.values.tolist(), terms.sizes.tolist()) == ([3.0, -2.0], [2.0, 3.0])
    same = bounds.difference_terms(new, np.array([1.0, 2.0, 0.0]), floor=5.0)
    assert np.array_equal(same.values, terms.values)
    assert bounds.production_terms(old.numerator, n, 2.0).mean == pytest.approx(3 / 5)
    with pytest.raises(InputError, match="same impressions"):
        bounds.difference_terms(new, Estimate(old.numerator, n + 1), floor=5.0)
    with pytest.raises(InputError, match="same queries"):
        bounds.difference_terms(new, np.zeros(2), floor=5.0)


def test_a_difference_is_bounded_in_pairs() -> None:
    """A better pair that follows production query by query: the difference is known better than either value."""
    rng = np.random.default_rng(8)
    clicks, n = rng.gamma(1.0, 0.8, 1000), ones(1000)
    new = Estimate(clicks * 1.1 + 0.2 * rng.random(1000), n)
    low = bounds.betting(bounds.difference_terms(new, clicks, floor=10.0))
    apart = bounds.betting(bounds.value_terms(new), 0.975) - bounds.upper(Terms(clicks, n, 0, 10.0), 0.975)
    assert 0.1 < low < new.value - clicks.mean()
    assert low > apart


def test_an_upper_bound_is_a_lower_bound_of_the_mirror_image() -> None:
    rng = np.random.default_rng(9)
    x = rng.binomial(10, 0.1, 400).astype(float)
    terms = bounds.production_terms(x, ones(400), 10.0)
    low, high = bounds.betting(terms, 0.95), bounds.upper(terms, 0.95)
    assert terms.lower_bound(0.95) == low
    assert low < x.mean() < high
    stakes = bounds.spread_stakes()
    mirror = bounds.betting(Terms(10 - x, ones(400)), 0.95, stakes=stakes)
    assert bounds.upper(Terms(x, ones(400), 0.0, 10.0), stakes=stakes) == pytest.approx(10 - mirror)
    assert bounds.upper(Terms(x, ones(400)), 0.9) == np.inf  # no ceiling, no upper bound


# --- edges ------------------------------------------------------------------------------------------------------------


def test_edges_nothing_zero_one_and_huge() -> None:
    assert bounds.betting(Terms(np.zeros(0), np.zeros(0))) == 0
    assert bounds.betting(Terms(np.zeros(0), np.zeros(0), 2.0)) == -2
    assert bounds.betting(Terms(np.zeros(50), ones(50))) == 0
    assert 0 <= bounds.betting(Terms(np.array([3.0]), ones(1))) < 3
    assert bounds.betting(Terms(np.full(5, -2.0), ones(5), 2.0)) == -2
    assert 0 <= bounds.betting(Terms(np.array([1e9] + [0.0] * 9999), ones(10_000))) < 1e5
    assert bounds.betting(Terms(np.full(1000, 0.5), ones(1000))) == pytest.approx(0.5, rel=0.01)


def test_terms_may_leave_their_limits_by_rounding_and_by_no_more() -> None:
    assert len(Terms(np.array([-1e-10, 2.0 + 1e-10]), ones(2), 0.0, 2.0)) == 2
    for value in (-1e-8, 2.0 + 1e-8):
        with pytest.raises(InputError, match="1 terms are outside"):
            Terms(np.array([value]), ones(1), 0.0, 2.0)
    assert len(Terms(np.array([1e6 + 1e-4]), np.array([1e6]), 0.0, 1.0)) == 1  # as large numbers round
    with pytest.raises(InputError, match="1 terms are outside"):
        Terms(np.array([1e6 + 1e-2]), np.array([1e6]), 0.0, 1.0)


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match=r"1 terms are outside \[-0, inf\].*first: term 1, -1 of size 1"):
        Terms(np.array([1.0, -1.0]), ones(2))
    with pytest.raises(InputError, match="a larger floor"):
        Terms(np.array([3.0]), ones(1), 0.0, 2.0)
    with pytest.raises(InputError, match="finite"):
        Terms(np.array([np.nan]), ones(1))
    with pytest.raises(InputError, match="one size for each value"):
        Terms(ones(2), ones(3))
    with pytest.raises(ConfigError, match=r"level must be above 0 and below 1; got 1\.0\."):
        bounds.betting(Terms(ones(3), ones(3)), 1.0)


# --- coverage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", bound_worlds.BY_QUERY)
def test_the_bound_over_queries_holds_at_its_level_in_a_thousand_simulations(name: str) -> None:
    row = bench.coverage(name)
    assert row.coverage >= bench.LEVEL, row
    assert 0.4 * row.truth < row.mean_bound < row.truth


@pytest.mark.parametrize("name", bound_worlds.USERS)
def test_the_bound_over_impressions_holds_at_its_level_in_a_thousand_simulations(name: str) -> None:
    row = bench.impression_coverage(name)
    assert row.coverage >= bench.LEVEL, row
    assert -bound_worlds.K < row.mean_bound < row.truth


def test_the_simulated_logs_know_the_package_by_no_import() -> None:
    source = Path(bound_worlds.__file__).read_text(encoding="utf-8")
    assert "tandemrank" not in source
    p = bound_worlds.chances(np.log(np.array([[4.0, 3.0, 2.0, 1.0, 1.0, 1.0]])))
    assert p.sum() == pytest.approx(1)
    first, second = bound_worlds.LISTS.T
    assert p[0, (first == 0) & (second == 1)][0] == pytest.approx(4 / 12 * 3 / 8)
    assert bound_worlds.exposure(p)[0, 0] == pytest.approx(
        4 / 12 + 0.5 * sum(w / 12 * 4 / (12 - w) for w in (3, 2, 1, 1, 1))
    )


def test_the_verdict_sees_what_a_bound_cannot() -> None:
    """With propensities of another policy a bound is about the wrong number; the balance of the weights gives it away."""
    rng = np.random.default_rng(0)
    worlds = [bound_worlds.misfit(rng) for _ in range(200)]
    wrong = [world for world in worlds if bounds.betting(Terms(world.terms, world.sizes)) > world.value]
    assert all(world.truth > 1.05 * world.value for world in worlds)
    fine = diagnostics.Diagnostics(100, 2000, 800, 2000, 1000, 5.0, 0.01, 0.0, 0.0, 0.0, 0.0, 1.0, 0.01)
    assert verdicts.judge(fine)[0] == "trust it"
    for world in worlds:
        seen = replace(fine, balance=world.balance, balance_error=world.balance_error)
        verdict, reasons = verdicts.judge(seen)
        assert verdict != "trust it"
        assert "the propensities do not fit the log" in reasons[0]
    assert len(wrong) > 0  # without the verdict the user would be misled


def test_a_pair_with_much_of_the_weight_is_a_reason_for_care_unless_queries_are_few() -> None:
    """One constant query: its first item has a third of all that is examined, and was shown often."""
    found = diagnostics.Diagnostics(1, 2000, 800, 2000, 1000, 5.0, 0.34, 0.0, 0.0, 0.0, 0.0, 1.0, 0.01)
    assert verdicts.judge(found, over_impressions=True)[0] == "trust it"
    verdict, reasons = verdicts.judge(replace(found, queries=100))
    assert verdict == "use with care"
    assert "34% of all weight" in reasons[0]


def test_a_difference_to_production_holds_at_its_level() -> None:
    """New minus production, one of ten documents each impression, clicks shared by both sides; the new pair is worse."""
    rng = np.random.default_rng(1)
    misses, close = 0, []
    for _ in range(300):
        n = rng.integers(1, 30, 200).astype(float)
        U = rng.uniform(0.1, 0.6, 200)
        clicks = rng.binomial(n.astype(int), U)
        w = rng.exponential(0.8, 200)  # a query's weight; its expectation is known
        low = bounds.betting(bounds.difference_terms(Estimate(w * clicks, n), clicks, floor=1.0))
        truth = float((n * U).sum() / n.sum()) * -0.2
        misses += low > truth
        close.append(truth - low)
    assert misses <= 15
    assert np.mean(close) < 0.15


def test_the_example_reaches_what_it_should() -> None:
    [found] = bench.example()
    assert found.light >= 0.87
    assert found.rare_clicks >= 0.645
