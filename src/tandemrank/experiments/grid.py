"""Grids of experiments: (method, K2, N, run), each cell one atomic record, resumable, on local processes or on Ray.

A job is everything that shares one log, (N, run): it simulates the log once and trains its cells. Seeds are derived from
the grid's seed and the cell's own coordinates, so a table does not depend on order, on parallelism or on interruptions.
The folder of a grid: `config.json`, `time.json`, `cells/<name>/{record.json, users.parquet}`, `references.json`, and at the
end `table.json`.
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tandemrank._base import cluster
from tandemrank._base.cluster import Engine
from tandemrank._base.files import Kind, as_json, claim, write_json, write_text
from tandemrank._base.random import derive
from tandemrank.errors import ConfigError, JobError
from tandemrank.experiments.cells import GridConfig, cells
from tandemrank.experiments.records import REFERENCES, load_record, means, read_records, record_of, write_record
from tandemrank.experiments.table import cached_task, rows_of, summarise
from tandemrank.experiments.trainer import Trainer, references
from tandemrank.experiments.world import build_world, simulate

# All that a grid's folder holds, its reports included.
GRID = Kind(
    "grid", r"(config|time|references|table)\.json|table\.md|report\.html|cells/([^/]+/(record\.json|users\.parquet)?)?"
)


class State(NamedTuple):
    """Where a grid stands."""

    done: int
    total: int
    seconds: float
    rows: list[dict[str, Any]]


def run(
    config: GridConfig,
    folder: str | Path,
    *,
    command: str = "",
    engine: Engine = "local",
    jobs: int | None = None,
    resume: bool = False,
    progress: Callable[[State], None] | None = None,
) -> dict[str, Any]:
    """Runs what is missing of a grid, and returns (and writes) its table."""
    folder = Path(folder)
    _open(config, folder, resume)
    load_record.cache_clear()
    clock = _Clock(folder / "time.json")
    total = len(cells(config))
    tell = progress or (lambda _: None)

    def look() -> None:
        records = read_records(config, folder)
        tell(State(len(records), total, clock.seconds(), rows_of(records)))

    missing = _missing_jobs(config, folder)
    if missing:
        (_on_ray if engine == "ray" else _on_processes)(config, folder, missing, jobs, look)
    look()
    seconds = clock.seconds(last=True)
    table = summarise(config, folder, command, seconds)
    write_json(folder / "table.json", table)
    return table


class _Clock:
    """Wall time of a grid over all its parts: noted every ten seconds, so that an interruption loses no more."""

    def __init__(self, path: Path) -> None:
        self.path, self.start = path, time.perf_counter()
        self.before = float(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else 0.0
        self.noted = self.before

    def seconds(self, *, last: bool = False) -> float:
        now = self.before + time.perf_counter() - self.start
        if last or now - self.noted > 10:
            write_json(self.path, now)
            self.noted = now
        return now


def _open(config: GridConfig, folder: Path, resume: bool) -> None:
    """Claims the folder for this grid: another grid's folder, or an unfinished one without `resume`, is refused."""
    claim(folder, GRID, inputs=[config.experiment.data])
    path, text = folder / "config.json", config.model_dump_json(indent=2) + "\n"
    if path.exists():
        if path.read_text(encoding="utf-8") != text:
            raise ConfigError(f"{folder} holds a grid with other switches. Give another folder, or the same switches.")
        if not resume:
            raise ConfigError(f"{folder} holds this grid already. Go on with --resume, or give another folder.")
    else:
        write_text(path, text)


def _missing_jobs(config: GridConfig, folder: Path) -> list[tuple[int, int]]:
    """The (N, run) with a cell to do; N = 0 stands for the reference rows."""
    missing = dict.fromkeys((c.N, c.run) for c in cells(config) if not (folder / "cells" / c.name).exists())
    wanted = config.references and not (folder / f"{REFERENCES}.json").exists()
    return list(missing) + ([(0, 0)] if wanted else [])


def run_job(config_json: str, folder: str | None, N: int, run: int, done: frozenset[str]) -> list[tuple[str, str]]:
    """The cells of one log that are not `done`. With a folder each record is written there as soon as it is finished;
    without one (on a cluster) they are returned, as (name, text of the record)."""
    config = GridConfig.model_validate_json(config_json)
    seed = derive(config.seed, "run", run)
    world = build_world(cached_task(config_json), config.experiment, seed)
    if N == 0:
        found = references(world, config.experiment, config.candidates[0], seed)
        text = as_json([{"name": n, **means(e.summary())} for n, e in found.items()])
        if folder is not None:
            write_text(Path(folder) / f"{REFERENCES}.json", text)
        return [(REFERENCES, text)]
    trainer = Trainer(world, config.experiment, simulate(world, config.experiment, N, seed), seed)
    results = []
    for cell in cells(config):
        if (cell.N, cell.run) == (N, run) and cell.name not in done:
            record = as_json(record_of(cell, trainer.run(cell.method, cell.K2)))
            if folder is not None:
                write_record(Path(folder), cell.name, record)
            results.append((cell.name, record))
    return results


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """The environment for worker processes: one thread each, so that jobs do not fight for cores."""
    names = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _on_processes(
    config: GridConfig, folder: Path, missing: list[tuple[int, int]], jobs: int | None, look: Callable[[], None]
) -> None:
    import multiprocessing
    from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
    from concurrent.futures.process import BrokenProcessPool

    done = frozenset(c.name for c in cells(config) if (folder / "cells" / c.name).exists())
    text = config.model_dump_json()
    workers = min(jobs or os.cpu_count() or 1, len(missing))
    with _one_thread_each(), ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(run_job, text, str(folder), N, number, done) for N, number in missing}
        try:
            while waiting:
                finished, waiting = wait(waiting, timeout=0.5, return_when=FIRST_EXCEPTION)
                for future in finished:
                    future.result()
                look()
        except BrokenProcessPool as error:
            raise JobError(
                f"a worker process died (killed, or out of memory). Finished cells are kept in {folder}; "
                f"go on with --resume, with fewer --jobs if memory is short."
            ) from error
        finally:
            for process in list((pool._processes or {}).values()) if waiting else []:
                process.terminate()
            pool.shutdown(cancel_futures=True)


def _on_ray(
    config: GridConfig, folder: Path, missing: list[tuple[int, int]], jobs: int | None, look: Callable[[], None]
) -> None:
    """The same jobs as Ray tasks; a task whose worker dies is run again, records are written by the driver."""
    ray = cluster.connect(jobs)
    task = cluster.task(ray, run_job)
    done = frozenset(c.name for c in cells(config) if (folder / "cells" / c.name).exists())
    waiting = [task.remote(config.model_dump_json(), None, N, number, done) for N, number in missing]
    while waiting:
        finished, waiting = ray.wait(waiting, timeout=0.5)
        for reference in finished:
            for name, text in ray.get(reference):
                if name == REFERENCES:
                    write_text(folder / f"{REFERENCES}.json", text)
                else:
                    write_record(folder, name, text)
        look()
