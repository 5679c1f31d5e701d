"""What must not come twice in a log: a file, under whatever name, and an impression. Either would be counted twice."""

from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank.logs.keys import push
from tandemrank.logs.schema import Problem, is_long


class KnownFiles:
    """The files met so far, by what they are and not by their names: links of both kinds are seen through."""

    def __init__(self) -> None:
        self.names: dict[object, str] = {}

    def repeated(self, path: str | Path) -> str | None:
        """Which file met before this one is, in words; None for a new one, and for one that cannot be looked at.

        One at a URL, which is a string, is known by it.
        """
        key: object = path
        if isinstance(path, Path):
            try:
                found = path.stat()
            except (OSError, ValueError):
                return None
            key = found.st_dev, found.st_ino
        if key not in self.names:
            self.names[key] = str(path)
            return None
        before = self.names[key]
        same = "it was given before" if before == str(path) else f"it is the same file as {before}"
        return f"expected each file of a log once; {same}. Its impressions would count twice, so name it once."


class KnownImpressions:
    """The ids of impressions met so far: a sorted 64-bit hash of each, and the number of the file it was in.

    With 10 million impressions there is one false alarm in 300,000 logs.
    """

    def __init__(self) -> None:
        self.files: list[str] = []
        self.parts: list[tuple[NDArray[np.uint64], NDArray[np.int32]]] = []

    def begin(self, file: str) -> None:
        """What is added from here on is in this file."""
        self.files.append(file)

    def problems(self, frame: pl.DataFrame) -> list[Problem]:
        """The impressions of a batch that were there before, in this file or in another one."""
        if "impression_id" not in frame.columns:
            return []
        ids = frame["impression_id"]
        long = is_long(frame.columns)
        rows = (
            np.flatnonzero(np.diff(ids.rle_id().to_numpy().astype(np.int64), prepend=-1))
            if long
            else np.arange(len(ids))
        )
        rows = rows[ids.is_not_null().to_numpy()[rows]]  # a missing id is a problem of its own
        before = self.add(_hashes(ids.gather(rows)))
        found = []
        if (here := rows[before == len(self.files) - 1]).size:
            found.append(Problem("impression_id", here, TOGETHER if long else ONCE))
        for number in np.unique(before[(before >= 0) & (before < len(self.files) - 1)]):
            found.append(Problem("impression_id", rows[before == number], in_two_files(self.files[number])))
        return found

    def add(self, hashes: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Adds impressions of the last file; the file each was in before, -1 for a new one.  Shapes: [n] -> [n]."""
        this = len(self.files) - 1
        fresh, first = np.unique(hashes, return_index=True)
        before = np.full(len(hashes), this, dtype=np.int32)
        before[first] = -1
        for known, file in self.parts:
            at = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
            before = np.where(known[at] == hashes, file[at], before)
        fresh = fresh[before[first] < 0]
        if len(fresh):
            push(self.parts, (fresh, np.full(len(fresh), this, np.int32)), lambda part: len(part[0]), _merged)
        return before

    def hashes(self) -> NDArray[np.uint64]:
        """The hashes of all impressions."""
        return np.concatenate([np.zeros(0, np.uint64), *(known for known, _ in self.parts)])


TOGETHER = "expected the rows of an impression together; one comes back after another began. Sort by impression_id."
ONCE = "expected each impression once; this one was there before. Leave out the copies, or make the ids unique."


def in_two_files(other: str) -> str:
    """An impression that is in another file too, in words."""
    return (
        f"expected each impression in one file; this one is in {other} too. Leave out the copy, or, if each file numbers "
        "its own impressions, make the ids unique."
    )


def _hashes(ids: pl.Series) -> NDArray[np.uint64]:
    """One hash for equal ids, whatever the width of integers.  Shapes: ids [n] -> [n]."""
    if not ids.dtype.is_integer():
        return ids.cast(pl.String).hash().to_numpy()
    narrow = ids.cast(pl.Int64, strict=False)
    return (ids if narrow.null_count() else narrow).hash().to_numpy()


def _merged(
    parts: list[tuple[NDArray[np.uint64], NDArray[np.int32]]],
) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Sorted parts as one."""
    hashes, files = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(hashes)
    return hashes[order], files[order]
