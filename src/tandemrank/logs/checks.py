"""What can be wrong with a click log (`schema`): every check in one pass over a batch."""

import time
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.ids import plain_ids
from tandemrank.errors import ConfigError
from tandemrank.logs.exact import LARGEST_WEIGHT, SMALLEST_PROPENSITY, SMALLEST_WEIGHT
from tandemrank.logs.impressions import Shown
from tandemrank.logs.keys import RANK_BITS, IdRegistry, encode_ids
from tandemrank.logs.schema import (
    KEY,
    LONG,
    NO_ROWS,
    WIDE,
    Problem,
    is_long,
    problem,
    problem_unless,
    seconds,
)

FEW_RANKS = 16  # up to so many, comparing all ranks of a list is faster than sorting it
DAY = 86_400.0  # clocks and time zones may differ by so many seconds


@dataclass(frozen=True)
class _Flat:
    """A batch with its lists laid out in one row; `long` says what a row of the file is.

    Shapes: query, length, weight, time [n]; item, rank, click, propensity [m].
    """

    long: bool
    query: pl.Series
    length: NDArray[np.int64]
    weight: pl.Series | None
    time: pl.Series | None
    item: pl.Series
    rank: NDArray[np.int16]
    click: pl.Series
    propensity: pl.Series | None

    def rows(self, shown: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows in the file of shown items."""
        return shown if self.long else np.searchsorted(np.cumsum(self.length), shown, side="right")

    def row(self, impressions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The (first) rows in the file of impressions."""
        return (np.cumsum(self.length) - self.length)[impressions] if self.long else impressions


def examine(frame: pl.DataFrame, names: "IdRegistry", K: int | None) -> tuple[list[Problem], Shown | None]:
    """The problems of a batch and, where there are none, its impressions in inside positions; there must be some."""
    if K is not None and K < 1:
        raise ConfigError(f"K: expected the ranks of the examination curve, 1 or more; got {K}.")
    keys = _keys(frame)
    frame = frame.select(c for c in (LONG if is_long(frame.columns) else WIDE) if c in frame.columns)
    frame = frame.with_columns(pl.col(c).arr.to_list() for c, t in frame.schema.items() if isinstance(t, pl.Array))
    limit = min(K or 2**RANK_BITS, 2**RANK_BITS)
    long = is_long(frame.columns)
    found = _long_problems(frame, limit) if long else _wide_problems(frame, limit)
    if found:
        return found, None
    flat = _flatten_long(frame) if long else _flatten_wide(frame)
    found = _value_problems(flat)
    if flat.item.null_count() or flat.query.null_count():
        return found, None
    distinct, within = encode_ids(flat.query)
    query = names.queries(distinct)[within]
    found += problem_unless(pl.Series(query >= 0), flat.query, "query_id", _known(names.query), flat.row)
    distinct, within = encode_ids(flat.item)
    item = names.items(distinct)[within]
    column = "item_id" if long else "items"
    found += problem_unless(pl.Series(item >= 0), flat.item, column, _known(names.item), flat.rows)
    twice = flat.row(_repeated(flat.length, within))
    found += problem(column, twice, "expected each item once in a list; one comes twice.")
    if found:
        return found, None
    weight = propensity = None
    if flat.weight is not None:
        weight = flat.weight.to_numpy()
    if flat.propensity is not None:
        propensity = flat.propensity.to_numpy()
    click = flat.click.cast(pl.UInt8).to_numpy()
    return [], Shown(
        query=query,
        length=flat.length,
        weight=weight,
        item=item,
        rank=flat.rank,
        click=click,
        propensity=propensity,
        key=keys,
        time=flat.time,
    )


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


def split_good_rows(
    frame: pl.DataFrame, found: list[Problem], names: "IdRegistry", K: int | None
) -> tuple[list[Problem], NDArray[np.int64], Shown | None]:
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
        found, shown = examine(frame[left], names, K)


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
    """Nulls, times in the future, and lists of the wrong length."""
    found = _nulls(frame) + _future_times(frame)
    length = frame["items"].list.len()
    right = (length <= limit).fill_null(True)
    found += problem_unless(right, length, "items", f"at most {limit} items, the ranks of the examination curve")
    for column in [c for c in ("clicks", "propensities") if c in frame.columns]:
        own = frame[column].list.len()
        found += problem_unless((own == length).fill_null(True), frame[column], column, "as many as items")
    return found


def _long_problems(frame: pl.DataFrame, limit: int) -> list[Problem]:
    """Nulls, times in the future, positions out of range, impressions of two queries or policies."""
    found = _nulls(frame) + _future_times(frame)
    position = frame["position"].cast(pl.Int64, strict=False)  # the limit may be beyond what a byte holds
    right = position.is_between(1, limit).fill_null(True)
    found += problem_unless(
        right, position, "position", f"positions from 1 to {limit}, the ranks of the examination curve"
    )
    run = frame["impression_id"].rle_id()
    for column in [c for c in ("query_id", "policy") if c in frame.columns]:
        values = frame[column]
        right = ((values == values.shift(1)) | (run != run.shift(1))).fill_null(True)
        found += problem_unless(right, values, column, f"one {column.removesuffix('_id')} in an impression")
    return found


def _value_problems(flat: _Flat) -> list[Problem]:
    """Wrong values of items, clicks, propensities, weights, and repeated positions."""
    item, click, propensity = ("item_id", "click", "propensity") if flat.long else ("items", "clicks", "propensities")
    expected = "an id, a string or a 64-bit integer"
    found = problem_unless(flat.query.is_not_null(), flat.query, "query_id", expected, flat.row)
    found += problem_unless(flat.item.is_not_null(), flat.item, item, expected, flat.rows)
    right = flat.click.is_not_null() if flat.click.dtype == pl.Boolean else (flat.click == 0) | (flat.click == 1)
    found += problem_unless(right, flat.click, click, "0 or 1", flat.rows)
    if (p := flat.propensity) is not None:
        right = (p >= SMALLEST_PROPENSITY) & (p <= 1)
        found += problem_unless(right, p, propensity, "propensities from 1e-12 to 1", flat.rows)
    if (w := flat.weight) is not None:
        right = (w >= SMALLEST_WEIGHT) & (w <= LARGEST_WEIGHT)
        found += problem_unless(right, w, "weight", "weights from a millionth to a million", flat.row)
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


def _flatten_wide(frame: pl.DataFrame) -> _Flat:
    """The lists of a wide batch in one row."""
    length = frame["items"].list.len().cast(pl.Int64).to_numpy()
    flat = {c: frame[c].explode(empty_as_null=False) for c in ("items", "clicks", "propensities") if c in frame.columns}
    if len(length) and (length == length[0]).all():
        rank = np.tile(np.arange(length[0], dtype=np.int16), len(length))
    else:
        start = np.repeat(np.cumsum(length) - length, length)
        rank = (np.arange(len(start)) - start).astype(np.int16)
    weight = frame["weight"].cast(pl.Float64) if "weight" in frame.columns else None
    return _Flat(
        long=False,
        query=plain_ids(frame["query_id"]),
        length=length,
        weight=weight,
        time=frame.get_column("timestamp", default=None),
        item=plain_ids(flat["items"]),
        rank=rank,
        click=flat["clicks"],
        propensity=flat["propensities"].cast(pl.Float64) if "propensities" in flat else None,
    )


def _flatten_long(frame: pl.DataFrame) -> _Flat:
    """The impressions of a long batch: runs of equal impression ids; query, weight and time are those of the first row."""
    run = frame["impression_id"].rle_id().to_numpy()
    starts = np.flatnonzero(np.diff(run.astype(np.int64), prepend=-1))
    length = np.diff(starts, append=len(run))
    first = frame[starts]
    return _Flat(
        long=True,
        query=plain_ids(first["query_id"]),
        length=length,
        weight=first["weight"].cast(pl.Float64) if "weight" in frame.columns else None,
        time=first.get_column("timestamp", default=None),
        item=plain_ids(frame["item_id"]),
        rank=(frame["position"].cast(pl.Int64).to_numpy() - 1).astype(np.int16),
        click=frame["click"],
        propensity=frame["propensity"].cast(pl.Float64) if "propensity" in frame.columns else None,
    )
