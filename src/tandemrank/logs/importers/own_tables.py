"""Any table: one row per shown item (long) or per impression (wide), and columns that become a part of the query.

The context of an impression (a device, an hour, a page) is a part of its query: what people want depends on both.
"""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.importers.tables import Log, need, whole
from tandemrank.logs.schema import LONG, WIDE


def long(frames: Sequence[pl.DataFrame], click_names: frozenset[str]) -> Log:
    """One row per shown item: `impression_id, query_id, item_id, position, click`, perhaps `propensity` and more.

    The rows of an impression may lie anywhere; positions say the order alone, so they may start at 0 or have gaps.
    """
    rows = pl.concat([need(f, LONG[:5], "long") for f in frames], how="diagonal_relaxed")
    whole(rows, LONG[:5], "long")
    rows = rows.with_columns(_positions(rows["position"]), click=_clicks(rows["click"]))
    # An item that is there twice, shown and then clicked, say, has its first place and was clicked.
    pair = ["impression_id", "item_id"]
    rows = rows.with_columns(pl.col("click").max().over(pair))
    once = rows.sort("position", maintain_order=True).unique(pair, keep="first", maintain_order=True)
    again = len(rows) - len(once)
    more = {"propensity": "propensities"}
    first = [c for c in ("weight", "timestamp", "policy") if c in rows.columns]
    wide = once.group_by("impression_id", maintain_order=True).agg(
        pl.col("query_id").first(),
        pl.col("query_id").n_unique().alias("_queries"),
        pl.col("item_id").alias("items"),
        pl.col("click").alias("clicks"),
        *[pl.col(name).alias(ours) for name, ours in more.items() if name in rows.columns],
        *[pl.col(name).first() for name in first],
        pl.col("position").is_duplicated().any().alias("_tied"),
        (pl.col("position").max() - pl.col("position").min().clip(upper_bound=1) >= pl.len()).alias("_moved"),
    )
    if (several := wide.filter(pl.col("_queries") > 1)).height:
        raise LogError(f"long: impression {several['impression_id'][0]!r} has rows of several queries; expected one.")
    notes = [] if "propensity" in rows.columns else ["no propensities: they are fitted to the lists, if these vary"]
    if again:
        notes.append(
            f"{again:,} rows showed an item again in its impression and were left out; a click on any of them counts"
        )
    if tied := int(wide["_tied"].sum()):
        notes.append(f"{tied:,} impressions have several items at one position: they are in the order of their rows")
    if moved := int(wide["_moved"].sum()):
        notes.append(
            f"{moved:,} impressions have gaps in their positions, or begin after 1: items move up, and ranks count the rows. "
            "A long log under our own names of columns needs no import, and keeps its positions"
        )
    return Log(wide.drop("_queries", "_tied", "_moved"), 0, tuple(notes))


def _positions(column: pl.Series) -> pl.Series:
    """Positions as numbers: as texts, 10 would come before 2."""
    if column.dtype.is_numeric():
        return column
    numbers = column.cast(pl.Float64, strict=False) if column.dtype == pl.String else column.clear(len(column))
    if numbers.null_count():
        row = int(numbers.is_null().arg_max() or 0)
        raise LogError(f"long: expected positions as numbers; row {row}, column position has {column[row]!r}.")
    return numbers


def _clicks(column: pl.Series) -> pl.Series:
    """Whether a row was clicked, by 0 and 1, a truth value or a count."""
    if not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
        raise LogError(f"long: expected clicks as 0 and 1; column click is {column.dtype}.")
    counts = column.cast(pl.Float64)
    if (wrong := ~(counts >= 0)).any():
        row = int(wrong.arg_max() or 0)
        raise LogError(f"long: expected clicks as 0 and 1; row {row}, column click has {column[row]!r}.")
    return (counts > 0).cast(pl.UInt8)


def wide(frames: Sequence[pl.DataFrame], click_names: frozenset[str]) -> Log:
    """One row per impression: `query_id, items, clicks`, perhaps `propensities` and more; other columns are left out."""
    rows = pl.concat([need(f, WIDE[:3], "wide") for f in frames], how="diagonal_relaxed")
    for column in WIDE[1:3]:
        if not isinstance(rows.schema[column], pl.List | pl.Array):
            raise LogError(
                f"wide: expected lists in column {column}; got {rows.schema[column]}. Is it one row per shown item? Then "
                "--from long."
            )
    notes = [] if "propensities" in rows.columns else ["no propensities: they are fitted to the lists, if these vary"]
    return Log(rows.select(c for c in WIDE if c in rows.columns), 0, tuple(notes))


BETWEEN = "|"  # of a query id and its context


def with_context(frame: pl.DataFrame, columns: Sequence[str], path: Path) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The frame with queries `query_id|context|...`, and the table of these queries with their context, as features."""
    if missing := [c for c in ("query_id", *columns) if c not in frame.columns]:
        raise LogError(
            f"{path}: --context needs the column {missing[0]!r}; the columns are {', '.join(frame.columns[:20])}."
        )
    if own := [c for c in columns if c in (*WIDE, *LONG) and c != "policy"]:
        raise ConfigError(f"--context takes columns that are no others of a log; {own[0]!r} is one.")
    for column in columns:
        if frame[column].dtype.is_nested():
            raise LogError(f"{path}, column {column}: expected numbers, text or categories; got {frame[column].dtype}.")
        if frame[column].null_count():
            row = int(frame[column].is_null().arg_max() or 0)
            raise LogError(f"{path}, row {row}, column {column}: expected the context of every row; it is missing.")
    parts = [pl.col(c).cast(pl.String) for c in ("query_id", *columns)]
    named = frame.with_columns(query_id=pl.concat_str(parts, separator=BETWEEN))
    if len(frame.select("query_id", *columns).unique()) != named["query_id"].n_unique():
        raise LogError(
            f"{path}: two queries with their context have one name, since some contain {BETWEEN!r}. Replace it there."
        )
    return named, named.select("query_id", *columns).unique("query_id", keep="first", maintain_order=True)
