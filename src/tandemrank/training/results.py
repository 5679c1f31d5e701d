"""What `learn` gives, as types: trained pairs, what each is worth, and how they differ."""

from dataclasses import asdict, dataclass, field
from typing import Any

from tandemrank.offpolicy.comparison import Comparison, FrequencyGroup, compare_values
from tandemrank.offpolicy.propensities import Kind
from tandemrank.offpolicy.reward.posterior import Posterior
from tandemrank.offpolicy.values import PRODUCTION, Value
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.choice import Choice
from tandemrank.training.config import LearningConfig
from tandemrank.training.gate import Guarded, summaries
from tandemrank.training.history import lost_share
from tandemrank.training.loop import Trained
from tandemrank.training.parts import LogFacts
from tandemrank.training.schedules import Method
from tandemrank.training.start import Start
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
    guarded: dict[Method, Guarded] = field(default_factory=dict)  # what caution did, where it was asked for
    most_likely: dict[Method, Value] = field(default_factory=dict)  # of lists as `recommend` gives, not drawn
    by_frequency: dict[Method, tuple[FrequencyGroup, ...]] = field(default_factory=dict)  # against production
    choice: Choice | None = None  # of the method, where held-out clicks made it
    posterior: Posterior | None = None  # of the part that trains, where the start or the objective is made of it

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
                    "kept_start": self.trained[method].kept_start,
                    "stays": self.trained[method].stays,
                    "lost_share": lost_share(self.trained[method].history),
                    "history": [epoch._asdict() for epoch in self.trained[method].history],
                }
                for method, value in self.values.items()
            ],
            "differences": [difference.summary() for difference in self.differences],
            "choice": None if self.choice is None else asdict(self.choice),
            "posterior": None if self.posterior is None else self.posterior.constants(),
            "caution": summaries(self.guarded),
            "most_likely": [{"method": method, **value.summary()} for method, value in self.most_likely.items()],
            "by_frequency": [
                {"method": method, **asdict(group)} for method, some in self.by_frequency.items() for group in some
            ],
        }


def differences_of(values: dict[Method, Value], production: Value) -> tuple[Difference, ...]:
    """Every method less production and less the methods after it."""
    sides: dict[str, Value] = {str(method): value for method, value in values.items()}
    names = list(sides)
    pairs: list[tuple[str, str]] = [(method, PRODUCTION) for method in names]
    pairs += [(a, b) for place, a in enumerate(names) for b in names[place + 1 :]]
    sides[PRODUCTION] = production
    return tuple(Difference(a, b, compare_values(sides[a], sides[b])) for a, b in pairs)
