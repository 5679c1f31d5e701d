"""A tiny grid for tests."""

from typing import Any

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
    rows = [{name: value for name, value in vars(row).items() if "seconds" not in name} for row in table.rows]
    curves = [[(epoch.held_out, epoch.watched) for epoch in curve.history] for curve in table.curves]
    return repr([rows, curves, table.references, table.differences])
