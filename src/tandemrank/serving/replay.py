"""Draws every list of a served log again, from the pairs, the query and the key, and compares: an audit of what was shown."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import polars as pl
from pydantic import ConfigDict, TypeAdapter

from tandemrank._base import buckets, checksum
from tandemrank._base.files import plain
from tandemrank.errors import ConfigError, InputError, LogError
from tandemrank.logs import sources
from tandemrank.serving import engine, exploration, log_files
from tandemrank.serving.live_policy import LivePolicy, ServablePolicy
from tandemrank.serving.records import Arm, Mode, RankQuestion, StoredId, Traffic

# What columns of text have, as JSON.
STRICT = ConfigDict(strict=True, allow_inf_nan=False)
MIXTURE = TypeAdapter(tuple[tuple[str, float], ...], config=STRICT)
AVAILABLE = TypeAdapter(tuple[StoredId, ...], config=STRICT)
FEATURES = TypeAdapter(dict[str, float | str | None], config=STRICT)


@dataclass(frozen=True)
class ReplayDifference:
    """An impression whose list is another one when it is drawn again."""

    file: str
    row: int
    logged: tuple[int | str, ...]
    drawn: tuple[int | str, ...]


@dataclass(frozen=True)
class Replayed:
    """How many impressions were drawn again, how many are equal, and the first that is not.

    `without_features`: impressions of queries known by features alone, which the log does not have: they are not drawn.
    """

    impressions: int
    equal: int
    without_features: int
    first: ReplayDifference | None


def replay(
    paths: Sequence[str | Path],
    pairs: Iterable[ServablePolicy | LivePolicy],
    *,
    progress: Callable[[int], None] | None = None,
) -> Replayed:
    """Compares every impression of segments with what its pairs draw from its key, item by item."""
    live = {one.digest: one for one in (p if isinstance(p, LivePolicy) else LivePolicy(p) for p in pairs)}
    total = equal = skipped = 0
    first: ReplayDifference | None = None
    for path in segments(paths):
        for row, impression in enumerate(_read(path).iter_rows(named=True)):
            if impression["uses_features"] and impression["features"] is None:
                skipped += 1
                continue
            total += 1
            logged, drawn = tuple(impression["items"]), _draw_again(impression, live, path)
            equal += logged == drawn
            if first is None and logged != drawn:
                first = ReplayDifference(str(path), row, logged, drawn)
        if progress is not None:
            progress(total)
    return Replayed(total, equal, skipped, first)


def policies(paths: Sequence[str | Path]) -> set[str]:
    """The digests of the pairs that the segments name."""
    found = {(mixture, path) for path in segments(paths) for mixture in _read(path)["mixture"].unique()}
    return {digest for mixture, path in found for digest, _ in _mixture(mixture, path)}


def _mixture(text: str, path: object) -> tuple[tuple[str, float], ...]:
    found: tuple[tuple[str, float], ...] = _json("mixture", text, MIXTURE, path)
    return found


def segments(paths: Sequence[str | Path]) -> list[str | Path]:
    """The segments of folders, files and URLs, in order."""
    found = [s for p in paths for s in _segments(plain(p))]
    if not found:
        raise LogError(f"there is no segment of a served log in {', '.join(map(str, paths))}.")
    return found


def _segments(path: str | Path) -> Sequence[str | Path]:
    if isinstance(path, str) and buckets.is_url(path):
        found = list(sources.paths(path))
        return found if found == [path] else [p for p in found if PurePath(p).match("segment-*.parquet")]
    folder = log_files.in_utf8(path)
    return sorted(folder.glob("segment-*.parquet")) if folder.is_dir() else [folder]


def _read(path: str | Path) -> pl.DataFrame:
    try:
        with buckets.local(path) as here:
            if damage := checksum.problem(Path(here)):
                raise LogError(f"{path} {damage}")
            frame = pl.read_parquet(here, glob=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise LogError(
            f"cannot read {path}: {str(error).splitlines()[0]}. Expected a segment of a served log."
        ) from error
    if missing := [c for c in TYPES if c not in frame.columns]:
        raise LogError(f"{path}: expected the columns {', '.join(TYPES)}; {', '.join(missing)} is not there.")
    for name, (words, holds) in TYPES.items():
        if not holds(frame[name]):
            raise LogError(f"{path}: expected {words} as {name}, got {frame[name].dtype}, or a value that is missing.")
    return frame.select(*TYPES)


def _texts(x: pl.Series) -> bool:
    return x.dtype == pl.String and not x.has_nulls()


def _are_ids(kind: Any) -> bool:
    return bool(kind.is_integer() or kind == pl.String)


def _numbers_from(least: int) -> Callable[[pl.Series], bool]:
    return lambda x: x.dtype.is_integer() and not x.has_nulls() and (not len(x) or int(x.min()) >= least)  # type: ignore[arg-type]


TYPES: dict[str, tuple[str, Callable[[pl.Series], bool]]] = {
    "query_id": ("ids", lambda x: _are_ids(x.dtype) and not x.has_nulls()),
    "items": ("lists of ids", lambda x: isinstance(x.dtype, pl.List) and _are_ids(x.dtype.inner) and not x.has_nulls()),
    "key": ("integers from 0", _numbers_from(0)),
    "places": ("integers from 1", _numbers_from(1)),
    "uses_features": ("truth values", lambda x: x.dtype == pl.Boolean and not x.has_nulls()),
    **dict.fromkeys(("policy", "strategy", "mixture"), ("texts", _texts)),
    **dict.fromkeys(("available", "features"), ("texts or nothing", lambda x: x.dtype in (pl.String, pl.Null))),
}


def _draw_again(row: dict[str, Any], live: dict[str, LivePolicy], path: str | Path) -> tuple[int | str, ...]:
    """The list of one impression, drawn from its key."""
    mixture = _mixture(row["mixture"], path)
    available = None if row["available"] is None else _json("available", row["available"], AVAILABLE, path)
    features = None if row["features"] is None else _json("features", row["features"], FEATURES, path)
    digests = [digest for digest, _ in mixture]
    if missing := [digest for digest in digests if digest not in live]:
        raise LogError(f"{path} has impressions of the pair {missing[0]}, which was not given. Give its folder too.")
    interleaved = len(digests) > 1 and row["policy"] == "+".join(digests)
    if not interleaved and row["policy"] not in digests:
        raise LogError(f"{path}: a row is of the policy {row['policy'][:60]!r}, which is not in its mixture.")
    mode: Mode = "interleave" if interleaved else "split" if len(mixture) > 1 else "single"
    try:
        now = Traffic(tuple(Arm(live[digest], share) for digest, share in mixture), mode)
        how = exploration.parse(row["strategy"])
    except ConfigError as error:
        raise LogError(f"{path}: a row cannot be drawn again: {error}") from error
    if row["places"] > now.arms[0].live.K:
        raise LogError(f"{path}: a row has {row['places']} places, and its pair {now.arms[0].live.K}.")
    arm = 0 if interleaved else digests.index(row["policy"])
    asked = RankQuestion(row["query_id"], features, available, row["places"], row["key"])
    try:
        return engine.answer(now, arm, asked, how)[0]
    except InputError as error:
        raise LogError(f"{path}: a row cannot be drawn again: {error}") from error


def _json(name: str, text: str, kind: TypeAdapter[Any], path: object) -> Any:
    """What a column of text has."""
    try:
        return kind.validate_json(text)
    except ValueError as error:
        raise LogError(f"{path}: a row has {name} of another shape: {text[:60]!r}.") from error
