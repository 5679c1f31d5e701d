"""Click logs as Parquet: parts in a folder, each marked, so that ours are known from others."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import polars as pl

from tandemrank._base import files
from tandemrank._base.files import Kind
from tandemrank._base.frames import UNREADABLE
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import LogError
from tandemrank.logs.impressions import Impressions, Propensities, flattened

MARK = {"tandemrank": "click log"}


def write_part(frame: pl.DataFrame, folder: Path, number: int) -> None:
    """Writes one part of a log."""
    name = f"part-{number:05d}.parquet"
    frame.write_parquet(folder / name, compression="zstd", compression_level=1, metadata=MARK)


def _is_marked(part: Path) -> bool:
    try:
        return MARK.items() <= pl.read_parquet_metadata(part).items()
    except UNREADABLE:
        return False


CLICK_LOG = Kind("click log", r"part-\d{5,}\.parquet", lambda folder: all(map(_is_marked, folder.iterdir())))


def write(
    parts: Iterable[Impressions],
    path: str | Path,
    vocabulary: Vocabulary,
    *,
    propensities: Propensities | None = None,
    policy: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> Path:
    """Writes a log as a folder of Parquet parts, one for each part of impressions; it appears only when whole.

    `propensities(impressions) -> [n, K]` gives the rho_0 of what was shown, `progress(n)` hears of impressions written.
    """
    with files.replacing(path, CLICK_LOG) as folder:
        folder.mkdir()
        number = done = 0
        for number, part in enumerate(parts, 1):
            frame = _frame(part, vocabulary, propensities, policy)
            write_part(frame, folder, number - 1)
            done += len(part.query)
            if progress:
                progress(done)
        if not number:
            raise LogError("expected impressions to write; got none.")
    return Path(path)


def _frame(
    part: Impressions, vocabulary: Vocabulary, propensities: Propensities | None, policy: str | None
) -> pl.DataFrame:
    """Impressions as rows of the wide log, in outside ids."""
    shown = flattened(part, vocabulary, propensities)
    padded = {
        "items": vocabulary.item_ids.gather(np.maximum(part.items, 0).ravel()),
        "clicks": pl.Series(part.clicks.ravel()),
    }
    if shown.propensity is not None:
        rho_0 = np.ones(part.items.size)
        rho_0[part.items.ravel() >= 0] = shown.propensity
        padded["propensities"] = pl.Series(rho_0)
    lists = [values.reshape(part.items.shape).arr.to_list().alias(name) for name, values in padded.items()]
    frame = pl.DataFrame([vocabulary.query_ids.gather(part.query).alias("query_id"), *lists])
    frame = frame.with_columns(pl.col(*padded).list.head(pl.lit(pl.Series(shown.length))))
    return frame if policy is None else frame.with_columns(policy=pl.lit(policy))
