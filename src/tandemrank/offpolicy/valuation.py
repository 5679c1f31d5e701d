"""The practitioner's questions: what would this policy be worth if it were live, is it better than that, may I believe it?

estimate(policy, log, ...)          value, interval, lower bound, diagnostics, a verdict in words
compare(new, old, log, ...)         the paired difference of two policies, or of a policy and production
estimate_all(sides, log, Question)  several at once: the log is read once, every side sees the same races

A value is made in four steps: what the log says (`evidence`), how the policy spreads its attention (`exposure`), fitted
propensities corrected for it (`calibration`), and the estimate with what is said of it (`judged`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.arguments import checked
from tandemrank._base.ids import Vocabulary, plain_ids, positions_of, same_ids
from tandemrank._base.random import derive
from tandemrank._base.sparse import sums_by
from tandemrank.errors import ConfigError, PolicyError
from tandemrank.logs.contexts import Contexts
from tandemrank.logs.details import Shadow
from tandemrank.logs.feedback import Feedback, fingerprint
from tandemrank.logs.sources import Source
from tandemrank.offpolicy import bounds, estimators, propensities, uncertainty
from tandemrank.offpolicy.calibration import calibrated, excess
from tandemrank.offpolicy.comparison import Comparison, ceiling_terms, compare_values
from tandemrank.offpolicy.diagnostics import diagnose, identified
from tandemrank.offpolicy.estimators import Exposure
from tandemrank.offpolicy.evidence import ESTIMATORS, LogEvidence, curve_of, gather, read_log
from tandemrank.offpolicy.exposure import MostLikely, Tell, exposure_on, races_for
from tandemrank.offpolicy.propensities import FittedLogger
from tandemrank.offpolicy.question import Question
from tandemrank.offpolicy.rewards import by_reward, worth
from tandemrank.offpolicy.shadows import shadow_evidence
from tandemrank.offpolicy.uncertainty import CurveInterval, Sensitivity, exposure_variance, misfit
from tandemrank.offpolicy.values import (
    PRODUCTION,
    Production,
    Sample,
    Value,
    few_queries,
    production,
    unit_of,
)
from tandemrank.offpolicy.verdicts import CARE_MISSING, SEEN, Verdict, judge, worst
from tandemrank.policies.two_stage import TwoStagePolicy

Floats = NDArray[np.float64]
Shown = TwoStagePolicy | MostLikely
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
    return compare_values(*estimate_all([new, old], log, Question.of(question, switches)))


def estimate_all(
    sides: Sequence[Side], log: Source | Feedback, question: Question, progress: Tell | None = None
) -> tuple[Value, ...]:
    """The value of each side. The log is read and its propensities are found once, and all see the same races.

    Any two of the values can be compared with `comparison.compare_values`. `progress` hears how many of how many queries are
    done, those of all policies added up.
    """
    if wrong := [side for side in sides if not isinstance(side, Shown | Shadow) and not _is_production(side)]:
        raise ConfigError(f'a side is a TwoStagePolicy or "{PRODUCTION}"; got {wrong[0]!r}. Load a saved policy first.')
    shown = [side for side in sides if isinstance(side, Shown)]
    if shadows := [side for side in sides if isinstance(side, Shadow)]:
        if shown:
            raise ConfigError("shadow lists are compared with production or with each other; got a policy beside them.")
        return _of_shadows(sides, shadows, log, question)
    columns = _columns(shown)
    read = read_log(log, question, columns if _by_context(question) else ())
    shown, question, *said = _answering(shown, question, read.whole, columns)
    read = read.of_known_queries(_policies(shown, question))
    if not shown:
        sample = sample_of(read.whole, question, None)
        live = [production(read.whole, sample) for _ in sides]
        return tuple(live) if question.reward_column is None else by_reward(live, log, question.reward_column)
    theta = curve_of(read.whole, [_policy(side) for side in shown], question)
    evidence = gather(read, theta, question)
    sample = sample_of(read.whole, question, evidence.propensities.kind)
    valued = iter(_valued(shown, evidence, question, sample, progress))
    found = [next(valued) if isinstance(side, Shown) else production(read.whole, sample) for side in sides]
    found = [_saying(one, *said, read.left_out) for one in found]
    return tuple(found) if question.reward_column is None else by_reward(found, log, question.reward_column)


def _of_shadows(
    sides: Sequence[Side], shadows: Sequence[Shadow], log: Source | Feedback, question: Question
) -> tuple[Value, ...]:
    """The value of shadow lists, and of production on the same impressions; one that is named twice is one."""
    once = {shadow.name: shadow for shadow in shadows}
    found = shadow_evidence(list(once.values()), log, question)
    evidence = LogEvidence(
        log=found.rows,
        theta=found.theta,
        propensities=found.propensities,
        estimator="ips",
        against_curve=found.against_curve,
    )
    sample = sample_of(found.whole, question, found.propensities.kind)
    values = {
        name: _saying(_never_shown(replace(judged(exposure, evidence, sample), support=support)), found.left_out)
        for name, exposure, support in zip(once, found.exposures, found.support, strict=True)
    }
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
    question = replace(question, examination=curve.theta)
    columns = _columns([policy])
    read = read_log(log, question, columns if _by_context(question) else ())
    [side], question, *said = _answering([policy], question, read.whole, columns)
    policy = _policy(side)
    read = read.of_known_queries(_policies([policy], question))
    first = gather(read, curve.theta, question)
    known = first.propensities
    sample = sample_of(read.whole, question, known.kind)
    [found] = _valued([policy], first, question, sample)
    value = _saying(found, *said, read.left_out)
    logger: TwoStagePolicy | FittedLogger | None = known.logger
    if known.logger is not None and known.fitted_lists is not None:
        logger = FittedLogger(known.logger, known.fitted_lists)
    again = replace(question, propensity=known.kind, logging_policy=logger)

    def under(theta: Floats) -> float:
        [found] = _valued([policy], gather(read, theta, again), again, sample)
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


def _policy(side: Shown) -> TwoStagePolicy:
    return side.policy if isinstance(side, MostLikely) else side


def _columns(sides: Sequence[Shown]) -> tuple[str, ...]:
    """The columns of a context that a policy knows."""
    return tuple(dict.fromkeys(name for side in sides for name in _policy(side).context_columns))


def _by_context(asked: Question) -> bool:
    """Whether a log is read by contexts; what is given beside it is by queries alone."""
    return asked.other_log is None and asked.reward is None and asked.reward_column is None


def _answering(
    sides: list[Shown], asked: Question, log: Feedback, columns: Sequence[str]
) -> tuple[list[Shown], Question, str | None, str | None]:
    """The sides, and the policy that drew the log, with an answer for every query of it, in its context where the log has them.

    A query that a side does not know is answered as the average query, as `serve` does; where one has no such answer, it is
    left out later. And how many impressions that is, and which columns of a context the log does not have, in words."""
    contexts = Contexts.within(log.vocabulary)
    absent = [
        c for c in columns if contexts is None or c not in contexts.table or contexts.table[c].drop_nulls().is_empty()
    ]
    ids = log.vocabulary.query_ids if contexts is None else contexts.vocabulary.query_ids
    times = log.impressions if contexts is None else sums_by(contexts.base, log.impressions, len(ids))
    found, unknown = _with_strangers(sides, ids, times)
    if contexts is not None:
        inside = {id(one): _inside(one, contexts, log.vocabulary) for one in map(_policy, found)}
        found = [_as(side, inside[id(_policy(side))]) for side in found]
        logger = asked.logging_policy
        if isinstance(logger, FittedLogger):
            asked = replace(
                asked, logging_policy=replace(logger, policy=_inside(logger.policy, contexts, log.vocabulary))
            )
        elif logger is not None:
            asked = replace(asked, logging_policy=_inside(logger, contexts, log.vocabulary))
    number = float(times[unknown].sum())
    words = f"{number:,.0f} of {log.N:,.0f} impressions are of queries that a policy does not know: valued as the average query"
    why = "is not in the log" if _by_context(asked) else "is not used with a reward, a reward model or another log"
    average = f"valued in the average context: {', '.join(absent)} {why}" if absent else None
    return found, asked, words if number else None, average


def _with_strangers(sides: list[Shown], ids: pl.Series, times: Floats) -> tuple[list[Shown], NDArray[np.bool_]]:
    """The sides with an answer for all queries that came, and which of these one did not know; as they are, and none, where one
    has no such answer.  Shapes: ids, times [Q] -> [Q]."""
    found: list[Shown] = []
    unknown = np.zeros(len(ids), np.bool_)
    for side in sides:
        policy = _policy(side)
        new = (times > 0) & (positions_of(policy.vocabulary.query_ids, ids, "query", missing="mark") < 0)
        if new.any():
            try:
                side = _as(side, policy.with_queries(plain_ids(ids).filter(new)))
            except PolicyError:
                return sides, np.zeros(len(ids), np.bool_)
        unknown |= new
        found.append(side)
    return found, unknown


def _as(side: Shown, policy: TwoStagePolicy) -> Shown:
    """Another policy, shown as a side is."""
    return MostLikely(policy) if isinstance(side, MostLikely) else policy


def _inside(policy: TwoStagePolicy, contexts: Contexts, ids: Vocabulary) -> TwoStagePolicy:
    """A policy for the queries in context of a log whose query it knows; as it is if it is one for them already."""
    if same_ids(policy.vocabulary, ids):
        return policy
    place = positions_of(policy.vocabulary.query_ids, contexts.vocabulary.query_ids, "query", missing="mark")
    base = place[contexts.base]
    known = base >= 0
    return policy.in_contexts(base[known], contexts.table.filter(known), ids.query_ids.filter(known))


def _policies(sides: Sequence[Shown], asked: Question) -> list[TwoStagePolicy]:
    """All that must know a query: the sides, and the logging policy."""
    logger = asked.logging_policy
    drew = logger.policy if isinstance(logger, FittedLogger) else logger
    return [*map(_policy, sides), *([] if drew is None else [drew])]


def _saying(value: Value, *more: str | None) -> Value:
    """The value with more to know."""
    return replace(value, reasons=(*value.reasons, *(words for words in more if words is not None)))


def _valued(
    sides: Sequence[Shown], evidence: LogEvidence, asked: Question, sample: Sample, progress: Tell | None = None
) -> list[Value]:
    """Every policy with its estimate, its diagnostics and its verdict. All see the same races."""
    seed = derive(asked.seed, "exposure")
    seen = fingerprint([evidence.log])
    found, drawn = [], dict[int, Exposure]()
    for number, side in enumerate(sides):
        exposure = exposure_on(
            side,
            evidence.log,
            evidence.theta,
            evidence.reward,
            samples=asked.samples,
            seed=seed,
            drawn=drawn.get(id(_policy(side))) if isinstance(side, MostLikely) else None,
            progress=progress and _onwards(progress, number, len(sides)),
            engine=asked.engine,
        )
        if not isinstance(side, MostLikely):
            drawn[id(side)] = exposure
        value = judged(exposure, evidence, sample, _correction(side, exposure, evidence, asked))
        if _policy(side).trained_on == seen:
            value = replace(value, verdict=worst(value.verdict, Verdict.CARE), reasons=(SEEN, *value.reasons))
        found.append(value)
    return found


def _onwards(progress: Tell, number: int, sides: int) -> Tell:
    """Counts on from the policies before this one."""
    return lambda done, queries: progress(number * queries + done, sides * queries)


@dataclass(frozen=True)
class Correction:
    """Fitted propensities, corrected for one policy by groups of pairs, and by coarser groups; the clip they ask for; and how
    much more than that clicked pairs were exposed.  Shapes: rho_0, coarser [P]."""

    rho_0: Floats
    coarser: Floats
    clip: float
    excess: float


def _correction(side: Shown, exposure: Exposure, evidence: LogEvidence, asked: Question) -> Correction | None:
    """Of fitted propensities, for this policy; None where they are not fitted."""
    if evidence.expected is None:
        return None
    log, theta, used = evidence.log, evidence.theta, evidence.propensities
    races = races_for(side, asked.samples, int((log.impressions > 0).sum()))
    seed = derive(asked.seed, "exposure of drawn")
    rho = exposure_on(side, evidence.expected.pairs, theta, samples=races, seed=seed, engine=asked.engine).rho
    fine, coarse = (
        calibrated(used.unclipped, exposure.rho, log, theta, evidence.expected, rho, coarser=n) for n in (1, 2)
    )
    more, clip = 1.0, used.clip
    if used.kind == "fitted" and asked.other_log is not None:
        more = excess(estimators.safe_ratio(exposure.rho, fine, log.shown), fine, log, asked.other_log, theta)
    if used.kind == "fitted":  # what was clicked against all odds says that a fit is wrong there
        clip = max(clip, propensities.clip_minimum("quantile", fine[log.clicks > 0], log.N))
    return Correction(fine, np.maximum(coarse, clip), clip, more)


def judged(exposure: Exposure, evidence: LogEvidence, sample: Sample, correction: Correction | None = None) -> Value:
    """One policy by its exposures: the estimate, what it rests on and what is said of it."""
    log, used = evidence.log, evidence.propensities
    if correction is not None:
        used = replace(used, unclipped=correction.rho_0, clip=correction.clip)
    diagnostics = diagnose(log, used.rho_0, used.unclipped < used.clip, exposure, evidence.theta)
    verdict, reasons = judge(
        diagnostics,
        fitted_lists=used.fitted_lists,
        against_curve=evidence.against_curve,
        over_impressions=few_queries(log),
    )
    off = (0.0, 0.0)
    if correction is not None:  # of clicks
        used = replace(used, unclipped=correction.excess * used.unclipped)
    ips = estimators.ips(exposure.rho, used.rho_0, log)
    if correction is not None:
        coarse = estimators.ips(exposure.rho, correction.excess * correction.coarser, log)
        off = misfit(ips.value, coarse.value, used.fitted_lists)
    found = ESTIMATORS[evidence.estimator](exposure, replace(evidence, propensities=used))
    cases = identified(ips, exposure, log, value=found.value)
    if verdict != Verdict.TRUST and diagnostics.unsupported > CARE_MISSING:
        reasons = (*reasons, cases.words)
    weights = estimators.safe_ratio(exposure.rho, used.rho_0, log.shown)
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
        ceiling_terms=ceiling_terms(exposure.rho, used.unclipped, log, len(evidence.theta)),
        weights=weights,
        old_weights=estimators.safe_ratio(exposure.rho, used.unclipped, log.shown),
        exposure_variance=exposure_variance(weights, exposure.error, exposure.rho, log),
        misfit=off,
    )
