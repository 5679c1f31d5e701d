"""Logs of published data: the Open Bandit Dataset, and CLAX sessions."""

from collections.abc import Sequence

import polars as pl

from tandemrank.logs.importers.tables import Log, need, text, whole


def obd(frames: Sequence[pl.DataFrame], click_names: frozenset[str]) -> Log:
    """Open Bandit: each position is a query of its own that shows one item, with the logged P(item | position).

    A row's propensity_score is the chance of the item at its position. With one place per impression and examination 1
    that is exactly rho_0; the position's own attractiveness is then part of the query's click rate.
    """
    columns = ["item_id", "position", "click", "propensity_score"]
    parts = [
        whole(need(f, columns, "obd"), columns, "obd").select(
            query_id=pl.concat_str(pl.lit("position "), pl.col("position").cast(pl.String)),
            items=pl.concat_list(pl.col("item_id").cast(pl.Int64)),
            clicks=pl.concat_list(pl.col("click").cast(pl.UInt8)),
            propensities=pl.concat_list(pl.col("propensity_score").cast(pl.Float64)),
        )
        for f in frames
    ]
    return Log(
        pl.concat(parts),
        0,
        (
            "every position is a query of its own with lists of one item: P(item | position) is then its propensity rho_0",
            "use --list-length 1 and a curve of one rank; examination across positions cannot be asked",
        ),
    )


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
