"""The lists of the race on the CPU: who arrives first in each of the two races.

For a query and a sample `draw` runs both: `first_race` finds the candidates from the arrival times T of all documents, with
the last of them, `l`, and the first document that just missed, `x`; `second_race` draws the arrival times of the candidates,
and keeps the first K + 1. Random numbers are a function of (key of the query, sample, stage, document): a result does not
depend on threads, batches or order. `race` integrates over the clocks of each document.

`early_race` is the first race where it is known until when to look, from another race of the same scores (`latest`): among
those alone who may arrive before that limit. It gives what the whole race gives, or says that it cannot tell (-1).
"""

import numpy as np
from numba import njit

from tandemrank._base.random import GOLDEN, MIX
from tandemrank.gradients._kernels.compiled import MATHS, kernel
from tandemrank.gradients._kernels.float32 import (
    above,
    exp,
    f32,
    float_of_ordered,
    i32,
    log,
    minus_log_1m,
    ordered,
    u32,
    u64,
    uniform,
)

_BUCKETS = 2048
BLOCK = 1024  # documents that `race` sweeps at a time
WORTH = 8  # races of the same scores from which on their limits pay
_SLACK = f32(1e-3)  # of the logarithm of a time: far more than the rounding of a clock
_ABOVE = f32(1.0 + 2.0**-18)
_MARGIN = 5.0  # over sqrt(K2): how much later than in another race, in the logarithm, the last candidate may come
_FIRST, _SECOND = MIX  # of splitmix64, which `_base.random` has for NumPy


@njit(inline="always")
def mix64(z):
    """A 64-bit permutation whose every output bit depends on every input bit (splitmix64)."""
    z = u64((z ^ (z >> u64(30))) * _FIRST)
    z = u64((z ^ (z >> u64(27))) * _SECOND)
    return u64(z ^ (z >> u64(31)))


@njit(inline="always")
def stream(key, number):
    """The 64-bit key of stream `number` of `key`."""
    return mix64(u64(key + GOLDEN * u64(number + u64(1))))


@njit(inline="always")
def halves(key):
    """A 64-bit key as the two words that `uniform` wants."""
    return u32(key & u64(0xFFFFFFFF)), u32(key >> u64(32))


@njit(inline="always")
def arrives_before(key_a, a, key_b, b):
    return key_a < key_b or (key_a == key_b and a < b)


@kernel()
def _select(keys, docs, n, rank):
    """Puts the entry of that rank, by (key, document), at its place: Hoare's selection."""
    low, high = 0, n - 1
    while low < high:
        middle = (low + high) >> 1
        pivot, pivot_doc = keys[middle], docs[middle]
        i, j = low, high
        while i <= j:
            while arrives_before(keys[i], docs[i], pivot, pivot_doc):
                i += 1
            while arrives_before(pivot, pivot_doc, keys[j], docs[j]):
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                docs[i], docs[j] = docs[j], docs[i]
                i += 1
                j -= 1
        if rank <= j:
            high = j
        elif rank >= i:
            low = i
        else:
            return


@kernel(fastmath=MATHS)
def clocks_of(numbers, n, key, clock):
    """log E_d of the first n documents in `numbers`."""
    low, high = halves(key)
    for j in range(n):
        clock[j] = uniform(numbers[j], low, high)
    for j in range(n):
        clock[j] = log(minus_log_1m(clock[j]))


@kernel(fastmath=MATHS)
def arrivals(score, key, log_T):
    """log T_d = log E_d - s_d for all documents; +inf for those that are not available (score -inf)."""
    low, high = u32(key & u64(0xFFFFFFFF)), u32(key >> u64(32))
    # Two short loops run faster than one long one: the values of each fit in the registers.
    for d in range(score.size):
        log_T[d] = uniform(d, low, high)
    for d in range(score.size):
        log_T[d] = log(minus_log_1m(log_T[d])) - score[d]


@kernel()
def first_race(log_T, K2, histogram, bucket_keys, bucket_docs, candidates):
    """The candidates, in the order of their numbers. Returns (x, l, n): who just missed, the last to arrive, how many.

    A histogram of the leading bits of the times finds the few documents that can have rank K2; only they are sorted
    out. Where at most K2 documents are available all of them are candidates, and x = l = -1.
    """
    histogram[:] = 0
    for d in range(log_T.size):
        histogram[ordered(log_T[d]) >> u32(21)] += 1
    # The bucket of +inf holds those who never arrive: no finite time is as large.
    available = log_T.size - histogram[ordered(f32(np.inf)) >> u32(21)]
    x, key_x = -1, f32(np.inf)
    if available > K2:
        bucket, below = 0, 0
        while below + histogram[bucket] <= K2:
            below += histogram[bucket]
            bucket += 1
        n = 0
        for d in range(log_T.size):
            bucket_keys[n], bucket_docs[n] = log_T[d], d
            n += ordered(log_T[d]) >> u32(21) == bucket
        _select(bucket_keys, bucket_docs, n, K2 - below)
        x = bucket_docs[K2 - below]
        key_x = log_T[x]
    n = 0
    for d in range(log_T.size):
        candidates[n] = d
        n += (log_T[d] < key_x) | ((log_T[d] == key_x) & (d < x))
    last = -1
    if x >= 0:
        last = candidates[0]
        for j in range(1, n):
            if log_T[candidates[j]] >= log_T[last]:
                last = candidates[j]
    return x, last, n


@kernel(fastmath=MATHS)
def latest(score, missed, K2, below):
    """Until when to look in other races of these scores, given who just missed in one, and what that asks of each clock.

        log(-log(1 - v)) - s < limit    <=>    v < 1 - exp(-exp(limit + s)),    v the uniform number of the document

    `below` is a little more than that. Returns the limit.  Shapes: score, below [D], `below` is filled.
    """
    limit = f32(missed + _MARGIN / np.sqrt(K2))
    for d in range(score.size):
        x = exp(limit + score[d] + _SLACK)
        # 1 - exp(-x) loses its digits where x is small, and there its series has them.
        below[d] = max(f32(1.0) - exp(-x), x * (f32(1.0) - f32(0.5) * x)) * _ABOVE
    return limit


@kernel(fastmath=MATHS)
def early_race(s, below, limit, key, K2, floats, documents, order, candidates):
    """`first_race` among those alone whose uniform number is below `below`: the same candidates at a fraction of the cost.

    Nearly all that is left is a hash and a comparison per document. Returns the number of candidates and the time of who just
    missed; -1 where so few arrive before the limit that others may be among the candidates.
    Shapes: s, below [D]; floats [3, D + 1], documents [2, D + 1], order [D + 1]; candidates [K2], their times in floats[0].
    """
    docs, scores = documents[0], floats[0]
    n = find_early(below, key, scores, docs)
    if n <= K2:
        return -1, f32(np.inf)
    for j in range(n):
        scores[j] = s[docs[j]]
    return choose(scores, n, key, limit, K2, floats, docs, order, candidates)


@kernel(fastmath=MATHS)
def find_early(below, key, early, docs):
    """Who may arrive before the limit that `below` is of; returns how many.  Shapes: below [D]; early, docs [D + 1]."""
    low, high = u32(key & u64(0xFFFFFFFF)), u32(key >> u64(32))
    for d in range(below.size):
        early[d] = below[d] - uniform(d, low, high)
    return above(early, below.size, f32(0.0), docs)


@kernel(fastmath=MATHS)
def choose(scores, n, key, limit, K2, floats, docs, order, candidates):
    """The candidates out of docs[:n], who have these scores; -1 where the first who missed does not arrive before the limit.

    Returns their number and the time of who just missed; their times are in floats[0].
    """
    low, high = u32(key & u64(0xFFFFFFFF)), u32(key >> u64(32))
    times = floats[1]
    # The look-up apart from the arithmetic, so that the arithmetic runs on whole vectors.
    for j in range(n):
        times[j] = uniform(docs[j], low, high)
    for j in range(n):
        times[j] = log(minus_log_1m(times[j])) - scores[j]
    missed = time_of_rank(times, n, K2, limit)
    if missed >= limit:
        return -1, f32(np.inf)
    pick_out(times, n, missed, K2, docs, order, candidates)
    for j in range(K2):
        floats[0, j] = times[order[j]]
    return K2, missed


@kernel()
def pick_out(times, n, missed, K2, docs, order, candidates):
    """Those of docs[:n] before the time of rank K2, of those at that very time the first by number; returns K2."""
    ties, filled = K2 - _before(times, n, missed), 0
    for j in range(n):
        tie = times[j] == missed
        order[filled] = j
        filled += (times[j] < missed) | (tie & (ties > 0))
        ties -= tie
    for j in range(K2):
        candidates[j] = docs[order[j]]
    return K2


@kernel()
def _before(times, n, t):
    """How many of times[:n] are before t: one comparison of whole vectors after the other."""
    count = i32(0)
    for j in range(n):
        count = i32(count + i32(times[j] < t))
    return count


@kernel()
def time_of_rank(times, n, rank, limit):
    """The time of that rank (from 0) among times[:n]; the limit where it is not before it.

    Bisection by counting: unlike a selection it has no branch that depends on the data.
    """
    if _before(times, n, limit) <= rank:
        return limit
    least = limit
    for j in range(n):
        least = min(least, times[j])
    low, high = ordered(least), ordered(limit)  # the time is at low or after it, and before high
    while high - low > u32(1):
        middle = u32(low + ((high - low) >> u32(1)))
        inside = _before(times, n, float_of_ordered(middle)) <= rank
        low, high = (middle, high) if inside else (low, middle)
    return float_of_ordered(low)


@kernel()
def first_arrivals(docs, log_Q, n, shown, shown_log_Q):
    """The first of docs[:n] in `shown`, in order of arrival, -1 behind them; returns how many there are."""
    size, filled = shown.size, 0
    limit = f32(np.inf)
    for j in range(n):
        if log_Q[j] < limit:
            # Documents come in no order of time, so a new one is put in its place, ties behind.
            place = min(filled, size - 1)
            filled = min(filled + 1, size)
            while place > 0 and shown_log_Q[place - 1] > log_Q[j]:
                shown[place], shown_log_Q[place] = shown[place - 1], shown_log_Q[place - 1]
                place -= 1
            shown[place], shown_log_Q[place] = docs[j], log_Q[j]
            if filled == size:
                limit = shown_log_Q[size - 1]
    for place in range(filled, size):
        shown[place], shown_log_Q[place] = -1, f32(np.inf)
    return filled


@kernel(fastmath=MATHS)
def second_race(score, key, candidates, n, scores, log_Q, shown, shown_log_Q):
    """The first arrivals among `candidates[:n]`, in order; returns how many there are."""
    low, high = u32(key & u64(0xFFFFFFFF)), u32(key >> u64(32))
    # The look-up apart from the arithmetic, so that the arithmetic runs on whole vectors.
    for j in range(n):
        scores[j] = score[candidates[j]]
    for j in range(n):
        log_Q[j] = uniform(candidates[j], low, high)
    for j in range(n):
        log_Q[j] = log(minus_log_1m(log_Q[j])) - scores[j]
    return first_arrivals(candidates, log_Q, n, shown, shown_log_Q)


@kernel()
def scratch_space(D, K):
    """Working space of one thread: nothing is allocated while queries are answered."""
    floats, documents = np.empty((7, D + 1), np.float32), np.empty((2, D + 1), np.int32)
    lists, histogram = np.empty((4, K + 1), np.float32), np.empty(_BUCKETS, np.int32)
    return floats, documents, lists, histogram, np.empty(K + 1, np.int32), np.empty(BLOCK, np.float32)


@kernel()
def draw(s, r, key, K2, w, scratch):
    """Both races of one sample. Returns (x, l, number of candidates); the lists are in the scratch.

    `shown` has the first K + 1 arrivals of the second race; rows of `lists`: 0 and 1, their times and weights; the
    others are free.
    x = -1 where everybody available is a candidate (the one-stage case).
    """
    floats, documents, lists, histogram, shown, _ = scratch
    log_T, log_Q, candidates = floats[0], floats[1], documents[0]
    D = s.size
    if K2 < D:
        arrivals(s, stream(key, u64(0)), log_T[:D])
        x, last, n = first_race(log_T[:D], K2, histogram, log_Q, documents[1], candidates)
    else:
        # Nobody can miss: only availability matters, and no clock needs to be drawn for it.
        x, last, n = -1, -1, 0
        for d in range(D):
            log_T[d] = f32(0.0) if s[d] > f32(-np.inf) else f32(np.inf)
            candidates[n] = d
            n += s[d] > f32(-np.inf)
    second_race(r, stream(key, u64(1)), candidates, n, floats[4], log_Q, shown, lists[0])
    for k in range(shown.size):
        lists[1, k] = w[shown[k]] if shown[k] >= 0 else f32(0.0)
    return x, last, n
