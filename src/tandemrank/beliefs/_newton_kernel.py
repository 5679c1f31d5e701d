"""Newton steps of vectors under the marginal likelihood of graded pairs, as compiled loops, in parallel over queries.

For a query with prior N(m, P^-1) of its vector x, pairs with features w_d and s_d = offset_d + w_d . x, a family of grades
(`grades`: w_j(s) = exp(b_j + g_j s - c s^2) over levels j) and what was seen of each pair, L_j = P(showings | level j):

    f(x)     = sum_d log(sum_j w_j(s_d) L_dj / sum_j w_j(s_d)) - (x - m)' P (x - m) / 2
    gradient = sum_d (E[g | s_d, showings] - E[g | s_d]) w_d - P (x - m)
    H        = P + sum_d max(0, Var[g | s_d] - Var[g | s_d, showings]) w_d w_d'

H is minus the second derivative with its negative terms left out: positive definite. Of many pairs it takes a systematic
sample, in proportion to what they add: it shapes the steps, not where they end. The same step serves items, with queries in
their place. Pairs are float32 and eight at a time, what has the size of a vector is float64. The result does not depend on
threads.
"""

import math

import numpy as np
from numba import prange

from tandemrank.gradients._kernels.compiled import MATHS, kernel
from tandemrank.gradients._kernels.float32 import exp, f32, log

_CHUNKS = 64  # sums over queries are by chunk, then in order: the same bits with any number of threads
_HALVINGS = 12
_PAIRS = 5  # pairs per number of a vector that are enough for H
_SUMS = MATHS | {"reassoc"}  # a sum may be taken in any order: eight terms at once


@kernel(fastmath=_SUMS)
def _log_odds(W, item, offset, x, s):
    """s_d = offset_d + w_d . x."""
    for j in range(item.size):
        w = W[item[j]]
        total = offset[j]
        for a in range(w.size):
            total += w[a] * x[a]
        s[j] = total


@kernel(fastmath=MATHS)
def terms(s, L, family, value, slope, curvature):
    """Of every pair: its term of f, and the first and minus the second derivative by s_d, if that is positive.

    `family` has the rows b, g, and (c, lowest s, highest s).
    Shapes: s, value, slope, curvature [n]; L [J, n]; family [3, J or more].
    """
    J, n = L.shape
    c, low, high = family[2, 0], family[2, 1], family[2, 2]
    sums = np.zeros((6, n), f32)
    z0, z1, z2, p0, p1, p2 = sums[0], sums[1], sums[2], sums[3], sums[4], sums[5]
    for j in range(J):
        b, g = family[0, j], family[1, j]
        for i in range(n):
            t = min(max(s[i], low), high)
            w = exp(b + (g - c * t) * t)
            u = w * L[j, i]
            z0[i] += w
            z1[i] += w * g
            z2[i] += w * g * g
            p0[i] += u
            p1[i] += u * g
            p2[i] += u * g * g
    for i in range(n):
        z, p = f32(1.0) / max(z0[i], f32(1e-30)), f32(1.0) / max(p0[i], f32(1e-30))
        before, after = z1[i] * z, p1[i] * p
        value[i] = log(max(p0[i], f32(1e-30)) * z)
        slope[i] = after - before
        curvature[i] = max(z2[i] * z - before * before - p2[i] * p + after * after, f32(0.0))


@kernel()
def _thinned(item, h, most, kept, weight):
    """At most about `most` pairs that stand for all in H: systematic sampling, the chance of a pair in proportion to h.

    Returns how many; `kept` and `weight` have their items and what each stands for.
    """
    n = item.size
    if n <= most:
        for j in range(n):
            kept[j], weight[j] = item[j], h[j]
        return n
    total = 0.0
    for j in range(n):
        total += h[j]
    unit = total / most
    count, waiting = 0, 0.5 * unit
    for j in range(n):
        if h[j] >= unit:
            kept[count], weight[count] = item[j], h[j]
            count += 1
        else:
            waiting += h[j]
            if waiting >= unit and h[j] > 0:
                kept[count], weight[count] = item[j], unit
                waiting -= unit
                count += 1
    return count


@kernel(fastmath=MATHS)
def _add_outer(W, item, h, n, H):
    """H += sum_d h_d w_d w_d', the lower triangle, four pairs at a time: H stays in the registers longer."""
    F = W.shape[1]
    whole = n - n % 4
    for j in range(0, whole, 4):
        w0, w1, w2, w3 = W[item[j]], W[item[j + 1]], W[item[j + 2]], W[item[j + 3]]
        for a in range(F):
            c0, c1, c2, c3 = h[j] * w0[a], h[j + 1] * w1[a], h[j + 2] * w2[a], h[j + 3] * w3[a]
            row = H[a]
            for b in range(a + 1):
                row[b] += c0 * w0[b] + c1 * w1[b] + c2 * w2[b] + c3 * w3[b]
    for j in range(whole, n):
        w = W[item[j]]
        for a in range(F):
            c, row = h[j] * w[a], H[a]
            for b in range(a + 1):
                row[b] += c * w[b]


@kernel(fastmath=_SUMS)
def _cholesky(P, H, L):
    """L L' = P + H, lower triangles."""
    F = P.shape[0]
    for a in range(F):
        for b in range(a + 1):
            total = P[a, b] + H[a, b]
            for c in range(b):
                total -= L[a, c] * L[b, c]
            L[a, b] = math.sqrt(max(total, 1e-12)) if a == b else total / L[b, b]


@kernel()
def _solved(L, g, out):
    """out = (L L')^-1 g."""
    F = g.size
    for a in range(F):
        total = g[a]
        for b in range(a):
            total -= L[a, b] * out[b]
        out[a] = total / L[a, a]
    for a in range(F - 1, -1, -1):
        total = out[a]
        for b in range(a + 1, F):
            total -= L[b, a] * out[b]
        out[a] = total / L[a, a]


@kernel(fastmath=_SUMS)
def _inverse_factor(L, inverse):
    """inverse = L^-1, lower triangle."""
    F = L.shape[0]
    for c in range(F):
        for a in range(c, F):
            total = 1.0 if a == c else 0.0
            for b in range(c, a):
                total -= L[a, b] * inverse[b, c]
            inverse[a, c] = total / L[a, a]


@kernel(fastmath=_SUMS)
def _objective(x, m, P, value):
    """f(x), from the terms of the pairs."""
    total = 0.0
    for j in range(value.size):
        total += value[j]
    for a in range(x.size):
        for b in range(x.size):
            total -= 0.5 * (x[a] - m[a]) * P[a, b] * (x[b] - m[b])
    return total


@kernel(fastmath=_SUMS)
def _gradient(W, item, slope, x, m, P, g32, g):
    """The gradient of f at x."""
    g32[:] = 0
    for j in range(item.size):
        w, c = W[item[j]], slope[j]
        for a in range(w.size):
            g32[a] += c * w[a]
    for a in range(x.size):
        total = 0.0
        for b in range(x.size):
            total += P[a, b] * (x[b] - m[b])
        g[a] = g32[a] - total


@kernel()
def _curvature(W, item, h, P, H, L, kept, weight):
    """L of L L' = P + sum_d h_d w_d w_d'."""
    H[:] = 0
    n = _thinned(item, h, _PAIRS * P.shape[0], kept, weight)
    _add_outer(W, kept, weight, n, H)
    _cholesky(P, H, L)


@kernel()
def _ascend(W, item, seen, family, offset, m, P, x, steps, tolerance):
    """Damped Newton steps from x, in place; returns f and the number of steps.

    A factor of H serves until a step with it gains little less than the step before.
    """
    n, F = item.size, x.size
    L_pairs = np.ascontiguousarray(seen.T)
    s, value, slope, h = np.empty(n, f32), np.empty(n, f32), np.empty(n, f32), np.empty(n, f32)
    kept, weight = np.empty(n, item.dtype), np.empty(n, f32)
    H, L, g32, g = np.empty((F, F), f32), np.zeros((F, F)), np.empty(F, f32), np.empty(F)
    step, new = np.empty(F), np.empty(F)
    _log_odds(W, item, offset, x.astype(f32), s)
    terms(s, L_pairs, family, value, slope, h)
    f, before = _objective(x, m, P, value), np.inf
    for k in range(steps):
        _gradient(W, item, slope, x, m, P, g32, g)
        gain = 0.0
        if k > 0:
            _solved(L, g, step)
            gain = np.dot(step, g)
        if k == 0 or gain > 0.1 * before:
            _curvature(W, item, h, P, H, L, kept, weight)
            _solved(L, g, step)
            gain = np.dot(step, g)
        if gain < tolerance:
            return f, k
        before, t, f_new = gain, 1.0, f
        for _ in range(_HALVINGS):
            for a in range(F):
                new[a] = x[a] + t * step[a]
            _log_odds(W, item, offset, new.astype(f32), s)
            terms(s, L_pairs, family, value, slope, h)
            f_new = _objective(new, m, P, value)
            if f_new > f:
                break
            t *= 0.5
        if f_new <= f:  # as high as float32 can tell
            return f, k
        x[:], f = new, f_new
    return f, steps


@kernel(parallel=True)
def ascend(rows, first, item, L, family, offset, W, P, m, x, steps, tolerance):
    """The step of some queries, x in place; returns f of each and the steps that it took.

    Shapes: rows [n]; first [Q + 1]; item, offset [pairs]; L [pairs, J]; family [3, J]; W [D, F]; P [F, F]; m, x [Q, F] -> [n],
    [n].
    """
    f, taken = np.empty(rows.size), np.empty(rows.size, np.int64)
    for r in prange(rows.size):
        q = rows[r]
        own = slice(first[q], first[q + 1])
        f[r], taken[r] = _ascend(W, item[own], L[own], family, offset[own], m[q], P, x[q], steps, tolerance)
    return f, taken


@kernel(parallel=True)
def ascend_items(first, query, L, families, offset, X, precision, m, y, steps, tolerance):
    """The item step: the vectors y of all items, in place, with the queries' X known; returns f of each.

    Shapes: first [D + 1]; query, offset [pairs]; L [pairs, J]; families [D, 3, J]; X [Q, F]; precision, m, y [D, F] -> [D].
    """
    D = y.shape[0]
    f = np.empty(D)
    for d in prange(D):
        own, P = slice(first[d], first[d + 1]), np.diag(precision[d])
        f[d], _ = _ascend(X, query[own], L[own], families[d], offset[own], m[d], P, y[d], steps, tolerance)
    return f


@kernel()
def _factor_at(W, item, seen, family, offset, P, x, inverse):
    """L^-1 of L L' = H at x: the covariance of Laplace's approximation is its product with itself."""
    n, F = item.size, x.size
    L_pairs = np.ascontiguousarray(seen.T)
    s, value, slope, h = np.empty(n, f32), np.empty(n, f32), np.empty(n, f32), np.empty(n, f32)
    kept, weight = np.empty(n, item.dtype), np.empty(n, f32)
    H, L = np.zeros((F, F), f32), np.zeros((F, F))
    _log_odds(W, item, offset, x.astype(f32), s)
    terms(s, L_pairs, family, value, slope, h)
    _curvature(W, item, h, P, H, L, kept, weight)
    _inverse_factor(L, inverse)


@kernel(parallel=True)
def spread(rows, first, item, L, family, offset, W, P, x, G, asked, asked_item):
    """The sum over queries of their covariances C_q = H^-1, trace(C_q G), and the variance of s where it is asked for.

    Shapes: as `ascend`; G [F, F]; asked [Q + 1], asked_item [pairs asked] -> [F, F], [n], [pairs asked].
    """
    n, F = rows.size, x.shape[1]
    chunks = min(n, _CHUNKS)
    sums, trace = np.zeros((chunks, F, F)), np.zeros(n)
    variance = np.zeros(asked_item.size, f32)
    for chunk in prange(chunks):
        inverse = np.zeros((F, F))
        for r in range(n * chunk // chunks, n * (chunk + 1) // chunks):
            q = rows[r]
            own = slice(first[q], first[q + 1])
            _factor_at(W, item[own], L[own], family, offset[own], P, x[q], inverse)
            small = inverse.astype(f32)
            covariance = (small.T @ small).astype(np.float64)
            sums[chunk] += covariance
            trace[r] = (covariance * G).sum()
            for j in range(asked[q], asked[q + 1]):
                variance[j] = _squared_length(small, W[asked_item[j]])
    total = np.zeros((F, F))
    for chunk in range(chunks):
        total += sums[chunk]
    return total, trace, variance


@kernel(fastmath=_SUMS)
def _squared_length(A, w):
    """|A w|^2 of a lower triangle A."""
    total = f32(0.0)
    for a in range(w.size):
        row, part = A[a], f32(0.0)
        for b in range(a + 1):
            part += row[b] * w[b]
        total += part * part
    return total


@kernel(parallel=True)
def terms_of(s, L, family, found):
    """`terms` of many pairs: value, slope and curvature into `found`.  Shapes: s [n]; L [n, J]; found [3, n]."""
    n = s.size
    blocks = (n + 4095) // 4096
    for block in prange(blocks):
        own = slice(block * 4096, min(n, block * 4096 + 4096))
        part = np.ascontiguousarray(L[own].T)
        terms(s[own], part, family, found[0, own], found[1, own], found[2, own])


@kernel(fastmath=_SUMS)
def _dot(x, w):
    total = f32(0.0)
    for a in range(w.size):
        total += x[a] * w[a]
    return total


@kernel(parallel=True)
def products_at(X, W, query, item, out):
    """<x_q, w_d> of many pairs.  Shapes: X [Q, F]; W [D, F]; query, item, out [n]."""
    blocks = (query.size + 4095) // 4096
    for block in prange(blocks):
        for j in range(block * 4096, min(query.size, block * 4096 + 4096)):
            out[j] = _dot(X[query[j]], W[item[j]])
