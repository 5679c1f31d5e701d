"""Grids of experiments: (method, K2, N, run) and (peer, N, run), one atomic record per cell, resumable, on processes or on Ray.

A job is everything that shares one log, (N, run): it simulates the log once and trains its cells. Seeds are derived from
the grid's seed and the cell's own coordinates, so a table does not depend on order, on parallelism or on interruptions.
What is in the folder of a grid says `store`.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
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
from tandemrank.experiments import evaluation, results, store
from tandemrank.experiments.cells import Cell, GridConfig, PeerCell, cells, peer_cells
from tandemrank.experiments.peers import PEERS, check_libraries
from tandemrank.experiments.ratings import Task
from tandemrank.experiments.results import GridState, PeerRecord, Point, Record, Reference, Table
from tandemrank.experiments.store import Clock, Finished, Store, Users
from tandemrank.experiments.table import rows_of, table_of
from tandemrank.experiments.trainer import Outcome, Trainer, references, simulate_log
from tandemrank.experiments.tuning import Choice, PeerLog, Tuned, peer_log, tune
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
    if config.peers:
        check_libraries()
    with store.opened(config, Path(folder), resume=resume, anew=anew) as mine:
        clock, total = Clock(mine.folder), len(cells(config)) + len(peer_cells(config))

        def look() -> None:
            records, seconds = mine.records(), clock.seconds()
            if progress is not None:
                progress(GridState(len(records) + len(mine.peers()), total, seconds, rows_of(records.values())))

        look()
        for wave in _waves(config):
            if missing := [job for job in _missing(mine) if job.run in wave]:
                (_on_ray if engine == "ray" else _on_processes)(mine, missing, jobs, look)
                _check_finished(mine, wave)
        return _finish(mine, clock.seconds(last=True), command)


def _waves(config: GridConfig) -> list[range]:
    """Runs that need not wait for others: with peers the first one, which chooses their settings, comes before all others."""
    return [range(1), range(1, config.runs)] if config.peers else [range(config.runs)]


def _check_finished(mine: Store, runs: range) -> None:
    """Refuses to go on where a job left nothing."""
    if left := [job for job in _missing(mine) if job.run in runs]:
        raise JobError(
            f"{len(left)} of the grid's jobs left no whole result in {mine.folder}. Check the disk, and go on with --resume."
        )


def _finish(mine: Store, seconds: float, command: str) -> Table:
    """The table of a grid whose jobs are done, also written into its folder."""
    store.clear_checkpoints(mine.folder)
    world, references = _world(mine.config, seconds), mine.references() or ()
    table = table_of(mine.config, world, mine.records(), references, mine.peers(), mine.users, command)
    write_json(mine.folder / "table.json", table)
    return table


def _check_candidates(config: GridConfig) -> None:
    task = _task(config.model_dump_json())
    if (most := max(config.candidates)) > task.D:
        raise ConfigError(f"K2 = {most} candidates, but there are only {task.D} items. Ask for fewer candidates.")


def _missing(mine: Store) -> list[Job]:
    """The jobs with something to do."""
    done = _done(mine)
    asked: list[Cell | PeerCell] = [*cells(mine.config), *peer_cells(mine.config)]
    found = dict.fromkeys(Job(cell.N, cell.run) for cell in asked if cell.name not in done)
    return list(found) + ([Job(0, 0)] if mine.references() is None else [])


def _done(mine: Store) -> frozenset[str]:
    """The names of the finished cells."""
    return frozenset(cell.name for cell in mine.records()) | {cell.name for cell in mine.peers()}


def _chosen(mine: Store) -> dict[PeerCell, Choice]:
    """What the peers chose in the first run."""
    return {cell: Choice(record.setting, record.new_setting) for cell, record in mine.peers().items() if cell.run == 0}


def _world(config: GridConfig, seconds: float) -> results.World:
    task = _task(config.model_dump_json())
    return results.World(
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
    chosen: Mapping[PeerCell, Choice] | None = None,
) -> Done:
    """The cells of one log that are not `done`, or the rows to compare with (N = 0); peers have what they chose in run 0.

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
    for one in _peers(config, world, Job(N, run), seed, done, chosen or {}):
        finished += _deliver(Done((one,)), folder).cells
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


def _peers(
    config: GridConfig, world: World, job: Job, seed: int, done: frozenset[str], chosen: Mapping[PeerCell, Choice]
) -> Iterator[Finished]:
    """The same of the peers."""
    missing = [cell for cell in peer_cells(config) if (cell.N, cell.run) == job and cell.name not in done]
    if missing:
        log = peer_log(world, config.experiment, job.N, seed)
        by_name, K = {peer.name: peer for peer in PEERS}, config.experiment.learning.K
        for cell in missing:
            known = None if job.run == 0 else chosen[cell._replace(run=0)]
            yield _tuned(cell, tune(by_name[cell.peer], log, world.q, K, known), world, log)


def _finished(cell: Cell, outcome: Outcome) -> Finished:
    found = outcome.evaluation
    record = Record(
        **cell._asdict(),
        **vars(found.figures()),
        seconds=outcome.seconds,
        history=tuple(Point(**epoch._asdict()) for epoch in outcome.history),
    )
    return Finished(cell, record, Users(_rounded(found.ndcg), _rounded(found.ndcg_new)))


def _tuned(cell: PeerCell, tuned: Tuned, world: World, log: PeerLog) -> Finished:
    """A peer by the truth."""
    relevance, clicked = world.task.relevance, log.whole.binary
    found = evaluation.ndcg(tuned.lists, world.q, relevance)
    new = evaluation.ndcg_of_new(tuned.new_lists, world.q, relevance, clicked)
    record = PeerRecord(
        **cell._asdict(), ndcg=evaluation.mean(found),
        ndcg_new=results.UNKNOWN if np.isnan(new).all() else evaluation.mean(new),
        setting=tuned.choice.setting, new_setting=tuned.choice.new_setting,
        seconds=tuned.seconds, tuning_seconds=tuned.tuning_seconds,
    )  # fmt: skip
    return Finished(cell, record, Users(_rounded(found), _rounded(new)))


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
    done, chosen = _done(mine), _chosen(mine)
    text, folder = mine.config.model_dump_json(), str(mine.folder)
    workers = min(jobs or os.cpu_count() or 1, len(missing))
    with (
        processes.one_thread_each(),
        ProcessPoolExecutor(
            workers, multiprocessing.get_context("spawn"), initializer=processes.end_with_parent
        ) as pool,
    ):
        waiting = {pool.submit(run_job, text, folder, job.N, job.run, done, chosen) for job in missing}
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
    done, chosen = _done(mine), _chosen(mine)
    text = mine.config.model_dump_json()
    waiting = [task.remote(text, None, job.N, job.run, done, chosen) for job in missing]
    while waiting:
        finished, waiting = ray.wait(waiting, timeout=0.5)
        for reference in finished:
            _deliver(ray.get(reference), mine.folder)
        look()
