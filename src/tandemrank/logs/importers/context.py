"""The context of an impression (a device, an hour, a page) as a part of its query: what people want depends on both."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.schema import LONG, WIDE

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
