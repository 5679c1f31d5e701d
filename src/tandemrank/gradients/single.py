"""One list and one row of scores at a time, on the calling thread, for live answers: bit by bit the same every time."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemrank.gradients._bridge import compiling
from tandemrank.gradients.coarse import Bounded

Floats = NDArray[np.float32]

Ints = NDArray[np.int32]
Ranker = Callable[[Ints], Floats]

_own = threading.local()  # working space of each thread: an answer allocates nothing that grows with D
_kernel: list[Any] = []  # the compiled module, once it is: to look for it costs an answer as much as its scores
_NO_SPACE: Any = ((), ())
_NO_LIMITS: tuple[Floats, np.float32] = (np.empty(0, np.float32), np.float32(np.inf))


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
    space, shown, number = _space(s_c.size, K2, K), np.empty(K, np.int32), np.uint64(key)
    edge = edge if is_drawn else Edge()
    below, limit = edge.look(s_c, K2)
    if isinstance(s_c, Bounded):
        from tandemrank.gradients._kernels.coarse import bounded_race

        at = s_c.coarse
        n, edge.missed = bounded_race(
            s_c.query,
            at.items,
            s_c.upper,
            at.reach,
            s_c.length,
            number,
            is_drawn,
            K2,
            below,
            limit,
            *space[:3],
            space[4],
        )
    elif isinstance(s_r, np.ndarray):
        edge.missed = kernel.one_list(s_c, s_r, number, is_drawn, K2, below, limit, *space, shown)
        return shown
    else:
        n, edge.missed = kernel.candidates_of(s_c, number, is_drawn, K2, below, limit, *space[:5])
    found = space[4][:n].copy()  # the re-ranker may keep what it was asked about
    scores = s_r[found] if isinstance(s_r, np.ndarray) else s_r(found)
    kernel.shown_of(scores, number, is_drawn, found, space[0][1], space[5], shown)
    return shown


def _space(D: int, K2: int, K: int) -> tuple[Floats, Ints, Ints, Ints, Ints, Floats]:
    """floats, documents, order, histogram, candidates and times of the kernels, of this thread."""
    found: tuple[Floats, Ints, Ints, Ints, Ints, Floats]
    sizes, found = getattr(_own, "space", _NO_SPACE)
    if sizes != (D, K2, K):
        found = (
            np.empty((3, D + 1), np.float32), np.empty((2, D + 1), np.int32), np.empty(D + 1, np.int32),
            np.empty(2048, np.int32), np.empty(min(K2, D), np.int32), np.empty(K, np.float32),
        )  # fmt: skip
        _own.space = (D, K2, K), found
    return found


def products(x: Floats, Y: Floats) -> Floats:
    """The scores of one query, whatever the number of threads.  Shapes: x [F], Y [D, F] -> [D]."""
    from tandemrank.gradients._kernels import products as kernel

    out = np.empty(len(Y), np.float32)
    kernel.row_products(x, Y, out)
    return out
