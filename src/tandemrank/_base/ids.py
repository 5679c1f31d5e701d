"""Outside ids (integers or strings) and the inside positions 0 .. n-1 that all arrays use."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank.errors import InputError, PolicyError


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


def same_ids(a: Vocabulary, b: Vocabulary) -> bool:
    return a is b or (a.query_ids.equals(b.query_ids) and a.item_ids.equals(b.item_ids))


def plain_ids(ids: pl.Series) -> pl.Series:
    """Ids as 64-bit integers or strings; null where an integer is too large."""
    return ids.cast(pl.Int64, strict=False) if ids.dtype.is_integer() else ids.cast(pl.String)


def positions_or_missing(ids: pl.Series, wanted: pl.Series) -> NDArray[np.int64]:
    """The position of each of `wanted` in `ids`, -1 where it is not there: the two sides need not know the same items."""
    plain = plain_ids(ids), plain_ids(wanted)
    if plain[0].dtype != plain[1].dtype:
        raise PolicyError(f"item ids are {ids.dtype} in one place and {wanted.dtype} in the other. Convert them.")
    known = pl.DataFrame({"id": plain[0], "place": np.arange(len(ids), dtype=np.int64)})
    found = pl.DataFrame({"id": plain[1]}).join(known, on="id", how="left", maintain_order="left")["place"]
    return found.fill_null(-1).to_numpy()
