"""Scores as products of factors, compiled: one score, the highest, the scores of some documents.

Products of matrices round differently in batches of different size. So they only propose: the score that decides is
`dot`, in an order of its own, and neither threads nor the split of a batch change a result.
"""

import numpy as np
from numba import njit

from tandemrank.gradients._kernels.compiled import SUMS, kernel
from tandemrank.gradients._kernels.draws import select
from tandemrank.gradients._kernels.float32 import above, f32, i32

# Documents per block: a row of products fits in the cache.
BLOCK = 4096
BINS = 128


@kernel(fastmath=SUMS)
def dot(x, y):
    """The score of one document; the only place where a score that decides is computed."""
    total = f32(0.0)
    for f in range(x.size):
        total += x[f] * y[f]
    return total


@njit(inline="always")
def score_of(x, Y, d, given):
    """The score of document d: the product, or where there are no factors the given one."""
    return dot(x, Y[d]) if Y.shape[1] > 0 else given


@njit(inline="always")
def own_score(X, Y, given, q, d):
    """The score of document d for query q.  Shapes: X [B, F]; Y [D, F]; given [B, D], or [B, 0] where there are factors."""
    return dot(X[q], Y[d]) if Y.shape[1] > 0 else given[q, d]


@kernel()
def rounding_of(some):
    """What the rounding of a product stays below, for a query of length 1: for the longest of some documents, with room."""
    norm = f32(0.0)
    for j in range(some.shape[0]):
        norm = max(norm, dot(some[j], some[j]))
    return f32(8 * some.shape[1] * 2.0**-24) * f32(np.sqrt(norm))


@kernel()
def highest_of(score, rank, order, cost):
    """The score that `rank` of them reach; -inf where there are not so many.  Shapes: score, order, cost [n]."""
    if rank > score.size:
        return f32(-np.inf)
    for j in range(score.size):
        order[j], cost[j] = j, -score[j]
    select(order, score.size, cost, rank - 1)
    return score[order[rank - 1]]


@kernel()
def sampled_rank(wanted, share, errors):
    """How many of a sample must reach a level for `wanted` of all to do so, less so many standard errors: the least n with
    share (n - errors sqrt(n)) >= wanted."""
    root = f32(0.5) * (errors + f32(np.sqrt(errors * errors + f32(4.0) * wanted / share)))
    return np.int64(np.ceil(root * root))


@kernel()
def binned(score, rank, order, cost, edge, count):
    """The scores as a histogram of the bins that are not empty. Returns how many scores and how many bins there are.

    Bins span fifty at most: what is that much below arrives when everything above has. Where scores span more, the highest of
    them are out of reach of everybody else; the bins are about the score that `rank` of them reach, and the first and the last
    hold all beyond.
    Shapes: order, cost [n], of any content; edge, count [BINS + 1], lower edges, the lowest first, and counts; edge[BINS] is
    the width of a bin.
    """
    top, bottom, n = f32(-np.inf), f32(np.inf), 0
    for j in range(score.size):
        if score[j] > f32(-np.inf):
            top, bottom = max(top, score[j]), min(bottom, score[j])
            n += 1
    if n == 0:
        return 0, 0
    if top - bottom > f32(50.0):
        top = min(top, highest_of(score, min(rank, n), order, cost) + f32(25.0))
    bottom = max(bottom, top - f32(50.0))
    width = max((top - bottom) / f32(BINS), f32(1e-6) * max(f32(1.0), abs(top)))
    count[:] = f32(0.0)
    for j in range(score.size):
        if score[j] > f32(-np.inf):
            place = max((min(score[j], top) - bottom) / width, f32(0.0))
            count[min(i32(place), i32(BINS - 1))] += f32(1.0)
    bins = 0
    for k in range(BINS):
        edge[bins], count[bins] = bottom + f32(k) * width, count[k]
        bins += count[k] > f32(0.0)
    edge[BINS] = width
    return n, bins


# The highest scores: exact retrieval


@kernel()
def set_levels(first, stop, X, Y, given, some, wanted, b, margin):
    """A level that very probably at least `wanted` documents exceed, from the scores of the documents `some`; or -inf."""
    part = Y[some]
    rounding = rounding_of(part)
    rank = sampled_rank(f32(wanted), f32(Y.shape[0]) / f32(some.size), f32(3.0))
    score, cost, order = np.empty(some.size, np.float32), np.empty(some.size, np.float32), np.empty(some.size, np.int32)
    for q in range(first, stop):
        margin[q] = rounding * f32(np.sqrt(dot(X[q], X[q])))
        for j in range(some.size):
            score[j] = score_of(X[q], part, j, given[q, some[j]] if given.size > 0 else f32(0.0))
        # Just below, so that all who have this score exceed it: many may have the same.
        b[q] = np.nextafter(highest_of(score, rank, order, cost), f32(-np.inf))


@kernel()
def _kept_highest(docs, scores, n, wanted, order, cost):
    """Keeps the `wanted` highest of n entries, ties to the earlier, in the order they have; returns their lowest score."""
    lowest = highest_of(scores[:n], wanted, order, cost)
    ties, kept = wanted, 0
    for j in range(n):
        ties -= scores[j] > lowest
    for j in range(n):
        tie = scores[j] == lowest
        docs[kept], scores[kept] = docs[j], scores[j]
        kept += (scores[j] > lowest) | (tie & (ties > 0))
        ties -= tie
    return lowest


@kernel()
def scan_above(first, stop, products, tile, start, X, Y, wanted, b, margin, docs, scores, filled, bad):
    """Appends the documents of one block that exceed the level, with their scores; shapes as in `lazy_race.scan`, without U.

    Where a block might not find room any more, the `wanted` highest so far are kept, and their lowest is the level from then
    on: who is equal to it has a higher number, as documents come in their order.
    """
    capacity, size = docs.shape[1], min(BLOCK, Y.shape[0] - start)
    found, order, cost = np.empty(BLOCK + 1, np.int32), np.empty(capacity, np.int32), np.empty(capacity, np.float32)
    for i in range(first, stop):
        q, row = tile + i, products[i]
        if filled[q] + size > capacity:
            b[q] = _kept_highest(docs[q], scores[q], filled[q], wanted, order, cost)
            filled[q] = wanted
        for j in range(above(row, size, b[q] - margin[q], found)):
            d = start + found[j]
            s = score_of(X[q], Y, d, row[found[j]])
            if not s < f32(np.inf):
                bad[q] = d
            elif s > b[q]:
                docs[q, filled[q]], scores[q, filled[q]] = d, s
                filled[q] += 1


@kernel()
def keep_highest(first, stop, docs, scores, filled, wanted):
    """Keeps the `wanted` highest of what was found of each query, in the order of their numbers."""
    order, cost = np.empty(docs.shape[1], np.int32), np.empty(docs.shape[1], np.float32)
    for q in range(first, stop):
        if filled[q] > wanted:
            _kept_highest(docs[q], scores[q], filled[q], wanted, order, cost)
            filled[q] = wanted


# The scores of some documents


@kernel()
def scores_at(first, stop, X, Y, documents, scores):
    """The products at some documents of each query.  Shapes: X [B, F]; Y [D, F]; documents, scores [B, M]."""
    for q in range(first, stop):
        for j in range(documents.shape[1]):
            scores[q, j] = dot(X[q], Y[documents[q, j]])


@kernel()
def row_products(x, Y, out):
    """The scores of one query, each by `dot`, on the calling thread.  Shapes: x [F]; Y [D, F]; out [D], filled."""
    for d in range(out.size):
        out[d] = dot(x, Y[d])
