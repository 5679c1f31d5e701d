"""The whole question on simulated worlds where the truth is known: coverage, support, verdicts, outside scores."""

import dataclasses
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

import item_rate
from random_logs import long_logs, wide_logs
from tandemrank._base.ids import Vocabulary
from tandemrank.clicks import models, simulation
from tandemrank.errors import ConfigError, DataError, InputError, LogError, PolicyError, TandemRankError
from tandemrank.logs import counting, feedback, reading, sources, validation, writing
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Impressions
from tandemrank.logs.pairs import contradiction
from tandemrank.offpolicy import comparison, diagnostics, estimators, evidence, propensities, valuation, values
from tandemrank.offpolicy.estimators import Exposure, by_query, of_queries
from tandemrank.offpolicy.evidence import LogEvidence
from tandemrank.offpolicy.exposure import MostLikely
from tandemrank.offpolicy.logger import FittedLogger
from tandemrank.offpolicy.question import Question
from tandemrank.offpolicy.verdicts import Verdict, curve_words, judge
from tandemrank.policies.outside import policy_from_scores
from tandemrank.policies.scorers import GivenScores, MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy

K, K2, D = 3, 5, 8
THETA = models.examination_curve(K)


@dataclass(frozen=True)
class World:
    """A population of queries with tastes: the logger's scores, the new pair's, the relevance.  Shapes: each [Q, D]."""

    logger: np.ndarray
    candidate: np.ndarray
    ranker: np.ndarray
    R: np.ndarray

    def take(self, q: np.ndarray) -> "World":
        return World(*(x[q] for x in vars(self).values()))

    @property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(pl.Series(range(len(self.R))), pl.Series(range(self.R.shape[1])))

    @property
    def logging_policy(self) -> TwoStagePolicy:
        scorer = GivenScores(self.logger)
        return TwoStagePolicy(scorer, scorer, self.R.shape[1], K, self.vocabulary)

    @property
    def new(self) -> TwoStagePolicy:
        return TwoStagePolicy(GivenScores(self.candidate), GivenScores(self.ranker), K2, K, self.vocabulary)

    def utilities(self, policy: TwoStagePolicy, samples: int = 300) -> np.ndarray:
        """The true value of each query."""
        return policy.utility(csr_matrix(self.R), THETA, samples=samples, seed=9)

    def impressions(self, N: int, seed: int) -> list[Impressions]:
        model, everyone = models.position_based(THETA), np.arange(len(self.R))
        return list(simulation.simulate(self.logging_policy.sample, csr_matrix(self.R), everyone, N, model, seed=seed))

    def log(self, N: int, seed: int) -> Feedback:
        return counting.from_impressions(self.impressions(N, seed), self.vocabulary)


def world(Q: int = 200, items: int = D, seed: int = 0) -> World:
    rng = np.random.default_rng(seed)
    taste, item = rng.normal(size=(Q, 3)) / 3**0.5, rng.normal(size=(items, 3))
    liked = taste @ item.T + rng.normal(size=items)
    R = 1 / (1 + np.exp(-(liked - 0.5)))
    logger = 0.5 * liked + 0.3 * rng.normal(size=items)
    return World(logger, logger + 0.3 * rng.normal(size=(Q, items)), 1.5 * liked, R)


def asked(small: World, **more: Any) -> dict[str, Any]:
    return {"examination": THETA, "propensity": "exact", "logging_policy": small.logging_policy, **more}


def known_exposure(policy: TwoStagePolicy) -> np.ndarray:
    """rho of every pair, almost without noise.  Shapes: -> [Q, D]."""
    q, d = np.divmod(np.arange(len(policy.vocabulary.query_ids) * D), D)
    return policy.exposure(q, d, THETA, samples=300)[0].reshape(-1, D)


def test_intervals_cover_the_truth_and_doubly_robust_errs_less_than_ips() -> None:
    """500 logs, each of queries drawn anew: 95% intervals cover the value of the population 92 to 98% of the time."""
    population = world(1000)
    rho_cr, rho_0 = known_exposure(population.new), known_exposure(population.logging_policy)
    U = (rho_cr * population.R).sum(1)
    rng, model = np.random.default_rng(1), models.position_based(THETA)
    covered, errors, above = [], [], 0
    for seed in range(500):
        q = rng.integers(len(U), size=120)
        small = population.take(q)
        draw = simulation.one_stage(lambda q, s=small.logger: s[q], K)
        log, other = (
            counting.from_impressions(
                simulation.simulate(draw, csr_matrix(small.R), np.arange(120), 1200, model, seed=s), small.vocabulary
            )
            for s in (seed, 1000 + seed)
        )
        answers = []
        for reward in (None, item_rate.reward_model(other, THETA)):
            question = Question(THETA, propensity="frequency", reward=reward, seed=seed, independent="queries")
            said = known_propensities(evidence_of(log, question), rho_0[q][log.query, log.item])
            sample = valuation.sample_of(log, question, "frequency")
            answers.append(valuation.judged(whole_exposure(rho_cr[q], said), said, sample))
        covered.append([a.interval[0] <= U.mean() <= a.interval[1] for a in answers])
        errors.append([a.value - float((log.impressions * U[q]).sum() / log.N) for a in answers])
        above += answers[0].lower_bound > U.mean()
    ips, doubly_robust = np.mean(covered, axis=0)
    assert 0.92 <= ips <= 0.98
    assert 0.92 <= doubly_robust <= 0.98
    assert above <= 25
    squared = np.square(errors)
    gain = squared[:, 0] - squared[:, 1]
    assert gain.mean() > 5 * gain.std() / len(gain) ** 0.5
    assert np.sqrt(squared[:, 1].mean() / squared[:, 0].mean()) < 0.9


def evidence_of(log: Any, question: Question) -> LogEvidence:
    return evidence.gather(evidence.read_log(log, question), np.asarray(question.examination), question)


def known_propensities(said: LogEvidence, rho_0: np.ndarray) -> LogEvidence:
    return replace(said, propensities=replace(said.propensities, unclipped=rho_0))


def whole_exposure(rho: np.ndarray, said: LogEvidence) -> Exposure:
    """Exposures that are known, in place of those of the race.  Shapes: rho [Q, D]."""
    log, total = said.log, rho.sum(1)
    every = 0.0 if said.reward is None else said.reward.matrix(np.arange(len(rho)))[:, :-1]
    direct = (rho * every).sum(1)
    return Exposure(rho[log.query, log.item], total, total, np.ones(len(rho)), direct)


def test_a_log_is_read_once_also_where_a_logger_is_fitted_to_its_lists(tmp_path: Path, monkeypatch) -> None:
    small = world(30)
    path = writing.write(small.impressions(900, 1), tmp_path / "log", small.vocabulary)
    opened = []
    batches = sources.batches
    monkeypatch.setattr(sources, "batches", lambda *a, **k: opened.append(a) or batches(*a, **k))
    found = valuation.compare(small.new, "production", path)
    assert (found.new.propensity, len(opened)) == ("fitted", 1)
    lists = evidence.read_log(path, Question()).lists
    assert np.array_equal(lists.items, np.concatenate([part.items for part in small.impressions(900, 1)]))


@pytest.mark.parametrize("estimator", ["ips", "beta_ips", "doubly_robust"])
def test_every_estimator_finds_the_value_of_the_pair(estimator: str) -> None:
    small = world()
    given = {"reward": item_rate.reward_model(small.log(5_000, 2), THETA)} if estimator == "doubly_robust" else {}
    answer = valuation.estimate(small.new, small.log(40_000, 1), **asked(small, estimator=estimator, **given))
    assert answer.value == pytest.approx(small.utilities(small.new).mean(), rel=0.015)
    assert answer.interval[0] < answer.value < answer.interval[1]
    assert 0.7 * answer.value < answer.lower_bound < answer.value
    assert answer.verdict == "trust it"
    assert answer.standard_error == pytest.approx((answer.interval[1] - answer.interval[0]) / 3.92, rel=0.1)


def test_identity_on_policy_every_weight_is_one() -> None:
    small = world()
    log = small.log(5000, 2)
    answer = valuation.estimate(small.logging_policy, log, **asked(small, estimator="ips", samples=400))
    assert answer.value == pytest.approx(log.clicks.sum() / log.N, rel=0.01)
    found = answer.diagnostics
    assert found.examined == pytest.approx(log.N * THETA.sum())
    assert found.effective_sample_size == pytest.approx(found.examined, rel=0.01)
    assert found.largest_weight == pytest.approx(1, abs=0.2)
    assert found.balance == pytest.approx(1, abs=0.01)
    assert found.clipped == 0


def test_propensities_of_every_kind_from_files(tmp_path: Path) -> None:
    """Logged, exact, frequency and fitted agree on a log that is large enough for each of them."""
    small = world()
    logger = small.logging_policy

    def rho_0(part: Impressions) -> np.ndarray:
        q = np.repeat(part.query, K)
        return logger.exposure(q, part.items.ravel(), THETA, samples=200)[0].reshape(-1, K)

    path = writing.write(small.impressions(20_000, 3), tmp_path / "log", small.vocabulary, propensities=rho_0)
    found = {
        kind: valuation.estimate(
            small.new, path, examination=THETA, propensity=kind, logging_policy=logger if kind == "exact" else None
        )
        for kind in ("logged", "exact", "frequency", "fitted")
    }
    truth = found["exact"].value
    assert truth == pytest.approx(small.utilities(small.new).mean(), rel=0.02)
    assert found["logged"].value == pytest.approx(truth, rel=0.003)
    assert found["frequency"].value == pytest.approx(truth, rel=0.015)
    assert found["fitted"].value == pytest.approx(truth, rel=0.01)
    assert {answer.verdict for answer in found.values()} == {"trust it"}


def test_support_broken_at_the_generator_or_at_the_ranker_is_named() -> None:
    """The logger never shows items 0 to 3. A generator that brings only them, or a ranker that prefers them, is refused."""
    flat, none, much = np.zeros((100, D)), np.full((100, 4), -np.inf), np.full((100, 4), 8.0)
    logger = np.hstack([none, flat[:, 4:]])
    base = World(logger, flat, flat, np.full((100, D), 0.5))
    generator = World(logger, np.hstack([much, flat[:, 4:]]), flat, base.R)  # its candidates are 0 to 3 and one more
    ranker = World(logger, flat, np.hstack([much, flat[:, 4:]]), base.R)
    log = base.log(5000, 4)
    at_generator = valuation.estimate(generator.new, log, **asked(base))
    at_ranker = valuation.estimate(ranker.new, log, **asked(base))
    for answer in (at_generator, at_ranker):
        assert answer.verdict == "cannot be answered from this log"
        assert "outside what the log can speak about" in answer.reasons[0]
        found = answer.diagnostics
        assert found.unsupported == pytest.approx(found.lost_at_generator + found.lost_at_ranker)
        assert found.balance == pytest.approx(1 - found.unsupported, abs=0.02)
    # 4 of the 5 candidates were never logged, and the ranker shows them as they come.
    assert at_generator.diagnostics.unsupported == pytest.approx(0.8, abs=0.02)
    assert at_generator.diagnostics.lost_at_ranker < 0.02
    # Half of the candidates by chance, but the ranker shows little else.
    assert at_ranker.diagnostics.lost_at_generator == pytest.approx(0.5, abs=0.02)
    assert at_ranker.diagnostics.lost_at_ranker > 0.3
    # A generator that passes on everything loses nothing.
    one_stage = valuation.estimate(replace(ranker.new, K2=D), log, **asked(base)).diagnostics
    assert one_stage.lost_at_generator == 0
    assert one_stage.lost_at_ranker > 0.9
    assert valuation.estimate(base.logging_policy, log, **asked(base)).verdict == "trust it"


def test_a_log_of_little_is_not_trusted() -> None:
    small = world()
    few = valuation.estimate(small.new, small.log(15, 1), **asked(small))
    assert few.verdict == "cannot be answered from this log"
    assert any("effective of" in reason for reason in few.reasons)
    one = world(10)
    log = one.log(5000, 1)
    found = valuation.estimate(one.new, log, **asked(one))
    assert found.verdict == "trust it"  # over impressions, and it says so
    assert "about these 10 queries alone" in found.reasons[0]
    uneven = replace(log, shown=1.5 * log.shown, clicks=1.5 * log.clicks, impressions=1.5 * log.impressions)
    weighed = valuation.estimate(one.new, uneven, **asked(one))
    assert weighed.verdict == "use with care"
    assert "an interval from 10 queries is too narrow" in weighed.reasons


def test_a_long_log_of_which_the_weights_leave_little_is_not_simply_trusted() -> None:
    """A thousand effective items are plenty out of ten thousand, and few out of a million."""
    small = world()
    found = valuation.estimate(small.new, small.log(4000, 1), **asked(small)).diagnostics
    assert found is not None
    for examined, wanted in ((10_000.0, "trust it"), (1e6, "use with care")):
        verdict, reasons = judge(replace(found, examined=examined, effective_sample_size=1000.0))
        assert verdict == wanted
    assert reasons == ("the weights leave 1000 effective of 1000000 examined items: a few of them decide the value",)


@pytest.mark.parametrize(
    ("factor", "reason"), [(0, "do not fit the log"), (-1, "do not fit the log"), (-2, "a few items decide")]
)
def test_wrong_propensities_are_found_out(factor: float, reason: str) -> None:
    small = world()
    wrong = World(factor * small.logger, small.candidate, small.ranker, small.R)
    answer = valuation.estimate(small.new, small.log(20_000, 1), **asked(wrong))
    assert answer.verdict == "cannot be answered from this log"
    assert reason in answer.reasons[0]


@pytest.mark.parametrize("is_right", [False, True])
def test_the_chance_of_an_item_at_its_position_is_no_propensity_and_is_said_to_be_none(is_right: bool) -> None:
    """A logger that shows K of D items in random order: P(item at position) = 1 / D, rho_0 = sum_k theta_k / D."""
    small, rng = world(), np.random.default_rng(3)
    N, theta = 8000, 1 / np.arange(1, K + 1)
    propensity = theta.sum() / D if is_right else 1 / D
    items = rng.permuted(np.tile(np.arange(D), (N, 1)), axis=1)[:, :K]
    query = rng.integers(0, len(small.R), N)
    clicks = rng.random((N, K)) < theta * small.R[query[:, None], items]
    frame = pl.DataFrame(
        {
            "query_id": query,
            "items": items,
            "clicks": clicks.astype(np.uint8),
            "propensities": np.full((N, K), propensity),
        }
    ).with_columns(pl.col("items", "clicks", "propensities").arr.to_list())
    found = valuation.estimate(small.new, frame, propensity="logged", examination=theta)
    assert any("Did you log P(item at position)?" in reason for reason in found.reasons) is not is_right
    assert (found.verdict == "trust it") is is_right


def test_edges_no_clicks_no_items_one_query() -> None:
    small = world(20)
    silent = World(small.logger, small.candidate, small.ranker, 0 * small.R)
    for name in evidence.ESTIMATORS:
        given = {"reward": item_rate.reward_model(silent.log(300, 2), THETA)} if name == "doubly_robust" else {}
        given |= {"propensity": "frequency"} if name == "completed" else {}
        answer = valuation.estimate(small.new, silent.log(300, 1), **asked(small, estimator=name, **given))
        assert (answer.value, answer.interval, answer.lower_bound) == (0.0, (0.0, 0.0), 0.0)
        assert answer.verdict == "cannot be answered from this log"
        assert "no item that the new policy would show was ever clicked" in answer.reasons
    one = small.take(np.zeros(1, np.int64))
    alone = valuation.estimate(one.new, one.log(3000, 1), **asked(one))
    assert alone.verdict == "trust it"
    assert "about these 1 queries alone" in alone.reasons[0]
    nothing = World(small.logger, np.full((20, D), -np.inf), small.ranker, small.R)
    with pytest.raises(PolicyError, match="shows nothing to any query of the log"):
        valuation.estimate(nothing.new, small.log(300, 1), **asked(small))
    empty = pl.DataFrame(
        {"query_id": [0], "items": [[]], "clicks": [[]]},
        schema_overrides={"items": pl.List(pl.Int64), "clicks": pl.List(pl.Int64)},
    )
    bare = counting.from_impressions(
        [Impressions(np.zeros(1, np.int32), np.full((1, K), -1, np.int32), np.zeros((1, K), np.uint8))],
        small.vocabulary,
    )
    for log in (empty, bare):
        assert valuation.estimate(small.new, log, **asked(small)).verdict == "cannot be answered from this log"


def test_compare_is_paired_and_antisymmetric() -> None:
    small = world()
    log, new, old = small.log(20_000, 1), small.new, small.logging_policy
    there = valuation.compare(new, old, log, **asked(small))
    back = valuation.compare(old, new, log, **asked(small))
    truth = (small.utilities(new) - small.utilities(old)).mean()
    assert there.interval[0] < truth < there.interval[1]
    assert there.difference == pytest.approx(-back.difference)
    assert there.interval == pytest.approx((-back.interval[1], -back.interval[0]))
    apart = np.hypot(there.new.standard_error, there.old.standard_error)
    assert there.standard_error < 0.6 * apart  # what the queries have in common cancels
    assert there.verdict == "trust it"
    same = valuation.compare(new, new, log, **asked(small))
    assert (same.difference, same.interval) == (0.0, (0.0, 0.0))
    assert there.new.value == valuation.estimate(new, log, **asked(small)).value


def test_production_is_a_side_and_needs_no_propensities() -> None:
    """Its value are the clicks of the log; the difference to it is that of the new pair to the policy that drew the log."""
    small = world()
    log, new = small.log(20_000, 1), small.new
    there = valuation.compare(new, "production", log, **asked(small))
    back = valuation.compare("production", new, log, **asked(small))
    assert there.old.value == log.clicks.sum() / log.N
    assert (there.old.verdict, there.old.diagnostics, there.old.propensity) == ("as the log shows it", None, None)
    assert (there.verdict, back.verdict) == ("trust it", "trust it")
    assert all(reason.startswith("new: ") for reason in there.reasons)
    assert there.difference == pytest.approx(-back.difference)
    truth = (small.utilities(new) - small.utilities(small.logging_policy)).mean()
    assert there.interval[0] < truth < there.interval[1]
    alone = valuation.estimate("production", log)  # sums without propensities: there is nothing to estimate
    assert alone.value == there.old.value
    by_queries = valuation.estimate("production", log, independent="queries")
    assert 0.8 * alone.value < by_queries.lower_bound < by_queries.interval[0]
    assert by_queries.lower_bound < alone.lower_bound < alone.value  # about these impressions, not others like them
    with pytest.raises(ConfigError, match=r'a TwoStagePolicy or "production"; got .shop/production'):
        valuation.compare(new, "shop/production", log)


def test_differences_exceed_their_bounds_and_the_ceiling_is_the_best_list() -> None:
    """80 logs of queries drawn anew: the bounds against production and against another pair hold; ceilings by enumeration."""
    population = world(400)
    sides = [known_exposure(pair) for pair in (population.new, population.logging_policy)]
    rho_0, other = sides[1], known_exposure(replace(population.new, K2=D))
    U = [(rho * population.R).sum(1) for rho in (sides[0], sides[1], other)]
    rng, above, useful = np.random.default_rng(3), np.zeros(2), 0
    for seed in range(80):
        q = rng.integers(len(rho_0), size=250)
        small = population.take(q)
        log = small.log(5000, seed)
        question = Question(THETA, estimator="ips", propensity="frequency", level=0.9)
        said = known_propensities(evidence_of(log, question), rho_0[q][log.query, log.item])
        sample = valuation.sample_of(log, question, "frequency")
        judged = [valuation.judged(whole_exposure(rho[q], said), said, sample) for rho in (sides[0], other)]
        found = [*judged, values.production(log, sample)]
        n = log.impressions / log.N
        truth = [float(n @ (U[0] - U[1])[q]), float(n @ (U[0] - U[2])[q])]
        ahead = [comparison.compare_values(found[0], found[2]), comparison.compare_values(found[0], found[1])]
        above += [one.lower_bound > real for one, real in zip(ahead, truth, strict=True)]
        useful += ahead[0].lower_bound > 0
    assert (above <= 8).all()
    assert useful > 40
    w = (other / rho_0)[q]
    shown = [np.unique(log.item[log.query == i]) for i in range(len(q))]
    wanted = max(np.sort(w[i, own])[-K:].sum() for i, own in enumerate(shown) if len(own))
    assert found[1].ceiling_terms.ceiling == pytest.approx(wanted)


def test_a_clip_is_not_subtracted() -> None:
    """The old side of a difference is not clipped, and has no bound where a click has no propensity at all."""
    small = world(30)
    log = small.log(3000, 1)
    question = Question(**asked(small, estimator="ips"))
    said, sample = evidence_of(log, question), valuation.sample_of(log, question, "exact")
    raised = replace(said, propensities=replace(said.propensities, clip=0.3))
    exposure = whole_exposure(known_exposure(small.new), said)
    plain, clipped = valuation.judged(exposure, said, sample), valuation.judged(exposure, raised, sample)
    assert clipped.estimate.value < plain.estimate.value
    assert clipped.ceiling_terms.mean == pytest.approx(plain.terms.mean)
    rho, rho_0 = np.ones(len(log.query)), np.where(log.clicks > 0, 0.0, 1.0)
    assert comparison.ceiling_terms(rho, rho_0, log, K) is None


def test_a_named_curve_is_as_long_as_the_longest_list() -> None:
    small = world(30)
    log = small.log(2000, 1)
    named = valuation.estimate(small.new, log, **asked(small, examination="reciprocal"))
    assert named.value == valuation.estimate(small.new, log, **asked(small)).value
    short = TwoStagePolicy(small.new.generator, small.new.ranker, K2, 1, small.vocabulary)
    assert valuation.estimate(short, log, **asked(small, examination="dcg")).value < named.value
    with pytest.raises(LogError, match="the log shows items at rank 3, but the examination curve ends at rank 2"):
        valuation.estimate(small.new, log, **asked(small, examination=[1.0, 0.5]))
    with pytest.raises(ConfigError, match="reciprocal or dcg, or a number for each rank; got 'steep'"):
        valuation.estimate(small.new, log, **asked(small, examination="steep"))


def test_a_new_estimator_needs_a_function_and_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe of CONTRIBUTING.md: here half of IPS."""

    def half(exposure: Exposure, said: LogEvidence) -> estimators.Estimate:
        plain = estimators.ips(exposure.rho, said.rho_0, said.log)
        return estimators.Estimate(plain.numerator / 2, plain.denominator)

    monkeypatch.setitem(evidence.ESTIMATORS, "beta_ips", half)
    small = world(30)
    log = small.log(3000, 1)
    found, plain = (
        valuation.compare(small.new, "production", log, **asked(small, estimator=e, independent="queries"))
        for e in ("beta_ips", "ips")
    )
    assert found.new.value == pytest.approx(plain.new.value / 2)
    assert found.new.standard_error == pytest.approx(plain.new.standard_error / 2)
    assert found.difference == pytest.approx(plain.difference - plain.new.value / 2)


def test_the_table_of_estimators_is_the_list_of_their_names() -> None:
    assert ("auto", *evidence.ESTIMATORS) == get_args(estimators.Estimator)


def test_a_question_is_one_argument_or_its_fields_as_keywords() -> None:
    small = world(30)
    log = small.log(2000, 1)
    question = Question(**asked(small, level=0.8))
    one = valuation.estimate(small.new, log, question)
    assert one.interval == valuation.estimate(small.new, log, **asked(small, level=0.8)).interval
    wider = valuation.compare(small.new, "production", log, question, level=0.99)
    assert wider.new.sample.level == 0.99
    with pytest.raises(ConfigError, match="unknown keyword 'magic'; a question has engine, estimator,"):
        valuation.estimate(small.new, log, magic=1)


def test_the_log_and_the_policy_need_not_know_the_same_items() -> None:
    """Items that only the log knows have no exposure; items that only the policy knows have no support."""
    small = world(60)
    log = small.log(8000, 1)
    rows = pl.DataFrame(
        {"query_id": np.repeat(np.arange(60), 5), "item_id": np.tile([7, 3, 2, 5, 99], 60)}
    ).with_columns(candidate_score=0.0, ranker_score=pl.lit(0.0))
    outside = policy_from_scores(rows, 5, 2)
    answer = valuation.estimate(outside, log, **asked(small, estimator="ips"))
    assert answer.diagnostics.unsupported == pytest.approx(1 / 5, abs=0.02)
    rho = THETA[:2].sum() / 5
    truth = rho * small.R[:, [7, 3, 2, 5]].sum(1)
    assert answer.value == pytest.approx((log.impressions * truth).sum() / log.N, rel=0.05)
    robust = valuation.estimate(outside, log, **asked(small, reward=item_rate.reward_model(small.log(8000, 2), THETA)))
    rate = log.clicks.sum() / feedback.exposure(log, THETA).sum()
    assert robust.value - answer.value == pytest.approx(rho * rate, rel=0.1)  # only the model speaks for item 99


SCORES = pl.DataFrame(
    {
        "query_id": ["a", "a", "b", "b"],
        "item_id": [1, 2, 2, 3],
        "candidate_score": [0.5, -1.0, 2.0, 0.0],
        "ranker_score": [1, 2, 3, 4],
    }
)


def test_policy_from_scores(tmp_path: Path) -> None:
    SCORES.write_parquet(tmp_path / "scores.parquet")
    for source in (SCORES, tmp_path / "scores.parquet", str(tmp_path / "scores.parquet")):
        policy = policy_from_scores(source, 2, 1)
        s_c, s_r = policy.scores([0, 1])
        inf = np.inf
        assert s_c.tolist() == [[0.5, -1.0, -inf], [-inf, 2.0, 0.0]]
        assert s_r.tolist() == [[1.0, 2.0, -inf], [-inf, 3.0, 4.0]]
    wider = Vocabulary(pl.Series(["a", "b", "c"]), pl.Series([1, 2, 3, 4]))
    assert policy_from_scores(SCORES, 2, 1, wider).scores([2])[0].tolist() == [[-inf] * 4]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (SCORES.drop("ranker_score"), "expected the columns .* ranker_score is not there"),
        (SCORES.clear(), "no rows"),
        (SCORES.with_columns(item_id=pl.Series([1, None, 2, 3])), "row 1, column item_id: expected an id; got None"),
        (SCORES.with_columns(candidate_score=pl.lit("x")), "column candidate_score: expected numbers; got String"),
        (
            SCORES.with_columns(ranker_score=pl.Series([0.0, 1.0, float("nan"), float("nan")])),
            "row 2, column ranker_score: expected a number .* got nan. 2 rows",
        ),
        (SCORES.with_columns(candidate_score=pl.Series([np.inf, 1.0, 1.0, 1.0])), "row 0, column candidate_score"),
        (
            SCORES.with_columns(query_id=pl.lit("a")),
            "row 2, column item_id: expected one row for each; got query 'a' and item 2 again",
        ),
        (SCORES.with_columns(query_id=pl.lit(0.5)), "column query_id: expected integers or strings; got Float64"),
    ],
)
def test_bad_scores_are_refused_by_name(frame: pl.DataFrame, message: str) -> None:
    with pytest.raises(DataError, match=message):
        policy_from_scores(frame, 2, 1)


@pytest.mark.parametrize("propensity", ["frequency", "logged"])
def test_a_query_that_a_policy_cannot_answer_keeps_productions_list(propensity: str) -> None:
    """Its clicks count 1 each, whatever their propensities; the others are valued as if it were not there."""
    large = world(20)
    log = large.log(400, 1)
    if propensity == "logged":
        p = np.random.default_rng(0).uniform(0.2, 0.9, len(log.query))
        log = replace(log, logged=log.shown / p, weighed=1.3 * log.clicks / p, weighed_together=log.clicks / p)
        log = replace(log, weighed_squares=log.clicks / p**2)
    few = large.take(np.arange(19))
    asked_for = {"examination": THETA, "propensity": propensity, "estimator": "ips"}
    value = valuation.estimate(few.new, log, **asked_for)
    alone = valuation.estimate(few.new, of_queries(log, np.arange(20) < 19), **asked_for)
    clicks = by_query(log.clicks, log)[19]
    assert value.estimate.numerator[:19] == pytest.approx(alone.estimate.numerator[:19])
    assert value.estimate.numerator[19] == pytest.approx(clicks)
    assert (value.weights[:, log.query == 19] == [[0.0], [1.0]]).all()
    assert value.unknown is not None
    assert value.unknown.queries == log.impressions[19] / log.N
    assert value.unknown.value == value.unknown.production == pytest.approx(clicks / log.impressions[19])
    assert value.unknown.known_value == pytest.approx(alone.value)
    assert f"valued with production's list: {value.unknown.value:.3g} clicks per impression there" in value.reasons[-1]
    gain = valuation.compare(few.new, "production", log, **asked_for)
    assert gain.difference * log.N == pytest.approx(
        (alone.value - by_query(log.clicks, log)[:19].sum() / alone.log.N) * alone.log.N
    )


def test_items_that_a_policy_does_not_know_are_counted_and_never_shown() -> None:
    here = world(20)
    log = here.log(400, 1)
    fewer = here.new.vocabulary.item_ids[:-1]
    scores = GivenScores(here.new.plain_scores(range(20))[0][:, :-1])
    policy = TwoStagePolicy(scores, scores, D - 1, K, Vocabulary(here.vocabulary.query_ids, fewer))
    value = valuation.estimate(policy, log, examination=THETA, propensity="frequency", estimator="ips")
    strange = log.item == D - 1
    assert (value.weights[:, strange] == 0).all()
    assert value.unknown is not None
    assert value.unknown.items == pytest.approx(log.shown[strange].sum() / log.shown.sum())
    assert value.unknown.clicks == pytest.approx(log.clicks[strange].sum() / log.clicks.sum())
    assert value.summary()["unknown_queries"] == 0
    assert "items that the policy does not know and never shows" in value.reasons[-1]


@pytest.mark.parametrize("shown", [lambda policy: policy, MostLikely])
def test_a_query_that_a_policy_can_answer_as_the_average_one_is_valued(shown) -> None:
    """A policy of factors has an average query, as `serve` would answer: its value counts, and how many there are is said."""
    large = world(20)
    log, rng = large.log(400, 1), np.random.default_rng(3)
    scorer = MatrixFactorisation(rng.normal(size=(19, 2)), rng.normal(size=(D, 2)))
    ids = Vocabulary(large.vocabulary.query_ids[:19], large.vocabulary.item_ids)
    policy = TwoStagePolicy(scorer, scorer, D, K, ids)
    asked_for = {"examination": THETA, "propensity": "frequency", "estimator": "ips"}
    value = valuation.estimate(shown(policy), log, **asked_for)
    whole = policy.with_queries(large.vocabulary.query_ids[19:])
    assert np.allclose(
        whole.scores([19])[0].detach().numpy(), policy.plain_scores(range(19))[0].mean(0).numpy(), atol=1e-5
    )
    assert value.value == valuation.estimate(shown(whole), log, **asked_for).value
    assert f"{log.impressions[19] / 400:.1%} of the impressions are of queries that the policy does not know" in str(
        value.reasons[-1]
    )
    assert "valued as the average query" in value.reasons[-1]


def test_bad_questions_are_refused_by_name(tmp_path: Path) -> None:
    small = world(20)
    log = small.log(200, 1)
    with pytest.raises(
        ConfigError, match=r"estimator must be one of auto, completed, doubly_robust, ips, beta_ips; got 'magic'"
    ):
        valuation.estimate(small.new, log, examination=THETA, estimator="magic")
    with pytest.raises(
        ConfigError, match="reward must be a reward model, as the beliefs of `learn` are; got 'beliefs'"
    ):
        valuation.estimate(small.new, log, examination=THETA, reward="beliefs")
    with pytest.raises(ConfigError, match="doubly_robust needs a reward model"):
        valuation.estimate(small.new, log, examination=THETA, estimator="doubly_robust")
    model = item_rate.reward_model(log, THETA)
    with pytest.raises(ConfigError, match="the estimator ips uses no reward model"):
        valuation.estimate(small.new, log, examination=THETA, estimator="ips", reward=model)
    with pytest.raises(ConfigError, match="exact propensities need the policy that drew the log"):
        valuation.estimate(small.new, log, examination=THETA, propensity="exact")
    with pytest.raises(ConfigError, match="fitted propensities need the lists"):
        valuation.estimate(small.new, log, examination=THETA, propensity="fitted")
    with pytest.raises(LogError, match="no column `propensities`"):
        valuation.estimate(small.new, log, examination=THETA, propensity="logged")
    with pytest.raises(ConfigError, match="completed counts what was shown: leave propensity out; got 'logged'"):
        valuation.estimate(small.new, log, examination=THETA, estimator="completed", propensity="logged")
    with pytest.raises(ConfigError, match="samples must be a whole number, 1 to 10000000; got 0"):
        valuation.estimate(small.new, log, examination=THETA, samples=0)
    for level in (0.0, 1e-320, 1.0, float("nan")):
        with pytest.raises(ConfigError, match="level must be a number from"):
            valuation.compare(small.new, "production", log, **asked(small), level=level)
    with pytest.raises(LogError, match="nothing is at"):
        valuation.estimate(small.new, tmp_path / "nothing", examination=THETA)
    with pytest.raises(InputError, match="unknown query ids"):
        valuation.estimate(world(3).new, log, **asked(small))
    damaged = tmp_path / "scores.parquet"
    damaged.write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match="cannot be read as a table"):
        policy_from_scores(damaged, 2, 1)


IDS = Vocabulary(pl.Series("query_id", range(-3, 4)), pl.Series("item_id", range(-3, 21)))
SOME = GivenScores(np.random.default_rng(0).normal(size=(7, 24)))


@settings(max_examples=150, deadline=None)
@given(
    log=st.one_of(wide_logs(), long_logs()),
    kind=st.sampled_from(get_args(propensities.Kind)),
    estimator=st.sampled_from(["auto", "ips", "beta_ips"]),
)
def test_any_log_is_answered_whole_or_refused(log, kind, estimator) -> None:
    """Never a traceback, never a silent drop: a log with a problem is refused, and of others every impression counts."""
    pair = TwoStagePolicy(SOME, SOME, 10, 4, IDS)
    switches = {
        "examination": models.examination_curve(4),
        "propensity": kind,
        "estimator": estimator,
    }
    fit = validation.validate(log).fit
    try:
        answer = valuation.estimate(pair, log, **switches, logging_policy=TwoStagePolicy(SOME, SOME, 24, 4, IDS))
    except TandemRankError:
        # A fit log is refused only for what it has not: propensities, lists to fit them to, a single impression.
        assert not fit or kind in ("logged", "fitted") or len(log) == 0
        return
    assert fit
    read = reading.read(log)
    assert answer.diagnostics.impressions == pytest.approx(read.N)
    assert answer.diagnostics.clicks == pytest.approx(read.clicks.sum())
    assert np.isfinite(answer.value) or answer.verdict == Verdict.REFUSE
    assert answer.lower_bound >= 0


def test_lists_that_hardly_vary_promise_nothing_of_what_was_never_shown() -> None:
    """Every query has its five of ten items, swapped now and then; a pair that shows the others has no value by this log."""
    rng = np.random.default_rng(0)
    query = rng.integers(40, size=2_000)
    lists = np.where(rng.random((2_000, 1)) < 0.7, [0, 1, 2, 3, 4], [1, 0, 2, 3, 4]) + 5 * (query[:, None] % 2)
    log = pl.DataFrame({
        "query_id": query, "items": lists.tolist(), "clicks": (rng.random((2_000, 5)) < 0.3).astype(int).tolist()
    })  # fmt: skip
    rows = pl.DataFrame({"query_id": range(40)}).join(pl.DataFrame({"item_id": range(10)}), how="cross")
    others = (pl.col("item_id") // 5 != pl.col("query_id") % 2).cast(pl.Float64)
    best = rows.with_columns(candidate_score=pl.lit(0.0), ranker_score=20 * others)
    found = valuation.estimate(policy_from_scores(best, K2=10, K=5), log)
    assert (found.propensity, found.verdict) == ("frequency", Verdict.REFUSE)
    assert "two lists of a query have 100% of their items in common" in found.propensity_reason
    assert found.value == pytest.approx(found.identified.worst)
    assert found.value < 0.01


@pytest.mark.parametrize("kind", ["logged", "exact"])
def test_known_propensities_of_lists_that_never_vary_promise_nothing_else_either(kind: Any) -> None:
    """Every query always saw its two of four items; by a reward model the others would have been worth something."""
    rng = np.random.default_rng(0)
    query = rng.integers(40, size=2_000)
    lists = np.array([0, 1]) + 2 * (query[:, None] % 2)
    log = pl.DataFrame({
        "query_id": query, "items": lists.tolist(), "clicks": (rng.random((2_000, 2)) < [0.6, 0.3]).astype(int).tolist(),
        "propensities": [[1.0, 0.5]] * 2_000,
    })  # fmt: skip
    rows = pl.DataFrame({"query_id": range(40)}).join(pl.DataFrame({"item_id": range(4)}), how="cross")
    shown = (pl.col("item_id") // 2 == pl.col("query_id") % 2).cast(pl.Float64)
    drew = rows.with_columns(candidate_score=pl.lit(0.0), ranker_score=40 * shown - 20 * (pl.col("item_id") % 2))
    one_other = policy_from_scores(drew.with_columns(ranker_score=20.0 * (pl.col("item_id") % 3)), K2=4, K=2)
    seen = reading.read(log)
    found = valuation.estimate(
        one_other, seen, propensity=kind, logging_policy=policy_from_scores(drew, K2=4, K=2) if kind == "exact" else None,
        reward=item_rate.reward_model(seen, np.array([1.0, 0.5])),
    )  # fmt: skip
    assert (found.estimator, found.verdict) == ("ips", Verdict.REFUSE)
    assert found.value == pytest.approx(found.identified.worst)


@pytest.mark.parametrize(
    ("lists", "verdict"),
    [(9.0, Verdict.REFUSE), (10.0, Verdict.CARE), (49.0, Verdict.CARE), (50.0, Verdict.TRUST), (None, Verdict.TRUST)],
)
def test_a_policy_fitted_to_few_lists_per_query_is_not_trusted(lists: float | None, verdict: Verdict) -> None:
    here = world(60)
    drew = here.logging_policy
    given = (
        {"propensity": "exact", "logging_policy": drew}
        if lists is None
        else {"propensity": "fitted", "logging_policy": FittedLogger(drew, lists)}
    )
    found = valuation.estimate(drew, here.log(4000, 1), examination=THETA, **given)
    assert found.propensity == ("exact" if lists is None else "fitted")  # no fit is handed on as exact
    assert found.verdict == verdict
    assert (f"fitted to {lists or 0:g} lists per query, fewer than" in found.reasons[0]) == (verdict != Verdict.TRUST)


def test_a_curve_that_the_log_contradicts_is_said() -> None:
    here = world(60)
    log = here.log(4000, 1)
    right, flat = (valuation.estimate(here.new, log, **asked(here, examination=curve)) for curve in (THETA, np.ones(K)))
    assert right.verdict == Verdict.TRUST
    assert flat.verdict == Verdict.CARE
    assert "contradicts the examination curve: at rank 1 there are" in flat.reasons[-1]
    assert "tandemrank examine" in flat.reasons[-1]


def test_a_contradicted_curve_is_said_beside_a_refusal_too() -> None:
    here = world(60)
    log = here.log(4000, 1)
    found = valuation.estimate(here.new, log, **asked(here)).diagnostics
    assert found is not None
    low = dataclasses.replace(found, balance=0.6, balance_error=0.01, unsupported=0.02, logged=True)
    wrong = contradiction(log, np.ones(K))
    assert wrong is not None
    verdict, reasons = judge(low, against_model=curve_words(wrong))
    assert verdict == Verdict.REFUSE
    assert "weighted exposure is 0.60 of what it should be, and 2% goes to items" in reasons[0]
    assert "as P(item in the list) is" in reasons[0]
    assert "P(item" not in judge(dataclasses.replace(low, logged=False))[1][0]
    high = dataclasses.replace(low, balance=found.examined / found.impressions)
    asks = [
        "Did you log P(item at position)?" in judge(one)[1][0]
        for one in (high, dataclasses.replace(high, logged=False))
    ]
    assert asks == [True, False]
    assert reasons[-1].startswith("the log contradicts the examination curve")
    lost = judge(dataclasses.replace(low, unsupported=0.4))[1]
    assert lost[0].startswith("40% of what the new policy shows is outside what the log can speak about")


def test_of_one_query_the_error_of_the_balance_is_that_of_what_was_shown() -> None:
    """Over queries it was 0, and a balance of 1.06 by right propensities of 600 impressions surely wrong."""
    one = world(1)
    wrong = 0
    for seed in range(12):
        found = valuation.estimate(one.new, one.log(400, seed), **asked(one))
        assert found.diagnostics is not None
        assert 0.01 < found.diagnostics.balance_error < 0.1
        wrong += abs(found.diagnostics.balance - 1) > 2 * found.diagnostics.balance_error
        assert not any("do not fit" in reason or "outside" in reason for reason in found.reasons)
    assert wrong <= 3
    log = one.log(400, 0)
    exposed = Exposure(np.full(len(log.query), 0.5), *(np.ones(1) for _ in range(3)), np.zeros(1))
    rho_0 = np.full(len(log.query), 0.25)
    squares, found = (4 * THETA[log.rank] ** 2 * log.shown).sum(), (2 * THETA[log.rank] * log.shown).sum()
    by_hand = np.sqrt(K * squares - found**2 / 400) / 400  # the most that items which stand together can make of it
    nothing = np.zeros(len(log.query), bool)
    assert diagnostics.diagnose(log, rho_0, nothing, exposed, THETA).balance_error == pytest.approx(by_hand)


def test_queries_are_told_of_while_pairs_are_valued() -> None:
    here, heard = world(60), []
    sides, log = [here.new, "production", here.new], here.log(4000, 1)
    valuation.estimate_all(sides, log, Question(**asked(here)), lambda *n: heard.append(n))
    assert heard == sorted(heard)
    assert heard[0][0] <= 60 < heard[-1][0]
    assert heard[-1] == (120, 120)
