"""JSON lines, one object per impression, and plain Python values, as they and pandas have them, as columns of a log.

Read line by line, because only so a wrong line has a number. What does not fit a column is a problem, never bent: polars alone
would cut 0.5 to 0 and take 1 for "1" in a list, so the types of all values are looked at here.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank.errors import LogError
from tandemrank.logs.schema import IDS, LONG, WIDE, Problem, is_long, schema_problems, seconds

NULL, NUMBER, TEXT, FLAG, OTHER, NOTHING, MIXED = (
    "null", "numbers", "texts", "true or false", "objects", "nothing", "mixed types",
)  # fmt: skip
TYPES = {type(None): NULL, int: NUMBER, float: NUMBER, str: TEXT, bool: FLAG}
SINGULAR = {NUMBER: "a number", TEXT: "a text", OTHER: "an object"}
LISTS = ("items", "clicks", "propensities")


class Kind(NamedTuple):
    """What a value is: a list or not, and of what."""

    is_list: bool
    of: str

    def __str__(self) -> str:
        """In words."""
        return f"a list of {self.of}" if self.is_list else SINGULAR.get(self.of, self.of)


def column_of(name: str, values: Sequence[Any]) -> tuple[pl.Series, list[Problem]]:
    """Values as a column of the kind of the first of them that the column may have; others are null and a problem."""
    types = _types(values)
    if any(issubclass(one, np.generic) for _, inner in set(types) for one in inner):
        values = [_plain(v) for v in values]
        types = _types(values)
    kinds = {t: _kind(name, *t) for t in set(types)}
    kind = next((kinds[t] for t in types if kinds[t].of not in (NULL, NOTHING, MIXED) and _fits(name, kinds[t])), None)
    listed = name in LISTS if kind is None else kind.is_list
    right = {t for t, k in kinds.items() if k == kind or k.of == NULL or (k.of == NOTHING and listed)}
    expected = _expected(name) if kind is None else f"{kind}, as before"
    found = _wrong(name, values, np.flatnonzero([t not in right for t in types]), expected)
    kept = [value if t in right else None for value, t in zip(values, types, strict=True)]
    if kind is not None and kind.of in (OTHER, FLAG):
        return _objects(name, kept), found
    number = pl.Float64() if any(float in inner for _, inner in right) else pl.Int64()
    inner = pl.String() if kind is not None and kind.of == TEXT else number
    column, lost = _series(name, kept, pl.List(inner) if listed else inner)
    return column, found + _wrong(name, values, lost, "text in Unicode" if inner == pl.String else "64-bit numbers")


def _types(values: Sequence[Any]) -> list[tuple[bool, frozenset[type]]]:
    """Whether each value is a list, and the types in it: few different ones, however many values there are."""
    return [(True, frozenset(map(type, v))) if type(v) is list else (False, frozenset((type(v),))) for v in values]


def _plain(value: Any) -> Any:
    """Numbers of numpy as Python's."""
    if type(value) is list:
        return [_plain(v) for v in value]
    return value.item() if isinstance(value, np.generic) else value


def _kind(name: str, is_list: bool, types: frozenset[type]) -> Kind:
    """The kind of a value; a click may be true or false as well as 1 or 0."""
    inner = {TYPES.get(t, OTHER) for t in types} - {NULL}
    if name in ("click", "clicks"):
        inner = {NUMBER if of == FLAG else of for of in inner}
    if not inner:
        return Kind(is_list, NOTHING if is_list else NULL)
    return Kind(is_list, MIXED if len(inner) > 1 else inner.pop())


def _fits(name: str, kind: Kind) -> bool:
    """Whether a column of a log may be of this kind; one that is no column of a log may be anything, and so may a time."""
    if name not in (*WIDE, *LONG) or name == "timestamp":
        return True
    return kind.is_list == (name in LISTS) and (kind.of == NUMBER or (name in IDS and kind.of == TEXT))


def _expected(name: str) -> str:
    """The kind of a column of a log, in words."""
    one, many = ("a number or a text", "numbers or of texts") if name in IDS else ("a number", "numbers")
    return f"a list of {many}" if name in LISTS else one


def _wrong(name: str, values: Sequence[Any], rows: NDArray[np.int64], expected: str) -> list[Problem]:
    if not len(rows):
        return []
    return [Problem(name, rows, f"expected {expected}; got {shortened(values[rows[0]])}.")]


def shortened(value: object) -> str:
    """A value in at most 40 characters, whatever it is."""
    try:
        return repr(value)[:40]
    except (ValueError, RecursionError):  # integers of thousands of digits, lists in lists in lists
        return f"something large of type {type(value).__name__}"


def _series(name: str, values: list[Any], dtype: pl.DataType) -> tuple[pl.Series, NDArray[np.int64]]:
    """Values of one kind as a column, and the rows with a value that it cannot hold, which are null."""
    try:
        column = pl.Series(name, values, dtype=dtype, strict=False)
        flat = column.explode(empty_as_null=False) if isinstance(dtype, pl.List) else column
        if flat.null_count() == _nulls(values):
            return column, np.zeros(0, dtype=np.int64)
    except (UnicodeEncodeError, OverflowError):
        pass
    lost = [not _holds(v) for v in values]
    kept = [None if bad else v for v, bad in zip(values, lost, strict=True)]
    return pl.Series(name, kept, dtype=dtype, strict=False), np.flatnonzero(lost)


def _nulls(values: list[Any]) -> int:
    return sum(sum(x is None for x in v) if type(v) is list else v is None for v in values)


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


def _objects(name: str, values: list[Any]) -> pl.Series:
    """A column of other objects (times of pandas, or what no later step looks at), as they are or else as text."""
    try:
        if not any(isinstance(v, list | dict) for v in values):
            return pl.Series(name, values)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        pass
    return pl.Series(name, [None if v is None else _text(v) for v in values], dtype=pl.String)


def _text(value: Any) -> str:
    """A value as text; lists and objects as JSON, so that however deeply they are nested, the column is not."""
    try:
        text = json.dumps(value, default=str) if isinstance(value, list | dict) else str(value)
        return text.encode("utf-8", "replace").decode()
    except (TypeError, ValueError, RecursionError):
        return shortened(value)


Piece = tuple[pl.DataFrame, list[Problem]]


def pieces(path: Path, batch: int, every_column: bool) -> Iterator[Piece]:
    """The rows of a file, and what is wrong with them so far."""
    with path.open("rb") as lines:
        while some := list(islice(lines, batch)):
            rows = [_object(line) for line in some]
            if is_long([name for row in rows if isinstance(row, dict) for name in row]):
                raise LogError("JSON lines hold the wide form, one object per impression. Write the long form as CSV.")
            frame, found = _frame(rows, every_column)
            wrong = schema_problems(frame.schema)
            yield frame, found + wrong
            if wrong:
                return


def times(path: Path) -> NDArray[np.float64] | None:
    """When the impressions of a file were (`sources.times_in`); lines without the word are not parsed.  Shapes: -> [n]."""

    def time(line: bytes) -> Any:
        row = _object(line) if b'"timestamp"' in line else ""
        return row.get("timestamp") if isinstance(row, dict) else None

    with path.open("rb") as lines:
        values = [time(line) for line in lines]
    if not any(value is not None for value in values):
        return None
    return seconds(column_of("timestamp", values)[0]).fill_null(-np.inf).to_numpy()


def _frame(rows: Sequence[dict[str, Any] | str], every_column: bool) -> Piece:
    """Objects as a frame; a line that is no object is a row of nulls and a problem."""
    bad = np.flatnonzero([isinstance(row, str) for row in rows])
    found = [Problem("", bad, f"expected a JSON object in UTF-8; got {rows[bad[0]]}.")] if len(bad) else []
    objects = [{} if isinstance(row, str) else row for row in rows]
    names = dict.fromkeys(name for row in objects for name in row if every_column or name in WIDE)
    columns = {}
    for name in names or WIDE[:3]:
        written = name.encode("utf-8", "replace").decode()  # a name may be no Unicode
        columns[written], wrong = column_of(written, [row.get(name) for row in objects])
        found += wrong if name in WIDE else []
    return pl.DataFrame(columns), found


def _object(line: bytes) -> dict[str, Any] | str:
    """The object in a line, or in words what is there instead."""
    try:
        value = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, or numbers and nesting beyond what Python reads
        return f"{line[:40]!r} ({error})"
    return value if isinstance(value, dict) else shortened(value)
