"""Scores as products of factors, compiled: one score, the scores of some documents, bounds of all.

Products of matrices round differently in batches of different size. So they only propose: the score that decides is
`dot`, in an order of its own, and neither threads nor the split of a batch change a result.
"""

import numpy as np

from tandemrank.gradients._kernels.compiled import SUMS, kernel
from tandemrank.gradients._kernels.float32 import f32, i32

# Documents per block: a row of products fits in the cache.
BLOCK = 4096
LEVELS, FINE = 127, 32767  # of a number of an item, and of the query's
TINY = f32(1e-36)  # far more than what underflow can lose


@kernel(fastmath=SUMS)
def dot(x, y):
    """The score of one document; the only place where a score that decides is computed."""
    total = f32(0.0)
    for f in range(x.size):
        total += x[f] * y[f]
    return total


@kernel()
def own_score(source, q, d):
    """The score of document d for query q: as given, as listed, or the product; `source` as `products.Source` has it."""
    X, Y, given, first, item, value = source
    if Y.shape[1] == 0:
        return given[q, d]
    low, high = first[q], first[q + 1]
    while low < high:
        middle = (low + high) // 2
        if item[middle] < d:
            low = middle + 1
        else:
            high = middle
    if low < first[q + 1] and item[low] == d:
        return value[low]
    return dot(X[q], Y[d])


@kernel()
def own_scores(source, q, d, out):
    """The scores of pairs.  Shapes: q, d, out [n]."""
    for j in range(out.size):
        out[j] = own_score(source, q[j], d[j])


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


# Bounds of scores, from factors of one byte per number


@kernel()
def encode(Y, codes, scale, reach):
    """Every item in steps of its own size, and what the steps lose: |x . y - x . y'| < |x| reach, roundings included.

    Shapes: Y, codes [D, F]; scale, reach [D]; all but Y are filled. Returns the largest length of an item.
    """
    D, F = Y.shape
    # Roundings of the sum that decides, of the product of steps, of bounds; and steps of the query.
    steps = np.sqrt(F) * 128.0 * (F + 100.0) * 2.0**-23 + F * LEVELS * 0.51 / FINE
    longest = 0.0
    for d in range(D):
        most = f32(0.0)
        for f in range(F):
            most = max(most, abs(Y[d, f]))
        a = f32(most / f32(LEVELS)) if most > f32(1e-30) else f32(0.0)
        lost, length = 0.0, 0.0
        for f in range(F):
            y = np.float64(Y[d, f])
            code = np.rint(y / np.float64(a)) if a > f32(0.0) else 0.0
            code = min(max(code, -np.float64(LEVELS)), np.float64(LEVELS))
            codes[d, f] = np.int8(code)
            lost += (y - code * np.float64(a)) ** 2
            length += y * y
        scale[d], reach[d] = a, f32((np.sqrt(lost) + steps * np.float64(a)) * (1.0 + 1e-6))
        longest = max(longest, np.sqrt(length))
    return longest


@kernel()
def bound(codes, scale, reach, steps, step, length, upper):
    """Upper bounds of all scores of a query: one pass over bytes, in whole numbers, so that no order of a sum matters.

    Shapes: codes [D, F]; scale, reach [D]; steps [F], the query in units of `step`; upper [D], filled.
    """
    for d in range(upper.size):
        total = i32(0)
        for f in range(steps.size):
            total = i32(total + i32(i32(codes[d, f]) * i32(steps[f])))
        upper[d] = f32(total) * (scale[d] * step) + (length * reach[d] + TINY)
