"""A lower bound that rests on the logger's own draws: of a value or a difference on the impressions of the log, by sums alone.

    X_i = sum_d v(d) c_i(d) >= -B,   E[X_i | all before it] = U_i,   U = 1/N sum_i U_i

v = rho_cr / rho_0 for a value (B = 0), w_new - w_old for a difference. U_i is what the pair would have got, or been ahead by,
in that very impression. With y = g X_i >= -f, f = g B < 1,

    1 + y >= exp(y - c(f) y^2),   c(f) = (-f - log(1 - f)) / f^2,  c(0) = 1/2                        (Fan et al. 2015)

so exp(g (X_i - U_i) - c g^2 X_i^2) has, given the past, expectation at most 1 (1 + g U_i <= exp(g U_i)): its product over the
log is a supermartingale, a mixture over stakes g that were fixed beforehand is one too, and by Markov's inequality

    U >= the smallest u with  sum_j p_j exp(g_j (sum X - N u) - c(f_j) g_j^2 S) <= 1 / delta,    S >= sum_i X_i^2

holds with probability 1 - delta. Sums of a log do not know X_i^2, but with m_i the clicks of impression i it is at most
m_i sum_d v(d)^2 c_i(d) (Cauchy and Schwarz), and `Feedback.others` has these; without it m_i is at most what a list can get.

What it assumes: each list was drawn anew, with the propensities that are used; and B. Nothing about the users: what they like
may depend on the day, on each other, on what they saw before. That is in U, which is about the log's own impressions: these
users in their moods. `bounds` over queries is about others like them: where queries are a sample and a query's impressions
share a mood that will be another one tomorrow, or where one drawn list was shown several times, that is the one to use.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from tandemrank.errors import InputError
from tandemrank.logs.feedback import Feedback
from tandemrank.offpolicy.bounds import check_level, planned_stakes

Floats = NDArray[np.float64]
EXACT = 1e-9  # of the root; the bound is moved down by it


@dataclass(frozen=True)
class ImpressionSums:
    """All that the bound needs: sum X, S, N, and the floor B."""

    total: float
    squares: float
    N: float
    floor: float

    @property
    def mean(self) -> float:
        """sum X / N; NaN of nothing."""
        return self.total / self.N if self.N > 0 else float("nan")

    def times(self, longer: float) -> "ImpressionSums":
        """Those of a log so many times as long, if it goes on like this."""
        return ImpressionSums(longer * self.total, longer * self.squares, longer * self.N, self.floor)


def value_sums(weights: Floats, log: Feedback, *, most: float) -> ImpressionSums:
    """The sums of a value. `most` clicks of an impression.  Shapes: weights [P], rho / rho_0 of the rows of the log."""
    return _sums(weights, np.zeros_like(weights), log, most, np.ones(log.Q, np.bool_))


def difference_sums(
    new: Floats, old: Floats, log: Feedback, *, most: float, queries: NDArray[np.bool_] | None = None
) -> ImpressionSums:
    """The sums of a difference. `most` clicks of an impression; each can cost what the old side's largest weight is.

    `queries`: those that count, by default all.
    Shapes: new, old [P], the weights rho / rho_0 of the rows of the log; of production 1; queries [Q].
    """
    if new.shape != old.shape:
        raise InputError(f"both sides need weights of the same rows; got {new.shape} and {old.shape}.")
    return _sums(new - old, old, log, most, np.ones(log.Q, np.bool_) if queries is None else queries)


def _sums(v: Floats, lost: Floats, log: Feedback, most: float, queries: NDArray[np.bool_]) -> ImpressionSums:
    """`lost`: the most that a click on a row can cost."""
    if v.shape != log.clicks.shape:
        raise InputError(f"expected weights of each of {len(log.clicks)} rows; got {v.shape}.")
    if log.weighted:
        raise InputError(
            "impressions with weights are not independent draws of equal size: use the bound over queries for this log."
        )
    clicks = np.where(queries[log.query], log.clicks, 0.0)
    together = np.inf if log.others is None else clicks + np.where(queries[log.query], log.others, 0.0)
    floor = most * float(np.where(queries[log.query] & (log.shown > 0), lost, 0.0).max(initial=0.0))
    squares = float(np.square(v) @ np.minimum(together, most * clicks))
    return ImpressionSums(float(v @ clicks), squares, float(log.impressions[queries].sum()), floor)


def lower_bound(sums: ImpressionSums, level: float = 0.95) -> float:
    """The smallest u that the averaged wealth does not speak against; -B where nothing speaks against any."""
    check_level(level)
    B, threshold = sums.floor, float(np.log(1 / (1 - level)))
    if sums.N <= 0 or not np.isfinite(B):
        return -B
    speaks = log_wealth(sums, level)
    if speaks(-B) <= threshold:
        return -B
    scale = abs(sums.mean) + B + 1
    found = brentq(lambda u: speaks(u) - threshold, -B, sums.mean, xtol=EXACT * scale / 4)
    return max(float(found) - EXACT * scale, -B)


def log_wealth(sums: ImpressionSums, level: float) -> Callable[[float], float]:
    """The logarithm of what the averaged bets against u have at least made of 1: it falls with u, below 0 at the mean."""
    stakes = planned_stakes(sums.N, level, floor=sums.floor)
    g = stakes.fractions / max(sums.floor, 1.0)
    f = g * sums.floor
    c = np.divide(-f - np.log1p(-f), np.square(f), out=np.full_like(f, 0.5), where=f > 1e-6)
    at_0 = g * sums.total - c * np.square(g) * sums.squares
    return lambda u: float(stakes.log_mean(at_0 - g * sums.N * u))
