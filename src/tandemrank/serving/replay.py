"""Draws every list of a served log again, from the pair, the query and the key, and compares: an audit of what was shown."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from tandemrank.errors import LogError
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.serving.engine import LivePair
from tandemrank.serving.exploration import parse

COLUMNS = ("query_id", "items", "policy", "strategy", "key", "places", "available")


@dataclass(frozen=True)
class Difference:
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
    first: Difference | None


def replay(paths: Sequence[str | Path], pairs: Iterable[TwoStagePolicy]) -> Replayed:
    """Compares every impression of segments with what its pair draws from its key, item by item."""
    live = {one.digest: one for one in map(LivePair, pairs)}
    total = equal = 0
    first: Difference | None = None
    for path in segments(paths):
        frame = _read(path).with_row_index("row")
        total += len(frame)
        for (policy, query, strategy, places, available), group in frame.group_by(
            "policy", "query_id", "strategy", "places", "available", maintain_order=True
        ):
            if policy not in live:
                raise LogError(
                    f"{path} has impressions of the pair {policy}, which was not given. Give its folder too."
                )
            drawn = _draw_again(live[str(policy)], query, str(strategy), int(str(places)), available, group)
            logged = group["items"].to_list()
            for row, one, other in zip(group["row"], logged, drawn, strict=True):
                equal += one == other
                if one != other and (first is None or (str(path), row) < (first.file, first.row)):
                    first = Difference(str(path), int(row), tuple(one), tuple(other))
    return Replayed(total, equal, first)


def segments(paths: Sequence[str | Path]) -> list[Path]:
    """The segments of folders and files, in order."""
    found = [s for p in map(Path, paths) for s in (sorted(p.glob("segment-*.parquet")) if p.is_dir() else [p])]
    if not found:
        raise LogError(f"there is no segment of a served log in {', '.join(map(str, paths))}.")
    return found


def _read(path: Path) -> pl.DataFrame:
    try:
        frame = pl.read_parquet(path, glob=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise LogError(
            f"cannot read {path}: {str(error).splitlines()[0]}. Expected a segment of a served log."
        ) from error
    if missing := [c for c in COLUMNS if c not in frame.columns]:
        raise LogError(f"{path}: expected the columns {', '.join(COLUMNS)}; {', '.join(missing)} is not there.")
    return frame


def _draw_again(
    live: LivePair, query: object, strategy: str, places: int, available: object, group: pl.DataFrame
) -> list[list[int | str]]:
    """The lists of one query, drawn from their keys."""
    known = query
    if not live.knows(query) and isinstance(query, str) and query.lstrip("-").isdigit() and live.knows(int(query)):  # type: ignore[arg-type]
        known = int(query)  # a segment with an unnamed query has all its ids as text
    scores = live.scores(known, None if available is None else json.loads(str(available)))  # type: ignore[arg-type]
    keys = group["key"].cast(pl.UInt64).to_numpy().astype(np.uint64)
    lists = parse(strategy).draw(*scores, live.pair.K2, live.pair.K, keys)[:, :places]
    return [[live.items[d] for d in row if d >= 0] for row in lists]
