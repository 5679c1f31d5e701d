"""An audit of what was shown: every list of a served log drawn again, from its policies, query and key, and compared."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path, PurePath
from typing import Any

import polars as pl
from pydantic import ConfigDict, TypeAdapter
from pydantic_core import from_json

from tandemrank._base import buckets, frames
from tandemrank._base.files import plain, regular
from tandemrank.errors import InputError, LogError
from tandemrank.logs import sources
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.serving import engine, journal
from tandemrank.serving.live_policy import LivePolicy
from tandemrank.serving.records import Impression

IMPRESSION = TypeAdapter(Impression, config=ConfigDict(strict=True, allow_inf_nan=False))
PLAIN = ("query_id", "items", "policy", "strategy", "key", "places")
AS_JSON = ("mixture", "theta", "available", "features", "context")
COLUMNS = ("impression_key", "timestamp", *PLAIN, *AS_JSON)


@dataclass(frozen=True)
class ReplayDifference:
    """An impression whose list is another one when it is drawn again."""

    file: str
    row: int
    logged: tuple[int | str, ...]
    drawn: tuple[int | str, ...]


@dataclass(frozen=True)
class Replayed:
    """How many impressions were drawn again, how many are equal, and the first that is not."""

    impressions: int
    equal: int
    first: ReplayDifference | None


def replay(
    paths: Sequence[str | Path],
    policies: Iterable[TwoStagePolicy | LivePolicy],
    *,
    progress: Callable[[int], None] | None = None,
) -> Replayed:
    """Compares every impression of segments with what its policies draw from its key, item by item."""
    live = {one.digest: one for one in (p if isinstance(p, LivePolicy) else LivePolicy(p) for p in policies)}
    total = equal = 0
    first: ReplayDifference | None = None
    for path in segments(paths):
        for row, impression in enumerate(_impressions(path)):
            total += 1
            logged, drawn = impression.items, _draw_again(impression, live, path)
            equal += logged == drawn
            if first is None and logged != drawn:
                first = ReplayDifference(str(path), row, logged, drawn)
        if progress is not None:
            progress(total)
    return Replayed(total, equal, first)


def digests(paths: Sequence[str | Path]) -> set[str]:
    """Of the policies that the segments name."""
    found = {impression.mixture for path in segments(paths) for impression in _impressions(path)}
    return {digest for mixture in found for digest, _ in mixture}


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
    folder = journal.in_utf8(path)
    return sorted(folder.glob("segment-*.parquet")) if folder.is_dir() else [folder]


def _read(path: str | Path) -> pl.DataFrame:
    """What is needed of a segment, here or in a bucket; refuses one that is damaged, or none."""
    try:
        with buckets.local(path) as here:
            if damage := frames.damage_of(regular(here)):
                raise LogError(f"{path} {damage}")
            frame = pl.read_parquet(here, glob=False)
    except frames.UNREADABLE as error:
        raise LogError(
            f"cannot read {path}: {str(error).splitlines()[0]}. Expected a segment of a served log."
        ) from error
    if missing := [c for c in COLUMNS if c not in frame.columns]:
        raise LogError(f"{path}: expected the columns {', '.join(COLUMNS)}; {', '.join(missing)} is not there.")
    return frame.select(COLUMNS)


def _impressions(path: str | Path) -> Iterator[Impression]:
    """The rows of a segment, as `sealing.wide` made them."""
    for number, row in enumerate(_read(path).iter_rows(named=True)):
        try:
            yield _impression(row)
        except (ValueError, TypeError, AttributeError) as error:
            words = str(error).replace("\n", " ")[:200]
            raise LogError(f"{path}: row {number} is not an impression of a served log: {words}") from error


def _impression(row: dict[str, Any]) -> Impression:
    found = {
        "id": row["impression_key"],
        "time": row["timestamp"].replace(tzinfo=UTC).timestamp(),
        **{name: row[name] for name in PLAIN},
        **{name: None if row[name] is None else from_json(row[name]) for name in AS_JSON},
    }
    return IMPRESSION.validate_json(json.dumps(found))


def _draw_again(impression: Impression, live: dict[str, LivePolicy], path: str | Path) -> tuple[int | str, ...]:
    """The list of one impression, drawn from its key."""
    if missing := [digest for digest, _ in impression.mixture if digest not in live]:
        raise LogError(f"{path} has impressions of the policy {missing[0]}, which was not given. Give its folder too.")
    try:
        return engine.list_of(impression.traffic(live)[1], impression)
    except InputError as error:
        raise LogError(f"{path}: a row cannot be drawn again: {error}") from error
