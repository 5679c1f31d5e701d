"""Lists of the race: who arrives first in each of the two races.

`first_of` finds the first of some times and who just missed: the one selection of all races. `second_race` draws the arrival
times of the candidates and keeps the first. Random numbers are a function of (key of the query, sample, stage, document): a
result does not depend on threads, batches or order. `draw` runs both races for `race`, which integrates over the clocks of
each document; `lists` and `one_list` show what was drawn.

`candidates_of` looks at few of very many, and gives what a race of all gives. From another race of the same scores it is known
until when to look (`latest`): only who may arrive before that limit matters, if enough do. And where scores are known within
bounds only who may be among the first is scored (`possible`); `single` has the proof.
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
from tandemrank.gradients._kernels.products import TINY, dot

BLOCK = 1024  # documents that `race` sweeps at a time
WORTH = 8  # races of the same scores from which on their limits pay
_SLACK = f32(1e-3)  # of the logarithm of a time: far more than the rounding of a clock
_ABOVE = f32(1.0 + 2.0**-18)
_MARGIN = 5.0  # over sqrt(K2): how much later than in another race, in the logarithm, the last candidate may come
_LOWER = f32(2.02)  # a little more than from the upper bound through the score to the lower one
_PARTS = 8  # for each candidate, in which the earliest is looked for
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
    clocks_of(docs, n, key, times)
    for j in range(n):
        times[j] -= scores[j]


@kernel(fastmath=MATHS)
def arrivals(score, key, log_T):
    """log T_d = log E_d - s_d for all documents; +inf for those that are not available (score -inf)."""
    low, high = halves(key)
    # Two short loops run faster than one long one: the values of each fit in the registers.
    for d in range(score.size):
        log_T[d] = uniform(d, low, high)
    for d in range(score.size):
        log_T[d] = log(minus_log_1m(log_T[d])) - score[d]


# The first of some times


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
def first_of(times, n, K, limit, found):
    """The places of the K first of times[:n], in the order of places; of those at one time the first by place.

    Returns their number and the time of who comes next, who is at found[K]. Where nobody comes next before the limit that
    time is the limit, and found has all before it.  Shapes: found [K + 1].
    """
    missed = time_of_rank(times, n, K, limit)
    ties = K - _before(times, n, missed) if missed < limit else 0
    filled, x = 0, -1
    for j in range(n):
        found[filled] = j
        tie = times[j] == missed
        filled += (times[j] < missed) | (tie & (ties > 0))
        x = j if tie & (ties == 0) else x
        ties -= tie
    found[filled] = x
    return filled, missed


# The first race where it is known until when to look


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
def _find_early(below, key, early, docs):
    """Who may arrive before the limit that `below` is of; returns how many.  Shapes: below [D]; early, docs [D + 1]."""
    low, high = halves(key)
    for d in range(below.size):
        early[d] = below[d] - uniform(d, low, high)
    return above(early, below.size, f32(0.0), docs)


# The candidates of one key


@kernel()
def candidates_of(scores, key, is_drawn, K2, below, limit, floats, documents, candidates):
    """The candidates of one key, in the order of their numbers; their times are in floats[0].

    `scores`: the factors of the query and of the items, upper bounds of the scores, and what bounds them from below (`single`);
    or without factors the scores themselves in place of the upper bounds. `below` and `limit`, of `latest`, never change a
    result; without them (a limit of +inf) everybody may be early. Without chance (`is_drawn`) the K2 highest scores.
    Returns the number of candidates and the time of who just missed.
    Shapes: scores (x [F], Y [D, F], upper [D], reach [D], length); below [D]; floats, documents [2, D + 1]; candidates [K2],
    filled.
    """
    x, _, upper, reach, length = scores
    D, first, docs = upper.size, stream(key, u64(0)), documents[0]
    if K2 >= D:
        return available(upper, candidates), f32(np.inf)
    if is_drawn and limit < f32(np.inf):
        n = _find_early(below, first, floats[0], docs)
        n, missed = _chosen(scores, n, first, is_drawn, K2, limit, floats, documents, candidates)
        if missed < limit:
            return n, missed
    if x.size > 0:
        n = possible(upper, reach, length, first, is_drawn, K2, floats, docs)
    else:
        for d in range(D):
            docs[d] = d
        n = np.int64(D)
    return _chosen(scores, n, first, is_drawn, K2, f32(np.inf), floats, documents, candidates)


@kernel(fastmath=MATHS)
def _chosen(scores, n, key, is_drawn, K2, limit, floats, documents, candidates):
    """The candidates out of documents[0, :n] by their exact scores, and the time of who just missed, at most the limit."""
    x, Y, upper, _, _ = scores
    docs, order, own, times = documents[0], documents[1], floats[0], floats[1]
    for j in range(n):
        own[j] = dot(x, Y[docs[j]]) if x.size > 0 else upper[docs[j]]
    if is_drawn:
        arrivals_of(docs, n, own, key, times)
    else:
        for j in range(n):
            times[j] = f32(0.0) - own[j]  # never -0, which comes before 0 by its bits
    filled, missed = first_of(times, n, K2, limit, order)
    for j in range(filled):
        candidates[j], floats[0, j] = docs[order[j]], times[order[j]]
    return filled, missed


@kernel(fastmath=MATHS)
def possible(upper, reach, length, key, is_drawn, K2, floats, docs):
    """Everybody who may be among the first K2 + 1, in the order of numbers; returns how many.

    At the earliest a document arrives at T, by its upper bound. K2 + 1 parts of the documents have somebody who at the
    earliest arrives by t, and these have arrived, at the latest, at `late`: whoever cannot before it is out.
    """
    D, T, least = upper.size, floats[0, : upper.size], floats[1]
    if is_drawn:
        arrivals(upper, key, T)
    else:
        for d in range(D):
            T[d] = f32(0.0) - upper[d]
    size = max(1, D // (_PARTS * (K2 + 1)))
    parts = (D + size - 1) // size
    for part in range(parts):
        earliest = f32(np.inf)
        for d in range(part * size, min(D, (part + 1) * size)):
            earliest = min(earliest, T[d])
        least[part] = earliest
    t, late = time_of_rank(least, parts, K2, f32(np.inf)), f32(-np.inf)
    for part in range(parts):
        if least[part] <= t:
            for d in range(part * size, min(D, (part + 1) * size)):
                if T[d] <= t:
                    late = max(late, _latest_of(T[d], upper[d], length * reach[d]))
    n = 0
    for part in range(parts):
        if least[part] <= late:
            for d in range(part * size, min(D, (part + 1) * size)):
                docs[n] = d
                n += T[d] <= late
    return n


@njit(inline="always")
def _latest_of(T, upper, wide):
    """When somebody arrives at the latest who at the earliest arrives at T."""
    lower = upper - (_LOWER * wide + f32(3.0) * TINY)
    # clock - lower = T + upper - lower, and each of the three is rounded.
    late = T + (upper - lower)
    return late + f32(2.0**-21) * (abs(T) + abs(upper) + abs(lower)) + TINY


@njit(inline="always")
def available(s, candidates):
    """Everybody who is available, where nobody can miss: no clock needs to be drawn for that. Returns how many."""
    n = 0
    for d in range(s.size):
        candidates[n] = d
        n += s[d] > f32(-np.inf)
    return n


# The list


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
        arrivals_of(candidates, n, scores, stream(key, u64(1)), log_Q)
    else:
        for j in range(n):
            log_Q[j] = -scores[j]
    return first_arrivals(candidates, log_Q, n, shown, times)


@kernel()
def one_list(scores, key, is_drawn, K2, below, limit, floats, documents, candidates, r, times, shown):
    """Both races of one key, where the re-ranker's scores of everything are there. Returns the time of who just missed.

    Shapes: as of `candidates_of`; r [D]; times, shown [K], `shown` is filled, -1 where fewer documents are available.
    """
    n, missed = candidates_of(scores, key, is_drawn, K2, below, limit, floats, documents, candidates)
    for j in range(n):
        floats[0, j] = r[candidates[j]]
    second_race(candidates, n, floats[0], key, is_drawn, floats[1], shown, times)
    return missed


@kernel()
def lists(first, stop, s, r, rows, keys, K2, shown):
    """Drawn lists for the keys first ... stop - 1. Many lists of one row in succession are drawn faster.

    Shapes: s, r [B, D]; rows, keys [n]; shown [n, K], filled.
    """
    D, K = s.shape[1], shown.shape[1]
    floats, documents = np.empty((2, D + 1), np.float32), np.empty((2, D + 1), np.int32)
    candidates, times = np.empty(min(K2, D), np.int32), np.empty(K, np.float32)
    nothing, below, limit = np.empty((1, 0), np.float32), np.empty(D, np.float32), f32(np.inf)
    for i in range(first, stop):
        row = rows[i]
        if i > first and rows[i - 1] != row:
            limit = f32(np.inf)
        scores, key = (nothing[0], nothing, s[row], nothing[0], f32(0.0)), stream(keys[i], u64(0))
        missed = one_list(
            scores, key, np.bool_(True), K2, below, limit, floats, documents, candidates, r[row], times, shown[i]
        )
        if limit == f32(np.inf) or missed >= limit:
            pays = missed < f32(np.inf) and i + WORTH < stop and rows[i + WORTH] == row
            limit = latest(s[row], missed, K2, below) if pays else f32(np.inf)


# Both races for the gradient


@njit(inline="always")
def scratch_space(D, K):
    """Working space of one thread: nothing is allocated while queries are answered."""
    floats, documents = np.empty((7, D + 1), np.float32), np.empty((2, D + 1), np.int32)
    return floats, documents, np.empty((4, K + 1), np.float32), np.empty(K + 1, np.int32), np.empty(BLOCK, np.float32)


@njit(inline="always")
def draw(s, r, key, K2, w, scratch):
    """Both races of one sample. Returns (x, l, number of candidates); the lists are in the scratch.

    `shown` has the first K + 1 arrivals of the second race; rows of `lists`: 0 and 1, their times and weights; the
    others are free.
    x = -1 where everybody available is a candidate (the one-stage case).
    """
    floats, documents, lists, shown, _ = scratch
    log_T, candidates, scores, D = floats[0], documents[0], floats[4], s.size
    x, last = -1, -1
    if K2 < D:
        arrivals(s, stream(key, u64(0)), log_T[:D])
        n, missed = first_of(log_T, D, K2, f32(np.inf), candidates)
        if missed < f32(np.inf):
            x, last = candidates[n], candidates[0]
            for j in range(1, n):
                last = candidates[j] if log_T[candidates[j]] >= log_T[last] else last
    else:
        n = available(s, candidates)
        for d in range(D):
            log_T[d] = f32(0.0) if s[d] > f32(-np.inf) else f32(np.inf)
    for j in range(n):
        scores[j] = r[candidates[j]]
    arrivals_of(candidates, n, scores, stream(key, u64(1)), floats[1])
    first_arrivals(candidates, floats[1], n, shown, lists[0])
    for k in range(shown.size):
        lists[1, k] = w[shown[k]] if shown[k] >= 0 else f32(0.0)
    return x, last, n
