"""One list and one row of scores at a time, on the calling thread, for live answers: bit by bit the same every time."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank.gradients._bridge import compiling

Floats = NDArray[np.float32]

Ints = NDArray[np.int32]
Ranker = Callable[[Ints], Floats]

MARGIN = 0.2  # of the logarithm of a time: how much later than in the last draw the last candidate may come
_own = threading.local()  # working space of each thread: an answer allocates nothing that grows with D
_ready = threading.Event()


@dataclass
class Edge:
    """When, in the last draw of these scores, the first item came that just missed: where the next looks. Changes no result."""

    log_T: float = np.inf


def draw(
    s_c: Floats, ranker: Ranker, K2: int, K: int, key: int, *, edge: Edge | None = None, is_drawn: bool = True
) -> Ints:
    """The list of `race.draw` for one key, or of `race.most_likely`; -1 where too few items are available.

    `ranker`: the scores of the second stage of some items, which are asked for the candidates alone.
    Shapes: s_c [D] -> [K].
    """
    if _ready.is_set():
        return _draw(s_c, ranker, K2, K, key, edge or Edge(), is_drawn)
    with compiling():
        shown = _draw(s_c, ranker, K2, K, key, edge or Edge(), is_drawn)
    _ready.set()
    return shown


def _draw(s_c: Floats, ranker: Ranker, K2: int, K: int, key: int, edge: Edge, is_drawn: bool) -> Ints:
    from tandemrank.gradients import _race_draw_kernel as kernel

    candidates, shown, times = np.empty(min(K2, len(s_c)), np.int32), np.empty(K, np.int32), np.empty(K, np.float32)
    floats, documents, order, histogram = _space(len(s_c))
    number = np.uint64(key)
    n, missed = kernel.one_first_race(
        s_c, number, is_drawn, K2, edge.log_T + MARGIN, floats, documents, order, histogram, candidates
    )
    edge.log_T = missed
    if n < len(candidates):
        candidates = candidates[:n]
    kernel.one_second_race(ranker(candidates), number, is_drawn, candidates, floats[1], times, shown)
    return shown


def _space(D: int) -> tuple[NDArray[np.float32], Ints, Ints, Ints]:
    if getattr(_own, "D", None) != D:
        made = (np.empty((3, D + 1), np.float32), np.empty((2, D + 1), np.int32))
        _own.D, _own.space = D, (*made, np.empty(D + 1, np.int32), np.empty(2048, np.int32))
    found: tuple[NDArray[np.float32], Ints, Ints, Ints] = _own.space
    return found


def products(x: Floats, Y: Floats) -> Floats:
    """The scores of one query, whatever the number of threads.  Shapes: x [F], Y [D, F] -> [D]."""
    from tandemrank.gradients import _products_kernel as kernel

    out = np.empty(len(Y), np.float32)
    kernel.row_products(x, Y, out)
    return out
