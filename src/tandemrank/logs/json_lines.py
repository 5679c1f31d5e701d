"""JSON lines, one object per impression, and plain Python values, as they and pandas have them, as columns of a log.

Read line by line, because only so a wrong line has a number. What does not fit a column is a problem, never bent: polars alone
would cut 0.5 to 0 and take 1 for "1" in a list, so the types of all values are looked at here.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank.errors import LogError, shortened
from tandemrank.logs.schema import IDS, LISTS, LONG, WIDE, Problem, check_columns, is_long, schema_problems, seconds

KINDS = {int: "number", float: "number", str: "text"}
NOTHING = ""  # what a value is that is missing, or a list without values


def column_of(name: str, values: Sequence[Any]) -> tuple[pl.Series, list[Problem]]:
    """Values as a column of the kind of the first of them that the column may have; others are null and a problem."""
    if name not in (*WIDE, *LONG):
        return _foreign(name, values), []
    types = _types(values)
    if any(issubclass(one, np.generic) for _, inner in set(types) for one in inner):
        return column_of(name, [_plain(v) for v in values])
    kinds = {t: _kind(name, *t) for t in set(types)}
    allowed = (
        ("number", "text", "time")
        if name == "timestamp"
        else ("number", "text")
        if name in (*IDS, "position")
        else ("number",)
    )
    kind = next((kinds[t] for t in types if kinds[t] in allowed), NOTHING)
    right = {t for t, one in kinds.items() if one in (kind, NOTHING)}
    words = [f"a list of {one}s" if name in LISTS else f"a {one}" for one in ([kind] if kind else allowed)]
    expected = f"{words[0]}, as before" if kind else " or ".join(words)
    found = _wrong(name, values, np.flatnonzero([t not in right for t in types]), expected)
    kept = [value if t in right else None for value, t in zip(values, types, strict=True)]
    if kind == "time":
        return _foreign(name, kept), found
    number = pl.Float64() if any(float in inner for _, inner in right) else pl.Int64()
    inner = pl.String() if kind == "text" else number
    column, lost = _series(name, kept, pl.List(inner) if name in LISTS else inner)
    return column, found + _wrong(name, values, lost, "text in Unicode" if kind == "text" else "64-bit numbers")


def _types(values: Sequence[Any]) -> list[tuple[bool, frozenset[type]]]:
    """Whether each value is a list, and the types in it: few different ones, however many values there are."""
    return [(True, frozenset(map(type, v))) if type(v) is list else (False, frozenset((type(v),))) for v in values]


def _plain(value: Any) -> Any:
    """Numbers of numpy as Python's."""
    if type(value) is list:
        return [_plain(v) for v in value]
    return value.item() if isinstance(value, np.generic) else value


def _kind(name: str, is_list: bool, types: frozenset[type]) -> str | None:
    """What a value, or each of a list, is; None where no column may have it. A click may be true or false as well as 1 or 0."""
    inner = types - {type(None)}
    if is_list != (name in LISTS):
        return NOTHING if not inner and not is_list else None
    found = {"number" if one is bool and name in ("click", "clicks") else KINDS.get(one) for one in inner}
    if name == "timestamp" and found == {None} and bool not in inner and dict not in inner:
        return "time"  # of pandas
    return found.pop() if len(found) == 1 else None if found else NOTHING


def _wrong(name: str, values: Sequence[Any], rows: NDArray[np.int64], expected: str) -> list[Problem]:
    if not len(rows):
        return []
    return [Problem(name, rows, f"expected {expected}; got {shortened(values[rows[0]])}.")]


def _series(name: str, values: list[Any], dtype: pl.DataType) -> tuple[pl.Series, NDArray[np.int64]]:
    """Values of one kind as a column, and the rows with a value that it cannot hold, which are null."""
    lost = np.zeros(0, dtype=np.int64)
    try:
        return pl.Series(name, values, dtype=dtype, strict=True), lost
    except (UnicodeEncodeError, OverflowError, TypeError, pl.exceptions.PolarsError):
        lost = np.flatnonzero([not _holds(v) for v in values])
    for row in lost:
        values[row] = None
    return pl.Series(name, values, dtype=dtype, strict=False), lost


def _holds(value: Any) -> bool:
    """Whether a column can hold the value: integers have 64 bits, text is Unicode."""
    if type(value) is list:
        return all(map(_holds, value))
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return False
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def _foreign(name: str, values: Sequence[Any]) -> pl.Series:
    """A column that no step looks at, and times of pandas: as they are, or else as text.

    Lists and objects are JSON, so that however deeply they are nested, the column is not.
    """
    try:
        if not any(isinstance(v, list | dict) for v in values):
            return pl.Series(name, values)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        pass
    return pl.Series(name, [None if v is None else _text(v) for v in values], dtype=pl.String)


def _text(value: Any) -> str:
    try:
        text = json.dumps(value, default=str) if isinstance(value, list | dict) else str(value)
        return text.encode("utf-8", "replace").decode()
    except (TypeError, ValueError, RecursionError):
        return shortened(value)


Piece = tuple[pl.DataFrame, list[Problem]]


def pieces(path: Path, batch: int, every_column: bool, also: Mapping[str, str]) -> Iterator[Piece]:
    """The rows of a file, and what is wrong with them so far; of the columns `also`, which of ours each is like."""
    with path.open("rb") as lines:
        while some := list(islice(lines, batch)):
            rows = [_object(line) for line in some]
            if is_long([name for row in rows if isinstance(row, dict) for name in row]):
                raise LogError("JSON lines hold the wide form, one object per impression. Write the long form as CSV.")
            frame, found = _frame(rows, every_column, also)
            check_columns(frame.columns, also)
            wrong = schema_problems(frame.schema)
            yield frame, found + wrong
            if wrong:
                return


def times(path: Path) -> NDArray[np.float64]:
    """When the impressions of a file were (`sources.times_in`); lines without the word are not parsed.  Shapes: -> [n]."""

    def time(line: bytes) -> Any:
        row = _object(line) if b'"timestamp"' in line else ""
        return row.get("timestamp") if isinstance(row, dict) else None

    with path.open("rb") as lines:
        column, _ = column_of("timestamp", [time(line) for line in lines])
    return seconds(column).fill_null(-np.inf).to_numpy()


def _frame(rows: Sequence[dict[str, Any] | str], every_column: bool, also: Mapping[str, str]) -> Piece:
    """Objects as a frame; a line that is no object is a row of nulls and a problem."""
    bad = np.flatnonzero([isinstance(row, str) for row in rows])
    found = [Problem("", bad, f"expected a JSON object in UTF-8; got {rows[bad[0]]}.")] if len(bad) else []
    objects = [{} if isinstance(row, str) else row for row in rows]
    names = dict.fromkeys(name for row in objects for name in row if every_column or name in (*WIDE, *also))
    columns = {}
    for name in names or WIDE[:3]:
        written = name.encode("utf-8", "replace").decode()  # a name may be no Unicode
        values, wrong = column_of(also.get(written, written), [row.get(name) for row in objects])
        columns[written] = values.alias(written)
        found += [Problem(written, one.rows, one.message) for one in wrong]
    return pl.DataFrame(columns), found


def _object(line: bytes) -> dict[str, Any] | str:
    """The object in a line, or in words what is there instead."""
    try:
        value = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, or numbers and nesting beyond what Python reads
        return f"{line[:40]!r} ({error})"
    return value if isinstance(value, dict) else shortened(value)
