"""Outside ids (integers or strings) and the inside positions 0 .. n-1 that all arrays use.

A log gets its own in `logs.keys`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from tandemrank.errors import InputError, PolicyError

Id = int | str
Ids = Sequence[int] | Sequence[str] | pl.Series


def id_series(name: str, ids: Ids) -> pl.Series:
    """Ids as a column; refuses what is no column of one type."""
    if isinstance(ids, pl.Series):
        return ids.alias(name)
    try:
        return pl.Series(name, ids.to_list() if hasattr(ids, "to_list") else ids)
    except (TypeError, ValueError, OverflowError, RuntimeError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{name}: expected a list of integers or of strings; got {str(ids)[:60]}.") from error


def _are_ids(ids: pl.Series) -> bool:
    """Whether a column may hold ids; one without a value may be of any type."""
    return not len(ids) or ids.dtype.is_integer() or ids.dtype in (pl.String, pl.Categorical, pl.Enum)


def plain_ids(ids: pl.Series) -> pl.Series:
    """Ids as 64-bit integers or strings; null where an integer is too large."""
    return ids.cast(pl.Int64, strict=False) if ids.dtype.is_integer() else ids.cast(pl.String)


def positions_of(
    ids: pl.Series,
    wanted: pl.Series,
    what: str,
    *,
    missing: Literal["refuse", "mark"] = "refuse",
    owner: str | None = None,
) -> NDArray[np.int64]:
    """The position of each of `wanted` in `ids`. One that is not there is refused by name, or is -1 with "mark".

    `owner` is whose ids they are, in the words of a message.
    Only integers and strings are ids: nothing is rounded to one.  Shapes: ids [n], wanted [m] -> [m].
    """
    if not len(wanted):
        return np.empty(0, np.int64)
    for side in (ids, wanted) if len(ids) else (wanted,):
        if not _are_ids(side):
            raise InputError(
                f"{what} ids are integers or strings; got {side.dtype} (first: {side[0]!r}). Convert them."
            )
    known, sought = plain_ids(ids), plain_ids(wanted)
    if len(ids) and known.dtype != sought.dtype:
        kind = "strings" if known.dtype == pl.String else "integers"
        place = f"in {owner}" if owner else "here"
        raise InputError(
            f"{what} ids are {kind} {place}; got {wanted.dtype} (first: {wanted[0]!r}). Convert them to the same type."
        )
    table = pl.DataFrame({"id": known.cast(sought.dtype), "position": np.arange(len(ids), dtype=np.int64)})
    found = pl.DataFrame({"id": sought}).join(table, on="id", how="left", maintain_order="left")["position"]
    if len(found) != len(wanted):
        raise InputError(f"{what} ids must be distinct; some of the {len(ids)} that are known come more than once.")
    if missing == "refuse" and found.null_count():
        unknown = wanted.filter(found.is_null())
        raise InputError(
            f"{len(unknown)} unknown {what} id{'s' if len(unknown) > 1 else ''} (first: {unknown[0]!r}); "
            f"{len(ids)} are known{f' to {owner}' if owner else ''}. Check that both sides come from the same data."
        )
    return found.fill_null(-1).to_numpy()


def checked_positions(values: ArrayLike, n: int, what: str) -> NDArray[np.int64]:
    """Inside positions as whole numbers from 0 to n - 1; refuses anything else.  Shapes: [m] -> [m]."""
    try:
        array = np.asarray(values)
    except (ValueError, RuntimeError) as error:  # lists of different lengths, tensors with a gradient
        raise PolicyError(f"positions of {what} are a list of whole numbers; got {str(values)[:60]}.") from error
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise PolicyError(
            f"positions of {what} are a list of whole numbers; got {array.dtype} of the shape {array.shape}. "
            f"For ids use `recommend`, or the vocabulary."
        )
    if array.size and (array.min() < 0 or array.max() >= n):
        wrong = array[(array < 0) | (array >= n)]
        raise PolicyError(f"positions of {what} go from 0 to {n - 1}; {len(wrong)} do not (first: {wrong[0]}).")
    return array.astype(np.int64)


FEW = 16  # ids that are looked up one by one


@dataclass(frozen=True)
class Vocabulary:
    """The outside ids of queries and items, by inside position."""

    query_ids: pl.Series
    item_ids: pl.Series

    def __post_init__(self) -> None:
        """Refuses ids that name nothing, or two things."""
        for name in ("query_ids", "item_ids"):
            given = getattr(self, name)
            ids = given if isinstance(given, pl.Series) else id_series(name, given)
            if not _are_ids(ids):
                raise InputError(f"{name}: expected integers or strings; got {ids.dtype}. Convert them.")
            if ids.null_count():
                raise InputError(
                    f"{name}: expected an id at every place; got null at {int(ids.is_null().arg_max() or 0)}."
                )
            if ids.n_unique() < len(ids):
                twice = ids.filter(ids.is_duplicated())
                raise InputError(
                    f"{name}: expected each id once; got {twice[0]!r} more than once. Leave out the copies."
                )
            object.__setattr__(self, name, ids)

    def queries(self, ids: pl.Series, owner: str | None = None) -> NDArray[np.int64]:
        """Positions of query ids; `owner` says in a message whose vocabulary this is."""
        known = self.query_ids.dtype
        if len(ids) <= FEW and (ids.dtype == known == pl.String or (ids.dtype.is_integer() and known.is_integer())):
            found = [self._query_at.get(i, -1) for i in ids.to_list()]
            if len(self._query_at) == len(self.query_ids) and -1 not in found:
                return np.array(found, np.int64)
        return positions_of(self.query_ids, ids, "query", owner=owner)

    @cached_property
    def _query_at(self) -> dict[object, int]:
        """For a live answer: a join of all ids takes longer than the rest of it."""
        return {i: place for place, i in enumerate(self.query_ids.to_list())}

    def items(self, ids: pl.Series) -> NDArray[np.int64]:
        """Positions of item ids."""
        return positions_of(self.item_ids, ids, "item")


def same_ids(a: Vocabulary, b: Vocabulary) -> bool:
    """Whether both name the same ids by the same positions."""
    return a is b or (a.query_ids.equals(b.query_ids) and a.item_ids.equals(b.item_ids))
