"""The compiled Plackett-Luce sampler for simulation: many lists from few score vectors, on the CPU.

Each list has a 64-bit key, and its random numbers are a function of that key and a counter. So a list depends on its
key and its scores alone, whatever else is drawn, in whatever order. Nothing compiles on import.
"""

import numpy as np
from numba import njit

from tandemrank._base.random import GOLDEN
from tandemrank.gradients._kernels.compiled import kernel
from tandemrank.gradients._kernels.draws import mix64

# Below this share of a row's mass the cumulative sum has lost too many digits: the rest is drawn by a race.
SMALLEST_SHARE = 1e-9


@njit(inline="always")
def uniform(state, counter):
    """The `counter`-th uniform number of a stream, strictly between 0 and 1."""
    bits = mix64(state + GOLDEN * np.uint64(counter + 1)) >> np.uint64(12)
    return (np.float64(bits) + 0.5) * 2.0**-52


@kernel()
def accumulate(scores, mass):
    """Writes the cumulative sum of exp(score - max) to `mass`, without a step where a score is -inf.

    Shapes: scores, mass [D].
    """
    largest = -np.inf
    for d in range(len(scores)):
        largest = max(largest, scores[d])
    total = 0.0
    for d in range(len(scores)):
        if scores[d] > -np.inf:
            total += np.exp(np.float64(scores[d]) - largest)
        mass[d] = total


@kernel()
def draw_from_mass(mass, K, state, out, drawn):
    """Draws documents one after another, each from the mass that is left; returns how many it could draw exactly.

    `drawn` keeps the documents drawn so far in the order of their position, so that a number below the mass that is
    left is moved past each drawn document's interval, in one pass and without rejection.
    Shapes: mass [D]; out, drawn [K].
    """
    D = len(mass)
    total = mass[D - 1]
    left = total
    for k in range(K):
        if left <= SMALLEST_SHARE * total:
            return k
        x = uniform(state, k) * left
        place = 0
        while place < k:
            d = drawn[place]
            start = mass[d - 1] if d else 0.0
            if x < start:
                break
            x = max(x + (mass[d] - start), mass[d])  # never short of the interval's end by rounding
            place += 1
        d = np.searchsorted(mass, x, side="right")
        if d == D:  # rounding took x past the end: a chance of about 1e-16 in a draw
            return k
        for j in range(k, place, -1):
            drawn[j] = drawn[j - 1]
        drawn[place] = d
        out[k] = d
        left -= mass[d] - (mass[d - 1] if d else 0.0)
    return K


@kernel()
def draw_by_race(scores, K, k, state, out, taken, clocks):
    """Fills `out[k:K]` with the first arrivals among the documents not in `out[:k]`, in order; -1 where none is left.

    Document d arrives at T_d ~ Exp(rate exp(score)): log T_d = log E_d - score, which no score overflows.
    Shapes: scores, taken [D]; out, clocks [K].
    """
    for j in range(k):
        taken[out[j]] = True
    for j in range(k, K):
        out[j] = -1
        clocks[j] = np.inf
    for d in range(len(scores)):
        if taken[d] or scores[d] == -np.inf:
            continue
        log_time = np.log(-np.log(uniform(state, K + d))) - np.float64(scores[d])
        j = K - 1
        if log_time >= clocks[j]:
            continue
        while j > k and clocks[j - 1] > log_time:
            clocks[j] = clocks[j - 1]
            out[j] = out[j - 1]
            j -= 1
        clocks[j] = log_time
        out[j] = d
    for j in range(k):
        taken[out[j]] = False


@kernel()
def draw_lists(scores, rows, keys, order, out):
    """Draws list `i` from `scores[rows[i]]` with key `keys[i]`; `order` visits the lists of one row together.

    Shapes: scores [B, D]; rows, keys, order [n]; out [n, K].
    """
    D = scores.shape[1]
    K = out.shape[1]
    mass = np.empty(D)
    taken = np.zeros(D, dtype=np.bool_)
    drawn = np.empty(K, dtype=np.int64)
    clocks = np.empty(K)
    current = -1
    for i in order:
        if rows[i] != current:
            current = rows[i]
            accumulate(scores[current], mass)
        state = mix64(keys[i])
        k = draw_from_mass(mass, K, state, out[i], drawn)
        if k < K:
            draw_by_race(scores[current], K, k, state, out[i], taken, clocks)
