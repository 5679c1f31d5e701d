"""Exact retrieval for a few queries at a time, again and again: bounds of all products, and the few that count.

The first calls go through blocks of products (`gradients.products.top`); from then on through `gradients.coarse`.
"""

import threading
from typing import cast
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray

from tandemrank.gradients._bridge import row_major
from tandemrank.gradients.coarse import Coarse
from tandemrank.policies.scorers import MatrixFactorisation, Scorer

FEW, PAYS = 4, 4  # queries at a time for which bounds are faster than blocks; such calls from which on they are made


class _Seen:
    """How often a factorisation was asked about few queries with the items it has now, and bounds of them."""

    def __init__(self, items: tuple[int, int]) -> None:
        self.items, self.calls, self.coarse = items, 0, cast("Coarse | None", None)


_seen: "WeakKeyDictionary[Scorer, _Seen]" = WeakKeyDictionary()
_lock = threading.Lock()


def within_bounds(scorer: Scorer, q: NDArray[np.int64], n: int) -> NDArray[np.int32] | None:
    """The n highest items of a few queries, the same as `products.top` has; None where blocks of products are as good.

    Items that have moved are known by PyTorch's count of their changes.  Shapes: q [B] -> [B, n].
    """
    if len(q) > FEW or not isinstance(scorer, MatrixFactorisation) or n >= len(scorer.items):
        return None
    now = scorer.items.data_ptr(), scorer.items._version
    with _lock:
        seen = _seen.get(scorer)
        if seen is None or seen.items != now:
            seen = _seen[scorer] = _Seen(now)
        seen.calls += 1
        if seen.calls == PAYS:
            seen.coarse = Coarse.of(row_major(scorer.items.detach()))
    if seen.coarse is None:
        return None
    found = [seen.coarse.bounded(x) for x in row_major(scorer.queries.detach()[torch.from_numpy(q)])]
    return None if any(one is None for one in found) else np.stack([one.highest(n)[0] for one in found if one])
