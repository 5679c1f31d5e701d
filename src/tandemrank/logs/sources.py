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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from glob import glob
from pathlib import Path, PurePosixPath
from typing import Any, TypeGuard, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base import buckets
from tandemrank._base.files import plain, regular
from tandemrank._base.frames import UNREADABLE, PandasFrame, damage_of, from_pandas, is_pandas
from tandemrank._base.ids import IdRegistry
from tandemrank._base.results import Result
from tandemrank.errors import ConfigError, InputError, LogError
from tandemrank.logs import json_lines
from tandemrank.logs.checks import KnownFiles, KnownImpressions, examine, first_rows, impressions_of
from tandemrank.logs.impressions import FlatImpressions
from tandemrank.logs.json_lines import Piece, column_of
from tandemrank.logs.layouts import Layout, are_numbers, in_order, label_of
from tandemrank.logs.schema import (
    GRID,
    IDS,
    KEY,
    LONG,
    NO_ROWS,
    WIDE,
    Problem,
    check_columns,
    is_long,
    ours,
    problem_unless,
    schema_problems,
    seconds,
)

Frame = pl.DataFrame | pl.LazyFrame | PandasFrame
Files = str | Path | Sequence[str | Path] | Frame


@dataclass(frozen=True)
class View:
    """How a log, or a part of it, is read: its impressions from one time on and before another, in Unix seconds, and its
    positions as ranks in the order of a layout."""

    log: Any  # `Files`; of a part, one of these
    since: float = -np.inf
    until: float = np.inf
    words: str = ""
    layout: Layout = ()

    @property
    def is_period(self) -> bool:
        """Whether impressions may be outside."""
        return self.since > -np.inf or self.until < np.inf

    def inside(self, times: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Which times are.  Shapes: [n] -> [n]."""
        found: NDArray[np.bool_] = (times >= self.since) & (times < self.until)
        return found

    def rows(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The rows of its impressions; in the long form the first row of an impression says when it was."""
        if not self.is_period or not len(frame):
            return frame
        return frame.filter(self.inside(_times(frame)[first_rows(frame)])[impressions_of(frame)])


LogPart = str | Path | Frame | View

MOST_ROWS = 10**9  # of a batch
FORMS = {".parquet": "Parquet", ".csv": "CSV", ".jsonl": "JSON lines", ".ndjson": "JSON lines", ".json": "JSON lines"}


@dataclass(frozen=True, kw_only=True, repr=False)
class Log(Result):
    """A log that was read once, without a problem: where it is, and how large. Whatever takes a log takes it.

    `clicks` and `impressions` are weighted where the log has weights.
    """

    source: Files | View
    impressions: float
    queries: int
    items: int
    clicks: float
    list_length: int

    def summary(self) -> dict[str, Any]:
        where = [str(part) for part in parts(self.source) if isinstance(part, str | Path)]
        return super().summary() | {"source": where or "a frame"}

    def _lines(self) -> list[str]:
        return [
            f"a log of {self.impressions:,.0f} impressions and {self.clicks:,.0f} clicks: {self.queries:,} queries, "
            f"{self.items:,} items, lists of up to {self.list_length}"
        ]


Source = Files | View | Log


def plain_source(source: Source) -> Files | View:
    """Where a log is."""
    return source.source if isinstance(source, Log) else source


@dataclass(frozen=True)
class Batch:
    """Some rows of a log: their file, the number of the first of them there, what is known to be wrong with them, and in which
    order their positions are ranks.

    `frame` is None where the file, or what is left of it, cannot be used at all. Every file has a batch, if an empty one.
    """

    name: str
    first: int
    frame: pl.DataFrame | None
    found: list[Problem]
    layout: Layout = ()


def batches(
    source: Source,
    batch: int = 200_000,
    *,
    every_column: bool = False,
    impressions: KnownImpressions | None = None,
    also: Mapping[str, str] | None = None,
) -> Iterator[Batch]:
    """The log in pieces of about `batch` rows, with the columns needed or with every one; an impression is never cut.

    `impressions` hears of all impressions that have an id. `also`: other columns that are needed, and which of ours each is
    like; a file without one is refused.
    """
    if not 1 <= batch <= MOST_ROWS:
        raise ConfigError(f"batch: expected from 1 to {MOST_ROWS:,} rows; got {batch}.")
    files, known = KnownFiles(), impressions or KnownImpressions()
    for whole in parts(source):
        view = whole if isinstance(whole, View) else View(whole)
        part, layout = view.log, view.layout
        name, form = (str(part), _form(part) or "Parquet") if isinstance(part, str | Path) else ("the frame", "a frame")
        name += view.words
        first, any_piece = 0, False
        try:
            files.refuse_repeated(part)
            with _opened(part) as data:
                pieces = (
                    json_lines.pieces(data, batch, every_column, also or {})
                    if isinstance(data, Path)
                    else _pieces(data, form, batch, every_column, also or {})
                )
                for frame, found in pieces:
                    usable = all(wrong.count for wrong in found)
                    if not found:
                        frame = view.rows(frame)
                    if usable:
                        found += known.problems(frame)
                    yield Batch(name, first, frame if usable else None, found, layout)
                    first, any_piece = first + len(frame), True
            if not any_piece:
                yield Batch(name, 0, pl.DataFrame(schema=dict.fromkeys(WIDE[:3], pl.Int64)), [])
        except LogError as error:
            yield Batch(name, first, None, [Problem("", NO_ROWS, str(error))])
        except UNREADABLE as error:
            message = f"cannot be read as {form} after row {first}: {error}. Is it whole, and is it {form}?"
            yield Batch(name, first, None, [Problem("", NO_ROWS, message)])


class EmptyLogError(LogError):
    """The log has no impressions."""

    def __init__(self, name: object) -> None:
        super().__init__(f"{name}: expected a log with impressions; it is empty. Check the path and how it was made.")


def sound_batches(source: Source, batch: int = 200_000, **how: Any) -> Iterator[tuple[Batch, pl.DataFrame]]:
    """The batches of `batches` that have rows, each with these; the first problem of the log is refused by its place."""
    name, is_empty = "the log", True
    for piece in batches(source, batch, **how):
        if piece.frame is None or piece.found:
            raise LogError(describe(piece, piece.found[0]))
        name = piece.name
        if len(piece.frame):
            is_empty = False
            yield piece, piece.frame
    if is_empty:
        raise EmptyLogError(name)


def impressions_in(piece: Batch, frame: pl.DataFrame, names: IdRegistry, K: int | None = None) -> FlatImpressions:
    """The impressions of rows of a batch; refuses the first problem by its place."""
    found, shown = examine(frame, names, K, piece.layout)
    if shown is None:
        raise LogError(describe(piece, found[0]))
    return shown


def describe(batch: Batch, wrong: Problem) -> str:
    """A problem in words, with its file and its row there."""
    row = f", row {batch.first + wrong.rows[0]}" if wrong.count else ""
    column = f", column {wrong.column}" if wrong.column else ""
    more = f" {wrong.count} rows of this batch have the problem." if wrong.count > 1 else ""
    return f"{batch.name}{row}{column}: {wrong.message}{more}"


def is_frame(source: object) -> TypeGuard[Frame]:
    """Whether a log is a frame, of polars or of pandas."""
    return isinstance(source, pl.DataFrame | pl.LazyFrame) or is_pandas(source)


def parts(source: Source) -> Iterable[LogPart]:
    """The frame, or the files of a log, in their order."""
    source = plain_source(source)
    if isinstance(source, View):
        return [replace(source, log=part) for part in parts(source.log)]
    return [source] if is_frame(source) else paths(source)


def during(log: Source, *, since: str | float | None = None, until: str | float | None = None) -> Source:
    """The impressions of a log from a time on, or before one: a date, an ISO text, Unix seconds, or a share such as "70%": the
    time before which so many of its impressions were. Those without a time are the oldest."""
    if since is None and until is None:
        return log
    if isinstance(log, View) and log.is_period:
        raise ConfigError("expected a log without a period; got one of a period. Give both ends at once.")
    times = np.sort(np.concatenate([np.zeros(0), *map(times_in, parts(log))]))
    if not np.isfinite(times).any():
        raise LogError("expected a log with times to take a part of; no impression has a `timestamp`.")
    low, high = (_moment(name, x, times) for name, x in (("since", since), ("until", until)))
    words = "".join(f" {name} {x}" for name, x in (("since", since), ("until", until)) if x is not None)
    found = View(log, -np.inf if low is None else low, np.inf if high is None else high, words)
    if not found.inside(times).any():
        said = f"{since or 'its begin'} to {until or 'its end'}"
        raise LogError(f"expected impressions in the period, {said}; the log has none there.")
    return found


def period_in(source: Source) -> tuple[float, float] | None:
    """The first and the last time of a log, in Unix seconds; None where it has none."""
    times = np.concatenate([np.zeros(0), *map(times_in, parts(source))])
    times = times[np.isfinite(times)]
    return (float(times.min()), float(times.max())) if len(times) else None


def days_of(period: tuple[float, float] | None) -> str:
    """The days of a log, by its first and last time in Unix seconds; empty where they are not known."""
    try:
        days = [datetime.fromtimestamp(moment, UTC).date().isoformat() for moment in period or ()]
    except (OverflowError, OSError, ValueError):  # beyond the calendar
        return ""
    return " to ".join(dict.fromkeys(days))


def placed(log: Source, layout: Layout) -> Source:
    """A log whose positions are ranks in this order."""
    if not layout:
        return log
    source = plain_source(log)
    return replace(source, layout=layout) if isinstance(source, View) else View(source, layout=layout)


def layout_of(source: Source) -> Layout:
    """The positions of a log that are not ranks, in an order of their own: `layouts.in_order`."""
    found = []
    for part in parts(source):
        try:
            with _opened(part.log if isinstance(part, View) else part) as data:
                if isinstance(data, Path) or not is_long(names := data.collect_schema().names()):
                    return ()
                labels = label_of(names)
                if labels is None or are_numbers(data.select(labels).head(1).collect().to_series()):
                    return ()
                found.append(data.select(pl.col("impression_id").rle_id(), labels).collect())
        except (LogError, *UNREADABLE):
            continue  # what is wrong with it is told by reading it
    return in_order(found)


def _moment(name: str, said: str | float | None, times: NDArray[np.float64]) -> float | None:
    """A time in Unix seconds; a share is that of the times.  Shapes: times [n], sorted."""
    if said is None:
        return None
    text = str(said).strip()
    share = re.fullmatch(r"(\d+(?:\.\d*)?)\s*%", text)
    if share and float(share[1]) <= 100:
        at = round(len(times) * float(share[1]) / 100)
        return float(np.inf if at >= len(times) else times[at])
    number = pl.Series([text]).cast(pl.Float64, strict=False)
    found = number[0] if number[0] is not None else seconds(pl.Series([text]))[0]
    if found is None or not np.isfinite(found):
        raise ConfigError(f"{name}: expected a date, a time, Unix seconds or a share such as 70%; got {said!r}.")
    return float(found)


def _times(frame: pl.DataFrame) -> NDArray[np.float64]:
    """When rows were, -inf where one does not say.  Shapes: -> [n]."""
    if "timestamp" not in frame.columns:
        return np.full(len(frame), -np.inf)
    return seconds(frame["timestamp"]).fill_null(-np.inf).to_numpy()


def as_polars(frame: PandasFrame) -> pl.DataFrame:
    """A log in a pandas frame; refuses values that do not fit their column."""

    def column(name: str, values: list[Any]) -> pl.Series:
        found, wrong = column_of(name, values)
        if wrong:
            raise LogError(f"row {wrong[0].rows[0]}, column {name}: {wrong[0].message}")
        return found

    return from_pandas(frame, column)


@contextmanager
def _opened(part: LogPart) -> Iterator[pl.LazyFrame | Path]:
    """A file or a frame of a log as rows; JSON lines stay a path."""
    if not isinstance(part, str | Path):
        yield (as_polars(part) if is_pandas(part) else cast("pl.DataFrame | pl.LazyFrame", part)).lazy()
        return
    form = _form(part) or "Parquet"
    with ExitStack() as stack:
        try:
            here = regular(stack.enter_context(buckets.local(part)))
            damage = damage_of(here) if form == "Parquet" else None
        except OSError as error:  # a URL that does not answer, a pipe
            raise LogError(f"cannot be read: {error.strerror or error}.") from error
        if damage:
            raise LogError(damage)
        if form == "JSON lines":
            yield here
        elif form == "CSV":
            # All text, so that a wrong value is found here with its row and column; undecodable bytes are marked.
            yield pl.scan_csv(here, glob=False, infer_schema=False, encoding="utf8-lossy")
        else:
            yield pl.scan_parquet(here, glob=False)


def _form(path: str | Path) -> str | None:
    return FORMS.get(PurePosixPath(path).suffix.lower())


def paths(source: Files) -> Iterator[str | Path]:
    """The files of a log, in their order; those at a URL are strings."""
    if is_frame(source):
        raise ConfigError("expected a log of files; got a frame. Read it with the engine local, or write it to files.")
    for path in (
        source if isinstance(source, Sequence) and not isinstance(source, str) else [cast("str | Path", source)]
    ):
        yield from _paths(path)


def times_in(part: LogPart) -> NDArray[np.float64]:
    """When the impressions of a file or a frame were, in Unix seconds, -inf where one has no time.

    None where it cannot be read: what is wrong with it is told by reading it.  Shapes: -> [n].
    """
    if isinstance(part, View):
        times = times_in(part.log)
        return times[part.inside(times)]
    try:
        with _opened(part) as data:
            if isinstance(data, Path):
                return json_lines.times(data)
            names = data.collect_schema().names()
            if is_long(names):
                run = pl.col("impression_id").rle_id()
                data = data.filter((run != run.shift(1)).fill_null(True))
            if "timestamp" not in names:
                return np.full(data.select(pl.len()).collect().item(), -np.inf)
            pieces = data.select("timestamp").collect_batches(maintain_order=True)
            return np.concatenate([np.zeros(0), *map(_times, pieces)])
    except (LogError, *UNREADABLE):
        return np.zeros(0)


def _paths(path: str | Path) -> Sequence[str | Path]:
    """The files at a path: itself, those of a folder, those of a pattern."""
    path = plain(path)
    if not isinstance(path, str | Path) or str(path) == "":
        got = "nothing" if isinstance(path, str) else type(path).__name__
        raise ConfigError(f"expected the path of a log, or a frame of polars or pandas; got {got}.")
    try:
        found = _at_url(str(path)) if buckets.is_url(path) else _here(path)
    except InputError:
        raise
    except (OSError, ValueError, re.error) as error:  # a name too long, a folder that may not be read
        why = getattr(error, "strerror", None) or error
        raise LogError(f"{str(path)[:200]}: cannot be accessed: {why}.") from error
    if not found and Path(path).is_dir() and any(Path(path).glob("journal-*-*.bin")):
        raise LogError(
            f"{path} has journals of a served log and no segment yet. A server that runs makes segments by itself; after "
            f"its end make them: tandemrank seal {path} --policies POLICIES --everything."
        )
    if not found:
        raise LogError(
            f"expected a file of Parquet, CSV or JSON lines, or a folder or pattern that has some; nothing is at {path}."
        )
    return found


def _here(path: str | Path) -> list[Path]:
    """A file, the files of a folder, or what a pattern names: folders, and files of a form of logs, or all where none is."""
    there = [Path(path)]
    if not os.path.lexists(path):
        named = [Path(p) for p in sorted(glob(str(path), recursive=True))]
        there = [p for p in named if p.is_dir() or _form(p)] or named
    files: dict[Path, None] = {}  # a pattern may name a folder and what is in it
    for place in there:
        inside = (
            sorted(p for p in place.rglob("*") if _belongs(p, p.relative_to(place).as_posix()))
            if place.is_dir()
            else [place]
        )
        files.update(dict.fromkeys(inside))
    return list(files)


def _at_url(url: str) -> list[str]:
    """The files at a URL, by the same rules."""
    try:
        found = buckets.files(url)
    except OSError as error:
        raise LogError(f"{error}. Expected a log at the URL.") from error
    return found if found == [url] else [name for name in found if _belongs(name, name.removeprefix(url))]


def _belongs(name: str | Path, inside: str) -> bool:
    """Whether a file can be a log's; not what is hidden in its folder, where half of a log may be that is written right now."""
    return _form(name) is not None and not any(part.startswith(".") for part in inside.split("/"))


def _pieces(data: pl.LazyFrame, form: str, batch: int, every_column: bool, also: Mapping[str, str]) -> Iterator[Piece]:
    """The rows of a Parquet or CSV file or a frame, and what is wrong with them so far."""
    schema = data.collect_schema()
    if form == "CSV":
        if "items" in schema:
            raise LogError(
                "a CSV cannot hold lists. Give it a row per shown item (impression_id, query_id, item_id, position, click), "
                "or write Parquet or JSON lines."
            )
        known, _ = ours(schema.names())
        schema = pl.Schema({c: pl.Int64 if c in known else t for c, t in schema.items()})
    if wrong := schema_problems(schema):
        yield pl.DataFrame(schema=schema), wrong
        return
    check_columns(schema.names(), also)
    if not every_column:
        data = data.select(c for c in dict.fromkeys((*ours(schema.names())[0], KEY, *also)) if c in schema)
    arrays = [
        c for c, t in schema.items() if isinstance(t, pl.Array) and c in (*WIDE, *LONG, *also)
    ]  # as NumPy's become
    data = data.with_columns(pl.col(arrays).arr.to_list())
    pieces: Iterator[pl.DataFrame] = data.collect_batches(chunk_size=batch, maintain_order=True)
    types: dict[str, type[pl.DataType]] = {}
    for frame in _uncut(pieces) if is_long(schema.names()) else pieces:
        yield _typed(frame, types, also) if form == "CSV" else (frame, [])


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


def _typed(frame: pl.DataFrame, types: dict[str, type[pl.DataType]], also: Mapping[str, str]) -> Piece:
    """The text columns of a CSV as what they are; the first batch decides whether ids are integers."""
    found: list[Problem] = []
    columns = []
    known, _ = ours(frame.columns)
    for column in dict.fromkeys(c for c in (*known, *also) if c in frame.columns and c != "timestamp"):
        text = frame[column]
        if column == "position" and types.setdefault(column, pl.Int64 if are_numbers(text) else pl.String) == pl.String:
            continue
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
            types[column] = pl.Int64 if column in ("position", "step", *GRID) else pl.Float64
        values = text.cast(types[column], strict=False)
        words = "an integer" if types[column] == pl.Int64 else "a number"
        found += problem_unless(values.is_not_null() | text.is_null(), text, column, words)
        columns.append(values.alias(column))
    return frame.with_columns(columns), found
