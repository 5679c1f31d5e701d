"""Wrong values of every type, paths that no command can read, and damaged copies of files that are good."""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl

INTEGERS = ["-1", "0", "1", "2", "100000", "9999999999999999999999", "x", ""]
FLOATS = ["-1", "0", "1", "1e-320", "1e308", "nan", "inf", "0.5", "x", ""]
TEXTS = ["", "x", "[/b]", "[bold]", "\udcff", "a\0b", "-", "1", "é" * 200]


def files(folder: Path) -> Iterator[Path]:
    """Paths that no command should be able to read."""
    folder.mkdir()
    (folder / "empty").mkdir()
    (folder / "loop.parquet").symlink_to(folder / "loop.parquet")
    (folder / "round").mkdir()
    (folder / "round" / "again").symlink_to(folder / "round")
    for name in ("fifo.parquet", "fifo.json"):
        os.mkfifo(folder / name)
    for name in ("zeros.parquet", "zeros.csv", "zeros.jsonl", "zeros.json", "zeros.toml", "b].csv"):
        (folder / name).write_bytes(bytes(100))
    (folder / os.fsdecode(b"\xff.parquet")).write_bytes(bytes(100))
    (folder / "no.json").write_text('{"theta": [[[1]]]}')
    (folder / "long.json").write_text(f"[{', '.join(['0.5'] * 100_000)}]")
    odd = {
        "query_id": pl.Series([1, 2, 3], dtype=pl.Int8),
        "items": np.arange(6).reshape(3, 2),
        "clicks": np.eye(3, 2, dtype=np.int8),
    }
    pl.DataFrame(odd).write_parquet(folder / "arrays.parquet")
    pl.DataFrame({"query_id": [[1]], "item_id": [{"a": 1}], "x": [None]}).write_parquet(folder / "nested.parquet")
    yield from sorted(folder.iterdir())
    yield from (folder / "nothing.parquet", folder / "*", folder / "**" / "*", folder)


def damaged(rng: random.Random, good: Path, place: Path) -> Path:
    """A copy of a file or folder, with one of its files cut, overwritten, doubled or emptied."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    copy = place / good.name
    shutil.copytree(good, copy) if good.is_dir() else shutil.copy(good, copy)
    victim = rng.choice(sorted(path for path in copy.rglob("*") if path.is_file())) if copy.is_dir() else copy
    victim.write_bytes(_damage(rng, victim.read_bytes()))
    return copy


def _damage(rng: random.Random, content: bytes) -> bytes:
    at = rng.randrange(max(len(content), 1))
    return rng.choice(
        [
            content[:at],
            content[at:],
            b"",
            content + content,
            content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :],
            content[:at] + rng.randbytes(8) + content[at + 8 :],
            content.replace(b"1", b"-1", 3),
            content.replace(b"0", b"1e999", 2),
        ]
    )
