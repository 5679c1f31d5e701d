"""The practitioner's questions: what would this pair be worth if it were live, is it better than that, may I believe it?

estimate(policy, log, ...)          value, interval, lower bound, diagnostics, a verdict in words
compare(new, old, log, ...)         the paired difference of two pairs, or of a pair and production
estimate_all(sides, log, Question)  several at once: the log is read once, every side sees the same draws
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tandemrank._base.arguments import checked
from tandemrank._base.cluster import Engine
from tandemrank._base.ids import positions_of
from tandemrank._base.random import derive
from tandemrank.clicks.models import examination_curve
from tandemrank.errors import ConfigError
from tandemrank.logs import reading, sums
from tandemrank.logs.feedback import Feedback, fingerprint
from tandemrank.logs.impressions import Impressions
from tandemrank.logs.pairs import Contradiction, contradiction
from tandemrank.logs.sources import Source
from tandemrank.logs.variety import CARE_LISTS
from tandemrank.offpolicy import bounds, estimators, propensities, sensitivity, values
from tandemrank.offpolicy.bounds import Independent
from tandemrank.offpolicy.calibration import Expected, calibrated, excess, expected_by, expected_of
from tandemrank.offpolicy.catalogue import ESTIMATORS, direct
from tandemrank.offpolicy.diagnostics import Exposure, diagnose
from tandemrank.offpolicy.exposure import MostLikely, Tell, exposure_on, races_for
from tandemrank.offpolicy.folds import of_queries, query_folds
from tandemrank.offpolicy.identification import identified
from tandemrank.offpolicy.impression_bound import counts_impressions
from tandemrank.offpolicy.logger import LISTS, lists_of
from tandemrank.offpolicy.names import MODELLED, Asked, Clip, Curve, Estimator
from tandemrank.offpolicy.propensities import SAMPLES, Resolved, resolve, row_propensities
from tandemrank.offpolicy.question import Question, RewardSource
from tandemrank.offpolicy.reward import item_rate, posterior
from tandemrank.offpolicy.reward.model import RewardModel
from tandemrank.offpolicy.sensitivity import CurveInterval, Sensitivity
from tandemrank.offpolicy.uncertainty import exposure_variance, misfit
from tandemrank.offpolicy.values import PRODUCTION, Comparison, Judged, Production, Value
from tandemrank.offpolicy.verdicts import CARE_MISSING, SEEN, Verdict, judge, worst
from tandemrank.policies.prior import vectors_of
from tandemrank.policies.two_stage import TwoStagePolicy

Floats = NDArray[np.float64]
Side = TwoStagePolicy | MostLikely | Production


@checked
def estimate(
    policy: Side,
    log: Source | Feedback,
    *,
    examination: Curve | ArrayLike = "reciprocal",
    estimator: Estimator = "auto",
    propensity: Asked = "auto",
    logging_policy: TwoStagePolicy | None = None,
    clip: Clip | None = None,
    reward_log: Feedback | None = None,
    samples: int = 20,
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    engine: Engine = "local",
    fitted_lists: float | None = None,
    reward: RewardSource = "item-rate",
    independent: Independent | None = None,
) -> Value:
    """What a pair would be worth if it were live, in clicks per impression, by the clicks of the past.

    `log`: files, folders, patterns, a frame of polars or pandas, or `Feedback`. `Question` explains the keywords. Ask a log
    that the pair was not trained on: on its own training log every pair looks better than it is.
    """
    asked = Question(
        examination, estimator, propensity, logging_policy, clip, reward_log, samples, replicates, level, seed, engine,
        fitted_lists, reward, independent,
    )  # fmt: skip
    return estimate_all([policy], log, asked)[0]


@checked
def compare(
    new: Side,
    old: Side,
    log: Source | Feedback,
    *,
    examination: Curve | ArrayLike = "reciprocal",
    estimator: Estimator = "auto",
    propensity: Asked = "auto",
    logging_policy: TwoStagePolicy | None = None,
    clip: Clip | None = None,
    reward_log: Feedback | None = None,
    samples: int = 20,
    replicates: int = 1000,
    level: float = 0.95,
    seed: int = 0,
    engine: Engine = "local",
    fitted_lists: float | None = None,
    reward: RewardSource = "item-rate",
    independent: Independent | None = None,
) -> Comparison:
    """How many more clicks per impression the new side would get than the old, by the same draws of queries.

    A side is a pair, which draws its lists; `MostLikely(pair)`, which always shows the most likely one; or "production": the
    policy that drew the log, whose value is the clicks of the log itself.
    `log` and the keywords are those of `estimate`.
    """
    asked = Question(
        examination, estimator, propensity, logging_policy, clip, reward_log, samples, replicates, level, seed, engine,
        fitted_lists, reward, independent,
    )  # fmt: skip
    return values.compare_values(*estimate_all([new, old], log, asked))


def estimate_all(
    sides: Sequence[Side], log: Source | Feedback, question: Question, progress: Tell | None = None
) -> tuple[Value, ...]:
    """The value of each side. The log is read and its propensities are found once, and all see the same draws of queries.

    Any two of the values can be compared with `values.compare_values`. `progress` hears how many of how many queries are done,
    those of all pairs added up.
    """
    if wrong := [side for side in sides if not isinstance(side, TwoStagePolicy | MostLikely) and side != PRODUCTION]:
        raise ConfigError(f'a side is a TwoStagePolicy or "{PRODUCTION}"; {wrong[0]!r} came. Load a saved pair first.')
    pairs = [side for side in sides if isinstance(side, TwoStagePolicy | MostLikely)]
    read = _of_known_queries(_read(log, question), pairs, question)
    theta = _curve(read.whole, pairs, question)
    judged = iter(_judged(pairs, _evidence(read, theta, question), question, progress)) if pairs else iter(())
    found = [values.production(read.whole) if side == PRODUCTION else next(judged) for side in sides]
    found = [one if read.left_out is None else replace(one, reasons=(*one.reasons, read.left_out)) for one in found]
    return _with_uncertainty(found, read.whole, question)


def _with_uncertainty(sides: Sequence[Judged], log: Feedback, asked: Question) -> tuple[Value, ...]:
    return values.with_uncertainty(sides, log, asked.replicates, asked.level, asked.seed, asked.independent)


def sensitivity_of(
    policy: TwoStagePolicy, log: Source | Feedback, question: Question, curve: CurveInterval
) -> tuple[Value, Sensitivity]:
    """The value by a curve, and what the curve's own error and its steepness do to it. Costs 25 values more.

    The log is read and its logging policy is fitted once. Logged propensities stay as they are: they are the logger's.
    """
    question = replace(question, examination=curve.theta)
    read = _of_known_queries(_read(log, question), [policy], question)
    first = _evidence(read, curve.theta, question)
    [judged] = _judged([policy], first, question)
    judged = judged if read.left_out is None else replace(judged, reasons=(*judged.reasons, read.left_out))
    [value] = _with_uncertainty([judged], read.whole, question)
    known = first.propensities
    again = replace(
        question, propensity="exact" if known.logger else known.kind, logging_policy=known.logger,
        estimator=first.estimator, fitted_lists=first.fitted_lists,
    )  # fmt: skip

    def under(theta: Floats) -> float:
        return _judged([policy], _evidence(read, theta, again, first.parts), again)[0].estimate.value

    shifted = np.array([under(theta) for theta in curve.draws(seed=derive(question.seed, "curves"))])
    live = values.production(read.whole).estimate.value
    rows = [(eta, under(sensitivity.steeper(curve.theta, eta))) for eta in sensitivity.STEEPNESS]
    interval = sensitivity.combine(value.draws, value.value, shifted, question.level, seed=question.seed)
    table = tuple(sensitivity.Steepness(eta, found, found - live) for eta, found in rows)
    return value, Sensitivity(interval, float(shifted.std()), table)


MOST_UNKNOWN = 0.5  # of the impressions, by queries that a policy does not know
Models = tuple[tuple[Feedback, RewardModel], ...]  # parts of a log, each with a reward model of others


@dataclass(frozen=True)
class Read:
    """A log: all of it, parts of it with what a reward model may learn from, never the part itself, and its first lists.

    `by_query`: the parts have no query in common, so a model knows of the queries it judges nothing but their items.
    `left_out`: how many impressions are left out since a policy does not know their query, in words.
    """

    whole: Feedback
    folds: list[tuple[Feedback, Feedback]]
    lists: Impressions | None
    by_query: bool = False
    left_out: str | None = None


@dataclass(frozen=True)
class Evidence:
    """What a log says, whatever the pair: its curve, its propensities, and parts of it, each with a reward model of others.

    `estimator`: the one that is used. `rates`: the plainest reward model of the same parts, where a logger was fitted to few
    lists per query, `fitted_lists`. `against_curve`: what the log says against the curve.
    `expected`: what a fitted logger would have shown, to correct its propensities by; `coarser`: these by fewer groups, and
    `excess`: how much more clicked pairs were exposed, both of one pair to value.
    Shapes: theta [K]; rho_0, coarser [P].
    """

    log: Feedback
    theta: Floats
    propensities: Resolved
    estimator: Estimator
    parts: Models = ()
    rates: Models = ()
    fitted_lists: float | None = None
    against_curve: Contradiction | None = None
    expected: Expected | None = None
    coarser: Floats | None = None
    excess: float = 1.0

    @property
    def rho_0(self) -> Floats:
        """Of every row, clipped."""
        return self.propensities.rho_0[0]


def _read(log: Source | Feedback, asked: Question) -> Read:
    """The log, read once: its sums, its parts, each with what may teach the model that judges it, its first lists."""
    if asked.estimator not in ("auto", *ESTIMATORS):
        raise ConfigError(f"estimator must be one of {', '.join(['auto', *ESTIMATORS])}; {asked.estimator!r} came.")
    seed, lists = derive(asked.seed, "folds"), None
    if isinstance(log, Feedback):
        whole, folds = log, query_folds(log, seed)
    else:
        # Folds of impressions: a model of the one half knows the pairs of the other.
        K = None if isinstance(asked.examination, str) else len(np.asarray(asked.examination))
        may_fit = asked.propensity == "fitted" or (asked.propensity == "auto" and asked.logging_policy is None)
        (one, other), lists = reading.read_with_lists(
            log, (0.5,), lists=LISTS if may_fit else 0, seed=seed, K=K, engine=asked.engine
        )
        whole, folds = sums.merge([one, other]), [(one, other), (other, one)]
    learnt = whole if isinstance(asked.reward, RewardModel) else asked.reward_log
    by_query = isinstance(log, Feedback) and learnt is None
    return Read(whole, folds if learnt is None else [(whole, learnt)], lists, by_query)


def _of_known_queries(read: Read, pairs: Sequence[TwoStagePolicy | MostLikely], asked: Question) -> Read:
    """The log without the queries that a policy does not know, if these are few: else nothing fits, and it is refused later."""
    log = read.whole
    known = np.ones(log.Q, dtype=np.bool_)
    whose = [(policy, "the pair to value") for policy in map(_policy, pairs)]
    if asked.logging_policy is not None:
        whose.append((asked.logging_policy, "the policy that drew the log"))
    for policy, owner in whose:
        ids = policy.vocabulary.query_ids
        known &= positions_of(ids, log.vocabulary.query_ids, "query", missing="mark", owner=owner) >= 0
    gone = float(log.impressions[~known].sum())
    if not 0 < gone <= MOST_UNKNOWN * log.N:
        return read
    lists = read.lists
    if lists is not None:
        there = known[lists.query]
        lists = Impressions(lists.query[there], lists.items[there], lists.clicks[there])
    first = log.vocabulary.query_ids[int(np.argmax(~known & (log.impressions > 0)))]
    words = (
        f"{gone:,.0f} of {log.N:,.0f} impressions are left out: a policy does not know their query (first: {first!r})"
    )
    folds = [(of_queries(part, known), of_queries(rest, known)) for part, rest in read.folds]
    return replace(read, whole=of_queries(log, known), folds=folds, lists=lists, left_out=words)


def _curve(log: Feedback, pairs: Sequence[TwoStagePolicy | MostLikely], asked: Question) -> Floats:
    """The examination curve; one with a name is as long as the longest list, of the log or of a pair.  Shapes: -> [K]."""
    if isinstance(asked.examination, str):
        longest = int(log.rank.max()) + 1 if len(log.rank) else 1
        shown = (pair.policy.K if isinstance(pair, MostLikely) else pair.K for pair in pairs)
        return examination_curve(max(longest, *shown, 1), asked.examination)
    return np.asarray(asked.examination, np.float64)


def _evidence(read: Read, theta: Floats, asked: Question, models: Models | None = None) -> Evidence:
    """What the log says by a curve; `models` are reward models that are there already: any will do for any curve."""
    shown = read.lists
    clip = asked.clip if asked.clip is not None else "quantile" if asked.estimator == "clipped" else "none"
    found = resolve(
        [read.whole], theta, kind=asked.propensity, clip=clip, logging_policy=asked.logging_policy,
        lists=None if shown is None else lambda: lists_of([shown]),
        samples=asked.samples if asked.samples > SAMPLES else None,
        seed=derive(asked.seed, "propensities"), beside=asked.reward_log,
    )  # fmt: skip
    estimator = _estimator(asked, found)
    folds = read.folds if estimator in MODELLED else []
    parts = (
        tuple((part, _reward(rest, theta, asked, found.logger, read.by_query)) for part, rest in folds)
        if models is None
        else models
    )
    queries = max(int((read.whole.impressions > 0).sum()), 1)
    lists = read.whole.N / queries if found.kind == "fitted" else asked.fitted_lists
    if found.kind == "exact" and asked.fitted_lists is not None:
        found = replace(found, kind="fitted", reason="the policy that drew the log was fitted to its lists before")
    doubted = estimator == "doubly_robust" and lists is not None and lists < CARE_LISTS and not found.only_shown
    rates = tuple((part, item_rate.reward_model(rest, theta)) for part, rest in folds) if doubted else ()
    against = contradiction(read.whole, theta) if counts_impressions(read.whole) else None
    expected = _expected(read.whole, theta, found, asked)
    return Evidence(read.whole, theta, found, estimator, parts, rates, lists, against, expected)


def _expected(log: Feedback, theta: Floats, found: Resolved, asked: Question) -> Expected | None:
    """What a fitted logger would have shown, by as many races as those of the log; or by frequencies of other impressions."""
    if found.only_shown and found.kind == "frequency" and asked.reward_log is not None:
        others = asked.reward_log
        return expected_by(others, log, theta, propensities.frequency_propensity(others, theta))
    logger, seed = found.logger, derive(asked.seed, "drawn") % 2**32
    if found.kind != "fitted" or logger is None or not log.N:
        return None
    races = asked.samples if asked.samples > SAMPLES else propensities.races_for(int((log.impressions > 0).sum()))
    return expected_of(
        log, logger, theta, lambda pairs: row_propensities(pairs, theta, "exact", logger, samples=races, seed=seed), seed=seed
    )  # fmt: skip


def _estimator(asked: Question, found: Resolved) -> Estimator:
    """The estimator that is used. A reward model must not promise what lists that hardly vary cannot know: what was never
    shown is worth nothing there."""
    if found.only_shown and asked.estimator in ("auto", *MODELLED):
        return "ips"
    if asked.estimator != "auto":
        return asked.estimator
    if found.kind == "frequency" or asked.reward != "item-rate" or asked.reward_log is not None:
        return "doubly_robust"
    # A reward model promises too much of what the logger hardly showed, and a fit cannot take it all back.
    return "ips" if found.kind == "fitted" or asked.fitted_lists is not None else "beta_ips"


def _reward(
    log: Feedback, theta: Floats, asked: Question, logger: TwoStagePolicy | None, by_query: bool
) -> RewardModel:
    """The reward model of a part of the log; of the posterior the logger's vectors, given or fitted, are the prior, and its
    scores are evidence, as in training.

    Of queries that it has not seen the posterior knows no more than rates do, so they do there.
    """
    if isinstance(asked.reward, RewardModel):
        return asked.reward
    if asked.reward == "item-rate" or by_query or not log.clicks.any():
        return item_rate.reward_model(log, theta)
    drew = vectors_of(logger or asked.logging_policy, log.vocabulary)
    return posterior.fit(log, theta, vectors=drew, logger=drew, seed=derive(asked.seed, "reward") % 2**32)


def _judged(
    pairs: Sequence[TwoStagePolicy | MostLikely], evidence: Evidence, asked: Question, progress: Tell | None = None
) -> list[Judged]:
    """Every pair with its estimate, its diagnostics and its verdict. All see the same races."""
    seed, rewards = derive(asked.seed, "exposure"), [reward for _, reward in (*evidence.parts, *evidence.rates)]
    found, drawn = [], dict[int, Exposure]()
    for number, pair in enumerate(pairs):
        beside = drawn.get(id(_policy(pair))) if isinstance(pair, MostLikely) else None
        exposure = exposure_on(
            pair, evidence.log, evidence.theta, rewards, samples=asked.samples, seed=seed, drawn=beside,
            progress=progress and _onwards(progress, number, len(pairs)),
        )  # fmt: skip
        if not isinstance(pair, MostLikely):
            drawn[id(pair)] = exposure
        found.append(judged(exposure, _calibrated(pair, exposure, evidence, asked)))
    name = fingerprint([evidence.log])
    return [_doubted(one) if _policy(pair).trained_on == name else one for one, pair in zip(found, pairs, strict=True)]


def _onwards(progress: Tell, number: int, pairs: int) -> Tell:
    """Counts on from the pairs before this one."""
    return lambda done, queries: progress(number * queries + done, pairs * queries)


def _calibrated(pair: TwoStagePolicy | MostLikely, exposure: Exposure, evidence: Evidence, asked: Question) -> Evidence:
    """The evidence with fitted propensities that are corrected for this pair."""
    if evidence.expected is None:
        return evidence
    log, theta, used = evidence.log, evidence.theta, evidence.propensities
    races = races_for(pair, asked.samples, int((log.impressions > 0).sum()))
    seed = derive(asked.seed, "exposure of drawn")
    rho = exposure_on(pair, evidence.expected.pairs, theta, (), samples=races, seed=seed).rho
    fine, coarse = (
        calibrated(used.unclipped[0], exposure.rho, log, theta, evidence.expected, rho, coarser=n) for n in (1, 2)
    )
    more, clip = 1.0, used.clip
    if used.kind == "fitted" and asked.reward_log is not None:
        more = excess(estimators.safe_ratio(exposure.rho, fine, log.shown), fine, log, asked.reward_log, theta)
    if used.kind == "fitted" and asked.clip is None:  # what was clicked against all odds says that a fit is wrong there
        clip = max(clip, propensities.clip_minimum("quantile", fine[log.clicks > 0], log.N))
    return replace(
        evidence, propensities=replace(used, unclipped=(fine,), clip=clip), coarser=np.maximum(coarse, clip), excess=more
    )  # fmt: skip


def _policy(pair: TwoStagePolicy | MostLikely) -> TwoStagePolicy:
    return pair.policy if isinstance(pair, MostLikely) else pair


def _doubted(found: Judged) -> Judged:
    """The value of a pair by the log that it was trained on."""
    return replace(found, verdict=worst(found.verdict, Verdict.CARE), reasons=(SEEN, *found.reasons))


def judged(exposure: Exposure, evidence: Evidence) -> Judged:
    """One pair, by its exposures."""
    found, rates = evidence.propensities, exposure.direct[len(evidence.parts) :]
    exposure = replace(exposure, direct=exposure.direct[: len(evidence.parts)])
    model = direct(replace(exposure, direct=rates), replace(evidence, parts=evidence.rates)) if len(rates) else None
    diagnostics = diagnose(evidence.log, evidence.rho_0, found.raised[0], exposure, evidence.theta)
    found = replace(found, unclipped=(evidence.excess * found.unclipped[0],))
    evidence = replace(evidence, propensities=found)  # of clicks
    ips = estimators.ips(exposure.rho, evidence.rho_0, evidence.log)
    verdict, reasons = judge(
        diagnostics, modelled=evidence.estimator == "direct", fitted_lists=evidence.fitted_lists,
        against_curve=evidence.against_curve, over_impressions=values.few_queries(evidence.log),
    )  # fmt: skip
    value = ESTIMATORS[evidence.estimator](exposure, evidence)
    cases = identified(ips, exposure, evidence.log, value=value.value)
    if verdict != Verdict.TRUST and diagnostics.unsupported > CARE_MISSING:
        reasons = (*reasons, cases.words)
    unclipped = estimators.safe_ratio(exposure.rho, found.unclipped[0], evidence.log.shown)
    weights = estimators.safe_ratio(exposure.rho, evidence.rho_0, evidence.log.shown)
    unknown = exposure_variance(weights, exposure.error, exposure.rho, evidence.log)
    off = (0.0, 0.0)
    if evidence.coarser is not None:
        coarse = estimators.ips(exposure.rho, evidence.excess * evidence.coarser, evidence.log)
        off = misfit(ips.value, coarse.value, evidence.fitted_lists)
    return Judged(
        value, bounds.value_terms(ips), verdict, reasons, diagnostics, found.kind, found.reason,
        values.ceiling_terms(exposure.rho, found.unclipped[0], evidence.log, len(evidence.theta)),
        weights, unclipped, cases, model, evidence.estimator, unknown, off,
    )  # fmt: skip
