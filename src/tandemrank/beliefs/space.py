"""The space of the posterior with memory: where queries and items live before a query's own clicks are looked at.

    s[q, d] = offset_d + y_d . x_q + beta_q,   x_q ~ N(m_q, I),   beta_q ~ N(0, level)

The directions y_d come from the vectors of a policy (how the queries that it knows differ is how others will), or from the
log alone (the leading singular vectors of what the items' levels leave unexplained). `Shape` says how much queries differ:

    |y_d|^2 ~ total (4 p_d (1 - p_d))^(-2 slope),   in the mean over relevant pairs `total`

and offset_d is such that, over all queries, item d is relevant with chance p_d (`levels`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank.beliefs import _newton_kernel
from tandemrank.beliefs.vectors import Vectors
from tandemrank.policies.memory import Memory

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]

DIRECTIONS = 64  # at most, of a policy's vectors
LOG_DIRECTIONS = 50  # of a log alone
SHRINK = 2.0  # variances of a policy's directions are shrunk: e^2 / (e + 2 median)
FLAT = np.pi / 8  # E sigmoid(N(mu, v)) = sigmoid(mu / sqrt(1 + pi v / 8)), nearly


@dataclass(frozen=True)
class Directions:
    """How queries may differ: a query's taste is a normal vector of variance 1, its scores are its products with `items`.

    `design` is what is known of the items' levels, `rising` which of its columns must not count against an item. `queries` is
    the taste of every query as a policy knows it, None without one.
    Shapes: items [D, F]; design [D, J]; rising [J]; queries [Q, F].
    """

    items: Floats
    design: Floats
    rising: NDArray[np.bool_]
    queries: Floats | None = None


@dataclass(frozen=True)
class Shape:
    """How much queries differ, and how far a policy's own vector of a query is trusted (0 to 1)."""

    total: float = 4.0
    slope: float = 0.3
    level: float = 0.3
    trust: float = 0.0


@dataclass(frozen=True)
class Space:
    """A prior of every query's vector (x, beta): N(mean, precision^-1).

    Shapes: items [D, F + 1], the last column 1; offset [D]; mean [Q, F + 1]; precision [F + 1, F + 1].
    """

    items: Floats32
    offset: Floats32
    mean: Floats
    precision: Floats


def from_vectors(vectors: Vectors) -> Directions | None:
    """The directions in which the queries of a policy differ; None where they do not.

    The policy's mean score says what it thinks of an item's level, as it is and by its logarithm: a policy's scores may be
    log-odds or rates.
    """
    known = np.unique(vectors.queries, axis=0).astype(np.float64)
    V, m = vectors.items.astype(np.float64), known.mean(0)
    score = V @ m
    columns = [np.ones(len(V)), score]
    if score.max() > 0:
        columns.append(np.log(np.maximum(score, 0.02 * score.max())))
    design = np.column_stack(columns)
    spread = np.cov(known.T).reshape(len(m), len(m)) if len(known) > 2 else np.zeros((len(m), len(m)))
    e, E = np.linalg.eigh(spread)
    Y = V @ E
    weight = e * np.square(Y).sum(0)
    used = np.flatnonzero((weight > 1e-9 * max(weight.max(), 1e-300)) & (e > 1e-12))
    used = used[np.argsort(-weight[used], kind="stable")[:DIRECTIONS]]
    if not len(used):
        return None
    e = e[used]
    scale = np.sqrt(e**2 / (e + SHRINK * np.median(e)))
    own = (vectors.queries - m) @ E[:, used] / np.sqrt(e)
    return Directions(Y[:, used] * scale, design, np.arange(design.shape[1]) > 0, own)


def constant_design(D: int) -> tuple[Floats, NDArray[np.bool_]]:
    """What is known of the items' levels without a policy: nothing."""
    return np.ones((D, 1)), np.zeros(1, np.bool_)


def from_log(memory: Memory, g: Floats, rows: NDArray[np.int64], level: float, *, seed: int) -> Directions:
    """The directions of a log alone: singular vectors of what levels of items and queries leave unexplained.

        B[q, d] = (sigmoid(s + l) - sigmoid(s)) / sqrt((I_q + median) (I_d + median)),   I the information of the pairs

    Singular values are shrunk by the last one, which is noise.  Shapes: g [D]; rows, the queries with a log [n].
    """
    Q, D, query = memory.Q, memory.D, memory.query
    offset, x = (g * np.sqrt(1 + FLAT * level)).astype(np.float32), np.zeros((Q, 1))
    _newton_kernel.ascend(
        rows, memory.first, memory.item, memory.value, offset, np.ones((D, 1), np.float32), np.array([[1 / level]]),
        np.zeros((Q, 1)), x, 12, 1e-4,
    )  # fmt: skip
    s = offset[memory.item] + x[query, 0]
    before, after = sigmoid(s), sigmoid(s + memory.value)
    h = np.maximum(before * (1 - before) - after * (1 - after), 0)
    weights = []
    for index, n, of in ((query, Q, rows), (memory.item, D, slice(None))):
        information = np.bincount(index, h, n)
        weights.append(1 / np.sqrt(information + max(float(np.median(information[of])), 1e-9)))
    V, S = _singular((after - before) * weights[0][query] * weights[1][memory.item], memory, seed)
    kept = np.sqrt(np.maximum(S**2 - (0.98 * S[-1]) ** 2, 0)) if len(S) > 1 else S
    design, rising = constant_design(D)
    return Directions(V * weights[1][:, None] * kept, design, rising)


def _singular(values: Floats, memory: Memory, seed: int) -> tuple[Floats, Floats]:
    """Right singular vectors and singular values of a sparse matrix, by four steps of the power method.

    Shapes: values [pairs] -> [D, F], [F].
    """
    from scipy.sparse import csr_matrix

    F = max(1, min(LOG_DIRECTIONS, memory.Q // 2, memory.D // 2))
    B = csr_matrix((values, memory.item, memory.first), shape=(memory.Q, memory.D))
    V = np.random.default_rng(seed).standard_normal((memory.D, min(F + 10, memory.D)))
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
    """The space with offsets for the levels g: a query that is not known finds item d relevant with chance sigmoid(g_d)."""
    variance = np.einsum("df,fg,dg->d", items, np.linalg.inv(precision), items)
    return Space(items, (g * np.sqrt(1 + FLAT * variance)).astype(np.float32), mean, precision)


def sigmoid(x: NDArray[np.floating]) -> Floats:
    """1 / (1 + exp(-x)), without overflow."""
    found: Floats = 1 / (1 + np.exp(-np.clip(x, -60, 60)))
    return found
