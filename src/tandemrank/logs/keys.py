"""One 64-bit key of (query, item, rank), by which a plain sort groups a log, and runs of keys that are joined as they come."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank.errors import LogError

Part = TypeVar("Part")

QUERY_BITS, ITEM_BITS, RANK_BITS = 27, 26, 9


def pack(query: NDArray[np.integer], item: NDArray[np.integer], rank: NDArray[np.integer]) -> NDArray[np.int64]:
    """One sortable key of (query, item, rank). Shapes: [P] each -> [P]."""
    key = query.astype(np.int64) << ITEM_BITS
    key |= item
    key <<= RANK_BITS
    key |= rank
    return key


def check_number(ids: pl.Series, bits: int) -> None:
    """Refuses more ids than positions fit into the bits of a key."""
    if len(ids) > 2**bits:
        raise LogError(f"the log has more than {2**bits} different ids in one column, the most it may have.")


def push(parts: list[Part], part: Part, size: Callable[[Part], int], join: Callable[[list[Part]], Part]) -> None:
    """Keeps a part, and joins the last two while they are of similar size: log many parts, log many joins."""
    parts.append(part)
    while len(parts) > 1 and 2 * size(parts[-1]) >= size(parts[-2]):
        parts[-2:] = [join(parts[-2:])]
