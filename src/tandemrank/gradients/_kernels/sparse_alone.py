"""One stage alone over very many documents, compiled: the list of each query and its gradient; `sparse_alone` has the law."""

import numpy as np
from numba import njit, prange

from tandemrank.gradients._kernels.compiled import MATHS, kernel
from tandemrank.gradients._kernels.float32 import exp, f32
from tandemrank.gradients._kernels.products import dot
from tandemrank.gradients._kernels.race import TYPICAL_DOCUMENTS, typical_time

_MOST = f32(80.0)  # a rate that is as good as infinite


@njit(inline="always")
def _rate(s_d, log_t):
    """lambda_d t; 0 for what is not available, whatever the time."""
    return min(exp(s_d + log_t), _MOST) if s_d > f32(-np.inf) else f32(0.0)


@njit(inline="always")
def _chance(y):
    """1 - exp(-y), accurate for tiny rates too."""
    return f32(1.0) - exp(-y) if y > f32(0.02) else y * (f32(1.0) - y * (f32(0.5) - y * f32(1.0 / 6.0)))


@kernel(parallel=True)
def typical_times(X, Y, given, target, chunks, log_t):
    """When `target` documents are expected to have arrived, from the documents that the dense race asks; -inf for never.

    Shapes: log_t [B], filled.
    """
    B, D = log_t.size, Y.shape[0]
    stride = max(1, D // TYPICAL_DOCUMENTS)
    n = (D + stride - 1) // stride
    for chunk in prange(chunks):
        s, chance, rate, weight = np.empty((4, n), np.float32)
        for q in range(chunk * B // chunks, (chunk + 1) * B // chunks):
            for j in range(n):
                s[j] = dot(X[q], Y[j * stride]) if Y.shape[1] > 0 else given[q, j * stride]
                chance[j] = f32(1.0) if s[j] > f32(-np.inf) else f32(0.0)
            log_t[q] = typical_time(s, chance, f32(target * n / D), rate, weight)


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
        pi = max(_chance(_rate(s[j], log_reach)), f32(1e-30))
        x[j] = f32(1.0) if j < own else f32(1.0) / pi
        y = _rate(s[j], log_t)
        h[j] = y * exp(-y)


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
            value += np.float64(delta[k] * w[j] * _chance(y))
    return value


@kernel()
def _sum(x, g):
    total = 0.0
    for j in range(g.size):
        total += np.float64(x[j]) * np.float64(g[j])
    return total


@kernel(parallel=True)
def gradients(
    X, Y, given, indptr, indices, weights, first, log_t, delta, log_tau, log_reach, sampled, sampled_s, count, chunks,
    documents, gradient, listed, value,
):  # fmt: skip
    """The documents of each query, weighted ones first, then both samples, the gradients by their scores, and the value.

    Shapes: indptr [B + 1]; indices, weights [nnz]; first, log_t [B, S, K + 1]; delta [K]; log_tau, the pattern's time, and
    log_reach [B]; sampled, sampled_s [B, 2, n]; count [B, 2]; documents, gradient [B, room], listed [B] are real; value [B].
    """
    B, S, depth = first.shape
    room = documents.shape[1]
    for chunk in prange(chunks):
        s, w, x, h, g, other = np.empty((6, room), np.float32)
        own_docs, place, w_first = np.empty(room, np.int32), np.empty(room, np.int32), np.empty(depth, np.float32)
        for q in range(chunk * B // chunks, (chunk + 1) * B // chunks):
            mine, their = indices[indptr[q] : indptr[q + 1]], weights[indptr[q] : indptr[q + 1]]
            own = mine.size
            for j in range(own):
                own_docs[j], w[j] = mine[j], their[j]
                s[j] = dot(X[q], Y[mine[j]]) if Y.shape[1] > 0 else given[q, mine[j]]
            # The sample that is looked at.
            m = own + _without_weight(sampled[q, 0], sampled_s[q, 0], count[q, 0], mine, their, own_docs[own:], s[own:])
            w[own:m], g[:m] = f32(0.0), f32(0.0)
            _patterns(s[:m], own, log_reach[q], log_tau[q], x, h)
            for i in range(S):
                for k in range(depth):
                    w_first[k] = _weight_of(first[q, i, k], mine, their)[0]
                value[q] += _add_race(
                    s[:m], w, own_docs[:m], own, delta, first[q, i], log_t[q, i], w_first, place[:m], g
                )
            # The sample of the pattern: its mass, and what is left of the sum.
            end = m + _without_weight(sampled[q, 1], sampled_s[q, 1], count[q, 1], mine, their, own_docs[m:], s[m:])
            _patterns(s[m:end], 0, log_reach[q], log_tau[q], x[m:], h[m:])
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
