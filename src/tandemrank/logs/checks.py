"""What can be wrong with a click log (`schema`): every check in one pass over a batch, and what must not come twice.

A new column of a log is a name in `schema`, what its values must be here, and a field of `FlatImpressions`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.ids import IdRegistry, plain_ids
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.exact import LARGEST_WEIGHT, SMALLEST_PROPENSITY, SMALLEST_WEIGHT
from tandemrank.logs.impressions import FlatImpressions
from tandemrank.logs.layouts import Layout, in_ranks
from tandemrank.logs.schema import (
    KEY,
    LISTED,
    LISTS,
    LONG,
    MOST_RANKS,
    NO_ROWS,
    SESSION,
    WIDE,
    Problem,
    is_long,
    problem,
    problem_unless,
    seconds,
)
from tandemrank.logs.sums import push

FEW_RANKS = 16  # up to so many, comparing all ranks of a list is faster than sorting it
LARGEST_VALUE = 1e12  # of a clicked item
DAY = 86_400.0  # clocks and time zones may differ by so many seconds


# What the values of an impression, and of each shown item, must be: in words, and whether they are.
Rule = tuple[str, Callable[[pl.Series], pl.Series]]
ID: Rule = ("an id, a string or a 64-bit integer", lambda x: plain_ids(x).is_not_null())
OF_IMPRESSION: dict[str, Rule] = {
    "query_id": ID,
    "session_id": ID,
    "weight": ("weights from a millionth to a million", lambda x: (x >= SMALLEST_WEIGHT) & (x <= LARGEST_WEIGHT)),
}
OF_ITEM: dict[str, Rule] = {
    "item_id": ID,
    "click": ("0 or 1", lambda x: x.is_not_null() if x.dtype == pl.Boolean else (x == 0) | (x == 1)),
    "propensity": ("propensities from 1e-12 to 1", lambda x: (x >= SMALLEST_PROPENSITY) & (x <= 1)),
    "value": ("values from 0 to 1e12", lambda x: (x >= 0) & (x <= LARGEST_VALUE)),
}


@dataclass(frozen=True)
class _Flat:
    """A batch as a row for each impression and a row for each shown item, with the names of the long form.

    `long` says what a row of the file is. Shapes: impressions, length [n]; items, rank [m].
    """

    long: bool
    impressions: pl.DataFrame
    items: pl.DataFrame
    length: NDArray[np.int64]
    rank: NDArray[np.int16]

    def rows(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows in the file of shown items."""
        return items if self.long else np.searchsorted(np.cumsum(self.length), items, side="right")

    def row(self, impressions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The (first) rows in the file of impressions."""
        return (np.cumsum(self.length) - self.length)[impressions] if self.long else impressions

    def column(self, name: str) -> str:
        """What a column of shown items is called in the file."""
        return name if self.long else LISTED[name]


def examine(
    frame: pl.DataFrame, names: IdRegistry, K: int | None, layout: Layout = ()
) -> tuple[list[Problem], FlatImpressions | None]:
    """The problems of a batch and, where there are none, its impressions in inside positions; there must be some.

    `layout`: the positions in the order of their ranks, where they are no numbers.
    """
    if K is not None and K < 1:
        raise ConfigError(f"K: expected the ranks of the examination curve, 1 or more; got {K}.")
    keys, long = _keys(frame), is_long(frame.columns)
    frame, found = in_ranks(frame, layout)
    if found:
        return found, None
    frame = frame.select(c for c in (LONG if long else WIDE) if c in frame.columns)
    limit = min(K or MOST_RANKS, MOST_RANKS)
    found = _nulls(frame) + _future_times(frame)
    found += _long_problems(frame, limit) if long else _wide_problems(frame, limit)
    if found:
        return found, None
    flat = _flattened(frame)
    found = _value_problems(flat)
    query_id, item_id = plain_ids(flat.impressions["query_id"]), plain_ids(flat.items["item_id"])
    if item_id.null_count() or query_id.null_count():
        return found, None
    query, _ = names.queries(query_id)
    found += problem_unless(pl.Series(query >= 0), query_id, "query_id", _known(names.query), flat.row)
    item, code = names.items(item_id)
    column = flat.column("item_id")
    found += problem_unless(pl.Series(item >= 0), item_id, column, _known(names.item), flat.rows)
    found += problem(
        column, flat.row(_repeated(flat.length, code)), "expected each item once in a list; one comes twice."
    )
    if found:
        return found, None
    return [], FlatImpressions(
        query=query,
        length=flat.length,
        weight=_numbers(flat.impressions, "weight"),
        item=item,
        rank=flat.rank,
        click=flat.items["click"].cast(pl.UInt8).to_numpy(),
        propensity=_numbers(flat.items, "propensity"),
        key=keys,
        value=_numbers(flat.items, "value"),
    )


def _numbers(table: pl.DataFrame, name: str) -> NDArray[np.float64] | None:
    return table[name].cast(pl.Float64).to_numpy() if name in table.columns else None


def _keys(frame: pl.DataFrame) -> NDArray[np.uint64] | None:
    """The keys of a served log, which is wide; a column of the name that is anything else is nobody's business."""
    if is_long(frame.columns) or KEY not in frame.columns or frame[KEY].dtype != pl.UInt64 or frame[KEY].null_count():
        return None
    return frame[KEY].to_numpy()


def impressions_of(frame: pl.DataFrame) -> NDArray[np.int64]:
    """The impression that each row belongs to, numbered from 0. Shapes: -> [rows]."""
    if is_long(frame.columns):
        return frame["impression_id"].rle_id().to_numpy().astype(np.int64)
    return np.arange(len(frame))


def first_rows(frame: pl.DataFrame) -> NDArray[np.int64]:
    """The first row of every impression. Shapes: -> [n]."""
    return np.flatnonzero(np.diff(impressions_of(frame), prepend=-1))


def split_good_rows(
    frame: pl.DataFrame, found: list[Problem], names: IdRegistry, K: int | None, layout: Layout = ()
) -> tuple[list[Problem], NDArray[np.int64], FlatImpressions | None]:
    """All problems of a batch (`found` are those known before), the rows without one, and their impressions.

    Where lists are broken their values cannot be looked at, so the rows that are left are examined again. In a long
    log an impression with one bad row goes as a whole. Shapes: -> rows [r].
    """
    run = impressions_of(frame)
    everything: list[Problem] = []
    left, shown = np.arange(len(frame)), None
    while True:
        everything += [Problem(p.column, left[p.rows], p.message) for p in found]
        bad = np.concatenate([NO_ROWS, *(left[p.rows] for p in found)])
        left = left[~np.isin(run[left], run[bad])]
        if shown is not None or not len(left):
            return everything, left, shown
        found, shown = examine(frame[left], names, K, layout)


def _known(ids: pl.Series | None) -> str:
    """What an id should have been, in words."""
    return "an id" if ids is None else f"one of the {len(ids)} known ids, which are {ids.dtype}"


def _nulls(frame: pl.DataFrame) -> list[Problem]:
    columns = [c for c in frame.columns if c != "timestamp"]
    return [p for c in columns for p in problem_unless(frame[c].is_not_null(), frame[c], c, "a value")]


def _future_times(frame: pl.DataFrame) -> list[Problem]:
    """Times in the future, or no times at all; a missing time is none."""
    if "timestamp" not in frame.columns:
        return []
    values = frame["timestamp"]
    right = (seconds(values) <= time.time() + DAY).fill_null(False) | values.is_null()
    return problem_unless(right, values, "timestamp", "times until now, ISO or in Unix seconds")


def _wide_problems(frame: pl.DataFrame, limit: int) -> list[Problem]:
    """Lists of the wrong length."""
    length = frame["items"].list.len()
    right = (length <= limit).fill_null(True)
    found = problem_unless(right, length, "items", f"at most {limit} items, the ranks of the examination curve")
    for column in [c for c in LISTS if c in frame.columns and c != "items"]:
        own = frame[column].list.len()
        found += problem_unless((own == length).fill_null(True), frame[column], column, "as many as items")
    return found


def _long_problems(frame: pl.DataFrame, limit: int) -> list[Problem]:
    """Positions out of range, impressions of two queries or policies."""
    position = frame["position"].cast(pl.Int64, strict=False)  # the limit may be beyond what a byte holds
    right = position.is_between(1, limit).fill_null(True)
    found = problem_unless(
        right, position, "position", f"positions from 1 to {limit}, the ranks of the examination curve"
    )
    run = frame["impression_id"].rle_id()
    for column in [c for c in ("query_id", "policy", *SESSION) if c in frame.columns]:
        values = frame[column]
        right = ((values == values.shift(1)) | (run != run.shift(1))).fill_null(True)
        found += problem_unless(right, values, column, f"one {column.removesuffix('_id')} in an impression")
    return found


def _value_problems(flat: _Flat) -> list[Problem]:
    """Wrong values, and repeated positions."""
    found = []
    for name, (expected, right) in OF_ITEM.items():
        if name in flat.items.columns:
            values = flat.items[name]
            found += problem_unless(right(values), values, flat.column(name), expected, flat.rows)
    for name, (expected, right) in OF_IMPRESSION.items():
        if name in flat.impressions.columns:
            values = flat.impressions[name]
            found += problem_unless(right(values), values, name, expected, flat.row)
    if "value" in flat.items.columns:
        values = flat.items["value"]
        clicked = (values == 0) | flat.items["click"].cast(pl.Boolean)
        found += problem_unless(clicked, values, flat.column("value"), "0 where nothing was clicked", flat.rows)
    if flat.long:
        twice = flat.row(_repeated(flat.length, flat.rank))
        found += problem("position", twice, "expected each position once in an impression; one comes twice.")
    return found


def _repeated(length: NDArray[np.int64], values: NDArray[np.integer]) -> NDArray[np.int64]:
    """The impressions in which a value comes twice. Shapes: length [n]; values [m]."""
    if not len(values):
        return np.zeros(0, dtype=np.int64)
    K = int(length[0])
    if K <= FEW_RANKS and (length == K).all():  # every rank against every later one: whole columns at once
        column = np.ascontiguousarray(values.reshape(-1, K).T)
        repeated = np.zeros(len(length), dtype=np.bool_)
        for k in range(1, K):
            repeated |= (column[k:] == column[:-k]).any(axis=0)
        return np.flatnonzero(repeated)
    key = np.sort(np.repeat(np.arange(len(length)), length) * (int(values.max()) + 1) + values)
    return np.unique(key[1:][key[1:] == key[:-1]] // (int(values.max()) + 1))


def _flattened(frame: pl.DataFrame) -> _Flat:
    """The lists of a wide batch in one row; or the impressions of a long one, runs of equal ids, as their first rows say."""
    if is_long(frame.columns):
        starts = first_rows(frame)
        rank = (frame["position"].cast(pl.Int64).to_numpy() - 1).astype(np.int16)
        return _Flat(True, frame[starts], frame, np.diff(starts, append=len(frame)), rank)
    length = frame["items"].list.len().cast(pl.Int64).to_numpy()
    lists = {own: frame[c].explode(empty_as_null=False) for own, c in LISTED.items() if c in frame.columns}
    rank = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
    return _Flat(False, frame, pl.DataFrame(lists), length, rank.astype(np.int16))


# --- what must not come twice -----------------------------------------------------------------------------------------

TOGETHER = (
    "expected the rows of an impression together, in one file; one comes back after another began. Sort by impression_id, or, "
    "if each file numbers its own impressions, make the ids unique."
)
ONCE = (
    "expected each impression once; this one was there before, in this file or in another. Leave out the copies, or, if each "
    "file numbers its own impressions, make the ids unique."
)


class KnownFiles:
    """The files met so far, by what they are and not by their names: links of both kinds are seen through."""

    def __init__(self) -> None:
        self.names: dict[object, object] = {}

    def refuse_repeated(self, part: object) -> None:
        """Refuses a file that was met before. One at a URL, which is a string, is known by it."""
        key: object = part
        if isinstance(part, Path):
            try:
                found = part.stat()
            except (OSError, ValueError):  # what is wrong with it is told by reading it
                return
            key = found.st_dev, found.st_ino
        elif not isinstance(part, str):
            return  # a frame
        before = self.names.setdefault(key, part)
        if before is not part:
            same = "it was given before" if str(before) == str(part) else f"it is the same file as {before}"
            raise LogError(
                f"expected each file of a log once; {same}. Its impressions would count twice, so name it once."
            )


class KnownImpressions:
    """The ids of impressions met so far, as 64-bit hashes: with 10 million of them there is one false alarm in 300,000 logs."""

    def __init__(self) -> None:
        self.parts: list[NDArray[np.uint64]] = []  # each sorted

    def problems(self, frame: pl.DataFrame) -> list[Problem]:
        """The impressions of a batch that were there before."""
        if "impression_id" not in frame.columns:
            return []
        ids, long = frame["impression_id"], is_long(frame.columns)
        new = (
            np.diff(ids.rle_id().to_numpy().astype(np.int64), prepend=-1) != 0 if long else np.ones(len(ids), np.bool_)
        )
        rows = np.flatnonzero(new & ids.is_not_null().to_numpy())  # a missing id is a problem of its own
        twice = self.repeated(_hashes(ids.gather(rows)))
        return problem("impression_id", rows[twice], TOGETHER if long else ONCE)

    def repeated(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Adds impressions, and says which were there before.  Shapes: [n] -> [n]."""
        distinct, first = np.unique(hashes, return_index=True)
        twice = np.ones(len(hashes), dtype=np.bool_)
        twice[first] = False
        for known in self.parts:
            at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            twice |= known[at] == hashes
        if len(fresh := distinct[~twice[first]]):
            push(self.parts, fresh, len, lambda parts: np.sort(np.concatenate(parts)))
        return twice

    def hashes(self) -> NDArray[np.uint64]:
        """The hashes of all impressions."""
        return np.concatenate([np.zeros(0, np.uint64), *self.parts])


def _hashes(ids: pl.Series) -> NDArray[np.uint64]:
    """One hash for equal ids, whatever the width of integers.  Shapes: ids [n] -> [n]."""
    if not ids.dtype.is_integer():
        return ids.cast(pl.String).hash().to_numpy()
    narrow = ids.cast(pl.Int64, strict=False)
    return (ids if narrow.null_count() else narrow).hash().to_numpy()
