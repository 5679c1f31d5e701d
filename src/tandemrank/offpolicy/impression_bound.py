"""A tighter lower bound of a difference, for logs whose impressions are independent of each other, by sums alone.

    X_i = sum_d v(d) c_i(d),  v = w_new - w_old,  X_i >= -B,  mean U over the log's impressions

Bet on every impression: prod_i (1 + g (X_i - u)) has expectation at most 1 at u = U, for a fixed g in [0, 1 / (2 B)) and every
u in [-B, B], whatever the mean of each impression is (by the inequality of the means). Sums do not know the X_i, but with
y >= -f, f = 2 g B,

    log(1 + y) >= y - c(f) y^2,   c(f) = (-f - log(1 - f)) / f^2     (Fan et al. 2015)
    sum_i X_i^2 <= most * sum_i sum_d v(d)^2 c_i(d)                  (`most` clicks of an impression; Cauchy and Schwarz)

so the wealth is at least exp(g (sum X - N u) - c g^2 S(u)), S(u) = most sum v^2 c - 2 u sum X + N u^2: what the sums say is
never more than what the impressions would. `bounds.betting` lets the impressions of a query depend on each other in any
way, and pays for it: with 360 queries it cannot rule out that one of them is a disaster. This one must not be used where one
user's visits are the impressions of one query.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank.errors import ConfigError, InputError
from tandemrank.logs.feedback import Feedback
from tandemrank.offpolicy.bounds import planned_stakes

Floats = NDArray[np.float64]
GRID = 2000  # places between -B and the mean where the wealth is looked at


@dataclass(frozen=True)
class Sums:
    """All that the bound needs: sum X, sum_d v^2 c times `most`, N, and the floor B."""

    total: float
    squares: float
    N: float
    floor: float

    @property
    def mean(self) -> float:
        """sum X / N; NaN of nothing."""
        return self.total / self.N if self.N > 0 else float("nan")


def difference_sums(new: Floats, old: Floats, log: Feedback, *, most: float) -> Sums:
    """The sums of a difference. `most` clicks of an impression; each can cost what the old side's largest weight is.

    Shapes: new, old [P], the weights rho / rho_0 of the rows of the log; of production 1.
    """
    if new.shape != log.clicks.shape or old.shape != log.clicks.shape:
        raise InputError(f"weights are needed for each of {len(log.clicks)} rows; {new.shape} and {old.shape} came.")
    if not np.array_equal(log.impressions, np.round(log.impressions)):
        raise InputError(
            "impressions with weights are not independent draws of equal size: use the bound over queries for this log."
        )
    v = new - old
    floor = most * float(np.where(log.shown > 0, old, 0.0).max(initial=0.0))
    return Sums(float(v @ log.clicks), most * float(np.square(v) @ log.clicks), log.N, floor)


def lower_bound(sums: Sums, level: float = 0.95) -> float:
    """The smallest u in [-B, mean] that the averaged wealth does not speak against."""
    if not 0 < level < 1:
        raise ConfigError(f"level must be above 0 and below 1; {level} came.")
    B, mean = sums.floor, sums.mean
    if sums.N <= 0 or not B > 0 or not np.isfinite(B):
        return -B
    low, high = -B, min(mean, B)
    for _ in range(3):  # the first u that is not spoken against, ever finer
        u = np.linspace(low, high, GRID)
        allowed = log_wealth(sums, u, level) <= np.log(1 / (1 - level))
        if allowed[0] or not allowed.any():
            return float(u[0] if allowed[0] else u[-1])
        first = int(np.argmax(allowed))
        low, high = float(u[first - 1]), float(u[first])
    return low


def log_wealth(sums: Sums, u: Floats, level: float) -> Floats:
    """The logarithm of what the averaged bets have at least made of 1.  Shapes: u [n] -> [n]."""
    stakes = planned_stakes(sums.N, level, floor=sums.floor)
    f = stakes.fractions[:, None]
    g, c = f / (2 * sums.floor), (-f - np.log1p(-f)) / np.square(f)
    S = sums.squares - 2 * u * sums.total + sums.N * np.square(u)
    return stakes.log_mean(g * (sums.total - sums.N * u) - c * np.square(g) * S)
