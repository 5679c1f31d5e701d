"""Outside ids (integers or strings) and the inside positions 0 .. n-1 that all arrays use."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank.errors import InputError


def lookup(ids: pl.Series, wanted: pl.Series, what: str) -> NDArray[np.int64]:
    """The position of each of `wanted` in `ids`; refuses an id that is not there, by name.

    Shapes: ids [n], wanted [m] -> [m].
    """
    is_text = ids.dtype == pl.String
    if is_text != (wanted.dtype == pl.String) and len(wanted):
        raise InputError(
            f"{what} ids are {'strings' if is_text else 'integers'} here, but {wanted.dtype} came "
            f"(first: {wanted[0]!r}). Convert them to the same type."
        )
    dtype = pl.String if is_text else pl.Int64
    known = pl.DataFrame({"id": ids.cast(dtype), "position": np.arange(len(ids), dtype=np.int64)})
    found = pl.DataFrame({"id": wanted.cast(dtype)}).join(known, on="id", how="left", maintain_order="left")["position"]
    if found.null_count():
        missing = wanted.filter(found.is_null())
        raise InputError(
            f"{len(missing)} unknown {what} id{'s' if len(missing) > 1 else ''} (first: {missing[0]!r}); "
            f"{len(ids)} are known. Check that both sides come from the same data."
        )
    return found.to_numpy()


@dataclass(frozen=True)
class Vocabulary:
    """The outside ids of queries and items, by inside position."""

    query_ids: pl.Series
    item_ids: pl.Series

    def queries(self, ids: pl.Series) -> NDArray[np.int64]:
        """Positions of query ids."""
        return lookup(self.query_ids, ids, "query")

    def items(self, ids: pl.Series) -> NDArray[np.int64]:
        """Positions of item ids."""
        return lookup(self.item_ids, ids, "item")
