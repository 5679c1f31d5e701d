"""What a policy would be worth over sessions, from the log of another, and down to which step that log can tell.

estimate(policy, log, horizon=, discount=)     clicks per session: value, interval, lower bound, support by step, a verdict
"""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.arguments import checked
from tandemrank._base.ids import Vocabulary, plain_ids, positions_of
from tandemrank._base.random import derive
from tandemrank._base.results import Result, within
from tandemrank._base.sparse import sums_by
from tandemrank.errors import ConfigError, PolicyError
from tandemrank.logs.feedback import Feedback, exposure, fingerprint
from tandemrank.logs.sessions import SOME_CLICKS
from tandemrank.logs.sources import Source
from tandemrank.offpolicy.bounds import Terms
from tandemrank.offpolicy.estimators import Exposure, by_query, safe_ratio
from tandemrank.offpolicy.evidence import ReadLog, curve_of, gather
from tandemrank.offpolicy.exposure import Races, exposure_on
from tandemrank.offpolicy.logger import LISTS
from tandemrank.offpolicy.propensities import Resolved
from tandemrank.offpolicy.question import Question
from tandemrank.offpolicy.uncertainty import normal_interval
from tandemrank.offpolicy.verdicts import CARE_MISSING, CARE_SAMPLE, REFUSE_MISSING, REFUSE_SAMPLE, SEEN, Verdict, worst
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.sessions import estimators
from tandemrank.sessions.estimators import Baseline, SessionTable, past_weights
from tandemrank.sessions.reading import SessionLog, State, read

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
SessionEstimator = Literal["doubly_robust", "ips", "self_normalised"]
HORIZON = 10  # steps, or the longest session if that is shorter
MOST_STEPS = 1000


@dataclass(frozen=True, kw_only=True)
class StepSupport:
    """What the log says of one step, from 1: `sessions` that came so far, of which the weights leave `effective` ones.

    `balance`: the exposure that the weights find in the lists over the policy's: less than 1 by what the log never shows.
    """

    step: int
    sessions: int
    effective: float
    balance: float

    @property
    def verdict(self) -> Verdict:
        """May what this step adds be believed?"""
        missing = abs(1 - self.balance)
        if self.effective < REFUSE_SAMPLE or missing > REFUSE_MISSING:
            return Verdict.REFUSE
        return Verdict.CARE if self.effective < CARE_SAMPLE or missing > CARE_MISSING else Verdict.TRUST

    @property
    def words(self) -> str:
        """What is wrong with it."""
        if abs(1 - self.balance) > CARE_MISSING and self.effective >= REFUSE_SAMPLE:
            return f"at step {self.step} the log has {self.balance:.0%} of the exposure that the policy gives"
        return f"at step {self.step} the weights leave {self.effective:.0f} effective of {self.sessions:,} sessions"


@dataclass(frozen=True, kw_only=True, repr=False)
class SessionValue(Result):
    """Clicks per session, of the first `horizon` steps, a step later counting `discount` times as much.

    `production`: those of the log. `supported`: down to which step the log supports the policy. `asked_by`: whether the policy
    was asked by the state or by the query.
    """

    value: float
    standard_error: float
    lower_bound: float
    production: float
    horizon: int
    discount: float
    level: float
    sessions: int
    states: int
    supported: int
    verdict: Verdict
    reasons: tuple[str, ...]
    estimator: str
    asked_by: str
    propensity: str
    propensity_reason: str
    steps: tuple[StepSupport, ...]
    terms: Floats = field(repr=False, compare=False)

    @property
    def interval(self) -> tuple[float, float]:
        """Over sessions, normal."""
        low, high = normal_interval(self.value, self.standard_error, self.level)
        return max(low, 0.0), max(high, 0.0)

    def _lines(self) -> list[str]:
        return [
            f"{self.value:.3f} clicks per session {within(*self.interval)}, {self.level:.0%}; production {self.production:.3f}",
            f"at least {self.lower_bound:.3f}; {self.sessions:,} sessions of up to {self.horizon} steps",
            f"{self.verdict}: {'; '.join(self.reasons)}",
        ]

    def _rows(self) -> list[dict[str, Any]]:
        plain = {name: x for name, x in self.to_dict().items() if not isinstance(x, list | dict)}
        return [{"value": self.value, "low": self.interval[0], "high": self.interval[1]} | plain]

    def summary(self) -> dict[str, object]:
        """All but the arrays, as plain names and values."""
        found: dict[str, object] = {name: x for name, x in vars(self).items() if name not in ("terms", "steps")}
        found["interval"] = self.interval
        return found | {"steps": [asdict(step) for step in self.steps]}


@checked
def estimate(
    policy: TwoStagePolicy,
    log: Source | SessionLog,
    *,
    horizon: int | None = None,
    discount: float = 1.0,
    state: State | None = None,
    estimator: SessionEstimator = "doubly_robust",
    question: Question | None = None,
    **switches: Any,
) -> SessionValue:
    """What a policy would be worth over a session if it were live, in clicks, by the clicks of the past.

    `log`: as in `tr.estimate`, with the columns `session_id` and `step` or `timestamp`. `state`: columns, or a function of the
    steps (`sessions.reading`). `horizon`: steps of a session that count, by default 10. The policy is asked by the state where
    its queries are states, else by the query. Other keywords are those of a `Question`, as `propensity` and `examination`.
    """
    if estimator not in get_args(SessionEstimator):
        raise ConfigError(f"estimator must be one of {', '.join(get_args(SessionEstimator))}; got {estimator!r}.")
    question = Question.of(question, switches)
    for name in ("reward_column", "other_log", "independent", "engine"):
        if getattr(question, name) not in (None, "local"):
            raise ConfigError(f"{name} is for single lists, and cannot be combined with sessions. Leave it out.")
    check_horizon(horizon, discount)
    whole = log if isinstance(log, SessionLog) else read(log, state, K=_ranks(question))
    T = 1 if discount == 0 else min(horizon or HORIZON, int(whole.step.max()) + 1)
    found = gathered(policy, whole.until(T), question)
    value = _valued(found, estimator, T, discount, question)
    if policy.trained_on is not None and policy.trained_on == fingerprint([whole.feedback()]):
        return replace(value, verdict=worst(value.verdict, Verdict.CARE), reasons=(SEEN, *value.reasons))
    return value


def check_horizon(horizon: int | None, discount: float) -> None:
    """Refuses what is no number of steps, and what is no discount."""
    if horizon is not None and not 1 <= horizon <= MOST_STEPS:
        raise ConfigError(f"horizon: expected a number of steps from 1 to {MOST_STEPS}; got {horizon}.")
    if not 0 <= discount <= 1:
        raise ConfigError(f"discount: expected a number from 0 to 1; got {discount}.")


def _ranks(question: Question) -> int | None:
    return None if isinstance(question.examination, str) else len(np.asarray(question.examination))


# --- how a policy is asked: by the state, if its queries are states, else by the query, the same at every step -------------


@dataclass(frozen=True)
class Asked:
    """A log as one policy is asked about it.

    `by`: state or query_id. `policy` has an answer for all of them. `log`: the pairs that were shown, whose queries are what it
    is asked; `query` and `row`: where the situations, and the rows of their log, are in it. `unknown`: the share of the steps
    that it answers as the average query.  Shapes: query [situations]; row [P].
    """

    by: str
    policy: TwoStagePolicy
    log: Feedback
    query: Whole
    row: Whole
    unknown: float


def asked(policy: TwoStagePolicy, log: SessionLog, rows: Feedback) -> Asked:
    """The pairs of a log of situations (`rows`), as a policy is asked about them; one that it does not know is the average."""
    by = asked_by(policy, log.situations)
    ids = log.situations[by]
    used = rows.impressions > 0
    new = used & ~_known(policy, ids)
    if new.any():
        if plain_ids(ids).dtype != plain_ids(policy.vocabulary.query_ids).dtype:
            raise PolicyError(
                f"expected a policy of the states or the queries of the log, such as {log.situations['state'][0]!r} or "
                f"{log.situations['query_id'][0]!r}; its queries are such as {policy.vocabulary.query_ids[0]!r}."
            )
        try:
            policy = policy.with_queries(plain_ids(ids.filter(new)).unique(maintain_order=True))
        except PolicyError as error:
            raise PolicyError(
                f"expected a policy that knows every {by} of the log; it does not know {ids.filter(new)[0]!r}, and {error}"
            ) from error
    distinct = ids.unique().sort()
    code = positions_of(distinct, ids, "query")
    pair, row = np.unique(code[rows.query] * np.int64(rows.D) + rows.item, return_inverse=True)
    found = replace(
        rows,
        vocabulary=Vocabulary(distinct, rows.vocabulary.item_ids),
        query=(pair // rows.D).astype(np.int32),
        item=(pair % rows.D).astype(np.int32),
        rank=np.zeros(len(pair), np.int16),
        shown=sums_by(row, rows.shown, len(pair)),
        clicks=sums_by(row, rows.clicks, len(pair)),
        logged=None,
        impressions=sums_by(code, rows.impressions, len(distinct)),
        exact={},
        others=None,
    )
    share = float(rows.impressions[new].sum() / max(rows.N, 1.0))
    return Asked(by=by, policy=policy, log=found, query=code, row=row, unknown=share)


def asked_by(policy: TwoStagePolicy, situations: pl.DataFrame) -> str:
    """Whether the queries of a policy are the states of a log, or its queries: what it knows more of."""
    by_state, by_query = (float(_known(policy, situations[by]).mean()) for by in ("state", "query_id"))
    return "state" if by_state >= by_query and by_state > 0 else "query_id"


def _known(policy: TwoStagePolicy, ids: pl.Series) -> NDArray[np.bool_]:
    known = policy.vocabulary.query_ids
    if plain_ids(known).dtype != plain_ids(ids).dtype:
        return np.zeros(len(ids), np.bool_)
    return positions_of(known, ids, "query", missing="mark") >= 0


# --- what the log says of a policy ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SessionEvidence:
    """A log of so many steps, its sums, and what one policy and production show there.

    Shapes: theta [K]; rho_cr, rho_0 [P], of the rows of the sums.
    """

    log: SessionLog
    rows: Feedback
    theta: Floats
    asked: Asked
    propensities: Resolved
    exposure: Exposure

    @property
    def rho_cr(self) -> Floats:
        """Of every row."""
        return self.exposure.rho[self.asked.row]

    @property
    def rho_0(self) -> Floats:
        """Of every row."""
        return self.propensities.rho_0

    @property
    def balance(self) -> Floats:
        """The exposure that the weights find in the lists of a situation, over the policy's.  Shapes: -> [situations]."""
        weight = safe_ratio(self.rho_cr, self.rho_0, self.rows.shown)
        there = by_query(weight * exposure(self.rows, self.theta), self.rows)
        whole = self.rows.impressions * self.exposure.total[self.asked.query]
        return np.divide(there, whole, out=np.ones_like(there), where=whole > 0)


def gathered(policy: TwoStagePolicy, log: SessionLog, question: Question) -> SessionEvidence:
    """What a log says of a policy, however many steps: exposures and propensities."""
    rows = log.feedback()
    theta = curve_of(ReadLog(rows, None), [policy], question)
    about = asked(policy, log, rows)
    exposures = exposure_on(
        about.policy,
        about.log,
        theta,
        Races(question.samples, derive(question.seed, "exposure")),
        question.reward,
    )
    return SessionEvidence(
        log=log,
        rows=rows,
        theta=theta,
        asked=about,
        propensities=_propensities(log, rows, theta, question),
        exposure=exposures,
    )


def _propensities(log: SessionLog, rows: Feedback, theta: Floats, question: Question) -> Resolved:
    """Of the rows; a logging policy is asked by state or query, as any other."""
    logger, question = question.logging_policy, replace(question, reward=None, estimator="auto")
    if not isinstance(logger, TwoStagePolicy):
        return gather(ReadLog(rows, log.lists.table(LISTS)), theta, question).propensities
    drew = asked(logger, log, rows)
    found = gather(ReadLog(drew.log, None), theta, replace(question, logging_policy=drew.policy)).propensities
    return replace(found, unclipped=found.unclipped[drew.row])


# --- the value --------------------------------------------------------------------------------------------------------


def _valued(
    found: SessionEvidence, estimator: SessionEstimator, T: int, discount: float, question: Question
) -> SessionValue:
    uses_reward = question.reward is not None and estimator == "doubly_robust"
    table = found.log.table(T, found.rows, shown=uses_reward)
    states = found.log.situations["state"]
    state_of = positions_of(states.unique().sort(), states, "state")
    none, model = estimators.fitted(table, state_of, found.rho_cr, found.rho_0, discount=discount)
    if uses_reward:
        model = _with_reward(model, found, question)
    plain = estimators.ips(found.rho_cr, found.rho_0, table, none, discount=discount)
    value = plain
    if estimator == "self_normalised":
        value = estimators.self_normalised(found.rho_cr, found.rho_0, table, none, discount=discount)
    elif estimator == "doubly_robust":
        value = estimators.doubly_robust(
            found.rho_cr, found.rho_0, table, none, model, discount=discount, theta=found.theta
        )
    steps = _support(table, estimators.ratios(found.rho_cr, found.rho_0, table, none), found.balance)
    verdict, reasons = _judged(found, steps)
    return SessionValue(
        value=value.value,
        standard_error=value.standard_error,
        lower_bound=max(0.0, Terms(plain.terms, np.ones(len(plain.terms))).lower_bound(question.level)),
        production=float(np.power(discount, table.clicks[1], dtype=np.float64).sum()) / len(table.state),
        horizon=T,
        discount=discount,
        level=question.level,
        sessions=len(table.state),
        states=len(np.unique(state_of[np.unique(found.log.lists.query)])),
        supported=_leading(steps, Verdict.REFUSE),
        verdict=verdict,
        reasons=reasons,
        estimator=estimator,
        asked_by=found.asked.by,
        propensity=found.propensities.kind,
        propensity_reason=found.propensities.reason,
        steps=steps,
        terms=value.terms,
    )


def _with_reward(model: Baseline, found: SessionEvidence, question: Question) -> Baseline:
    """With a reward model of what the policy is asked, fitted to other sessions."""
    assert question.reward is not None  # asked for
    about = found.asked
    r_hat = question.reward.at(about.log.query, about.log.item).mean[about.row]
    return replace(model, r_hat=r_hat, direct=found.exposure.direct[about.query])


def _support(table: SessionTable, ratio: Floats, balance: Floats) -> tuple[StepSupport, ...]:
    """What each step rests on.  Shapes: ratio [N, T]; balance [situations]."""
    past, found = past_weights(ratio), []
    for t in range(ratio.shape[1]):
        there = table.state[:, t] >= 0
        W, state = past[there, t], table.state[there, t]
        now = W * ratio[there, t]
        squares = float(np.square(now).sum())
        found.append(
            StepSupport(
                step=t + 1,
                sessions=int(there.sum()),
                effective=float(now.sum()) ** 2 / squares if squares > 0 else 0.0,
                balance=float(W @ balance[state] / max(W.sum(), np.finfo(float).tiny)),
            )
        )
    return tuple(found)


def _leading(steps: tuple[StepSupport, ...], wrong: Verdict) -> int:
    """How many steps there are before the first with this verdict."""
    return next((n for n, step in enumerate(steps) if step.verdict == wrong), len(steps))


def _judged(found: SessionEvidence, steps: tuple[StepSupport, ...]) -> tuple[Verdict, tuple[str, ...]]:
    """The worst step decides; what else is wrong makes it no better than use with care."""
    supported, trusted, T = _leading(steps, Verdict.REFUSE), _leading(steps, Verdict.CARE), len(steps)
    reasons = [f"{words}" for words in _cautions(found)]
    verdict = Verdict.CARE if reasons else Verdict.TRUST
    if supported < T:
        verdict = Verdict.REFUSE
        depth = f"down to step {supported}: ask for that horizon" if supported else "at no step"
        reasons = [f"{steps[supported].words}; it supports the policy {depth}", *reasons]
    elif trusted < T:
        verdict = Verdict.CARE
        reasons = [f"{steps[trusted].words}; before it the log supports the policy well", *reasons]
    elif not reasons:
        last = steps[-1]
        left = f"{last.effective:.0f} effective of {last.sessions:,} sessions there"
        reasons = [f"the log supports the policy down to step {T}: {left}"]
    return verdict, tuple(reasons)


def _cautions(found: SessionEvidence) -> list[str]:
    clicks = np.bincount(np.repeat(np.arange(len(found.log.step)), found.log.lists.length), found.log.lists.click)
    several = float((clicks > 1).mean())
    reasons = []
    if several > SOME_CLICKS:
        reasons.append(
            f"{several:.0%} of the steps have several clicks, of which the one furthest down is taken to move the state: later "
            "steps may be off"
        )
    if found.propensities.kind not in ("logged", "exact"):
        reasons.append(f"propensities are {found.propensities.kind}, and their errors multiply from step to step")
    if found.asked.unknown > 0:
        reasons.append(f"{found.asked.unknown:.0%} of the steps are in states that the policy answers as the average")
    return reasons
