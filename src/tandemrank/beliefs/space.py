"""The space of the beliefs: where queries and items live before a query's own clicks are looked at.

    s[q, d] = offset_d + y_d . x_q + beta_q + other[q, d],      x_q ~ N(m_q, I),   beta_q ~ N(0, level)

The directions y_d come from production's vectors (how the queries that it knows differ is how others will), or from the log
alone (`steps.from_log`). `Shape` says how much queries differ,

    |y_d|^2 ~ total (4 p_d (1 - p_d))^(-2 slope),   in the mean over relevant pairs of items that were shown `total`,

and offset_d is such that, over all queries, item d has the level g_d (`levels`). `other` is what does not move here: f, choice.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.cluster import ALONE, Group
from tandemrank.beliefs import _newton_kernel
from tandemrank.beliefs.chunks import in_chunks
from tandemrank.beliefs.grades import FLAT, Floats32, sigmoid
from tandemrank.errors import InputError

Floats = NDArray[np.float64]

DIRECTIONS = 64  # at most, of production's vectors
SHRINK = 2.0  # variances of production's directions are shrunk: e^2 / (e + 2 median)


@dataclass(frozen=True)
class Vectors:
    """The vectors of a policy whose scores are their products.  Shapes: queries [Q, F]; items [D, F]."""

    queries: Floats32
    items: Floats32

    def __post_init__(self) -> None:
        """Refuses what does not fit, and what is not finite."""
        if self.queries.ndim != 2 or self.items.ndim != 2 or self.queries.shape[1] != self.items.shape[1]:
            raise InputError(
                f"vectors must be [queries, F] and [items, F]; got {self.queries.shape} and {self.items.shape}."
            )
        if not (np.isfinite(self.queries).all() and np.isfinite(self.items).all()):
            raise InputError("vectors must be finite; some are not.")


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
    """A prior of every query's vector (x, beta): N(mean, diag(precision)^-1).

    Shapes: items [D, F + 1], the last column 1; offset [D]; mean [Q, F + 1]; precision [F + 1].
    """

    items: Floats32
    offset: Floats32
    mean: Floats
    precision: Floats

    def s(self, q: NDArray[np.integer], d: NDArray[np.integer], x: Floats) -> Floats:
        """s of pairs, without what does not move.  Shapes: q, d [n]; x [Q, F + 1] -> [n]."""
        found: Floats = self.offset[d] + products_at(x, self.items, q, d)
        return found


def products_at(
    x: NDArray[np.floating], y: NDArray[np.floating], q: NDArray[np.integer], d: NDArray[np.integer]
) -> Floats:
    """<x_q, y_d> of pairs.  Shapes: x [Q, F]; y [D, F]; q, d [n] -> [n]."""
    found, (X, W) = np.empty(len(q), np.float32), (np.ascontiguousarray(side, np.float32) for side in (x, y))
    query, item = q.astype(np.int64, copy=False), d.astype(np.int32, copy=False)

    def work(own: slice) -> None:
        _newton_kernel.products_at(X, W, query[own], item[own], found[own])

    in_chunks(work, len(q))
    return found.astype(np.float64)


def from_production(vectors: Vectors, group: Group = ALONE) -> tuple[Directions, Floats] | None:
    """The directions in which production's queries differ, and its mean scores of items; None where they do not differ.

    `group`: who has the other queries.  Shapes: -> directions, [D].
    """
    known = np.unique(group.gather(vectors.queries), axis=0).astype(np.float64)
    V = vectors.items.astype(np.float64)
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
    own = (vectors.queries - m) @ axes[:, used] / np.sqrt(e)
    return Directions(Y[:, used] * scale, own), V @ m


def shaped(directions: Directions, g: Floats, shape: Shape, Q: int, shown: NDArray[np.int64]) -> Space:
    """The space of a shape, at the items' levels g.  Shapes: g [D]; shown, the items that were [n]."""
    p = sigmoid(g)
    Y = directions.items * (4 * p * (1 - p))[:, None] ** -shape.slope
    length = float(p[shown] @ np.square(Y[shown]).sum(1) / p[shown].sum())
    Y = Y * np.sqrt(shape.total / length) if length > 0 else Y
    F = Y.shape[1]
    mean = np.zeros((Q, F + 1))
    if directions.queries is not None:
        mean[:, :F] = shape.trust * directions.queries
    precision = np.append(np.ones(F), 1 / shape.level)
    return with_levels(np.column_stack([Y, np.ones(len(Y))]).astype(np.float32, "C"), g, mean, precision)


def with_levels(items: Floats32, g: Floats, mean: Floats, precision: Floats) -> Space:
    """The space with offsets for the levels g: to a query that is not known item d is as its level says."""
    variance = np.square(items) @ (1 / precision)
    return Space(items, (g * np.sqrt(1 + FLAT * variance)).astype(np.float32), mean, precision)
