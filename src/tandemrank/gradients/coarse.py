"""Scores of very many documents within bounds, from a copy of their factors of one byte per number; what decides stays exact.

    y' = a c,  c whole numbers from -127 to 127, a = max |y| / 127;      |x . y - x . y'| <= |x| |y - y'|     (Cauchy-Schwarz)

A pass over all factors is bound by the memory it reads, and a byte is a quarter of a float. Let a document arrive at
log E_d - s_d: by an upper bound of s_d no sooner than T_d, by a lower one no later than L_d. If K2 + 1 documents have arrived
by t, at the latest, then nobody with T_d > t is among the first K2 + 1. The few others are scored as ever (`products`: `dot`),
so candidates, times and lists are those of a race of all scores, bit by bit. The query is in steps of 1 / 32767 of its largest
number, sums are of whole numbers; all roundings, those of the exact score too, are in the bound (`_kernels.coarse.encode`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank.gradients._bridge import compiling

Floats = NDArray[np.float32]
LARGEST, SMALLEST = 1e30, 1e-25  # products and queries beyond which float32 itself ends


@dataclass(frozen=True)
class Coarse:
    """Factors of one byte per number.  Shapes: items, codes [D, F]; scale, reach [D]."""

    items: Floats
    codes: NDArray[np.int8]
    scale: Floats
    reach: Floats
    longest: float

    @staticmethod
    def of(items: Floats) -> "Coarse | None":
        """Those of some items; None where a number is not finite.  Shapes: items [D, F]."""
        from tandemrank.gradients._kernels import coarse as kernel

        if not np.isfinite(items).all():
            return None
        codes, scale = np.empty(items.shape, np.int8), np.empty(len(items), np.float32)
        reach = np.empty(len(items), np.float32)
        with compiling():
            longest = kernel.encode(items, codes, scale, reach)
        return Coarse(items, codes, scale, reach, float(longest))

    def bounded(self, query: Floats) -> "Bounded | None":
        """The scores of a query; None where float32 has no room for bounds.  Shapes: query [F]."""
        from tandemrank.gradients._kernels import coarse as kernel

        most, length = float(np.abs(query).max()), float(np.sqrt(np.square(query, dtype=np.float64).sum()))
        if not most > SMALLEST or not length * self.longest < LARGEST:
            return None
        step = np.float32(most / kernel.FINE)
        steps = np.rint(query / np.float64(step)).clip(-kernel.FINE, kernel.FINE).astype(np.int16)
        upper, wide = np.empty(len(self.scale), np.float32), np.float32(length * (1 + 1e-6))
        kernel.bound(self.codes, self.scale, self.reach, steps, step, wide, upper)
        return Bounded(query, self, upper, wide)


@dataclass(frozen=True)
class Bounded:
    """The scores of a query, of which upper bounds are known, and lower ones 2 length reach below them.  Shapes: upper [D]."""

    query: Floats
    coarse: Coarse
    upper: Floats
    length: np.float32

    @property
    def size(self) -> int:
        """How many there are."""
        return self.upper.size

    def exact(self) -> Floats:
        """All of them.  Shapes: -> [D]."""
        from tandemrank.gradients._kernels import products as kernel

        out = np.empty(self.size, np.float32)
        kernel.row_products(self.query, self.coarse.items, out)
        return out

    def highest(self, n: int) -> tuple[NDArray[np.int32], Floats]:
        """The n documents with the highest scores, the highest first, ties to the lower number, and their scores.

        Shapes: -> [n], [n]; n below the number of documents.
        """
        from tandemrank.gradients._kernels import coarse as kernel
        from tandemrank.gradients._kernels.products import row_products

        D = self.size
        floats, documents = np.empty((3, D + 1), np.float32), np.empty((2, D + 1), np.int32)
        order, found = np.empty(D + 1, np.int32), np.empty(n, np.int32)
        with compiling():
            kernel.bounded_race(
                self.query, self.coarse.items, self.upper, self.coarse.reach, self.length, np.uint64(0), False, n,
                np.empty(0, np.float32), np.float32(np.inf), floats, documents, order, found,
            )  # fmt: skip
            scores = np.empty(n, np.float32)
            row_products(self.query, self.coarse.items[found], scores)
        first = np.argsort(-scores, kind="stable")
        return found[first], scores[first]
