"""One stage alone over very many documents, compiled: the list of each query and its gradient; `sparse_alone` has the law."""

import numpy as np
from numba import njit

from tandemrank.gradients._kernels.compiled import MATHS, kernel
from tandemrank.gradients._kernels.float32 import exp, f32
from tandemrank.gradients._kernels.products import own_score
from tandemrank.gradients._kernels.race import MOST, TYPICAL_DOCUMENTS, chances_at, typical_time


@njit(inline="always")
def _rate(s_d, log_t):
    """lambda_d t; 0 for what is not available, whatever the time."""
    return min(exp(s_d + log_t), MOST) if s_d > f32(-np.inf) else f32(0.0)


@kernel()
def typical_time_of(X, Y, given, q, target):
    """When `target` documents are expected to have arrived, from the documents that the dense race asks; -inf for never."""
    D = Y.shape[0]
    stride = max(1, D // TYPICAL_DOCUMENTS)
    n = (D + stride - 1) // stride
    floats = np.empty((4, n), np.float32)
    s, chance, rate, weight = floats[0], floats[1], floats[2], floats[3]
    for j in range(n):
        s[j] = own_score(X, Y, given, q, j * stride)
        chance[j] = f32(1.0) if s[j] > f32(-np.inf) else f32(0.0)
    return typical_time(s, chance, f32(target * n / D), rate, weight)


@kernel()
def _weight_of(d, indices, weights):
    """The weight of document d, whether it has one; indices rise."""
    low, high = 0, indices.size
    while low < high:
        middle = (low + high) >> 1
        if indices[middle] < d:
            low = middle + 1
        else:
            high = middle
    found = low < indices.size and indices[low] == d
    return (weights[low], True) if found else (f32(0.0), False)


@kernel()
def _without_weight(docs, scores, n, indices, weights, documents, s):
    """Fills `documents` and `s` with those of docs[:n] that have no weight; returns how many."""
    m = 0
    for j in range(n):
        if not _weight_of(docs[j], indices, weights)[1]:
            documents[m], s[m] = docs[j], scores[j]
            m += 1
    return m


@kernel(fastmath=MATHS)
def _patterns(s, own, log_reach, log_t, x, h):
    """x_d, 1 for the first `own`, 1 / pi_d for the others; and h_d = y exp(-y), y = lambda_d t."""
    for j in range(s.size):
        pi = max(chances_at(_rate(s[j], log_reach))[0], f32(1e-30))
        x[j] = f32(1.0) if j < own else f32(1.0) / pi
        h[j] = chances_at(_rate(s[j], log_t))[1]


@kernel(fastmath=MATHS)
def _add_race(s, w, documents, own, delta, first, log_t, w_first, place, g):
    """Adds the gradients of one race; returns its value.  Shapes: s, w, documents, place, g [m]; delta [K]; others [K + 1]."""
    value = 0.0
    place[:] = first.size
    for k in range(first.size):
        for j in range(documents.size):
            place[j] = k if documents[j] == first[k] else place[j]
    for k in range(delta.size):
        if delta[k] == f32(0.0):
            continue
        for j in range(s.size):
            # With d among the first k the others' k-th arrival is one entry further on.
            later = place[j] <= k
            y = _rate(s[j], log_t[k + 1] if later else log_t[k])
            g[j] += delta[k] * y * exp(-y) * (w[j] - (w_first[k + 1] if later else w_first[k]))
        for j in range(own):
            y = _rate(s[j], log_t[k + 1] if place[j] <= k else log_t[k])
            value += np.float64(delta[k] * w[j] * chances_at(y)[0])
    return value


@kernel()
def _sum(x, g):
    total = 0.0
    for j in range(g.size):
        total += np.float64(x[j]) * np.float64(g[j])
    return total


@kernel()
def gradients(
    start, stop, X, Y, given, indptr, indices, weights, first, log_t, delta, target, log_reach, sampled, sampled_s, count,
    documents, gradient, listed, value,
):  # fmt: skip
    """The documents of each query, weighted ones first, then both samples, the gradients by their scores, and the value.

    Shapes: indptr [B + 1]; indices, weights [nnz]; first, log_t [B, S, K + 1]; delta [K]; log_reach [B]; sampled, sampled_s
    [B, 2, n]; count [B, 2]; documents, gradient [B, room], of which listed [B] are real; value [B]. `target`: how many are
    expected by the time of the pattern.
    """
    _, S, depth = first.shape
    room = documents.shape[1]
    floats = np.empty((6, room), np.float32)
    s, w, x, h, g, other = floats[0], floats[1], floats[2], floats[3], floats[4], floats[5]
    own_docs, place, w_first = np.empty(room, np.int32), np.empty(room, np.int32), np.empty(depth, np.float32)
    for q in range(start, stop):
        mine, their = indices[indptr[q] : indptr[q + 1]], weights[indptr[q] : indptr[q + 1]]
        own, log_tau = mine.size, typical_time_of(X, Y, given, q, target)
        for j in range(own):
            own_docs[j], w[j], s[j] = mine[j], their[j], own_score(X, Y, given, q, mine[j])
        # The sample that is looked at.
        m = own + _without_weight(sampled[q, 0], sampled_s[q, 0], count[q, 0], mine, their, own_docs[own:], s[own:])
        w[own:m], g[:m] = f32(0.0), f32(0.0)
        _patterns(s[:m], own, log_reach[q], log_tau, x, h)
        for i in range(S):
            for k in range(depth):
                w_first[k] = _weight_of(first[q, i, k], mine, their)[0]
            value[q] += _add_race(s[:m], w, own_docs[:m], own, delta, first[q, i], log_t[q, i], w_first, place[:m], g)
        # The sample of the pattern: its mass, and what is left of the sum.
        end = m + _without_weight(sampled[q, 1], sampled_s[q, 1], count[q, 1], mine, their, own_docs[m:], s[m:])
        _patterns(s[m:end], np.int64(0), log_reach[q], log_tau, x[m:], h[m:])
        for j in range(end):
            other[j] = x[j] * h[j] if j < own or j >= m else f32(0.0)
        mass = other[:end].sum()
        c = 1.0 / np.float64(mass) if mass > f32(0.0) else 0.0
        total, left = _sum(x, g[:m]), 0.0
        for j in range(m):
            others = total - np.float64(x[j]) * np.float64(g[j]) + np.float64(g[j])
            gradient[q, j] = np.float64(x[j]) * (np.float64(g[j]) - c * np.float64(h[j]) * others)
            left += np.float64(gradient[q, j])
        for j in range(m, end):
            gradient[q, j] = f32(0.0)
        for j in range(end):
            documents[q, j] = own_docs[j]
            gradient[q, j] -= f32(c * left * np.float64(other[j]))
        listed[q] = end
        documents[q, end:] = own_docs[0] if end > 0 else 0
