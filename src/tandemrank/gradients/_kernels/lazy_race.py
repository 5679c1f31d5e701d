"""The first race without looking at every clock, compiled; `lazy_race` has the law and the reasons.

1. `set_horizons` chooses, from the scores of some documents, the level b and the horizon T of each query.
2. `scan` walks over one block of scores: who of the head (s_d > b) arrives before T, and the thinned stream of the tail.
3. `finish` finds the candidates among those who arrived, and `_complete` draws on where too few did.

Products of matrices round differently in batches of different size. So they only propose: the score that decides is
`dot`, in an order of its own, and neither threads nor the split of a batch change a result.
"""

import numpy as np
from numba import njit, prange

from tandemrank.gradients._kernels.compiled import MATHS, kernel
from tandemrank.gradients._kernels.draws import arrivals, clocks_of, first_race, halves, stream
from tandemrank.gradients._kernels.float32 import above, bits, exp, f32, log, minus_log_1m, u32, u64, uniform
from tandemrank.gradients._kernels.products import (
    BINS,
    BLOCK,
    SUMS,
    binned,
    dot,
    rounding_of,
    sampled_rank,
    score_of,
    select,
)

# Proposals drawn at a time.
_DRAWN = 16
# A proposal costs about five times as much as a clock of the head.
_HEAD_COST, _PROPOSAL_COST = f32(1.0), f32(5.0)
_HALVINGS = 24
_ERRORS = f32(2.5)  # standard errors by which a horizon is later than a sample of the scores says
# Streams of random numbers of a sample: 0 and 1 are the clocks of both stages, as in `race`.
_TAIL, _LATER = u64(2), u64(3)


# Level and horizon


@kernel(fastmath=SUMS)
def _expected(rate, count, share, log_t):
    """How many are expected to arrive before t, and the standard error of that as an estimate from a sample."""
    mean, square = f32(0.0), f32(0.0)
    for j in range(rate.size):
        p = f32(1.0) - exp(-min(exp(rate[j] + log_t), f32(80.0)))
        mean += count[j] * p
        square += count[j] * p * p
    return share * mean, share * f32(np.sqrt(square * max(f32(0.0), f32(1.0) - f32(1.0) / share)))


@kernel()
def _time_of(rate, count, share, target, errors):
    """The earliest log t at which the expected number, less so many of its standard errors, reaches the target; +inf: never."""
    low, high = -rate[rate.size - 1] - f32(30.0), -rate[0] + f32(5.0)
    mean, error = _expected(rate, count, share, high)
    if not mean - errors * error >= target:
        return f32(np.inf)
    for _ in range(_HALVINGS):
        middle = f32(0.5) * (low + high)
        mean, error = _expected(rate, count, share, middle)
        if mean - errors * error >= target:
            high = middle
        else:
            low = middle
    return high


@kernel()
def _level(rate, count, width, share, D, log_T):
    """The level b that makes head and proposals cheapest, for all horizons; -inf: everything is head."""
    best, level, head, time = _HEAD_COST * f32(D) * f32(log_T.size), f32(-np.inf), f32(0.0), f32(0.0)
    for u in range(log_T.size):
        time += exp(log_T[u] - log_T[0]) if log_T[u] > f32(-np.inf) else f32(0.0)
    for k in range(rate.size - 1, -1, -1):
        upper = rate[k] + width
        cost = _HEAD_COST * head * f32(log_T.size) + _PROPOSAL_COST * f32(D) * exp(upper + log_T[0]) * time
        if cost < best:
            best, level = cost, upper
        head += share * count[k]
    return level


@kernel(parallel=True)
def set_horizons(X, Y, given, some, K2, samples, wide, chunks, b, margin, log_T, log_tau):
    """Level and horizon of each query, from the scores of the documents `some`; functions of the scores alone.

    The horizon of the S races is the time by which K2 + 1 have very probably arrived (-inf where there is none: `finish`
    draws all clocks then); `log_tau` that by which K2 are expected, at most half of all; the last horizon, the
    pattern's, is `wide` times as long. `margin` bounds the rounding of a product.
    Shapes: X [B, F]; Y [D, F]; given [B, D or 0]; b, margin, log_tau [B]; log_T [B, U], U = S or S + 1.
    """
    B, (D, F), part = len(b), Y.shape, Y[some]
    rounding = rounding_of(part)
    needed, share = f32(K2 + 1 + 4.0 * np.sqrt(K2 + 1.0)), f32(D) / f32(some.size)
    rank = sampled_rank(needed, share, _ERRORS)
    for chunk in prange(chunks):
        score, edge, count = (
            np.empty(some.size, np.float32),
            np.empty(BINS + 1, np.float32),
            np.empty(BINS + 1, np.float32),
        )
        order, cost = np.empty(some.size, np.int32), np.empty(some.size, np.float32)
        for q in range(chunk * B // chunks, (chunk + 1) * B // chunks):
            margin[q] = rounding * f32(np.sqrt(dot(X[q], X[q])))
            for j in range(some.size):
                score[j] = dot(X[q], part[j]) if F > 0 else given[q, some[j]]
            n, bins = binned(score, rank, order, cost, edge, count)
            rate, number = edge[:bins], count[:bins]
            log_T[q], log_tau[q], b[q] = f32(-np.inf), f32(-np.inf), f32(np.inf)
            if n == 0:
                continue
            log_tau[q] = _time_of(rate, number, share, min(f32(K2), f32(0.5) * share * f32(n)), f32(0.0))
            horizon = _time_of(rate, number, share, needed, _ERRORS)
            for u in range(log_T.shape[1]):
                if u >= samples:
                    log_T[q, u] = log_tau[q] + log(f32(wide))
                elif horizon < f32(np.inf):
                    log_T[q, u] = horizon
            # The dearest horizon first: `_level` measures the others by it.
            b[q] = _level(rate, number, edge[BINS], share, D, np.sort(log_T[q])[::-1])


@kernel()
def streams(keys, numbers):
    """The keys of each query's races.  Shapes: keys [B], numbers [U] -> [B, U]."""
    found = np.empty((keys.size, numbers.size), np.uint64)
    for q in range(keys.size):
        for u in range(numbers.size):
            found[q, u] = stream(keys[q], numbers[u])
    return found


# One block


@kernel()
def _head(row, first, found, n, x, Y, b, margin, log_T, clock, docs, scores, times, filled):
    """Appends who of the head arrives before T; returns the new number of entries."""
    for j in range(n):
        if clock[j] - row[found[j]] < log_T + margin:
            d = first + found[j]
            s = score_of(x, Y, d, row[found[j]])
            if s > b and clock[j] - s < log_T:
                docs[filled], scores[filled], times[filled] = d, s, clock[j] - s
                filled += 1
    return filled


@kernel(fastmath=MATHS)
def _proposals(key, number, width, b, gap, least, slot):
    """The next proposals of a stream: time since the one before, least score that is kept, slot; numbers are counted on.

    A proposal is kept if u < exp(s_d - b), that is if s_d > b + log u.
    """
    low, high = halves(stream(key, u64(0)))
    for i in range(gap.size):
        slot[i] = bits(number + i, low, high) >> u32(32 - width)
    low, high = halves(stream(key, u64(1)))
    for i in range(gap.size):
        gap[i] = minus_log_1m(uniform(number + i, low, high))
    low, high = halves(stream(key, u64(2)))
    for i in range(gap.size):
        least[i] = b + log(uniform(number + i, low, high))


@kernel()
def _tail(row, first, size, x, Y, b, margin, log_T, key, work, docs, scores, times, filled):
    """Appends who of the tail arrives before T: a Poisson stream of proposals, thinned.

    Time runs in units of 1 / (slots exp(b)), slots a power of two, at least `size`; a slot beyond it is nobody's.
    """
    gap, least, slot = work
    width = 1
    while (1 << width) < size:
        width += 1
    slots = np.float64(1 << width)
    end = slots * np.exp(np.float64(b) + np.float64(log_T))
    t, number, own = 0.0, 0, filled
    while True:
        _proposals(key, number, width, b, gap, least, slot)
        number += gap.size
        for i in range(gap.size):
            t += np.float64(gap[i])
            if t > end:
                return filled
            j = np.int64(slot[i])
            # Not above: what is near the level is looked at, and the score that counts decides.
            if j < size and row[j] > least[i] - margin and row[j] <= b + margin:
                d = first + j
                s = score_of(x, Y, d, row[j])
                if least[i] < s <= b and not _seen(d, docs, own, filled):
                    docs[filled], scores[filled] = d, s
                    times[filled] = f32(np.log(t / slots) - np.float64(b))
                    filled += 1


@njit(inline="always")
def _seen(d, docs, start, stop):
    """Whether d is among docs[start:stop]: a later proposal of who has arrived already."""
    seen = False
    for k in range(start, stop):
        seen |= docs[k] == d
    return seen


@njit(inline="always")
def _work():
    """Space for a few proposals at a time."""
    return np.empty(_DRAWN, np.float32), np.empty(_DRAWN, np.float32), np.empty(_DRAWN, np.uint32)


@kernel(parallel=True)
def scan(products, tile, first, X, Y, b, margin, log_T, keys, chunks, docs, scores, times, filled, bad):
    """Who arrives before the horizon, out of the documents first, first + 1, ... of one block, for some of the queries.

    Shapes: products [n, BLOCK], the scores of the queries tile, tile + 1, ... (approximate where Y has factors); b,
    margin [B]; log_T, filled [B, U]; keys [B, U], one of each race; docs, scores, times [B, U, capacity]; bad [B], a
    document without a finite score, or -1.
    """
    n_queries = products.shape[0]
    size = min(BLOCK, Y.shape[0] - first)
    for chunk in prange(chunks):
        found, clock = np.empty(BLOCK + 1, np.int32), np.empty(BLOCK, np.float32)
        ids, work = np.empty(BLOCK, np.uint32), _work()
        for i in range(chunk * n_queries // chunks, (chunk + 1) * n_queries // chunks):
            q, row = tile + i, products[i]
            n = above(row, size, b[q] - margin[q], found)
            for j in range(n):
                ids[j] = first + found[j]
                if not row[found[j]] < f32(np.inf):
                    bad[q] = first + found[j]
            for u in range(keys.shape[1]):
                key = keys[q, u]
                out = docs[q, u], scores[q, u], times[q, u]
                if log_T[q, u] > f32(-np.inf):
                    clocks_of(ids, n, stream(key, u64(0)), clock)
                    filled[q, u] = _head(
                        row, first, found, n, X[q], Y, b[q], margin[q], log_T[q, u], clock, *out, filled[q, u]
                    )
                    if b[q] > f32(-np.inf):
                        block = stream(stream(key, _TAIL), u64(first // BLOCK))
                        filled[q, u] = _tail(
                            row, first, size, X[q], Y, b[q], margin[q], log_T[q, u], block, work, *out, filled[q, u]
                        )


# The candidates


@kernel()
def _log_sum(a, b):
    """log(exp(a) + exp(b)) of float32, one of them may be -inf."""
    high, low = max(a, b), min(a, b)
    return high if low == f32(-np.inf) else f32(np.float64(high) + np.log1p(np.exp(np.float64(low) - np.float64(high))))


@kernel()
def _complete(x, Y, given, log_T, key, K2, docs, scores, times, n, out_docs, out_scores, out_times):
    """Goes on beyond the horizon with new clocks for all who have not arrived, which is the same law: they have no memory.

    Fills `out_*` with the candidates, and with the first who missed behind them. Returns the number of both.
    """
    D = Y.shape[0]
    score, rest = np.empty(D, np.float32), np.empty(D, np.float32)
    for d in range(D):
        score[d] = dot(x, Y[d]) if Y.shape[1] > 0 else given[d]
    arrivals(score, stream(key, _LATER), rest)
    for j in range(n):
        out_docs[j], out_scores[j], out_times[j] = docs[j], scores[j], times[j]
        rest[docs[j]] = f32(np.inf)
    histogram, keys, numbers = np.empty(2048, np.int32), np.empty(D + 1, np.float32), np.empty(D + 1, np.int32)
    candidates = np.empty(D + 1, np.int32)
    missed, _, more = first_race(rest, K2 - n, histogram, keys, numbers, candidates)
    for j in range(more):
        if rest[candidates[j]] < f32(np.inf):
            d = candidates[j]
            out_docs[n], out_scores[n], out_times[n] = d, score[d], _log_sum(log_T, rest[d])
            n += 1
    if missed >= 0:
        out_docs[n], out_scores[n], out_times[n] = missed, score[missed], _log_sum(log_T, rest[missed])
        return n, n + 1
    return n, n


@kernel(parallel=True)
def finish(X, Y, given, log_T, keys, K2, chunks, docs, scores, times, filled, candidates, s, count, log_edge):
    """The candidates of each race out of those who arrived before the horizon.

    Entry 0 is the last candidate to arrive; entry `count` is the first who missed, -1 where everybody is a candidate.
    `log_edge`: the times of both. Other clocks are not needed any more.
    Shapes: candidates, s [B, S, K2 + 1]; count [B, S]; log_edge [B, S, 2]; the rest as in `scan`.
    """
    B, S = count.shape
    for chunk in prange(chunks):
        order, at = np.empty(times.shape[2], np.int32), np.empty(K2 + 1, np.float32)
        for q in range(chunk * B // chunks, (chunk + 1) * B // chunks):
            for i in range(S):
                n, own, own_s = filled[q, i], candidates[q, i], s[q, i]
                own[:] = -1
                if n > K2:
                    for j in range(n):
                        order[j] = j
                    select(order, n, times[q, i], K2)
                    for j in range(K2 + 1):
                        own[j], own_s[j] = docs[q, i, order[j]], scores[q, i, order[j]]
                        at[j] = times[q, i, order[j]]
                    n, total = K2, K2 + 1
                else:
                    n, total = _complete(
                        X[q], Y, given[q], log_T[q, i], keys[q, i], K2, docs[q, i], scores[q, i], times[q, i], n,
                        own, own_s, at,
                    )  # fmt: skip
                count[q, i] = n
                last = 0
                for j in range(1, n):
                    last = j if at[j] > at[last] else last
                if n > 0:
                    own[0], own[last] = own[last], own[0]
                    own_s[0], own_s[last] = own_s[last], own_s[0]
                if total > n:
                    # Two times that are equal in float32 are kept apart: who missed came later.
                    log_edge[q, i, 1] = at[n]
                    log_edge[q, i, 0] = min(at[last], np.nextafter(at[n], f32(-np.inf)))
                else:
                    log_edge[q, i] = f32(np.inf)


@kernel(parallel=True)
def in_order(X, Y, given, log_T, keys, K, chunks, docs, scores, times, filled, first, first_s, log_t):
    """The K + 1 first arrivals of the first U races in their order, out of those who arrived before the horizon.

    Shapes: first, first_s, log_t [B, U, K + 1], -1, -inf and +inf where nobody is left; the rest as in `scan`.
    """
    B, U, _ = first.shape
    for chunk in prange(chunks):
        order = np.empty(times.shape[2], np.int32)
        for q in range(chunk * B // chunks, (chunk + 1) * B // chunks):
            for u in range(U):
                n, own, own_s, at = filled[q, u], first[q, u], first_s[q, u], log_t[q, u]
                own[:], own_s[:], at[:] = -1, f32(-np.inf), f32(np.inf)
                if n > K:
                    for j in range(n):
                        order[j] = j
                    select(order, n, times[q, u], K)
                    for j in range(K + 1):
                        own[j], own_s[j] = docs[q, u, order[j]], scores[q, u, order[j]]
                        at[j] = times[q, u, order[j]]
                    total = K + 1
                else:
                    _, total = _complete(
                        X[q], Y, given[q], log_T[q, u], keys[q, u], K, docs[q, u], scores[q, u], times[q, u], n,
                        own, own_s, at,
                    )  # fmt: skip
                for j in range(1, total):
                    d, s, t, i = own[j], own_s[j], at[j], j
                    while i > 0 and at[i - 1] > t:
                        own[i], own_s[i], at[i] = own[i - 1], own_s[i - 1], at[i - 1]
                        i -= 1
                    own[i], own_s[i], at[i] = d, s, t
