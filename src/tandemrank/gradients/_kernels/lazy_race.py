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
from tandemrank.gradients._kernels.draws import arrivals, clocks_of, first_of, halves, stream, time_of_rank
from tandemrank.gradients._kernels.float32 import above, bits, exp, f32, i32, log, minus_log_1m, u32, u64, uniform
from tandemrank.gradients._kernels.products import BLOCK, dot, own_score

BINS = 128
# Proposals drawn at a time.
_DRAWN = 16
# A proposal costs about five times as much as a clock of the head.
_HEAD_COST, _PROPOSAL_COST = f32(1.0), f32(5.0)
_HALVINGS = 24
_ERRORS = f32(2.5)  # standard errors by which a horizon is later than a sample of the scores says
# Streams of random numbers of a sample: 0 and 1 are the clocks of both stages, as in `race`.
_TAIL, _LATER = u64(2), u64(3)


# Level and horizon


@kernel()
def _rounding_of(some):
    """What the rounding of a product stays below, for a query of length 1: for the longest of some documents, with room."""
    norm = f32(0.0)
    for j in range(some.shape[0]):
        norm = max(norm, dot(some[j], some[j]))
    return f32(8 * some.shape[1] * 2.0**-24) * f32(np.sqrt(norm))


@kernel()
def _highest_of(score, rank, cost):
    """The score that `rank` of them reach; -inf where there are not so many.  Shapes: score, cost [n]."""
    for j in range(score.size):
        cost[j] = -score[j]
    return -time_of_rank(cost, score.size, rank - 1, f32(np.inf))


@kernel()
def _sampled_rank(wanted, share, errors):
    """How many of a sample must reach a level for `wanted` of all to do so, less so many standard errors: the least n with
    share (n - errors sqrt(n)) >= wanted."""
    root = f32(0.5) * (errors + f32(np.sqrt(errors * errors + f32(4.0) * wanted / share)))
    return np.int64(np.ceil(root * root))


@kernel()
def _binned(score, rank, cost, edge, count):
    """The scores as a histogram of the bins that are not empty. Returns how many scores and how many bins there are.

    Bins span fifty at most: what is that much below arrives when everything above has. Where scores span more, the highest of
    them are out of reach of everybody else; the bins are about the score that `rank` of them reach, and the first and the last
    hold all beyond.
    Shapes: cost [n], of any content; edge, count [BINS + 1], lower edges, the lowest first, and counts; edge[BINS] is
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
        top = min(top, _highest_of(score, min(rank, n), cost) + f32(25.0))
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
def set_horizons(first, stop, source, some, K, size, samples, is_drawn, b, margin, log_T, log_tau, log_reach):
    """Level and horizons of each query, from the scores of the documents `some`; functions of the scores alone.

    The horizon of the S races is the time by which K + 1 have very probably arrived (-inf where there is none: `finish`
    draws all clocks then); `log_tau` that by which K are expected, at most half of all. The other horizons, those of samples,
    are `log_reach`, by which `size` are expected. Without chance the level is one that very probably K exceed, and nobody is
    too late. `margin` bounds the rounding of a product. What is listed is left out of account: it is not many.
    Shapes: b, margin, log_tau, log_reach [B]; log_T [B, U], U >= S.
    """
    X, Y, given, _, _, _ = source
    D, part = Y.shape[0], Y[some]
    rounding = _rounding_of(part)
    needed, share = f32(K + 1 + 4.0 * np.sqrt(K + 1.0)), f32(D) / f32(some.size)
    rank = _sampled_rank(needed, share, _ERRORS)
    edge, count = np.empty(BINS + 1, np.float32), np.empty(BINS + 1, np.float32)
    score, cost = np.empty(some.size, np.float32), np.empty(some.size, np.float32)
    for q in range(first, stop):
        margin[q] = rounding * f32(np.sqrt(dot(X[q], X[q])))
        for j in range(some.size):
            score[j] = given[q, some[j]] if given.size > 0 else dot(X[q], part[j])
        if not is_drawn:
            # Just below, so that all who have this score exceed it: many may have the same.
            b[q] = np.nextafter(_highest_of(score, rank, cost), f32(-np.inf))
            log_T[q] = f32(np.inf)
            continue
        n, bins = _binned(score, rank, cost, edge, count)
        rate, number = edge[:bins], count[:bins]
        log_T[q], log_tau[q], log_reach[q], b[q] = f32(-np.inf), f32(-np.inf), f32(-np.inf), f32(np.inf)
        if n == 0:
            continue
        half = f32(0.5) * share * f32(n)
        log_tau[q] = _time_of(rate, number, share, min(f32(K), half), f32(0.0))
        if log_T.shape[1] > samples:
            log_reach[q] = _time_of(rate, number, share, min(f32(size), half), f32(0.0))
        horizon = _time_of(rate, number, share, needed, _ERRORS)
        for u in range(log_T.shape[1]):
            if u >= samples:
                log_T[q, u] = log_reach[q]
            elif horizon < f32(np.inf):
                log_T[q, u] = horizon
        b[q] = _level(rate, number, edge[BINS], share, D, log_T[q])


# One block


@kernel()
def _head(row, first, found, n, source, q, b, margin, log_T, clock, docs, scores, times, filled):
    """Appends who of the head arrives before T; returns the new number of entries."""
    for j in range(n):
        if clock[j] - row[found[j]] < log_T + margin:
            d = first + found[j]
            s = own_score(source, q, d)
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
def _tail(row, first, size, source, q, b, margin, log_T, key, work, docs, scores, times, filled):
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
                s = own_score(source, q, d)
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
def _keep_first(docs, scores, times, n, K, order):
    """Keeps the K first of n entries, in the order they have; returns the time of who comes next.  Shapes: order [K + 1]."""
    _, missed = first_of(times, n, K, f32(np.inf), order)
    for j in range(K):
        docs[j], scores[j], times[j] = docs[order[j]], scores[order[j]], times[order[j]]
    return missed


@kernel()
def scan(
    first, stop, products, tile, start, source, b, margin, log_T, keys, is_drawn, K, docs, scores, times, filled, bad
):
    """Who arrives before the horizon, out of the documents start, start + 1, ... of one block, for some of the queries.

    Without chance (`is_drawn`) all who exceed the level, at the time -s; where a block might not find room any more, the K
    first so far are kept, and who just missed is the level from then on: later documents have higher numbers.

    Shapes: products [n, BLOCK], the scores of the queries tile, tile + 1, ... (approximate where they are products); b,
    margin [B]; log_T, filled [B, U]; keys [B, U], one of each race; docs, scores, times [B, U, capacity]; bad [B], a
    document without a finite score, or -1.
    """
    size = min(BLOCK, source[1].shape[0] - start)
    found, clock = np.empty(BLOCK + 1, np.int32), np.empty(BLOCK, np.float32)
    ids, work, order = np.empty(BLOCK, np.int32), _work(), np.empty(K + 1, np.int32)
    for i in range(first, stop):
        q, row = tile + i, products[i]
        if not is_drawn and filled[q, 0] + size > docs.shape[2]:
            b[q] = -_keep_first(docs[q, 0], scores[q, 0], times[q, 0], filled[q, 0], K, order)
            filled[q, 0] = K
        n = above(row, size, b[q] - margin[q], found)
        for j in range(n):
            ids[j] = start + found[j]
            if not row[found[j]] < f32(np.inf):
                bad[q] = start + found[j]
        for u in range(keys.shape[1]):
            key = keys[q, u]
            out = docs[q, u], scores[q, u], times[q, u]
            if log_T[q, u] > f32(-np.inf):
                if is_drawn:
                    clocks_of(ids, n, stream(key, u64(0)), clock)
                else:
                    clock[:n] = f32(0.0)
                filled[q, u] = _head(
                    row, start, found, n, source, q, b[q], margin[q], log_T[q, u], clock, *out, filled[q, u]
                )
                if is_drawn and b[q] > f32(-np.inf):
                    block = stream(stream(key, _TAIL), u64(start // BLOCK))
                    filled[q, u] = _tail(
                        row, start, size, source, q, b[q], margin[q], log_T[q, u], block, work, *out, filled[q, u]
                    )


# The first arrivals


@kernel()
def _log_sum(a, b):
    """log(exp(a) + exp(b)) of float32, one of them may be -inf."""
    high, low = max(a, b), min(a, b)
    return high if low == f32(-np.inf) else f32(np.float64(high) + np.log1p(np.exp(np.float64(low) - np.float64(high))))


@kernel()
def _complete(source, q, log_T, key, is_drawn, K, docs, scores, times, n, own, own_s, at):
    """Goes on beyond the horizon with new clocks for all who have not arrived, which is the same law: they have no memory.

    Fills `own`, `own_s` and `at` with the first K arrivals, and at place K with who comes next. Returns how many of the K.
    """
    D = source[1].shape[0]
    score, rest = np.empty(D, np.float32), np.empty(D, np.float32)
    for d in range(D):
        score[d] = own_score(source, q, d)
    if is_drawn:
        arrivals(score, stream(key, _LATER), rest)
    else:
        rest[:] = f32(0.0) - score
    for j in range(n):
        own[j], own_s[j], at[j] = docs[j], scores[j], times[j]
        rest[docs[j]] = f32(np.inf)
    found = np.empty(K - n + 1, np.int32)
    more, missed = first_of(rest, D, K - n, f32(np.inf), found)
    for j in range(more + (missed < f32(np.inf))):
        d = found[j]
        own[n + j], own_s[n + j], at[n + j] = d, score[d], _log_sum(log_T, rest[d]) if is_drawn else rest[d]
    return n + more


@kernel()
def finish(start, stop, source, log_T, keys, is_drawn, K, docs, scores, times, filled, first, first_s, log_t):
    """The K first arrivals of the first S races, the last of them in front, and at place K who comes next.

    Shapes: first, first_s, log_t [B, S, K + 1], -1, -inf and +inf where nobody is left; the rest as in `scan`.
    """
    order = np.empty(K + 1, np.int32)
    for q in range(start, stop):
        for u in range(first.shape[1]):
            n, own, own_s, at = filled[q, u], first[q, u], first_s[q, u], log_t[q, u]
            own[:], own_s[:], at[:] = -1, f32(-np.inf), f32(np.inf)
            # Without chance nobody asks who comes next.
            if n > K or (n == K and not is_drawn):
                n, missed = first_of(times[q, u], n, K, f32(np.inf), order)
                for j in range(n + (missed < f32(np.inf))):
                    own[j], own_s[j], at[j] = docs[q, u, order[j]], scores[q, u, order[j]], times[q, u, order[j]]
            else:
                n = _complete(
                    source, q, log_T[q, u], keys[q, u], is_drawn, K, docs[q, u], scores[q, u], times[q, u], n, own,
                    own_s, at,
                )  # fmt: skip
            last = 0
            for j in range(1, n):
                last = j if at[j] > at[last] else last
            own[0], own[last] = own[last], own[0]
            own_s[0], own_s[last] = own_s[last], own_s[0]
            at[0], at[last] = at[last], at[0]
