"""The importers by name, and the whole way from the files of another system to a click log of ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from tandemrank._base import files
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.contexts import check_columns
from tandemrank.logs.importers.formats import Format, Names, ga4, metarank
from tandemrank.logs.importers.lists import Count, Ledger
from tandemrank.logs.importers.sources import table
from tandemrank.logs.importers.tables import Table, clax, long, obd, wide
from tandemrank.logs.importers.ubi import ubi
from tandemrank.logs.schema import LONG, WIDE
from tandemrank.logs.validation import validate
from tandemrank.logs.writing import CLICK_LOG, write_part

# Names of events, unless told.
CLICKS = ("click", "click_through", "item_click", "product_click", "result_click", "select_item")
REWARDS = ("add_to_cart", "purchase")

EVENTS: dict[str, Format] = {"ubi": ubi, "metarank": metarank, "ga4": ga4}
TABLES: dict[str, Table] = {"obd": obd, "clax": clax, "long": long, "wide": wide}
OWN_COLUMNS = ("long", "wide")  # formats whose columns are the log's own, so that a column may be context or a reward
NO_PROPENSITIES = "no propensities: they are fitted to the lists, if these vary"


@dataclass(frozen=True)
class Imported:
    """The result of an import: where the log is, what of the files is in it, and what a reader should know.

    `counts`: what was given, kept and left out, and why. `rewards`: the columns of rewards in the log.
    """

    path: Path
    impressions: int
    clicks: int
    rewards: tuple[str, ...]
    counts: tuple[Count, ...]
    notes: tuple[str, ...]


def import_log(
    kind: str,
    sources: Sequence[str | Path],
    out: str | Path,
    *,
    click_names: Sequence[str] | None = None,
    columns: Mapping[str, str] | None = None,
    context: Sequence[str] = (),
    rewards: Sequence[str] | None = None,
) -> Imported:
    """Reads the files of another system and writes a click log in one piece to the folder `out`.

    `columns`: names that the format expects, and what they are called in the files; `a.b` is the field b of a. `context`:
    columns of an impression that the log keeps, for `learn(context=...)`. `rewards`: events, or columns of a table, that are a
    reward of an item: each is a column of the log.
    """
    _check(kind, click_names, columns, context, rewards)
    paths, ledger = [Path(source) for source in sources], Ledger()
    if not paths:
        raise LogError("expected files to import; got none.")
    try:
        if kind in EVENTS:
            names = Names(frozenset(click_names or CLICKS), tuple(REWARDS if rewards is None else rewards))
            frame = EVENTS[kind](paths, names, ledger)
        else:
            frames = [_with_names(table(path), columns or {}, path) for path in paths]
            frame = TABLES[kind](frames, tuple(rewards or ()), tuple(context), ledger)
    except LogError as error:
        raise LogError(f"{kind}: {error}") from error
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise LogError(
            f"{', '.join(map(str, sources))}: cannot be read as the format {kind}: {reason}. Correct or drop the rows."
        ) from error
    return _written(frame, ledger, Path(out), sources, context)


def _check(
    kind: str,
    click_names: Sequence[str] | None,
    columns: Mapping[str, str] | None,
    context: Sequence[str],
    rewards: Sequence[str] | None,
) -> None:
    """Refuses what a format does not take."""
    check_columns(context)
    if kind not in (*EVENTS, *TABLES):
        raise ConfigError(f"--from takes {', '.join((*EVENTS, *TABLES))}; got {kind!r}.")
    if context and kind not in OWN_COLUMNS:
        raise ConfigError(
            f"--context is for tables with columns of their own, --from {' or '.join(OWN_COLUMNS)}; got {kind!r}."
        )
    if columns and kind in EVENTS:
        raise ConfigError(
            f"--column is for tables, --from {' or '.join(TABLES)}; got {kind!r}, which has its own fields."
        )
    if click_names and kind not in EVENTS:
        raise ConfigError(f"--click-name is for events, --from {' or '.join(EVENTS)}; got {kind!r}.")
    if rewards and kind not in (*EVENTS, *OWN_COLUMNS):
        raise ConfigError(f"--reward is for --from {' or '.join((*EVENTS, *OWN_COLUMNS))}; got {kind!r}.")
    if own := [name for name in rewards or () if name in (*WIDE, *LONG)]:
        raise ConfigError(f"--reward: expected a column or event that a log does not use itself; got {own[0]!r}.")


def _written(
    frame: pl.DataFrame, ledger: Ledger, out: Path, sources: Sequence[str | Path], context: Sequence[str]
) -> Imported:
    """The log, written, and what there is to say of it."""
    if not len(frame):
        raise LogError("the files hold no impression of this format. Is it the right format?")
    has = {"propensity", "propensities"} & set(frame.columns)
    notes = (*ledger.notes, *(() if has else (NO_PROPENSITIES,)), *_unfit(frame, out))
    with files.replacing(out, CLICK_LOG, inputs=sources) as folder:
        folder.mkdir()
        write_part(frame, folder, 0)
    is_wide = "items" in frame.columns
    return Imported(
        path=out,
        impressions=len(frame) if is_wide else frame["impression_id"].n_unique(),
        clicks=int((frame["clicks"].list.sum() if is_wide else frame["click"]).sum()),
        rewards=tuple(c for c in frame.columns if c not in (*WIDE, *LONG, *context)),
        counts=ledger.counts(),
        notes=notes,
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


def _with_names(frame: pl.DataFrame, columns: Mapping[str, str], path: Path) -> pl.DataFrame:
    """The frame with the names that the format expects; a column that had such a name already gives way."""
    found = {}
    for ours, theirs in columns.items():
        at = _field(frame.schema, theirs)
        if at is None:
            there = ", ".join(frame.columns[:20])
            raise LogError(f"{path}: --column names {theirs!r}, but the columns are {there}.")
        found[ours] = at
    return frame.select(*(c for c in frame.columns if c not in columns), **found)


def _field(schema: Mapping[str, pl.DataType], name: str) -> pl.Expr | None:
    """A column, or the field `a.b` of a column of records or of lists of them; None where there is none."""
    if name in schema:
        return pl.col(name)
    first, *path = name.split(".")
    return _inside(pl.col(first), schema.get(first), path) if path else None


def _inside(value: pl.Expr, dtype: object, path: Sequence[str]) -> pl.Expr | None:
    if not path:
        return value
    if isinstance(dtype, pl.List):
        inner = _inside(pl.element(), dtype.inner, path)
        return None if inner is None else value.list.eval(inner)
    if not isinstance(dtype, pl.Struct) or path[0] not in dtype.to_schema():
        return None
    return _inside(value.struct.field(path[0]), dtype.to_schema()[path[0]], path[1:])
