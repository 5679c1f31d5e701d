"""What a log says, whatever the policy that it is asked about: its curve, its propensities, its estimator, its reward models.

read_log(log, question)           the log, read once: its sums, parts for cross-fitting, its first lists
gather(read, theta, question)     the evidence by an examination curve
ESTIMATORS                        the estimators by name, called with a policy's `Exposure` and the evidence
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.ids import positions_of
from tandemrank._base.random import derive
from tandemrank.beliefs import item_rate
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.fitting import fit
from tandemrank.beliefs.model import RewardModel
from tandemrank.beliefs.vectors import vectors_of
from tandemrank.clicks.models import examination_curve
from tandemrank.errors import ConfigError
from tandemrank.logs import reading, sums
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Impressions
from tandemrank.logs.pairs import Contradiction, contradiction
from tandemrank.logs.sources import Source
from tandemrank.offpolicy import estimators, propensities
from tandemrank.offpolicy.calibration import Expected, expected_by, expected_of
from tandemrank.offpolicy.estimators import Estimate, Estimator, Exposure, of_queries, query_folds, rows_of
from tandemrank.offpolicy.logger import LISTS, lists_of
from tandemrank.offpolicy.propensities import SAMPLES, FittedLogger, Resolved, resolve, row_propensities
from tandemrank.offpolicy.question import Question
from tandemrank.policies.two_stage import TwoStagePolicy

Floats = NDArray[np.float64]
MOST_UNKNOWN = 0.5  # of the impressions, by queries that a policy does not know
Models = tuple[tuple[Feedback, RewardModel], ...]  # parts of a log, each with a reward model of others


@dataclass(frozen=True)
class ReadLog:
    """A log: all of it, parts of it with what a reward model may learn from, never the part itself, and its first lists.

    `by_query`: the parts have no query in common, so a model knows of the queries it judges nothing but their items.
    `left_out`: how many impressions are left out since a policy does not know their query, in words.
    """

    whole: Feedback
    folds: list[tuple[Feedback, Feedback]]
    lists: Impressions | None
    by_query: bool = False
    left_out: str | None = None

    def of_known_queries(self, policies: Sequence[TwoStagePolicy]) -> "ReadLog":
        """Without the queries that a policy does not know, if these are few; where they are many it is refused later."""
        log = self.whole
        known = np.ones(log.Q, dtype=np.bool_)
        for policy in policies:
            known &= positions_of(policy.vocabulary.query_ids, log.vocabulary.query_ids, "query", missing="mark") >= 0
        gone = float(log.impressions[~known].sum())
        if not 0 < gone <= MOST_UNKNOWN * log.N:
            return self
        lists = self.lists
        if lists is not None:
            there = known[lists.query]
            lists = Impressions(lists.query[there], lists.items[there], lists.clicks[there])
        first = log.vocabulary.query_ids[int(np.argmax(~known & (log.impressions > 0)))]
        return ReadLog(
            of_queries(log, known),
            [(of_queries(part, known), of_queries(rest, known)) for part, rest in self.folds],
            lists,
            self.by_query,
            f"{gone:,.0f} of {log.N:,.0f} impressions are left out: a policy does not know their query (first: {first!r})",
        )


@dataclass(frozen=True)
class LogEvidence:
    """What a log says by a curve: its propensities, and parts of it, each with a reward model of others.

    `estimator`: the one that is used. `against_curve`: what the log says against the curve. `expected`: what a fitted logger
    would have shown, to correct its propensities by.
    Shapes: theta [K]; rho_0 [P].
    """

    log: Feedback
    theta: Floats
    propensities: Resolved
    estimator: Estimator
    parts: Models = ()
    against_curve: Contradiction | None = None
    expected: Expected | None = None

    @property
    def rho_0(self) -> Floats:
        """Of every row, clipped."""
        return self.propensities.rho_0[0]


# --- the estimators by name -------------------------------------------------------------------------------------------


def _ips(exposure: Exposure, evidence: LogEvidence) -> Estimate:
    return estimators.ips(exposure.rho, evidence.rho_0, evidence.log)


def _self_normalised(exposure: Exposure, evidence: LogEvidence) -> Estimate:
    return estimators.self_normalised(exposure.rho, evidence.rho_0, evidence.log, theta=evidence.theta)


def _beta_ips(exposure: Exposure, evidence: LogEvidence) -> Estimate:
    rho_0, theta = evidence.rho_0, evidence.theta
    return estimators.beta_ips(exposure.rho, rho_0, evidence.log, theta=theta, total=exposure.total)


def _doubly_robust(exposure: Exposure, evidence: LogEvidence) -> Estimate:
    parts = []
    for (part, reward), direct in zip(evidence.parts, exposure.direct, strict=True):
        at = rows_of(part, evidence.log)
        r_hat = reward.at(part.query, part.item).mean
        rho, rho_0 = exposure.rho[at], evidence.rho_0[at]
        parts.append(estimators.doubly_robust(rho, rho_0, part, theta=evidence.theta, r_hat=r_hat, direct=direct))
    return estimators.pooled(parts)


ESTIMATORS: dict[Estimator, Callable[[Exposure, LogEvidence], Estimate]] = {
    "doubly_robust": _doubly_robust,
    "ips": _ips,
    "self_normalised": _self_normalised,
    "beta_ips": _beta_ips,
}

# --- from the log to the evidence -------------------------------------------------------------------------------------


def read_log(log: Source | Feedback, asked: Question) -> ReadLog:
    """The log, read once: its sums, its parts, each with what may teach the model that judges it, its first lists."""
    if asked.estimator not in ("auto", *ESTIMATORS):
        raise ConfigError(f"estimator must be one of {', '.join(['auto', *ESTIMATORS])}; got {asked.estimator!r}.")
    seed, lists = derive(asked.seed, "folds"), None
    if isinstance(log, Feedback):
        whole, folds = log, query_folds(log, seed)
    else:
        # Folds of impressions: a model of the one half knows the pairs of the other.
        K = None if isinstance(asked.examination, str) else len(np.asarray(asked.examination))
        found = reading.read_parts(
            log, (0.5,), lists=LISTS if _may_fit(asked) else 0, seed=seed, K=K, engine=asked.engine
        )
        (one,), (other,), lists = found.train, found.held_out, found.first
        whole, folds = sums.merge([one, other]), [(one, other), (other, one)]
    learnt = whole if isinstance(asked.reward, RewardModel) else asked.reward_log
    by_query = isinstance(log, Feedback) and learnt is None
    return ReadLog(whole, folds if learnt is None else [(whole, learnt)], lists, by_query)


def _may_fit(asked: Question) -> bool:
    """Whether a logging policy may have to be fitted to the lists of the log."""
    if isinstance(asked.logging_policy, FittedLogger):
        return False
    return asked.propensity == "fitted" or (asked.propensity == "auto" and asked.logging_policy is None)


def curve_of(log: Feedback, policies: Sequence[TwoStagePolicy], asked: Question) -> Floats:
    """The examination curve; one with a name is as long as the longest list, of the log or of a policy.  Shapes: -> [K]."""
    if isinstance(asked.examination, str):
        longest = int(log.rank.max(initial=0)) + 1
        return examination_curve(max(longest, *(policy.K for policy in policies), 1), asked.examination)
    return np.asarray(asked.examination, np.float64)


def gather(read: ReadLog, theta: Floats, asked: Question, models: Models | None = None) -> LogEvidence:
    """What the log says by a curve; `models` are reward models that are there already: any will do for any curve.

    Shapes: theta [K].
    """
    shown = read.lists
    found = resolve(
        [read.whole],
        theta,
        kind=asked.propensity,
        logging_policy=asked.logging_policy,
        lists=None if shown is None else lambda: lists_of([shown]),
        samples=asked.samples if asked.samples > SAMPLES else None,
        seed=derive(asked.seed, "propensities"),
        beside=asked.reward_log,
    )
    estimator = estimator_for(asked, found)
    if models is None:
        folds = read.folds if estimator == "doubly_robust" else []
        models = tuple((part, _reward(rest, theta, asked, found.logger, read.by_query)) for part, rest in folds)
    return LogEvidence(
        log=read.whole,
        theta=theta,
        propensities=found,
        estimator=estimator,
        parts=models,
        against_curve=None if read.whole.weighted else contradiction(read.whole, theta),
        expected=_expected(read.whole, theta, found, asked),
    )


def estimator_for(asked: Question, found: Resolved) -> Estimator:
    """The estimator that is used. A reward model must not promise what lists that hardly vary cannot know: what was never
    shown is worth nothing there."""
    if found.only_shown and asked.estimator in ("auto", "doubly_robust"):
        return "ips"
    if asked.estimator != "auto":
        return asked.estimator
    if found.kind == "frequency" or asked.reward != "item-rate" or asked.reward_log is not None:
        return "doubly_robust"
    # A reward model promises too much of what the logger hardly showed, and a fit cannot take it all back.
    return "ips" if found.kind == "fitted" else "beta_ips"


def _expected(log: Feedback, theta: Floats, found: Resolved, asked: Question) -> Expected | None:
    """What a fitted logger would have shown, by as many races as those of the log; or by frequencies of other impressions."""
    if found.only_shown and found.kind == "frequency" and asked.reward_log is not None:
        others = asked.reward_log
        return expected_by(others, log, theta, propensities.frequency_propensity(others, theta))
    logger, seed = found.logger, derive(asked.seed, "drawn") % 2**32
    if found.kind != "fitted" or logger is None or not log.N:
        return None
    races = asked.samples if asked.samples > SAMPLES else propensities.races_for(int((log.impressions > 0).sum()))

    def fitted(pairs: Feedback) -> Floats:
        return row_propensities(pairs, theta, "fitted", logger, samples=races, seed=seed)

    return expected_of(log, logger, theta, fitted, seed=seed)


def _reward(
    log: Feedback, theta: Floats, asked: Question, logger: TwoStagePolicy | None, by_query: bool
) -> RewardModel:
    """The reward model of a part of the log; of beliefs the logger's vectors, given or fitted, are the prior, as in training.

    Of queries that they have not seen beliefs know no more than rates do, so they do there.
    """
    if isinstance(asked.reward, RewardModel):
        return asked.reward
    if asked.reward == "item-rate" or by_query or not log.clicks.any():
        return item_rate.reward_model(log, theta)
    given = asked.logging_policy
    drew = vectors_of(logger or (given.policy if isinstance(given, FittedLogger) else given), log.vocabulary)
    return fit(Counts.of([log], theta), production=drew, seed=derive(asked.seed, "reward") % 2**32)
