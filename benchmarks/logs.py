"""What reading a log costs, checks and all, beside the bare polars group-by of the same files.

    python benchmarks/logs.py [--impressions 10000000] [--seed 0] [--json]


Each is measured in a process of its own, so that the peak of its memory is its own; both may use the same threads. They
take turns, and the faster turn of each counts: a busy moment of the machine should hit neither.
"""

import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from _common import not_negative, options, positive, report
from tandemrank._base.ids import Vocabulary
from tandemrank.clicks.models import examination_curve
from tandemrank.logs import reading as log_reading
from tandemrank.logs import writing
from tandemrank.logs.impressions import Impressions

PART = 500_000  # impressions in a file
LONGEST_GAP = 10


@dataclass(frozen=True)
class Measured:
    """What is printed: reading a log over the bare group-by of the same files, in time and memory."""

    seconds: float
    bare_seconds: float
    ratio: float
    peak_mb: float
    bare_peak_mb: float
    impressions: int
    shown: int
    rows: int
    same_sums: bool
    file_mb: float
    threads: int


@dataclass(frozen=True)
class Taken:
    """What a process took for a log, and what it found there."""

    seconds: float
    peak_mb: float
    rows: int
    shown: int
    clicks: int


def reading(
    impressions: int = 10_000_000,
    queries: int = 20_000,
    items: int = 50_000,
    K: int = 10,
    turns: int = 2,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Measured:
    """`logs.read` of a simulated wide log of lists of K, over the bare group-by by (query, item, rank).

    `progress(n)` hears of impressions written, which is not counted in the times.
    """
    with tempfile.TemporaryDirectory(prefix="tandemrank-") as folder:
        parts = simulated(impressions, queries, items, K, seed)
        log = writing.write(parts, Path(folder) / "log", names(queries, items), progress=progress)
        megabytes = sum(path.stat().st_size for path in log.iterdir()) / 2**20
        found = [(alone(bare, log), alone(ours, log)) for _ in range(turns)]
    group_by, read = (min(column, key=lambda one: one.seconds) for column in zip(*found, strict=True))
    return Measured(
        seconds=read.seconds,
        bare_seconds=group_by.seconds,
        ratio=read.seconds / group_by.seconds,
        peak_mb=max(one.peak_mb for _, one in found),
        bare_peak_mb=max(one.peak_mb for one, _ in found),
        impressions=impressions,
        shown=read.shown,
        rows=read.rows,
        same_sums=(read.rows, read.shown, read.clicks) == (group_by.rows, group_by.shown, group_by.clicks),
        file_mb=megabytes,
        threads=pl.thread_pool_size(),
    )


def names(queries: int, items: int) -> Vocabulary:
    """Integers as ids."""
    return Vocabulary(pl.Series(np.arange(queries)), pl.Series(np.arange(items)))


def simulated(N: int, queries: int, items: int, K: int, seed: int) -> Iterator[Impressions]:
    """A log in parts: few queries ask often, and each has its shelf of items, best first, of which a list skips some.

    So an item is shown at several ranks, and with the sizes of `reading` more than a million pairs are shown.
    """
    rng = np.random.default_rng(seed)
    place_of = rng.permutation(items).astype(np.int32)
    shelf = (items * rng.random(queries) ** 2).astype(np.int64)
    for first in range(0, N, PART):
        n = min(PART, N - first)
        query = (queries * rng.random(n) ** 2).astype(np.int32)
        place = np.minimum(rng.geometric(1 / 4, size=(n, K)), min(LONGEST_GAP, items // K)).cumsum(axis=1) - 1
        chance = examination_curve(K) * 0.5 / (1 + place / 20)
        clicks = (rng.random((n, K)) < chance).astype(np.uint8)
        yield Impressions(query, place_of[(shelf[query, None] + place) % items], clicks)


def ours(log: Path) -> tuple[int, int, int]:
    """The log as feedback: its rows, shown items and clicks."""
    feedback = log_reading.read(log)
    return len(feedback.query), int(feedback.shown.sum()), int(feedback.clicks.sum())


def bare(log: Path) -> tuple[int, int, int]:
    """The same sums by polars alone: no checks, no order, no positions."""
    rank = pl.int_ranges(0, pl.col("items").list.len(), dtype=pl.Int16)
    shown = pl.scan_parquet(log).with_columns(rank=rank).explode("items", "clicks", "rank")
    clicks = pl.col("clicks").sum().cast(pl.Int64)
    found = shown.group_by("query_id", "items", "rank").agg(clicks, shown=pl.len()).collect(engine="streaming")
    return len(found), int(found["shown"].sum()), int(found["clicks"].sum())


def alone(job: Callable[[Path], tuple[int, int, int]], log: Path) -> Taken:
    """The job in a new process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measured, job, log).result()


def measured(job: Callable[[Path], tuple[int, int, int]], log: Path) -> Taken:
    """What the job takes here."""
    start = time.perf_counter()
    found = job(log)
    return Taken(time.perf_counter() - start, peak_mb(), *found)


def peak_mb() -> float:
    """The most memory that this process has had."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux; there the other way would count the memory of the process that started this one
        return int(status.read_text(encoding="ascii").split("VmHWM:")[1].split()[0]) / 2**10
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


def main() -> None:
    """Measures and prints."""
    found = options(__doc__)
    found.add_argument("--impressions", type=positive, default=10_000_000, help="length of the log, N")
    found.add_argument("--seed", type=not_negative, default=0)
    asked = found.parse_args()
    report(
        lambda progress: reading(asked.impressions, seed=asked.seed, progress=progress), "impressions written, then read",
        as_json=asked.json, total=asked.impressions,
    )  # fmt: skip


if __name__ == "__main__":
    main()
