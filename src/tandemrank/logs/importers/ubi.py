"""OpenSearch User Behavior Insights."""

from collections.abc import Sequence

import polars as pl

from tandemrank.errors import LogError
from tandemrank.logs.importers.tables import Log, field_of, first_of_each, joined, moment, need, no_click, text, text_of


def ubi(frames: Sequence[pl.DataFrame], click_names: frozenset[str]) -> Log:
    """User Behavior Insights: `query_response_hit_ids` is the list, events with a click's `action_name` its clicks."""
    queries = [f for f in frames if "query_response_hit_ids" in f.columns]
    events = [f for f in frames if "action_name" in f.columns]
    if not queries or not events:
        raise LogError(
            "ubi: expected two kinds of files, stored queries (with query_response_hit_ids) and events (with action_name)."
        )
    shown = pl.concat(
        [
            need(f, ["query_id", "query_response_hit_ids"], "ubi queries").select(
                impression=text(pl.col("query_id")),
                query_id=text(pl.coalesce(field_of(f, "user_query"), pl.col("query_id"))),
                items=pl.col("query_response_hit_ids").cast(pl.List(pl.String)),
                timestamp=moment(f, "timestamp"),
            )
            for f in queries
        ]
    )
    clicked = pl.concat(
        [
            need(f, ["query_id", "action_name"], "ubi events")
            .filter(pl.col("action_name").is_in(list(click_names)))
            .select(
                impression=text(pl.col("query_id")),
                item=text(field_of(f, "event_attributes.object.object_id")),
                ordinal=field_of(f, "event_attributes.position.ordinal").cast(pl.Int64, strict=False),
            )
            for f in events
        ]
    )
    shown, notes = first_of_each(shown)
    wide, unmatched = joined(shown, clicked.select("impression", "item"))
    return Log(
        wide.drop("impression"),
        unmatched,
        (
            "a list is the hits that the engine returned; which of them the page showed is not stored",
            _ordinals(shown, clicked),
            "no propensities: value other pairs with fitted ones, and only if the engine varies its lists",
            *no_click(pl.concat([text_of(f, "action_name") for f in events]), click_names),
            *notes,
        ),
    )


def _ordinals(shown: pl.DataFrame, clicked: pl.DataFrame) -> str:
    """Whether the clicked positions are those of the hits."""
    places = shown.select("impression", "items").explode("items").with_columns(
        place=pl.int_range(1, pl.len() + 1).over("impression")
    )  # fmt: skip
    both = clicked.drop_nulls().join(places, left_on=["impression", "item"], right_on=["impression", "items"])
    if not len(both):
        return "no click has event_attributes.position.ordinal: positions are taken from the order of the hits"
    same = float((both["ordinal"] == both["place"]).mean())  # type: ignore[arg-type]
    zero = float((both["ordinal"] + 1 == both["place"]).mean())  # type: ignore[arg-type]
    if zero > same:
        return f"ordinals count from 0: {zero:.0%} of the clicks are where the hits say"
    return f"{same:.0%} of the clicks have the ordinal that the order of the hits says"
