"""Bounds of scores from factors of one byte per number, compiled; `coarse` has the law and its proof."""

import numpy as np
from numba import njit

from tandemrank.gradients._kernels.compiled import MATHS, kernel
from tandemrank.gradients._kernels.draws import arrivals, choose, find_early, pick_out, stream, time_of_rank
from tandemrank.gradients._kernels.float32 import f32, i32, u64
from tandemrank.gradients._kernels.products import dot

LEVELS, FINE = 127, 32767  # of a number of an item, and of the query's
TINY = f32(1e-36)  # far more than what underflow can lose
_LOWER = f32(2.02)  # a little more than from the upper bound through the score to the lower one
_BLOCKS = 8  # parts for each candidate, in which the earliest is looked for


@kernel()
def encode(Y, codes, scale, reach):
    """Every item in steps of its own size, and what the steps lose: |x . y - x . y'| < |x| reach, roundings included.

    Shapes: Y, codes [D, F]; scale, reach [D]; all but Y are filled. Returns the largest length of an item.
    """
    D, F = Y.shape
    # Roundings of the sum that decides, of the product of steps, of bounds; and steps of the query.
    steps = np.sqrt(F) * 128.0 * (F + 100.0) * 2.0**-23 + F * LEVELS * 0.51 / FINE
    longest = 0.0
    for d in range(D):
        most = f32(0.0)
        for f in range(F):
            most = max(most, abs(Y[d, f]))
        a = f32(most / f32(LEVELS)) if most > f32(1e-30) else f32(0.0)
        lost, length = 0.0, 0.0
        for f in range(F):
            y = np.float64(Y[d, f])
            code = np.rint(y / np.float64(a)) if a > f32(0.0) else 0.0
            code = min(max(code, -np.float64(LEVELS)), np.float64(LEVELS))
            codes[d, f] = np.int8(code)
            lost += (y - code * np.float64(a)) ** 2
            length += y * y
        scale[d], reach[d] = a, f32((np.sqrt(lost) + steps * np.float64(a)) * (1.0 + 1e-6))
        longest = max(longest, np.sqrt(length))
    return longest


@kernel()
def bound(codes, scale, reach, steps, step, length, upper):
    """Upper bounds of all scores of a query: one pass over bytes, in whole numbers, so that no order of a sum matters.

    Shapes: codes [D, F]; scale, reach [D]; steps [F], the query in units of `step`; upper [D], filled.
    """
    for d in range(upper.size):
        total = i32(0)
        for f in range(steps.size):
            total = i32(total + i32(i32(codes[d, f]) * i32(steps[f])))
        upper[d] = f32(total) * (scale[d] * step) + (length * reach[d] + TINY)


@kernel()
def bounded_race(x, Y, upper, reach, length, key, is_drawn, K2, below, limit, floats, documents, order, candidates):
    """`draws.candidates_of` where scores are known by bounds: only who may be among the first is scored, and then exactly.

    Returns the number of candidates, K2, and the time of who just missed.
    Shapes: x [F]; Y [D, F]; upper, reach [D]; the rest as there.
    """
    first = stream(stream(key, u64(0)), u64(0))
    scores, docs = floats[0], documents[0]
    if is_drawn and limit < f32(np.inf):
        n = find_early(below, first, scores, docs)
        if n > K2:
            for j in range(n):
                scores[j] = dot(x, Y[docs[j]])
            n, missed = choose(scores, n, first, limit, K2, floats, docs, order, candidates)
            if n >= 0:
                return n, missed
    n = _possible(upper, reach, length, first, is_drawn, K2, floats, docs)
    for j in range(n):
        scores[j] = dot(x, Y[docs[j]])
    if is_drawn:
        return choose(scores, n, first, f32(np.inf), K2, floats, docs, order, candidates)
    return _highest(scores, n, K2, floats[1], docs, order, candidates)


@kernel(fastmath=MATHS)
def _possible(upper, reach, length, key, is_drawn, K2, floats, docs):
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
    size = max(1, D // (_BLOCKS * (K2 + 1)))
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
                    late = max(late, _latest(T[d], upper[d], length * reach[d]))
    n = 0
    for part in range(parts):
        if least[part] <= late:
            for d in range(part * size, min(D, (part + 1) * size)):
                docs[n] = d
                n += T[d] <= late
    return n


@njit(inline="always")
def _latest(T, upper, wide):
    """When somebody arrives at the latest who at the earliest arrives at T."""
    lower = upper - (_LOWER * wide + f32(3.0) * TINY)
    # clock - lower = T + upper - lower, and each of the three is rounded.
    late = T + (upper - lower)
    return late + f32(2.0**-21) * (abs(T) + abs(upper) + abs(lower)) + TINY


@kernel()
def _highest(scores, n, K2, times, docs, order, candidates):
    """The K2 highest of docs[:n], ties to the lower number; in the order of numbers."""
    for j in range(n):
        times[j] = f32(0.0) - scores[j]
    missed = time_of_rank(times, n, K2, f32(np.inf))
    return pick_out(times, n, missed, K2, docs, order, candidates), missed
