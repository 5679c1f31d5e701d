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
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict, Field, PositiveInt
from scipy.stats import t as student

from tandemrank import cluster, experiments
from tandemrank.cluster import Engine
from tandemrank.datasets import Task
from tandemrank.errors import ConfigError, JobError
from tandemrank.evaluation import Mean, difference
from tandemrank.experiments import ExperimentConfig, Outcome, derive
from tandemrank.files import as_json, replacing, write_json, write_text
from tandemrank.schedules import Method

FIGURES = ("ndcg", "ndcg_expected", "recall_at_K2", "utility", "generator_alone", "ranker_alone", "overlap")
REFERENCES = "references"


class GridConfig(BaseModel):
    """What a table is made of."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiment: ExperimentConfig = ExperimentConfig()
    methods: tuple[Method, ...] = Field(
        default=("baseline", "independent", "joint"), min_length=1, description="the methods to compare"
    )
    candidates: tuple[PositiveInt, ...] = Field(default=(500,), min_length=1, description="numbers of candidates, K2")
    impressions: tuple[PositiveInt, ...] = Field(default=(100_000,), min_length=1, description="lengths of the log, N")
    runs: int = Field(default=3, ge=1, description="independent runs: production policy, log and training anew")
    references: bool = Field(
        default=True, description="rows to compare with: random, popularity, production, full information"
    )
    seed: int = Field(default=0, ge=0, description="the seed that every other seed is derived from")


class Cell(NamedTuple):
    """The coordinates of one training."""

    method: Method
    K2: int
    N: int
    run: int

    @property
    def name(self) -> str:
        """The name of its record."""
        return f"{self.method}-K2-{self.K2}-N-{self.N}-run-{self.run}"


class State(NamedTuple):
    """Where a grid stands."""

    done: int
    total: int
    seconds: float
    rows: list[dict[str, Any]]


def cells(config: GridConfig) -> list[Cell]:
    """All cells, run by run, so that a table that is not finished has whole runs; of a run the longest logs first."""
    return [
        Cell(method, K2, N, run)
        for run in range(config.runs)
        for N in sorted(config.impressions, reverse=True)
        for K2 in config.candidates
        for method in config.methods
    ]


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
    _load.cache_clear()
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


@lru_cache(maxsize=1)
def _task(config_json: str) -> Task:
    config = GridConfig.model_validate_json(config_json)
    return experiments.load_task(config.experiment)


def run_job(config_json: str, folder: str | None, N: int, run: int, done: frozenset[str]) -> list[tuple[str, str]]:
    """The cells of one log that are not `done`. With a folder each record is written there as soon as it is finished;
    without one (on a cluster) they are returned, as (name, text of the record)."""
    config = GridConfig.model_validate_json(config_json)
    seed = derive(config.seed, "run", run)
    world = experiments.build_world(_task(config_json), config.experiment, seed)
    if N == 0:
        found = experiments.references(world, config.experiment, config.candidates[0], seed)
        text = as_json([{"name": n, **_means(e.summary())} for n, e in found.items()])
        if folder is not None:
            write_text(Path(folder) / f"{REFERENCES}.json", text)
        return [(REFERENCES, text)]
    trainer = experiments.Trainer(
        world, config.experiment, experiments.simulate(world, config.experiment, N, seed), seed
    )
    results = []
    for cell in cells(config):
        if (cell.N, cell.run) == (N, run) and cell.name not in done:
            record = as_json(_record(cell, trainer.run(cell.method, cell.K2)))
            if folder is not None:
                write_record(Path(folder), cell.name, record)
            results.append((cell.name, record))
    return results


def _means(summary: dict[str, Mean]) -> dict[str, Any]:
    return {name: vars(value) for name, value in summary.items()}


def _record(cell: Cell, outcome: Outcome) -> dict[str, Any]:
    users = outcome.evaluation.ndcg
    return {
        **cell._asdict(),
        **_means(outcome.evaluation.summary()),
        "seconds": outcome.seconds,
        "history": [epoch._asdict() for epoch in outcome.history],
        "users": [round(float(x), 6) for x in users],
    }


def write_record(folder: Path, name: str, text: str) -> None:
    """One finished cell, in one piece: the figures as JSON, the NDCG of every user as Parquet."""
    record = json.loads(text)
    users = record.pop("users")
    with replacing(folder / "cells" / name) as place:
        place.mkdir()
        (place / "record.json").write_text(as_json(record), encoding="utf-8")
        pl.DataFrame({"ndcg": pl.Series(users, dtype=pl.Float32)}).write_parquet(place / "users.parquet")


def read_records(config: GridConfig, folder: Path) -> list[dict[str, Any]]:
    """The finished cells, in the grid's order."""
    paths = (folder / "cells" / cell.name / "record.json" for cell in cells(config))
    return [_load(str(path)) for path in paths if path.exists()]


@cache
def _load(path: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return record


# Engines


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


# The table


def rows_of(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each (method, K2, N): means over the runs so far."""
    groups: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault((record["method"], record["K2"], record["N"]), []).append(record)
    rows = []
    for (method, K2, N), group in groups.items():
        values = np.array([r["ndcg"]["mean"] for r in group])
        low, high = _interval(values) if len(values) > 1 else (group[0]["ndcg"]["low"], group[0]["ndcg"]["high"])
        row: dict[str, Any] = {"method": method, "K2": K2, "N": N, "runs": len(group)}
        row |= {"ndcg_std": float(values.std(ddof=1)) if len(values) > 1 else None, "ndcg_low": low, "ndcg_high": high}
        row |= {f"{name}_mean": float(np.mean([r[name]["mean"] for r in group])) for name in FIGURES}
        row["seconds_mean"] = float(np.mean([r["seconds"] for r in group]))
        row["ndcg_runs"] = values.tolist()
        rows.append(row)
    return rows


def _interval(values: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[float, float]:
    """The 95% Student interval of the mean over runs."""
    half = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def differences(config: GridConfig, folder: Path) -> list[dict[str, Any]]:
    """Joint less each other method in every cell: paired over the runs, over the users where there is one run."""
    records = {(r["method"], r["K2"], r["N"], r["run"]): r for r in read_records(config, folder)}
    found = []
    for N in config.impressions:
        for K2 in config.candidates:
            for other in (m for m in config.methods if m != "joint"):
                runs = [n for n in range(config.runs) if {("joint", K2, N, n), (other, K2, N, n)} <= records.keys()]
                if not runs:
                    continue
                row = {"K2": K2, "N": N, "method": "joint", "against": other, "runs": len(runs)}
                pairs = [(Cell("joint", K2, N, n), Cell(other, K2, N, n)) for n in runs]
                if len(runs) > 1:
                    gaps = np.array([records[a]["ndcg"]["mean"] - records[b]["ndcg"]["mean"] for a, b in pairs])
                    low, high = _interval(gaps)
                    row |= {"mean": float(gaps.mean()), "low": low, "high": high, "kind": "runs"}
                else:
                    gap = difference(*(_users(folder, cell) for cell in pairs[0]))
                    row |= {"mean": gap.mean, "low": gap.low, "high": gap.high, "kind": "users"}
                found.append(row)
    return found


def _users(folder: Path, cell: Cell) -> np.ndarray[Any, np.dtype[np.float64]]:
    values = pl.read_parquet(folder / "cells" / cell.name / "users.parquet")["ndcg"]
    return values.cast(pl.Float64).fill_null(float("nan")).to_numpy()


def summarise(config: GridConfig, folder: Path, command: str, seconds: float) -> dict[str, Any]:
    """The content of `table.json`: everything that a report shows."""
    import tandemrank

    task = _task(config.model_dump_json())
    world = experiments.build_world(task, config.experiment, derive(config.seed, "run", 0))
    records = read_records(config, folder)
    fields = ("method", "K2", "N", "run")
    is_ml_1m = task.name == "ml-1m"
    return {
        "title": f"Two-stage counterfactual learning to rank on {task.name}",
        "command": command,
        "version": tandemrank.__version__,
        "world": {
            "data": task.name,
            "queries": task.Q,
            "items": task.D,
            "logged_users": len(world.q),
            "positives": int(task.relevance.nnz),
            "machine": f"{os.cpu_count()} cores",
            "seconds": seconds,
        },
        "switches": _switches(config),
        "switch_help": switch_help(),
        "rows": rows_of(records),
        "references": _references(config, folder),
        "differences": differences(config, folder),
        "curves": [{**{f: r[f] for f in fields}, "history": r["history"]} for r in records],
        "paper": paper_rows(config) if is_ml_1m else [],
    }


def _references(config: GridConfig, folder: Path) -> list[dict[str, Any]]:
    if not config.references:
        return []
    found: list[dict[str, Any]] = json.loads((folder / f"{REFERENCES}.json").read_text(encoding="utf-8"))
    return found


def _switches(config: GridConfig) -> dict[str, Any]:
    """Every switch with its value, on one level but for the training's."""
    values = config.model_dump(mode="json")
    experiment = values.pop("experiment")
    learning = experiment.pop("learning")
    # A grid has its own lists of these two.
    del experiment["impressions"], learning["candidates"]
    return {**experiment, **learning, **values}


def switch_help() -> dict[str, str]:
    """What every switch means, by name."""
    from tandemrank.learning import LearningConfig
    from tandemrank.training import TrainingConfig

    return {
        name: field.description or ""
        for model in (TrainingConfig, LearningConfig, ExperimentConfig, GridConfig)
        for name, field in model.model_fields.items()
    }


# Table 1 of the paper: NDCG@10, means of 25 runs.
PAPER = {
    "baseline": {500: (0.404, 0.437, 0.470), 1000: (0.401, 0.440, 0.469), 1500: (0.400, 0.441, 0.474)},
    "independent": {500: (0.410, 0.454, 0.489), 1000: (0.416, 0.465, 0.496), 1500: (0.416, 0.455, 0.496)},
    "joint": {500: (0.420, 0.470, 0.504), 1000: (0.426, 0.479, 0.504), 1500: (0.424, 0.472, 0.510)},
}


def paper_rows(config: GridConfig) -> list[dict[str, Any]]:
    """The cells of the paper's table that are in this grid."""
    rows = [
        {"method": method, "K2": K2, "N": N, "ndcg_mean": value}
        for method, by_K2 in PAPER.items()
        for K2, values in by_K2.items()
        for N, value in zip((100_000, 320_000, 1_000_000), values, strict=True)
    ]
    wanted = {(c.method, c.K2, c.N) for c in cells(config)}
    return [row for row in rows if (row["method"], row["K2"], row["N"]) in wanted]
