"""Newton steps of vectors under the marginal likelihood of graded pairs, as compiled loops over queries or items.

For a query with prior N(m, diag(P)^-1) of its vector x, pairs with features w_d and s_d = offset_d + w_d . x, a family of
grades (`grades`: w_j(s) = exp(b_j + g_j s - c s^2) over levels j) and what was seen of each pair, L_j = P(showings | level j):

    f(x)     = sum_d log(sum_j w_j(s_d) L_dj / sum_j w_j(s_d)) - sum_a P_a (x_a - m_a)^2 / 2
    gradient = sum_d (E[g | s_d, showings] - E[g | s_d]) w_d - P (x - m)
    H        = P + sum_d max(0, Var[g | s_d] - Var[g | s_d, showings]) w_d w_d'

H is minus the second derivative with its negative terms left out: positive definite. Of many pairs it takes a systematic
sample, in proportion to what they add: it shapes the steps, not where they end. The same step serves items, with queries in
their place. Pairs are float32 and eight at a time, what has the size of a vector is float64. L is a table of the distinct
kinds of evidence, of which there are far fewer than pairs. Nothing here is parallel, since numba takes ten times as long to
compile that: `chunks` calls it from several threads.
"""

import math

import numpy as np
from numba import njit

from tandemrank.gradients._kernels.compiled import MATHS, kernel
from tandemrank.gradients._kernels.float32 import exp, f32, log

_HALVINGS = 12
_PAIRS = 5  # pairs per number of a vector that are enough for H
_SUMS = MATHS | {"reassoc"}  # a sum may be taken in any order: eight terms at once


@kernel(fastmath=_SUMS)
def _log_odds(W, item, offset, x, s):
    """s_d = offset_d + w_d . x, four pairs at a time."""
    n = item.size
    whole = n - n % 4
    for j in range(0, whole, 4):
        w0, w1, w2, w3 = W[item[j]], W[item[j + 1]], W[item[j + 2]], W[item[j + 3]]
        t0, t1, t2, t3 = offset[j], offset[j + 1], offset[j + 2], offset[j + 3]
        for a in range(x.size):
            t0 += w0[a] * x[a]
            t1 += w1[a] * x[a]
            t2 += w2[a] * x[a]
            t3 += w3[a] * x[a]
        s[j], s[j + 1], s[j + 2], s[j + 3] = t0, t1, t2, t3
    for j in range(whole, n):
        w = W[item[j]]
        total = offset[j]
        for a in range(w.size):
            total += w[a] * x[a]
        s[j] = total


@kernel(fastmath=MATHS)
def terms(s, L, kind, family, value, slope, curvature):
    """Of every pair: its term of f, and the first and minus the second derivative by s_d, if that is positive.

    `family` has the rows b, g, and (c, lowest s, highest s).
    Shapes: s, kind, value, slope, curvature [n]; L [J, kinds]; family [3, J or more].
    """
    n = s.size
    c, low, high = family[2, 0], family[2, 1], family[2, 2]
    sums = np.zeros((6, n), f32)
    z0, z1, z2, p0, p1, p2 = sums[0], sums[1], sums[2], sums[3], sums[4], sums[5]
    seen = np.empty(n, f32)
    for j in range(L.shape[0]):
        b, g, own = family[0, j], family[1, j], L[j]
        for i in range(n):
            seen[i] = own[kind[i]]
        for i in range(n):
            t = min(max(s[i], low), high)
            w = exp(b + (g - c * t) * t)
            u = w * seen[i]
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
    """L L' = diag(P) + H, lower triangles."""
    F = P.size
    for a in range(F):
        for b in range(a + 1):
            total = np.float64(H[a, b])
            if a == b:
                total += P[a]
            for c in range(b):
                total -= L[a, c] * L[b, c]
            L[a, b] = math.sqrt(max(total, 1e-12)) if a == b else total / L[b, b]


@kernel()
def _solved(L, g, out):
    """out = (L L')^-1 g, and its product with g."""
    F = g.size
    for a in range(F):
        total = g[a]
        for b in range(a):
            total -= L[a, b] * out[b]
        out[a] = total / L[a, a]
    gain = 0.0
    for a in range(F - 1, -1, -1):
        total = out[a]
        for b in range(a + 1, F):
            total -= L[b, a] * out[b]
        out[a] = total / L[a, a]
        gain += out[a] * g[a]
    return gain


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
def _height(W, item, L, kind, family, offset, m, P, x, small, s, value, slope, h):
    """f(x); what the gradient and H are made of comes along."""
    for a in range(x.size):
        small[a] = x[a]
    _log_odds(W, item, offset, small, s)
    terms(s, L, kind, family, value, slope, h)
    total = 0.0
    for j in range(value.size):
        total += value[j]
    for a in range(x.size):
        total -= 0.5 * P[a] * (x[a] - m[a]) ** 2
    return total


@kernel(fastmath=_SUMS)
def _gradient(W, item, slope, x, m, P, small, g):
    """The gradient of f at x, four pairs at a time."""
    for a in range(x.size):
        small[a] = f32(0.0)
    n = item.size
    whole = n - n % 4
    for j in range(0, whole, 4):
        w0, w1, w2, w3 = W[item[j]], W[item[j + 1]], W[item[j + 2]], W[item[j + 3]]
        c0, c1, c2, c3 = slope[j], slope[j + 1], slope[j + 2], slope[j + 3]
        for a in range(x.size):
            small[a] += c0 * w0[a] + c1 * w1[a] + c2 * w2[a] + c3 * w3[a]
    for j in range(whole, n):
        w, c = W[item[j]], slope[j]
        for a in range(w.size):
            small[a] += c * w[a]
    for a in range(x.size):
        g[a] = small[a] - P[a] * (x[a] - m[a])


@njit(inline="always")
def _curvature(W, item, h, P, H, L, kept, weight):
    """L of L L' = P + sum_d h_d w_d w_d'."""
    for a in range(P.size):
        for b in range(P.size):
            H[a, b] = f32(0.0)
    n = _thinned(item, h, _PAIRS * P.size, kept, weight)
    _add_outer(W, kept, weight, n, H)
    _cholesky(P, H, L)


@njit(inline="always")
def _ascend(W, item, L, kind, family, offset, m, P, x, steps, tolerance):
    """Damped Newton steps from x, in place.

    A factor of H serves until a step with it gains little less than the step before.
    """
    n, F = item.size, x.size
    s, value, slope, h = np.empty(n, f32), np.empty(n, f32), np.empty(n, f32), np.empty(n, f32)
    kept, weight = np.empty(n, item.dtype), np.empty(n, f32)
    H, factor, small = np.empty((F, F), f32), np.empty((F, F)), np.empty(F, f32)
    g, step, new = np.empty(F), np.empty(F), np.empty(F)
    f = _height(W, item, L, kind, family, offset, m, P, x, small, s, value, slope, h)
    before = np.inf
    for k in range(steps):
        _gradient(W, item, slope, x, m, P, small, g)
        gain = _solved(factor, g, step) if k > 0 else np.inf
        if gain > 0.1 * before or k == 0:
            _curvature(W, item, h, P, H, factor, kept, weight)
            gain = _solved(factor, g, step)
        if gain < tolerance:
            return
        before, t, f_new = gain, 1.0, f
        for _ in range(_HALVINGS):
            for a in range(F):
                new[a] = x[a] + t * step[a]
            f_new = _height(W, item, L, kind, family, offset, m, P, new, small, s, value, slope, h)
            if f_new > f:
                break
            t *= 0.5
        if f_new <= f:  # as high as float32 can tell
            return
        f = f_new
        for a in range(F):
            x[a] = new[a]


@kernel()
def ascend(rows, first, item, kind, L, family, offset, W, P, m, x, steps, tolerance):
    """The step of some queries, x in place; or of items, each with a P of its own.

    Shapes: rows [n]; first [Q + 1]; item, kind, offset [pairs]; L [J, kinds]; family [3, J]; W [D, F]; P [1 or Q, F]; m, x
    [Q, F].
    """
    for r in range(rows.size):
        q = rows[r]
        a, b = first[q], first[q + 1]
        prior = P[q % P.shape[0]]
        _ascend(W, item[a:b], L, kind[a:b], family, offset[a:b], m[q], prior, x[q], steps, tolerance)


@kernel(fastmath=MATHS)
def _add_square(A, G, H, total):
    """H = A' A of a lower triangle A, added to `total`; returns the trace of H G."""
    F = A.shape[0]
    for a in range(F):
        for b in range(a + 1):
            H[a, b] = f32(0.0)
    for c in range(F):
        row = A[c]
        for a in range(c + 1):
            w, out = row[a], H[a]
            for b in range(a + 1):
                out[b] += w * row[b]
    trace = 0.0
    for a in range(F):
        for b in range(a + 1):
            total[a, b] += H[a, b]
            if b < a:
                total[b, a] += H[a, b]
                trace += H[a, b] * (G[a, b] + G[b, a])
        trace += H[a, a] * G[a, a]
    return trace


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


@kernel()
def spread(rows, first, item, kind, L, family, offset, W, P, m, x, G, asked, asked_item, total, trace, variance):
    """Covariances C_q = H^-1 of queries, added to `total`; their trace(C_q G), and the variance of s where it is asked for.

    Shapes: as `ascend`; G, total [F, F]; asked [Q + 1]; asked_item, variance [pairs asked]; trace [Q].
    """
    F = x.shape[1]
    H, factor, inverse, small = np.empty((F, F), f32), np.empty((F, F)), np.zeros((F, F), f32), np.empty(F, f32)
    for r in range(rows.size):
        q = rows[r]
        a, b = first[q], first[q + 1]
        n, own = b - a, item[a:b]
        s, value, slope, h = np.empty(n, f32), np.empty(n, f32), np.empty(n, f32), np.empty(n, f32)
        kept, weight = np.empty(n, item.dtype), np.empty(n, f32)
        _height(W, own, L, kind[a:b], family, offset[a:b], m[q], P[0], x[q], small, s, value, slope, h)
        _curvature(W, own, h, P[0], H, factor, kept, weight)
        _inverse_factor(factor, inverse)
        trace[q] = _add_square(inverse, G, H, total)
        for j in range(asked[q], asked[q + 1]):
            variance[j] = _squared_length(inverse, W[asked_item[j]])


@kernel(fastmath=_SUMS)
def products_at(X, W, query, item, out):
    """<x_q, w_d> of many pairs.  Shapes: X [Q, F]; W [D, F]; query, item, out [n]."""
    for j in range(query.size):
        x, w = X[query[j]], W[item[j]]
        total = f32(0.0)
        for a in range(w.size):
            total += x[a] * w[a]
        out[j] = total


@kernel()
def terms_of(s, L, kind, family, value, slope, curvature):
    """`terms` of many pairs, some at a time."""
    for a in range(0, s.size, 4096):
        b = min(s.size, a + 4096)
        terms(s[a:b], L, kind[a:b], family, value[a:b], slope[a:b], curvature[a:b])
