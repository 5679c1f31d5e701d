"""The importers by name, and the whole way from the files of another system to a click log of ours."""

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import polars as pl

from tandemrank._base import files
from tandemrank._base.frames import UNREADABLE, columns_of
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.importers.formats import Converted, clax, ga4, long, metarank, obd, ubi, wide
from tandemrank.logs.schema import LONG, WIDE
from tandemrank.logs.validation import validate
from tandemrank.logs.writing import CLICK_LOG, write_part

CLICKS = ("click", "item_click", "product_click", "result_click", "select_item")  # names of a click, unless told

FORMATS: dict[str, Callable[[Sequence[pl.DataFrame], frozenset[str]], Converted]] = {
    "ubi": ubi,
    "metarank": metarank,
    "obd": obd,
    "ga4": ga4,
    "clax": clax,
    "long": long,
    "wide": wide,
}
TABLES = ("long", "wide")  # formats whose columns are the log's own, so that a column may be context
BETWEEN = "|"  # of a query id and its context
NO_PROPENSITIES = "no propensities: they are fitted to the lists, if these vary"
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
    except LogError as error:
        raise LogError(f"{kind}: {error}") from error
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise LogError(
            f"{', '.join(map(str, sources))}: cannot be read as the format {kind}: {reason}. Correct or drop the rows."
        ) from error
    if not len(log.frame):
        raise LogError(f"the files hold no impression of the format {kind}. Is it the right format?")
    no_propensities = () if "propensities" in log.frame.columns else (NO_PROPENSITIES,)
    notes = (*log.notes, *no_propensities, *_unfit(log.frame, Path(out)))
    with files.replacing(out, CLICK_LOG, inputs=sources) as folder:
        folder.mkdir()
        write_part(log.frame, folder, 0)
    clicks = int(log.frame["clicks"].list.sum().sum())
    queries = _write_queries(tables, Path(out), sources) if tables else None
    return Imported(
        path=Path(out),
        impressions=len(log.frame),
        clicks=clicks,
        unmatched=log.unmatched,
        notes=notes,
        queries=queries,
    )


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


def read(path: Path) -> pl.DataFrame:
    """A file of JSON lines, a JSON array, CSV or Parquet, by its ending."""
    kind = path.suffix.lower()
    try:
        files.regular(path)
        if kind == ".parquet":
            return pl.read_parquet(path, glob=False)
        if kind == ".csv":
            return pl.read_csv(path, infer_schema_length=None, glob=False)
        if kind in (".jsonl", ".ndjson"):
            return pl.read_ndjson(_without_mark(path), infer_schema_length=None)
        if kind == ".json":
            return pl.read_json(_without_mark(path), infer_schema_length=None)
    except (*UNREADABLE, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        reason = (_damaged_line(path) if kind in (".jsonl", ".ndjson") else None) or reason
        raise LogError(f"cannot read {path}: {reason}. Expected a whole file of that kind.") from error
    raise LogError(f"{path} ends in {kind!r}: expected .jsonl, .ndjson, .json, .csv or .parquet.")


def _without_mark(path: Path) -> Path | BytesIO:
    """The file, or its bytes after the mark that some systems put before UTF-8."""
    with path.open("rb") as file:
        if file.read(len(BOM_UTF8)) != BOM_UTF8:
            return path
        return BytesIO(file.read())


def _damaged_line(path: Path) -> str | None:
    """Which line is no JSON, in words; None where none is, or where the file cannot be read at all."""
    try:
        for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
            try:
                json.loads(line or "null")
            except ValueError:
                return f"line {number} is no JSON ({line[:40]!r})"
    except (OSError, UnicodeDecodeError):
        return None
    return None


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
