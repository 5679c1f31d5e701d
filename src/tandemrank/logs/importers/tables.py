"""The formats of tables: one row per shown item or per impression, with columns of their own.

long    any table of shown items       wide    any table of impressions
obd     Open Bandit                    clax    sessions of CLAX
"""

from collections.abc import Callable, Sequence

import polars as pl

from tandemrank.errors import LogError
from tandemrank.logs.importers.lists import CLICKS, LISTS, Ledger, as_log, ranked, with_clicks_of
from tandemrank.logs.schema import LONG, WIDE

Names = Sequence[str]  # of columns that the log keeps: rewards of items, and the context of an impression
Table = Callable[[Sequence[pl.DataFrame], Names, Names, Ledger], pl.DataFrame]


def long(frames: Sequence[pl.DataFrame], rewards: Names, context: Names, ledger: Ledger) -> pl.DataFrame:
    """One row per shown item: `impression_id, query_id, item_id, position, click`, perhaps `propensity` and more.

    The rows of an impression may lie anywhere.
    """
    rows = pl.concat([need(f, (*LONG[:5], *rewards, *context)) for f in frames], how="diagonal_relaxed")
    amounts = [_amounts(rows[name]) for name in rewards]
    rows = rows.with_columns(_positions(rows["position"]), _amounts(rows["click"]), *amounts)
    rows = rows.select(c for c in dict.fromkeys((*LONG, *rewards, *context)) if c in rows.columns)
    ledger.take(LISTS, rows["impression_id"].drop_nulls().n_unique())
    ledger.take(CLICKS, int((rows["click"] > 0).sum()))
    found = ranked(rows, ledger, most=("click", *rewards))
    ledger.drop(LISTS, "have no shown item that could be kept", ledger.given[LISTS] - found["impression_id"].n_unique())
    kept = int((found["click"] > 0).sum())
    ledger.drop(CLICKS, "repeat a click, or are on rows that are left out", ledger.given[CLICKS] - kept)
    for name in rewards:
        ledger.take(name, int((rows[name] > 0).sum()))
        ledger.drop(name, "are on rows that are left out", ledger.given[name] - int((found[name] > 0).sum()))
    return as_log(with_clicks_of(found, ledger, rewards), rewards, context)


def _positions(column: pl.Series) -> pl.Series:
    """Positions as numbers: as texts, 10 would come before 2."""
    if column.dtype.is_numeric():
        return column
    numbers = column.cast(pl.Float64, strict=False) if column.dtype == pl.String else column.clear(len(column))
    wrong = numbers.is_null() & column.is_not_null()
    if wrong.any():
        row = int(wrong.arg_max() or 0)
        raise LogError(f"expected positions as numbers; row {row}, column position has {column[row]!r}.")
    return numbers


def _amounts(column: pl.Series) -> pl.Series:
    """Clicks and rewards as numbers, by 0 and 1, a truth value, a count or an amount; a missing one is 0."""
    kind = "clicks as 0 and 1" if column.name == "click" else "a reward of 0 or more"
    if not (column.dtype.is_numeric() or column.dtype in (pl.Boolean, pl.Null)):
        raise LogError(f"expected {kind}; column {column.name} is {column.dtype}.")
    amounts = column.cast(pl.Float64).fill_null(0.0)
    wrong = ~((amounts >= 0) & amounts.is_finite())
    if wrong.any():
        row = int(wrong.arg_max() or 0)
        raise LogError(f"expected {kind}; row {row}, column {column.name} has {column[row]!r}.")
    return amounts


def wide(frames: Sequence[pl.DataFrame], rewards: Names, context: Names, ledger: Ledger) -> pl.DataFrame:
    """One row per impression: `query_id, items, clicks`, perhaps `propensities` and more; other columns are left out.

    Instead of `clicks`, 0 or 1 of each item, `clicked` may have the ids of those that were.
    """
    marked = [_marked(f) if "clicked" in f.columns and "clicks" not in f.columns else f for f in frames]
    rows = pl.concat([need(f, (*WIDE[:3], *rewards, *context)) for f in marked], how="diagonal_relaxed")
    for column in (*WIDE[1:3], *rewards):
        if not isinstance(rows.schema[column], pl.List | pl.Array):
            raise LogError(
                f"expected lists in column {column}; got {rows.schema[column]}. Is it one row per shown item? Then "
                "--from long."
            )
    ledger.take(LISTS, len(rows))
    rows = ledger.keep(LISTS, rows, pl.col("items").list.len() > 0, "show nothing")
    ledger.take(CLICKS, int(rows["clicks"].list.sum().sum()))
    return rows.select(c for c in dict.fromkeys((*WIDE, *rewards, *context)) if c in rows.columns)


def _marked(frame: pl.DataFrame) -> pl.DataFrame:
    """A frame with the ids of what was clicked as one with 0 or 1 of each item."""
    ids = pl.List(pl.String)
    rows = need(frame, ("items", "clicked")).with_row_index("row")
    flat = rows.select("row", item=pl.col("items").cast(ids)).explode("item", empty_as_null=False)
    several = isinstance(frame.schema["clicked"], pl.List | pl.Array)
    hit = rows.select("row", item=pl.col("clicked").cast(ids if several else pl.String))
    hit = (hit.explode("item") if several else hit).drop_nulls().unique().with_columns(clicks=pl.lit(1, pl.UInt8))
    flat = flat.join(hit, on=["row", "item"], how="left", maintain_order="left").with_columns(
        pl.col("clicks").fill_null(0)
    )
    lists = flat.group_by("row", maintain_order=True).agg("clicks")
    return rows.join(lists, on="row", how="left", maintain_order="left").drop("row", "clicked")


def obd(frames: Sequence[pl.DataFrame], rewards: Names, context: Names, ledger: Ledger) -> pl.DataFrame:
    """Open Bandit: each position is a query of its own that shows one item, with the logged P(item | position).

    A row's propensity_score is the chance of the item at its position. With one place per impression and examination 1
    that is exactly rho_0; the position's own attractiveness is then part of the query's click rate.
    """
    columns = ["item_id", "position", "click", "propensity_score"]
    rows = pl.concat([need(f, columns).select(columns) for f in frames], how="diagonal_relaxed")
    ledger.take(LISTS, len(rows))
    whole = pl.all_horizontal(pl.col(columns).is_not_null())
    rows = ledger.keep(LISTS, rows, whole, f"have no {' or no '.join(columns)}")
    ledger.take(CLICKS, int(rows["click"].cast(pl.UInt8).sum()))
    ledger.notes += [
        "every position is a query of its own with lists of one item: P(item | position) is then its propensity rho_0",
        "use --list-length 1 and a curve of one rank; examination across positions cannot be asked",
    ]
    return rows.select(
        query_id=pl.concat_str(pl.lit("position "), pl.col("position").cast(pl.String)),
        items=pl.concat_list(pl.col("item_id").cast(pl.Int64)),
        clicks=pl.concat_list(pl.col("click").cast(pl.UInt8)),
        propensities=pl.concat_list(pl.col("propensity_score").cast(pl.Float64)),
    )


def clax(frames: Sequence[pl.DataFrame], rewards: Names, context: Names, ledger: Ledger) -> pl.DataFrame:
    """CLAX sessions: arrays `query_doc_ids`, `positions`, `mask`, `clicks`, and perhaps `query_id`."""
    parts, has_query = [], True
    for f in frames:
        need(f, ["query_doc_ids", "clicks"])
        has_query &= "query_id" in f.columns
        rows = f.with_columns(
            session=pl.int_range(pl.len()),
            query_id=pl.col("query_id").cast(pl.String) if "query_id" in f.columns else pl.lit("all"),
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
    found = pl.concat(parts).drop("session")
    ledger.take(LISTS, sum(map(len, frames)))
    ledger.drop(LISTS, "show nothing", sum(map(len, frames)) - len(found))
    ledger.take(CLICKS, int(found["clicks"].list.sum().sum()))
    if not has_query:
        ledger.notes.append(
            "the sessions name no query: a query_doc_id stands for both, and all sessions are one query"
        )
    return found


def need(frame: pl.DataFrame, columns: Sequence[str]) -> pl.DataFrame:
    """The frame, refused where a column is missing."""
    if missing := [c for c in columns if c not in frame.columns]:
        raise LogError(
            f"expected the columns {', '.join(columns)}; {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not "
            f"there, the columns are {', '.join(frame.columns)}."
        )
    return frame
