"""The steps of the posterior with memory: queries given items, items given queries, and the likelihood of held-out pairs."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from tandemrank.beliefs import _newton_kernel
from tandemrank.beliefs.space import FLAT, Space, sigmoid
from tandemrank.gradients._bridge import compiling
from tandemrank.policies.memory import Memory

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

STEPS, TOLERANCE = 12, 1e-3  # Newton steps of a vector at most, and the gain of log-likelihood below which they end
ITEM_STEPS = 2  # of an item at most: most of the gain
CHUNKS = 8  # of sums over queries
ITEM_KNOWLEDGE = 300.0  # queries that an item's direction before the log counts for


def query_step(space: Space, memory: Memory, rows: Rows, x: Floats | None = None) -> Floats:
    """The vectors of some queries at their posterior mode, all others at the prior's mean; from x, if given.

    Shapes: rows [n]; x [Q, F + 1] -> [Q, F + 1].
    """
    found = space.mean.copy()
    if x is not None:
        found[rows] = x[rows]
    with compiling():
        _newton_kernel.ascend(
            rows, memory.first, memory.item, memory.value, space.offset, space.items, space.precision, space.mean, found,
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


def spread_of(space: Space, memory: Memory, rows: Rows, x: Floats, asked: Memory | None = None) -> Spread:
    """The spread of the vectors by Laplace's approximation; queries without a log have that of the prior.

    Shapes: rows [n]; x [Q, F + 1].
    """
    W, Q, D = space.items.astype(np.float64), memory.Q, memory.D
    G = W.T @ W / max(D, 1)
    first, item = (np.zeros(Q + 1, np.int64), np.zeros(0, np.int32)) if asked is None else (asked.first, asked.item)
    with compiling():
        total, trace, variance = _newton_kernel.spread(
            rows, memory.first, memory.item, memory.value, space.offset, space.items, space.precision, x, G, first, item
        )
    prior: Floats = np.linalg.inv(space.precision).astype(np.float64)
    mean: Floats = total / len(rows) if len(rows) else prior
    size = max(float((mean * G).sum()), np.finfo(float).tiny)
    query = np.full(Q, float((prior * G).sum()) / size)
    query[rows] = trace / size
    return Spread(query, np.einsum("df,fg,dg->d", W, mean, W), mean, variance.astype(np.float64))


def held_out_log_odds(space: Space, memory: Memory, rows: Rows, x: Floats, held_out: Memory) -> tuple[Floats, Spread]:
    """The log-odds of pairs that x has not seen, with what is not known of x integrated out, and the spread of x.

    `held_out` has pairs of `rows` alone.  Shapes: -> [held-out pairs].
    """
    q, d = held_out.query, held_out.item
    s = space.offset[d] + np.einsum("nf,nf->n", x[q].astype(np.float32), space.items[d]).astype(np.float64)
    spread = spread_of(space, memory, rows, x, held_out)
    return s / np.sqrt(1 + FLAT * spread.asked), spread


def held_out_terms(log_odds: Floats, held_out: Memory) -> Floats:
    """log P(showings of each held-out pair), up to what is the same for every model: log(1 - p + p e^l).  Shapes: -> [n]."""
    ratio = held_out.value.astype(np.float64)
    found: Floats = np.logaddexp(0, log_odds + ratio) - np.logaddexp(0, log_odds)
    return found


def item_step(space: Space, memory: Memory, x: Floats, mean: Floats, start: Space, g: Floats) -> Space:
    """The items' directions at their posterior mode, with the queries' vectors known up to their spread.

    The prior of y_d is normal around `start`, with the precision of ITEM_KNOWLEDGE queries. What is not known of x counts as
    information about it times its variance (a ridge), and shrinks the log-odds (kappa).
    Shapes: x [Q, F + 1]; mean [F + 1, F + 1], the covariance of a query's vector; g [D].
    """
    F = space.items.shape[1] - 1
    with compiling():
        information = _newton_kernel.information(
            memory.first, memory.item, memory.value, space.offset, space.items, x, np.zeros((CHUNKS, memory.D))
        )
    ridge = information[:, None] * np.diag(mean)[None, :F]
    p = sigmoid(g)
    prior = (ITEM_KNOWLEDGE * p * (1 - p))[:, None]
    kappa = 1 / np.sqrt(1 + FLAT * np.einsum("df,fg,dg->d", space.items, mean, space.items))
    # The offset is a coordinate that cannot move.
    offset = space.offset[:, None].astype(np.float64)
    m = np.hstack([start.items[:, :F] * prior / (prior + ridge), offset])
    y = np.hstack([space.items[:, :F], offset])
    precision = np.hstack([prior + ridge, np.full_like(offset, 1e9)])
    vectors = np.column_stack([x[:, :F], np.ones(len(x))]).astype(np.float32)
    pairs = csr_matrix((np.arange(len(memory.item)), memory.item, memory.first), shape=(memory.Q, memory.D)).tocsc()
    with compiling():
        _newton_kernel.ascend_items(
            pairs.indptr.astype(np.int64), pairs.indices.astype(np.int32), memory.value[pairs.data.astype(np.int64)], kappa,
            x[:, F].astype(np.float32), vectors, precision, m, y, ITEM_STEPS, TOLERANCE,
        )  # fmt: skip
    y[:, F] = 1
    return replace(space, items=y.astype(np.float32))
