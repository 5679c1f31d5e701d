"""Grids of experiments: (method, K2, N, run), resumable, on processes or on Ray; and the table that they make.

A job is everything that shares one log, (N, run): it simulates the log once and trains its cells. Seeds are derived from
the grid's seed and the cell's own coordinates, so a table does not depend on order, on parallelism or on interruptions.

    config.json   references.json   cells/<name>.json   and at the end what is made of them: table.json and reports

Every file is written in one piece, and one that cannot be read is made again. Whose cells these are cannot be made again: a
folder with cells and without its own `config.json` is refused.
"""

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from tandemrank import __version__
from tandemrank._base import cluster, processes
from tandemrank._base.cluster import Engine, check_engine
from tandemrank._base.config import switch_values
from tandemrank._base.files import MARK, Kind, check_target, claim, write_json, write_text
from tandemrank._base.random import derive
from tandemrank.errors import ConfigError, JobError
from tandemrank.experiments.config import Cell, ExperimentConfig, GridConfig, cells
from tandemrank.experiments.datasets import Task
from tandemrank.experiments.evaluation import difference, over_runs
from tandemrank.experiments.results import (
    FIGURES,
    Kept,
    Mean,
    NdcgDifference,
    PaperRow,
    Record,
    Reference,
    Row,
    Table,
    WorldFacts,
    from_json,
)
from tandemrank.experiments.trainer import Outcome, Trainer, references, simulate_log
from tandemrank.experiments.world import build_world, load_task, logged_users

# All that a grid's folder holds, its reports included.
GRID = Kind("grid", r"(config|references|table)\.json|table\.md|report\.html|cells/([^/]+\.json)?")
REFERENCES = "references.json"

Records = dict[Cell, Record]


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
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Table:
    """Runs what is missing of a grid, and returns (and writes) its table.

    A folder with finished cells of this grid needs `resume`, or `anew`, which begins again. `progress` hears how many of its
    trainings are finished.
    """
    check_engine(engine)
    check_candidates(config)
    place, records, since = Path(folder), Records(), time.perf_counter()

    def look() -> None:
        _read_new(config, place, records)
        progress(len(records), len(cells(config)))

    with opened(config, place, resume=resume, anew=anew):
        look()
        is_whole_run = not records
        if missing := _missing(config, place, records):
            asked = [(config.model_dump_json(), job, frozenset(records)) for job in missing]
            (_on_ray if engine == "ray" else _on_processes)(asked, place, jobs, look)
            look()
            if left := _missing(config, place, records):
                raise JobError(
                    f"{len(left)} of the grid's jobs left no whole result in {folder}. Check the disk, and go on with --resume."
                )
        seconds = time.perf_counter() - since if is_whole_run else math.nan
        table = table_of(config, _world(config, seconds), records, _references(config, place) or (), command)
        write_json(place / "table.json", table)
        return table


def check_candidates(config: GridConfig) -> None:
    """Refuses more candidates than there are items, before anything is trained."""
    task = _task(config.experiment.model_dump_json())
    if (most := max(config.candidates)) > task.D:
        raise ConfigError(f"K2 = {most} candidates, but there are only {task.D} items. Ask for fewer candidates.")


# --- the folder -------------------------------------------------------------------------------------------------------


@contextmanager
def opened(config: GridConfig, folder: Path, *, resume: bool = False, anew: bool = False) -> Iterator[None]:
    """The folder as this grid's own, and no other process's meanwhile.

    Refused: another grid's folder, and without `resume` one with finished cells; `anew` clears those of the same grid. A
    folder in which no cell was ever finished is free, whatever switches were tried there.
    """
    claim(folder, GRID, inputs=[config.experiment.data])
    with processes.alone_in(folder, MARK):
        path, own = folder / "config.json", config.model_dump_json(indent=2) + "\n"
        is_same = _bytes(path) == own.encode()
        if next((folder / "cells").glob("*.json"), None) is None or (anew and is_same):
            _clear(folder)
        elif not is_same:
            raise ConfigError(
                f"{folder} holds a grid with other switches, or its config.json is missing or damaged. Give another folder, or "
                "the same switches."
            )
        elif not resume:
            raise ConfigError(f"{folder} holds this grid already. Go on with --resume, or give another folder.")
        write_text(path, own)
        yield


def _clear(folder: Path) -> None:
    """Removes what a grid has written; refused where there is anything else."""
    check_target(folder, GRID)
    for path in (*folder.glob("*"), *folder.glob("cells/*")):
        if path.is_file() and path.name != MARK:
            path.unlink()


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def read(path: Path, kind: type[Kept]) -> Kept | None:
    """What a file of the folder holds; None where it is not there, or damaged."""
    try:
        return from_json(kind, _bytes(path))
    except ValueError:
        return None


def _file(cell: Cell) -> str:
    return f"cells/{cell.name}.json"


def _read_new(config: GridConfig, folder: Path, records: Records) -> None:
    """Adds the records of cells that have been finished since; all of them stay in the grid's order."""
    for cell in cells(config):
        found = records.pop(cell, None) or read(folder / _file(cell), Record)
        if found is not None and math.isfinite(found.ndcg.mean):
            records[cell] = found


def _references(config: GridConfig, folder: Path) -> tuple[Reference, ...] | None:
    """What to compare with; None where it is not there yet."""
    return (read(folder / REFERENCES, tuple[Reference, ...]) or None) if config.references else ()


def _missing(config: GridConfig, folder: Path, records: Records) -> list[Job]:
    """The jobs with something to do."""
    found = dict.fromkeys(Job(cell.N, cell.run) for cell in cells(config) if cell not in records)
    return list(found) + ([Job(0, 0)] if _references(config, folder) is None else [])


def _world(config: GridConfig, seconds: float) -> WorldFacts:
    task = _task(config.experiment.model_dump_json())
    return WorldFacts(
        data=task.name,
        queries=task.Q,
        items=task.D,
        logged_users=len(logged_users(task, config.experiment, derive(config.seed, "run", 0))),
        positives=int(task.relevance.nnz),
        machine=f"{os.cpu_count()} cores",
        seconds=seconds,
    )


@lru_cache(maxsize=1)
def _task(experiment_json: str) -> Task:
    return load_task(ExperimentConfig.model_validate_json(experiment_json))


# --- jobs -------------------------------------------------------------------------------------------------------------

Found = tuple[str, Record | tuple[Reference, ...]]  # a file of the folder, and what it is to hold
Asked = tuple[str, Job, frozenset[Cell]]  # the first arguments of `run_job`


def run_job(config_json: str, job: Job, done: frozenset[Cell], folder: str | None = None) -> list[Found]:
    """The cells of one log that are not `done`, or the rows to compare with (N = 0).

    With a folder each result is written there as soon as it is finished, without one (on a cluster) they are returned.
    """
    found: list[Found] = []
    for name, result in _results(config_json, job, done):
        if folder is None:
            found.append((name, result))
        else:
            write_json(Path(folder) / name, result)
    return found


def _results(config_json: str, job: Job, done: frozenset[Cell]) -> Iterator[Found]:
    config = GridConfig.model_validate_json(config_json)
    seed = derive(config.seed, "run", job.run)
    world = build_world(_task(config.experiment.model_dump_json()), config.experiment, seed)
    if job.N == 0:
        rows = references(world, config.experiment, config.candidates[0], seed)
        yield REFERENCES, tuple(Reference(name=name, **vars(one.figures())) for name, one in rows.items())
        return
    log = simulate_log(world, config.experiment, job.N, seed, config.methods)
    trainer = Trainer(world, config.experiment, log, seed)
    for cell in cells(config):
        if (cell.N, cell.run) == job and cell not in done:
            # Users are compared where there is one run alone.
            yield _file(cell), _record(cell, trainer.run(cell.method, cell.K2), with_users=config.runs == 1)


def _record(cell: Cell, outcome: Outcome, *, with_users: bool) -> Record:
    found = outcome.evaluation
    return Record(
        **cell._asdict(),
        **vars(found.figures()),
        seconds=outcome.seconds,
        history=outcome.history,
        ndcg_users=tuple(found.ndcg.round(6).tolist()) if with_users else (),
    )


def _on_processes(asked: list[Asked], folder: Path, jobs: int | None, look: Callable[[], None]) -> None:
    workers = min(jobs or os.cpu_count() or 1, len(asked))
    with (
        processes.one_thread_each(),
        ProcessPoolExecutor(
            workers, multiprocessing.get_context("spawn"), initializer=processes.end_with_parent
        ) as pool,
    ):
        waiting = {pool.submit(run_job, *one, str(folder)) for one in asked}
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


def _on_ray(asked: list[Asked], folder: Path, jobs: int | None, look: Callable[[], None]) -> None:
    """The same jobs as Ray tasks; a task whose worker dies is run again, results are written by the driver."""
    ray = cluster.connect(jobs)
    task = cluster.task(ray, run_job)
    waiting = [task.remote(*one) for one in asked]
    while waiting:
        finished, waiting = ray.wait(waiting, timeout=0.5)
        for reference in finished:
            for name, result in ray.get(reference):
                write_json(folder / name, result)
        look()


# --- the table --------------------------------------------------------------------------------------------------------

# Table 1 of the paper: NDCG@10, means of 25 runs.
PAPER = {
    "baseline": {500: (0.404, 0.437, 0.470), 1000: (0.401, 0.440, 0.469), 1500: (0.400, 0.441, 0.474)},
    "independent": {500: (0.410, 0.454, 0.489), 1000: (0.416, 0.465, 0.496), 1500: (0.416, 0.455, 0.496)},
    "joint": {500: (0.420, 0.470, 0.504), 1000: (0.426, 0.479, 0.504), 1500: (0.424, 0.472, 0.510)},
}
ROWS = tuple(
    PaperRow(method, K2, N, value)
    for method, by_K2 in PAPER.items()
    for K2, values in by_K2.items()
    for N, value in zip((100_000, 320_000, 1_000_000), values, strict=True)
)


def rows_of(records: Iterable[Record]) -> tuple[Row, ...]:
    """One row for each (method, K2, N): means over the runs so far."""
    groups: dict[tuple[str, int, int], list[Record]] = {}
    for record in records:
        groups.setdefault((record.method, record.K2, record.N), []).append(record)
    return tuple(_row(group) for group in groups.values())


def _row(group: list[Record]) -> Row:
    first = group[0]
    return Row(
        method=first.method,
        K2=first.K2,
        N=first.N,
        runs=len(group),
        seconds=float(np.mean([record.seconds for record in group])),
        ndcg_runs=tuple(record.ndcg.mean for record in group),
        **{figure: _over([record.of(figure) for record in group]) for figure in FIGURES},
    )


def _over(runs: list[Mean]) -> Mean:
    """A figure of some runs: with the interval over runs, over the users where there is one run."""
    return over_runs(np.array([one.mean for one in runs])) if len(runs) > 1 else runs[0]


def differences(config: GridConfig, records: Mapping[Cell, Record]) -> tuple[NdcgDifference, ...]:
    """Joint less each other method in every setting: paired over the runs, over the users where there is one run."""
    found = []
    for N in config.impressions:
        for K2 in config.candidates:
            for other in (method for method in config.methods if method != "joint"):
                pairs = [(Cell("joint", K2, N, run), Cell(other, K2, N, run)) for run in range(config.runs)]
                both = [(records[a], records[b]) for a, b in pairs if a in records and b in records]
                if both:
                    found.append(_difference(both))
    return tuple(found)


def _difference(both: Sequence[tuple[Record, Record]]) -> NdcgDifference:
    """Of the records of every run; of the users, where there is one run."""
    joint, other = both[0]
    if len(both) > 1:
        gap = over_runs(np.array([x.ndcg.mean - y.ndcg.mean for x, y in both]))
    else:
        gap = difference(np.array(joint.ndcg_users), np.array(other.ndcg_users))
    kind: Literal["runs", "users"] = "runs" if len(both) > 1 else "users"
    return NdcgDifference(
        **vars(gap), K2=joint.K2, N=joint.N, method=joint.method, against=other.method, runs=len(both), kind=kind
    )


def table_of(
    config: GridConfig,
    world: WorldFacts,
    records: Mapping[Cell, Record],
    references: tuple[Reference, ...],
    command: str,
) -> Table:
    """Everything that a report shows."""
    asked = {(method, K2, N) for method in config.methods for K2 in config.candidates for N in config.impressions}
    return Table(
        title=f"Two-stage counterfactual learning to rank on {world.data}",
        command=command,
        version=__version__,
        world=world,
        switches=switch_values(config),
        rows=rows_of(records.values()),
        references=references,
        differences=differences(config, records),
        curves=tuple(record.curve for record in records.values()),
        paper=tuple(row for row in ROWS if world.data == "ml-1m" and (row.method, row.K2, row.N) in asked),
    )
