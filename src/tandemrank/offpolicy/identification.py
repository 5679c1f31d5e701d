"""What can be said where the log has no support: the worst and the best case of what was never shown.

    worst = U_hat                                               every item that a query was never shown is worth nothing
    best  = U_hat + 1/N sum_q n_q sum_{d never shown} rho(d)    an examination of it is always a click

A deterministic log identifies a pair's value only on what it showed: the value is in between, whatever the other items are
(partial identification, Manski 2003). Where the logger varies, IPS counts what it could have shown but did not, too, so the
range is wider than it need be, and still right. Clicks are at most one per examination; nothing else is assumed of relevance.
Another estimator than IPS may find a value beyond an end: the range is then as wide as both.
"""

from dataclasses import dataclass

import numpy as np

from tandemrank.logs.feedback import Feedback
from tandemrank.offpolicy.diagnostics import Exposure
from tandemrank.offpolicy.estimate import Estimate

Z95 = 1.96


@dataclass(frozen=True)
class Identified:
    """The value in the worst and in the best case, and an interval that holds all that is between, with both cases' noise.

    `missing`: the exposure per impression that nothing is known about.
    """

    worst: float
    best: float
    interval: tuple[float, float]
    missing: float

    @property
    def words(self) -> str:
        """As a sentence for the reasons of a verdict."""
        low, high = self.interval
        return (
            f"whatever the items that were never shown are worth, its value is from {self.worst:.3g} to {self.best:.3g} clicks "
            f"per impression (95%: {low:.3g} to {high:.3g})"
        )


def identified(ips: Estimate, exposure: Exposure, log: Feedback, *, value: float) -> Identified:
    """The range of a pair's value, by its IPS estimate, the exposure that the log never showed, and the value that is given."""
    n = log.impressions.astype(np.float64)
    missing = n * np.maximum(exposure.total - exposure.supported, 0.0)
    best = Estimate(ips.numerator + missing, ips.denominator)
    low, high = ips.interval(Z95)[0], best.interval(Z95)[1]
    total = float(n.sum())
    return Identified(
        min(ips.value, value),
        max(best.value, value),
        (max(min(low, value), 0.0), max(high, value)),
        float(missing.sum()) / total if total > 0 else 0.0,
    )
