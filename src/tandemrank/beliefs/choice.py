"""What production's own choice says: a live system was made to choose.

    n[q, d] ~ Poisson(N_q m_d G),   G ~ Gamma(alpha, alpha)              showings of a pair, of N_q places and the share m_d
    choice[q, d] = E[log G | n] = digamma(alpha + n) - log(alpha + N_q m_d)

how much more often a query was shown an item than others were; a pair that was never shown counts as one that was shown once,
and what sets the two apart is fitted (`Chosen.never`). alpha by the likelihood of all pairs, those with n = 0 by groups of N
and m.

    opinion[q, d] = a_q . b_d,          the nearest product of few dimensions to `choice`, rows weighed by how much was shown

what production seems to think of a pair by all its lists, also of one that it never showed. Nothing has the size Q x D: what
pairs that were never shown have is a smooth function of N_q and m_d, hence itself a product of few dimensions.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.sparse import csr_matrix
from scipy.special import digamma, gammaln

from tandemrank._base.cluster import Group
from tandemrank.beliefs.counts import Counts

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Product = tuple[Floats, Floats]  # of vectors of queries and items
GROUPS = 40
RANK = 12  # of the opinion
SMOOTH = 3  # of the function of N_q and m_d
PAIRS = 300_000  # that are enough for alpha
BLOCK = 200_000  # pairs at once
BLUNT = 20.0  # alpha above which production knows hardly one query from another: it has no opinion


@dataclass(frozen=True)
class Choice:
    """How production chooses; `place`: how much of a showing is examined, in the mean; `never`: the choice of pairs that were
    never shown as a product, as if once; `opinion`: vectors of queries and items.
    Shapes: places [Q]; share [D]; never [Q, SMOOTH], [D, SMOOTH]; opinion [Q, RANK], [D, RANK].
    """

    alpha: float
    places: Floats
    share: Floats
    place: float
    never: Product
    opinion: Product

    @classmethod
    def of(cls, counts: Counts) -> "Choice":
        """Fitted to the showings."""
        c, group = counts, counts.group
        places, total = c.by_query(c.n), c.by_item(c.n)
        share = (total + 0.5) / (total.sum() + 0.5 * c.D)
        every_nth = max(1, group.before(len(c.query))[1] // PAIRS)  # whole queries, for alpha alone
        some = (c.query + c.before) % every_nth == 0
        number = group.gather(c.n[some])
        expected = group.gather(places[c.query[some]] * share[c.item[some]])
        a, b = _groups(group.gather(places[-c.before % every_nth :: every_nth])), _groups(share)
        every = a[0][:, None] * b[0][None, :], a[1][:, None] * b[1][None, :]  # expected, number of pairs

        def cost(log_alpha: float) -> float:
            alpha = np.exp(log_alpha)
            shown = gammaln(alpha + number) - gammaln(alpha) - number * np.log(alpha + expected)
            return -float(shown.sum() - alpha * (every[1] * np.log1p(every[0] / alpha)).sum())

        found = minimize_scalar(cost, bounds=(-6, 4), method="bounded", options={"xatol": 0.05})
        examined, shown = group.total(c.E.sum(), c.n.sum())
        alpha = float(np.exp(found.x))
        never = _never(alpha, places, group.gather(places), share)
        plain = cls(alpha=alpha, places=places, share=share, place=examined / shown, never=never, opinion=never)
        return replace(plain, opinion=_opinion(plain, c))

    def at(self, q: NDArray[np.integer], d: NDArray[np.integer], n: Floats | float) -> Floats:
        """The choice of pairs that were shown n times.  Shapes: [n] each, or any that go together."""
        found: Floats = digamma(self.alpha + n) - np.log(self.alpha + self.places[q] * self.share[d])
        return found


def products_of(vectors: Product, q: NDArray[np.integer], d: NDArray[np.integer]) -> Floats:
    """<a_q, b_d> of pairs, some at a time: there are far more pairs than vectors.  Shapes: q, d [n] -> [n]."""
    found, (a, b) = np.empty(len(q)), vectors
    for own in (slice(first, first + BLOCK) for first in range(0, len(q), BLOCK)):
        np.einsum("nf,nf->n", a[q[own]], b[d[own]], out=found[own])
    return found


def _opinion(choice: Choice, c: Counts) -> Product:
    """The vectors of queries and items of production's opinion.  Shapes: -> [Q, RANK], [D, RANK].

    All items that were never shown have the same column: it is looked at once, as the last, and counts for all of them.
    """
    sum_, places = c.group.sum, choice.places
    if choice.alpha > BLUNT:
        return np.zeros((c.Q, 1)), np.zeros((c.D, 1))
    A, B = choice.never
    # What was shown once differs from what never was by 1 / alpha = digamma(alpha + 1) - digamma(alpha).
    own = choice.at(c.query, c.item, c.n) - products_of(choice.never, c.query, c.item) + 1 / choice.alpha
    shown = c.items
    column = np.full(c.D, len(shown), np.int32)
    column[shown] = np.arange(len(shown))
    _, example, number = np.unique(column, return_index=True, return_counts=True)
    D, B = len(number), B[example]
    T = csr_matrix((own, column[c.item], c.first), shape=(c.Q, D))
    # Rows and columns without their means: A has room for both.
    rows = (np.asarray(T.sum(1)).ravel() + A @ (number @ B)) / c.D
    A, B = np.column_stack([A, -rows]), np.column_stack([B, np.ones(D)])
    some = c.group.gather(places[places > 0])
    weight = np.sqrt(places / (places + np.median(some)))
    columns = (sum_(T.T @ weight) + B @ sum_(A.T @ weight)) / c.group.total(weight.sum())[0]
    A, B = np.column_stack([A, -np.ones(c.Q)]), np.column_stack([B, columns]) * np.sqrt(number)[:, None]
    W = csr_matrix((own * weight[c.query], column[c.item], c.first), shape=(c.Q, D))
    WA = A * weight[:, None]
    F = max(1, min(RANK, D // 2, c.group.before(c.Q)[1] // 2))
    V = np.random.default_rng(0).standard_normal((D, min(F + 8, D)))
    for _ in range(4):
        U = W @ V + WA @ (B.T @ V)
        V, _ = np.linalg.qr(sum_(W.T @ U) + B @ sum_(WA.T @ U))
    R, S = right_singular(W @ V + WA @ (B.T @ V), c.group)
    V, noise = (V @ R)[:, :F], S[min(F, len(S) - 1)]
    shrunk = np.sqrt(np.maximum(1 - (noise / np.maximum(S[:F], 1e-12)) ** 2, 0))
    return (T @ V + A @ (B.T @ V)) * shrunk, (V / np.sqrt(number)[:, None])[column]


def _never(alpha: float, places: Floats, every: Floats, share: Floats) -> Product:
    """The choice of pairs that were never shown, as if once, as a product, at a grid of N and m, and between by interpolation.

    Shapes: every [queries of the whole log] -> [Q, SMOOTH], [D, SMOOTH].
    """
    grids = [np.unique(np.quantile(values, np.linspace(0, 1, GROUPS))) for values in (every, share)]
    table = digamma(alpha + 1) - np.log(alpha + grids[0][:, None] * grids[1][None, :])
    U, S, V = np.linalg.svd(table, full_matrices=False)
    k = min(SMOOTH, len(S))
    A, B = (
        np.column_stack([np.interp(values, grid, side[:, j]) for j in range(k)])
        for values, grid, side in zip((places, share), grids, (U[:, :k] * S[:k], V[:k].T), strict=True)
    )
    return A, B


def right_singular(X: Floats, group: Group) -> tuple[Floats, Floats]:
    """Right singular vectors and singular values, the largest first, of rows of which everybody has some.

    Shapes: X [n, F] -> [F, F], [F].
    """
    squares, vectors = np.linalg.eigh(group.sum(X.T @ X))
    return vectors[:, ::-1], np.sqrt(np.maximum(squares[::-1], 0))


def _groups(values: Floats) -> tuple[Floats, Floats]:
    """Means and sizes of groups of nearly equal values, zeros left out.  Shapes: [n] -> [G], [G]."""
    ordered = np.sort(values[values > 0])
    parts = [part for part in np.array_split(ordered, GROUPS) if len(part)]
    return np.array([part.mean() for part in parts]), np.array([float(len(part)) for part in parts])
