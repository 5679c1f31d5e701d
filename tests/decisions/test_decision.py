"""The gate on simulated logs of an independent simulator (plain NumPy) whose truth is known: calls, segments, edges."""

import json
import re
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pytest

import tandemrank
from tandemrank._base.files import as_json
from tandemrank._base.ids import Vocabulary
from tandemrank.decisions import decision, guardrails, planning
from tandemrank.decisions.decision import Call, decide
from tandemrank.errors import ConfigError, InputError, LogError
from tandemrank.offpolicy import bounds, comparison
from tandemrank.offpolicy.comparison import excess_exposure
from tandemrank.offpolicy.estimators import Estimate
from tandemrank.offpolicy.sequential import TwoArms
from tandemrank.offpolicy.verdicts import Verdict
from tandemrank.policies.scorers import GivenScores
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.reports import decision as pages

Q, D, K, K2 = 150, 8, 3, 6
THETA = 1 / np.arange(1, K + 1)


@dataclass(frozen=True)
class World:
    """Scores of production and relevance.  Shapes: each [Q, D]."""

    logger: np.ndarray
    liked: np.ndarray

    @property
    def R(self) -> np.ndarray:
        return 1 / (1 + np.exp(1 - self.liked))

    def pair(self, scores: np.ndarray, K2: int = K2) -> TwoStagePolicy:
        vocabulary = Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))
        return TwoStagePolicy(GivenScores(self.logger), GivenScores(scores), K2, K, vocabulary)

    @property
    def production(self) -> TwoStagePolicy:
        return self.pair(self.logger)

    def log(self, N: int, seed: int = 1) -> pl.DataFrame:
        """Two races by Gumbel noise: the K2 best of the generator, the K best of them of the re-ranker."""
        rng = np.random.default_rng(seed)
        query = rng.integers(Q, size=N)
        s, r = (self.logger[query] + rng.gumbel(size=(N, D)) for _ in range(2))
        late = np.argsort(-s, axis=1)[:, K2:]
        np.put_along_axis(r, late, -np.inf, 1)
        items = np.argsort(-r, axis=1)[:, :K]
        clicks = (rng.random((N, K)) < THETA * self.R[query[:, None], items]).astype(int)
        return pl.DataFrame({"query_id": query, "items": items.tolist(), "clicks": clicks.tolist()})


def world(seed: int = 0) -> World:
    rng = np.random.default_rng(seed)
    liked = rng.normal(size=(Q, D)) + rng.normal(size=D)
    return World(0.5 * liked + 0.3 * rng.normal(size=(Q, D)), liked)


HERE = world()
BETTER, SAME, WORSE = HERE.pair(1.5 * HERE.liked), HERE.pair(1.02 * HERE.logger), HERE.pair(-HERE.liked)
LOG = HERE.log(20_000)
KNOWN = {"logging_policy": HERE.production, "samples": 40}
BEST, LIVE = tandemrank.offpolicy.valuation.estimate_all(
    [BETTER, "production"], LOG, tandemrank.offpolicy.question.Question(**KNOWN)
)


def test_a_better_pair_ships_an_equal_one_is_tried_and_a_worse_one_is_not() -> None:
    asked = (("b", BETTER, LOG), ("s", SAME, LOG.head(2000)), ("w", WORSE, LOG))
    found = {name: decide(pair, log, **KNOWN) for name, pair, log in asked}
    assert [found[x].call for x in "bsw"] == ["ship", "canary", "do not"]
    assert [found[x].exit_code for x in "bsw"] == [0, 3, 4]
    assert [found[x].chosen for x in "bsw"] == ["new", "new", None]
    [ship], [trial], [no] = (found[x].candidates for x in "bsw")
    assert 0 < ship.lower_bound < ship.comparison.difference
    assert ship.lower_bound == ship.comparison.lower_bound
    assert re.search(r"it is at least \+0.\d+ on this log's impressions with 95% certainty", found["b"].why)
    assert found["b"].summary()["independent"] == ship.comparison.summary()["bound_over"] == "impressions"
    assert trial.lower_bound < 0 < trial.comparison.difference
    assert trial.log_needed > 2000
    assert trial.canary.impressions > 1000
    assert any("a canary with" in reason for reason in trial.reasons)
    assert no.reasons[0].startswith("it is no better: it promises -0.")
    assert no.log_needed == np.inf
    said = " ".join(ship.reasons)
    assert all(word in said for word in ("lost at the generator", "balance of the weights", "effective sample"))


def test_of_several_the_best_is_chosen_and_each_bound_counts_them_all() -> None:
    found = decide({"worse": WORSE, "best": BETTER, "same": SAME, "good": HERE.pair(HERE.liked)}, LOG, **KNOWN)
    assert (found.call, found.chosen) == ("ship", "best")
    best = found.candidates[1]
    alone = decide(BETTER, LOG, **KNOWN).candidates[0]
    assert best.bound_level == pytest.approx(1 - 0.05 / 4)
    new, live = best.comparison.new, best.comparison.old
    sums = bounds.difference_sums(new.weights, live.weights, live.log, most=K)
    assert best.lower_bound == sums.lower_bound(1 - 0.05 / 4) < alone.lower_bound
    by_queries = decide({"best": BETTER, "same": SAME}, LOG, **KNOWN, independent="queries").candidates[0]
    terms = comparison.rests_on(by_queries.comparison.new, by_queries.comparison.old)
    assert by_queries.lower_bound == bounds.betting(terms, 1 - 0.05 / 2) < best.lower_bound
    assert "for queries like these" in by_queries.reasons[0]
    assert "all 4 policies together" in found.why


def test_a_limit_of_clicks_and_the_log_s_own_impressions_make_it_tighter() -> None:
    whole = decide(BETTER, LOG, **KNOWN).candidates[0]
    plain, limited = (
        decide(BETTER, LOG, **KNOWN, independent="queries", **more).candidates[0].lower_bound
        for more in ({}, {"most_clicks": 2.9})
    )
    fewer = decide(BETTER, LOG, **KNOWN, most_clicks=2.9).candidates[0].lower_bound
    assert plain < limited < whole.lower_bound < fewer < whole.comparison.difference
    short = HERE.log(600)
    rules = [decide(BETTER, short, **KNOWN, independent=name).candidates[0] for name in ("queries", "impressions")]
    assert all(one.log_needed > 600 or one.lower_bound > 0 for one in rules)


def test_the_log_that_is_said_to_be_needed_is_about_enough() -> None:
    found = decide(HERE.pair(0.7 * HERE.liked), HERE.log(200), **KNOWN).candidates[0]
    assert found.lower_bound < 0
    assert 200 < found.log_needed < 4000
    longer = decide(HERE.pair(0.7 * HERE.liked), HERE.log(int(4 * found.log_needed), 3), **KNOWN)
    assert longer.call == Call.SHIP


def test_lists_that_were_drawn_once_and_shown_often_and_impressions_with_weights_are_taken_by_query() -> None:
    """A draw that is shown again is no new draw: propensities say that lists vary, and those of a query do not."""
    once = HERE.log(2000).unique("query_id", keep="first", maintain_order=True)
    kept = pl.concat([once] * 20)
    assert decide(BETTER, kept, **KNOWN).independent == "queries"
    assert decide(BETTER, LOG.head(500).with_columns(weight=pl.lit(0.5)), **KNOWN).independent == "queries"
    with pytest.raises(InputError, match="use the bound over queries"):
        decide(BETTER, LOG.head(500).with_columns(weight=pl.lit(0.5)), **KNOWN, independent="impressions")
    assert decide(BETTER, LOG.head(500), **KNOWN).independent == "impressions"


def test_a_bound_about_these_impressions_ships_nothing_that_other_queries_may_not_want(monkeypatch) -> None:
    few = decide(BETTER, LOG.filter(pl.col("query_id") < 3), **KNOWN)
    [one] = few.candidates
    wide = replace(one.comparison, over_queries=(-0.1, 0.3))
    monkeypatch.setattr(decision, "compare_values", lambda *_: wide)
    found = decide(BETTER, LOG, **KNOWN)
    assert found.candidates[0].lower_bound > 0
    assert (found.call, "for other queries like these it may be -0.1" in found.why) == (Call.CANARY, True)


def test_propensities_that_do_not_fit_or_are_guessed_never_ship() -> None:
    other = HERE.pair(2 * HERE.logger, K2=4)
    wrong = decide(BETTER, LOG, logging_policy=other, estimator="ips")
    assert (
        wrong.call != Call.SHIP
        or wrong.candidates[0].lower_bound < decide(BETTER, LOG, **KNOWN).candidates[0].lower_bound
    )
    fitted = decide(BETTER, HERE.log(8000), propensity="fitted")
    assert fitted.call == Call.CANARY
    assert "fitted to the log" in fitted.why
    assert fitted.candidates[0].canary.share == 0.01  # a bound that is not believed limits nothing
    counted = decide(BETTER, LOG, propensity="frequency")
    assert counted.call == Call.CANARY
    assert "counted in a log that varies" in counted.why


def test_a_curve_that_the_log_contradicts_never_ships() -> None:
    """`estimate` refuses such a value or asks for care; the bound rests on the same curve."""
    sure = decide(BETTER, LOG, **KNOWN)
    flat = decide(BETTER, LOG, **{**KNOWN, "examination": [1.0, 1.0, 1.0][: len(THETA)]})
    assert sure.call == Call.SHIP
    assert flat.call != Call.SHIP
    assert "the log contradicts the examination curve" in flat.why


def test_too_much_exposure_is_divided_out_or_refused() -> None:
    [value, live] = [
        x for one in decide(BETTER, LOG, **KNOWN).candidates for x in (one.comparison.new, one.comparison.old)
    ]
    rules = RULES
    odd = replace(value.diagnostics, balance=1.04, balance_error=0.01)
    free = [planning.at_least(x, live, rules).bound for x in (value, replace(value, diagnostics=odd))]
    assert free[1] < free[0]
    assert free[0] - free[1] == pytest.approx(value.weights[0] @ live.log.clicks / live.log.N * (1 - 1 / 1.04), rel=0.1)
    value, live = (replace(x, sample=replace(x.sample, independent="queries")) for x in (value, live))
    plain = planning.at_least(value, live, rules).bound
    careful = planning.at_least(replace(value, diagnostics=odd), live, rules).bound
    terms = bounds.difference_terms(
        Estimate(value.terms.values / 1.04, value.terms.sizes), live.terms.values, live.terms.ceiling
    )
    assert careful == pytest.approx(bounds.betting(terms))
    assert careful < plain
    assert excess_exposure(replace(odd, balance_error=0.02)) == 1.0


RULES = planning.Rules(
    at_least=0.0, level=0.95, policies=1, most_clicks=None, risk=0.01, against="production", varies=True
)


@pytest.mark.parametrize(("balance", "believed"), [(1.04, True), (1.06, False), (1.5, False), (2.0, False)])
def test_more_than_five_percent_too_much_exposure_is_no_base_for_a_call(balance: float, believed: bool) -> None:
    found = decide(BETTER, LOG, **KNOWN).candidates[0].comparison
    odd = replace(found.new.diagnostics, balance=balance, balance_error=0.001)
    call, reason = decision._call(replace(found, new=replace(found.new, diagnostics=odd)), 0.1, RULES)
    assert call == (Call.SHIP if believed else Call.DO_NOT)
    assert ("Neither value nor bound can be believed" in reason) is not believed


@pytest.mark.parametrize(
    ("asked", "high", "gap", "call", "words"),
    [
        (0.0, 0.02, 0.01, Call.CANARY, "more than 0, but"),
        (0.03, 0.02, 0.01, Call.DO_NOT, "it is no better by +0.03: it promises +0.01"),
        (0.02, 0.02, 0.01, Call.DO_NOT, "it is no better by +0.02"),
        (0.0, 0.0, -0.01, Call.DO_NOT, "it is no better: it promises -0.01"),
        (-0.03, -0.01, -0.02, Call.CANARY, "more than -0.03, but"),
        (0.0, 0.02, 0.0, Call.DO_NOT, "nothing says that it is better"),
        (0.01, 0.02, 0.005, Call.DO_NOT, "nothing says that it is better by +0.01"),
    ],
)
def test_no_better_is_no_better_than_asked(asked: float, high: float, gap: float, call: Call, words: str) -> None:
    found = decide(BETTER, LOG, **KNOWN).candidates[0].comparison
    known = replace(found, difference=gap, over_queries=(-0.05, high))
    said = decision._call(known, -0.1, replace(RULES, at_least=asked))
    assert said[0] == call
    assert words in said[1]


def deterministic(N: int, seed: int = 0) -> pl.DataFrame:
    """Production without chance: a query always sees the same list."""
    rng = np.random.default_rng(seed)
    query = rng.integers(Q, size=N)
    items = np.argsort(-HERE.logger, axis=1)[:, :K][query]
    clicks = (rng.random((N, K)) < THETA * HERE.R[query[:, None], items]).astype(int)
    return pl.DataFrame({"query_id": query, "items": items.tolist(), "clicks": clicks.tolist()})


def within(shown: np.ndarray, scores: np.ndarray) -> TwoStagePolicy:
    """A pair that shows what was shown, in another order.  Shapes: shown [Q, K]; scores [Q, D]."""
    inside = np.full((Q, D), -30.0)
    np.put_along_axis(inside, shown, 0.0, 1)
    vocabulary = Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))
    return TwoStagePolicy(GivenScores(inside), GivenScores(scores), K, K, vocabulary)


def test_a_deterministic_log_says_what_it_can() -> None:
    """A pair that reorders what was shown ships by a measured curve; elsewhere a range, and a no where the best is too low."""
    log = deterministic(30_000)
    shown = np.argsort(-HERE.logger, axis=1)[:, :K]
    found = decide(within(shown, 8 * HERE.liked), log)
    [one] = found.candidates
    assert one.comparison.new.propensity == "frequency"
    assert one.comparison.new.identified.missing < 0.01
    # By the curve that was assumed, and by others that the log cannot tell from it: the least is what is sure.
    every = [decide(within(shown, 8 * HERE.liked), log, examination=THETA**eta) for eta in (0.5, 1.0, 1.5)]
    assert one.lower_bound == pytest.approx(min(x.candidates[0].lower_bound for x in every))
    assert "cannot check it" in one.reasons[1]
    assert (found.call, every[1].call) == (Call.CANARY, Call.SHIP)
    assert not any("check" in reason for reason in every[1].candidates[0].reasons)
    outside = decide(HERE.pair(0 * HERE.liked), log)
    [one] = outside.candidates
    assert outside.call == Call.DO_NOT
    assert "whatever the items that were never shown are worth" in one.reasons[0]
    hidden = within(np.argsort(HERE.logger, axis=1)[:, :K], HERE.liked)
    hopeless = decide(hidden, log, at_least=5.0)
    assert hopeless.call == Call.DO_NOT
    assert "even if all that was never shown were clicked" in hopeless.why


def test_a_pair_as_the_other_side() -> None:
    found = decide(BETTER, LOG, against=SAME, **KNOWN)
    assert found.against == "the other policy"
    assert found.candidates[0].comparison.old.verdict != Verdict.OBSERVED
    assert decide(SAME, LOG, against=BETTER, **KNOWN).call == Call.DO_NOT


def test_better_on_average_and_worse_for_some_is_said() -> None:
    kind = np.array(["new" if q % 10 == 0 else "old" for q in range(Q)])
    mixed = HERE.pair(np.where((kind == "new")[:, None], -1.5, 2.0) * HERE.liked)
    table = pl.DataFrame({"query_id": range(Q), "kind": kind})
    found = decide(mixed, LOG, **KNOWN, segment="kind", query_features=table, independent="impressions")
    assert found.call == Call.SHIP
    [one] = found.candidates
    assert [x.segment for x in one.segments] == ["old", "new"]
    assert [x.segment for x in one.worse_segments] == ["new"]
    assert one.reasons[1].startswith("WORSE for new")
    assert pages.warning(found).startswith("Better on average, but worse for new (−")
    page = pages.report(found).html()
    assert pages.warning(found) in page.split("The difference")[0]
    assert re.findall("<h2>(.*?)</h2>", page)[-3:-1] == ["What changes for 10 queries", "Weights and support"]
    assert page.count("<svg") == 3
    assert json.loads(as_json(found.summary()))["candidates"][0]["worse_segments"] == ["new"]
    assert ("decide by queries" in page, found.independent) == (True, "impressions")
    total = sum(x.impressions * x.difference for x in one.segments) / LOG.height
    assert total == pytest.approx(one.comparison.difference)
    for part in one.segments:  # bounds on both sides, all of them together
        inside = np.isin(np.arange(Q), table.filter(pl.col("kind") == part.segment)["query_id"].to_numpy())
        new, live = one.comparison.new, one.comparison.old
        sums = [
            bounds.difference_sums(*x, live.log, most=K, queries=inside)
            for x in ((new.weights, live.weights), (live.weights, new.weights))
        ]
        low, high = (x.lower_bound(1 - 0.05 / 2 / len(one.segments)) for x in sums)
        assert part.interval == (min(low, part.difference), max(-high, part.difference))
    queries = decide(mixed, LOG, **KNOWN, segment="kind", query_features=table, independent="queries").candidates[0]
    assert all(a.interval[0] < b.interval[0] for a, b in zip(queries.segments, one.segments, strict=True))
    column = LOG.join(table, on="query_id")
    assert (
        decide(mixed, column, **KNOWN, segment="kind", independent="impressions").candidates[0].segments == one.segments
    )


def test_a_segment_below_its_limit_does_not_ship_and_who_harms_nobody_is_preferred() -> None:
    kind = np.array(["new" if q % 10 == 0 else "old" for q in range(Q)])
    mixed = HERE.pair(np.where((kind == "new")[:, None], -1.5, 2.0) * HERE.liked)
    asked = {"segment": "kind", "query_features": pl.DataFrame({"query_id": range(Q), "kind": kind}), **KNOWN}
    harmful = decide(mixed, LOG, no_segment_below=-0.02, **asked)
    assert (harmful.call, harmful.exit_code, harmful.no_segment_below) == (Call.DO_NOT, 4, -0.02)
    assert harmful.candidates[0].reasons[0].startswith("guardrail: new surely falls below -0.02: -")
    assert decide(mixed, LOG, no_segment_below=-2.0, **asked).call == Call.SHIP
    q = pl.col("query_id")
    hardly = pl.concat([LOG.filter(q % 10 != 0), LOG.filter(q == 0).head(5)])
    assert decide(BETTER, hardly, **asked).call == Call.SHIP
    few = decide(BETTER, hardly, no_segment_below=-0.01, **asked)
    assert few.call == Call.CANARY  # too few of the new ones to be sure
    assert few.candidates[0].reasons[0].startswith("guardrail: new may fall below -0.01: ")
    gentle = HERE.pair(1.2 * HERE.liked)
    both = decide(
        {"harmful": HERE.pair(np.where((kind == "new")[:, None], -1.5, 4.0) * HERE.liked), "gentle": gentle},
        LOG,
        **asked,
    )
    gains = [one.comparison.difference for one in both.candidates]
    assert gains[0] > gains[1]
    assert (both.call, both.chosen) == (Call.SHIP, "gentle")
    with pytest.raises(
        ConfigError, match=r"no_segment_below: expected a number .* and segment, a column; got -0.1 and None"
    ):
        decide(BETTER, LOG, no_segment_below=-0.1, **KNOWN)
    devices = LOG.with_columns(device=pl.Series(["phone", "desk"]).gather(pl.int_range(len(LOG), eager=True) % 2))
    with pytest.raises(
        ConfigError, match="expected a column with one value for a query; device has several for queries with"
    ):
        decide(BETTER, devices, segment="device", no_segment_below=-0.1, **KNOWN)


def test_an_answer_that_is_refused_has_no_figures_but_diagnostics() -> None:
    """Nor is a bound ever above the estimate, which is by another estimator."""
    log = HERE.log(40)
    found = decide(HERE.pair(-3 * HERE.logger), log, **KNOWN)
    [one] = found.candidates
    assert one.comparison.verdict == Verdict.REFUSE
    assert (found.call, one.lower_bound, one.canary) == (Call.DO_NOT, None, None)
    plain = one.summary()["comparison"]
    assert all(
        plain[name] is None for name in ("difference", "standard_error", "interval", "over_queries", "lower_bound")
    )
    assert plain["new"]["value"] is plain["new"]["interval"] is None
    assert plain["new"]["balance"] > 0
    assert plain["old"]["value"] > 0
    assert [row[1:4] for row in pages.policies(found).rows] == [("–", "–", "–")]
    assert "estimated" not in pages.report(found).html()
    value = one.comparison.new
    low = replace(value, estimate=Estimate(value.estimate.numerator - 10.0, value.estimate.denominator))
    assert (low.value, low.interval[0], low.lower_bound) == (0.0, 0.0, 0.0)
    assert low.interval[1] > 0
    gap = comparison.compare_values(
        replace(BEST, estimate=Estimate(0.5 * BEST.estimate.numerator, BEST.estimate.denominator)), LIVE
    )
    assert gap.lower_bound == gap.difference < comparison.compare_values(BEST, LIVE).lower_bound


def test_queries_with_several_values_or_none_are_segments_of_their_own() -> None:
    vocabulary = Vocabulary(pl.Series([1, 2, 3, 4]), pl.Series([0]))
    log = pl.DataFrame({"query_id": [1, 1, 2, 3], "items": [[0]] * 4, "clicks": [[0]] * 4, "a": ["x", "y", "x", None]})
    found = guardrails.segments_of_log(log, "a", vocabulary)
    assert [found.names[i] for i in found.of_query] == ["(several)", "x", "(none)", "(none)"]
    with pytest.raises(ConfigError, match="no column 'b' to make segments of"):
        guardrails.segments_of_log(log, "b", vocabulary)
    with pytest.raises(ConfigError, match="has lists"):
        guardrails.segments_of_log(log, "items", vocabulary)
    with pytest.raises(ConfigError, match="no column 'b' to make segments of; others: a"):
        guardrails.segments_of_table(pl.DataFrame({"query_id": [1], "a": [1]}), "b", vocabulary)
    many = pl.DataFrame({"query_id": range(200), "a": range(200)})
    with pytest.raises(ConfigError, match="has 200 values"):
        guardrails.segments_of_table(many, "a", vocabulary)


def test_a_canary_loses_no_more_than_the_risk_and_takes_about_as_long_as_planned() -> None:
    rng = np.random.default_rng(0)
    n = np.full(50, 100.0)
    live = Estimate(rng.poisson(50, 50).astype(float), n)  # half a click per impression
    plan = planning.plan_canary(0.1, -0.1, live, at_least=0.0, most=5, level=0.95, risk=0.02)
    assert plan.share == 0.1
    assert plan.loss_at_worst <= 0.02
    assert planning.plan_canary(0.1, -9.0, live, at_least=0.0, most=5, level=0.95, risk=0.001).share == 0.01
    assert planning.plan_canary(0.1, 0.2, live, at_least=0.0, most=5, level=0.95, risk=0.01).share == 0.5
    assert planning.plan_canary(0.1, 0.2, live, at_least=0.2, most=5, level=0.95, risk=0.01).impressions == np.inf
    # Bernoulli clicks on five places: how many impressions until the wealth speaks?
    took = []
    for seed in range(15):
        draw, arms, seen = np.random.default_rng(seed), TwoArms(5, centre=live.value), 0
        while arms.evidence(0.0)[0] < np.log(20) and seen < 20 * plan.impressions:
            step = max(int(plan.impressions / 10), 1)
            m = draw.binomial(step, plan.share)
            arms = arms.update(draw.binomial(5, 0.12, m), draw.binomial(5, 0.1, step - m), plan.share)
            seen += step
        took.append(seen / plan.impressions)
    assert 0.4 < np.median(took) < 2.5
    with pytest.raises(ConfigError, match="risk must be above 0"):
        decide(SAME, LOG, **KNOWN, risk=0.0)  # whether a canary comes of it or not


@pytest.mark.parametrize(("worst", "share", "floor"), [(0.2, 0.5, (5 - 0.875) / 0.5), (-9.0, 0.01, 0.875 / 0.01)])
def test_a_canary_is_planned_by_the_variance_and_the_floor_of_both_arms(
    worst: float, share: float, floor: float
) -> None:
    """Two queries with 2 and .5 clicks per impression: within them 12 + 13.5, between them 10 1.125^2 + 30 .375^2."""
    live = Estimate(np.array([20.0, 15.0]), np.array([10.0, 30.0]))
    variance = (12 + 13.5 + 10 * 1.125**2 + 30 * 0.375**2) / 40
    assert planning.click_variance(live, 5) == pytest.approx(variance)
    plan = planning.plan_canary(0.1, worst, live, at_least=0.0, most=5, level=0.95, risk=0.01)
    sd, stakes = np.sqrt(variance * (1 / share + 1 / (1 - share))), bounds.spread_stakes()
    needed = bounds.terms_needed(0.1, sd, null=0.0, floor=floor, level=0.95, stakes=stakes)
    assert (plan.share, plan.impressions) == (share, np.ceil(needed))


def test_what_comes_out_is_plain_json_and_a_page() -> None:
    found = decide({"a <b>": BETTER, "w": WORSE}, LOG, **KNOWN)
    plain = json.loads(as_json(found.summary()))
    assert (plain["call"], plain["chosen"], plain["exit_code"]) == ("ship", "a <b>", 0)
    assert [one["call"] for one in plain["candidates"]] == ["ship", "do not"]
    page = pages.report(found, command="tandemrank decide").html()
    assert "Ship it: a &lt;b&gt;" in page
    assert "<b>" not in re.sub(r"<[^>]*>", "", page)
    assert page.count("<svg") == 2
    assert "What you have to believe" in page
    assert (pages.warning(found), "The old system drew every list anew" in page) == ("", True)
    careful = pages.report(decide(BETTER, LOG, **KNOWN, independent="queries")).html()
    assert "The same query may behave alike" in careful
    nobody = decide(WORSE, LOG, **KNOWN)
    assert pages.headline(nobody) == "Do not ship."
    assert "it is no better: it promises −0." in pages.report(nobody).html()
    assert "95% sure" in page
    guess = pages.report(decide(BETTER, LOG, propensity="frequency")).html()
    assert ("95% sure" in guess, "at least, if the propensities are right" in guess) == (False, True)


def test_what_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least one policy"):
        decide({}, LOG)
    with pytest.raises(ConfigError, match="independent must be impressions or queries; got 'users'"):
        decide(BETTER, LOG, independent="users")
    for wrong, words in (
        ({"level": 1e-320}, "level must be a number from 0.5 to 0.999999; got 1e-320"),
        ({"level": 1 - 1e-16}, "level must be a number"),
        ({"at_least": "much"}, "at_least: expected a number; got str"),
        ({"at_least": 1e300}, "got 1e"),
        ({"most_clicks": float("nan")}, "most_clicks must be a finite number above 0; got nan"),
        ({"risk": 0.0}, "risk must be above 0 and below 1"),
        ({"samples": 2.5}, "samples must be a whole number, 1 to 10000000; got 2.5"),
        (
            {"logging_policy": "production"},
            "logging_policy must be a TwoStagePolicy or a FittedLogger; got 'production'",
        ),
        ({"other_log": "log.parquet"}, "other_log must be Feedback"),
        ({"query_features": LOG}, "give segment"),
        ({"against": None}, "against: expected a TwoStagePolicy or a MostLikely or a text"),
    ):
        with pytest.raises(ConfigError, match=words):
            decide(BETTER, LOG.head(50), **wrong)
    with pytest.raises(ConfigError, match="expected a TwoStagePolicy as new; got 'pair'"):
        decide({"new": "pair"}, LOG)
    feedback = tandemrank.logs.reading.read(LOG)
    with pytest.raises(ConfigError, match="sums of a log have no columns"):
        decide(BETTER, feedback, **KNOWN, segment="kind")
    nothing = LOG.with_columns(clicks=pl.col("clicks").list.eval(pl.element() * 0))
    found = decide(BETTER, nothing, **KNOWN)
    assert found.call == Call.DO_NOT
    with pytest.raises(LogError):
        decide(BETTER, LOG.head(0), **KNOWN)
