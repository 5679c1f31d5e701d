"""JSON lines, one object per impression. Read line by line, because only so a wrong line has a number."""

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tandemrank.errors import LogError
from tandemrank.logs.schema import WIDE, Problem, is_long, schema_problems
from tandemrank.logs.values import column_of, shortened

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
    """The object in a line, or in words what came instead."""
    try:
        value = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, or numbers and nesting beyond what Python reads
        return f"{line[:40]!r} ({error})"
    return value if isinstance(value, dict) else shortened(value)
