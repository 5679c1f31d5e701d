"""The formats of events: one function each, from the files of a system to a log (`__init__` says what each is).

An event says that an item was shown, or what was done to it. `shape` of each is what is read of a record.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tandemrank.errors import LogError
from tandemrank.logs.importers.lists import CLICKS, LISTS, Ledger, as_log, ranked, with_acts
from tandemrank.logs.importers.sources import TEXT, Shape, events

MOST_NAMES = 10  # of events, in a note
DAY, TIME = "%Y-%m-%d", "%H:%M:%S%.f"
TIMES = (f"{DAY}T{TIME}%#z", f"{DAY}T{TIME}", f"{DAY} {TIME}%#z", f"{DAY} {TIME}", DAY)


@dataclass(frozen=True)
class Names:
    """The names of the events that are a click, and of those that are a reward, each a column of the log."""

    clicks: frozenset[str]
    rewards: tuple[str, ...]

    def acts(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Events with `name` as what was done: `clicks` or the reward's own name; the others are no acts."""
        name = pl.when(pl.col("name").is_in(list(self.clicks))).then(pl.lit(CLICKS)).otherwise(pl.col("name"))
        return rows.with_columns(name=name).filter(pl.col("name").is_in([CLICKS, *self.rewards]))

    def no_click(self, names: pl.Series, ledger: Ledger) -> None:
        """Says which events there are, where none of them is a click."""
        if names.is_in(list(self.clicks)).any():
            return
        found = [str(name) for name in names.drop_nulls().unique().sort().head(MOST_NAMES)]
        there = f"the events are named {', '.join(found)}" if found else "there are no such events"
        names_of = " or ".join(sorted(self.clicks))
        ledger.notes.append(f"no event is named {names_of}; {there}. Say which are clicks: --click-name")


Format = Callable[[Sequence[Path], Names, Ledger], pl.DataFrame]


def read(paths: Sequence[Path], shape: Mapping[str, Shape], ledger: Ledger) -> pl.DataFrame:
    return pl.concat([events(path, shape, ledger) for path in paths])


def _at(path: str) -> pl.Expr:
    """A field in fields."""
    name, *rest = path.split(".")
    expression = pl.col(name)
    for part in rest:
        expression = expression.struct.field(part)
    return expression


def first_of(*paths: str) -> pl.Expr:
    """The first of several fields that is there; an empty text is not."""
    return pl.coalesce(pl.when(_at(path) != "").then(_at(path)) for path in paths)


def moment(column: str = "timestamp") -> pl.Expr:
    """A time of a text in ISO form, or in seconds, milliseconds or microseconds since 1970; null where it is none."""
    number = as_number(pl.col(column))
    unit = pl.when(number < 1e11).then(1e6).when(number < 1e14).then(1e3).otherwise(1.0)
    since = (number * unit).cast(pl.Int64, strict=False).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    times = [pl.col(column).str.to_datetime(form, strict=False, time_unit="us", time_zone="UTC") for form in TIMES]
    return pl.coalesce(since, *times)


def as_number(expression: pl.Expr) -> pl.Expr:
    return expression.cast(pl.Float64, strict=False)


def _once(lists: pl.DataFrame, ledger: Ledger) -> pl.DataFrame:
    """Impressions with an id, each once."""
    ledger.take(LISTS, len(lists))
    named = ledger.keep(LISTS, lists, pl.col("impression_id").is_not_null(), "have no id, so no click can be theirs")
    once = named.unique("impression_id", keep="first", maintain_order=True)
    ledger.drop(LISTS, "have an id that was there before", len(named) - len(once))
    return once


def _exploded(lists: pl.DataFrame) -> pl.DataFrame:
    """A row for each item of a column of lists, `items`, with its position."""
    rows = lists.filter(pl.col("items").list.len() > 0).with_columns(item_id="items").explode("item_id")
    return rows.with_columns(position=pl.int_range(1, pl.len() + 1).over("impression_id").cast(pl.Float64))


# --- Metarank ---------------------------------------------------------------------------------------------------------

METARANK: Mapping[str, Shape] = {
    **dict.fromkeys(("event", "id", "user", "timestamp", "type", "ranking", "item"), TEXT),
    "fields": [{"name": TEXT, "value": TEXT}],
    "items": [{"id": TEXT}],
}


def metarank(paths: Sequence[Path], names: Names, ledger: Ledger) -> pl.DataFrame:
    """Metarank: a `ranking` event lists items in the order shown, `interaction` events refer to it by `ranking`."""
    rows = read(paths, METARANK, ledger)
    lists = rows.filter(pl.col("event") == "ranking")
    if not len(lists):
        raise LogError("expected events with event = ranking; got none.")
    lists = lists.select(
        impression_id="id",
        query_id=pl.coalesce(_named("fields", "name", "query", "value"), "user", pl.lit("everybody")),
        timestamp=moment(),
        items=pl.col("items").list.eval(pl.element().struct.field("id")).list.drop_nulls(),
    )
    lists = ledger.keep(LISTS, _once(lists, ledger), pl.col("items").list.len() > 0, "list no records with an id")
    done = rows.filter(pl.col("event") == "interaction")
    acts = names.acts(done.select(impression_id="ranking", item_id="item", name="type", amount=1.0))
    names.no_click(done["type"], ledger)
    ledger.notes += [
        "a query is the field `query` of the ranking where it has one, else the user",
        "a list is what was to be shown, in order; which of it was on the screen is not stored",
    ]
    return as_log(with_acts(ranked(_exploded(lists), ledger), acts, ledger, names.rewards), names.rewards)


def _named(column: str, key: str, name: str, *values: str) -> pl.Expr:
    """Of a list of records, the value of the first whose key has this name."""
    value = pl.element()
    for part in values:
        value = value.struct.field(part)
    return (
        pl.col(column)
        .list.eval(pl.when(pl.element().struct.field(key) == name).then(value))
        .list.drop_nulls()
        .list.first()
    )


# --- Google Analytics 4 -----------------------------------------------------------------------------------------------

BATCH = ("batch_page_id", "batch_ordering_id", "batch_event_index")  # the order of events that were sent together
ITEM_FIELDS = (
    "item_id",
    "item_list_index",
    "index",
    "item_list_name",
    "item_list_id",
    "item_revenue",
    "price",
    "quantity",
)
GA4: Mapping[str, Shape] = {
    **dict.fromkeys(("event_name", "event_timestamp", "user_pseudo_id", *BATCH), TEXT),
    "event_params": [{"key": TEXT, "value": {"int_value": TEXT, "string_value": TEXT}}],
    "items": [dict.fromkeys(ITEM_FIELDS, TEXT)],
}
VIEW, SELECT, PURCHASE, REVENUE = "view_item_list", "select_item", "purchase", "revenue"


def ga4(paths: Sequence[Path], names: Names, ledger: Ledger) -> pl.DataFrame:
    """Google Analytics 4: `view_item_list` shows items in the order of their index; what was done belongs to the last view."""
    rows = _ga4_rows(read(paths, GA4, ledger), names, ledger)
    views = _ga4_impressions(rows.filter(pl.col("name") == VIEW))
    ledger.take(LISTS, views["impression_id"].n_unique())
    acts = _of_last_view(names.acts(rows), views)
    rewards = (*names.rewards, REVENUE) if PURCHASE in names.rewards else names.rewards
    paid = acts.filter((pl.col("name") == PURCHASE) & (pl.col("paid") > 0))
    acts = pl.concat([acts, paid.with_columns(name=pl.lit(REVENUE), amount=pl.col("paid"))])
    names.no_click(rows["name"], ledger)
    ledger.notes.append(
        "a query is what was searched for, else the name (or id) of the item list; what was done to an item belongs to the "
        "last view that showed it to the same visitor in the same session"
    )
    return as_log(with_acts(ranked(views, ledger), acts, ledger, rewards), rewards)


def _ga4_rows(rows: pl.DataFrame, names: Names, ledger: Ledger) -> pl.DataFrame:
    """A row for each item of each event, in the order of the events of each visitor in a session."""
    wanted = rows.filter(pl.col("event_name").is_in([VIEW, *names.clicks, *names.rewards]))
    ids = pl.col("items").list.eval(pl.element().struct.field("item_id")).list.join("/", ignore_nulls=True)
    once = wanted.with_columns(ids=ids).unique(
        ["event_name", "event_timestamp", "user_pseudo_id", "ids", *BATCH], keep="first", maintain_order=True
    )
    ledger.take("events", len(wanted))
    ledger.drop("events", "repeat an event, the same in all", len(wanted) - len(once))
    once = ledger.keep("events", once, pl.col("user_pseudo_id").is_not_null(), "name no visitor")
    session = _named("event_params", "key", "ga_session_id", "value", "int_value").fill_null("")
    of_event = [
        _named("event_params", "key", name, "value", "string_value") for name in ("item_list_name", "item_list_id")
    ]
    events_of = once.select(
        name="event_name",
        time=moment("event_timestamp"),
        who=pl.concat_str("user_pseudo_id", session, separator="/"),
        batch=pl.concat_list([pl.col(name).cast(pl.Int64, strict=False).fill_null(0) for name in BATCH]),
        term=_named("event_params", "key", "search_term", "value", "string_value"),
        named=pl.concat_list(of_event),
        items="items",
    )
    # What a browser sends together has one time; nobody selects what is not shown yet.
    order = ("who", "time", "batch", pl.col("name") != VIEW)
    flat = events_of.sort(*order, maintain_order=True).with_row_index("number").explode("items", empty_as_null=False)
    field = {name: _set(pl.col("items").struct.field(name)) for name in ITEM_FIELDS}
    name, own_id = (pl.col("named").list.get(n) for n in (0, 1))
    each = as_number(field["price"]) * as_number(field["quantity"]).fill_null(1.0)
    return flat.select(
        "number", "name", "time", "who", "term",
        item_id=field["item_id"],
        list=pl.coalesce(field["item_list_name"], _set(name), field["item_list_id"], _set(own_id)),
        position=pl.coalesce(as_number(field["item_list_index"]), as_number(field["index"])),
        amount=pl.lit(1.0),
        paid=pl.coalesce(as_number(field["item_revenue"]), each).fill_null(0.0),
    )  # fmt: skip


def _set(text: pl.Expr) -> pl.Expr:
    """A text of Google Analytics, null where it is not set."""
    return pl.when(~text.is_in(["", "(not set)"])).then(text)


def _ga4_impressions(views: pl.DataFrame) -> pl.DataFrame:
    """Views as shown items. One that goes on where the last of the same list ended, since somebody scrolled, is the same."""
    views = views.with_columns(
        pl.col("list").fill_null("list"),
        position=pl.coalesce("position", pl.int_range(1, pl.len() + 1).over("number").cast(pl.Float64)),
    )
    of_list = ["who", "list"]
    each = (
        views.group_by("number", *of_list)
        .agg(first=pl.col("position").min(), last=pl.col("position").max())
        .sort("number")
    )
    goes_on = (pl.col("first") == pl.col("last").shift(1) + 1).over(of_list).fill_null(False)
    start = pl.when(~goes_on).then("number").forward_fill().over(of_list)
    each = each.select("number", *of_list, impression_id=pl.concat_str(start, "list", separator="/"))
    return views.join(each, on=["number", *of_list], how="left", maintain_order="left").with_columns(
        query_id=pl.coalesce("term", "list"), timestamp="time"
    )


def _of_last_view(acts: pl.DataFrame, views: pl.DataFrame) -> pl.DataFrame:
    """Acts with the impression they belong to: of the list that they name, or of any."""
    seen = views.select("number", "who", "list", "item_id", "impression_id").sort("number")
    named = (pl.col("name") == CLICKS) & pl.col("list").is_not_null()
    of_list = (
        acts.filter(named)
        .sort("number")
        .join_asof(seen, on="number", by=["who", "list", "item_id"], check_sortedness=False)
    )
    of_any = (
        acts.filter(~named)
        .sort("number")
        .join_asof(seen.drop("list"), on="number", by=["who", "item_id"], check_sortedness=False)
    )
    return pl.concat([of_list, of_any], how="diagonal").with_columns(pl.col("impression_id").fill_null(""))  # of none
