"""Random numbers as a function of a seed and of coordinates, never of a global state.

One home for seeds that are derived, for 64-bit keys, for the streams of one seed, and for splitmix64, whose constants
every implementation takes from here: `mix` for NumPy, `gradients._kernels.draws` for compiled code.
"""

import hashlib
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the step of splitmix64
MIX = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)  # the multipliers of its finaliser


class Stream(IntEnum):
    """The streams of one seed: a number each, for ever, since what is drawn depends on it."""

    USERS = 0  # who comes (simulation)
    LISTS = 1  # what is shown (simulation)
    CLICKS = 2  # what is clicked (simulation)
    HELD_OUT = 3  # which impressions of a log are held out
    FIT_HELD_OUT = 4  # which lists are held out when a logging policy is fitted
    FOLDS = 5  # which queries go together for cross-fitting
    NOISE = 6  # which queries say how noisy clicks are
    PAIRS = 7  # which pairs are held out when a reward model is fitted


def random_keys(seed: int, stream: int, numbers: ArrayLike) -> NDArray[np.uint64]:
    """A 64-bit key for each number, a pure function of seed, stream and number (splitmix64).

    Different streams of one seed are independent of each other. Shapes: numbers [n] -> [n].
    """
    start = np.array([int(seed) % 2**64, (stream + 1) * int(GOLDEN) % 2**64], dtype=np.uint64)
    base = mix(mix(start[:1]) + start[1:])
    return mix(base + GOLDEN * np.asarray(numbers).astype(np.uint64))


def uniforms(keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1) from the upper 53 bits of random keys. Shapes: keys [...] -> [...]."""
    return (keys >> np.uint64(11)).astype(np.float64) * 2.0**-53


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Splitmix64's finaliser on whole arrays, the same function as `mix64` of the kernels. Shapes: [...] -> [...]."""
    x = (x ^ (x >> np.uint64(30))) * MIX[0]
    x = (x ^ (x >> np.uint64(27))) * MIX[1]
    return x ^ (x >> np.uint64(31))


def derive(seed: int, *coordinates: object) -> int:
    """A seed of its own for every place in an experiment: a function of the seed and the coordinates alone."""
    digest = hashlib.sha256(repr((seed, *coordinates)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
