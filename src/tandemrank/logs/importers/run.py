"""The importers by name, and the whole way from the files of another system to a click log of ours."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tandemrank._base import files
from tandemrank._base.frames import columns_of
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.importers.formats import clax, ga4, long, metarank, obd, ubi, wide, with_context
from tandemrank.logs.importers.tables import Log, read
from tandemrank.logs.validation import validate
from tandemrank.logs.writing import CLICK_LOG, write_part

CLICKS = ("click", "item_click", "product_click", "result_click", "select_item")  # names of a click, unless told

FORMATS: dict[str, Callable[[Sequence[pl.DataFrame], frozenset[str]], Log]] = {
    "ubi": ubi,
    "metarank": metarank,
    "obd": obd,
    "ga4": ga4,
    "clax": clax,
    "long": long,
    "wide": wide,
}
TABLES = ("long", "wide")  # formats whose columns are the log's own, so that a column may be context
QUERIES = files.Kind("table of queries", check=lambda path: columns_of(path)[:1] == ["query_id"])


@dataclass(frozen=True)
class Imported:
    """The result of an import: where the log is, how long it is, and what a reader should know.

    `unmatched` are clicks that belong to no impression, or to an item that it did not show. `queries`: the table of the
    queries with their context, where there is one.
    """

    path: Path
    impressions: int
    clicks: int
    unmatched: int
    notes: tuple[str, ...]
    queries: Path | None = None


def import_log(
    kind: str,
    sources: Sequence[str | Path],
    out: str | Path,
    *,
    click_names: Sequence[str] = CLICKS,
    columns: Mapping[str, str] | None = None,
    context: Sequence[str] = (),
) -> Imported:
    """Reads the files of another system and writes a click log in one piece to the folder `out`.

    `columns`: names that the format expects, and what they are called in the files. `context`: columns that become a part of
    the query; the queries with these columns are written beside the log, as features.
    """
    if kind not in FORMATS:
        raise ConfigError(f"--from takes {', '.join(FORMATS)}; got {kind!r}.")
    if context and kind not in TABLES:
        raise ConfigError(
            f"--context is for tables with columns of their own, --from {' or '.join(TABLES)}; got {kind!r}."
        )
    frames = [_with_names(read(Path(source)), columns or {}, Path(source)) for source in sources]
    if not frames:
        raise LogError("expected files to import; got none.")
    tables = []
    if context:
        both = [with_context(frame, context, Path(source)) for frame, source in zip(frames, sources, strict=True)]
        frames, tables = [frame for frame, _ in both], [table for _, table in both]
    try:
        log = FORMATS[kind](frames, frozenset(click_names))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise LogError(
            f"{', '.join(map(str, sources))}: cannot be read as the format {kind}: {reason}. Correct or drop the rows."
        ) from error
    if not len(log.frame):
        raise LogError(f"the files hold no impression of the format {kind}. Is it the right format?")
    notes = (*log.notes, *_unfit(log.frame, Path(out)))
    with files.replacing(out, CLICK_LOG, inputs=sources) as folder:
        folder.mkdir()
        write_part(log.frame, folder, 0)
    clicks = int(log.frame["clicks"].list.sum().sum())
    queries = _write_queries(tables, Path(out), sources) if tables else None
    return Imported(Path(out), len(log.frame), clicks, log.unmatched, notes, queries)


def _unfit(frame: pl.DataFrame, out: Path) -> tuple[str, ...]:
    """What is wrong with the imported log, if anything is, and how to mend it; refused where no impression is right."""
    found = validate(frame)
    if found.fit:
        return ()
    first = found.problems[0]
    rows = f" in row {first.rows[0]}" if first.rows else ""
    wrong = f"column {first.column or 'any'}{rows}: {first.message}"
    if not found.usable:
        raise LogError(f"no impression of the files can be used; {wrong} Correct the files.")
    good = f"{found.usable:,} of {found.impressions:,} impressions are without a problem"
    return (f"not fit to be used as it is: {good}; {wrong} `tandemrank validate {out} --fix CLEAN` writes those",)


def _write_queries(tables: Sequence[pl.DataFrame], out: Path, sources: Sequence[str | Path]) -> Path:
    """The queries with their context, beside the log: OUT-queries.parquet."""
    path = out.with_name(f"{out.name}-queries.parquet")
    found = pl.concat(tables, how="vertical_relaxed").unique("query_id", keep="first", maintain_order=True)
    with files.replacing(path, QUERIES, inputs=sources) as place:
        found.write_parquet(place)
    return path


def _with_names(frame: pl.DataFrame, columns: Mapping[str, str], path: Path) -> pl.DataFrame:
    """The frame with the names that the format expects; a column that had such a name already gives way."""
    present = {ours: theirs for ours, theirs in columns.items() if ours != theirs}
    if missing := [theirs for theirs in columns.values() if theirs not in frame.columns]:
        there = ", ".join(frame.columns[:20])
        raise LogError(f"{path}: --column names {missing[0]!r}, but the columns are {there}.")
    return frame.drop([ours for ours in present if ours in frame.columns]).rename({v: k for k, v in present.items()})
