"""What production's own choice says: a live system was made to choose.

    n[q, d] ~ Poisson(N_q m_d G),   G ~ Gamma(alpha, alpha)              showings of a pair, of N_q places and the share m_d
    choice[q, d] = E[log G | n] = digamma(alpha + n) - log(alpha + N_q m_d)

how much more often a query was shown an item than others were; of a pair that was never shown it is the lower, the more chances
it had. alpha by the likelihood of all pairs, those with n = 0 by groups of N and m.

    opinion[q, d] = a_q . b_d,          the nearest product of few dimensions to `choice`, rows weighed by how much was shown

what production seems to think of a pair by all its lists, also of one that it never showed. Nothing has the size Q x D: what
pairs that were never shown have is a smooth function of N_q and m_d, hence itself a product of few dimensions.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.sparse import csr_matrix
from scipy.special import digamma, gammaln

from tandemrank.beliefs.counts import Counts

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
GROUPS = 40
RANK = 12  # of the opinion
SMOOTH = 3  # of the function of N_q and m_d
PAIRS = 300_000  # that are enough for alpha
BLUNT = 20.0  # alpha above which production knows hardly one query from another: it has no opinion


@dataclass(frozen=True)
class Choice:
    """How production chooses.  Shapes: places [Q]; share [D]."""

    alpha: float
    places: Floats
    share: Floats
    counts: Counts

    @classmethod
    def of(cls, counts: Counts) -> "Choice":
        """Fitted to the showings."""
        places = counts.sums(counts.query, counts.n, counts.Q)
        total = counts.sums(counts.item, counts.n, counts.D)
        share = (total + 0.5) / (total.sum() + 0.5 * counts.D)
        every_nth = max(1, len(counts.query) // PAIRS)  # whole queries, for alpha alone
        some = counts.query % every_nth == 0
        number = counts.n[some]
        expected = places[counts.query[some]] * share[counts.item[some]]
        a, b = _groups(places[::every_nth]), _groups(share)
        every = a[0][:, None] * b[0][None, :], a[1][:, None] * b[1][None, :]  # expected, number of pairs

        def cost(log_alpha: float) -> float:
            alpha = np.exp(log_alpha)
            shown = gammaln(alpha + number) - gammaln(alpha) - number * np.log(alpha + expected)
            return -float(shown.sum() - alpha * (every[1] * np.log1p(every[0] / alpha)).sum())

        found = minimize_scalar(cost, bounds=(-6, 4), method="bounded", options={"xatol": 0.05})
        return cls(float(np.exp(found.x)), places, share, counts)

    def at(self, q: NDArray[np.integer], d: NDArray[np.integer], n: Floats | float) -> Floats:
        """The choice of pairs that were shown n times.  Shapes: [n] each, or any that go together."""
        found: Floats = digamma(self.alpha + n) - np.log(self.alpha + self.places[q] * self.share[d])
        return found

    @cached_property
    def opinion(self) -> tuple[Floats, Floats]:
        """The vectors of queries and items of production's opinion.  Shapes: -> [Q, RANK], [D, RANK]."""
        c = self.counts
        if self.alpha > BLUNT:
            return np.zeros((c.Q, 1)), np.zeros((c.D, 1))
        A, B = self.never
        own = self.at(c.query, c.item, c.n) - np.einsum("nf,nf->n", A[c.query], B[c.item])
        T = csr_matrix((own, c.item, c.first), shape=(c.Q, c.D))
        # Rows and columns without their means: A has room for both.
        rows = (np.asarray(T.sum(1)).ravel() + A @ B.sum(0)) / c.D
        A, B = np.column_stack([A, -rows]), np.column_stack([B, np.ones(c.D)])
        some = self.places[self.places > 0]
        weight = np.sqrt(self.places / (self.places + np.median(some)))
        columns = (T.T @ weight + B @ (A.T @ weight)) / weight.sum()
        A, B = np.column_stack([A, -np.ones(c.Q)]), np.column_stack([B, columns])
        W = csr_matrix((own * weight[c.query], c.item, c.first), shape=(c.Q, c.D))
        WA = A * weight[:, None]
        F = max(1, min(RANK, c.D // 2, c.Q // 2))
        V = np.random.default_rng(0).standard_normal((c.D, min(F + 8, c.D)))
        for _ in range(4):
            U = W @ V + WA @ (B.T @ V)
            V, _ = np.linalg.qr(W.T @ U + B @ (WA.T @ U))
        _, S, R = np.linalg.svd(W @ V + WA @ (B.T @ V), full_matrices=False)
        V, noise = (V @ R.T)[:, :F], S[min(F, len(S) - 1)]
        shrunk = np.sqrt(np.maximum(1 - (noise / np.maximum(S[:F], 1e-12)) ** 2, 0))
        return (T @ V + A @ (B.T @ V)) * shrunk, V

    @cached_property
    def never(self) -> tuple[Floats, Floats]:
        """The choice of pairs that were never shown as a product, at a grid of N and m, and between by interpolation.

        Shapes: -> [Q, SMOOTH], [D, SMOOTH].
        """
        parts = []
        for values in (self.places, self.share):
            grid = np.unique(np.quantile(values, np.linspace(0, 1, GROUPS)))
            parts.append((grid, values))
        table = digamma(self.alpha) - np.log(self.alpha + parts[0][0][:, None] * parts[1][0][None, :])
        U, S, V = np.linalg.svd(table, full_matrices=False)
        k = min(SMOOTH, len(S))
        sides = (U[:, :k] * S[:k], V[:k].T)
        A, B = (
            np.column_stack([np.interp(values, grid, side[:, j]) for j in range(k)])
            for (grid, values), side in zip(parts, sides, strict=True)
        )
        return A, B


def _groups(values: Floats) -> tuple[Floats, Floats]:
    """Means and sizes of groups of nearly equal values, zeros left out.  Shapes: [n] -> [G], [G]."""
    ordered = np.sort(values[values > 0])
    parts = [part for part in np.array_split(ordered, GROUPS) if len(part)]
    return np.array([part.mean() for part in parts]), np.array([float(len(part)) for part in parts])
