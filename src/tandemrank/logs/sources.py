"""Where click logs come from: Parquet, CSV and JSON lines, folders, patterns, frames, all as batches of rows.

| form | wide (one row per impression) | long (one row per shown item) |
| --- | --- | --- |
| Parquet, frames of polars or pandas | yes | yes |
| JSON lines (.jsonl, .ndjson, .json) | yes | no |
| CSV (.csv) | no: it has no lists | yes |

A file that cannot be read comes as a batch without rows that says why, so that a reader may stop there and a validation
may go on. Rows are counted from 0 in their file; a CSV's header is not counted. Files at a URL (`buckets`) are fetched one
after the other as they are read, and are then read as those here are.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base import buckets, checksum
from tandemrank._base.files import plain, regular
from tandemrank._base.frames import UNREADABLE, PandasFrame, from_pandas, is_pandas
from tandemrank.errors import ConfigError, InputError, LogError
from tandemrank.logs import json_lines
from tandemrank.logs.json_lines import Piece, column_of
from tandemrank.logs.repeats import KnownFiles, KnownImpressions
from tandemrank.logs.schema import (
    IDS,
    KEY,
    LONG,
    NO_ROWS,
    WIDE,
    Problem,
    is_long,
    problem_unless,
    schema_problems,
    seconds,
)

Frame = pl.DataFrame | pl.LazyFrame | PandasFrame
Source = str | Path | Sequence[str | Path] | Frame

MOST_ROWS = 10**9  # of a batch
FORMS = {".parquet": "Parquet", ".csv": "CSV", ".jsonl": "JSON lines", ".ndjson": "JSON lines", ".json": "JSON lines"}


@dataclass(frozen=True)
class Batch:
    """Some rows of a log: their file, the number of the first of them there, and what is known to be wrong with them.

    `frame` is None where the file, or what is left of it, cannot be used at all. Every file has a batch, if an empty one.
    """

    name: str
    first: int
    frame: pl.DataFrame | None
    found: list[Problem]


def batches(
    source: Source, batch: int = 200_000, *, every_column: bool = False, impressions: KnownImpressions | None = None
) -> Iterator[Batch]:
    """The log in pieces of about `batch` rows, with the columns needed or with every one; an impression is never cut.

    `impressions` hears of all impressions that have an id.
    """
    if not 1 <= batch <= MOST_ROWS:
        raise ConfigError(f"batch: expected from 1 to {MOST_ROWS:,} rows; got {batch}.")
    known = impressions or KnownImpressions()
    for name, form, data in _files(source):
        first, any_piece = 0, False
        known.begin(name)
        try:
            if isinstance(data, LogError):
                raise data
            if isinstance(data, Path):
                pieces = json_lines.pieces(data, batch, every_column)
            else:
                lazy = data if isinstance(data, pl.LazyFrame) else from_pandas(data, _checked_column).lazy()
                pieces = _pieces(lazy, form, batch, every_column)
            for frame, found in pieces:
                usable = all(problem.count for problem in found)
                if usable:
                    found += known.problems(frame)
                yield Batch(name, first, frame if usable else None, found)
                first, any_piece = first + len(frame), True
            if not any_piece:
                yield Batch(name, 0, pl.DataFrame(schema=dict.fromkeys(WIDE[:3], pl.Int64)), [])
        except LogError as error:
            yield Batch(name, first, None, [Problem("", NO_ROWS, str(error))])
        except UNREADABLE as error:
            message = f"cannot be read as {form} after row {first}: {error}. Is it whole, and is it {form}?"
            yield Batch(name, first, None, [Problem("", NO_ROWS, message)])


def describe(batch: Batch, problem: Problem) -> str:
    """A problem in words, with its file and its row there."""
    row = f", row {batch.first + problem.rows[0]}" if problem.count else ""
    column = f", column {problem.column}" if problem.column else ""
    more = f" {problem.count} rows of this batch have the problem." if problem.count > 1 else ""
    return f"{batch.name}{row}{column}: {problem.message}{more}"


def is_frame(source: Source) -> TypeGuard[Frame]:
    """Whether a log is a frame, of polars or of pandas."""
    return isinstance(source, pl.DataFrame | pl.LazyFrame) or is_pandas(source)


def _files(source: Source) -> Iterator[tuple[str, str, pl.LazyFrame | Path | PandasFrame | LogError]]:
    """The files or frames of a log: name, form, data. JSON lines stay a path; a file that was there before is an error."""
    if isinstance(source, pl.DataFrame | pl.LazyFrame):
        yield "the frame", "a frame", source.lazy()
    elif is_pandas(source):
        yield "the frame", "a frame", source
    else:
        known = KnownFiles()
        for path in paths(source):
            form = _form(path) or "Parquet"
            if again := known.repeated(path):
                yield str(path), form, LogError(again)
                continue
            try:
                with buckets.local(path) as here:
                    if form == "Parquet" and here.is_file() and (damage := checksum.problem(here)):
                        yield str(path), form, LogError(damage)
                        continue
                    yield str(path), form, _opened(here, form)
            except OSError as error:  # a URL that does not answer
                yield str(path), form, LogError(f"cannot be read: {error.strerror or error}.")


def _form(path: str | Path) -> str | None:
    return FORMS.get(PurePosixPath(path).suffix.lower())


def _opened(path: Path, form: str) -> pl.LazyFrame | Path:
    path = regular(path)
    if form == "JSON lines":
        return path
    if form == "CSV":
        # All text, so that a wrong value is found here with its row and column; undecodable bytes are marked.
        return pl.scan_csv(path, glob=False, infer_schema=False, encoding="utf8-lossy")
    return pl.scan_parquet(path, glob=False)


def paths(source: Source) -> Iterator[str | Path]:
    """The files of a log, in their order; those at a URL are strings."""
    if is_frame(source):
        raise ConfigError("expected a log of files; got a frame. Read it with the engine local, or write it to files.")
    for path in (
        source if isinstance(source, Sequence) and not isinstance(source, str) else [cast("str | Path", source)]
    ):
        yield from _paths(path)


def impressions_in(source: str | Path | Frame) -> int:
    """The number of impressions in a file or a frame, 0 where it cannot be read: what is wrong with it is told by reading."""
    try:
        with _unchecked(source) as data:
            if isinstance(data, Path):
                with data.open("rb") as lines:
                    return sum(1 for _ in lines)
            long = is_long(data.collect_schema().names())
            number = pl.col("impression_id").rle().len() if long else pl.len()
            return int(data.select(number).collect().item())
    except (LogError, *UNREADABLE):
        return 0


def times_in(source: str | Path | Frame) -> NDArray[np.float64] | None:
    """When the impressions of a file or a frame were, in Unix seconds, -inf where one has no time.

    None where there are no times, or where it cannot be read: what is wrong with it is told by reading it.  Shapes: -> [n].
    """
    try:
        with _unchecked(source) as data:
            if isinstance(data, Path):
                return json_lines.times(data)
            names = data.collect_schema().names()
            if "timestamp" not in names:
                return None
            run = pl.col("impression_id").rle_id()
            times = pl.col("timestamp").filter((run != run.shift(1)).fill_null(True)) if is_long(names) else "timestamp"
            pieces = data.select(times).collect_batches(maintain_order=True)
            found = [seconds(piece["timestamp"]).fill_null(-np.inf).to_numpy() for piece in pieces]
            return np.concatenate([np.zeros(0), *found])
    except (LogError, *UNREADABLE):
        return None


@contextmanager
def _unchecked(source: str | Path | Frame) -> Iterator[pl.LazyFrame | Path]:
    """A file or a frame of a log; JSON lines stay a path."""
    if isinstance(source, pl.DataFrame | pl.LazyFrame):
        yield source.lazy()
    elif isinstance(source, str | Path):
        with buckets.local(source) as here:
            yield _opened(here, _form(source) or "Parquet")
    else:
        frame: Any = source  # only these columns, since values of pandas are converted one by one
        some = ("impression_id", "item_id", "timestamp") if is_long(list(frame.columns)) else ("timestamp",)
        yield from_pandas(frame[[c for c in some if c in frame.columns]], _checked_column).lazy()


def longest_list(source: Source) -> int:
    """The places of the longest list of a log, 0 where none can be read: what is wrong with it is told by reading it."""
    longest = 0
    for batch in batches(source):
        if batch.frame is None or not len(batch.frame):
            continue
        long = is_long(batch.frame.columns)
        places = batch.frame["position"] if long else batch.frame["items"].list.len()
        longest = max(longest, int(cast("int | None", places.max()) or 0))
    return longest


def _inside(folder: Path) -> list[Path]:
    """The files of a folder that can be a log's; what is hidden is not looked at, nor are hidden folders, where half of a
    log may be that is written right now."""
    found = (p for p in folder.rglob("*") if p.suffix.lower() in FORMS)
    return sorted(p for p in found if not any(part.startswith(".") for part in p.relative_to(folder).parts))


def _matching(pattern: str) -> list[Path]:
    """What a pattern names: folders, and files with the ending of a log, or all files where none has one."""
    found = [Path(p) for p in sorted(glob(pattern, recursive=True))]
    logs = [p for p in found if p.is_dir() or _form(p)]
    return logs or found


def _at_url(url: str) -> list[str]:
    """The files at a URL, by the same rules."""
    try:
        found = buckets.files(url)
    except OSError as error:
        raise LogError(f"{error}. Expected a log at the URL.") from error
    if found == [url]:
        return found
    names = {name: name.removeprefix(url).split("/") for name in found if _form(name)}
    return [name for name, parts in names.items() if not any(part.startswith(".") for part in parts)]


def _paths(path: str | Path) -> Sequence[str | Path]:
    """The files at a path: itself, those of a folder, those of a pattern."""
    path = plain(path)
    if not isinstance(path, str | Path) or str(path) == "":
        got = "nothing" if isinstance(path, str) else type(path).__name__
        raise ConfigError(f"expected the path of a log, or a frame of polars or pandas; got {got}.")
    paths: Sequence[str | Path]
    try:
        if isinstance(path, str) and buckets.is_url(path):
            paths = _at_url(path)
        else:
            there = [Path(path)] if os.path.lexists(path) else _matching(str(path))
            # A pattern may name a folder and what is in it.
            paths = list(dict.fromkeys(p for f in there for p in (_inside(f) if f.is_dir() else [f])))
    except InputError:
        raise
    except (OSError, ValueError, re.error) as error:  # a name too long, a folder that may not be read
        raise LogError(
            f"{str(path)[:200]}: cannot be accessed: {getattr(error, 'strerror', None) or error}."
        ) from error
    if not paths:
        if (folder := Path(path)).is_dir() and any(folder.glob("journal-*-*.bin")):
            raise LogError(
                f"{path} has journals of a served log and no segment yet. A server that runs makes segments by itself; after "
                f"its end make them: tandemrank seal {path} --policies POLICIES --everything."
            )
        raise LogError(
            f"expected a file of Parquet, CSV or JSON lines, or a folder or pattern that has some; nothing is at {path}."
        )
    return paths


def _checked_column(name: str, values: list[Any]) -> pl.Series:
    column, wrong = column_of(name, values)
    if wrong and name in (*WIDE, *LONG):
        raise LogError(f"row {wrong[0].rows[0]}, column {name}: {wrong[0].message}")
    return column


def _pieces(data: pl.LazyFrame, form: str, batch: int, every_column: bool) -> Iterator[Piece]:
    """The rows of a Parquet or CSV file or a frame, and what is wrong with them so far."""
    schema = data.collect_schema()
    if form == "CSV":
        if "items" in schema:
            raise LogError("a CSV cannot hold the lists of a wide log. Write JSON lines, Parquet, or the long form.")
        schema = pl.Schema({c: pl.Int64 if c in LONG else t for c, t in schema.items()})
    if wrong := schema_problems(schema):
        yield pl.DataFrame(schema=schema), wrong
        return
    if not every_column:
        data = data.select(c for c in (LONG if is_long(schema.names()) else (*WIDE, KEY)) if c in schema)
    arrays = [c for c, t in schema.items() if isinstance(t, pl.Array) and c in (*WIDE, *LONG)]  # as NumPy's become
    data = data.with_columns(pl.col(arrays).arr.to_list())
    pieces: Iterator[pl.DataFrame] = data.collect_batches(chunk_size=batch, maintain_order=True)
    types: dict[str, type[pl.DataType]] = {}
    for frame in _uncut(pieces) if is_long(schema.names()) else pieces:
        yield _typed(frame, types) if form == "CSV" else (frame, [])


def _uncut(pieces: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """A long log in pieces that end where an impression ends."""
    carry: pl.DataFrame | None = None
    for piece in pieces:
        piece = piece if carry is None else pl.concat([carry, piece])
        run = piece["impression_id"].rle_id().to_numpy()
        cut = int(np.searchsorted(run, run[-1])) if len(run) else 0
        carry = piece[cut:]
        if cut:
            yield piece[:cut]
    if carry is not None and len(carry):
        yield carry


def _typed(frame: pl.DataFrame, types: dict[str, type[pl.DataType]]) -> Piece:
    """The text columns of a CSV as what they are; the first batch decides whether ids are integers."""
    found: list[Problem] = []
    columns = []
    for column in [c for c in LONG if c in frame.columns and c != "timestamp"]:
        text = frame[column]
        if column in IDS:
            found += problem_unless(
                ~text.str.contains("\ufffd", literal=True).fill_null(False), text, column, "UTF-8 text"
            )
            if column not in types:
                number = text.cast(pl.Int64, strict=False)
                exact = (number.cast(pl.String) == text).fill_null(False) | text.is_null()  # "007" is no integer
                types[column] = pl.Int64 if exact.all() else pl.String
        else:
            text = text.replace({"true": "1", "false": "0", "True": "1", "False": "0"}) if column == "click" else text
            types[column] = pl.Int64 if column == "position" else pl.Float64
        values = text.cast(types[column], strict=False)
        words = "an integer" if types[column] == pl.Int64 else "a number"
        found += problem_unless(values.is_not_null() | text.is_null(), text, column, words)
        columns.append(values.alias(column))
    return frame.with_columns(columns), found
