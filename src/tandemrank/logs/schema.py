"""The schema of click logs, and a problem in one.

Wide: `query_id, items, clicks` and perhaps `propensities, values, weight, timestamp, impression_id, policy, session_id, step`;
one row per impression, items top first. Long: `impression_id, query_id, item_id, position, click` and perhaps `propensity,
value, weight, timestamp, policy, session_id, step`; one row per shown item, positions from 1, the rows of an impression
together. A position may be a name, and `row` and `column` may stand in its place (`layouts`). Ids are integers or strings. A
value is what a clicked item was worth, an order or minutes, say: 0 or more, 0 where it was not clicked. Times are dates, ISO
texts or Unix seconds, in UTC where they name no zone; by them the last impressions can be held out, and a time in the future
says that something is wrong. `policy` names the policy that drew the list: propensities are each row's own, so several policies
are one log. `session_id` and `step` order lists into sessions.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank.errors import LogError, shortened

SESSION = ("session_id", "step")  # which session an impression is of, and where in it
WIDE = (
    "query_id", "items", "clicks", "propensities", "values", "weight", "timestamp", "impression_id", "policy", *SESSION,
)  # fmt: skip
LONG = (
    "impression_id", "query_id", "item_id", "position", "click", "propensity", "value", "weight", "timestamp", "policy",
    *SESSION,
)  # fmt: skip
GRID = ("row", "column")  # of a long log, in place of `position`
KEY = "key"  # of a served log: the random number that decided the list
MOST_RANKS = 512  # of a list: 9 bits of a key (`sums`)
IDS = ("impression_id", "query_id", "item_id", "items", "policy", "session_id")

# Columns of shown items: long, wide.
LISTED = {"item_id": "items", "click": "clicks", "propensity": "propensities", "value": "values"}
LISTS = tuple(LISTED.values())

NO_ROWS = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Problem:
    """Something wrong in a log: the column ("" for the whole row or file) and the rows, from 0; no rows for all of it.

    The message is "expected ...; got ..."; what stands before the semicolon is the same for every row.
    """

    column: str
    rows: NDArray[np.int64]
    message: str

    @property
    def count(self) -> int:
        """The number of rows it is wrong in."""
        return len(self.rows)


def is_long(columns: Sequence[str]) -> bool:
    """Whether a log of these columns has one row per shown item."""
    return "items" not in columns and "item_id" in columns


def is_grid(columns: Sequence[str]) -> bool:
    """Whether a log of these columns has the cells of a grid in place of positions."""
    return is_long(columns) and "position" not in columns and set(GRID) <= set(columns)


def ours(columns: Sequence[str]) -> tuple[tuple[str, ...], int]:
    """The columns that a log with these may have, and how many of them, the first ones, it must have."""
    if not is_long(columns):
        return WIDE, 3
    at = LONG.index("position")
    return ((*LONG[:at], *GRID, *LONG[at + 1 :]), 6) if is_grid(columns) else (LONG, 5)


def _fits(column: str, dtype: Any) -> tuple[str, bool]:
    """What a column should have, in words, and whether values of a type are that; None is no type."""
    dtype = dtype or pl.Null()
    if column in IDS:
        return "integers or strings", dtype.is_integer() or dtype in (pl.String, pl.Categorical, pl.Enum)
    if column == "position":
        return "integers or names", dtype.is_integer() or dtype in (pl.String, pl.Categorical, pl.Enum)
    if column in ("step", *GRID):
        return "integers", dtype.is_integer()
    if column == "timestamp":
        return "times", dtype.is_numeric() or dtype in (pl.String, pl.Date, pl.Datetime)
    return "numbers", dtype.is_numeric() or (column in ("click", "clicks") and dtype == pl.Boolean)


def schema_problems(schema: pl.Schema) -> list[Problem]:
    """Columns that are missing or of the wrong type."""
    columns, needed = ours(schema.names())
    missing = [column for column in columns[:needed] if column not in schema]
    if missing:
        got = ", ".join(list(schema)[:20]) + (" and more" if len(schema) > 20 else "")
        message = f"expected the columns {', '.join(columns[:needed])}; got {got or 'none'}."
        message += _import_that_fits(list(schema))
        return [Problem(column, NO_ROWS, message) for column in missing]
    found = []
    for column in [c for c in columns if c in schema]:
        dtype, listed = schema[column], column in LISTS
        inner = dtype.inner if isinstance(dtype, pl.List | pl.Array) else None
        words, right = _fits(column, inner if listed else dtype)
        if not right:
            expected = f"lists of {words}" if listed else words
            found.append(Problem(column, NO_ROWS, f"expected {expected}; got the type {dtype}."))
    return found


# What others call our columns.
OTHER_NAMES = {
    "impression_id": ("impression", "request_id", "request", "search_id", "slate_id", "list_id", "session_id"),
    "query_id": (
        "query",
        "term",
        "search_term",
        "keyword",
        "q",
        "user",
        "user_id",
        "userid",
        "visitor_id",
        "customer_id",
    ),
    "item_id": ("item", "doc_id", "document_id", "document", "product_id", "product", "article_id", "movie_id", "sku"),
    "position": ("rank", "pos", "slot", "place"),
    "click": ("clicked", "is_click", "is_clicked", "clicks"),
    "items": ("results", "shown", "item_ids", "documents", "products"),
    "clicks": ("clicked", "click"),
    "timestamp": ("time", "ts", "datetime", "date", "created_at"),
}


def _import_that_fits(columns: Sequence[str]) -> str:
    """The command that renames other columns to ours, where all but one have a name that is known; else nothing."""
    for form, wanted in (("long", LONG[:5]), ("wide", WIDE[:3])):
        plain = {name.lower(): name for name in reversed(columns)}
        theirs = {ours: next((plain[x] for x in (ours, *OTHER_NAMES[ours]) if x in plain), None) for ours in wanted}
        if [*theirs.values()].count(None) <= (form == "long"):
            theirs["timestamp"] = next((plain[x] for x in OTHER_NAMES["timestamp"] if x in plain), "timestamp")
            names = " ".join(f"--column {ours}={name or '...'}" for ours, name in theirs.items() if ours != name)
            return f" It seems to be another table: tandemrank import FILE --from {form} {names} --out LOG."
    return ""


def check_columns(columns: Sequence[str], wanted: Iterable[str]) -> None:
    """Refuses a file without a column that was asked for."""
    if missing := [column for column in wanted if column not in columns]:
        there = ", ".join(list(columns)[:20]) or "none"
        raise LogError(f"expected the column {missing[0]!r}; the columns are {there}.")


def seconds(times: pl.Series) -> pl.Series:
    """Times in Unix seconds, null where there is none or a text is no time.  Shapes: [n] -> [n]."""
    if times.dtype.is_numeric():
        return times.cast(pl.Float64)
    if times.dtype == pl.String:
        try:
            times = times.str.to_datetime(strict=False, time_zone="UTC")
        except pl.exceptions.PolarsError:  # no value looks like a time
            times = pl.Series([None] * len(times), dtype=pl.Datetime)
    return times.cast(pl.Datetime("us")).dt.epoch("us") / 1e6


def problem(column: str, rows: NDArray[np.int64], message: str) -> list[Problem]:
    """A problem in the given rows, or none."""
    rows = np.unique(rows)
    return [Problem(column, rows, message)] if len(rows) else []


def problem_unless(
    right: pl.Series,
    values: pl.Series,
    column: str,
    expected: str,
    rows: Callable[[NDArray[np.int64]], NDArray[np.int64]] = lambda rows: rows,
) -> list[Problem]:
    """A problem where `right` is not true, with the first wrong value. Shapes: right, values [m]."""
    if right.all(ignore_nulls=False):
        return []
    wrong = np.flatnonzero(~right.fill_null(False).to_numpy())
    first = values[int(wrong[0]) : int(wrong[0]) + 1]
    value = (first.cast(pl.String) if first.dtype.is_temporal() else first)[0]  # a year may be beyond Python's
    value = value.to_list() if isinstance(value, pl.Series) else value
    got = "null" if value is None else shortened(value, 80)
    return problem(column, rows(wrong), f"expected {expected}; got {got}.")
