"""How sure an estimate is, for other impressions of the same queries: their noise, that of the races, and a fit's error.

And a value under other examination curves: those within the curve's own error, steeper and flatter ones.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path

import numpy as np
from scipy.special import ndtri

from tandemrank._base.files import regular
from tandemrank.errors import ConfigError
from tandemrank.logs.feedback import Feedback, click_moments
from tandemrank.offpolicy.bounds import both_weights, weight_products
from tandemrank.offpolicy.estimators import Floats

FEW_QUERIES = 30  # fewer are no sample of others
# How far a value is off, as a share of what its own list is among those that a query's tastes were fitted to: found on logs of
# the independent simulator, other ones than those that judge it (docs/results/truth.md).
OWN = 0.2
SURELY = 3.0  # standard errors
ROUNDING = 1e-6  # of a value
UNMET_GROUPS = 50  # of like weights


def normal_interval(value: float, error: float, level: float) -> tuple[float, float]:
    """The value and its standard error on both sides, as often as the level asks for."""
    wide = float(ndtri((1 + level) / 2)) * error
    return value - wide, value + wide


def impression_covariance(weights: Sequence[Floats], log: Feedback, *, most: float) -> Floats:
    """The covariance of values  sum w c / N  over other impressions of the same queries, by sums alone.

        n / (n - 1) (sum_i X_i X'_i - n mean(X) mean(X'))     of a query that came n times, X_i = sum_d w(d) c_i(d)

    Sums do not know which clicks came together, only how many came beside those of a row (`Feedback.others`): each of these is
    taken for the mean click of the query on another item. Exact where a list gets one click at most. Without `others` it is
    the most that it can be, with `most` clicks of an impression. Of a query that came once, the distance to the value of all
    stands for what is not known: how its impressions differ is counted together with how queries do.
    Shapes: m weights of [P] or [2, P] (`bounds.both_weights`) -> [m, m].
    """
    both = np.stack([both_weights(one) for one in weights])
    each, together = click_moments(log, most)
    c, n = log.clicks, log.impressions
    pair = np.cumsum((np.diff(log.query, prepend=-1) != 0) | (np.diff(log.item, prepend=-1) != 0)) - 1
    clicks, pair_clicks = np.bincount(log.query, c, log.Q), np.bincount(pair, c)
    worth = both[:, 0] * each[1] + both[:, 1] * each[0]  # of all clicks of a row
    X, of_pair = (
        np.stack([np.bincount(at, row, size) for row in worth]) for at, size in ((log.query, log.Q), (pair, 0))
    )
    w = np.divide(worth, c, out=np.zeros_like(worth), where=c > 0)
    rest = np.maximum(clicks[log.query] - pair_clicks[pair], 0.0)
    mean_rest = np.divide(X[:, log.query] - of_pair[:, pair], rest, out=np.zeros_like(w), where=rest > 0)
    U, many = X.sum(1) / max(log.N, 1.0), n >= 2
    found = np.empty((len(w), len(w)))
    for a, b in combinations_with_replacement(range(len(w)), 2):
        products = weight_products(both[a], both[b], together if log.others is None else each)
        if log.others is not None:
            products = products + log.others * (w[a] * mean_rest[b] + w[b] * mean_rest[a]) / 2
        own = np.bincount(log.query, products, log.Q)[many] - X[a, many] * X[b, many] / n[many]
        once = (X[a] - U[a] * n)[~many] @ (X[b] - U[b] * n)[~many]
        found[a, b] = found[b, a] = (own @ (n[many] / (n[many] - 1)) + once) / max(log.N, 1.0) ** 2
    return found


def unmet_variance(weights: Floats, log: Feedback) -> float:
    """What is missing in the variance of  sum w c / N  because weights met fewer clicks than can be expected of them:

        max(0, sum_g r_g sum_{rows of g} w^2 shown - sum w^2 c) / N^2,     r_g = (1 + sum_g c) / (1 / r + sum_g shown)

    A few large weights decide the noise, and the clicks that came know of those that were clicked alone: where they were not, a
    value comes out low and seems sure. So clicks are expected by groups of like weights, each with one click beforehand at the
    rate r of all.  Shapes: weights [P] or [2, P].
    """
    w, shown, c = np.abs(both_weights(weights).sum(0)), log.shown, log.clicks
    if not c.sum() > 0 or not np.ptp(w) > 0:
        return 0.0
    order = np.argsort(w, kind="stable")
    group = np.empty(len(w), np.int64)
    group[order] = np.minimum(np.cumsum(shown[order]) / shown.sum() * UNMET_GROUPS, UNMET_GROUPS - 1).astype(np.int64)
    clicked, seen, squares = (np.bincount(group, x, UNMET_GROUPS) for x in (c, shown, np.square(w) * shown))
    rate = (1 + clicked) / (shown.sum() / c.sum() + seen)
    return max(float(rate @ squares - np.square(w) @ c), 0.0) / max(log.N, 1.0) ** 2


def misfit(value: float, coarser: float, lists: float | None) -> tuple[float, float]:
    """How far a value may be off by what a fitted logging policy gets wrong: (value - coarser, OWN value / lists).

    Two errors, each as large as a standard deviation, with a sign: of two pairs they cancel as far as they are alike.
    The propensities are corrected by groups. What groups of twice the width would make of it, `coarser`, is as far from the
    value as the value is from what finer groups would, if the log were long enough for them. And of the `lists` of a query that
    its tastes were fitted to, one is the list whose clicks are valued (None: no tastes were).
    """
    return value - coarser, 0.0 if lists is None else OWN * value / lists


def misfit_variance(new: tuple[float, float], old: tuple[float, float] = (0.0, 0.0)) -> float:
    """The variance of a value by its misfit, or of the difference of two."""
    return float(np.square(np.subtract(new, old)).sum())


def exposure_variance(weights: Floats, error: Floats | None, rho: Floats, log: Feedback) -> float:
    """The variance of a value by the noise of the policy's races: sum_{q, d} (sum_k w c)^2 (error / rho)^2 / N^2.

    Pairs are taken as independent.  Shapes: weights, error, rho [P].
    """
    if error is None or not len(rho):
        return 0.0
    first = np.flatnonzero((np.diff(log.query, prepend=-1) != 0) | (np.diff(log.item, prepend=-1) != 0))
    relative = np.divide(np.nan_to_num(error), rho, out=np.zeros_like(rho), where=rho > 0)[first]
    return float(np.square(np.add.reduceat(weights * log.clicks, first) * relative).sum() / max(log.N, 1.0) ** 2)


@dataclass(frozen=True)
class Pooled:
    """What a value would be by the mean propensity of a row over all times, and by those of the showings that were clicked.

    `error`: the standard error of the distance, sum_i w^2 c_i (p / p_i - 1)^2 / N^2.
    """

    own: float
    pooled: float
    error: float


def pooled(weights: Floats, log: Feedback, *, most: float) -> Pooled | None:
    """Where the two surely differ: what is liked, and what is shown, changed together.  Shapes: weights [P]."""
    count, own, squares = weights * click_moments(log, most)[0]
    error = float(np.sqrt(max(float(weights @ (squares - 2 * own + count)), 0.0))) / max(log.N, 1.0)
    found = Pooled(float(own.sum()) / max(log.N, 1.0), float(count.sum()) / max(log.N, 1.0), error)
    return found if abs(found.own - found.pooled) > max(SURELY * error, ROUNDING * found.own) else None


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


def steeper(theta: Floats, steepness: float) -> Floats:
    """theta^eta, relative to the first rank.  Shapes: [K] -> [K]."""
    found: Floats = theta[0] * np.power(theta / theta[0], steepness)
    return found
