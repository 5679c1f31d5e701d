"""What `learn` gives, as types: policies, what each is worth, how they differ."""

from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any

from tandemrank._base.results import Result, within
from tandemrank.beliefs.belief import Beliefs
from tandemrank.clicks.examination import Behaviour
from tandemrank.errors import ConfigError
from tandemrank.logs.sources import days_of
from tandemrank.offpolicy.comparison import Comparison, FrequencyGroup, compare_values
from tandemrank.offpolicy.values import PRODUCTION, Value
from tandemrank.offpolicy.verdicts import Verdict
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.config import LearningConfig
from tandemrank.training.loop import Trained
from tandemrank.training.methods import MethodChoice
from tandemrank.training.parts import LogFacts
from tandemrank.training.schedules import Method, are_same
from tandemrank.training.start import Start
from tandemrank.training.valuing import Gate


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
            "method": self.method,
            "against": self.against,
            "value": found.difference,
            "standard_error": found.standard_error,
            "interval": found.interval,
            "lower_bound": found.lower_bound,
            "verdict": found.verdict,
        }


@dataclass(frozen=True, repr=False)
class Learned(Result):
    """What came of a log: for each method the policy, its history and its value; production; the differences.

    `config` is complete, with what the log decided; `propensity` says which kind was used.
    """

    drawn_by, has_lists = "training", True

    config: LearningConfig
    start: Start
    log: LogFacts
    propensity: str
    propensity_reason: str
    trained: dict[Method, Trained]
    values: dict[Method, Value]
    production: Value
    differences: tuple[Difference, ...]
    gates: dict[Method, Gate] = field(default_factory=dict)  # whether production is kept, where that was asked
    most_likely: dict[Method, Value] = field(default_factory=dict)  # of lists as `recommend` gives, not drawn
    by_frequency: dict[Method, tuple[FrequencyGroup, ...]] = field(default_factory=dict)  # against production
    choice: MethodChoice | None = None  # of the method, where the beliefs made it
    beliefs: Beliefs | None = None  # the beliefs by the part that trains, where they are used
    behaviour: Behaviour | None = None  # how the lists of the log are read
    reward: str = "clicks"  # what was learned and valued

    @property
    def was_trained(self) -> bool:
        """Whether any method had an epoch of training: the beliefs alone have none."""
        return any(one.history for one in self.trained.values())

    @property
    def notes(self) -> list[str]:
        """What to know of the features: a leak, a model that is not used."""
        return [] if self.beliefs is None else list(self.beliefs.notes)

    @property
    def policy(self) -> TwoStagePolicy:
        """The policy of the first method."""
        return next(iter(self.trained.values())).policy

    def compare(self, method: Method | None = None) -> Comparison:
        """A method, by default the first, against production."""
        chosen = next(iter(self.values)) if method is None else method
        if chosen not in self.values:
            raise ConfigError(f"method: expected one of {', '.join(self.values)}; got {method!r}.")
        return next(x.comparison for x in self.differences if (x.method, x.against) == (chosen, PRODUCTION))

    def about(self, method: Method) -> tuple[str, ...]:
        """What to know of a policy before it is used: what it was learned from, and what it promised. Its card has it."""
        log, value = self.log, self.values[method]
        days = f" of {found}" if (found := days_of(log.period)) else ""
        context = f", in the context of {', '.join(self.config.context)}" if self.config.context else ""
        return (
            f"Learned by the method {method} from {log.train:,.0f} impressions{days}, with {log.queries:,} queries and "
            f"{log.items:,} items{context}, by {self.propensity} propensities.",
            f"Valued on {log.evaluation:,.0f} others: {'; '.join(value._lines())}. Production has {self.production.value:.3f}.",
        )

    def _lines(self) -> list[str]:
        first, log = next(iter(self.values)), self.log
        size = f"{log.train:,.0f} impressions, valued on {log.evaluation:,.0f} others"
        value, gain = self.values[first], self.compare()
        what = [f"learned from {size}, by {self.propensity} propensities", f"{first}: {self.policy!r}"]
        said = f"verdict  {value.verdict}: {'; '.join(value.reasons)}"
        if gain.verdict == Verdict.REFUSE:
            return [*what, said]
        bound = "not known" if gain.lower_bound is None else f"{gain.lower_bound:+.3f}"
        return [
            *what,
            f"value    {value.value:.3f} {value.unit} {within(*value.interval)}; production {self.production.value:.3f}",
            f"gain     {gain.difference:+.3f} {within(*gain.interval, '+')}",
            f"at least {bound}",
            said,
            *(f"{name}: {other._lines()[0]}" for name, other in list(self.values.items())[1:]),
        ]

    def _rows(self) -> list[dict[str, Any]]:
        sides: dict[str, Value] = {PRODUCTION: self.production} | {str(name): x for name, x in self.values.items()}
        return [{"method": name, **one._rows()[0]} for name, one in sides.items()]

    def summary(self) -> dict[str, Any]:
        """Everything but the policies themselves, as plain names and values."""
        return {
            "log": asdict(self.log),
            "start": self.start.words,
            "reward": self.reward,
            "propensity": self.propensity,
            "propensity_reason": self.propensity_reason,
            "production": self.production.summary(),
            "methods": [
                {
                    "method": method,
                    **value.summary(),
                    "epochs": len(self.trained[method].history),
                    "stays": self.trained[method].stays,
                    "history": [epoch._asdict() for epoch in self.trained[method].history],
                }
                for method, value in self.values.items()
            ],
            "differences": [difference.summary() for difference in self.differences],
            "choice": None if self.choice is None else asdict(self.choice),
            "reading": {} if self.behaviour is None else self.behaviour.summary(),
            "beliefs": None if self.beliefs is None else self.beliefs.constants(),
            "notes": self.notes,
            "gates": [{"method": method, **gate.summary()} for method, gate in self.gates.items()],
            "most_likely": [{"method": method, **value.summary()} for method, value in self.most_likely.items()],
            "by_frequency": [
                {"method": method, **asdict(group)} for method, some in self.by_frequency.items() for group in some
            ],
        }


def differences_of(
    values: dict[Method, Value], production: Value, trained: dict[Method, Trained]
) -> tuple[Difference, ...]:
    """Every method less production, and less the methods after it that came to another policy."""
    found = [Difference(method, PRODUCTION, compare_values(value, production)) for method, value in values.items()]
    found += [
        Difference(a, b, compare_values(values[a], values[b]))
        for a, b in combinations(values, 2)
        if not are_same_policy(trained[a].policy, trained[b].policy)
    ]
    return tuple(found)


def are_same_policy(a: TwoStagePolicy, b: TwoStagePolicy) -> bool:
    """Whether two policies have the same stages to the bit."""
    return a.K2 == b.K2 and are_same(a.generator, b.generator) and are_same(a.ranker, b.ranker)
