"""What every importer needs: a file as a frame, nested fields, lists joined with their clicks."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tandemrank.errors import LogError


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
        if kind == ".parquet":
            return pl.read_parquet(path, glob=False)
        if kind == ".csv":
            return pl.read_csv(path, infer_schema_length=None, glob=False)
        if kind in (".jsonl", ".ndjson"):
            return pl.read_ndjson(path, infer_schema_length=None)
        if kind == ".json":
            return pl.read_json(path, infer_schema_length=None)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        reason = (_damaged_line(path) if kind in (".jsonl", ".ndjson") else None) or reason
        raise LogError(f"cannot read {path}: {reason}. Expected a whole file of that kind.") from error
    raise LogError(f"{path} ends in {kind!r}: expected .jsonl, .ndjson, .json, .csv or .parquet.")


def _damaged_line(path: Path) -> str | None:
    """Which line is no JSON, in words; None where none is, or where the file cannot be read at all."""
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
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


def text(expression: pl.Expr) -> pl.Expr:
    return expression.cast(pl.String)


def joined(shown: pl.DataFrame, clicked: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Lists with their clicks: `shown` has impression, query_id, items (and more), `clicked` has impression, item.

    Returns the wide rows and how many clicks belong to no shown item. An item clicked twice is clicked.
    """
    pairs = clicked.drop_nulls().unique()
    flat = shown.select("impression", "items").explode("items", empty_as_null=False).rename({"items": "item"})
    marked = flat.join(pairs.with_columns(click=pl.lit(1, pl.UInt8)), on=["impression", "item"], how="left",
                       maintain_order="left")  # fmt: skip
    clicks = marked.with_columns(pl.col("click").fill_null(0)).group_by("impression", maintain_order=True)
    wide = shown.join(clicks.agg(clicks=pl.col("click")), on="impression", how="left", maintain_order="left")
    wide = wide.filter(pl.col("items").list.len() > 0)
    found = int(marked["click"].fill_null(0).sum())
    return wide, len(pairs) - found


def first_of_each(shown: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The first impression of every id, and how many came again; an item's second place in a list is left out."""
    once = shown.unique("impression", keep="first", maintain_order=True)
    lists = pl.col("items").list.drop_nulls().list.unique(maintain_order=True)
    return once.with_columns(lists), len(shown) - len(once)


def came_again(count: int) -> tuple[str, ...]:
    return (f"{count} impressions came again under the same id and count once",) if count else ()


# --- the formats ------------------------------------------------------------------------------------------------------
