"""The formats: one function each, from frames of rows to a wide log (`__init__` says what each is)."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from tandemrank.errors import LogError
from tandemrank.logs.schema import LISTED, LONG, WIDE

MOST_NAMES = 10  # of events, in a note
BATCH = ("batch_page_id", "batch_ordering_id", "batch_event_index")  # the order of events that were sent together


@dataclass(frozen=True)
class Converted:
    """A wide log, the clicks that found no impression, and notes."""

    frame: pl.DataFrame
    unmatched: int
    notes: tuple[str, ...]


def ubi(frames: Sequence[pl.DataFrame], click_names: frozenset[str]) -> Converted:
    """User Behavior Insights: `query_response_hit_ids` is the list, events with a click's `action_name` its clicks."""
    queries = [need(f, ["query_id"]) for f in frames if "query_response_hit_ids" in f.columns]
    events = [need(f, ["query_id"]) for f in frames if "action_name" in f.columns]
    if not queries or not events:
        raise LogError(
            "expected two kinds of files, stored queries (with query_response_hit_ids) and events (with action_name)."
        )
    shown = [
        f.select(
            impression=text("query_id"),
            query_id=pl.coalesce(text_of(f, "user_query"), text("query_id")),
            items=pl.col("query_response_hit_ids").cast(pl.List(pl.String)),
            timestamp=moment(f, "timestamp"),
        )
        for f in queries
    ]
    clicked = [
        f.filter(pl.col("action_name").is_in(list(click_names))).select(
            impression=text("query_id"),
            item=text_of(f, "event_attributes.object.object_id"),
            ordinal=field_of(f, "event_attributes.position.ordinal").cast(pl.Int64, strict=False),
        )
        for f in events
    ]
    return joined(
        shown,
        [some.select("impression", "item") for some in clicked],
        "a list is the hits that the engine returned; which of them the page showed is not stored",
        _ordinals(pl.concat(shown), pl.concat(clicked)),
        *no_click([f.select(name=text("action_name")) for f in events], click_names),
    )


def _ordinals(shown: pl.DataFrame, clicked: pl.DataFrame) -> str:
    """Whether the clicked positions are those of the hits."""
    once = shown.unique("impression", keep="first").select("impression", item="items").explode("item")
    places = once.with_columns(place=pl.int_range(1, pl.len() + 1).over("impression"))
    both = clicked.drop_nulls().join(places, on=["impression", "item"])
    if not len(both):
        return "no click has event_attributes.position.ordinal: positions are taken from the order of the hits"
    same, zero = (float((both["ordinal"] + first == both["place"]).mean() or 0) for first in (0, 1))  # type: ignore[arg-type]
    if zero > same:
        return f"ordinals count from 0: {zero:.0%} of the clicks are where the hits say"
    return f"{same:.0%} of the clicks have the ordinal that the order of the hits says"


def metarank(frames: Sequence[pl.DataFrame], click_names: frozenset[str]) -> Converted:
    """Metarank: a `ranking` event lists items in the order shown, `interaction` events refer to it by `ranking`."""
    shown, clicked, types = [], [], []
    for f in frames:
        need(f, ["event", "id"])
        ranking = f.filter(pl.col("event") == "ranking")
        if len(ranking):
            shown.append(_rankings(need(ranking, ["items"])))
        interactions = f.filter(pl.col("event") == "interaction")
        types.append(interactions.select(name=text_of(f, "type")))
        acted = interactions.filter(text_of(f, "type").is_in(list(click_names)))
        if len(acted):
            clicked.append(need(acted, ["ranking", "item"]).select(impression=text("ranking"), item=text("item")))
    if not shown:
        raise LogError("expected events with event = ranking; got none.")
    return joined(
        shown,
        clicked,
        "a query is the field `query` of the ranking where it has one, else the user",
        "a list is what was to be shown, in order; which of it was on the screen is not stored",
        *no_click(types, click_names),
    )


def _rankings(f: pl.DataFrame) -> pl.DataFrame:
    """Ranking events as impressions."""
    items = f.schema["items"]
    if not (isinstance(items, pl.List) and isinstance(items.inner, pl.Struct) and "id" in items.inner.to_schema()):
        raise LogError(f"expected `items` of a ranking to be lists of records with an id; got {items}.")
    query = pl.lit(None, pl.String)
    if isinstance(fields := f.schema.get("fields"), pl.List) and isinstance(fields.inner, pl.Struct):
        query = _named("fields", "name", "query", pl.element().struct.field("value"))
    return f.select(
        impression=text("id"),
        query_id=pl.coalesce(query, text_of(f, "user"), pl.lit("everybody")),
        items=pl.col("items").list.eval(pl.element().struct.field("id").cast(pl.String)),
        timestamp=moment(f, "timestamp"),
    )


def ga4(frames: Sequence[pl.DataFrame], click_names: frozenset[str]) -> Converted:
    """Google Analytics 4: `view_item_list` shows items in the order of their index, the next `select_item` clicks."""
    rows = pl.concat([_ga4_rows(need(f, ["event_name", "event_timestamp", "items"])) for f in frames])
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
    again = given - len(rows)
    return joined(
        [shown],
        [clicked],
        "a query is the name (or id) of the item list; a select_item belongs to the last view_item_list of the same list by "
        "the same visitor in the same session",
        *([f"{again:,} events are repeated, the same in all, and count once"] if again else []),
    )


def _ga4_rows(f: pl.DataFrame) -> pl.DataFrame:
    """Both kinds of events, with visitor and session, list, time, and items in their order."""
    inner = f.schema["items"].inner if isinstance(f.schema["items"], pl.List) else None
    if not isinstance(inner, pl.Struct):
        raise LogError("expected `items` to be lists of records, as BigQuery exports them.")
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
        value = pl.element().struct.field("value").struct.field("int_value")
        session = _named("event_params", "key", "ga_session_id", value)
    wanted = f.filter(pl.col("event_name").is_in(["view_item_list", "select_item"]))
    return wanted.select(
        name=pl.col("event_name"),
        time=pl.col("event_timestamp").cast(pl.Int64),
        who=pl.concat_str(text_of(f, "user_pseudo_id").fill_null(""), session.fill_null(""), separator="/"),
        list=pl.coalesce(*title, pl.lit("list")),
        items=ids,
        batch=pl.concat_list([field_of(f, name).cast(pl.Int64).fill_null(0) for name in BATCH]),
    )


def _named(column: str, key: str, name: str, value: pl.Expr) -> pl.Expr:
    """Of a list of records, the value of the first whose key has this name, as text."""
    right = pl.when(pl.element().struct.field(key) == name).then(value.cast(pl.String))
    return pl.col(column).list.eval(right).list.drop_nulls().list.first()


def obd(frames: Sequence[pl.DataFrame], click_names: frozenset[str]) -> Converted:
    """Open Bandit: each position is a query of its own that shows one item, with the logged P(item | position).

    A row's propensity_score is the chance of the item at its position. With one place per impression and examination 1
    that is exactly rho_0; the position's own attractiveness is then part of the query's click rate.
    """
    columns = ["item_id", "position", "click", "propensity_score"]
    parts = [
        need(f, columns, whole=True).select(
            query_id=pl.concat_str(pl.lit("position "), pl.col("position").cast(pl.String)),
            items=pl.concat_list(pl.col("item_id").cast(pl.Int64)),
            clicks=pl.concat_list(pl.col("click").cast(pl.UInt8)),
            propensities=pl.concat_list(pl.col("propensity_score").cast(pl.Float64)),
        )
        for f in frames
    ]
    return Converted(
        pl.concat(parts),
        0,
        (
            "every position is a query of its own with lists of one item: P(item | position) is then its propensity rho_0",
            "use --list-length 1 and a curve of one rank; examination across positions cannot be asked",
        ),
    )


def clax(frames: Sequence[pl.DataFrame], click_names: frozenset[str]) -> Converted:
    """CLAX sessions: arrays `query_doc_ids`, `positions`, `mask`, `clicks`, and perhaps `query_id`."""
    parts, has_query = [], True
    for f in frames:
        need(f, ["query_doc_ids", "clicks"])
        has_query &= "query_id" in f.columns
        rows = f.with_columns(
            session=pl.int_range(pl.len()),
            query_id=text("query_id") if "query_id" in f.columns else pl.lit("all"),
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
    nameless = "the sessions name no query: a query_doc_id stands for both, and all sessions are one query"
    return Converted(pl.concat(parts).drop("session"), 0, () if has_query else (nameless,))


def long(frames: Sequence[pl.DataFrame], click_names: frozenset[str]) -> Converted:
    """One row per shown item: `impression_id, query_id, item_id, position, click`, perhaps `propensity` and more.

    The rows of an impression may lie anywhere; positions say the order alone, so they may start at 0 or have gaps.
    """
    rows = need(pl.concat([need(f, LONG[:5]) for f in frames], how="diagonal_relaxed"), LONG[:5], whole=True)
    rows = rows.with_columns(_positions(rows["position"]), click=_clicks(rows["click"]))
    # An item that is there twice, shown and then clicked, say, has its first place and was clicked.
    pair = ["impression_id", "item_id"]
    rows = rows.with_columns(pl.col("click").max().over(pair))
    once = rows.sort("position", maintain_order=True).unique(pair, keep="first", maintain_order=True)
    again = len(rows) - len(once)
    more = [c for c in LONG[5:] if c in rows.columns]
    wide = once.group_by("impression_id", maintain_order=True).agg(
        pl.col("query_id").first(),
        pl.col("query_id").n_unique().alias("_queries"),
        pl.col("item_id").alias("items"),
        pl.col("click").alias("clicks"),
        *[pl.col(c).alias(LISTED[c]) if c in LISTED else pl.col(c).first() for c in more],
        pl.col("position").is_duplicated().any().alias("_tied"),
        (pl.col("position").max() - pl.col("position").min().clip(upper_bound=1) >= pl.len()).alias("_moved"),
    )
    if (several := wide.filter(pl.col("_queries") > 1)).height:
        raise LogError(f"impression {several['impression_id'][0]!r} has rows of several queries; expected one.")
    notes = []
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
    return Converted(wide.drop("_queries", "_tied", "_moved"), 0, tuple(notes))


def _positions(column: pl.Series) -> pl.Series:
    """Positions as numbers: as texts, 10 would come before 2."""
    if column.dtype.is_numeric():
        return column
    numbers = column.cast(pl.Float64, strict=False) if column.dtype == pl.String else column.clear(len(column))
    if numbers.null_count():
        row = int(numbers.is_null().arg_max() or 0)
        raise LogError(f"expected positions as numbers; row {row}, column position has {column[row]!r}.")
    return numbers


def _clicks(column: pl.Series) -> pl.Series:
    """Whether a row was clicked, by 0 and 1, a truth value or a count."""
    if not (column.dtype.is_numeric() or column.dtype == pl.Boolean):
        raise LogError(f"expected clicks as 0 and 1; column click is {column.dtype}.")
    counts = column.cast(pl.Float64)
    if (wrong := ~(counts >= 0)).any():
        row = int(wrong.arg_max() or 0)
        raise LogError(f"expected clicks as 0 and 1; row {row}, column click has {column[row]!r}.")
    return (counts > 0).cast(pl.UInt8)


def wide(frames: Sequence[pl.DataFrame], click_names: frozenset[str]) -> Converted:
    """One row per impression: `query_id, items, clicks`, perhaps `propensities` and more; other columns are left out."""
    rows = pl.concat([need(f, WIDE[:3]) for f in frames], how="diagonal_relaxed")
    for column in WIDE[1:3]:
        if not isinstance(rows.schema[column], pl.List | pl.Array):
            raise LogError(
                f"expected lists in column {column}; got {rows.schema[column]}. Is it one row per shown item? Then "
                "--from long."
            )
    return Converted(rows.select(c for c in WIDE if c in rows.columns), 0, ())


# --- what several formats need ----------------------------------------------------------------------------------------


def need(frame: pl.DataFrame, columns: Sequence[str], *, whole: bool = False) -> pl.DataFrame:
    """The frame, refused where a column is missing; a `whole` one also where a value is, as in a file that was cut off."""
    if missing := [c for c in columns if c not in frame.columns]:
        raise LogError(
            f"expected the columns {', '.join(columns)}; {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not "
            f"there, the columns are {', '.join(frame.columns)}."
        )
    if nulls := [c for c in columns if whole and frame[c].null_count()]:
        at = int(frame[nulls[0]].is_null().arg_max() or 0)
        raise LogError(f"expected {nulls[0]} in every row; row {at} has none. Leave such rows out.")
    return frame


def field_of(frame: pl.DataFrame, path: str) -> pl.Expr:
    """A nested field as a column, null where some step of the path is missing."""
    name, *rest = path.split(".")
    if name not in frame.columns:
        return pl.lit(None)
    expression, dtype = pl.col(name), frame.schema[name]
    for part in rest:
        if not isinstance(dtype, pl.Struct) or part not in {f.name for f in dtype.fields}:
            return pl.lit(None)
        dtype = next(f.dtype for f in dtype.fields if f.name == part)  # type: ignore[assignment]
        expression = expression.struct.field(part)
    return expression


def text_of(frame: pl.DataFrame, path: str) -> pl.Expr:
    """A nested field as text, null where it is missing."""
    return field_of(frame, path).cast(pl.String)


def text(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.String)


def moment(frame: pl.DataFrame, path: str) -> pl.Expr:
    """A time as text in ISO form, of one in ISO form or in milliseconds since 1970."""
    said = text_of(frame, path)
    milliseconds = said.cast(pl.Int64, strict=False).cast(pl.Datetime("ms"))
    return pl.coalesce(milliseconds.dt.strftime("%Y-%m-%dT%H:%M:%S%.3fZ"), said)


def joined(shown: Sequence[pl.DataFrame], clicked: Sequence[pl.DataFrame], *notes: str) -> Converted:
    """Lists with their clicks: `shown` has impression, query_id, items (and more), `clicked` has impression, item.

    The first impression of every id counts, and an item's first place in a list. An item clicked twice is clicked. Clicks
    that name no impression or no item, or one that was not shown, are counted.
    """
    given = pl.concat(shown)
    has_id = given.drop_nulls("impression")
    once = has_id.unique("impression", keep="first", maintain_order=True)
    once = once.with_columns(pl.col("items").list.drop_nulls().list.unique(maintain_order=True))
    clicks = pl.concat([pl.DataFrame(schema={"impression": pl.String, "item": pl.String}), *clicked])
    named = clicks.drop_nulls()
    pairs = named.unique().with_columns(click=pl.lit(1, pl.UInt8))
    flat = once.select("impression", item="items").explode("item", empty_as_null=False)
    flat = flat.join(pairs, on=["impression", "item"], how="left", maintain_order="left")
    flat = flat.with_columns(pl.col("click").fill_null(0))
    lists = flat.group_by("impression", maintain_order=True).agg(clicks="click")
    wide = once.join(lists, on="impression", how="left", maintain_order="left").filter(pl.col("items").list.len() > 0)
    unmatched = len(pairs) - int(flat["click"].sum()) + len(clicks) - len(named)
    more = {
        "impressions have an id that was there before, and count once": len(has_id) - len(once),
        "impressions have no id, so no click can be theirs, and are left out": len(given) - len(has_id),
    }
    counted = [f"{n:,} {words}" for words, n in more.items() if n]
    return Converted(wide.drop("impression"), unmatched, (*notes, *counted))


def no_click(events: Sequence[pl.DataFrame], click_names: frozenset[str]) -> tuple[str, ...]:
    """What to know where no event, by its `name`, is a click: which names there are."""
    names = pl.concat(events)["name"]
    if names.is_in(list(click_names)).any():
        return ()
    found = [str(name) for name in names.drop_nulls().unique().sort().head(MOST_NAMES)]
    there = f"the events are named {', '.join(found)}" if found else "there are no such events"
    return (f"no event is named {' or '.join(sorted(click_names))}; {there}. Say which are clicks: --click-name",)
