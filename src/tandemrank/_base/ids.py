"""Outside ids (integers or strings) and the inside positions 0 .. n-1 that all arrays use: those of a vocabulary, and those
that ids get as they are met (`IdRegistry`)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from tandemrank.errors import InputError, LogError, PolicyError

Id = int | str
Ids = Sequence[int] | Sequence[str] | pl.Series

QUERY_BITS, ITEM_BITS = 27, 26  # of a position


def id_series(name: str, ids: Ids) -> pl.Series:
    """Ids as a column; refuses what is no column of one type."""
    if isinstance(ids, pl.Series):
        return ids.alias(name)
    try:
        return pl.Series(name, ids.to_list() if hasattr(ids, "to_list") else ids)
    except (TypeError, ValueError, OverflowError, RuntimeError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{name}: expected a list of integers or of strings; got {str(ids)[:60]}.") from error


def are_ids(ids: pl.Series) -> bool:
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
        if not are_ids(side):
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


def in_batches(
    q: NDArray[np.int64], size: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    """The distinct queries among some, `size` at a time; where these are asked for, and which of them each time.

    Shapes: q [n] -> [B], [m], [m].
    """
    distinct, row = np.unique(q, return_inverse=True)
    order = np.argsort(row, kind="stable")
    bounds = np.searchsorted(row[order], np.arange(0, len(distinct) + size, size))
    for first, start, stop in zip(range(0, len(distinct), size), bounds, bounds[1:], strict=False):
        yield distinct[first : first + size], order[start:stop], row[order[start:stop]] - first


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
            if not are_ids(ids):
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


# --- ids as they are met ----------------------------------------------------------------------------------------------


class IdRegistry:
    """The ids met so far and their positions, in that order; or a vocabulary, which does not grow."""

    def __init__(self, vocabulary: Vocabulary | None = None) -> None:
        self.given = vocabulary
        self.query = None if vocabulary is None else plain_ids(vocabulary.query_ids)
        self.item = None if vocabulary is None else plain_ids(vocabulary.item_ids)

    def vocabulary(self) -> Vocabulary:
        """All ids: the vocabulary given, or those met."""
        nothing = pl.Series([], dtype=pl.Int64)
        met = [nothing if ids is None else ids for ids in (self.query, self.item)]
        return self.given or Vocabulary(*met)

    def queries(self, ids: pl.Series) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Positions of query ids, -1 for an unknown one, and numbers that tell all of them apart. Shapes: [m] -> [m], [m]."""
        self.query, found, code = self._met(self.query, ids, QUERY_BITS)
        return found, code

    def items(self, ids: pl.Series) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The same of item ids. Shapes: [m] -> [m], [m]."""
        self.item, found, code = self._met(self.item, ids, ITEM_BITS)
        return found, code

    def _met(
        self, known: pl.Series | None, ids: pl.Series, bits: int
    ) -> tuple[pl.Series, NDArray[np.int32], NDArray[np.int32]]:
        """The known ids, with the new ones after them where they may grow, and where `ids` are among them."""
        distinct, code = _encoded(ids)
        if known is None or (self.given is None and not len(known)):
            known = distinct.clear()
        if known.dtype != distinct.dtype:
            return known, np.full(len(ids), -1, dtype=np.int32), code
        if self.given is None:
            known = known.append(distinct.filter(~distinct.is_in(known.implode())))
            check_number(known, bits)
        return known, positions_of(known, distinct, "log", missing="mark").astype(np.int32)[code], code


def check_number(ids: pl.Series, bits: int) -> None:
    """Refuses more ids than there are positions of so many bits."""
    if len(ids) > 2**bits:
        raise LogError(f"the log has more than {2**bits} different ids in one column, the most it may have.")


def _encoded(ids: pl.Series) -> tuple[pl.Series, NDArray[np.int32]]:
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
