"""A log that keeps one impression in a hundred gives each the weight 100: it says no more than its impressions do."""

import numpy as np
import polars as pl
import pytest

from independent import simulator
from tandemrank.logs import description, sums
from tandemrank.logs.reading import read
from tandemrank.offpolicy.valuation import estimate
from tandemrank.offpolicy.values import PRODUCTION
from tandemrank.policies.outside import policy_from_scores
from tandemrank.policies.two_stage import TwoStagePolicy

LOGS, IMPRESSIONS = 60, 200
WORLD = simulator.world(11, queries=80, items=40, K=4, K2=12)


def frame(seed: int, weight: float | None, impressions: int = IMPRESSIONS) -> pl.DataFrame:
    log = simulator.impressions(WORLD, impressions, seed)
    columns = {"query_id": log.query, "items": log.items, "clicks": log.clicks.astype(np.uint8)}
    found = pl.DataFrame({name: list(x) if x.ndim == 2 else x for name, x in columns.items()})
    return found if weight is None else found.with_columns(weight=pl.lit(weight))


@pytest.mark.parametrize("weight", [None, 1.0, 2.0, 100.0, 100.5])
def test_intervals_and_bounds_hold_whatever_the_weight_of_an_impression(weight: float | None) -> None:
    queries = np.arange(len(WORLD.p))
    each = simulator.value_by_query(WORLD, queries, WORLD.s_c, WORLD.s_r, WORLD.K2, 4, samples=4000, seed=1)
    truth, held, above = float(WORLD.p @ each), 0, 0
    for seed in range(LOGS):
        found = estimate(PRODUCTION, frame(seed, weight))
        held += found.interval[0] <= truth <= found.interval[1]
        above += found.lower_bound > truth
        unit = "impressions" if weight in (None, 1.0) else "queries"
        assert found.sample.independent == unit
    assert held >= 52  # 95% of 60 less 2.5 standard errors
    assert above <= 7


def test_a_log_remembers_that_it_has_weights_when_it_is_merged() -> None:
    log = read(frame(0, 2.0))
    merged = sums.merge([read(frame(1, None)), log])
    for one in (log, merged, sums.merge([log])):
        assert (one.impressions == np.round(one.impressions)).all()
        assert one.weighted
        assert one.heaviest == 2.0
    assert not sums.merge([read(frame(0, 1.0)), read(frame(1, None))]).weighted


@pytest.mark.parametrize("weight", [0.5, 2.0, 100.0])
@pytest.mark.parametrize(("impressions", "given"), [(60, True), (300, True), (60, False), (400, False)])
def test_a_weight_that_all_impressions_have_changes_no_verdict(impressions: int, given: bool, weight: float) -> None:
    """60 impressions with weight 100 were 14,402 effective items, and a logger fitted to 7 lists per query one of 700."""
    Q, D = WORLD.R.shape
    rows = pl.DataFrame({"query_id": np.repeat(np.arange(Q), D), "item_id": np.tile(np.arange(D), Q)})

    def policy(factor: float) -> TwoStagePolicy:
        columns = {"candidate_score": WORLD.s_c.ravel(), "ranker_score": factor * WORLD.s_r.ravel()}
        return policy_from_scores(rows.with_columns(**{name: pl.Series(x) for name, x in columns.items()}), K2=12, K=4)

    ask = {"examination": WORLD.theta, "independent": "queries", "samples": 5}
    ask |= {"logging_policy": policy(1.0)} if given else {}
    log = frame(1, None, impressions)
    plain, weighed = (estimate(policy(1.3), x, **ask) for x in (log, log.with_columns(weight=pl.lit(weight))))
    assert (weighed.verdict, weighed.propensity) == (plain.verdict, plain.propensity)
    assert weighed.reasons == plain.reasons
    assert weighed.value == pytest.approx(plain.value)
    for name in ("effective_sample_size", "examined", "balance_error"):
        assert getattr(weighed.diagnostics, name) == pytest.approx(getattr(plain.diagnostics, name))


def test_lists_that_never_vary_and_queries_that_came_once_are_seen_through_the_weights() -> None:
    once = frame(0, 100.0, 60).unique("query_id", keep="first")
    assert description.fixed_queries(read(once)) is None
    always = frame(0, None, 30)
    again = read(pl.concat([always, always]).with_columns(weight=pl.lit(3.0)))
    plain = read(pl.concat([always, always]))
    assert description.fixed_queries(again) == description.fixed_queries(plain)
    assert description.items_in_common(again) == pytest.approx(description.items_in_common(plain))
    assert again.heaviest == sums.merge([again, plain]).heaviest == 3.0
