"""Who arrives before the horizon, by cells of neighbours and a cap of the scores in each, compiled.

A cell's documents have scores of about x . m, m their mean. Let c be that and z standard deviations of the scores within the
cell, z as high as a bounded effort allows (`height_of`): a guess from above. All arrivals of its n documents before a horizon T
are a thinned Poisson stream, as in the tail of `lazy_race`: a Poisson number of proposals, n e^c T expected, each a uniform
document at a uniform time, kept with chance e^(s - c), at most 1; the first kept proposal of a document is its arrival. So

    s_d <= c    the law is exact
    s_d > c     the document is slowed down: its rate is e^c instead of e^(s_d)

and how much is lost by that is known without looking at everything. Each proposal that meets such a document is a witness:
with a = T e^c and r = T e^(s_d), a of them are expected and e^-a - e^-r arrivals lost, so the sum of (e^-a - e^-r) / a over
them is an unbiased estimate (`products.Tally`). A cell for which proposals would cost more than its documents is opened: all of
them get clocks, and nothing is lost.

The items of a cell are copied once and serve all queries, so that a proposal reads the cache. Caps are sums in an order of
their own (`dot`), and random numbers a function of (key of the query, cell, proposal): neither threads nor the split of a
batch change a result.
"""

import math

import numpy as np
from numba import njit, prange

from tandemrank.gradients._compiled import MATHS, kernel
from tandemrank.gradients._float32_kernel import above, bits, f32, log, u32, u64, uniform
from tandemrank.gradients._products_kernel import dot, fetch
from tandemrank.gradients._race_draw_kernel import clocks_of, halves, stream

_DRAWN = 64  # proposals at a time
_AHEAD = 16  # items that are loaded before their turn
_CELL = u64(4)  # the stream of a query's proposals, behind those of `_lazy_race_kernel`
# What an item of an open cell costs, and its clock in each race, in proposals.
_ITEM_COST, _CLOCK_COST = 0.5, 0.3
_HEIGHTS = np.array([3.5, 4.0, 5.0, 6.0, 8.0, 12.0, 20.0], np.float32)


# Caps


@kernel()
def correction_of(x, squared, covariance):
    """x' C x over what it would be if coordinates did not move together: what variances per coordinate miss of a spread."""
    total, plain = 0.0, 0.0
    for f in range(x.size):
        total += np.float64(x[f]) * np.float64(dot(x, covariance[f]))
        plain += np.float64(squared[f]) * np.float64(covariance[f, f])
    return f32(max(total, 0.0) / plain) if plain > 0.0 else f32(1.0)


@kernel()
def _set_spreads(x, mean, variance, covariance, centre, spread):
    """Mean and standard deviation of each cell's scores.  Shapes: centre, spread [cells], filled."""
    squared = x * x
    correction = correction_of(x, squared, covariance)
    for c in range(centre.size):
        centre[c] = dot(x, mean[c])
        spread[c] = f32(np.sqrt(correction * dot(squared, variance[c])))


@kernel()
def height_of(centre, spread, sizes, log_total, clocks, z, effort):
    """How many standard deviations caps are above the mean: the most of `_HEIGHTS` with which proposals, and items of the cells
    that are opened, at `clocks` proposals each, cost no more than `effort`; at least z.  Shapes: centre, spread, sizes [cells].
    """
    for k in range(_HEIGHTS.size):
        cost = 0.0
        for c in range(sizes.size):
            each = math.exp(min(np.float64(centre[c] + _HEIGHTS[k] * spread[c]) + log_total, 700.0))
            cost += sizes[c] * min(each, clocks)
        if not cost <= effort:
            break
        z = max(z, _HEIGHTS[k])
    return z


# Proposals


@kernel()
def poisson(mean, u):
    """The number with the distribution function u, counted from the mode on: exact but for rounding, sqrt(mean) steps."""
    low = high = np.int64(mean)
    p_low = p_high = math.exp(high * math.log(mean) - mean - math.lgamma(high + 1.0)) if mean > 0.0 else 1.0
    u -= p_low
    while u > 0.0 and (p_low > 0.0 or p_high > 0.0):
        p_high *= mean / (high + 1)
        high += 1
        u -= p_high
        if u <= 0.0:
            return high
        p_low *= low / mean
        low -= 1
        u -= p_low
        if u <= 0.0:
            return low
    return np.int64(mean)


@njit(inline="always")
def _fraction(key):
    """A 64-bit key as a number in (0, 1)."""
    return (np.float64(key >> u64(11)) + 0.5) * 2.0**-53


@kernel(fastmath=MATHS)
def _proposals(items, thresholds, number, n, size, cap, slot, least):
    """The proposals number, number + 1, ...: an item of the cell each, and the least score that is kept, cap + log u."""
    low, high = halves(items)
    for i in range(n):
        slot[i] = u32((u64(bits(number + i, low, high)) * u64(size)) >> u64(32))
    low, high = halves(thresholds)
    for i in range(n):
        least[i] = cap + log(uniform(number + i, low, high))


@njit(inline="always")
def _lost(over, log_c):
    """Arrivals that a cap keeps away, per proposal that meets a document so much above it: (e^-c - e^-r) / c.

    c is the capped rate times the horizon, r = c e^over the true one: c such proposals are expected, so their sum is
    unbiased for e^-c - e^-r, the chance to arrive that is lost.
    """
    c = math.exp(log_c)
    return math.exp(-c) * -math.expm1(-c * math.expm1(min(over, 700.0))) / c


@njit(inline="always")
def _arrives(d, s, log_t, begin, q, u, docs, scores, times, filled):
    """Notes an arrival, or that it came earlier than known; entries are also counted beyond the space for them."""
    n = filled[q, u]
    for k in range(begin, min(n, docs.shape[2])):
        if docs[q, u, k] == d:
            times[q, u, k] = min(times[q, u, k], log_t)
            return
    if n < docs.shape[2]:
        docs[q, u, n], scores[q, u, n], times[q, u, n] = d, s, log_t
    filled[q, u] = n + 1


@kernel()
def _capped(q, x, rows, items, cap, log_T, share, n, key, work, docs, scores, times, filled, lost):
    """Appends who of a cell arrives, out of n proposals for all races of a query; returns a document without a score, or -1.

    A proposal belongs to race u with chance share[q, u] - share[q, u - 1], and has a uniform time of its horizon.
    Shapes: x [F]; rows [size, F]; items [size]; the rest as in `scan`.
    """
    slot, least, score, begin = work
    for u in range(begin.size):
        begin[u] = filled[q, u]
    of_items, of_thresholds, bad = stream(key, u64(1)), stream(key, u64(2)), -1
    (low_u, high_u), (low_t, high_t) = halves(stream(key, u64(3))), halves(stream(key, u64(4)))
    for number in range(0, n, _DRAWN):
        m = min(_DRAWN, n - number)
        _proposals(of_items, of_thresholds, number, m, items.size, cap, slot, least)
        for i in range(m):
            score[i] = dot(x, rows[slot[i]])
        for i in range(m):
            if score[i] <= least[i]:
                continue
            s, d, u = score[i], items[slot[i]], 0
            if not s < f32(np.inf):
                bad = d
                continue
            at = uniform(number + i, low_u, high_u)
            while at > share[q, u] and u < begin.size - 1:
                u += 1
            if s > cap:
                lost[q, u] += _lost(np.float64(s) - np.float64(cap), np.float64(cap) + np.float64(log_T[q, u]))
            log_t = log_T[q, u] + log(uniform(number + i, low_t, high_t))
            _arrives(d, s, log_t, begin[u], q, u, docs, scores, times, filled)
    return bad


@kernel()
def _opened(q, x, rows, items, log_T, keys, score, clock, found, docs, scores, times, filled):
    """Appends who of a cell arrives: a clock for every item, that of the dense race. Returns as `_capped`.

    Shapes: score, clock [size or more]; found [size + 1 or more]; the rest as in `_capped`.
    """
    size, bad = items.size, -1
    for j in range(size):
        score[j] = dot(x, rows[j])
    for u in range(log_T.shape[1]):
        if log_T[q, u] == f32(-np.inf):
            continue
        clocks_of(items, size, stream(keys[q, u], u64(0)), clock)
        for j in range(size):
            clock[j] = score[j] - clock[j]
        for i in range(above(clock, size, -log_T[q, u], found)):
            j, n = found[i], filled[q, u]
            if not score[j] < f32(np.inf):
                bad = items[j]
            elif clock[j] > -log_T[q, u]:
                if n < docs.shape[2]:
                    docs[q, u, n], scores[q, u, n], times[q, u, n] = items[j], score[j], -clock[j]
                filled[q, u] = n + 1
    return bad


# All cells


@kernel()
def _copied(Y, members, first, last, rows):
    """The items of a cell side by side."""
    for j in range(first, last):
        fetch(Y, np.int64(members[min(j + _AHEAD, members.size - 1)]))
        y, row = Y[members[j]], rows[j - first]
        for f in range(row.size):
            row[f] = y[f]


@kernel(parallel=True)
def scan(
    X, Y, members, start, mean, variance, covariance, z, effort, log_T, keys, chunks,
    docs, scores, times, filled, lost, proposed, opened, bad,
):  # fmt: skip
    """Who arrives before the horizons, out of all documents; entries beyond the capacity are counted, not kept.

    Shapes: X [B, F]; Y [D, F]; members [D], the documents cell by cell; start [cells + 1]; mean, variance [cells, F];
    covariance [F, F]; log_T, keys, filled, lost [B, U]; docs, scores, times [B, U, capacity]; proposed, opened [B], how many
    proposals and items of open cells; bad [B], a document without a finite score, or -1.
    """
    (B, F), U, sizes = X.shape, log_T.shape[1], start[1:] - start[:-1]
    largest, clocks = sizes.max(), _ITEM_COST + _CLOCK_COST * U
    centre, spread = np.empty((B, sizes.size), np.float32), np.empty((B, sizes.size), np.float32)
    log_total, share, height = np.empty(B), np.zeros((B, U), np.float32), np.empty(B, np.float32)
    for chunk in prange(chunks):
        rows, begin = np.empty((largest, F), np.float32), np.empty(U, np.int64)
        slot, least, drawn = np.empty(_DRAWN, np.uint32), np.empty(_DRAWN, np.float32), np.empty(_DRAWN, np.float32)
        score, clock = np.empty(largest, np.float32), np.empty(largest, np.float32)
        found, work = np.empty(largest + 1, np.int32), (slot, least, drawn, begin)
        for q in range(chunk * B // chunks, (chunk + 1) * B // chunks):
            log_total[q] = _shares(log_T[q], share[q])
            _set_spreads(X[q], mean, variance, covariance, centre[q], spread[q])
            height[q] = height_of(centre[q], spread[q], sizes, log_total[q], clocks, z, effort)
        for c in range(start.size - 1):
            items = members[start[c] : start[c + 1]]
            _copied(Y, members, start[c], start[c + 1], rows)
            for q in range(chunk * B // chunks, (chunk + 1) * B // chunks):
                x, out = X[q], (docs, scores, times, filled)
                cap = centre[q, c] + height[q] * spread[q, c]
                if not abs(cap) < f32(np.inf):
                    bad[q] = items[0] if items.size else bad[q]
                    continue
                each = math.exp(min(np.float64(cap) + log_total[q], 700.0))
                if each <= clocks:
                    key = stream(stream(keys[q, 0], _CELL), u64(c))
                    n = poisson(each * items.size, _fraction(stream(key, u64(0))))
                    proposed[q] += n
                    wrong = _capped(q, x, rows, items, cap, log_T, share, n, key, work, *out, lost)
                else:
                    opened[q] += items.size
                    wrong = _opened(q, x, rows, items, log_T, keys, score, clock, found, *out)
                bad[q] = wrong if wrong >= 0 else bad[q]


@kernel()
def _shares(log_T, share):
    """The log of all horizons' sum, and the share of it up to each race; -inf: no race has one.  Shapes: [U]."""
    longest = np.float64(log_T.max())
    if longest == -np.inf:
        return longest
    total = 0.0
    for u in range(log_T.size):
        total += math.exp(np.float64(log_T[u]) - longest)
        share[u] = f32(total)
    share /= f32(total)
    return longest + math.log(total)
