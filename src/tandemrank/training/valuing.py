"""What was learned, valued on impressions that nothing before has seen; and the gate, which keeps production.

Where lists hardly vary, or where a learned policy would mostly show what the logger did not, nothing in the log contradicts a
model that thinks highly of items that were never shown, and the logger's own choice, which left them out, is all that is known
of them. Such a policy keeps the items that each query was shown and orders them by what the log says (`staying`); its value
can then be known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.cluster import Engine
from tandemrank._base.random import derive
from tandemrank.beliefs.scorer import REMEMBERED
from tandemrank.clicks.models import CellCurve
from tandemrank.logs.feedback import by_rank
from tandemrank.logs.sums import merge
from tandemrank.offpolicy.comparison import compare_values, sure_difference
from tandemrank.offpolicy.exposure import MostLikely, Races, exposure_on
from tandemrank.offpolicy.logger import FittedLogger, lists_of
from tandemrank.offpolicy.propensities import fitted_policy
from tandemrank.offpolicy.question import Question
from tandemrank.offpolicy.rewards import in_detail
from tandemrank.offpolicy.strangers import answering
from tandemrank.offpolicy.valuation import estimate_all
from tandemrank.offpolicy.values import PRODUCTION, Value
from tandemrank.offpolicy.verdicts import REFUSE_MISSING, Verdict, is_outside
from tandemrank.policies.memory import memory_from, remembering
from tandemrank.policies.own import OwnModel
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.config import LearningConfig
from tandemrank.training.data import TrainingData
from tandemrank.training.loop import Trained
from tandemrank.training.parts import ContextParts, Parts, times_of
from tandemrank.training.schedules import Method

# Added to the scores of what a query was shown: more than scores differ by (an item that was shown often and never clicked is
# far below the others), and yet they keep their order in single precision.
AHEAD = 1000.0


def staying(policy: TwoStagePolicy, shown: NDArray[np.int64]) -> TwoStagePolicy | None:
    """The policy with what each query was shown ahead of the rest, in both stages; None where too many pairs would have to be
    remembered, and of models of one's own.  Shapes: shown [n], the pairs q D + d, each once, in order."""
    Q, D = len(policy.vocabulary.query_ids), len(policy.vocabulary.item_ids)
    is_own = isinstance(policy.generator, OwnModel) or isinstance(policy.ranker, OwnModel)
    if len(shown) > REMEMBERED or is_own:
        return None
    ahead = memory_from(shown // D, (shown % D).astype(np.int32), np.full(len(shown), AHEAD, np.float32), Q, D)
    generator = remembering(policy.generator, ahead)
    ranker = generator if policy.ranker is policy.generator else remembering(policy.ranker, ahead)
    return replace(policy, generator=generator, ranker=ranker)


def far_from_log(value: Value) -> bool:
    """Whether the log cannot speak about a policy, because it shows too much that the logger did not."""
    return value.diagnostics is not None and is_outside(value.diagnostics)


def is_worse(learned: Value, production: Value) -> bool:
    """Whether a policy surely gets fewer clicks than production, by a value that can be trusted."""
    return learned.verdict != Verdict.REFUSE and compare_values(learned, production).interval[1] < 0


WORDS = "valuing what was learned, on impressions that nothing before has seen"


@dataclass(frozen=True)
class Gate:
    """Whether a policy is surely better than production; production is kept where it is not.

    `lower_bound`: of its difference to production, in clicks per impression. `worse`: surely worse, so production stays whether
    or not that was asked.
    """

    kept_production: bool
    learned: Value
    lower_bound: float | None
    worse: bool = False

    def summary(self) -> dict[str, object]:
        """As plain names and values."""
        names = ("kept_production", "lower_bound", "worse")
        return {name: getattr(self, name) for name in names} | {"learned": self.learned.value}


def gate_of(learned: Value, production: Value) -> Gate:
    """Whether a policy is surely better: by the bound, which is about these impressions, and by the interval over queries."""
    sure = sure_difference(learned, production, level=production.sample.level)
    others_too = compare_values(learned, production).over_queries[0] > 0
    passes = sure is not None and sure > 0 and others_too and not is_worse(learned, production)
    return Gate(kept_production=not passes, learned=learned, lower_bound=sure)


@dataclass(frozen=True)
class Valued:
    """Policies and their values: of drawn lists, and of the most likely ones; how often each query that they are of came.

    Shapes: times [Q], or of queries in their context.
    """

    trained: dict[Method, Trained]
    values: dict[Method, Value]
    most_likely: dict[Method, Value]
    production: Value
    times: NDArray[np.float64]
    gates: dict[Method, Gate] = field(default_factory=dict)


@dataclass(frozen=True)
class Valuer:
    """What values policies: the part of the log for it, by the propensities and beliefs of the others."""

    config: LearningConfig
    parts: Parts
    data: TrainingData
    logging_policy: TwoStagePolicy | None
    seed: int
    tell: Callable[[str], None]
    engine: Engine = "local"

    def all(self, trained: dict[Method, Trained]) -> Valued:
        """Every policy, as it may go live."""
        used = self.data.propensities
        known = trained | (self._staying(trained) if used.only_shown else {})
        found = self._valued(known)
        # Frequencies know nothing of what a short part of the log did not show, whatever the logger would have.
        far = {
            method
            for method, one in found.values.items()
            if used.kind != "frequency" and far_from_log(one) and self._is_new(known[method].policy, one)
        }
        if kept := self._staying({method: known[method] for method in far}):
            anew = self._valued(kept)
            found = replace(
                found,
                trained=known | kept,
                values=found.values | anew.values,
                most_likely=found.most_likely | anew.most_likely,
            )
        return self._gated(found)

    def _is_new(self, policy: TwoStagePolicy, value: Value) -> bool:
        """Whether too much of what a policy shows was shown by no part of the log, where a value counts what was shown."""
        if value.estimator != "completed":
            return True
        inside = self._in_context
        whole = merge(self.parts.all() if inside is None else [*inside.train_times, inside.evaluation])
        shown = exposure_on(
            answering(policy, whole).side,
            whole,
            by_rank(whole, self.config.theta),
            Races(1, derive(self.seed, "shown") % 2**32),
        )
        n = value.estimate.denominator
        return float(n @ shown.supported) < (1 - REFUSE_MISSING) * float(n @ shown.total)

    def _valued(self, trained: dict[Method, Trained]) -> Valued:
        """The values of drawn lists, of the most likely lists, and of production."""
        policies = [one.policy for one in trained.values()]
        *found, production = self._estimates([*policies, *map(MostLikely, policies)])
        drawn = dict(zip(trained, found[: len(policies)], strict=True))
        fixed = dict(zip(trained, found[len(policies) :], strict=True))
        return Valued(trained, drawn, fixed, production, self._times())

    def _staying(self, trained: dict[Method, Trained]) -> dict[Method, Trained]:
        """Those that can keep the items each query was shown, doing so; none where these must not be shown again."""
        if self.config.exclude is not None:
            return {}
        policies = {method: staying(one.policy, self.parts.shown) for method, one in trained.items()}
        return {
            method: replace(trained[method], policy=policy, stays=True)
            for method, policy in policies.items()
            if policy is not None and not trained[method].stays
        }

    def _gated(self, found: Valued) -> Valued:
        """Production in the place of what is surely worse than it; if that is asked for, of all that is not surely better."""
        # Production repeats itself, so it is no measure of what must not.
        comparable = found.values if self.config.exclude is None else {}
        worse = {method for method, value in comparable.items() if is_worse(value, found.production)}
        asked = set(found.values) if self.config.safe else worse
        if not asked:
            return found
        logger = self._production()
        live = replace(logger, K=min(self.config.K, logger.K2))
        of_live, _ = self._estimates([live])
        gates = {
            method: replace(gate_of(value, found.production), worse=method in worse)
            for method, value in found.values.items()
            if method in asked
        }
        kept = {method for method, gate in gates.items() if gate.kept_production}
        unchanged = {method: replace(found.trained[method], policy=live.copy()) for method in kept}
        return replace(
            found,
            trained=found.trained | unchanged,
            values=found.values | dict.fromkeys(kept, of_live),
            most_likely={method: one for method, one in found.most_likely.items() if method not in kept},
            gates=gates,
        )

    def _production(self) -> TwoStagePolicy:
        """The policy that drew the log, or one that is fitted to its lists."""
        known = self.data.propensities.logger or self.logging_policy
        if known is not None:
            return known
        return fitted_policy(
            lists_of([self.parts.first]), self.parts.vocabulary, seed=derive(self.seed, "rho_0") % 2**32
        )

    def _estimates(self, policies: Sequence[TwoStagePolicy | MostLikely]) -> tuple[Value, ...]:
        """The value of every policy on the part for it, and production's."""
        self.tell(WORDS)
        used, times, inside, asks = self.data.propensities, self.parts.times, self._in_context, self.config.propensity
        log, others = self.parts.evaluation, self.parts.train
        if inside is not None:
            log, others = inside.evaluation, inside.train
        logger: TwoStagePolicy | FittedLogger | None = used.logger
        if used.kind == "fitted" and used.logger is not None:
            logger = FittedLogger(used.logger, float(times[times > 0].mean()))
        given = self.config.examination
        question = Question(
            examination=given if isinstance(given, CellCurve) else self.config.theta,
            propensity=asks if used.kind == "fitted" else used.kind,
            reward=self.data.beliefs if used.kind == "fitted" and asks == "auto" and inside is None else None,
            logging_policy=logger,
            other_log=others,
            seed=derive(self.seed, "value") % 2**32,
            engine=self.engine,
        )
        found = estimate_all([*policies, PRODUCTION], log, question, lambda n, of: self.tell(f"{WORDS}: {n / of:.0%}"))
        rewards = self.parts.rewards
        return found if rewards is None else in_detail(found, rewards.evaluation, rewards.name)

    @property
    def _in_context(self) -> ContextParts | None:
        """The log by queries in their context, where the beliefs say that it matters."""
        beliefs = self.data.beliefs
        return None if beliefs is None or beliefs.contexts is None else self.parts.in_context

    def _times(self) -> NDArray[np.float64]:
        """How often every query that is valued came."""
        inside = self._in_context
        return self.parts.times if inside is None else times_of([*inside.train_times, inside.evaluation])
