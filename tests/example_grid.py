"""A tiny grid for tests."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tandemrank.experiments import grid
from tandemrank.experiments.config import GridConfig
from tandemrank.experiments.results import Table

TINY: dict[str, Any] = {
    "experiment": {
        "queries": 60,
        "items": 40,
        "rank": 5,
        "learning": {"list_length": 5, "objective": "ips", "training": {"epochs": 4}},
    },
    "methods": ["baseline", "independent", "joint"],
    "candidates": [10, 20],
    "impressions": [2000, 4000],
    "runs": 1,
}


def figures(table: Table) -> str:
    """All that must not depend on how a table was made: NaN and all, so as text."""
    rows = [replace(row, seconds=0.0) for row in table.rows]
    curves = [[(epoch.objective, epoch.watched) for epoch in curve.history] for curve in table.curves]
    return repr([rows, curves, table.references, table.differences])


def run_here(config: GridConfig, folder: Path, *, resume: bool = False) -> Table:
    """A grid whose jobs run in this process: a new one takes seconds to start."""
    records: grid.Records = {}
    with grid.opened(config, folder, resume=resume):
        grid._read_new(config, folder, records)
        for job in grid._missing(config, folder, records):
            grid.run_job(config.model_dump_json(), job, frozenset(records), str(folder))
    return grid.run(config, folder, resume=True)
