"""From records to the table: means, paired differences, everything that a report shows."""

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy.stats import t as student

from tandemrank._base.random import derive
from tandemrank.experiments.cells import Cell, GridConfig
from tandemrank.experiments.config import ExperimentConfig
from tandemrank.experiments.datasets import Task
from tandemrank.experiments.evaluation import difference
from tandemrank.experiments.paper import paper_rows
from tandemrank.experiments.records import FIGURES, read_records, read_references
from tandemrank.experiments.world import build_world, load_task


@lru_cache(maxsize=1)
def cached_task(config_json: str) -> Task:
    config = GridConfig.model_validate_json(config_json)
    return load_task(config.experiment)


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

    task = cached_task(config.model_dump_json())
    world = build_world(task, config.experiment, derive(config.seed, "run", 0))
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
        "references": read_references(config, folder),
        "differences": differences(config, folder),
        "curves": [{**{f: r[f] for f in fields}, "history": r["history"]} for r in records],
        "paper": paper_rows(config) if is_ml_1m else [],
    }


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
    from tandemrank.training.config import LearningConfig, TrainingConfig

    return {
        name: field.description or ""
        for model in (TrainingConfig, LearningConfig, ExperimentConfig, GridConfig)
        for name, field in model.model_fields.items()
    }
