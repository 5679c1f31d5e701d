"""A value under other examination curves: how much of the interval is the curve's, and what if it is steeper or flatter.

    log theta_k = log theta_k^ + sd_k (sqrt(1/2) z + sqrt(1/2) z_k),    sd_k = log(high_k / low_k) / (2 z_level)

draws curves from the interval that `examine` gives: the errors of the ranks are half in common, for the interval of each rank
is against rank 1, and half each rank's own. A steepness eta makes theta_k^eta of the curve.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from tandemrank._base.files import regular
from tandemrank.errors import ConfigError
from tandemrank.offpolicy.uncertainty import percentile_interval

Floats = NDArray[np.float64]
DRAWS = 20
STEEPNESS = (0.5, 0.75, 1.0, 1.25, 1.5)


@dataclass(frozen=True)
class CurveInterval:
    """An examination curve with its interval.  Shapes: theta, low, high [K]."""

    theta: Floats
    low: Floats
    high: Floats
    level: float

    def __post_init__(self) -> None:
        """Refuses what is not an interval."""
        lengths = {len(x) for x in (self.theta, self.low, self.high)}
        ordered = len(lengths) == 1 and bool(((self.low <= self.theta) & (self.theta <= self.high)).all())
        if not ordered or not (self.low > 0).all() or not 0 < self.level < 1:
            raise ConfigError(
                "a curve with its interval needs theta, low and high of one length, 0 < low <= theta <= high, and a level "
                "from 0 to 1, as `tandemrank examine --json` prints them."
            )

    def draws(self, n: int = DRAWS, *, seed: int = 0) -> Floats:
        """Curves that the interval leaves possible, none above 1.  Shapes: -> [n, K]."""
        rng, K = np.random.default_rng(seed), len(self.theta)
        sd = np.log(self.high / self.low) / (2 * float(ndtri((1 + self.level) / 2)))
        z = np.sqrt(0.5) * (rng.standard_normal((n, 1)) + rng.standard_normal((n, K)))
        found: Floats = np.minimum(self.theta * np.exp(sd * z), 1.0)
        return found


def read_curve_interval(path: str | Path) -> CurveInterval:
    """The curve in a JSON file of `tandemrank examine --json`, with its interval."""
    try:
        found = json.loads(regular(path).read_text(encoding="utf-8"))
        theta, low, high = (np.array(found[name], np.float64) for name in ("theta", "low", "high"))
        level = float(found["level"])
    except OSError as error:
        raise ConfigError(
            f"{path}: expected a curve with its interval; it cannot be read ({error.strerror})."
        ) from error
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"{path}: expected JSON with theta, low, high and level, as `tandemrank examine --json` prints; got something "
            f"else ({error})."
        ) from error
    return CurveInterval(theta, low, high, level)


@dataclass(frozen=True)
class Steepness:
    """The value under a steeper (above 1) or flatter curve, and its distance from production's clicks, which stay."""

    steepness: float
    value: float
    above_production: float


@dataclass(frozen=True)
class Sensitivity:
    """What the curve does to a value: the interval with the curve's own error in it, and the table by steepness.

    `curve_error`: the standard deviation of the value over the drawn curves.
    """

    interval_with_curve: tuple[float, float]
    curve_error: float
    by_steepness: tuple[Steepness, ...]


def combine(draws: Floats, value: float, shifted: Floats, level: float, *, seed: int = 0) -> tuple[float, float]:
    """The interval over both kinds of error: each draw of queries with the shift of a curve drawn at random.

    Shapes: draws [replicates], of the value; shifted [n], the value under other curves.
    """
    which = np.random.default_rng(seed).integers(len(shifted), size=len(draws))
    return percentile_interval(draws + (shifted - value)[which], level)


def steeper(theta: Floats, steepness: float) -> Floats:
    """theta^eta, relative to the first rank.  Shapes: [K] -> [K]."""
    found: Floats = theta[0] * np.power(theta / theta[0], steepness)
    return found
