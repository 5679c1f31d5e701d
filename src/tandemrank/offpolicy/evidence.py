"""What a log says, whatever the policy that it is asked about: its curve, its propensities, its estimator.

read_log(log, question)           the log, read once: its sums and its first lists
gather(read, theta, question)     the evidence by an examination curve
ESTIMATORS                        the estimators by name, called with a policy's `Exposure` and the evidence
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.ids import positions_of
from tandemrank._base.random import derive
from tandemrank.beliefs.model import RewardModel
from tandemrank.clicks.models import examination_curve
from tandemrank.logs import reading
from tandemrank.logs.contexts import Contexts
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Impressions
from tandemrank.logs.pairs import Contradiction, contradiction
from tandemrank.logs.sources import Source
from tandemrank.offpolicy import estimators, propensities
from tandemrank.offpolicy.calibration import Expected, expected_by, expected_of
from tandemrank.offpolicy.estimators import Estimate, Estimator, Exposure, of_queries
from tandemrank.offpolicy.logger import LISTS, lists_of
from tandemrank.offpolicy.propensities import SAMPLES, FittedLogger, Resolved, resolve, row_propensities
from tandemrank.offpolicy.question import Question
from tandemrank.policies.two_stage import TwoStagePolicy

Floats = NDArray[np.float64]
MOST_UNKNOWN = 0.5  # of the impressions, by queries that a policy does not know


@dataclass(frozen=True)
class ReadLog:
    """A log: its sums, and its first lists where it has lists.

    `left_out`: how many impressions are left out since a policy does not know their query, in words.
    """

    whole: Feedback
    lists: Impressions | None
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
            lists,
            f"{gone:,.0f} of {log.N:,.0f} impressions are left out: a policy does not know their query (first: {first!r})",
        )


@dataclass(frozen=True)
class LogEvidence:
    """What a log says by a curve: its propensities, and the estimator that is used, with its reward model.

    `against_curve`: what the log says against the curve. `expected`: what a fitted logger
    would have shown, to correct its propensities by.
    Shapes: theta [K]; rho_0 [P].
    """

    log: Feedback
    theta: Floats
    propensities: Resolved
    estimator: Estimator
    reward: RewardModel | None = None
    against_curve: Contradiction | None = None
    expected: Expected | None = None

    @property
    def rho_0(self) -> Floats:
        """Of every row, clipped."""
        return self.propensities.rho_0


# --- the estimators by name -------------------------------------------------------------------------------------------


def _ips(exposure: Exposure, evidence: LogEvidence) -> Estimate:
    return estimators.ips(exposure.rho, evidence.rho_0, evidence.log)


def _beta_ips(exposure: Exposure, evidence: LogEvidence) -> Estimate:
    rho_0, theta = evidence.rho_0, evidence.theta
    return estimators.beta_ips(exposure.rho, rho_0, evidence.log, theta=theta, total=exposure.total)


def _doubly_robust(exposure: Exposure, evidence: LogEvidence) -> Estimate:
    log, theta = evidence.log, evidence.theta
    assert evidence.reward is not None  # a question without one is refused
    r_hat = evidence.reward.at(log.query, log.item).mean
    direct = exposure.direct
    return estimators.doubly_robust(exposure.rho, evidence.rho_0, log, theta=theta, r_hat=r_hat, direct=direct)


ESTIMATORS: dict[Estimator, Callable[[Exposure, LogEvidence], Estimate]] = {
    "doubly_robust": _doubly_robust,
    "ips": _ips,
    "beta_ips": _beta_ips,
}

# --- from the log to the evidence -------------------------------------------------------------------------------------


def read_log(log: Source | Feedback, asked: Question, context: Sequence[str] = ()) -> ReadLog:
    """The log, read once: its sums and its first lists; by queries in their context, if policies know its columns."""
    if isinstance(log, Feedback):
        return ReadLog(log, None)
    K = None if isinstance(asked.examination, str) else len(np.asarray(asked.examination))
    lists = LISTS if _may_fit(asked) else 0
    found = reading.read_parts(log, lists=lists, K=K, engine=asked.engine, context=context)
    [whole] = found.train
    return ReadLog(whole, found.first)


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


def gather(read: ReadLog, theta: Floats, asked: Question) -> LogEvidence:
    """What the log says by a curve.  Shapes: theta [K]."""
    shown, contexts = read.lists, Contexts.within(read.whole.vocabulary)
    if shown is not None and contexts is not None:
        shown = contexts.of_lists(shown, read.whole.vocabulary)
    found = resolve(
        read.whole,
        theta,
        kind=asked.propensity,
        logging_policy=asked.logging_policy,
        lists=None if shown is None else lambda: lists_of([shown]),
        samples=asked.samples if asked.samples > SAMPLES else None,
        seed=derive(asked.seed, "propensities"),
        beside=asked.other_log,
        engine=asked.engine,
    )
    estimator = estimator_for(asked, found)
    return LogEvidence(
        log=read.whole,
        theta=theta,
        propensities=found,
        estimator=estimator,
        reward=asked.reward if estimator == "doubly_robust" else None,
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
    if asked.reward is not None:
        return "doubly_robust"
    return "beta_ips" if found.kind in ("exact", "logged") else "ips"


def _expected(log: Feedback, theta: Floats, found: Resolved, asked: Question) -> Expected | None:
    """What a fitted logger would have shown, by as many races as those of the log; or by frequencies of other impressions."""
    if found.only_shown and found.kind == "frequency" and asked.other_log is not None:
        others = asked.other_log
        return expected_by(others, log, theta, propensities.frequency_propensity(others, theta))
    logger, seed = found.logger, derive(asked.seed, "drawn") % 2**32
    if found.kind != "fitted" or logger is None or not log.N:
        return None
    races = asked.samples if asked.samples > SAMPLES else propensities.races_for(int((log.impressions > 0).sum()))

    def fitted(pairs: Feedback) -> Floats:
        return row_propensities(pairs, theta, "fitted", logger, samples=races, seed=seed, engine=asked.engine)

    return expected_of(log, logger, theta, fitted, seed=seed)
