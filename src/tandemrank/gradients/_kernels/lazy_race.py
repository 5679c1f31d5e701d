"""The first race without looking at every clock, compiled; `lazy_race` has the law and the reasons.

1. `set_horizons` chooses, from the scores of some documents, the level b and the horizon T of each query.
2. `scan` walks over one block of scores: who of the head (s_d > b) arrives before T, and the thinned stream of the tail.
3. `finish` finds the first among those who arrived, and `_complete` draws on where too few did.

Products of matrices round differently in batches of different size. So they only propose: the score that decides is
`dot`, in an order of its own, and neither threads nor the split of a batch change a result.
"""

import numpy as np
from numba import njit

from tandemrank.gradients._kernels.compiled import MATHS, SUMS, kernel
from tandemrank.gradients._kernels.draws import BUCKETS, arrivals, clocks_of, first_race, halves, select, stream
from tandemrank.gradients._kernels.float32 import above, bits, exp, f32, log, minus_log_1m, u32, u64, uniform
from tandemrank.gradients._kernels.products import (
    BINS,
    BLOCK,
    binned,
    dot,
    own_score,
    rounding_of,
    sampled_rank,
    score_of,
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
    longest = log_T.max()  # the others are measured by it
    for u in range(log_T.size):
        time += exp(log_T[u] - longest) if log_T[u] > f32(-np.inf) else f32(0.0)
    for k in range(rate.size - 1, -1, -1):
        upper = rate[k] + width
        cost = _HEAD_COST * head * f32(log_T.size) + _PROPOSAL_COST * f32(D) * exp(upper + longest) * time
        if cost < best:
            best, level = cost, upper
        head += share * count[k]
    return level


@kernel()
def set_horizons(first, stop, X, Y, given, some, K2, samples, wide, b, margin, log_T, log_tau):
    """Level and horizon of each query, from the scores of the documents `some`; functions of the scores alone.

    The horizon of the S races is the time by which K2 + 1 have very probably arrived (-inf where there is none: `finish`
    draws all clocks then); `log_tau` that by which K2 are expected, at most half of all; the last horizon, the
    pattern's, is `wide` times as long. `margin` bounds the rounding of a product.
    Shapes: X [B, F]; Y [D, F]; given [B, D or 0]; b, margin, log_tau [B]; log_T [B, U], U = S or S + 1.
    """
    D, part = Y.shape[0], Y[some]
    rounding = rounding_of(part)
    needed, share = f32(K2 + 1 + 4.0 * np.sqrt(K2 + 1.0)), f32(D) / f32(some.size)
    rank = sampled_rank(needed, share, _ERRORS)
    edge, count = np.empty(BINS + 1, np.float32), np.empty(BINS + 1, np.float32)
    score, cost, order = np.empty(some.size, np.float32), np.empty(some.size, np.float32), np.empty(some.size, np.int32)
    for q in range(first, stop):
        margin[q] = rounding * f32(np.sqrt(dot(X[q], X[q])))
        for j in range(some.size):
            score[j] = score_of(X[q], part, j, given[q, some[j]] if given.size > 0 else f32(0.0))
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
        b[q] = _level(rate, number, edge[BINS], share, D, log_T[q])


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
    t, number, own = 0.0, np.int64(0), filled
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


@kernel()
def scan(first, stop, products, tile, start, X, Y, b, margin, log_T, keys, docs, scores, times, filled, bad):
    """Who arrives before the horizon, out of the documents start, start + 1, ... of one block, for some of the queries.

    Shapes: products [n, BLOCK], the scores of the queries tile, tile + 1, ... (approximate where Y has factors); b,
    margin [B]; log_T, filled [B, U]; keys [B, U], one of each race; docs, scores, times [B, U, capacity]; bad [B], a
    document without a finite score, or -1.
    """
    size = min(BLOCK, Y.shape[0] - start)
    found, clock = np.empty(BLOCK + 1, np.int32), np.empty(BLOCK, np.float32)
    ids, work = np.empty(BLOCK, np.int32), _work()
    for i in range(first, stop):
        q, row = tile + i, products[i]
        n = above(row, size, b[q] - margin[q], found)
        for j in range(n):
            ids[j] = start + found[j]
            if not row[found[j]] < f32(np.inf):
                bad[q] = start + found[j]
        for u in range(keys.shape[1]):
            key = keys[q, u]
            out = docs[q, u], scores[q, u], times[q, u]
            if log_T[q, u] > f32(-np.inf):
                clocks_of(ids, n, stream(key, u64(0)), clock)
                filled[q, u] = _head(
                    row, start, found, n, X[q], Y, b[q], margin[q], log_T[q, u], clock, *out, filled[q, u]
                )
                if b[q] > f32(-np.inf):
                    block = stream(stream(key, _TAIL), u64(start // BLOCK))
                    filled[q, u] = _tail(
                        row, start, size, X[q], Y, b[q], margin[q], log_T[q, u], block, work, *out, filled[q, u]
                    )


# The first arrivals


@kernel()
def _log_sum(a, b):
    """log(exp(a) + exp(b)) of float32, one of them may be -inf."""
    high, low = max(a, b), min(a, b)
    return high if low == f32(-np.inf) else f32(np.float64(high) + np.log1p(np.exp(np.float64(low) - np.float64(high))))


@kernel()
def _complete(X, Y, given, q, log_T, key, K, docs, scores, times, n, own, own_s, at):
    """Goes on beyond the horizon with new clocks for all who have not arrived, which is the same law: they have no memory.

    Fills `own`, `own_s` and `at` with the first K arrivals, and at place K with who comes next. Returns how many of the K.
    """
    D = Y.shape[0]
    score, rest = np.empty(D, np.float32), np.empty(D, np.float32)
    for d in range(D):
        score[d] = own_score(X, Y, given, q, d)
    arrivals(score, stream(key, _LATER), rest)
    for j in range(n):
        own[j], own_s[j], at[j] = docs[j], scores[j], times[j]
        rest[docs[j]] = f32(np.inf)
    bucket, found = np.empty(D + 1, np.float32), np.empty(D + 1, np.int32)
    missed, _, more = first_race(rest, K - n, np.empty(BUCKETS, np.int32), bucket, found)
    for j in range(more):
        d = found[j]
        if rest[d] < f32(np.inf):
            own[n], own_s[n], at[n] = d, score[d], _log_sum(log_T, rest[d])
            n += 1
    if missed >= 0:
        own[K], own_s[K], at[K] = missed, score[missed], _log_sum(log_T, rest[missed])
    return n


@kernel()
def finish(start, stop, X, Y, given, log_T, keys, K, docs, scores, times, filled, first, first_s, log_t):
    """The K first arrivals of the first S races, the last of them in front, and at place K who comes next.

    Shapes: first, first_s, log_t [B, S, K + 1], -1, -inf and +inf where nobody is left; the rest as in `scan`.
    """
    order = np.empty(times.shape[2], np.int32)
    for q in range(start, stop):
        for u in range(first.shape[1]):
            n, own, own_s, at = filled[q, u], first[q, u], first_s[q, u], log_t[q, u]
            own[:], own_s[:], at[:] = -1, f32(-np.inf), f32(np.inf)
            if n > K:
                for j in range(n):
                    order[j] = j
                select(order, n, times[q, u], K)
                n = K
                for j in range(K + 1):
                    own[j], own_s[j], at[j] = docs[q, u, order[j]], scores[q, u, order[j]], times[q, u, order[j]]
            else:
                n = _complete(
                    X, Y, given, q, log_T[q, u], keys[q, u], K, docs[q, u], scores[q, u], times[q, u], n, own, own_s, at
                )
            last = 0
            for j in range(1, n):
                last = j if at[j] > at[last] else last
            own[0], own[last] = own[last], own[0]
            own_s[0], own_s[last] = own_s[last], own_s[0]
            at[0], at[last] = at[last], at[0]
