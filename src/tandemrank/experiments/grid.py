"""Grids of experiments: (method, K2, N, run), one atomic record per cell, resumable, on processes or on Ray.

A job is everything that shares one log, (N, run): it simulates the log once and trains its cells. Seeds are derived from
the grid's seed and the cell's own coordinates, so a table does not depend on order, on parallelism or on interruptions.
What is in the folder of a grid says `store`.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandemrank._base import cluster, processes
from tandemrank._base.cluster import Engine, check_engine
from tandemrank._base.files import write_json
from tandemrank._base.random import derive
from tandemrank.errors import ConfigError, JobError
from tandemrank.experiments import results, store
from tandemrank.experiments.config import Cell, GridConfig, cells
from tandemrank.experiments.ratings import Task
from tandemrank.experiments.results import GridState, Point, Record, Reference, Table
from tandemrank.experiments.store import CellUsers, Clock, Finished, Store
from tandemrank.experiments.table import rows_of, table_of
from tandemrank.experiments.trainer import Outcome, Trainer, references, simulate_log
from tandemrank.experiments.world import World, build_world, load_task, logged_users


class Job(NamedTuple):
    """The cells of one log; with N = 0 the rows to compare with."""

    N: int
    run: int


def run(
    config: GridConfig,
    folder: str | Path,
    *,
    command: str = "",
    engine: Engine = "local",
    jobs: int | None = None,
    resume: bool = False,
    anew: bool = False,
    progress: Callable[[GridState], None] | None = None,
) -> Table:
    """Runs what is missing of a grid, and returns (and writes) its table.

    A folder with finished cells of this grid needs `resume`, or `anew`, which begins again.
    """
    check_engine(engine)
    _check_candidates(config)
    with store.opened(config, Path(folder), resume=resume, anew=anew) as mine:
        clock, total = Clock(mine.folder), len(cells(config))

        def look() -> None:
            records, seconds = mine.records(), clock.seconds()
            if progress is not None:
                progress(GridState(len(records), total, seconds, rows_of(records.values())))

        look()
        if missing := _missing(mine):
            (_on_ray if engine == "ray" else _on_processes)(mine, missing, jobs, look)
            _check_finished(mine)
        return _finish(mine, clock.seconds(last=True), command)


def _check_finished(mine: Store) -> None:
    """Refuses to go on where a job left nothing."""
    if left := _missing(mine):
        raise JobError(
            f"{len(left)} of the grid's jobs left no whole result in {mine.folder}. Check the disk, and go on with --resume."
        )


def _finish(mine: Store, seconds: float, command: str) -> Table:
    """The table of a grid whose jobs are done, also written into its folder."""
    store.clear_checkpoints(mine.folder)
    world, references = _world(mine.config, seconds), mine.references() or ()
    table = table_of(mine.config, world, mine.records(), references, mine.users, command)
    write_json(mine.folder / "table.json", table)
    return table


def _check_candidates(config: GridConfig) -> None:
    task = _task(config.model_dump_json())
    if (most := max(config.candidates)) > task.D:
        raise ConfigError(f"K2 = {most} candidates, but there are only {task.D} items. Ask for fewer candidates.")


def _missing(mine: Store) -> list[Job]:
    """The jobs with something to do."""
    done = _done(mine)
    found = dict.fromkeys(Job(cell.N, cell.run) for cell in cells(mine.config) if cell.name not in done)
    return list(found) + ([Job(0, 0)] if mine.references() is None else [])


def _done(mine: Store) -> frozenset[str]:
    """The names of the finished cells."""
    return frozenset(cell.name for cell in mine.records())


def _world(config: GridConfig, seconds: float) -> results.WorldFacts:
    task = _task(config.model_dump_json())
    return results.WorldFacts(
        data=task.name,
        queries=task.Q,
        items=task.D,
        logged_users=len(logged_users(task, config.experiment, derive(config.seed, "run", 0))),
        positives=int(task.relevance.nnz),
        machine=f"{os.cpu_count()} cores",
        seconds=seconds,
    )


@lru_cache(maxsize=1)
def _task(config_json: str) -> Task:
    return load_task(GridConfig.model_validate_json(config_json).experiment)


@dataclass(frozen=True)
class Done:
    """What came of a job."""

    cells: tuple[Finished, ...] = ()
    references: tuple[Reference, ...] = ()


def run_job(
    config_json: str,
    folder: str | None,
    N: int,
    run: int,
    done: frozenset[str],
) -> Done:
    """The cells of one log that are not `done`, or the rows to compare with (N = 0).

    With a folder each result is written there as soon as it is finished, without one (on a cluster) they are returned.
    """
    config = GridConfig.model_validate_json(config_json)
    seed = derive(config.seed, "run", run)
    world = build_world(_task(config_json), config.experiment, seed)
    if N == 0:
        found = references(world, config.experiment, config.candidates[0], seed)
        rows = tuple(Reference(name=name, **vars(evaluation.figures())) for name, evaluation in found.items())
        return _deliver(Done(references=rows), folder)
    finished: list[Finished] = []
    place = None if folder is None else store.checkpoints_of(Path(folder), N, run)
    for one in _trained(config, world, Job(N, run), seed, done, place):
        finished += _deliver(Done((one,)), folder).cells
    if place is not None:
        store.drop_checkpoints(place)
    return Done(tuple(finished))


def _trained(
    config: GridConfig, world: World, job: Job, seed: int, done: frozenset[str], checkpoints: Path | None
) -> Iterator[Finished]:
    """The methods of one log that are not done: the log is drawn once."""
    missing = [cell for cell in cells(config) if (cell.N, cell.run) == job and cell.name not in done]
    if missing:
        if checkpoints is not None:
            checkpoints.mkdir(parents=True, exist_ok=True)
        log = simulate_log(world, config.experiment, job.N, seed, config.methods)
        trainer = Trainer(world, config.experiment, log, seed, checkpoints)
        for cell in missing:
            yield _finished(cell, trainer.run(cell.method, cell.K2))


def _finished(cell: Cell, outcome: Outcome) -> Finished:
    found = outcome.evaluation
    record = Record(
        **cell._asdict(),
        **vars(found.figures()),
        seconds=outcome.seconds,
        history=tuple(Point(**epoch._asdict()) for epoch in outcome.history),
    )
    return Finished(cell, record, CellUsers(_rounded(found.ndcg), _rounded(found.ndcg_new)))


def _rounded(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(round(float(x), 6) for x in values)


def _deliver(found: Done, folder: str | Path | None) -> Done:
    """Writes results into the folder, if there is one; what is written need not travel back."""
    if folder is None:
        return found
    for finished in found.cells:
        store.write_cell(Path(folder), finished)
    if found.references:
        store.write_references(Path(folder), found.references)
    return Done()


def _on_processes(mine: Store, missing: list[Job], jobs: int | None, look: Callable[[], None]) -> None:
    done = _done(mine)
    text, folder = mine.config.model_dump_json(), str(mine.folder)
    workers = min(jobs or os.cpu_count() or 1, len(missing))
    with (
        processes.one_thread_each(),
        ProcessPoolExecutor(
            workers, multiprocessing.get_context("spawn"), initializer=processes.end_with_parent
        ) as pool,
    ):
        waiting = {pool.submit(run_job, text, folder, job.N, job.run, done) for job in missing}
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


def _on_ray(mine: Store, missing: list[Job], jobs: int | None, look: Callable[[], None]) -> None:
    """The same jobs as Ray tasks; a task whose worker dies is run again, records are written by the driver."""
    ray = cluster.connect(jobs)
    task = cluster.task(ray, run_job)
    done = _done(mine)
    text = mine.config.model_dump_json()
    waiting = [task.remote(text, None, job.N, job.run, done) for job in missing]
    while waiting:
        finished, waiting = ray.wait(waiting, timeout=0.5)
        for reference in finished:
            _deliver(ray.get(reference), mine.folder)
        look()
