"""Metarank: ranking and interaction events."""

from collections.abc import Sequence

import polars as pl

from tandemrank.errors import LogError
from tandemrank.logs.importers.tables import Log, field_of, first_of_each, joined, moment, need, no_click, text, text_of


def metarank(frames: Sequence[pl.DataFrame], click_names: frozenset[str]) -> Log:
    """Metarank: a `ranking` event lists items in the order shown, `interaction` events refer to it by `ranking`."""
    shown_parts, clicked_parts, types = [], [], []
    for f in frames:
        need(f, ["event", "id"], "metarank")
        ranking = f.filter(pl.col("event") == "ranking")
        if len(ranking):
            shown_parts.append(_rankings(need(ranking, ["items"], "metarank ranking events")))
        interactions = f.filter(pl.col("event") == "interaction")
        types.append(text_of(interactions, "type"))
        acted = interactions.filter(text(field_of(f, "type")).is_in(list(click_names)))
        if len(acted):
            need(acted, ["ranking", "item"], "metarank interaction events")
            clicked_parts.append(acted.select(impression=text(pl.col("ranking")), item=text(pl.col("item"))))
    if not shown_parts:
        raise LogError("metarank: expected events with event = ranking; got none.")
    empty = pl.DataFrame(schema={"impression": pl.String, "item": pl.String})
    shown, notes = first_of_each(pl.concat(shown_parts))
    wide, unmatched = joined(shown, pl.concat([empty, *clicked_parts]))
    return Log(
        wide.drop("impression"),
        unmatched,
        (
            "a query is the field `query` of the ranking where it has one, else the user",
            "a list is what was to be shown, in order; which of it was on the screen is not stored",
            "no propensities: value other pairs with fitted ones, and only if the ranking varies",
            *no_click(pl.concat(types), click_names),
            *notes,
        ),
    )


def _rankings(f: pl.DataFrame) -> pl.DataFrame:
    """Ranking events as impressions."""
    items = f.schema["items"]
    if not (isinstance(items, pl.List) and isinstance(items.inner, pl.Struct) and "id" in items.inner.to_schema()):
        raise LogError(f"metarank: expected `items` of a ranking to be lists of records with an id; got {items}.")
    query = pl.lit(None, pl.String)
    if isinstance(fields := f.schema.get("fields"), pl.List) and isinstance(fields.inner, pl.Struct):
        named = pl.col("fields").list.eval(
            pl.when(pl.element().struct.field("name") == "query").then(
                pl.element().struct.field("value").cast(pl.String)
            )
        )
        query = named.list.drop_nulls().list.first()
    return f.select(
        impression=text(pl.col("id")),
        query_id=pl.coalesce(query, text(field_of(f, "user")), pl.lit("everybody")),
        items=pl.col("items").list.eval(pl.element().struct.field("id").cast(pl.String)),
        timestamp=moment(f, "timestamp"),
    )
