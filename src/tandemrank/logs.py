"""Click logs: writing them as Parquet, and reading them (`log_sources`) in batches with every check of `log_checks`.

A log is read once; its cost in memory is that of its distinct (query, item, rank).
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import polars as pl

from tandemrank import files
from tandemrank.clicks import Impressions
from tandemrank.errors import LogError
from tandemrank.feedback import (
    Feedback,
    Propensities,
    Shown,
    check_share,
    renamed,
    same,
    shown_items,
    tally,
    total,
    unpacked,
)
from tandemrank.log_checks import Names, examine
from tandemrank.log_sources import Source, batches, describe
from tandemrank.vocabulary import Vocabulary

Progress = Callable[[int], None]


def write(
    parts: Iterable[Impressions],
    path: str | Path,
    vocabulary: Vocabulary,
    *,
    propensities: Propensities | None = None,
    policy: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Writes a log as a folder of Parquet parts, one for each part of impressions; it appears only when whole.

    `propensities(impressions) -> [n, K]` gives the rho_0 of what was shown, `progress(n)` hears of impressions written.
    """
    with files.replacing(path) as folder:
        folder.mkdir()
        number = done = 0
        for number, part in enumerate(parts, 1):
            frame = _frame(part, vocabulary, propensities, policy)
            frame.write_parquet(folder / f"part-{number - 1:05d}.parquet", compression="zstd", compression_level=1)
            done += len(part.query)
            if progress:
                progress(done)
        if not number:
            raise LogError("expected impressions to write; none came.")
    return Path(path)


def _frame(
    part: Impressions, vocabulary: Vocabulary, propensities: Propensities | None, policy: str | None
) -> pl.DataFrame:
    """Impressions as rows of the wide log, in outside ids."""
    shown = shown_items(part, vocabulary, propensities)
    row = np.repeat(np.arange(len(part.query)), shown.length)
    flat = {"items": vocabulary.item_ids.gather(shown.item), "clicks": pl.Series(shown.click)}
    if shown.propensity is not None:
        flat["propensities"] = pl.Series(shown.propensity)
    if len(row) == part.items.size:
        lists = [values.reshape(part.items.shape).arr.to_list().alias(name) for name, values in flat.items()]
        frame = pl.DataFrame([vocabulary.query_ids.gather(part.query).alias("query_id"), *lists])
    else:  # short lists
        ids = pl.DataFrame({"row": np.arange(len(part.query)), "query_id": vocabulary.query_ids.gather(part.query)})
        lists_by_row = pl.DataFrame({"row": row, **flat}).group_by("row", maintain_order=True).agg(pl.all())
        frame = ids.join(lists_by_row, on="row", how="left", maintain_order="left").drop("row")
        frame = frame.with_columns(pl.col(*flat).fill_null([]))
    return frame if policy is None else frame.with_columns(policy=pl.lit(policy))


# --- reading ----------------------------------------------------------------------------------------------------------


def read(
    source: Source,
    *,
    vocabulary: Vocabulary | None = None,
    K: int | None = None,
    batch: int = 200_000,
    progress: Progress | None = None,
) -> Feedback:
    """Reads a log, wide or long: files, folders, patterns, a frame. Refuses the first problem by file, row and column.

    With a `vocabulary` every id must be in it; without, the log's own ids become one, sorted. K is the number of ranks
    of the examination curve. `progress(n)` hears of impressions read.
    """
    return _read(source, vocabulary, K, batch, progress, 0.0, 0)[0]


def read_split(
    source: Source,
    held_out: float = 0.15,
    *,
    seed: int = 0,
    vocabulary: Vocabulary | None = None,
    K: int | None = None,
    batch: int = 200_000,
    progress: Progress | None = None,
) -> tuple[Feedback, Feedback]:
    """As `read`, with the given share of the impressions held out: (for training, held out), of one vocabulary.

    Which impressions depends on the seed and their number in the log, not on the batches.
    """
    check_share(held_out)
    return _read(source, vocabulary, K, batch, progress, held_out, seed)


def _read(
    source: Source,
    vocabulary: Vocabulary | None,
    K: int | None,
    batch: int,
    progress: Progress | None,
    held_out: float,
    seed: int,
) -> tuple[Feedback, Feedback]:
    names = Names(vocabulary)

    def parts() -> Iterator[Shown]:
        done, name, propensities = 0, "nothing", None
        for piece in batches(source, batch):
            if piece.frame is None or piece.found:
                raise LogError(describe(piece, piece.found[0]))
            name = piece.name
            if not len(piece.frame):
                continue
            found, shown = examine(piece.frame, names, K)
            if shown is None:
                raise LogError(describe(piece, found[0]))
            propensities = shown.propensity is not None if propensities is None else propensities
            if propensities != (shown.propensity is not None):
                raise LogError(
                    f"{name}, column propensities: some parts of the log have propensities and others have none. "
                    "Read them apart, or add them."
                )
            done += len(shown.query)
            yield shown
            if progress:
                progress(done)
        if not done:
            raise LogError(f"{name}: expected a log with impressions; it is empty. Check the path and how it was made.")

    train, apart = tally(parts(), names.vocabulary, held_out, seed)
    if vocabulary is not None:
        return train, apart
    # The ids are in the order in which they came; sorted, they do not depend on the order of the files.
    final = Vocabulary(train.vocabulary.query_ids.sort(), train.vocabulary.item_ids.sort())
    if same(final, train.vocabulary):
        return train, apart
    moved = (renamed(feedback, final) for feedback in (train, apart))
    train, apart = (unpacked(total([sums]), final, impressions) for sums, impressions in moved)
    return train, apart
