"""Guardrails: what must not fall while another reward decides, clicks while revenue does, say; or in no segment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

from tandemrank.decisions.segments import SegmentDifference
from tandemrank.errors import ConfigError
from tandemrank.offpolicy.comparison import compare_values
from tandemrank.offpolicy.uncertainty import normal_interval
from tandemrank.offpolicy.values import Value

CLICKS = "clicks"  # what is counted where no column is named
TOLERATED = 0.01  # of the old side's value, that a guardrail may fall by unless it is told


@dataclass(frozen=True, kw_only=True)
class Guardrail:
    """New less old in another reward, with an interval that holds together with those of all guardrails and policies.

    `least`: the difference that is still good. `broken`: surely below it; `doubtful`: perhaps.
    """

    reward: str
    new: float
    old: float
    difference: float
    interval: tuple[float, float]
    least: float

    @property
    def broken(self) -> bool:
        """Whether it surely falls by more than is good."""
        return self.interval[1] < self.least

    @property
    def doubtful(self) -> bool:
        """Whether it may fall by more than is good."""
        return self.interval[0] < self.least

    @property
    def words(self) -> str:
        """As a reason."""
        low, high = self.interval
        said = "surely falls" if self.broken else "may fall" if self.doubtful else "does not fall"
        per = f"{self.difference:+.3g} [{low:+.3g}, {high:+.3g}] per impression"
        return f"guardrail: {self.reward} {said} below {self.least:+.3g}: {per}"


def guardrail(reward: str, new: Value, old: Value, least: float | None, level: float) -> Guardrail:
    """Of two values by that reward; without `least` a hundredth of what the old side has."""
    found = compare_values(new, old)
    return Guardrail(
        reward=reward,
        new=new.value,
        old=old.value,
        difference=found.difference,
        interval=normal_interval(found.difference, found.standard_error, level),
        least=-TOLERATED * old.value if least is None else float(least),
    )


def segment_rails(gaps: Sequence[SegmentDifference], least: float | None) -> tuple[Guardrail, ...]:
    """The segments that fall below a limit, or may; none where there is no limit."""
    rails = [
        Guardrail(
            reward=one.segment, new=one.new, old=one.old, difference=one.difference, interval=one.interval, least=least
        )
        for one in gaps
        if least is not None
    ]
    return tuple(sorted((rail for rail in rails if rail.doubtful), key=lambda rail: rail.difference))


def check_guardrails(guardrails: Mapping[str, float | None], reward: str) -> None:
    """Refuses what is no guardrail."""
    for name, least in guardrails.items():
        if not isinstance(name, str) or name == reward:
            raise ConfigError(f"a guardrail is another reward than the one that decides, {reward}; got {name!r}.")
        if least is not None and (not isinstance(least, Real) or not abs(least) < float("inf")):
            raise ConfigError(f"guardrail {name}: expected the least difference per impression; got {least!r}.")
