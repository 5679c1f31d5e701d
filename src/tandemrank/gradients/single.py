"""One query at a time, on the calling thread, for live answers: its scores, whole or within bounds, and its lists.

Bit by bit the same every time. For very many documents the factors are kept once more with one byte per number, which bounds
every score; what decides stays exact:

    y' = a c,  c whole numbers from -127 to 127, a = max |y| / 127;      |x . y - x . y'| <= |x| |y - y'|     (Cauchy-Schwarz)

A pass over all factors is bound by the memory it reads, and a byte is a quarter of a float. Let a document arrive at
log E_d - s_d: by an upper bound of s_d no sooner than T_d, by a lower one no later than L_d. If K2 + 1 documents have arrived
by t, at the latest, then nobody with T_d > t is among the first K2 + 1. The few others are scored as ever (`products`: `dot`),
so candidates, times and lists are those of a race of all scores, bit by bit. The query is in steps of 1 / 32767 of its largest
number, sums are of whole numbers; all roundings, those of the exact score too, are in the bound (`_kernels.products.encode`).
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemrank.gradients._bridge import compiling

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Ranker = Callable[[Ints], Floats]

LARGEST, SMALLEST = 1e30, 1e-25  # products and queries beyond which float32 itself ends
_own = threading.local()  # working space of each thread: an answer allocates nothing that grows with D
_kernel: list[Any] = []  # the compiled module, once it is: to look for it costs an answer as much as its scores
_NO_SPACE: Any = ((), ())
_NOTHING, _NO_FACTORS = np.empty(0, np.float32), np.empty((0, 0), np.float32)
_NO_LIMITS: tuple[Floats, np.float32] = (_NOTHING, np.float32(np.inf))


def products(x: Floats, Y: Floats) -> Floats:
    """The scores of one query, whatever the number of threads.  Shapes: x [F], Y [D, F] -> [D]."""
    from tandemrank.gradients._kernels import products as kernel

    out = np.empty(len(Y), np.float32)
    kernel.row_products(x, Y, out)
    return out


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
        from tandemrank.gradients._kernels import products as kernel

        if not np.isfinite(items).all():
            return None
        codes, scale = np.empty(items.shape, np.int8), np.empty(len(items), np.float32)
        reach = np.empty(len(items), np.float32)
        with compiling():
            longest = kernel.encode(items, codes, scale, reach)
        return Coarse(items, codes, scale, reach, float(longest))

    def bounded(self, query: Floats) -> "Bounded | None":
        """The scores of a query; None where float32 has no room for bounds.  Shapes: query [F]."""
        from tandemrank.gradients._kernels import products as kernel

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
        return products(self.query, self.coarse.items)


class Edge:
    """Until when it is worth to look in a draw of these scores, by those before. Changes no result.

    At the first draw it is seen who just missed; the second makes limits for the clocks of it, as many scores are drawn from
    only once. A draw that they are too early for makes new ones.
    """

    __slots__ = ("limits", "missed")

    def __init__(self) -> None:
        self.missed = np.inf
        self.limits: tuple[Floats, np.float32] = _NO_LIMITS

    def look(self, s_c: Floats | Bounded, K2: int) -> tuple[Floats, np.float32]:
        """Limits of the clocks, and the time that they are of; none at the first draw.  Shapes: s_c [D] -> [D] or [0]."""
        found = self.limits  # one value, whatever other threads do
        if self.missed == np.inf or self.missed < found[1] < np.inf:
            return found
        from tandemrank.gradients._kernels import draws as kernel

        below, most = np.empty(s_c.size, np.float32), s_c.upper if isinstance(s_c, Bounded) else s_c
        self.limits = found = below, np.float32(kernel.latest(most, np.float32(self.missed), K2, below))
        return found


def draw(
    s_c: Floats | Bounded,
    s_r: Floats | Ranker,
    K2: int,
    K: int,
    key: int,
    *,
    edge: Edge | None = None,
    is_drawn: bool = True,
) -> Ints:
    """The list of `race.draw` for one key, or of `race.most_likely`; -1 where too few items are available.

    `s_c`: the scores of the first stage, or bounds of them: the same list.
    `s_r`: the scores of the second stage, or who gives those of some items and is asked for the candidates alone.
    Shapes: s_c [D], s_r [D] -> [K].
    """
    if _kernel:
        return _draw(_kernel[0], s_c, s_r, K2, K, key, edge or Edge(), is_drawn)
    from tandemrank.gradients._kernels import draws as kernel

    with compiling():
        shown = _draw(kernel, s_c, s_r, K2, K, key, edge or Edge(), is_drawn)
    _kernel.append(kernel)
    return shown


def _draw(
    kernel: Any, s_c: Floats | Bounded, s_r: Floats | Ranker, K2: int, K: int, key: int, edge: Edge, is_drawn: bool
) -> Ints:
    floats, documents, candidates, times = _space(s_c.size, K2, K)
    edge = edge if is_drawn else Edge()
    if isinstance(s_c, Bounded):
        scores = s_c.query, s_c.coarse.items, s_c.upper, s_c.coarse.reach, s_c.length
    else:
        scores = _NOTHING, _NO_FACTORS, s_c, _NOTHING, np.float32(0)
    own, shown = np.uint64(kernel.stream(np.uint64(key), np.uint64(0))), np.empty(K, np.int32)
    race = scores, own, is_drawn, K2, *edge.look(s_c, K2), floats, documents, candidates
    if isinstance(s_r, np.ndarray):
        edge.missed = kernel.one_list(*race, s_r, times, shown)
        return shown
    n, edge.missed = kernel.candidates_of(*race)
    found = candidates[:n].copy()  # the re-ranker may keep what it was asked about
    kernel.second_race(found, n, s_r(found), own, is_drawn, floats[1], shown, times)
    return shown


def _space(D: int, K2: int, K: int) -> tuple[Floats, Ints, Ints, Floats]:
    """floats, documents, candidates and times of the kernels, of this thread."""
    found: tuple[Floats, Ints, Ints, Floats]
    sizes, found = getattr(_own, "space", _NO_SPACE)
    if sizes != (D, K2, K):
        found = (
            np.empty((2, D + 1), np.float32),
            np.empty((2, D + 1), np.int32),
            np.empty(min(K2, D), np.int32),
            np.empty(K, np.float32),
        )
        _own.space = (D, K2, K), found
    return found
