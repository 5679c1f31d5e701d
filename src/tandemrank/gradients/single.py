"""One list and one row of scores at a time, on the calling thread, for live answers: bit by bit the same every time."""

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemrank.gradients._bridge import compiling

Floats = NDArray[np.float32]

_own = threading.local()  # working space of each thread: an answer allocates nothing that grows with D
_ready = threading.Event()


def draw(s_c: Floats, s_r: Floats, K2: int, K: int, key: int) -> NDArray[np.int32]:
    """The list of `race.draw` for one key; -1 where too few items are available.  Shapes: s_c, s_r [D] -> [K]."""
    if _ready.is_set():
        return _draw(s_c, s_r, K2, K, key)
    with compiling():
        shown = _draw(s_c, s_r, K2, K, key)
    _ready.set()
    return shown


def _draw(s_c: Floats, s_r: Floats, K2: int, K: int, key: int) -> NDArray[np.int32]:
    from tandemrank.gradients import _race_draw_kernel as kernel

    shown = np.empty(K, np.int32)
    w, scratch = _space(len(s_c), K)
    kernel.one_list(s_c, s_r, np.uint64(key), K2, w, scratch, shown)
    return shown


def _space(D: int, K: int) -> tuple[Floats, Any]:
    from tandemrank.gradients import _race_draw_kernel as kernel

    if getattr(_own, "size", None) != (D, K):
        _own.size, _own.space = (D, K), (np.zeros(D, np.float32), kernel.scratch_space(D, K))
    found: tuple[Floats, Any] = _own.space
    return found


def products(x: Floats, Y: Floats) -> Floats:
    """The scores of one query, whatever the number of threads.  Shapes: x [F], Y [D, F] -> [D]."""
    from tandemrank.gradients import _products_kernel as kernel

    out = np.empty(len(Y), np.float32)
    kernel.row_products(x, Y, out)
    return out
