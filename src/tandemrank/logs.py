"""Click logs as Parquet files: writing, and reading in batches with every check of `log_checks`.

A log is read once; its cost in memory is that of its distinct (query, item, rank).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from glob import glob
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

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
from tandemrank.log_checks import LONG, WIDE, Names, Problem, examine, is_long, schema_problems
from tandemrank.vocabulary import Vocabulary

Source = str | Path | Sequence[str | Path] | pl.DataFrame | pl.LazyFrame
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
    """Reads a log, wide or long: files, folders, globs, a frame. Refuses the first problem by file, row and column.

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
        done = 0
        for name, first, frame in _batches(source, batch):
            found, shown = examine(frame, names, K)
            if found or shown is None:
                raise LogError(_describe(name, first, found[0]))
            done += len(shown.query)
            yield shown
            if progress:
                progress(done)

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


def _describe(name: str, first: int, problem: Problem) -> str:
    """A problem in words, with its file and its row there."""
    row = f", row {first + problem.rows[0]}" if problem.rows else ""
    more = f" {problem.count} rows of this batch have the problem." if problem.count > 1 else ""
    return f"{name}{row}, column {problem.column}: {problem.message}{more}"


def _batches(source: Source, batch: int) -> Iterator[tuple[str, int, pl.DataFrame]]:
    """The log in pieces: the file, the number of the piece's first row there, its rows."""
    for name, frame in _frames(source):
        first = 0
        try:
            found = schema_problems(frame.collect_schema())
            if found:
                raise LogError(_describe(name, 0, found[0]))
            columns = frame.collect_schema().names()
            wanted = [c for c in (LONG if is_long(columns) else WIDE) if c in columns]
            pieces: Iterator[pl.DataFrame] = frame.select(wanted).collect_batches(chunk_size=batch, maintain_order=True)
            for piece in _uncut(pieces, name) if is_long(columns) else pieces:
                yield name, first, piece
                first += len(piece)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise LogError(f"{name} cannot be read as Parquet: {error}. Is it whole, and is it Parquet?") from error


def _uncut(pieces: Iterable[pl.DataFrame], name: str) -> Iterator[pl.DataFrame]:
    """A long log in pieces that end where an impression ends; refuses an impression that comes back later."""
    carry: pl.DataFrame | None = None
    seen: list[NDArray[np.uint64]] = []
    for piece in pieces:
        piece = piece if carry is None else pl.concat([carry, piece])
        run = piece["impression_id"].rle_id().to_numpy()
        cut = int(np.searchsorted(run, run[-1])) if len(run) else 0
        carry = piece[cut:]
        if cut:
            # 64 bits for each impression: with 10 million of them, one false alarm in 300,000 logs.
            seen.append(piece["impression_id"][:cut].filter(np.diff(run[:cut], prepend=-1) != 0).hash().to_numpy())
            yield piece[:cut]
    if carry is not None and len(carry):
        seen.append(carry["impression_id"][:1].hash().to_numpy())
        yield carry
    again = len(ids := np.concatenate([*seen, np.zeros(0, dtype=np.uint64)])) - len(np.unique(ids))
    if again:
        raise LogError(
            f"{name}, column impression_id: expected the rows of an impression together; {again} come back after "
            "another began. Sort the log by impression_id and position."
        )


def _frames(source: Source) -> Iterator[tuple[str, pl.LazyFrame]]:
    """The files or frames of a log, with their names."""
    if isinstance(source, pl.DataFrame | pl.LazyFrame):
        yield "the frame", source.lazy()
        return
    for path in [source] if isinstance(source, str | Path) else source:
        found = [Path(path)] if Path(path).exists() else [Path(p) for p in sorted(glob(str(path), recursive=True))]
        paths = [p for f in found for p in (sorted(f.rglob("[!.]*.parquet")) if f.is_dir() else [f])]
        if not paths:
            raise LogError(f"expected a Parquet file, or a folder or pattern that has some; nothing is at {path}.")
        for p in paths:
            yield str(p), pl.scan_parquet(p, glob=False)
