"""Tables: frames of polars and pandas as one kind, and Parquet files with a checksum."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import numpy as np
import polars as pl

UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)  # what reading a file of rows may raise


def columns_of(path: Path) -> list[str]:
    """The names of the columns of a Parquet file, none where it is not one."""
    try:
        return list(pl.read_parquet_schema(path))
    except UNREADABLE:
        return []


class PandasFrame(Protocol):
    """What is needed of a pandas frame, which is no dependency."""

    def to_dict(self, orient: Any) -> Any:
        """The columns by name; the orientation is "list"."""


def is_pandas(source: object) -> TypeGuard[PandasFrame]:
    """Whether this is a pandas frame, which is known by what it can do."""
    return all(hasattr(source, name) for name in ("to_dict", "notna", "astype"))


def from_pandas(frame: PandasFrame, column: Callable[[str, list[Any]], pl.Series]) -> pl.DataFrame:
    """A pandas frame through plain Python values, since pandas has no lists of its own; what is missing is None.

    `column(name, values)` makes a column of them, or refuses.
    """
    source: Any = frame
    values = source.astype(object).where(source.notna(), None).to_dict(orient="list")
    return pl.DataFrame([column(str(name), [_plain(v) for v in some]) for name, some in values.items()])


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


# --- Parquet with a checksum ------------------------------------------------------------------------------------------

# Over every byte of the file: what a disk or a copy has changed is not read as if it were whole. The file's own metadata have
# the checksum of the file with zeros in its place. A bit that is flipped in the key leaves the mark of the value, and the other
# way round, so that no single one makes a file look as if it never had a checksum.
KEY = "tandemrank.checksum"
VALUE = b"sha256 of this file with zeros here: "
LENGTH = 64  # hexadecimal digits
TAIL = 2**16  # bytes at the end in which the mark is, where the footer is not longer


def write_parquet(frame: pl.DataFrame, path: Path) -> None:
    """Writes a frame with its checksum; for a temporary path, as it is not there in one piece."""
    mark = VALUE + b"0" * LENGTH
    frame.write_parquet(path, compression="zstd", metadata={KEY: mark.decode()})
    at = _mark(path)[1]
    digest = _digest(path, at)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(digest)


def damage_of(path: Path) -> str | None:
    """What is wrong with a file that has a checksum, in words; None where it is right, or where there is none."""
    has_key, at = _mark(path)
    if not has_key and at < 0:
        return None
    if has_key and at >= 0:
        with path.open("rb") as file:
            file.seek(at)
            if file.read(LENGTH) == _digest(path, at):
                return None
    return "is damaged: its bytes do not have its checksum. Restore it from a copy, or leave it out."


def _mark(path: Path) -> tuple[bool, int]:
    """Whether the key is there, and where the digits of the checksum begin, -1 where they are not."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - 8))
        footer = int.from_bytes(file.read(4), "little") + 8
        first = max(0, size - max(TAIL, footer if footer < size else 0))
        file.seek(first)
        tail = file.read()
    at = tail.rfind(VALUE)
    return KEY.encode() in tail, -1 if at < 0 else first + at + len(VALUE)


def _digest(path: Path, at: int) -> bytes:
    """Of all bytes, with zeros for the digits at a place."""
    with path.open("rb") as file:
        found = hashlib.sha256(file.read(at) + b"0" * LENGTH)
        file.seek(at + LENGTH)
        found.update(file.read())
    return found.hexdigest().encode()
