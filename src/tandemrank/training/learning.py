"""A log of one's own, no ratings anywhere: from the log to trained pairs and what each would be worth if it were live.

    log -> (train, held out, evaluation) -> start -> training, each method -> off-policy values on `evaluation`

The log's impressions are parted (`parts`): training sees the first part, the second says when to stop (it is empty without
early stopping), and the third, which neither has seen, values what came out: on its own training clicks every pair looks
better than it is. Production, which drew the log, needs no estimate: its value is the clicks per impression that the third
part shows.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from tandemrank._base.random import derive
from tandemrank.errors import ConfigError
from tandemrank.logs.sources import Source
from tandemrank.offpolicy.logger import LISTS, lists_of
from tandemrank.offpolicy.propensities import Kind
from tandemrank.offpolicy.valuation import Question, estimate_all
from tandemrank.offpolicy.values import PRODUCTION, Comparison, Value, compare_values
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.config import CANDIDATES, EVALUATION_SHARE, LearningConfig
from tandemrank.training.data import TrainingData, prepare
from tandemrank.training.history import Progress
from tandemrank.training.loop import Trained
from tandemrank.training.methods import Methods, check_methods
from tandemrank.training.parts import LogFacts, Parts, facts_of, read_parts
from tandemrank.training.schedules import Method
from tandemrank.training.start import Start, StartConfig, initial_pair
from tandemrank.training.stopping import chosen_epochs


@dataclass(frozen=True)
class Difference:
    """How many more clicks per impression `method` would get than `against`."""

    method: str
    against: str
    comparison: Comparison

    def summary(self) -> dict[str, object]:
        """As plain names and values."""
        found = self.comparison
        return {
            "method": self.method, "against": self.against, "value": found.difference,
            "standard_error": found.standard_error, "interval": found.interval, "lower_bound": found.lower_bound,
            "share_of_wins": found.share_of_wins, "verdict": found.verdict,
        }  # fmt: skip


@dataclass(frozen=True)
class Learned:
    """What came of a log: for each method the trained pair, its history and its value; production; the differences.

    `config` and the sizes of `start` are complete, with what the log decided; `propensity` says which kind was used.
    """

    config: LearningConfig
    start: Start
    log: LogFacts
    propensity: Kind
    propensity_reason: str
    trained: dict[Method, Trained]
    values: dict[Method, Value]
    production: Value
    differences: tuple[Difference, ...]

    @property
    def policy(self) -> TwoStagePolicy:
        """The pair of the first method."""
        return next(iter(self.trained.values())).policy

    def summary(self) -> dict[str, Any]:
        """Everything but the pairs themselves, as plain names and values."""
        return {
            "log": asdict(self.log),
            "start": self.start.words,
            "propensity": self.propensity,
            "propensity_reason": self.propensity_reason,
            "production": self.production.summary(),
            "methods": [
                {
                    "method": method,
                    **value.summary(),
                    "epochs": len(self.trained[method].history),
                    "chosen": chosen_epochs(self.trained[method].history),
                    "history": [epoch._asdict() for epoch in self.trained[method].history],
                }
                for method, value in self.values.items()
            ],
            "differences": [difference.summary() for difference in self.differences],
        }


class LearnSwitches(BaseModel):
    """Every switch of `learn`, by its plain name: what `--set` and a TOML file take."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    learning: LearningConfig = LearningConfig()
    start: StartConfig = StartConfig()


def learn(
    log: Source,
    config: LearningConfig | None = None,
    *,
    methods: Sequence[str] = ("joint",),
    start: Start | None = None,
    logging_policy: TwoStagePolicy | None = None,
    seed: int = 0,
    checkpoints: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[Method, Progress], None] | None = None,
) -> Learned:
    """Trains both stages from a click log alone, by each method, and values what came out on impressions nobody saw.

    `log`: files, folders, patterns, a frame of polars or pandas. What `config` leaves open comes from the log:
    `list_length` is its longest list, `candidates` at most its items. Without a `logging_policy` the policy to start from
    is taken for it, unless the log has propensities. With `checkpoints`, a folder, every epoch is saved there, one file
    per phase, and `resume` goes on from it.
    """
    config, start = config or LearningConfig(), (start or Start()).with_tables()
    names = check_methods(methods)
    # Which propensities there are is known only when the log is read, so its lists are kept unless they cannot be needed.
    needed = config.propensity == "fitted" or (config.propensity == "auto" and logging_policy is start.policy is None)
    parts = read_parts(log, config, start, derive(seed, "split") % 2**32, lists=LISTS if needed else 0)
    config, start = _resolved_config(config, parts), start.resolved(parts.train)
    data = prepare(
        parts.train, config, halves=parts.halves if len(parts.halves) == 2 else None,
        held_out=parts.held_out if config.held_out_share else None,
        logging_policy=_logger(logging_policy, start, parts, config),
        lists=lambda: lists_of([parts.first]), seed=derive(seed, "rho_0") % 2**32,
    )  # fmt: skip
    driver = Methods(
        initial_pair(start, parts.train, config.theta, K2=config.candidates or CANDIDATES, K=config.K, seed=seed),
        data.weights, config.theta, config.training, seed=seed, criterion=data.criterion(config),
        checkpoints=None if checkpoints is None else Path(checkpoints), resume=resume,
    )  # fmt: skip
    trained = {method: driver.train(method, progress=_of_method(progress, method)) for method in names}
    policies = [found.policy for found in trained.values()]
    *found, production = _valued(policies, parts, data, config, derive(seed, "value") % 2**32)
    values = dict(zip(trained, found, strict=True))
    used = data.propensities
    taken = used.kind == "exact" and logging_policy is None
    reason = "the policy to start from is taken for the one that drew the log" if taken else used.reason
    differences = _differences(values, production)
    return Learned(config, start, facts_of(parts), used.kind, reason, trained, values, production, differences)


def _of_method(
    progress: Callable[[Method, Progress], None] | None, method: Method
) -> Callable[[Progress], None] | None:
    return None if progress is None else lambda state: progress(method, state)


def _resolved_config(config: LearningConfig, parts: Parts) -> LearningConfig:
    """The configuration with what the log decides: K, the longest list; K2, at most all items."""
    D = len(parts.vocabulary.item_ids)
    K = config.list_length or parts.list_length
    K2 = config.candidates or max(min(CANDIDATES, D), K)
    if K2 > D:
        raise ConfigError(
            f"{K2} candidates, but there are only {D} items. Ask for fewer candidates, or give the features of more items."
        )
    if K2 < K:
        raise ConfigError(f"{K2} candidates are fewer than the {K} places of a list. Ask for more of them.")
    share = config.evaluation_share or EVALUATION_SHARE
    return config.model_copy(update={"list_length": K, "candidates": K2, "evaluation_share": share})


def _logger(given: TwoStagePolicy | None, start: Start, parts: Parts, config: LearningConfig) -> TwoStagePolicy | None:
    """The policy that drew the log: the one given, else that to start from, unless the log has propensities itself."""
    if given is None and (config.propensity == "exact" or parts.evaluation.logged is None):
        return start.policy
    return given


def _valued(
    policies: Sequence[TwoStagePolicy], parts: Parts, data: TrainingData, config: LearningConfig, seed: int
) -> tuple[Value, ...]:
    """The doubly robust value of every pair on the part for it, and production's; the reward model learns from the others."""
    # A policy that was fitted to the log is used as the one that drew it: sums have no lists to fit another to.
    used = data.propensities
    asked = Question(
        examination=config.theta, propensity="exact" if used.kind == "fitted" else used.kind, logging_policy=used.logger,
        reward_log=parts.seen, seed=seed,
    )  # fmt: skip
    return estimate_all([*policies, PRODUCTION], parts.evaluation, asked)


def _differences(values: dict[Method, Value], production: Value) -> tuple[Difference, ...]:
    """Every method less production and less the methods after it."""
    sides: dict[str, Value] = {str(method): value for method, value in values.items()}
    names = list(sides)
    pairs: list[tuple[str, str]] = [(method, PRODUCTION) for method in names]
    pairs += [(a, b) for place, a in enumerate(names) for b in names[place + 1 :]]
    sides[PRODUCTION] = production
    return tuple(Difference(a, b, compare_values(sides[a], sides[b])) for a, b in pairs)
