"""The formats: one function each, from frames of rows to a wide log (`__init__` says what each is).

The context of an impression (a device, an hour, a page) is a part of its query: what people want depends on both.
"""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.importers.tables import (
    Log,
    field_of,
    first_of_each,
    joined,
    moment,
    need,
    no_click,
    text,
    text_of,
    whole,
)
from tandemrank.logs.schema import LONG, WIDE


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


BATCH = ("batch_page_id", "batch_ordering_id", "batch_event_index")  # the order of events that were sent together


def ga4(frames: Sequence[pl.DataFrame], click_names: frozenset[str]) -> Log:
    """Google Analytics 4: `view_item_list` shows items in the order of their index, the next `select_item` clicks."""
    rows = pl.concat([_ga4_rows(need(f, ["event_name", "event_timestamp", "items"], "ga4")) for f in frames])
    given = len(rows)
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
    again = given - len(rows)
    return Log(
        wide.drop("impression"),
        unmatched,
        (
            "a query is the name (or id) of the item list; a select_item belongs to the last view_item_list of the same list "
            "by the same visitor in the same session",
            "no propensities: value other pairs with fitted ones, and only if the lists vary",
            *([f"{again:,} events are repeated, the same in all, and count once"] if again else []),
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
        raise ConfigError(f"--context: expected columns that a log does not use itself; got {own[0]!r}.")
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
