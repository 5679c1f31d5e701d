"""`learn` over sessions: both stages from a log of sessions, for what a click leads to and not only for the click.

    read -> believe -> look ahead -> build -> train -> value

The queries of what is learned are the states of the log. All but the weights is `training.learning`: the beliefs of the log are
the immediate reward, and the weight of a document in a state is n_x R_hat(x, d) A(x, d) (`foresight`). One policy answers at
every step, so that A is its mean over the steps of the log; a policy that knows the step has it in its state.
"""

import inspect
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from tandemrank._base import random
from tandemrank._base.arguments import checked
from tandemrank._base.ids import Vocabulary, positions_of
from tandemrank._base.random import derive
from tandemrank._base.results import Result
from tandemrank.beliefs.belief import Beliefs
from tandemrank.beliefs.model import Belief, RewardModel
from tandemrank.beliefs.scorer import Believed
from tandemrank.errors import ConfigError
from tandemrank.logs.counting import tally
from tandemrank.logs.feedback import Feedback, fingerprint
from tandemrank.logs.sources import Source
from tandemrank.offpolicy.logger import LISTS
from tandemrank.policies.ahead import LEAST, Ahead, Foresight
from tandemrank.policies.memory import Retrieval
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.sessions.foresight import Means, Transitions, backward, best_lists, foresight_of
from tandemrank.sessions.reading import SessionLog, State, read
from tandemrank.sessions.valuation import HORIZON, SessionValue, check_horizon, estimate
from tandemrank.training import learning
from tandemrank.training.config import EVALUATION_SHARE, LearningConfig
from tandemrank.training.data import TrainingData
from tandemrank.training.learning import Built
from tandemrank.training.loop import Trained
from tandemrank.training.methods import MethodChoice
from tandemrank.training.parts import Parts
from tandemrank.training.schedules import Method
from tandemrank.training.weights import BeliefWeights

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
MOST_HELD = 2**25  # relevances of states and items that are kept from step to step


@dataclass(frozen=True, kw_only=True, repr=False)
class LearnedSessions(Result):
    """What came of a log of sessions: for each method the policy and its value on sessions that nothing before has seen."""

    config: LearningConfig
    horizon: int
    discount: float
    states: int
    sessions: tuple[int, int]
    trained: dict[Method, Trained]
    values: dict[Method, SessionValue]
    choice: MethodChoice | None

    @property
    def policy(self) -> TwoStagePolicy:
        """The policy of the first method."""
        return next(iter(self.trained.values())).policy

    def _lines(self) -> list[str]:
        each = [f"{method}: {line}" for method, value in self.values.items() for line in value._lines()]
        return [f"learned from {self.sessions[0]:,} sessions, valued on {self.sessions[1]:,} others", *each]

    def _rows(self) -> list[dict[str, Any]]:
        return [{"method": name, **one._rows()[0]} for name, one in self.values.items()]

    def summary(self) -> dict[str, Any]:
        """Everything but the policies themselves, as plain names and values."""
        return {
            "horizon": self.horizon,
            "discount": self.discount,
            "states": self.states,
            "sessions_to_train": self.sessions[0],
            "sessions_to_value": self.sessions[1],
            "chosen": None if self.choice is None else self.choice.method,
            "methods": [{"method": method, **value.summary()} for method, value in self.values.items()],
        }


@checked
def learn(
    log: Source | SessionLog,
    config: LearningConfig | None = None,
    *,
    horizon: int | None = None,
    discount: float = 1.0,
    state: State | None = None,
    logging_policy: TwoStagePolicy | None = None,
    **how: Any,
) -> LearnedSessions:
    """Learns both stages from a log of sessions, and values them on sessions that nothing before has seen.

    `horizon`, `discount` and `state`: as in `sessions.estimate`; a discount of 0 learns for the next click alone. `how`:
    the other arguments of `tr.learn`. The policy is asked by the state: its queries are the states of the log, and `start` may
    have features of these, and of the items.
    """
    config = config or LearningConfig()
    check_horizon(horizon, discount)
    if config.exclude is not None or config.safe or config.context or "context" in how:
        raise ConfigError(
            "exclude, safe and a context are for single lists, and cannot be combined with sessions. Leave them out."
        )
    if logging_policy is not None and config.propensity == "auto":
        config = config.model_copy(update={"propensity": "frequency"})  # the beliefs need none; valuing has the policy
    if unknown := how.keys() - inspect.signature(learning.learn).parameters:
        raise ConfigError(f"unknown keyword {min(unknown)!r}; expected those of `tr.learn`.")
    methods = learning.asked(how.pop("method", None), how.pop("methods", None))
    plan = learning.planned("", config, methods, **how)
    if plan.start.has_stages or plan.engine != "local" or plan.reward is not None:
        raise ConfigError(
            "sessions are learned here, from clicks and features: leave other starts, engines and rewards out."
        )
    whole = log if isinstance(log, SessionLog) else read(log, state, K=config.list_length)
    T = min(horizon or HORIZON, int(whole.step.max()) + 1)
    train_log, held_out = _split(whole, config.evaluation_share or EVALUATION_SHARE, plan.seed)
    parts = _parts(train_log.until(T), held_out.until(T))
    plan = learning.resolved(plan, parts)
    data = learning.believe(plan, parts)
    data, built = learning.build(plan, parts, data)
    if T > 1 and discount > 0 and data.beliefs is not None:
        plan.listener.stage("what clicks lead to, from the end of a session to its start")
        foresight = look_ahead(train_log, data.beliefs, plan.config.theta, T, discount)
        data, built = _ahead(data, built, data.beliefs, foresight)
    trained, choice = learning.train(plan, data, built)
    name = fingerprint([whole.feedback()])
    named = {method: replace(one, policy=replace(one.policy, trained_on=name)) for method, one in trained.items()}
    plan.listener.stage("valuing what was learned, on sessions that nothing before has seen")
    values = {
        method: estimate(
            one.policy,
            held_out,
            horizon=T,
            discount=discount,
            examination=plan.config.theta,
            logging_policy=logging_policy,
            reward=None if data.propensities.kind == "fitted" else data.beliefs,
            seed=derive(plan.seed, "value") % 2**32,
        )
        for method, one in named.items()
    }
    return LearnedSessions(
        config=plan.config,
        horizon=T,
        discount=discount,
        states=len(parts.vocabulary.query_ids),
        sessions=(train_log.sessions, held_out.sessions),
        trained=named,
        values=values,
        choice=choice,
    )


# --- the log ----------------------------------------------------------------------------------------------------------


def _split(log: SessionLog, share: float, seed: int) -> tuple[SessionLog, SessionLog]:
    """Sessions that train, and others, by chance, that value."""
    keys = random.random_keys(derive(seed, "split") % 2**32, random.Stream.HELD_OUT, np.arange(log.sessions))
    late = random.uniforms(keys) < share
    return log.of_sessions(~late), log.of_sessions(late)


def _by_state(log: SessionLog) -> tuple[Vocabulary, Whole]:
    """The ids of states and items, and the state of every situation."""
    states = log.situations["state"]
    ids = states.unique().sort()
    return Vocabulary(ids.alias("query_id"), log.vocabulary.item_ids), positions_of(ids, states, "state")


def _parts(train: SessionLog, held_out: SessionLog) -> Parts:
    vocabulary, state_of = _by_state(train)

    def sums(log: SessionLog) -> Feedback:
        lists = replace(log.lists, query=state_of[log.lists.query])
        return tally([lists], lambda: vocabulary)[0]

    first = replace(train.lists, query=state_of[train.lists.query]).table(LISTS)
    train_sums = sums(train)
    return Parts(train=train_sums, evaluation=sums(held_out), first=first, train_times=(train_sums,))


def transitions_of(log: SessionLog) -> Transitions:
    """Where the steps of a log led to. Nobody knows whether the longest sessions ended after their last step."""
    vocabulary, state_of = _by_state(log)
    X = len(vocabulary.query_ids)
    state = state_of[log.lists.query]
    same = np.append(log.session[1:] == log.session[:-1], False)
    after = np.where(same, np.append(state[1:], X), X)
    item = np.where(log.moved >= 0, np.append(log.lists.item, -1)[log.moved], -1)
    known = same | (log.step < log.step.max())
    query = log.situations["query_id"].rank("dense").to_numpy().astype(np.int64) - 1
    query_of = np.zeros(X, np.int64)
    if len(state_of) == X:  # every state is of one query
        query_of[state_of] = query
    return Transitions(
        state=state[known], item=item[known], after=after[known], query_of=query_of, D=len(vocabulary.item_ids)
    )


# --- looking ahead ----------------------------------------------------------------------------------------------------


def look_ahead(log: SessionLog, beliefs: RewardModel, theta: Floats, T: int, discount: float) -> Foresight:
    """What clicks lead to, in the mean over the steps of the log.  Shapes: theta [K]."""
    means = Means(transitions_of(log))
    held: dict[int, Floats] = {}  # of the same states at every step

    def relevance(x: Whole) -> Floats:
        found = held[x[0]] if x[0] in held else beliefs.matrix(x)[:, :-1]
        if means.X * means.D <= MOST_HELD:
            held[x[0]] = found
        return found

    V = backward(means, relevance, best_lists(theta), T, discount)
    share = np.bincount(log.step[log.step < T], minlength=T).astype(np.float64)
    return foresight_of(means, share / share.sum() @ V[1:], discount)[0]


@dataclass(frozen=True)
class RewardAhead(RewardModel):
    """What an examined item is worth to a session: R_hat(x, d) A(x, d)."""

    kind: ClassVar[str] = "ahead"

    base: RewardModel
    foresight: Foresight

    def at(self, q: NDArray[np.integer], d: NDArray[np.integer]) -> Belief:
        """Shapes: q, d [n] -> [n]."""
        found, A = self.base.at(q, d), self.foresight.at(q, d)
        return Belief(found.mean * A, found.variance * A**2)

    def matrix(self, q: NDArray[np.integer]) -> Floats:
        """Shapes: q [B] -> [B, D + 1]."""
        found = self.base.matrix(q)
        found[:, :-1] *= self.foresight.matrix(q)
        return found

    def constants(self) -> dict[str, Any]:
        """Those of the relevance."""
        return self.base.constants()

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Those of the relevance, and what clicks lead to."""
        ahead = self.foresight
        named: dict[str, NDArray[Any]] = {"start": ahead.start, "after": ahead.after, "pairs": ahead.pairs.value}
        return self.base.arrays() | {f"ahead.{name}": x for name, x in named.items()}


def _ahead(data: TrainingData, built: Built, beliefs: Beliefs, foresight: Foresight) -> tuple[TrainingData, Built]:
    """Weights that look ahead, and stages that do: the belief, and the product nearest to it."""
    assert isinstance(data.weights, BeliefWeights)  # clicks alone are refused with the default objective
    weights = replace(data.weights, reward=RewardAhead(beliefs, foresight))

    def ahead(ranker: Believed) -> Ahead:
        scale = ranker.sharpness * ranker.scale(torch.arange(len(foresight.start))).double().numpy()
        return Ahead(ranker, foresight, scale)

    def looking(policy: TwoStagePolicy | None) -> TwoStagePolicy | None:
        if policy is None or not isinstance(policy.ranker, Believed):
            return policy  # a model of one's own is trained by the weights
        ranker = ahead(policy.ranker)
        if isinstance(policy.generator, Retrieval):
            return replace(policy, generator=generator_ahead(policy.generator, ranker), ranker=ranker)
        return replace(
            policy, generator=ranker if policy.generator is policy.ranker else policy.generator, ranker=ranker
        )

    ranker = ahead(built.ranker) if isinstance(built.ranker, Believed) else built.ranker
    return replace(data, weights=weights), Built(looking(built.beliefs), looking(built.start), ranker)


def generator_ahead(generator: Retrieval, ranker: Ahead) -> Retrieval:
    """The product with one dimension more: log A(x, d) is, to first order around the mean item, gain_x / A_x (after_d - mean).

    Its lists change by as much as the re-ranker's scores.
    """
    foresight, scale = ranker.foresight, ranker.scale.double().numpy()
    mean = float(foresight.after.mean())
    of_mean = np.maximum(foresight.start + foresight.gain * mean, LEAST)
    queries = np.column_stack([generator.queries.detach().numpy(), scale * foresight.gain / of_mean])
    items = np.column_stack([generator.items.detach().numpy(), foresight.after - mean])
    memory = generator.memory
    x, d = torch.from_numpy(memory.query), torch.from_numpy(memory.item.astype(np.int64))[:, None]
    more = (ranker.score(x, d) - ranker.base.score(x, d))[:, 0].numpy()
    value = memory.value + more + scale[memory.query] * np.log(foresight.highest / of_mean)[memory.query]
    return Retrieval(queries, items, replace(memory, value=value.astype(np.float32)))
