"""The first race where it is known until when to look: among those alone who may arrive before a limit, compiled.

A limit of another race of the same scores will do (`latest`). What comes out is always what the whole race gives, or that
it cannot be told (-1).
"""

import numpy as np

from tandemrank.gradients._compiled import MATHS, kernel
from tandemrank.gradients._float32_kernel import (
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
)  # fmt: skip

_SLACK = f32(1e-3)  # of the logarithm of a time: far more than the rounding of a clock
_ABOVE = f32(1.0 + 2.0**-18)
_MARGIN = 5.0  # over sqrt(K2): how much later than in another race, in the logarithm, the last candidate may come


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
