"""What a log says, whatever the policy that it is asked about: its curve, its propensities, its estimator.

read_log(log, question)           the log, read once: its sums and its first lists
gather(read, theta, question)     the evidence by an examination curve
ESTIMATORS                        the estimators by name, called with a policy's `Exposure` and the evidence
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.ids import positions_of
from tandemrank._base.random import derive
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.fitting import fit
from tandemrank.beliefs.model import RewardModel
from tandemrank.clicks.examination import Behaviour, behaviour
from tandemrank.clicks.models import CellCurve, examination_curve, theta_of
from tandemrank.errors import ConfigError
from tandemrank.logs import reading
from tandemrank.logs.contexts import Contexts
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Impressions
from tandemrank.logs.pairs import TESTED, contradiction
from tandemrank.logs.sources import Source
from tandemrank.offpolicy import estimators, propensities
from tandemrank.offpolicy.calibration import Expected, expected_by, expected_of
from tandemrank.offpolicy.estimators import Completed, Estimate, Estimator, Exposure, of_queries
from tandemrank.offpolicy.logger import LISTS, FittedLogger, lists_of
from tandemrank.offpolicy.propensities import SAMPLES, Resolved, resolve, row_propensities
from tandemrank.offpolicy.question import Question
from tandemrank.offpolicy.verdicts import cells_words, curve_words, stopping_words
from tandemrank.policies.two_stage import TwoStagePolicy

Floats = NDArray[np.float64]
COUNTED = "nobody knows them: what a query was shown counts by its own clicks, what it was not as it is believed"
MOST_UNKNOWN = 0.5  # of the impressions, by queries that the policy that drew the log does not know


@dataclass(frozen=True)
class ReadLog:
    """A log: its sums, and its first lists where it has lists.

    `left_out`: how many impressions are left out since the policy that drew the log does not know their query, in words.
    `behaviour`: how its lists are read; `cells`: examination by more than the rank, as it was asked for or as that asks for.
    `relevance`: beliefs that were fitted before, and whether they know the clicks of this log.
    """

    whole: Feedback
    lists: Impressions | None
    left_out: str | None = None
    behaviour: Behaviour | None = None
    cells: CellCurve | None = None
    relevance: tuple[RewardModel, bool] | None = None

    def of_known_queries(self, logger: TwoStagePolicy | None) -> "ReadLog":
        """Without the queries that the policy which drew the log does not know, if these are few; where they are many it is
        refused later."""
        if logger is None:
            return self
        log = self.whole
        known = positions_of(logger.vocabulary.query_ids, log.vocabulary.query_ids, "query", missing="mark") >= 0
        gone = float(log.impressions[~known].sum())
        if not 0 < gone <= MOST_UNKNOWN * log.N:
            return self
        lists = self.lists
        if lists is not None:
            there = known[lists.query]
            lists = Impressions(lists.query[there], lists.items[there], lists.clicks[there])
        first = log.vocabulary.query_ids[int(np.argmax(~known & (log.impressions > 0)))]
        said = (
            f"{gone:,.0f} of {log.N:,.0f} impressions are left out: the policy that drew the log does not know their query "
            f"(first: {first!r})"
        )
        return replace(self, whole=of_queries(log, known), lists=lists, left_out=said)


@dataclass(frozen=True)
class LogEvidence:
    """What a log says by a curve: its propensities, and the estimator that is used, with its reward model.

    `against_model`: what the log says against the curve, or against clicks that depend on it alone, in words; `of_cells`: what
    it says for examination by more than the rank, which is then used, `offset` what is clicked beside it. `expected`: what a
    fitted logger would have shown, to correct its propensities by. `relevance`: a model of it, where examination depends on the
    clicks above, or where what was never shown counts as it is believed; whether it `knows_clicks` of this log.
    Shapes: theta [K] or [K, states]; rho_0 [P].
    """

    log: Feedback
    theta: Floats
    propensities: Resolved
    estimator: Estimator
    reward: RewardModel | None = None
    against_model: str | None = None
    of_cells: str | None = None
    offset: Floats | None = None
    expected: Expected | None = None
    relevance: RewardModel | None = None
    knows_clicks: bool = False
    behaviour: Behaviour | None = None

    @property
    def rho_0(self) -> Floats:
        """Of every row, clipped."""
        return self.propensities.rho_0

    @property
    def reads_on(self) -> bool:
        """Whether examination depends on the clicks above."""
        return self.theta.ndim == 2 and self.log.by is not None and self.log.by.is_clicks


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


def completed_by(
    exposure: Exposure, evidence: LogEvidence, kept: NDArray[np.bool_], by_chance: float = 0.0
) -> Completed:
    """What was shown by its clicks, what was not by the beliefs; of queries that keep production's list nothing is missing."""
    log, model = evidence.log, evidence.relevance
    assert model is not None
    return estimators.completed(
        exposure.rho,
        evidence.rho_0,
        log,
        theta=evidence.theta,
        r_hat=np.where(kept, 0.0, model.at(log.query, log.item).mean),
        direct=exposure.direct,
        unseen=model.unseen(log.query, log.item) if evidence.knows_clicks else None,
        by_chance=by_chance,
    )


ESTIMATORS: dict[Estimator, Callable[[Exposure, LogEvidence], Estimate]] = {
    "completed": lambda exposure, evidence: (
        completed_by(exposure, evidence, np.zeros(len(exposure.rho), np.bool_)).estimate
    ),
    "doubly_robust": _doubly_robust,
    "ips": _ips,
    "beta_ips": _beta_ips,
}

# --- from the log to the evidence -------------------------------------------------------------------------------------


def read_log(log: Source | Feedback, asked: Question, context: Sequence[str] = ()) -> ReadLog:
    """The log, read once: its sums and its first lists; by queries in their context, if policies know its columns; read again
    by the last click above where readers stop after one."""
    given = asked.examination if isinstance(asked.examination, CellCurve) else None
    by = None if given is None else given.states
    if isinstance(log, Feedback):
        if by != log.by:
            raise ConfigError(
                f"expected sums of a log by {by or 'the rank alone'}, as the examination is; got {log.by}. Give the log itself."
            )
        return ReadLog(log, None, cells=given)
    K = None if isinstance(asked.examination, str) else len(theta_of(asked.examination))
    lists = LISTS if _may_fit(asked) else TESTED
    found = reading.read_parts(log, lists=lists, K=K, engine=asked.engine, by=by, context=context)
    [whole] = found.train
    if given is not None:
        return ReadLog(whole, found.first, cells=given)
    read = behaviour(log, found, engine=asked.engine, context=context)
    if read.cells is not None and read.cells.states is not None:
        states, ids = read.cells.states, whole.vocabulary
        whole = reading.read(log, vocabulary=ids, K=K, engine=asked.engine, by=states, context=context)
    return ReadLog(whole, found.first, behaviour=read, cells=read.cells)


def _may_fit(asked: Question) -> bool:
    """Whether a logging policy may have to be fitted to the lists of the log."""
    if isinstance(asked.logging_policy, FittedLogger):
        return False
    return asked.propensity == "fitted" or (asked.propensity == "auto" and asked.logging_policy is None)


def curve_of(read: ReadLog, policies: Sequence[TwoStagePolicy], asked: Question) -> Floats:
    """The examination; a curve with a name is as long as the longest list, of the log or of a policy.

    Shapes: -> [K], or [K, states].
    """
    if read.cells is not None:
        return read.cells.array
    if isinstance(asked.examination, str):
        longest = int(read.whole.rank.max(initial=0)) + 1
        return examination_curve(max(longest, *(policy.K for policy in policies), 1), asked.examination)
    return theta_of(asked.examination)


def ways(asked: Question, read: ReadLog) -> tuple[Question, ...]:
    """How a log is asked. Where propensities would have to be fitted: by a fit; and by what was shown, which needs none,
    completed by beliefs, where the first says too little, or where there are no lists to fit a policy to."""
    log, logger = read.whole, asked.logging_policy
    if asked.estimator == "completed":
        return (replace(asked, propensity="frequency"),)
    kind, _ = propensities.choose_propensity(asked.propensity, log, logger)
    if asked.propensity != "auto" or asked.estimator != "auto" or kind != "fitted":
        return (asked,)
    shown = replace(asked, propensity="frequency", estimator="completed", logging_policy=None)
    by_fit = replace(asked, reward=None)
    return (shown,) if read.lists is None and logger is None else (by_fit, shown)


def gather(read: ReadLog, theta: Floats, asked: Question) -> LogEvidence:
    """What the log says by a curve.  Shapes: theta [K] or [K, states]."""
    shown, log, contexts = read.lists, read.whole, Contexts.within(read.whole.vocabulary)
    if shown is not None and contexts is not None:
        shown = contexts.of_lists(shown, log.vocabulary)
    after_clicks = theta.ndim == 2 and log.by is not None and log.by.is_clicks
    offset = np.array(read.cells.offset) if read.cells is not None and read.cells.offset else None
    completes = asked.estimator == "completed" and not propensities.knows_only_shown("frequency", log) and log.N > 0
    relevance, knows_clicks = read.relevance or (None, False)
    if relevance is None and (after_clicks or completes):
        relevance, knows_clicks = _relevance(log.less(offset), theta, asked)
    found = resolve(
        log,
        theta,
        kind=asked.propensity,
        logging_policy=asked.logging_policy,
        lists=None if shown is None else lambda: lists_of([shown]),
        samples=asked.samples if asked.samples > SAMPLES else None,
        seed=derive(asked.seed, "propensities"),
        beside=asked.other_log,
        relevance=relevance,
        engine=asked.engine,
    )
    estimator = estimator_for(asked, found)
    found = replace(found, reason=COUNTED) if estimator == "completed" else found
    return LogEvidence(
        log=log if found.kind == "logged" else log.without_propensities(),
        theta=theta,
        propensities=found,
        estimator=estimator,
        reward=asked.reward if estimator == "doubly_robust" else None,
        against_model=_against(read, theta),
        of_cells=None if read.behaviour is None or read.cells is None else cells_words(read.behaviour),
        offset=offset,
        expected=_expected(log, theta, found, asked),
        relevance=relevance,
        knows_clicks=knows_clicks,
        behaviour=read.behaviour,
    )


def _against(read: ReadLog, theta: Floats) -> str | None:
    """What the log says against the curve, or against clicks that depend on it alone."""
    if read.cells is not None:
        return None
    found = None if read.behaviour is None else read.behaviour.dependence
    if found is not None and found.stops:
        return stopping_words(found)
    wrong = None if read.whole.weighted else contradiction(read.whole, theta)
    return None if wrong is None else curve_words(wrong)


def _relevance(log: Feedback, theta: Floats, asked: Question) -> tuple[RewardModel, bool]:
    """The relevance of items, by the beliefs that are given, of other impressions, or of these, whose clicks it then knows."""
    if asked.reward is not None:
        return asked.reward, False
    others = asked.other_log
    own = others is None or others.by != log.by
    return fit(Counts.of([log if others is None or own else others], theta), seed=asked.seed % 2**32), own


def estimator_for(asked: Question, found: Resolved) -> Estimator:
    """The estimator that is used. A reward model must not promise what lists that hardly vary cannot know: what was never
    shown is worth nothing there."""
    if found.only_shown and asked.estimator in ("auto", "doubly_robust", "completed"):
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
    logger, curves, seed = found.logger, found.curves, derive(asked.seed, "drawn") % 2**32
    if found.kind != "fitted" or logger is None or curves is None or not log.N:
        return None
    races = asked.samples if asked.samples > SAMPLES else propensities.races_for(int((log.impressions > 0).sum()))

    def fitted(pairs: Feedback) -> Floats:
        return row_propensities(
            pairs, theta, "fitted", logger, curves=curves, samples=races, seed=seed, engine=asked.engine
        )

    return expected_of(log, logger, curves, fitted, seed=seed)
