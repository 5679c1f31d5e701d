"""The record of a finished cell, written in one piece."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from tandemrank._base.files import Kind, as_json, replacing
from tandemrank.experiments.cells import Cell, GridConfig, cells
from tandemrank.experiments.evaluation import Mean
from tandemrank.experiments.trainer import Outcome

FIGURES = ("ndcg", "ndcg_expected", "recall_at_K2", "utility", "generator_alone", "ranker_alone", "overlap")
REFERENCES = "references"
CELL = Kind("cell of a grid", r"record\.json|users\.parquet")


def means(summary: dict[str, Mean]) -> dict[str, Any]:
    return {name: vars(value) for name, value in summary.items()}


def record_of(cell: Cell, outcome: Outcome) -> dict[str, Any]:
    users = outcome.evaluation.ndcg
    return {
        **cell._asdict(),
        **means(outcome.evaluation.summary()),
        "seconds": outcome.seconds,
        "history": [epoch._asdict() for epoch in outcome.history],
        "users": [round(float(x), 6) for x in users],
    }


def write_record(folder: Path, name: str, text: str) -> None:
    """One finished cell, in one piece: the figures as JSON, the NDCG of every user as Parquet."""
    record = json.loads(text)
    users = record.pop("users")
    with replacing(folder / "cells" / name, CELL) as place:
        place.mkdir()
        (place / "record.json").write_text(as_json(record), encoding="utf-8")
        pl.DataFrame({"ndcg": pl.Series(users, dtype=pl.Float32)}).write_parquet(place / "users.parquet")


def read_records(config: GridConfig, folder: Path) -> list[dict[str, Any]]:
    """The finished cells, in the grid's order."""
    paths = (folder / "cells" / cell.name / "record.json" for cell in cells(config))
    return [load_record(str(path)) for path in paths if path.exists()]


@cache
def load_record(path: str) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return record


def read_references(config: GridConfig, folder: Path) -> list[dict[str, Any]]:
    if not config.references:
        return []
    found: list[dict[str, Any]] = json.loads((folder / f"{REFERENCES}.json").read_text(encoding="utf-8"))
    return found
