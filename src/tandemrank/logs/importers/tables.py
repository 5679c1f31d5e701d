"""What every importer needs: a file as a frame, nested fields, lists joined with their clicks."""

import json
from codecs import BOM_UTF8
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import polars as pl

from tandemrank._base.files import regular
from tandemrank._base.frames import UNREADABLE
from tandemrank.errors import LogError

MOST_NAMES = 10  # of events, in a note


@dataclass(frozen=True)
class Log:
    """A wide log, the clicks that found no impression, and notes."""

    frame: pl.DataFrame
    unmatched: int
    notes: tuple[str, ...]


def read(path: Path) -> pl.DataFrame:
    """A file of JSON lines, a JSON array, CSV or Parquet, by its ending."""
    kind = path.suffix.lower()
    try:
        regular(path)
        if kind == ".parquet":
            return pl.read_parquet(path, glob=False)
        if kind == ".csv":
            return pl.read_csv(path, infer_schema_length=None, glob=False)
        if kind in (".jsonl", ".ndjson"):
            return pl.read_ndjson(_without_mark(path), infer_schema_length=None)
        if kind == ".json":
            return pl.read_json(_without_mark(path), infer_schema_length=None)
    except (*UNREADABLE, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        reason = (_damaged_line(path) if kind in (".jsonl", ".ndjson") else None) or reason
        raise LogError(f"cannot read {path}: {reason}. Expected a whole file of that kind.") from error
    raise LogError(f"{path} ends in {kind!r}: expected .jsonl, .ndjson, .json, .csv or .parquet.")


def _without_mark(path: Path) -> Path | BytesIO:
    """The file, or its bytes after the mark that some systems put before UTF-8."""
    with path.open("rb") as file:
        if file.read(len(BOM_UTF8)) != BOM_UTF8:
            return path
        return BytesIO(file.read())


def _damaged_line(path: Path) -> str | None:
    """Which line is no JSON, in words; None where none is, or where the file cannot be read at all."""
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
            try:
                json.loads(line or "null")
            except ValueError:
                return f"line {number} is no JSON ({line[:40]!r})"
    except (OSError, UnicodeDecodeError):
        return None
    return None


def need(frame: pl.DataFrame, columns: Sequence[str], what: str) -> pl.DataFrame:
    """The frame, refused where a column is missing."""
    if missing := [c for c in columns if c not in frame.columns]:
        raise LogError(
            f"{what}: expected the columns {', '.join(columns)}; {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} "
            f"not there, the columns are {', '.join(frame.columns)}."
        )
    return frame


def whole(frame: pl.DataFrame, columns: Sequence[str], what: str) -> pl.DataFrame:
    """The frame, refused where a row has no value in one of its columns: a file that was cut off, for one."""
    if nulls := [c for c in columns if frame[c].null_count()]:
        at = int(frame[nulls[0]].is_null().arg_max() or 0)
        raise LogError(f"{what}: expected {nulls[0]} in every row; row {at} has none. Leave such rows out.")
    return frame


def field_of(frame: pl.DataFrame, path: str) -> pl.Expr:
    """A nested field as a column, null where some step of the path is missing."""
    name, *rest = path.split(".")
    if name not in frame.columns:
        return pl.lit(None)
    expression, dtype = pl.col(name), frame.schema[name]
    for part in rest:
        if not isinstance(dtype, pl.Struct) or part not in {f.name for f in dtype.fields}:
            return pl.lit(None)
        dtype = next(f.dtype for f in dtype.fields if f.name == part)  # type: ignore[assignment]
        expression = expression.struct.field(part)
    return expression


def text_of(frame: pl.DataFrame, column: str) -> pl.Series:
    """A column as text; nulls where it is missing."""
    return frame.select(text(field_of(frame, column)).alias(column)).to_series()


def text(expression: pl.Expr) -> pl.Expr:
    return expression.cast(pl.String)


def joined(shown: pl.DataFrame, clicked: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Lists with their clicks: `shown` has impression, query_id, items (and more), `clicked` has impression, item.

    Returns the wide rows and how many clicks belong to no shown item: those that name no impression or no item, too. An item
    clicked twice is clicked.
    """
    named = clicked.drop_nulls()
    pairs = named.unique()
    flat = shown.select("impression", "items").explode("items", empty_as_null=False).rename({"items": "item"})
    marked = flat.join(pairs.with_columns(click=pl.lit(1, pl.UInt8)), on=["impression", "item"], how="left",
                       maintain_order="left")  # fmt: skip
    clicks = marked.with_columns(pl.col("click").fill_null(0)).group_by("impression", maintain_order=True)
    wide = shown.join(clicks.agg(clicks=pl.col("click")), on="impression", how="left", maintain_order="left")
    wide = wide.filter(pl.col("items").list.len() > 0)
    found = int(marked["click"].fill_null(0).sum())
    return wide, len(pairs) - found + len(clicked) - len(named)


def first_of_each(shown: pl.DataFrame) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """The first impression of every id, and notes of those left out; an item's second place in a list is left out."""
    named = shown.drop_nulls("impression")
    once = named.unique("impression", keep="first", maintain_order=True)
    lists = pl.col("items").list.drop_nulls().list.unique(maintain_order=True)
    again, nameless = len(named) - len(once), len(shown) - len(named)
    notes = [f"{again:,} impressions have an id that was there before, and count once"] if again else []
    notes += [f"{nameless:,} impressions have no id, so no click can be theirs, and are left out"] if nameless else []
    return once.with_columns(lists), tuple(notes)


def no_click(names: pl.Series, click_names: frozenset[str]) -> tuple[str, ...]:
    """What to know where no event of the files has the name of a click: which names there are."""
    if names.is_in(list(click_names)).any():
        return ()
    found = [str(name) for name in names.drop_nulls().unique().sort().head(MOST_NAMES)]
    there = f"the events are named {', '.join(found)}" if found else "there are no such events"
    return (f"no event is named {' or '.join(sorted(click_names))}; {there}. Say which are clicks: --click-name",)


def moment(frame: pl.DataFrame, path: str) -> pl.Expr:
    """A time as text in ISO form, of one in ISO form or in milliseconds since 1970."""
    said = text(field_of(frame, path))
    milliseconds = said.cast(pl.Int64, strict=False).cast(pl.Datetime("ms"))
    return pl.coalesce(milliseconds.dt.strftime("%Y-%m-%dT%H:%M:%S%.3fZ"), said)
