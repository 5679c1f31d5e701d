"""Lists of the race: who arrives first in each of the two races.

`first_race` finds the candidates from the arrival times T of all documents, with the last of them, `l`, and the first
document that just missed, `x`; `second_race` draws the arrival times of the candidates and keeps the first. Random numbers are
a function of (key of the query, sample, stage, document): a result does not depend on threads, batches or order. `draw` runs
both races for `race`, which integrates over the clocks of each document; `lists` and `one_list` show what was drawn.

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

BUCKETS = 2048
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
def arrives_before(times, a, b):
    """Whether document a arrives before document b: by their times, ties to the lower number."""
    return times[a] < times[b] or (times[a] == times[b] and a < b)


@kernel()
def select(order, n, times, rank):
    """Puts the entry of that rank, by (time, number), at its place in order[:n]: Hoare's selection."""
    low, high = 0, n - 1
    while low < high:
        pivot = order[(low + high) >> 1]
        i, j = low, high
        while i <= j:
            while arrives_before(times, order[i], pivot):
                i += 1
            while arrives_before(times, pivot, order[j]):
                j -= 1
            if i <= j:
                order[i], order[j] = order[j], order[i]
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
def arrivals_of(docs, n, scores, key, times):
    """log T of docs[:n], who have these scores."""
    low, high = halves(key)
    for j in range(n):
        times[j] = uniform(docs[j], low, high)
    for j in range(n):
        times[j] = log(minus_log_1m(times[j])) - scores[j]


@kernel(fastmath=MATHS)
def arrivals(score, key, log_T):
    """log T_d = log E_d - s_d for all documents; +inf for those that are not available (score -inf)."""
    low, high = halves(key)
    # Two short loops run faster than one long one: the values of each fit in the registers.
    for d in range(score.size):
        log_T[d] = uniform(d, low, high)
    for d in range(score.size):
        log_T[d] = log(minus_log_1m(log_T[d])) - score[d]


@kernel()
def first_race(log_T, K2, histogram, bucket, candidates):
    """The candidates, in the order of their numbers. Returns (x, l, n): who just missed, the last to arrive, how many.

    A histogram of the leading bits of the times finds the few documents that can have rank K2; only they are looked
    through. Where at most K2 documents are available all of them are candidates, and x = l = -1.
    Shapes: log_T [D]; bucket, candidates [D + 1].
    """
    histogram[:] = 0
    for d in range(log_T.size):
        histogram[ordered(log_T[d]) >> u32(21)] += 1
    # The bucket of +inf holds those who never arrive: no finite time is as large.
    there = log_T.size - histogram[ordered(f32(np.inf)) >> u32(21)]
    missed, ties = f32(np.inf), 0
    if there > K2:
        number, below = 0, 0
        while below + histogram[number] <= K2:
            below += histogram[number]
            number += 1
        n = np.int64(0)
        for d in range(log_T.size):
            bucket[n] = log_T[d]
            n += ordered(log_T[d]) >> u32(21) == number
        missed = time_of_rank(bucket, n, K2 - below, f32(np.inf))
        ties = K2 - below - _before(bucket, n, missed)
    # Of those at the very time of who just missed, the first by number are candidates.
    n, x = 0, -1
    for d in range(log_T.size):
        candidates[n] = d
        tie = log_T[d] == missed
        n += (log_T[d] < missed) | (tie & (ties > 0))
        x = d if tie & (ties == 0) else x
        ties -= tie
    if there <= K2:
        return -1, -1, n
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
    low, high = halves(key)
    for d in range(below.size):
        early[d] = below[d] - uniform(d, low, high)
    return above(early, below.size, f32(0.0), docs)


@kernel(fastmath=MATHS)
def choose(scores, n, key, limit, K2, floats, docs, order, candidates):
    """The candidates out of docs[:n], who have these scores; -1 where the first who missed does not arrive before the limit.

    Returns their number and the time of who just missed; their times are in floats[0].
    """
    times = floats[1]
    arrivals_of(docs, n, scores, key, times)
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


@kernel()
def second_race(candidates, n, scores, key, is_drawn, log_Q, shown, times):
    """The first arrivals among candidates[:n], who have these scores, in order; without chance the highest scores.

    Returns how many there are; -1 behind them.  Shapes: log_Q [n or more], working space; shown, times [K], filled.
    """
    if is_drawn:
        arrivals_of(candidates, n, scores, key, log_Q)
    else:
        for j in range(n):
            log_Q[j] = -scores[j]
    return first_arrivals(candidates, log_Q, n, shown, times)


@kernel()
def available(s, candidates):
    """Everybody who is available, where nobody can miss: no clock needs to be drawn for that. Returns how many."""
    n = 0
    for d in range(s.size):
        candidates[n] = d
        n += s[d] > f32(-np.inf)
    return n


# Both races for the gradient


@kernel()
def scratch_space(D, K):
    """Working space of one thread: nothing is allocated while queries are answered."""
    floats, documents = np.empty((7, D + 1), np.float32), np.empty((2, D + 1), np.int32)
    lists, histogram = np.empty((4, K + 1), np.float32), np.empty(BUCKETS, np.int32)
    return floats, documents, lists, histogram, np.empty(K + 1, np.int32), np.empty(BLOCK, np.float32)


@kernel()
def draw(s, r, key, K2, w, scratch):
    """Both races of one sample. Returns (x, l, number of candidates); the lists are in the scratch.

    `shown` has the first K + 1 arrivals of the second race; rows of `lists`: 0 and 1, their times and weights; the
    others are free.
    x = -1 where everybody available is a candidate (the one-stage case).
    """
    floats, documents, lists, histogram, shown, _ = scratch
    log_T, candidates, scores, D = floats[0], documents[0], floats[4], s.size
    if K2 < D:
        arrivals(s, stream(key, u64(0)), log_T[:D])
        x, last, n = first_race(log_T[:D], K2, histogram, floats[1], candidates)
    else:
        x, last, n = -1, -1, available(s, candidates)
        for d in range(D):
            log_T[d] = f32(0.0) if s[d] > f32(-np.inf) else f32(np.inf)
    for j in range(n):
        scores[j] = r[candidates[j]]
    second_race(candidates, n, scores, stream(key, u64(1)), np.bool_(True), floats[1], shown, lists[0])
    for k in range(shown.size):
        lists[1, k] = w[shown[k]] if shown[k] >= 0 else f32(0.0)
    return x, last, n


# Lists alone


@kernel()
def candidates_of(s, key, is_drawn, K2, below, limit, floats, documents, order, histogram, candidates):
    """The candidates of one key, in the order of their numbers, in space that is there; their times are in floats[0].

    Returns their number and the time of who just missed. `below` and `limit`, of `latest`, never change a result; without them
    (a limit of +inf) all times are computed. Without chance (`is_drawn`) the K2 highest scores.
    Shapes: s, below [D]; floats [3, D + 1], documents [2, D + 1], order [D + 1]; candidates [K2], filled.
    """
    D, first = s.size, stream(stream(key, u64(0)), u64(0))
    if K2 >= D:
        return available(s, candidates), f32(np.inf)
    if is_drawn and limit < f32(np.inf):
        n, missed = early_race(s, below, limit, first, K2, floats, documents, order, candidates)
        if n >= 0:
            return n, missed
    log_T, found = floats[0, :D], documents[0]
    if is_drawn:
        arrivals(s, first, log_T)
    else:
        for d in range(D):
            log_T[d] = f32(0.0) - s[d]  # never -0, which comes before 0 by its bits
    x, _, n = first_race(log_T, K2, histogram, floats[1], found)
    missed = log_T[x] if x >= 0 else f32(np.inf)
    for j in range(n):
        # In the order of their numbers: no time is overwritten before its turn.
        candidates[j], log_T[j] = found[j], log_T[found[j]]
    return n, missed


@kernel()
def shown_of(scores, key, is_drawn, candidates, log_Q, times, shown):
    """The list of one key out of its candidates, who have these scores; -1 where there are too few.

    Shapes: scores, candidates [n]; log_Q [n or more]; times, shown [K], `shown` is filled.
    """
    second = stream(stream(key, u64(0)), u64(1))
    second_race(candidates, candidates.size, scores, second, is_drawn, log_Q, shown, times)


@kernel()
def one_list(s, r, key, is_drawn, K2, below, limit, floats, documents, order, histogram, candidates, times, shown):
    """Both races of one key, where the re-ranker's scores of everything are there. Returns the time of who just missed.

    Shapes: as of `candidates_of` and `shown_of`; r [D].
    """
    n, missed = candidates_of(s, key, is_drawn, K2, below, limit, floats, documents, order, histogram, candidates)
    for j in range(n):
        floats[0, j] = r[candidates[j]]
    shown_of(floats[0, :n], key, is_drawn, candidates[:n], floats[1], times, shown)
    return missed


@kernel()
def lists(first, stop, s, r, rows, keys, is_drawn, K2, shown):
    """`one_list` for the keys first ... stop - 1; -1 where fewer documents are available.

    Many lists of one row in succession are drawn faster.
    Shapes: s, r [B, D]; rows, keys [n]; shown [n, K], filled.
    """
    D, K = s.shape[1], shown.shape[1]
    floats, documents, order = (
        np.empty((3, D + 1), np.float32),
        np.empty((2, D + 1), np.int32),
        np.empty(D + 1, np.int32),
    )
    histogram, candidates = np.empty(BUCKETS, np.int32), np.empty(min(K2, D), np.int32)
    times, below, limit = np.empty(K, np.float32), np.empty(D, np.float32), f32(np.inf)
    for i in range(first, stop):
        row = rows[i]
        if i > first and rows[i - 1] != row:
            limit = f32(np.inf)
        missed = one_list(
            s[row], r[row], keys[i], is_drawn, K2, below, limit, floats, documents, order, histogram, candidates, times,
            shown[i],
        )  # fmt: skip
        if limit == f32(np.inf) or missed >= limit:
            pays = is_drawn and missed < f32(np.inf) and i + WORTH < stop and rows[i + WORTH] == row
            limit = latest(s[row], missed, K2, below) if pays else f32(np.inf)
