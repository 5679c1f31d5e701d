"""The lists of the race on the CPU: who arrives first in each of the two races.

For a query and a sample `draw` runs both: `first_race` finds the candidates from the arrival times T of all documents, with
the last of them, `l`, and the first document that just missed, `x`; `second_race` draws the arrival times of the candidates,
and keeps the first K + 1. Random numbers are a function of (key of the query, sample, stage, document): a result does not
depend on threads, batches or order. `_race_kernel` integrates over the clocks of each document.
"""

import numpy as np
from numba import njit

from tandemrank._base.random import GOLDEN, MIX
from tandemrank.gradients._compiled import MATHS, kernel
from tandemrank.gradients._float32_kernel import f32, log, minus_log_1m, ordered, u32, u64, uniform

_BUCKETS = 2048
BLOCK = 1024  # documents that `_race_kernel` sweeps at a time
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
