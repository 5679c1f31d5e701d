"""Values and their comparison from arrays: intervals, bounds, wins, verdicts, and what cannot be compared."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tandemrank._base.files import as_json
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import InputError
from tandemrank.logs import counting
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy import bounds, estimators, valuation, values
from tandemrank.offpolicy.comparison import compare_values
from tandemrank.offpolicy.estimators import Estimate
from tandemrank.offpolicy.question import Question
from tandemrank.offpolicy.uncertainty import (
    exposure_variance,
    impression_covariance,
    misfit,
    misfit_variance,
    unmet_variance,
)
from tandemrank.offpolicy.values import Value
from tandemrank.offpolicy.verdicts import MEANINGS, Verdict, worst

Q = 40


def log(seed: int = 0) -> Feedback:
    rng = np.random.default_rng(seed)
    vocabulary = Vocabulary(pl.Series(range(Q + 3)), pl.Series(range(5)))  # three queries were never logged
    items = np.argsort(rng.random((900, 5)), axis=1)[:, :2].astype(np.int32)
    query = rng.integers(Q, size=900).astype(np.int32)
    return counting.from_impressions(
        [Impressions(query, items, (rng.random((900, 2)) < 0.4).astype(np.uint8))], vocabulary
    )


QUESTION = Question(level=0.9, seed=1, independent="queries")


def given(rows: Feedback, estimate: Estimate, verdict: Verdict = Verdict.TRUST, **more: Any) -> Value:
    sample = valuation.sample_of(rows, QUESTION, "exact")
    terms = bounds.value_terms(estimate)
    own = {"verdict": verdict, "reasons": ("because",), "propensity": "exact", "sample": sample}
    return Value(log=rows, estimate=estimate, terms=terms, **own, **more)


def side(rows: Feedback, factor: float, verdict: Verdict = Verdict.TRUST) -> Value:
    n = rows.impressions
    return given(rows, Estimate(factor * estimators.by_query(rows.clicks, rows) + 0.1 * n, n), verdict)


def live_of(rows: Feedback) -> Value:
    return values.production(rows, valuation.sample_of(rows, QUESTION, None))


def valued(*sides: Value, **options: Any) -> tuple[Value, ...]:
    return tuple(replace(one, sample=replace(one.sample, **options)) for one in sides)


def test_a_value_is_its_estimate_with_interval_and_bound() -> None:
    rows = log()
    [found] = valued(side(rows, 2.0))
    exact = found.estimate
    assert (found.value, found.standard_error) == (exact.value, exact.standard_error)
    z = 1.645 * exact.standard_error
    assert found.interval == pytest.approx((exact.value - z, exact.value + z), rel=1e-3)
    assert found.over_queries == found.interval
    assert found.lower_bound == bounds.betting(bounds.value_terms(exact), 0.9)
    assert found.lower_bound < found.interval[0]
    assert (found.sample.queries, found.sample.impressions) == (Q, 900)


def test_an_interval_is_of_clicks_which_are_not_negative() -> None:
    rows = log()
    below = Estimate(-2.0 * rows.impressions, rows.impressions)  # beta*-IPS where one weight is huge
    found = replace(side(rows, 1.0), estimate=below, estimator="beta_ips")
    assert (found.value, found.interval[0], found.over_queries[0], found.lower_bound) == (0.0, 0.0, 0.0, 0.0)


def test_a_difference_is_paired_query_by_query() -> None:
    rows = log()
    a, b, live = valued(side(rows, 2.0), side(rows, 1.5), live_of(rows))
    found = compare_values(a, b)
    assert found.difference == pytest.approx(0.5 * live.value)
    # Half of production's clicks and nothing else, so the error is half of production's too.
    assert found.standard_error == pytest.approx(0.5 * live.standard_error)
    assert found.interval == pytest.approx((0.5 * live.interval[0], 0.5 * live.interval[1]))
    assert compare_values(a, a).interval == (0.0, 0.0)
    against = compare_values(a, live)
    assert against.difference == pytest.approx(live.value + 0.1)
    assert live.value == rows.clicks.sum() / rows.N


def test_the_bound_of_a_difference_is_that_of_its_paired_terms() -> None:
    rows = log()
    a, b, live = valued(side(rows, 2.0), side(rows, 1.5), live_of(rows))
    clicks = estimators.by_query(rows.clicks, rows)
    wanted = bounds.betting(bounds.difference_terms(a.estimate, clicks, floor=2.0), 0.9)  # two places, two clicks
    found = compare_values(a, live)
    assert found.lower_bound == wanted
    assert 0 < wanted < found.interval[0]
    # A pair that may not be subtracted leaves no bound: only what it is worth without a clip has a ceiling.
    assert compare_values(a, b).lower_bound is None
    limited = replace(b, ceiling_terms=replace(b.terms, ceiling=2.2))
    wanted = bounds.betting(bounds.difference_terms(a.estimate, b.estimate, floor=2.2), 0.9)
    assert compare_values(a, limited).lower_bound == wanted
    assert json.loads(as_json(found.summary()))["lower_bound"] == found.lower_bound


def test_values_of_other_samples_cannot_be_compared() -> None:
    rows = log()
    [a] = valued(side(rows, 2.0))
    longer = replace(rows, impressions=2 * rows.impressions)
    others = [
        valued(side(rows, 1.0), level=0.8),
        valued(side(longer, 1.0)),
    ]
    for other in others:
        with pytest.raises(InputError, match="both values must come from the same log"):
            compare_values(a, other[0])


def test_the_worse_verdict_decides_and_production_never_does() -> None:
    rows = log()
    trusted, care, live = valued(side(rows, 2.0), side(rows, 1.0, Verdict.CARE), live_of(rows))
    careful = replace(care, diagnostics="some")
    assert compare_values(trusted, careful).verdict == compare_values(careful, trusted).verdict == Verdict.CARE
    assert compare_values(careful, trusted).reasons == ("new: because",)
    assert compare_values(trusted, live).verdict == Verdict.TRUST
    assert worst(Verdict.REFUSE, Verdict.CARE, Verdict.OBSERVED) == "cannot be answered from this log"
    assert set(MEANINGS) == set(Verdict)


def test_the_page_on_own_logs_says_what_the_verdicts_mean() -> None:
    page = (Path(__file__).parents[2] / "docs" / "tutorial" / "own-logs.md").read_text(encoding="utf-8")
    assert all(f'"{verdict}"' in page for verdict in set(Verdict) - {Verdict.OBSERVED})


def test_the_summary_is_plain_json() -> None:
    rows = log()
    a, live = valued(side(rows, 2.0), live_of(rows))
    found = json.loads(as_json(compare_values(a, live).summary()))
    assert found["old"]["verdict"] == "as the log shows it"
    assert found["new"]["value"] == a.value
    assert found["new"]["propensity"] == "exact"


def weighted(rows: Feedback, weights: np.ndarray, estimator: str | None = "ips", race: float = 0.0) -> Value:
    """Weighted clicks, by impression."""
    estimate = Estimate(estimators.by_query(weights * rows.clicks, rows), rows.impressions)
    both = bounds.both_weights(weights)
    own = {"weights": both, "old_weights": both, "estimator": estimator, "exposure_variance": race}
    return given(rows, estimate, **own)


def test_an_interval_over_impressions_has_their_noise_and_that_of_the_races() -> None:
    rows = log()
    w = np.random.default_rng(2).gamma(1.0, 1.0, len(rows.query))
    one, noisy, live = valued(
        weighted(rows, w), weighted(rows, w, race=0.03**2), live_of(rows), independent="impressions"
    )
    error = float(np.sqrt(impression_covariance([w], rows, most=2.0)[0, 0] + unmet_variance(w, rows)))
    assert one.standard_error == pytest.approx(error)
    assert noisy.standard_error == pytest.approx(np.hypot(error, 0.03))
    for found in (one, noisy):
        z = 1.645 * found.standard_error
        assert found.interval == pytest.approx((found.value - z, found.value + z), rel=0.005)
    [by_query] = valued(weighted(rows, w))
    assert one.over_queries == pytest.approx(by_query.interval)
    assert by_query.over_queries == by_query.interval != one.interval
    gap = compare_values(noisy, live)
    noise = impression_covariance([w - 1], rows, most=2.0)[0, 0] + unmet_variance(w - 1, rows)
    against = float(np.sqrt(noise + 0.03**2))
    assert gap.standard_error == pytest.approx(against)
    assert gap.interval[1] - gap.interval[0] == pytest.approx(2 * 1.645 * against, rel=0.01)
    assert gap.over_queries != gap.interval
    assert compare_values(noisy, noisy).interval == (0.0, 0.0)


@pytest.mark.parametrize(("estimator", "least"), [("ips", False), ("beta_ips", True)])
def test_what_takes_noise_away_has_the_least_of_both(estimator, least) -> None:
    rows = log()
    w = np.random.default_rng(2).gamma(0.2, 5.0, len(rows.query))
    side = replace(weighted(rows, w, estimator), estimate=Estimate(rows.impressions * 0.5, rows.impressions))
    [found] = valued(side, independent="impressions")
    over_impressions = float(np.sqrt(impression_covariance([w], rows, most=2.0)[0, 0]))
    assert found.standard_error == pytest.approx(
        over_impressions if least is False else 0.0
    )  # it does not differ by query


def test_noise_of_the_races_is_that_of_each_pair_with_its_clicks_at_all_ranks() -> None:
    rows = log()
    rng = np.random.default_rng(3)
    pairs = rows.query * 5 + rows.item
    rho, error = rng.random(45 * 5)[pairs] + 0.1, 0.1 * rng.random(45 * 5)[pairs]
    w = 2 * rho
    by_hand = 0.0
    for pair in np.unique(pairs):
        at = pairs == pair
        by_hand += ((w[at] * rows.clicks[at]).sum() * (error[at] / rho[at])[0]) ** 2
    assert exposure_variance(w, error, rho, rows) == pytest.approx(by_hand / 900**2)
    assert exposure_variance(w, None, rho, rows) == 0


def test_fitted_propensities_may_be_off_by_what_finer_groups_would_change_and_by_the_valued_list_itself() -> None:
    assert misfit(2.0, 1.9, None) == pytest.approx((0.1, 0.0))
    assert misfit(2.0, 2.0, 4.0) == pytest.approx((0.0, 0.2 * 2.0 / 4))
    assert misfit_variance(misfit(2.0, 1.9, 4.0)) == pytest.approx(0.1**2 + 0.1**2)
    alike = misfit(2.0, 1.9, 4.0), misfit(1.8, 1.7, 4.0)
    assert misfit_variance(*alike) == pytest.approx((0.2 * 0.2 / 4) ** 2)
