"""Any table with one row per shown item."""

from collections.abc import Sequence

import polars as pl

from tandemrank.errors import LogError
from tandemrank.logs.importers.tables import Log, need, whole
from tandemrank.logs.schema import LONG


def long(frames: Sequence[pl.DataFrame], click_names: frozenset[str]) -> Log:
    """One row per shown item: `impression_id, query_id, item_id, position, click`, perhaps `propensity` and more.

    The rows of an impression may lie anywhere; positions say the order alone, so they may start at 0 or have gaps.
    """
    rows = pl.concat([need(f, LONG[:5], "long") for f in frames], how="diagonal_relaxed")
    whole(rows, LONG[:5], "long")
    if not (rows["click"].dtype.is_numeric() or rows["click"].dtype == pl.Boolean):
        raise LogError(f"long: expected clicks as 0 and 1; column click is {rows['click'].dtype}.")
    once = rows.unique(["impression_id", "item_id"], keep="first", maintain_order=True)
    again = len(rows) - len(once)
    more = {"propensity": "propensities"}
    first = [c for c in ("weight", "timestamp", "policy") if c in rows.columns]
    wide = (
        once.sort("position", maintain_order=True)
        .group_by("impression_id", maintain_order=True)
        .agg(
            pl.col("query_id").first(),
            pl.col("query_id").n_unique().alias("_queries"),
            pl.col("item_id").alias("items"),
            (pl.col("click").cast(pl.Float64) > 0).cast(pl.UInt8).alias("clicks"),
            *[pl.col(name).alias(ours) for name, ours in more.items() if name in rows.columns],
            *[pl.col(name).first() for name in first],
        )
    )
    if (several := wide.filter(pl.col("_queries") > 1)).height:
        raise LogError(f"long: impression {several['impression_id'][0]!r} has rows of several queries; expected one.")
    notes = [] if "propensity" in rows.columns else ["no propensities: they are fitted to the lists, if these vary"]
    if again:
        notes.append(f"{again:,} rows showed an item again in its impression and were left out")
    return Log(wide.drop("_queries"), 0, tuple(notes))
