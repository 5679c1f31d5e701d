"""What caution did: the careful pair beside the one without caution, and production where neither is surely better."""

from collections.abc import Mapping
from dataclasses import dataclass

from tandemrank.offpolicy.comparison import Comparison, compare_values, sure_difference
from tandemrank.offpolicy.values import Value
from tandemrank.training.caution import SafeObjective
from tandemrank.training.config import Safety
from tandemrank.training.schedules import Method


@dataclass(frozen=True)
class Guarded:
    """One method: the careful pair and the plain one, both trained from the same start on the same log, valued on the same
    impressions.

    `cost`: the careful pair less the plain one, in clicks per impression; negative where caution cost some. The bounds are of
    each pair's difference to production. `kept_production`: the careful pair is not surely better, by its bound and by its
    interval over queries, so production is kept.
    `loss_at_worst`: the most clicks per impression that what is kept can lose against production, whatever clicks mean, by the
    exposure that it takes from production's items; 0 where production is kept.
    """

    objective: SafeObjective
    kept_production: bool
    careful: Value
    plain: Value
    cost: Comparison
    careful_bound: float | None
    plain_bound: float | None
    loss_at_worst: float

    @property
    def saved(self) -> float | None:
        """By how much caution raised what is sure, in clicks per impression above production."""
        if self.careful_bound is None or self.plain_bound is None:
            return None
        return self.careful_bound - self.plain_bound

    def summary(self) -> dict[str, object]:
        """As plain names and values."""
        names = ("objective", "kept_production", "careful_bound", "plain_bound", "saved", "loss_at_worst")
        own: dict[str, object] = {name: getattr(self, name) for name in names}
        values = {name: value.value for name, value in (("careful", self.careful), ("plain", self.plain))}
        return own | values | {"cost": self.cost.difference, "cost_interval": self.cost.interval}


def guard(careful: Value, plain: Value, production: Value, safety: Safety, *, lost: float) -> Guarded:
    """The careful pair passes if it is surely better than production on the log that values it.

    `lost`: the exposure that the careful pair takes from production's items.
    """
    sure, plainly = (sure_difference(one, production, level=production.sample.level) for one in (careful, plain))
    others_too = compare_values(careful, production).over_queries[0] > 0  # the bound is about these impressions
    passes = not safety.gate or (sure is not None and sure > 0 and others_too)
    return Guarded(
        safety.safe_objective, not passes, careful, plain, compare_values(careful, plain), sure, plainly,
        lost if passes else 0.0,
    )  # fmt: skip


def summaries(found: Mapping[Method, Guarded]) -> list[dict[str, object]]:
    """Every method as plain names and values."""
    return [{"method": method, **one.summary()} for method, one in found.items()]
