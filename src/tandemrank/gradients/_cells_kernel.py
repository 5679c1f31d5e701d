"""Items in cells of neighbours, compiled: k-means in two steps, and what is known of a cell; `cells` has the reasons.

Every sum is in an order of its own (`dot`, serial sums), so neither threads nor the split of a batch change a bit.
"""

import numpy as np
from numba import prange

from tandemrank.gradients._compiled import kernel
from tandemrank.gradients._float32_kernel import f32
from tandemrank.gradients._products_kernel import SUMS, dot, fetch

_ROUNDS = 5
_PER_CENTRE = 64  # items that place a centre, at most
_AHEAD = 16  # items that are loaded before their turn


@kernel()
def _nearest(y, centres, half):
    """The centre with the least |y - c|^2, that is the greatest y . c - |c|^2 / 2."""
    best, place = f32(-np.inf), 0
    for c in range(half.size):
        value = dot(y, centres[c]) - half[c]
        if value > best:
            best, place = value, c
    return place


@kernel()
def _set_halves(centres, half):
    for c in range(half.size):
        half[c] = f32(0.5) * dot(centres[c], centres[c])


@kernel(fastmath=SUMS)
def _add(y, total):
    for f in range(y.size):
        total[f] += y[f]


@kernel()
def _centres(Y, items, k):
    """k-means of some items, from k of them at equal distances; a centre without items stays.  Shapes: items [n] -> [k, F]."""
    n = min(items.size, _PER_CENTRE * k)
    centres, half = np.empty((k, Y.shape[1]), np.float32), np.empty(k, np.float32)
    for c in range(k):
        centres[c] = Y[items[c * items.size // k]]
    total, count = np.empty((k, Y.shape[1])), np.empty(k, np.int64)
    for _ in range(_ROUNDS):
        _set_halves(centres, half)
        total[:], count[:] = 0.0, 0
        for j in range(n):
            y = Y[items[j * items.size // n]]
            c = _nearest(y, centres, half)
            _add(y, total[c])
            count[c] += 1
        for c in range(k):
            if count[c] > 0:
                for f in range(Y.shape[1]):
                    centres[c, f] = f32(total[c, f] / count[c])
    return centres


@kernel(parallel=True)
def _own(Y, centres, chunks, own):
    """The nearest centre of every item.  Shapes: own [D]."""
    half, D = np.empty(len(centres), np.float32), own.size
    _set_halves(centres, half)
    for chunk in prange(chunks):
        for d in range(chunk * D // chunks, (chunk + 1) * D // chunks):
            own[d] = _nearest(Y[d], centres, half)


@kernel()
def grouped(own, groups):
    """Items by their group, each group's in their order; where groups start.  Shapes: own [D] -> [D], [groups + 1]."""
    start, members = np.zeros(groups + 2, np.int64), np.empty(own.size, np.int32)
    for d in range(own.size):
        start[own[d] + 2] += 1
    for g in range(2, groups + 2):
        start[g] += start[g - 1]
    for d in range(own.size):
        members[start[own[d] + 1]] = d
        start[own[d] + 1] += 1
    return members, start[: groups + 1]


@kernel(parallel=True)
def partition(Y, wanted, chunks, own):
    """About `wanted` cells; returns how many. sqrt(wanted) coarse ones first, each then split by its size.  Shapes: own [D]."""
    D = own.size
    coarse = max(1, np.int64(np.sqrt(wanted)))
    _own(Y, _centres(Y, np.arange(D), coarse), chunks, own)
    members, start = grouped(own, coarse)
    first = np.zeros(coarse + 1, np.int64)
    for g in range(coarse):
        n = start[g + 1] - start[g]
        first[g + 1] = first[g] + (min(n, max(1, (n * wanted + D // 2) // D)) if n > 0 else 0)
    for g in prange(coarse):
        k, items = first[g + 1] - first[g], members[start[g] : start[g + 1]]
        if k > 0:
            centres, half = _centres(Y, items, k), np.empty(k, np.float32)
            _set_halves(centres, half)
            for j in range(items.size):
                own[items[j]] = first[g] + _nearest(Y[items[j]], centres, half)
    return first[coarse]


@kernel(parallel=True)
def moments(Y, members, start, chunks, mean, variance):
    """Mean and variance per coordinate of each cell's items; 0 where a cell is empty.  Shapes: mean, variance [cells, F]."""
    cells, F = mean.shape
    for chunk in prange(chunks):
        total, square = np.empty(F), np.empty(F)
        for c in range(chunk * cells // chunks, (chunk + 1) * cells // chunks):
            n = max(1, start[c + 1] - start[c])
            total[:], square[:] = 0.0, 0.0
            for j in range(start[c], start[c + 1]):
                fetch(Y, np.int64(members[min(j + _AHEAD, members.size - 1)]))
                y = Y[members[j]]
                for f in range(F):
                    total[f] += np.float64(y[f])
                    square[f] += np.float64(y[f]) * np.float64(y[f])
            for f in range(F):
                mean[c, f] = f32(total[f] / n)
                # Of numbers that are none it is none either.
                spread = square[f] / n - (total[f] / n) ** 2
                variance[c, f] = f32(0.0 if spread < 0.0 else spread)


@kernel(fastmath=SUMS)
def shared_covariance(Y, members, start, mean, n):
    """The covariance of what is left within cells, over n items at equal distances.  Shapes: -> [F, F]."""
    F, c = Y.shape[1], 0
    found, left = np.zeros((F, F), np.float32), np.empty(F, np.float32)
    for i in range(n):
        j = i * members.size // n
        while start[c + 1] <= j:
            c += 1
        left[:] = Y[members[j]] - mean[c]
        for f in range(F):
            for g in range(F):
                found[f, g] += left[f] * left[g]
    return found / f32(n)
