"""Ids of a log as they come by: positions for known ids, and a growing registry where none are known."""

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.ids import Vocabulary, plain_ids, positions_of
from tandemrank.logs.keys import ITEM_BITS, QUERY_BITS, check_number


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
    """The ids met so far and their positions, in the order in which they came; or a vocabulary, which does not grow."""

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
