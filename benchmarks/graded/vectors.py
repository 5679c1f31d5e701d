"""Vectors of queries and items: how queries differ, as a normal prior; steps to its posterior; what is left of its spread.

    s[q, d] = offset_d + y_d . x_q + beta_q + other[q, d],      x_q ~ N(m_q, I),   beta_q ~ N(0, level)

The directions y_d come from production's vectors (how the queries that it knows differ is how others will), or from the log
alone: the leading singular vectors of what levels leave unexplained. `Shape` says how much queries differ,

    |y_d|^2 ~ total (4 p_d (1 - p_d))^(-2 slope),   in the mean over relevant pairs `total`,

and offset_d is such that, over all queries, item d has the level g_d (`levels`). `other` is what does not move here: f, choice.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from graded import _newton_kernel
from graded.counts import Counts
from graded.grades import FLAT, Floats32, Grades, sigmoid

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

DIRECTIONS = 64  # at most, of production's vectors
LOG_DIRECTIONS = 50  # of a log alone
SHRINK = 2.0  # variances of production's directions are shrunk: e^2 / (e + 2 median)
STEPS, TOLERANCE = 12, 1e-3  # Newton steps of a vector at most, and the gain of log-likelihood below which they end
ITEM_STEPS = 3  # of an item at most: most of the gain


@dataclass(frozen=True)
class Seen:
    """Shown pairs for the steps: where each query begins, items, likelihoods of the levels, what does not move.

    Shapes: first [Q + 1]; item, other [pairs]; L [pairs, J].
    """

    first: Whole
    item: NDArray[np.int32]
    L: Floats32
    other: Floats32
    grades: Grades

    @classmethod
    def of(cls, counts: Counts, grades: Grades, L: Floats32, other: Floats | None = None) -> "Seen":
        """The pairs of counts."""
        still = np.zeros(len(counts.item), np.float32) if other is None else other.astype(np.float32)
        return cls(counts.first, counts.item, L, still, grades)

    @property
    def Q(self) -> int:
        """Queries, shown something or not."""
        return len(self.first) - 1

    @property
    def query(self) -> Whole:
        """The query of every pair."""
        return np.repeat(np.arange(self.Q), np.diff(self.first))


@dataclass(frozen=True)
class Shape:
    """How much queries differ, and how far production's own vector of a query is trusted (0 to 1)."""

    total: float = 4.0
    slope: float = 0.3
    level: float = 0.3
    trust: float = 0.0


@dataclass(frozen=True)
class Directions:
    """A query's taste is a normal vector of variance 1, its s are products with `items`; `queries`: as production knows it.

    Shapes: items [D, F]; queries [Q, F].
    """

    items: Floats
    queries: Floats | None = None


@dataclass(frozen=True)
class Space:
    """A prior of every query's vector (x, beta): N(mean, precision^-1).

    Shapes: items [D, F + 1], the last column 1; offset [D]; mean [Q, F + 1]; precision [F + 1, F + 1].
    """

    items: Floats32
    offset: Floats32
    mean: Floats
    precision: Floats

    def s(self, q: NDArray[np.integer], d: NDArray[np.integer], x: Floats) -> Floats:
        """s of pairs, without what does not move.  Shapes: q, d [n]; x [Q, F + 1] -> [n]."""
        found: Floats = self.offset[d] + np.einsum("nf,nf->n", x.astype(np.float32)[q], self.items[d]).astype(
            np.float64
        )
        return found


def from_production(x: Floats, y: Floats) -> tuple[Directions, Floats] | None:
    """The directions in which production's queries differ, and its mean scores of items; None where they do not differ.

    Shapes: x [Q, F]; y [D, F] -> directions, [D].
    """
    known, V = np.unique(x, axis=0).astype(np.float64), np.asarray(y, np.float64)
    m = known.mean(0)
    spread = np.cov(known.T).reshape(len(m), len(m)) if len(known) > 2 else np.zeros((len(m), len(m)))
    e, axes = np.linalg.eigh(spread)
    Y = V @ axes
    weight = e * np.square(Y).sum(0)
    used = np.flatnonzero((weight > 1e-9 * max(weight.max(), 1e-300)) & (e > 1e-12))
    used = used[np.argsort(-weight[used], kind="stable")[:DIRECTIONS]]
    if not len(used):
        return None
    e = e[used]
    scale = np.sqrt(e**2 / (e + SHRINK * np.median(e)))
    own = (x - m) @ axes[:, used] / np.sqrt(e)
    return Directions(Y[:, used] * scale, own), V @ m


def from_log(seen: Seen, g: Floats, rows: Whole, level: float, *, seed: int, most: int = LOG_DIRECTIONS) -> Directions:
    """The directions of a log alone: singular vectors of what levels of items and queries leave unexplained.

        B[q, d] = d/ds log P(showings) / sqrt((I_q + median) (I_d + median)),   I the information of the pairs

    Singular values are shrunk by the last one, which is noise.  Shapes: g [D]; rows, the queries with a log [n].
    """
    Q, D, query = seen.Q, len(g), seen.query
    flat = Space(
        np.ones((D, 1), np.float32), (g * np.sqrt(1 + FLAT * level)).astype(np.float32), np.zeros((Q, 1)),
        np.array([[1 / level]]),
    )  # fmt: skip
    x = query_step(flat, seen, rows)
    _, slope, h = seen.grades.terms(flat.s(query, seen.item, x) + seen.other, seen.L)
    weights = []
    for index, n, of in ((query, Q, rows), (seen.item, D, slice(None))):
        information = np.bincount(index, h, n)
        weights.append(1 / np.sqrt(information + max(float(np.median(information[of])), 1e-9)))
    F = max(1, min(most, Q // 2, D // 2))
    values = slope * weights[0][query] * weights[1][seen.item]
    V, S = _singular(csr_matrix((values, seen.item, seen.first), shape=(Q, D)), F, seed)
    kept = np.sqrt(np.maximum(S**2 - (0.98 * S[-1]) ** 2, 0)) if len(S) > 1 else S
    return Directions(V * weights[1][:, None] * kept)


def _singular(B: csr_matrix, F: int, seed: int) -> tuple[Floats, Floats]:
    """Right singular vectors and singular values of a sparse matrix, by four steps of the power method.  -> [D, F], [F]."""
    V = np.random.default_rng(seed).standard_normal((B.shape[1], min(F + 10, B.shape[1])))
    for _ in range(4):
        V, _ = np.linalg.qr(B.T @ (B @ V))
    _, S, R = np.linalg.svd(B @ V, full_matrices=False)
    return (V @ R.T)[:, :F], S[:F]


def shaped(directions: Directions, g: Floats, shape: Shape, Q: int) -> Space:
    """The space of a shape, at the items' levels g.  Shapes: g [D]."""
    p = sigmoid(g)
    Y = directions.items * (4 * p * (1 - p))[:, None] ** -shape.slope
    length = float(p @ np.square(Y).sum(1) / p.sum())
    Y = Y * np.sqrt(shape.total / length) if length > 0 else Y
    F = Y.shape[1]
    mean = np.zeros((Q, F + 1))
    if directions.queries is not None:
        mean[:, :F] = shape.trust * directions.queries
    precision = np.diag(np.append(np.ones(F), 1 / shape.level))
    return with_levels(np.column_stack([Y, np.ones(len(Y))]).astype(np.float32), g, mean, precision)


def with_levels(items: Floats32, g: Floats, mean: Floats, precision: Floats) -> Space:
    """The space with offsets for the levels g: to a query that is not known item d is as its level says."""
    variance = np.einsum("df,fg,dg->d", items, np.linalg.inv(precision), items)
    return Space(items, (g * np.sqrt(1 + FLAT * variance)).astype(np.float32), mean, precision)


def query_step(space: Space, seen: Seen, rows: Whole, x: Floats | None = None) -> Floats:
    """The vectors of some queries at their posterior mode, all others at the prior's mean; from x, if given.

    Shapes: rows [n]; x [Q, F + 1] -> [Q, F + 1].
    """
    found = space.mean.copy()
    if x is not None:
        found[rows] = x[rows]
    offset = space.offset[seen.item] + seen.other
    _newton_kernel.ascend(
        rows, seen.first, seen.item, seen.L, seen.grades.family(), offset, space.items, space.precision, space.mean, found,
        STEPS, TOLERANCE,
    )  # fmt: skip
    return found


@dataclass(frozen=True)
class Spread:
    """How sure the vectors are: variance of s[q, d] ~ query_q item_d, and the mean covariance of the vectors.

    `asked`: the variance of the pairs that were asked for.  Shapes: query [Q]; item [D]; mean [F + 1, F + 1]; asked [n].
    """

    query: Floats
    item: Floats
    mean: Floats
    asked: Floats


def spread_of(space: Space, seen: Seen, rows: Whole, x: Floats, asked: Counts | None = None) -> Spread:
    """The spread of the vectors by Laplace's approximation; queries without a log have that of the prior."""
    W, Q, D = space.items.astype(np.float64), seen.Q, len(space.items)
    G = W.T @ W / max(D, 1)
    first, item = (np.zeros(Q + 1, np.int64), np.zeros(0, np.int32)) if asked is None else (asked.first, asked.item)
    offset = space.offset[seen.item] + seen.other
    total, trace, variance = _newton_kernel.spread(
        rows,
        seen.first,
        seen.item,
        seen.L,
        seen.grades.family(),
        offset,
        space.items,
        space.precision,
        x,
        G,
        first,
        item,
    )
    prior: Floats = np.linalg.inv(space.precision).astype(np.float64)
    mean: Floats = total / len(rows) if len(rows) else prior
    size = max(float((mean * G).sum()), np.finfo(float).tiny)
    query = np.full(Q, float((prior * G).sum()) / size)
    query[rows] = trace / size
    return Spread(query, np.einsum("df,fg,dg->d", W, mean, W), mean, variance.astype(np.float64))


@dataclass(frozen=True)
class ItemPrior:
    """Normal priors of the items' directions and offsets.  Shapes: centre, precision [D, F + 1], the last the offset."""

    centre: Floats
    precision: Floats


def item_step(space: Space, seen: Seen, x: Floats, mean: Floats, prior: ItemPrior) -> Space:
    """The items' directions and offsets at their posterior mode, with the queries' vectors known up to their spread.

    What is not known of x counts as information about it times its variance: a ridge. Of the bit it also shrinks s (kappa).
    Shapes: x [Q, F + 1]; mean [F + 1, F + 1], the covariance of a query's vector.
    """
    F, D, query = space.items.shape[1] - 1, len(space.items), seen.query
    _, _, h = seen.grades.terms(space.s(query, seen.item, x) + seen.other, seen.L)
    ridge = np.zeros((D, F + 1))
    ridge[:, :F] = np.bincount(seen.item, h, D)[:, None] * np.diag(mean)[None, :F]
    m = prior.centre * prior.precision / (prior.precision + ridge)
    y = np.column_stack([space.items[:, :F], space.offset]).astype(np.float64)
    order = csr_matrix((np.arange(len(seen.item)), seen.item, seen.first), shape=(seen.Q, D)).tocsc()
    at = order.data.astype(np.int64)
    families = np.tile(seen.grades.family(), (D, 1, 1))
    L = seen.L[at]
    if seen.grades.is_bit:
        kappa = 1 / np.sqrt(1 + FLAT * np.einsum("df,fg,dg->d", space.items, mean, space.items))
        families[:, 1, 1] = kappa
        L = L ** kappa[seen.item[at]][:, None].astype(np.float32)
    offset = (seen.other + x[query, F].astype(np.float32))[at]
    vectors = np.column_stack([x[:, :F], np.ones(len(x))]).astype(np.float32)
    _newton_kernel.ascend_items(
        order.indptr.astype(np.int64), order.indices.astype(np.int32), L, families, offset, vectors, prior.precision + ridge, m,
        y, ITEM_STEPS, TOLERANCE,
    )  # fmt: skip
    items = np.column_stack([y[:, :F], np.ones(D)]).astype(np.float32)
    return replace(space, items=items, offset=y[:, F].astype(np.float32))
