"""CLAX sessions."""

from collections.abc import Sequence

import polars as pl

from tandemrank.logs.importers.tables import Log, need, text


def clax(frames: Sequence[pl.DataFrame], click_names: frozenset[str]) -> Log:
    """CLAX sessions: arrays `query_doc_ids`, `positions`, `mask`, `clicks`, and perhaps `query_id`."""
    parts, has_query = [], True
    for f in frames:
        need(f, ["query_doc_ids", "clicks"], "clax")
        has_query &= "query_id" in f.columns
        rows = f.with_columns(
            session=pl.int_range(pl.len()),
            query_id=text(pl.col("query_id")) if "query_id" in f.columns else pl.lit("all"),
        )
        lists = [c for c in ("query_doc_ids", "positions", "mask", "clicks") if c in f.columns]
        flat = rows.select("session", "query_id", *lists).explode(lists, empty_as_null=False)
        flat = flat.filter(pl.col("mask").cast(pl.Boolean)) if "mask" in lists else flat
        flat = flat.sort("session", "positions", maintain_order=True) if "positions" in lists else flat
        parts.append(
            flat.group_by("session", maintain_order=True).agg(
                query_id=pl.col("query_id").first(),
                items=pl.col("query_doc_ids").cast(pl.Int64),
                clicks=pl.col("clicks").cast(pl.UInt8),
            )
        )
    notes = ["no propensities: value other pairs with fitted ones, and only if the ranking varies"]
    if not has_query:
        notes.append("the sessions name no query: a query_doc_id stands for both, and all sessions are one query")
    return Log(pl.concat(parts).drop("session"), 0, tuple(notes))
