"""Splitmix64 in compiled code: a 64-bit permutation, and the keys of streams made with it. `_base.random` has it for NumPy."""

import numpy as np
from numba import njit

from tandemrank._base.random import GOLDEN, MIX

u64 = np.uint64
_FIRST, _SECOND = MIX


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
