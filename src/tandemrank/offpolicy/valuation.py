"""The practitioner's questions: what would this policy be worth if it were live, is it better than that, may I believe it?

estimate(policy, log, ...)          value, interval, lower bound, diagnostics, a verdict in words
compare(new, old, log, ...)         the paired difference of two policies, or of a policy and production
estimate_all(sides, log, Question)  several at once: the log is read once, every side sees the same races

A value is made in four steps: what the log says (`evidence`), how the policy spreads its attention (`exposure`), fitted
propensities corrected for it (`calibration`), and the estimate with what is said of it (`judged`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.arguments import checked
from tandemrank._base.random import derive
from tandemrank.clicks.examination import as_read
from tandemrank.errors import ConfigError, shortened
from tandemrank.logs.contexts import Contexts
from tandemrank.logs.details import Shadow
from tandemrank.logs.feedback import Feedback, fingerprint
from tandemrank.logs.sources import Source
from tandemrank.offpolicy import bounds, estimators, propensities, uncertainty
from tandemrank.offpolicy.calibration import calibrated, excess
from tandemrank.offpolicy.comparison import Comparison, ceiling_terms, compare_values
from tandemrank.offpolicy.diagnostics import diagnose, identified
from tandemrank.offpolicy.estimators import Exposure
from tandemrank.offpolicy.evidence import (
    ESTIMATORS,
    LogEvidence,
    ReadLog,
    completed_by,
    curve_of,
    gather,
    read_log,
    ways,
)
from tandemrank.offpolicy.examined import Curves, curves_of
from tandemrank.offpolicy.exposure import MostLikely, Races, Tell, exposure_on, races_for
from tandemrank.offpolicy.logger import FittedLogger
from tandemrank.offpolicy.question import Question
from tandemrank.offpolicy.rewards import by_reward, worth
from tandemrank.offpolicy.shadows import REORDERED, shadow_evidence
from tandemrank.offpolicy.strangers import Answering, Shown, answering, inside, policy_of, with_production
from tandemrank.offpolicy.uncertainty import CurveInterval, Sensitivity, exposure_variance, misfit
from tandemrank.offpolicy.values import (
    PRODUCTION,
    Production,
    Sample,
    Value,
    few_queries,
    most_clicks,
    production,
    unit_of,
)
from tandemrank.offpolicy.verdicts import CARE_MISSING, SEEN, Verdict, curve_words, judge, pooled_words, worst
from tandemrank.policies.two_stage import TwoStagePolicy

Floats = NDArray[np.float64]
Side = Shown | Production | Shadow


def estimate(policy: Side, log: Source | Feedback, question: Question | None = None, **switches: Any) -> Value:
    """What a policy would be worth if it were live, in clicks per impression, by the clicks of the past.

    `log`: files, folders, patterns, a frame of polars or pandas, or `Feedback`. How to ask is a `Question`, or its fields as
    keywords: `estimate(policy, log, propensity="fitted", level=0.9)`. Ask a log that the policy was not trained on: on its own
    training log every policy looks better than it is.
    """
    return estimate_all([policy], log, Question.of(question, switches))[0]


@checked
def compare(
    new: Side, old: Side, log: Source | Feedback, question: Question | None = None, **switches: Any
) -> Comparison:
    """How many more clicks per impression the new side would get than the old, by the same races.

    A side is a policy, which draws its lists; `MostLikely(policy)`, which always shows the most likely one; `Shadow(name,
    column)`, the lists that another system would have shown; or "production": the policy that drew the log, whose value is the
    clicks of the log itself. `log` and how to ask: as in `estimate`.
    """
    return replace(compare_values(*estimate_all([new, old], log, Question.of(question, switches))), sides=(new, old))


def estimate_all(
    sides: Sequence[Side], log: Source | Feedback, question: Question, progress: Tell | None = None
) -> tuple[Value, ...]:
    """The value of each side. The log is read and its propensities are found once, and all see the same races.

    Any two of the values can be compared with `comparison.compare_values`. `progress` hears how many of how many queries are
    done, those of all policies added up.
    """
    if wrong := [side for side in sides if not isinstance(side, Shown | Shadow) and not _is_production(side)]:
        raise ConfigError(
            f'expected a TwoStagePolicy or "{PRODUCTION}"; got {shortened(wrong[0])}. Load a saved policy first.'
        )
    shown = [side for side in sides if isinstance(side, Shown)]
    if shadows := [side for side in sides if isinstance(side, Shadow)]:
        if shown:
            raise ConfigError("shadow lists are compared with production or with each other; got a policy beside them.")
        return _of_shadows(sides, shadows, log, question)
    if not isinstance(log, Feedback):
        log = as_read(log, question.examination)
    columns = _columns(shown)
    read = read_log(log, question, columns if _by_context(question) else ())
    question, average = _in_contexts(question, read.whole, columns)
    read = read.of_known_queries(_logger(question))
    if not shown:
        sample = sample_of(read.whole, question, None)
        live = [production(read.whole, sample) for _ in sides]
        return tuple(live) if question.reward_column is None else by_reward(live, log, question.reward_column)
    theta = curve_of(read, [policy_of(side) for side in shown], question)
    asking = _Asking(read, theta, ways(question, read))
    sample = sample_of(read.whole, question, asking.first.propensities.kind)
    valued = iter(_valued(shown, asking, sample, progress))
    found = [next(valued) if isinstance(side, Shown) else production(asking.first.log, sample) for side in sides]
    found = [_saying(one, average, read.left_out) for one in found]
    return tuple(found) if question.reward_column is None else by_reward(found, log, question.reward_column)


def _of_shadows(
    sides: Sequence[Side], shadows: Sequence[Shadow], log: Source | Feedback, question: Question
) -> tuple[Value, ...]:
    """The value of shadow lists, and of production on the same impressions; one that is named twice is one."""
    once = {shadow.name: shadow for shadow in shadows}
    found = shadow_evidence(list(once.values()), log, question)
    against = None if found.against_curve is None else curve_words(found.against_curve)
    drawn = [known.kind for known in found.propensities if known.reason != REORDERED]
    sample = sample_of(found.whole, question, drawn[0] if drawn else "frequency")
    values = {}
    for name, known, exposure, support in zip(once, found.propensities, found.exposures, found.support, strict=True):
        evidence = LogEvidence(
            log=found.rows, theta=found.theta, propensities=known, estimator="ips", against_model=against
        )
        value = replace(judged(exposure, evidence, sample), support=support)
        values[name] = _saying(_never_shown(value), found.left_out)
    live = production(found.rows, sample)
    every = [values[side.name] if isinstance(side, Shadow) else live for side in sides]
    if question.reward_column is None or found.reward is None:
        return tuple(every)
    return tuple(worth(one, found.rows, found.reward, question.reward_column) for one in every)


def _never_shown(value: Value) -> Value:
    """Counted propensities cannot make up for what chance never showed: care, where that is more than a standard error.

    Those that are known can: what was shown then counts for it.
    """
    share = value.diagnostics.unsupported if value.propensity == "frequency" and value.diagnostics is not None else 0.0
    if value.verdict != Verdict.TRUST or share * value.value <= value.standard_error:
        return value
    words = f"{share:.1%} of its exposure goes to items that the query was never shown: the value is about that much too low"
    return replace(value, verdict=Verdict.CARE, reasons=(words, *value.reasons))


def _is_production(side: object) -> bool:
    return isinstance(side, str) and side == PRODUCTION


def sensitivity_of(
    policy: TwoStagePolicy, log: Source | Feedback, question: Question, curve: CurveInterval
) -> tuple[Value, Sensitivity]:
    """The value by a curve, and what the curve's own error and its steepness do to it. Costs 25 values more.

    The log is read and its logging policy is fitted once. Logged propensities stay as they are: they are the logger's.
    """
    if not isinstance(log, Feedback):
        log = as_read(log, question.examination)
    question = replace(question, examination=curve.theta)
    columns = _columns([policy])
    read = replace(read_log(log, question, columns if _by_context(question) else ()), cells=None)  # by the rank alone
    question, average = _in_contexts(question, read.whole, columns)
    read = read.of_known_queries(_logger(question))
    asking = _Asking(read, curve.theta, ways(question, read))
    sample = sample_of(read.whole, question, asking.first.propensities.kind)
    [found] = _valued([policy], asking, sample)
    value = _saying(found, average, read.left_out)
    known, again = asking.again(value)

    def under(theta: Floats) -> float:
        [found] = _valued([policy], _Asking(known, theta, (again,)), sample)
        return found.value

    shifted = np.array([under(theta) for theta in curve.draws(seed=derive(question.seed, "curves"))])
    live = production(read.whole, sample).value
    rows = [(eta, under(uncertainty.steeper(curve.theta, eta))) for eta in uncertainty.STEEPNESS]
    error = float(np.hypot(value.standard_error, shifted.std()))
    interval = uncertainty.normal_interval(float(shifted.mean()), error, question.level)
    table = tuple(uncertainty.Steepness(eta, found, found - live) for eta, found in rows)
    return value, Sensitivity(interval, float(shifted.std()), table)


def sample_of(log: Feedback, question: Question, propensity: str | None) -> Sample:
    """What intervals and bounds are about; `propensity`: the kind that values policies, None if only production is valued."""
    return Sample(
        queries=int((log.impressions > 0).sum()),
        impressions=log.N,
        level=question.level,
        independent=question.independent or unit_of(log, propensity),
    )


# --- one policy after the other ---------------------------------------------------------------------------------------


def _columns(sides: Sequence[Shown]) -> tuple[str, ...]:
    """The columns of a context that a policy knows."""
    return tuple(dict.fromkeys(name for side in sides for name in policy_of(side).context_columns))


def _by_context(asked: Question) -> bool:
    """Whether a log is read by contexts; what is given beside it is by queries alone."""
    return asked.other_log is None and asked.reward is None and asked.reward_column is None


def _in_contexts(asked: Question, log: Feedback, columns: Sequence[str]) -> tuple[Question, str | None]:
    """The question with the policy that drew the log in the contexts of it; and which columns of a context that policies know
    the log does not have, in words."""
    contexts = Contexts.within(log.vocabulary)
    absent = [
        c for c in columns if contexts is None or c not in contexts.table or contexts.table[c].drop_nulls().is_empty()
    ]
    why = "is not in the log" if _by_context(asked) else "is not used with a reward, a reward model or another log"
    average = f"valued in the average context: {', '.join(absent)} {why}" if absent else None
    logger = asked.logging_policy
    if contexts is None or logger is None:
        return asked, average
    if isinstance(logger, FittedLogger):
        drew: TwoStagePolicy | FittedLogger = replace(logger, policy=inside(logger.policy, contexts, log.vocabulary))
    else:
        drew = inside(logger, contexts, log.vocabulary)
    return replace(asked, logging_policy=drew), average


def _logger(asked: Question) -> TwoStagePolicy | None:
    """The policy that drew the log, if it is given: it must know a query."""
    logger = asked.logging_policy
    return logger.policy if isinstance(logger, FittedLogger) else logger


def _saying(value: Value, *more: str | None) -> Value:
    """The value with more to know."""
    return replace(value, reasons=(*value.reasons, *(words for words in more if words is not None)))


@dataclass(frozen=True)
class _Asking:
    """A log and how it is asked: the first way, and another for policies about which the first cannot say anything."""

    read: ReadLog
    theta: Floats
    ways: tuple[Question, ...]

    @cached_property
    def first(self) -> LogEvidence:
        """What the log says in the first way."""
        return gather(self.read, self.theta, self.ways[0])

    @cached_property
    def other(self) -> LogEvidence | None:
        """What it says in the other."""
        return gather(self.read, self.theta, self.ways[1]) if len(self.ways) > 1 else None

    def again(self, value: Value) -> tuple[ReadLog, Question]:
        """The log and the question by which a value was found, with what was fitted for it."""
        asked, found = self.ways[0], self.first
        if value.estimator != found.estimator and self.other is not None:
            asked, found = self.ways[1], self.other
        known = found.propensities
        logger: TwoStagePolicy | FittedLogger | None = known.logger
        if known.logger is not None and known.fitted_lists is not None:
            logger = FittedLogger(known.logger, known.fitted_lists)
        fitted = None if found.relevance is None else (found.relevance, found.knows_clicks)
        read = replace(self.read, relevance=fitted)
        return read, replace(asked, propensity=known.kind, logging_policy=logger)


def _valued(sides: Sequence[Shown], log: _Asking, sample: Sample, progress: Tell | None = None) -> list[Value]:
    """Every policy with its estimate, its diagnostics and its verdict. All see the same races."""
    evidence = log.first
    seen = fingerprint([evidence.log])
    found, drawn = [], dict[int, Exposure]()
    for number, side in enumerate(sides):
        of_same = drawn.get(id(policy_of(side))) if isinstance(side, MostLikely) else None
        tell = progress and _onwards(progress, number, len(sides))
        asking = _One(answering(side, evidence.log), log, sample, of_same)
        exposure, value = asking.valued(progress=tell)
        if evidence.reads_on:  # what stands above, as far as the policy's own clicks know better
            exposure, value = asking.valued(better=value.value / _expected_clicks(exposure, evidence))
        if not isinstance(side, MostLikely):
            drawn[id(side)] = exposure
        if policy_of(side).trained_on == seen:
            value = replace(value, verdict=worst(value.verdict, Verdict.CARE), reasons=(SEEN, *value.reasons))
        found.append(value)
    return found


@dataclass(frozen=True)
class Correction:
    """Fitted propensities, corrected for one policy by groups of pairs, and by coarser groups; the clip they ask for; and how
    much more than that clicked pairs were exposed.  Shapes: rho_0, coarser [P]."""

    rho_0: Floats
    coarser: Floats
    clip: float
    excess: float


@dataclass(frozen=True)
class _One:
    """A side and what it is asked; `drawn`: the exposures of the same policy where it draws its lists."""

    of: Answering
    asking: _Asking
    sample: Sample
    drawn: Exposure | None

    def valued(self, *, better: float = 1.0, progress: Tell | None = None) -> tuple[Exposure, Value]:
        """Exposures and value. `better`: how many times as relevant as it is believed is what the policy shows."""
        asking, evidence = self.asking, self.asking.first
        exposure, value = self._by(evidence, asking.ways[0], better, progress)
        supported = value.diagnostics is not None and value.diagnostics.clicks > 0
        if value.verdict == Verdict.REFUSE and supported and asking.other is not None:
            exposed, other = self._by(asking.other, asking.ways[1], better, None)
            if other.verdict != worst(other.verdict, value.verdict):
                exposure, value = exposed, other
        unknown = self.of.unknown(evidence.log, value.estimate.numerator)
        if unknown is not None:
            value = replace(_saying(value, *unknown.sentences), unknown=unknown)
        return exposure, value

    def _by(
        self, evidence: LogEvidence, asked: Question, better: float, progress: Tell | None
    ) -> tuple[Exposure, Value]:
        """The same in one of the ways to ask."""
        side, model, theta, log = self.of.side, evidence.relevance, evidence.theta, self.of.answered(evidence.log)
        fixed, read = isinstance(side, MostLikely), derive(asked.seed, "read") % 2**32
        curves = curves_of(self.of.policy, log, theta, model, better=better, fixed=fixed, seed=read)
        found = exposure_on(
            side,
            log,
            curves,
            Races(asked.samples, derive(asked.seed, "exposure"), progress, asked.engine),
            evidence.reward or model,
            drawn=self.drawn,
        )
        exposure = with_production(found, evidence.log, theta, self.of.kept)
        correction = self._correction(exposure, evidence, asked, curves)
        return exposure, judged(exposure, evidence, self.sample, correction, self.of.kept[evidence.log.query])

    def _correction(
        self, exposure: Exposure, evidence: LogEvidence, asked: Question, curves: Curves
    ) -> Correction | None:
        """Of fitted propensities, for this policy; None where they are not fitted."""
        kept = self.of.kept
        if evidence.expected is None:
            return None
        log, theta, used, pairs = evidence.log, evidence.theta, evidence.propensities, evidence.expected.pairs
        races = races_for(self.of.side, asked.samples, int((log.impressions > 0).sum()))
        rho, answered = evidence.expected.rho_0.copy(), ~kept[pairs.query]
        seed = derive(asked.seed, "exposure of drawn")
        how = Races(races, seed, engine=asked.engine)
        rho[answered] = exposure_on(self.of.side, self.of.answered(pairs), curves, how).rho
        own = np.where(kept[log.query], used.unclipped, exposure.rho)
        fine, coarse = (calibrated(used.unclipped, own, log, theta, evidence.expected, rho, coarser=n) for n in (1, 2))
        more, clip = 1.0, used.clip
        if used.kind == "fitted" and asked.other_log is not None:
            more = excess(estimators.safe_ratio(own, fine, log.shown), fine, log, asked.other_log, theta)
        if used.kind == "fitted":  # what was clicked against all odds says that a fit is wrong there
            clip = max(clip, propensities.clip_minimum("quantile", fine[log.clicks > 0], log.N))
        return Correction(fine, np.maximum(coarse, clip), clip, more)


def _expected_clicks(exposure: Exposure, evidence: LogEvidence) -> float:
    """Clicks per impression by the model of relevance."""
    return max(float(exposure.direct @ evidence.log.impressions) / evidence.log.N, np.finfo(float).tiny)


def _onwards(progress: Tell, number: int, sides: int) -> Tell:
    """Counts on from the policies before this one."""
    return lambda done, queries: progress(number * queries + done, sides * queries)


def _beside(exposure: Exposure, evidence: LogEvidence) -> Floats:
    """What ranks get whatever stands there, in the places that a policy fills, of the impressions of each query.

    Shapes: -> [Q]."""
    if evidence.offset is None:
        return np.zeros(evidence.log.Q)
    filled = exposure.total / float(evidence.theta.sum())
    found: Floats = evidence.log.impressions * filled * float(evidence.offset.sum())
    return found


def _trust_variance(evidence: LogEvidence, taken: float) -> float:
    """The variance of a value by the error of the trust that was taken out of it, to first order."""
    trust = None if evidence.behaviour is None else evidence.behaviour.trust
    return 0.0 if evidence.offset is None or trust is None else (taken * trust.error / trust.tau) ** 2


def _of_rows(weights: Floats, kept: NDArray[np.bool_]) -> Floats:
    """The weights of both kinds: 1 whatever the propensity is, where production's list is kept.  Shapes: [P] -> [2, P]."""
    return np.where(kept, [[0.0], [1.0]], bounds.both_weights(weights))


def judged(
    exposure: Exposure,
    evidence: LogEvidence,
    sample: Sample,
    correction: Correction | None = None,
    kept: NDArray[np.bool_] | None = None,
) -> Value:
    """One policy by its exposures: the estimate, what it rests on and what is said of it.

    `kept`: rows of queries that keep production's list, where every click counts 1.  Shapes: kept [P].
    """
    log, used = evidence.log, evidence.propensities
    kept = np.zeros(len(log.query), np.bool_) if kept is None else kept
    own = log.by_own_propensity()
    own = replace(own, clicks=np.where(kept, log.clicks, own.clicks))
    if correction is not None:
        used = replace(used, unclipped=correction.rho_0, clip=correction.clip)
    exposure = replace(exposure, rho=np.where(kept, used.rho_0, exposure.rho))
    diagnostics = diagnose(log, used.rho_0, used.unclipped < used.clip, exposure, evidence.theta)
    verdict, reasons = judge(
        diagnostics,
        fitted_lists=used.fitted_lists,
        against_model=evidence.against_model,
        over_impressions=few_queries(log),
        completed=evidence.estimator == "completed",
    )
    if evidence.of_cells is not None:
        reasons = (*reasons, evidence.of_cells)
    off, factor = (0.0, 0.0), 1.0
    if correction is not None:  # of clicks
        used = replace(used, unclipped=correction.excess * used.unclipped)
        exposure = replace(exposure, rho=np.where(kept, used.rho_0, exposure.rho))
    ips = estimators.ips(exposure.rho, used.rho_0, own)
    if correction is not None:
        coarse = estimators.ips(exposure.rho, correction.excess * correction.coarser, log)
        off = misfit(ips.value, coarse.value, used.fitted_lists)
    weights = estimators.safe_ratio(exposure.rho, used.rho_0, log.shown)
    asked = replace(evidence, log=own.less(evidence.offset), propensities=used)
    if evidence.estimator == "completed":
        whole = completed_by(exposure, asked, kept, diagnostics.by_chance)
        found, factor, off = whole.estimate, whole.factor, (whole.off, 0.0)
    else:
        found = ESTIMATORS[evidence.estimator](exposure, asked)
    beside = _beside(exposure, evidence)
    found = replace(found, numerator=found.numerator + beside)
    if (other := uncertainty.pooled(weights, log, most=most_clicks(log))) is not None:
        reasons = (*reasons, pooled_words(other))
    cases = identified(ips, exposure, log, value=found.value)
    if verdict != Verdict.TRUST and diagnostics.unsupported > CARE_MISSING:
        reasons = (*reasons, cases.words)
    return Value(
        log=log,
        sample=sample,
        estimate=found,
        terms=bounds.value_terms(ips),
        verdict=verdict,
        reasons=reasons,
        estimator=evidence.estimator,
        propensity=used.kind,
        propensity_reason=used.reason,
        diagnostics=diagnostics,
        identified=cases,
        ceiling_terms=ceiling_terms(exposure.rho, used.unclipped, own, len(evidence.theta)),
        weights=factor * _of_rows(weights, kept),
        old_weights=factor * _of_rows(estimators.safe_ratio(exposure.rho, used.unclipped, log.shown), kept),
        exposure_variance=factor**2 * exposure_variance(weights, exposure.error, exposure.rho, log)
        + _trust_variance(evidence, factor * ips.value - found.value),
        misfit=off,
        behaviour=evidence.behaviour,
        excess=factor * (max(factor * ips.value / found.value, 1.0) if beside.any() and found.value > 0 else 1.0),
    )
