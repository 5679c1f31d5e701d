"""Graded relevance: a distribution of R around every mean, with the bit as its limit.

R is one of J levels; before a pair's own showings, with s the mean in log-odds,

    P(level j | s) ~ w_j(s) = exp(b_j + g_j s - c s^2),      P(level j | s, showings) ~ w_j(s) L_j

*graded*: levels even in log-odds l_j, w_j = exp(-(l_j - s)^2 / (2 spread^2)): log-odds of R are normal around s; a small
spread trusts the model (kappa large), a large one the pair's own showings. *bit*: two levels r0 and r1, w = (1, e^s): one click
settles it. Both are one family for every step (`_newton_kernel`). The log-likelihood of a pair's showings has the derivatives

    E[g | s, showings] - E[g | s],          Var[g | s, showings] - Var[g | s].
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank.beliefs import _newton_kernel
from tandemrank.beliefs.chunks import in_chunks
from tandemrank.beliefs.counts import Counts

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]

FLAT = np.pi / 8  # E sigmoid(N(mu, v)) = sigmoid(mu / sqrt(1 + pi v / 8)), nearly
LEVELS, STEP = (10, 24), 1.0  # how many levels there are, and how far apart in spreads, if that allows it
FINE = 161  # levels for pairs whose own showings say more than the levels tell apart
SHARP = 0.15  # information of a pair's showings, in squared steps of the levels, from which that is so
NODES = ((-np.sqrt(3.0), 1 / 6), (0.0, 2 / 3), (np.sqrt(3.0), 1 / 6))  # of a normal distribution
BLOCK, SEVERAL = 400_000, 32  # pairs at once, and how many times fewer where levels are many
LEAST = 1e-9  # that the chances of a bit are apart
LEAST_ROWS = 4096  # pairs that are worth a thread


def sigmoid(x: NDArray[np.floating]) -> Floats:
    """1 / (1 + exp(-x)), without overflow."""
    found: Floats = 1 / (1 + np.exp(-np.clip(x, -60, 60)))
    return found


@dataclass(frozen=True)
class Grades:
    """A family: its levels, and the spread around s (0: the bit).  Shapes: R [J]."""

    R: Floats
    spread: float

    @classmethod
    def bit(cls, relevant: float, irrelevant: float) -> "Grades":
        """Relevant (clicked with r1 when examined) or not (r0)."""
        return cls(np.array([irrelevant, relevant]), 0.0)

    @classmethod
    def graded(cls, rate: float, spread: float) -> "Grades":
        """Levels around the mean rate of a log: from a thirtieth of it to nearly 1, or forty times it."""
        low, high = rate / 30, min(0.97, 40 * rate)
        ends = np.log(low / (1 - low)), np.log(high / (1 - high))
        number = int(np.clip(np.ceil((ends[1] - ends[0]) / (STEP * spread)) + 1, *LEVELS))
        log_odds = np.linspace(*ends, number)
        return cls(sigmoid(log_odds), spread)

    @property
    def is_bit(self) -> bool:
        """Whether relevance is a bit."""
        return self.spread == 0

    @property
    def range(self) -> tuple[float, float]:
        """What R may be: all chances, or between those of a bit."""
        if not self.is_bit:
            return 0.0, 1.0
        return float(self.R[0]), float(max(self.R[1], self.R[0] + LEAST))

    def family(self) -> Floats32:
        """b, g and (c, lowest s, highest s).  Shapes: -> [3, max(J, 3)]."""
        found = np.zeros((3, max(len(self.R), 3)), np.float32)
        if self.is_bit:
            found[1, 1], found[2, 1:3] = 1, (-80, 80)
            return found
        v = self.spread**2
        log_odds = np.log(self.R / (1 - self.R))
        found[0, : len(self.R)], found[1, : len(self.R)] = -(log_odds**2) / (2 * v), log_odds / v
        found[2, :3] = 1 / (2 * v), log_odds[0] - np.sqrt(v), log_odds[-1] + np.sqrt(v)
        return found

    def weights(self, s: Floats, variance: float | Floats = 0.0) -> Floats:
        """P(level | s).  Shapes: s [n]; variance [n] or one -> [J, n]."""
        if self.is_bit:
            p = sigmoid(s / np.sqrt(1 + FLAT * np.asarray(variance)))
            return np.stack([1 - p, p])
        log_odds, v = np.log(self.R / (1 - self.R)), self.spread**2 + np.asarray(variance)
        t = np.clip(s, log_odds[0] - np.sqrt(v), log_odds[-1] + np.sqrt(v))
        w = np.exp(-((log_odds[:, None] - t) ** 2) / (2 * v))
        found: Floats = w / w.sum(0)
        return found

    def rate(self, s: Floats) -> Floats:
        """E[R | s].  Shapes: [n] -> [n]."""
        found: Floats = self.R @ self.weights(s)
        return found

    def rate_and_slope(self, s: Floats) -> tuple[Floats, Floats]:
        """E[R | s] and its derivative, the covariance of R and g.  Shapes: [n] -> [n], [n]."""
        w, g = self.weights(s), self.family()[1, : len(self.R)].astype(np.float64)
        rate = self.R @ w
        return rate, (self.R * g) @ w - rate * (g @ w)

    def terms(self, s: Floats, L: Floats32) -> tuple[Floats, Floats, Floats]:
        """Log-likelihood of the showings of pairs, its slope by s, and minus its second derivative where that is positive.

        Shapes: s [n]; L [n, J] -> [n] each.
        """
        return self.terms_of_kinds(s, np.ascontiguousarray(L.T), np.arange(len(s), dtype=np.int32))

    def terms_of_kinds(self, s: Floats, table: Floats32, kind: NDArray[np.int32]) -> tuple[Floats, Floats, Floats]:
        """`terms` of pairs whose likelihoods are those of a kind (`Counts.table`).  Shapes: s, kind [n]; table [J, kinds]."""
        value, slope, h = (np.empty(len(s), np.float32) for _ in range(3))
        small, family = s.astype(np.float32), self.family()

        def work(own: slice) -> None:
            _newton_kernel.terms_of(small[own], table, kind[own], family, value[own], slope[own], h[own])

        in_chunks(work, len(s), LEAST_ROWS)
        return value.astype(np.float64), slope.astype(np.float64), h.astype(np.float64)

    def marginal(self, s: Floats, variance: Floats, L: Floats32) -> Floats:
        """Log-likelihood of showings that s has not seen, what is not known of s integrated out.  Shapes: [n]; L [n, J]."""
        found = np.empty(len(s))
        for a in range(0, len(s), BLOCK):
            part = slice(a, a + BLOCK)
            found[part] = np.log(np.maximum((self.weights(s[part], variance[part]) * L[part].T).sum(0), 1e-30))
        return found

    def posterior(self, s: Floats, variance: Floats, L: Floats32) -> tuple[Floats, Floats]:
        """E[R] and Var[R] after a pair's showings, s ~ N(s, variance) given all of them.  Shapes: [n]; L [n, J] -> [n], [n]."""
        mean, square = np.zeros(len(s)), np.zeros(len(s))
        if self.is_bit:
            ratio = np.log(np.maximum(L[:, 1], 1e-30)).astype(np.float64) - np.log(np.maximum(L[:, 0], 1e-30))
            p = sigmoid((s + ratio) / np.sqrt(1 + FLAT * variance))
            rate = self.R[0] + (self.R[1] - self.R[0]) * p
            return rate, (self.R[1] - self.R[0]) ** 2 * p * (1 - p)
        for a in range(0, len(s), BLOCK):
            part = slice(a, a + BLOCK)
            for node, weight in NODES:
                w = self.weights(s[part] + node * np.sqrt(variance[part])) * L[part].T
                w /= np.maximum(w.sum(0), 1e-30)
                mean[part] += weight * (self.R @ w)
                square[part] += weight * (self.R**2 @ w)
        return mean, np.maximum(square - mean**2, 0)

    def remembered(self, counts: Counts, s: Floats, variance: Floats, L: Floats32) -> tuple[Floats, Floats]:
        """`posterior` of all pairs of counts; where showings are many, by levels that are close enough to tell them apart.

        Shapes: s, variance [pairs]; L [pairs, J] -> [pairs], [pairs].
        """
        mean, spread = self.posterior(s, variance, L)
        if self.is_bit:
            return mean, spread
        log_odds = np.log(self.R / (1 - self.R))
        step = log_odds[1] - log_odds[0]
        sharp = np.flatnonzero(counts.E * mean * (1 - mean) * step**2 > SHARP)
        fine = Grades(sigmoid(np.linspace(log_odds[0], log_odds[-1], FINE)), self.spread)
        kept = np.zeros(len(s), np.bool_)
        kept[sharp] = True
        few, place = counts.only(kept), np.arange(len(sharp))
        for first in range(0, len(sharp), BLOCK // SEVERAL):
            own = slice(first, first + BLOCK // SEVERAL)
            some, L = sharp[own], few.only((place >= own.start) & (place < own.stop)).likelihood(fine.R)[0]
            mean[some], spread[some] = fine.posterior(s[some], variance[some], L)
        return mean, spread

    def prior(self, s: Floats, variance: Floats) -> Floats:
        """E[R] of pairs that were never shown, by a table.  Shapes: s, variance of one shape -> the same."""
        if self.is_bit:
            found: Floats = self.R[0] + (self.R[1] - self.R[0]) * sigmoid(s / np.sqrt(1 + FLAT * variance))
            return found
        at = np.linspace(-16, 12, 1401)
        table = self.rate(at)
        total = np.zeros(np.shape(s))
        for node, weight in NODES:
            total += weight * np.interp(s + node * np.sqrt(variance), at, table)
        return total
