"""Exact sums of numbers of a log: fixed point in limbs of 33 bits, so neither order nor grouping changes a bit.

    x = sum_j limb_j 2^(33 j - 72)

A float64 of 2^-20 or more has no digit below 2^-72, so it is a sum of limbs without rounding; integers add without rounding
as well. Three limbs hold sums of weights up to 2^57, four hold sums of weight / propensity up to 2^90, five those of
1 / propensity^2 up to 2^123: no log reaches any, with weights up to a million and propensities from 1e-12. Rounding happens
once, when a sum is read as a float64.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

BITS, LOWEST = 33, -72
WEIGHT_LIMBS, INVERSE_LIMBS, SQUARE_LIMBS = 3, 4, 5
LARGEST_WEIGHT = 1e6
SMALLEST_WEIGHT, SMALLEST_PROPENSITY = 2.0**-20, 2.0**-40  # just below 1e-6 and 1e-12, for those in float32

Limbs = NDArray[np.int64]
CountsOrLimbs = NDArray[np.int64]  # [n], where they are counts; else [limbs, n]
_AT_ONCE = 2**20  # limbs of 33 bits whose float64 sum is exact


def _peeled(x: NDArray[np.number], limbs: int) -> Iterator[tuple[int, Limbs]]:
    """The limbs of numbers >= 0, highest first, one at a time; what is below 2^-72 is rounded.  Shapes: x [n] -> [n]."""
    rest = x.astype(np.float64)
    for j in reversed(range(limbs)):
        unit = 2.0 ** (LOWEST + BITS * j)
        rest /= unit  # by a power of two: no rounding, here and below
        whole = np.floor(rest) if j else np.rint(rest)
        rest -= whole
        rest *= unit
        yield j, whole.astype(np.int64)


def split(x: NDArray[np.number], limbs: int) -> Limbs:
    """The limbs of numbers, lowest first.  Shapes: x [n] -> [limbs, n]."""
    parts = np.empty((limbs, len(x)), dtype=np.int64)
    for j, limb in _peeled(x, limbs):
        parts[j] = limb
    return carried(parts)


def carried(limbs: Limbs) -> Limbs:
    """The same numbers with every limb but the highest below 2^33: one form for each number.  Overwrites.

    Shapes: limbs [limbs, n] -> [limbs, n].
    """
    for low, high in pairwise(limbs):
        high += low >> BITS
        low &= 2**BITS - 1
    return limbs


def value(limbs: Limbs) -> NDArray[np.float64]:
    """The numbers as float64, to within a unit in the last place.  Shapes: limbs [limbs, n] -> [n]."""
    total = np.zeros(limbs.shape[1])
    for j, limb in enumerate(limbs):
        total += limb * 2.0 ** (LOWEST + BITS * j)
    return total


def alike(x: CountsOrLimbs, y: CountsOrLimbs) -> tuple[CountsOrLimbs, CountsOrLimbs]:
    """Two columns as counts where both are, else both in limbs.  Shapes: [n] or [limbs, n] each."""
    if x.ndim == y.ndim:
        return x, y
    return (split(x, len(y)), y) if x.ndim == 1 else (x, split(y, len(x)))


def plus(x: CountsOrLimbs, y: CountsOrLimbs) -> CountsOrLimbs:
    """The sum of two columns.  Shapes: [n] or [limbs, n] each."""
    x, y = alike(x, y)
    return x + y if x.ndim == 1 else carried(x + y)


def sums_of_runs(x: NDArray[np.float64], starts: NDArray[np.int64], limbs: int) -> Limbs:
    """The sums of numbers from each start to the next.  Shapes: x [n]; starts [P] -> [limbs, P]."""
    total = np.zeros((limbs, len(starts)), dtype=np.int64)
    for j, limb in _peeled(x, limbs):
        if len(starts):
            np.add.reduceat(limb, starts, out=total[j])
    return carried(total)


def sums_by(index: NDArray[np.integer], x: NDArray[np.float64], size: int, limbs: int) -> Limbs:
    """The sums of numbers with the same index.  Shapes: index, x [n] -> [limbs, size]."""
    total = np.zeros((limbs, size), dtype=np.int64)
    for first in range(0, len(x), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        for j, limb in _peeled(x[some], limbs):
            total[j] += np.bincount(index[some], limb, size).astype(np.int64)
    return carried(total)
