"""The files of a log that we write: Parquet parts in a folder, each marked, so that ours are known from others."""

from pathlib import Path

import polars as pl

from tandemrank._base.files import Kind

MARK = {"tandemrank": "click log"}


def write_part(frame: pl.DataFrame, folder: Path, number: int) -> None:
    """Writes one part of a log."""
    name = f"part-{number:05d}.parquet"
    frame.write_parquet(folder / name, compression="zstd", compression_level=1, metadata=MARK)


def _is_marked(part: Path) -> bool:
    try:
        return MARK.items() <= pl.read_parquet_metadata(part).items()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError):
        return False


CLICK_LOG = Kind("click log", r"part-\d{5,}\.parquet", lambda folder: all(map(_is_marked, folder.iterdir())))
