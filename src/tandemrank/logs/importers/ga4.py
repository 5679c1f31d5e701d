"""Google Analytics 4, as BigQuery exports it."""

from collections.abc import Sequence

import polars as pl

from tandemrank.errors import LogError
from tandemrank.logs.importers.tables import Log, field_of, first_of_each, joined, need, text

BATCH = ("batch_page_id", "batch_ordering_id", "batch_event_index")  # the order of events that were sent together


def ga4(frames: Sequence[pl.DataFrame], click_names: frozenset[str]) -> Log:
    """Google Analytics 4: `view_item_list` shows items in the order of their index, the next `select_item` clicks."""
    rows = pl.concat([_ga4_rows(need(f, ["event_name", "event_timestamp", "items"], "ga4")) for f in frames])
    came = len(rows)
    rows = rows.unique(["name", "who", "list", "time", "batch", "items"], keep="first", maintain_order=True)
    # What a browser sends together has one time; nobody selects what is not shown yet.
    rows = rows.sort("who", "list", "time", "batch", pl.col("name") != "view_item_list", maintain_order=True)
    rows = rows.with_row_index("number")
    view = pl.when(pl.col("name") == "view_item_list").then(pl.col("number"))
    rows = rows.with_columns(impression=view.forward_fill().over("who", "list").cast(pl.String))
    shown = rows.filter(pl.col("name") == "view_item_list").select(
        "impression", pl.col("list").alias("query_id"), "items", timestamp=pl.col("time").cast(pl.Datetime("us"))
    )
    clicked = rows.filter(pl.col("name") == "select_item").select("impression", item=pl.col("items").list.first())
    wide, unmatched = joined(first_of_each(shown)[0], clicked)
    again = came - len(rows)
    return Log(
        wide.drop("impression"),
        unmatched,
        (
            "a query is the name (or id) of the item list; a select_item belongs to the last view_item_list of the same list "
            "by the same visitor in the same session",
            "no propensities: value other pairs with fitted ones, and only if the lists vary",
            *([f"{again:,} events came again, the same in all, and count once"] if again else []),
        ),
    )


def _ga4_rows(f: pl.DataFrame) -> pl.DataFrame:
    """Both kinds of events, with visitor and session, list, time, and items in their order."""
    inner = f.schema["items"].inner if isinstance(f.schema["items"], pl.List) else None
    if not isinstance(inner, pl.Struct):
        raise LogError("ga4: expected `items` to be lists of records, as BigQuery exports them.")
    names = {field.name for field in inner.fields}
    index = next((n for n in ("item_list_index", "index") if n in names), None)
    order = pl.element().struct.field(index).cast(pl.Int64, strict=False) if index else pl.int_range(pl.len())
    ids = pl.col("items").list.eval(
        pl.element().sort_by(order, nulls_last=True).struct.field("item_id").cast(pl.String)
    )
    title = [
        pl.col("items").list.first().struct.field(n).cast(pl.String)
        for n in ("item_list_name", "item_list_id")
        if n in names
    ]
    session = pl.lit("")
    if isinstance(f.schema.get("event_params"), pl.List):
        found = pl.col("event_params").list.eval(
            pl.when(pl.element().struct.field("key") == "ga_session_id").then(
                pl.element().struct.field("value").struct.field("int_value").cast(pl.String)
            )
        )
        session = found.list.drop_nulls().list.first()
    wanted = f.filter(pl.col("event_name").is_in(["view_item_list", "select_item"]))
    return wanted.select(
        name=pl.col("event_name"),
        time=pl.col("event_timestamp").cast(pl.Int64),
        who=pl.concat_str(text(field_of(f, "user_pseudo_id")).fill_null(""), session.fill_null(""), separator="/"),
        list=pl.coalesce(*title, pl.lit("list")),
        items=ids,
        batch=pl.concat_list([field_of(f, name).cast(pl.Int64).fill_null(0) for name in BATCH]),
    )
