"""A checksum inside a Parquet file, over every byte of it: what a disk or a copy has changed is not read as if it were whole.

The file's own metadata have the checksum of the file with zeros in its place. A bit that is flipped in the key leaves the mark
of the value, and the other way round, so that no single one makes a file look as if it never had a checksum.
"""

import hashlib
from pathlib import Path

import polars as pl

KEY = "tandemrank.checksum"
VALUE = b"sha256 of this file with zeros here: "
LENGTH = 64  # hexadecimal digits
TAIL = 2**16  # bytes at the end in which the mark is, where the footer is not longer
PART = 2**20


def write_parquet(frame: pl.DataFrame, path: Path) -> None:
    """Writes a frame with its checksum; for a temporary path, as it is not there in one piece."""
    mark = VALUE + b"0" * LENGTH
    frame.write_parquet(path, compression="zstd", metadata={KEY: mark.decode()})
    at = _mark(path)[1]
    digest = _digest(path, at)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(digest)


def problem(path: Path) -> str | None:
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
    found = hashlib.sha256()
    with path.open("rb") as file:
        position = 0
        while part := file.read(PART):
            first = max(0, at - position)
            last = min(len(part), at + LENGTH - position)
            if first < last:
                part = part[:first] + b"0" * (last - first) + part[last:]
            found.update(part)
            position += len(part)
    return found.hexdigest().encode()
