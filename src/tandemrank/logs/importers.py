"""Logs of other systems become click logs of ours: one function per format, and what each format cannot answer.

| format     | what it is                                                          | an impression is                       |
| ---------- | ------------------------------------------------------------------- | -------------------------------------- |
| `ubi`      | OpenSearch User Behavior Insights: stored queries, and their events | a stored query and its hits            |
| `metarank` | Metarank: ranking and interaction events                            | a ranking event                        |
| `obd`      | Open Bandit Dataset: one CSV row per shown position                 | a row: a list of one, for its position |
| `ga4`      | Google Analytics 4, BigQuery export: view_item_list, select_item    | a view_item_list event                 |
| `clax`     | CLAX: Parquet sessions of query_doc_ids, positions, mask, clicks    | a session                              |

Every importer takes the rows as polars frames and gives a wide log (`checks`) and notes in words. Nothing is guessed: what
cannot be joined is left out and counted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tandemrank._base import files
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.parts import CLICK_LOG, write_part

CLICKS = ("click", "item_click", "product_click", "result_click", "select_item")  # names of a click, unless told


@dataclass(frozen=True)
class Imported:
    """What came of an import: where the log is, how long it is, and what a reader should know.

    `unmatched` are clicks that belong to no impression, or to an item that it did not show.
    """

    path: Path
    impressions: int
    clicks: int
    unmatched: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Log:
    """A wide log, the clicks that found no impression, and notes."""

    frame: pl.DataFrame
    unmatched: int
    notes: tuple[str, ...]


def import_log(
    kind: str, sources: Sequence[str | Path], out: str | Path, *, click_names: Sequence[str] = CLICKS
) -> Imported:
    """Reads the files of another system and writes a click log in one piece to the folder `out`."""
    if kind not in FORMATS:
        raise ConfigError(f"--from takes {', '.join(FORMATS)}; got {kind!r}.")
    frames = [read(Path(source)) for source in sources]
    if not frames:
        raise LogError("expected files to import; none came.")
    try:
        log = FORMATS[kind](frames, frozenset(click_names))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise LogError(
            f"{', '.join(map(str, sources))}: values that the format {kind} does not have: {reason}. "
            "Correct or drop those rows."
        ) from error
    if not len(log.frame):
        raise LogError(f"the files hold no impression of the format {kind}. Is it the right format?")
    with files.replacing(out, CLICK_LOG, inputs=sources) as folder:
        folder.mkdir()
        write_part(log.frame, folder, 0)
    clicks = int(log.frame["clicks"].list.sum().sum())
    return Imported(Path(out), len(log.frame), clicks, log.unmatched, log.notes)


def read(path: Path) -> pl.DataFrame:
    """A file of JSON lines, a JSON array, CSV or Parquet, by its ending."""
    kind = path.suffix.lower()
    try:
        if kind == ".parquet":
            return pl.read_parquet(path, glob=False)
        if kind == ".csv":
            return pl.read_csv(path, infer_schema_length=None, glob=False)
        if kind in (".jsonl", ".ndjson"):
            return pl.read_ndjson(path, infer_schema_length=None)
        if kind == ".json":
            return pl.read_json(path, infer_schema_length=None)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise LogError(f"cannot read {path}: {reason}. Expected a whole file of that kind.") from error
    raise LogError(f"{path} ends in {kind!r}: expected .jsonl, .ndjson, .json, .csv or .parquet.")


def _need(frame: pl.DataFrame, columns: Sequence[str], what: str) -> pl.DataFrame:
    """The frame, refused where a column is missing."""
    if missing := [c for c in columns if c not in frame.columns]:
        raise LogError(f"{what}: expected the columns {', '.join(columns)}; {', '.join(missing)} is not there.")
    return frame


def _field(frame: pl.DataFrame, path: str) -> pl.Expr:
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


def _text(expression: pl.Expr) -> pl.Expr:
    return expression.cast(pl.String)


def joined(shown: pl.DataFrame, clicked: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Lists with their clicks: `shown` has impression, query_id, items (and more), `clicked` has impression, item.

    Returns the wide rows and how many clicks belong to no shown item. An item clicked twice is clicked.
    """
    pairs = clicked.drop_nulls().unique()
    flat = shown.select("impression", "items").explode("items", empty_as_null=False).rename({"items": "item"})
    marked = flat.join(pairs.with_columns(click=pl.lit(1, pl.UInt8)), on=["impression", "item"], how="left",
                       maintain_order="left")  # fmt: skip
    clicks = marked.with_columns(pl.col("click").fill_null(0)).group_by("impression", maintain_order=True)
    wide = shown.join(clicks.agg(clicks=pl.col("click")), on="impression", how="left", maintain_order="left")
    wide = wide.filter(pl.col("items").list.len() > 0)
    found = int(marked["click"].fill_null(0).sum())
    return wide, len(pairs) - found


def _first_of_each(shown: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """The first impression of every id, and how many came again; an item's second place in a list is left out."""
    once = shown.unique("impression", keep="first", maintain_order=True)
    lists = pl.col("items").list.drop_nulls().list.unique(maintain_order=True)
    return once.with_columns(lists), len(shown) - len(once)


def _again(count: int) -> tuple[str, ...]:
    return (f"{count} impressions came again under the same id and count once",) if count else ()


# --- the formats ------------------------------------------------------------------------------------------------------


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
            _need(f, ["query_id", "query_response_hit_ids"], "ubi queries").select(
                impression=_text(pl.col("query_id")),
                query_id=_text(pl.coalesce(_field(f, "user_query"), pl.col("query_id"))),
                items=pl.col("query_response_hit_ids").cast(pl.List(pl.String)),
                timestamp=_text(_field(f, "timestamp")),
            )
            for f in queries
        ]
    )
    clicked = pl.concat(
        [
            _need(f, ["query_id", "action_name"], "ubi events")
            .filter(pl.col("action_name").is_in(list(click_names)))
            .select(
                impression=_text(pl.col("query_id")),
                item=_text(_field(f, "event_attributes.object.object_id")),
                ordinal=_field(f, "event_attributes.position.ordinal").cast(pl.Int64, strict=False),
            )
            for f in events
        ]
    )
    shown, again = _first_of_each(shown)
    wide, unmatched = joined(shown, clicked.select("impression", "item"))
    return Log(
        wide.drop("impression"),
        unmatched,
        (
            "a list is the hits that the engine returned; which of them the page showed is not stored",
            _ordinals(shown, clicked),
            "no propensities: value other pairs with fitted ones, and only if the engine varies its lists",
            *_again(again),
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
    shown_parts, clicked_parts = [], []
    for f in frames:
        _need(f, ["event", "id"], "metarank")
        ranking = f.filter(pl.col("event") == "ranking")
        if len(ranking):
            shown_parts.append(_rankings(_need(ranking, ["items"], "metarank ranking events")))
        acted = f.filter((pl.col("event") == "interaction") & _field(f, "type").is_in(list(click_names)))
        if len(acted):
            _need(acted, ["ranking", "item"], "metarank interaction events")
            clicked_parts.append(acted.select(impression=_text(pl.col("ranking")), item=_text(pl.col("item"))))
    if not shown_parts:
        raise LogError("metarank: expected events with event = ranking; none came.")
    empty = pl.DataFrame(schema={"impression": pl.String, "item": pl.String})
    shown, again = _first_of_each(pl.concat(shown_parts))
    wide, unmatched = joined(shown, pl.concat([empty, *clicked_parts]))
    return Log(
        wide.drop("impression"),
        unmatched,
        (
            "a query is the field `query` of the ranking where it has one, else the user",
            "a list is what was to be shown, in order; which of it was on the screen is not stored",
            "no propensities: value other pairs with fitted ones, and only if the ranking varies",
            *_again(again),
        ),
    )


def _rankings(f: pl.DataFrame) -> pl.DataFrame:
    """Ranking events as impressions."""
    query = pl.lit(None, pl.String)
    if isinstance(fields := f.schema.get("fields"), pl.List) and isinstance(fields.inner, pl.Struct):
        named = pl.col("fields").list.eval(
            pl.when(pl.element().struct.field("name") == "query").then(
                pl.element().struct.field("value").cast(pl.String)
            )
        )
        query = named.list.drop_nulls().list.first()
    return f.select(
        impression=_text(pl.col("id")),
        query_id=pl.coalesce(query, _text(_field(f, "user")), pl.lit("everybody")),
        items=pl.col("items").list.eval(pl.element().struct.field("id").cast(pl.String)),
        timestamp=(_field(f, "timestamp").cast(pl.Int64, strict=False) * 1000).cast(pl.Datetime("us")),  # milliseconds
    )


def obd(frames: Sequence[pl.DataFrame], click_names: frozenset[str]) -> Log:
    """Open Bandit: each position is a query of its own that shows one item, with the logged P(item | position).

    A row's propensity_score is the chance of the item at its position. With one place per impression and examination 1
    that is exactly rho_0; the position's own attractiveness is then part of the query's click rate.
    """
    columns = ["item_id", "position", "click", "propensity_score"]
    parts = [
        _need(f, columns, "obd").select(
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


def ga4(frames: Sequence[pl.DataFrame], click_names: frozenset[str]) -> Log:
    """Google Analytics 4: `view_item_list` shows items in the order of their index, the next `select_item` clicks."""
    rows = pl.concat([_ga4_rows(_need(f, ["event_name", "event_timestamp", "items"], "ga4")) for f in frames])
    rows = rows.sort("who", "list", "time", maintain_order=True).with_row_index("number")
    view = pl.when(pl.col("name") == "view_item_list").then(pl.col("number"))
    rows = rows.with_columns(impression=view.forward_fill().over("who", "list").cast(pl.String))
    shown = rows.filter(pl.col("name") == "view_item_list").select(
        "impression", pl.col("list").alias("query_id"), "items", timestamp=pl.col("time").cast(pl.Datetime("us"))
    )
    clicked = rows.filter(pl.col("name") == "select_item").select("impression", item=pl.col("items").list.first())
    lost = int(clicked["impression"].is_null().sum())
    wide, unmatched = joined(_first_of_each(shown)[0], clicked)
    return Log(
        wide.drop("impression"),
        unmatched + lost,
        (
            "a query is the name (or id) of the item list; a select_item belongs to the last view_item_list of the same list "
            "by the same visitor in the same session",
            "no propensities: value other pairs with fitted ones, and only if the lists vary",
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
        who=pl.concat_str(_text(_field(f, "user_pseudo_id")).fill_null(""), session.fill_null(""), separator="/"),
        list=pl.coalesce(*title, pl.lit("list")),
        items=ids,
    )


def clax(frames: Sequence[pl.DataFrame], click_names: frozenset[str]) -> Log:
    """CLAX sessions: arrays `query_doc_ids`, `positions`, `mask`, `clicks`, and perhaps `query_id`."""
    parts, has_query = [], True
    for f in frames:
        _need(f, ["query_doc_ids", "clicks"], "clax")
        has_query &= "query_id" in f.columns
        rows = f.with_columns(
            session=pl.int_range(pl.len()),
            query_id=_text(pl.col("query_id")) if "query_id" in f.columns else pl.lit("all"),
        )
        lists = [c for c in ("query_doc_ids", "positions", "mask", "clicks") if c in f.columns]
        flat = rows.select("session", "query_id", *lists).explode(lists, empty_as_null=False)
        flat = flat.filter(pl.col("mask")) if "mask" in lists else flat
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


FORMATS: dict[str, Callable[[Sequence[pl.DataFrame], frozenset[str]], Log]] = {
    "ubi": ubi,
    "metarank": metarank,
    "obd": obd,
    "ga4": ga4,
    "clax": clax,
}
