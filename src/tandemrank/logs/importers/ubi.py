"""User Behavior Insights of OpenSearch: stored queries and events, of any dialect, as lists and what was done to their items.

The hits that are stored with a search are its list, in their order, down to the last of which an event speaks; without hits, or
where the ordinals of the events contradict them, the `impression` events are, by their ordinals. Lost events then leave no gap.
One query_id may stand for several searches, as of a text that was corrected: each list of hits is an impression of its own.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from tandemrank.errors import LogError
from tandemrank.logs.importers.formats import Names, as_number, first_of, moment, read
from tandemrank.logs.importers.lists import LISTS, PAIR, Ledger, as_log, ranked, with_acts
from tandemrank.logs.importers.sources import TEXT, Shape

IMPRESSIONS = ("impression", "item_impression", "product_impression", "result_impression")
RECORD: Mapping[str, Shape] = {
    **dict.fromkeys(
        (
            "application",
            "query_id",
            "user_query",
            "timestamp",
            "action_name",
            "message",
            "object_id",
            "position",
            "rank",
        ),
        TEXT,
    ),
    "query_response_hit_ids": [TEXT],
    "query_response_object_ids": [TEXT],
    "event_attributes": {
        "object": dict.fromkeys(("object_id", "key_value", "internal_id"), TEXT),
        "data": {"data_id": TEXT},
        "position": {"ordinal": TEXT},
        "rank": TEXT,
    },
}
# Where dialects have the item and its place: the schema from 1.0 on, the first plugin, flat tables.
ITEM = ("object.object_id", "object.key_value", "data.data_id", "object.internal_id")
ORDINAL = ("position.ordinal", "rank")
KEY = "impression_id"
SEARCH = [KEY, "search"]  # searches of one id are counted from 1; 0 is what no stored hits explain


def ubi(paths: Sequence[Path], names: Names, ledger: Ledger) -> pl.DataFrame:
    """Stored queries and events, in any files."""
    rows = read(paths, RECORD, ledger).select(
        "application",
        impression_id=first_of("query_id"),
        name=first_of("action_name"),
        text=first_of("user_query"),
        message=first_of("message"),
        timestamp=moment(),
        item_id=first_of(*(f"event_attributes.{path}" for path in ITEM), "object_id"),
        ordinal=as_number(first_of(*(f"event_attributes.{path}" for path in ORDINAL), "position", "rank")),
        items=pl.coalesce("query_response_hit_ids", "query_response_object_ids"),
    )
    from_0 = (pl.col("ordinal") == 0).any().over("application").fill_null(False)
    done = rows.filter(pl.col("name").is_not_null()).with_columns(pl.col("ordinal") + from_0)
    shown, hits = done.filter(pl.col("name").is_in(IMPRESSIONS)), _hits(rows)
    if not len(done) or not (len(hits) or len(shown)):
        raise LogError(
            "expected events (with action_name) and lists: events named impression, or stored queries with "
            "query_response_hit_ids."
        )
    hits = hits.join(_contradicted(_of_search(shown, hits)), on=SEARCH, how="anti", maintain_order="left")
    acts = names.acts(done.with_columns(amount=1.0))
    shown, acts = _of_search(shown, hits), _of_search(acts, hits)
    lists = _lists(shown, acts, hits, ledger)
    known = _named(lists)
    _count(rows, hits, known, ledger)
    searched = _searched(rows, shown, hits)
    placed = ranked(_in_list(lists.join(searched, on=SEARCH, how="left", maintain_order="left"), known), ledger)
    acts = _in_list(acts, known)
    _ordinals(placed, acts, ledger)
    names.no_click(done["name"], ledger)
    return as_log(with_acts(placed, acts, ledger, names.rewards), names.rewards)


def _hits(rows: pl.DataFrame) -> pl.DataFrame:
    """A row for each hit of each search, with its place: stored lists of one id that differ are several searches."""
    stored = rows.filter(pl.col("name").is_null() & (pl.col("items").list.len() > 0)).drop_nulls(KEY)
    each = stored.sort("timestamp", nulls_last=True, maintain_order=True).with_columns(
        same=pl.col("items").list.join(" ")
    )
    each = each.unique([KEY, "same"], keep="first", maintain_order=True)
    flat = (
        each.with_columns(search=pl.int_range(1, pl.len() + 1).over(KEY)).drop("item_id").rename({"items": "item_id"})
    )
    flat = flat.explode("item_id").drop_nulls("item_id").unique([*SEARCH, "item_id"], keep="first", maintain_order=True)
    return flat.select(
        *SEARCH, "item_id", "text", "timestamp", place=pl.int_range(1, pl.len() + 1).over(SEARCH).cast(pl.Float64)
    )


def _of_search(events: pl.DataFrame, hits: pl.DataFrame) -> pl.DataFrame:
    """Events with the last search of their id that has the item, and its place there."""
    last = hits.unique(PAIR, keep="last", maintain_order=True).select(*PAIR, "search", "place")
    found = events.drop("search", "place", strict=False).join(last, on=PAIR, how="left", maintain_order="left")
    return found.with_columns(pl.col("search").fill_null(0))


def _contradicted(shown: pl.DataFrame) -> pl.DataFrame:
    """Searches whose page had another order than the hits, as by price: ordinals that fall as places rise."""
    placed = shown.drop_nulls(["place", "ordinal"]).sort("place", maintain_order=True)
    falls = placed.group_by(SEARCH).agg(falls=(pl.col("ordinal").diff() < 0).any())
    return falls.filter("falls").select(SEARCH)


def _lists(shown: pl.DataFrame, acts: pl.DataFrame, hits: pl.DataFrame, ledger: Ledger) -> pl.DataFrame:
    """The shown items of all searches, with positions from 1: those of events, and hits without one that were shown, too."""
    seen = shown.drop_nulls("item_id")
    furthest = pl.concat([seen.select(*SEARCH, "place"), acts.select(*SEARCH, "place")]).drop_nulls("place")
    furthest = furthest.group_by(SEARCH).agg(furthest=pl.col("place").max())
    hits = hits.join(furthest, on=SEARCH, how="left", maintain_order="left")
    of_events = hits.join(seen, on=SEARCH, how="semi", maintain_order="left")
    above = of_events.filter(pl.col("place") <= pl.col("furthest"))
    above = above.join(seen, on=[*SEARCH, "item_id"], how="anti", maintain_order="left")
    ledger.note(
        len(above), "items have no event, but stand in the stored hits above one that has, and count as shown with it"
    )
    # Where a page tells what it shows, a search of which it tells nothing was not seen.
    silent = hits.join(seen, on=SEARCH, how="anti", maintain_order="left")
    told = pl.col(KEY).is_in(seen[KEY].drop_nulls().unique().implode())
    alone = silent.filter(pl.col("furthest").is_not_null() | ~told)
    lists = alone.select(SEARCH).n_unique()
    ledger.note(lists, "lists are the stored hits: which of them the page showed is not known")
    position = pl.coalesce("place", "ordinal")
    columns = [*SEARCH, "item_id"]
    return pl.concat(
        [
            shown.select(*columns, position=position),
            *(some.select(*columns, position="place") for some in (above, alone)),
        ]
    )


def _named(lists: pl.DataFrame) -> pl.DataFrame:
    """The impressions, by the id of the query, and the number of the search where it has several."""
    each = lists.drop_nulls([KEY, "item_id"]).select(SEARCH).unique(maintain_order=True)
    name = pl.when(pl.len().over(KEY) == 1).then(KEY).otherwise(pl.concat_str(SEARCH, separator="/"))
    return each.with_columns(list=name)


def _in_list(rows: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """Rows with the impression of their search; where it has none, the first of their id."""
    first = known.unique(KEY, keep="first", maintain_order=True).select(KEY, first="list")
    rows = rows.join(known, on=SEARCH, how="left", maintain_order="left").join(
        first, on=KEY, how="left", maintain_order="left"
    )
    return rows.with_columns(impression_id=pl.coalesce("list", "first", KEY)).drop("list", "first", "search")


def _count(rows: pl.DataFrame, hits: pl.DataFrame, known: pl.DataFrame, ledger: Ledger) -> None:
    """Counts searches: those with a list and the others."""
    stored = rows.filter(pl.col("name").is_null())
    ids = stored.drop_nulls(KEY).select(KEY).unique()
    nameless, unseen, empty = (
        len(stored) - len(stored.drop_nulls(KEY)),
        hits.select(SEARCH).unique().join(known, on=SEARCH, how="anti").height,
        ids.join(known, on=KEY, how="anti").join(hits, on=KEY, how="anti").height,
    )
    ledger.take(LISTS, len(known) + nameless + unseen + empty)
    ledger.drop(LISTS, "have no id, so no click can be theirs", nameless)
    ledger.drop(LISTS, "were answered, but the page tells of another search of the same id alone", unseen)
    ledger.drop(LISTS, "have neither impression events nor hits", empty)
    ledger.note(
        len(stored) - nameless - len(ids), "stored queries have the id of another; other hits are another search"
    )
    alone = known.select(KEY).unique().join(ids, on=KEY, how="anti").height
    ledger.note(alone, "queries are known by their events alone")


def _searched(rows: pl.DataFrame, shown: pl.DataFrame, hits: pl.DataFrame) -> pl.DataFrame:
    """When each search was, and for what: as stored with its hits, else in its events, with the id, or in `on_search`."""
    columns = [*SEARCH, "text", "timestamp"]
    own = pl.concat([hits.select(columns), shown.select(columns).with_columns(pl.col("search").cast(pl.Int64))])
    own = own.group_by(SEARCH, maintain_order=True).agg(
        pl.col("text").drop_nulls().first(), pl.col("timestamp").drop_nulls().first()
    )
    said = pl.col("message").filter(pl.col("name") == "on_search")
    stored_first = rows.sort(pl.col("name").is_not_null(), maintain_order=True)
    of_id = stored_first.group_by(KEY, maintain_order=True).agg(
        any_text=pl.col("text").drop_nulls().first(),
        any_time=pl.col("timestamp").drop_nulls().first(),
        said=said.drop_nulls().first(),
    )
    return own.join(of_id, on=KEY, how="left", nulls_equal=True).select(
        *SEARCH,
        query_id=pl.coalesce("text", "any_text", "said", KEY),
        timestamp=pl.coalesce("timestamp", "any_time"),
    )


def _ordinals(placed: pl.DataFrame, acts: pl.DataFrame, ledger: Ledger) -> None:
    """Whether what was clicked is where it says."""
    both = acts.drop_nulls("ordinal").join(placed.select(*PAIR, "position"), on=PAIR)
    if len(both):
        same = float((both["ordinal"] == both["position"]).mean() or 0)  # type: ignore[arg-type]
        ledger.notes.append(f"{same:.0%} of the clicks have the ordinal that the list says")
