"""Ids of a log become positions as they are met, and (query, item, rank) one 64-bit key, by which a plain sort groups a log.

Runs of keys are joined as they come.
"""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.ids import Vocabulary, plain_ids, positions_of
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


def encode_ids(ids: pl.Series) -> tuple[pl.Series, NDArray[np.int32]]:
    """The distinct ids, in any order, and each id's position among them. Shapes: ids [m] -> [u], [m]."""
    if ids.dtype == pl.Int64 and len(ids):
        values = ids.to_numpy()
        low, high = int(values.min()), int(values.max())
        if high - low <= 4 * len(values) + 2**16:  # dense: a table is several times faster than a join
            values = values - low if low else values
            present = np.zeros(high - low + 1, dtype=np.bool_)
            present[values] = True
            return pl.Series(np.flatnonzero(present) + low), (np.cumsum(present, dtype=np.int32) - 1)[values]
    if ids.dtype == pl.String and len(ids):  # categories hash every text once
        code = ids.cast(pl.Categorical(pl.Categories.random())).to_physical().to_numpy()
        somewhere = np.zeros(int(code.max()) + 1, dtype=np.int64)
        somewhere[code] = np.arange(len(code))
        return ids.gather(somewhere), code.astype(np.int32)
    distinct = ids.unique()
    return distinct, positions_of(distinct, ids, "log").astype(np.int32)


class IdRegistry:
    """The ids met so far and their positions, in that order; or a vocabulary, which does not grow."""

    def __init__(self, vocabulary: Vocabulary | None) -> None:
        self.given = vocabulary
        self.query = None if vocabulary is None else plain_ids(vocabulary.query_ids)
        self.item = None if vocabulary is None else plain_ids(vocabulary.item_ids)

    def vocabulary(self) -> Vocabulary:
        """All ids: the vocabulary given, or those met."""
        empty = pl.Series([], dtype=pl.Int64)
        return self.given or Vocabulary(
            empty if self.query is None else self.query, empty if self.item is None else self.item
        )

    def queries(self, distinct: pl.Series) -> NDArray[np.int32]:
        """Positions of distinct query ids, -1 for an unknown one. Shapes: distinct [u] -> [u]."""
        self.query, found = _positions(self.query, distinct, self.given is None, QUERY_BITS)
        return found

    def items(self, distinct: pl.Series) -> NDArray[np.int32]:
        """Positions of distinct item ids, -1 for an unknown one. Shapes: distinct [u] -> [u]."""
        self.item, found = _positions(self.item, distinct, self.given is None, ITEM_BITS)
        return found


def _positions(
    known: pl.Series | None, distinct: pl.Series, grow: bool, bits: int
) -> tuple[pl.Series, NDArray[np.int32]]:
    """The known ids, with the new ones after them where they may grow, and the positions of `distinct` in them."""
    if known is None or (grow and not len(known)):
        known = distinct.clear()
    if known.dtype != distinct.dtype:
        return known, np.full(len(distinct), -1, dtype=np.int32)
    if grow:
        known = known.append(distinct.filter(~distinct.is_in(known.implode())))
        check_number(known, bits)
    return known, positions_of(known, distinct, "log", missing="mark").astype(np.int32)
