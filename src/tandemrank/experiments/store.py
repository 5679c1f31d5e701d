"""The folder of a grid: whose it is, its finished cells, its references, its time.

    config.json   time.json   cells/<name>/{record.json, users.parquet}   references.json   at the end table.json
    checkpoints/N-<N>-run-<run>/<phase>.safetensors   of a log whose cells are being trained

What is not whole is not there: a cell, the references or the time that cannot be read, or contradict themselves, are made
again. Whose cells these are cannot be made again: a folder with cells and without its own `config.json` is refused.
"""

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.files import MARK, Kind, as_json, check_target, claim, replacing, write_json, write_text
from tandemrank._base.processes import alone_in
from tandemrank.errors import ConfigError
from tandemrank.experiments.config import Cell, GridConfig, cells
from tandemrank.experiments.results import FIGURES, NdcgFigure, Record, Reference, from_json

# All that a grid's folder holds, its reports included.
GRID = Kind(
    "grid",
    r"(config|time|references|table)\.json|table\.md|report\.html|cells/([^/]+/(record\.json|users\.parquet)?)?"
    r"|checkpoints/([^/]+/([^/]+\.safetensors)?)?",
)
CELL = Kind("cell of a grid", r"record\.json|users\.parquet")
DAMAGED = (OSError, ValueError, pl.exceptions.PolarsError, pl.exceptions.PanicException)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CellUsers:
    """NDCG of every user, of all items and of new ones (NaN where nothing is relevant)."""

    ndcg: tuple[float, ...]
    ndcg_new: tuple[float, ...]


@dataclass(frozen=True)
class Finished:
    """A cell as it comes from its training: the record and its users."""

    cell: Cell
    record: Record
    users: CellUsers


class Store:
    """What of a grid is in its folder. A record is read once."""

    def __init__(self, config: GridConfig, folder: Path) -> None:
        self.config, self.folder = config, folder
        self._read: dict[Cell, Record] = {}

    def records(self) -> dict[Cell, Record]:
        """The finished cells, in the grid's order."""
        for cell in cells(self.config):
            if cell not in self._read and (found := read_cell(self.folder, cell)) is not None:
                self._read[cell] = found
        return {cell: self._read[cell] for cell in cells(self.config) if cell in self._read}

    def users(self, cell: Cell, figure: NdcgFigure = "ndcg") -> Floats:
        """NDCG of every user in a finished cell."""
        return _users(self.folder, cell, figure)

    def references(self) -> tuple[Reference, ...] | None:
        """What to compare with; None where it is not there yet."""
        if not self.config.references:
            return ()
        try:
            found = from_json(tuple[Reference, ...], (self.folder / "references.json").read_bytes())
        except DAMAGED:
            return None
        return found if found and all(math.isfinite(reference.ndcg.mean) for reference in found) else None


@contextmanager
def opened(config: GridConfig, folder: Path, *, resume: bool = False, anew: bool = False) -> Iterator[Store]:
    """The folder as this grid's own, and no other process's meanwhile.

    Refused: another grid's folder, and without `resume` one with finished cells; `anew` clears those of the same grid. A
    folder in which no cell was ever finished is free, whatever switches were tried there.
    """
    claim(folder, GRID, inputs=[config.experiment.data])
    with alone_in(folder, MARK):
        _claim(config, folder, resume, anew)
        yield Store(config, folder)


def _claim(config: GridConfig, folder: Path, resume: bool, anew: bool) -> None:
    path, text = folder / "config.json", config.model_dump_json(indent=2) + "\n"
    try:
        came = path.read_text(encoding="utf-8") if path.exists() else None
    except DAMAGED:
        came = ""
    if next((folder / "cells").glob("*/record.json"), None) is None or (anew and came == text):
        _clear(folder)
        if anew or came is None or _switches(came) != _switches(text):
            clear_checkpoints(folder)
        write_text(path, text)
    elif came is None or _switches(came) != _switches(text):
        if came is None or not _switches(came):
            raise ConfigError(
                f"{path} is {'missing' if came is None else 'damaged'}, and there are finished cells: it cannot be told which "
                "grid they belong to. Put it back, or give another folder."
            )
        raise ConfigError(f"{folder} holds a grid with other switches. Give another folder, or the same switches.")
    elif not resume:
        raise ConfigError(f"{folder} holds this grid already. Go on with --resume, or give another folder.")
    else:
        write_text(path, text)


def _switches(text: str) -> dict[str, Any]:
    """What the cells of a configuration depend on; nothing where it is none."""
    try:
        GridConfig.model_validate_json(text)
        found: dict[str, Any] = json.loads(text)
    except ValueError:
        return {}
    return found


def _clear(folder: Path) -> None:
    """Removes what a grid has written, by name; refused where there is anything else."""
    check_target(folder, GRID)
    for cell in (folder / "cells").glob("*"):
        for name in ("record.json", "users.parquet"):
            (cell / name).unlink(missing_ok=True)
        cell.rmdir()
    for name in ("references.json", "time.json", "table.json", "table.md", "report.html"):
        (folder / name).unlink(missing_ok=True)


def clear_checkpoints(folder: Path) -> None:
    """Removes the checkpoints of all logs."""
    place = folder / "checkpoints"
    for log in place.glob("*"):
        drop_checkpoints(log)
    if place.exists():
        place.rmdir()


def checkpoints_of(folder: Path, N: int, run: int) -> Path:
    """Where the trainings of one log keep their checkpoints."""
    return folder / "checkpoints" / f"N-{N}-run-{run}"


def drop_checkpoints(place: Path) -> None:
    """Removes the checkpoints of one log: its cells are finished."""
    for path in place.glob("*.safetensors"):
        path.unlink()
    if place.exists():
        place.rmdir()


def write_cell(folder: Path, finished: Finished) -> None:
    """One finished cell, in one piece: the figures as JSON, the NDCG of every user as Parquet."""
    columns = {
        name: pl.Series(values, dtype=pl.Float32).fill_nan(None) for name, values in vars(finished.users).items()
    }
    with replacing(folder / "cells" / finished.cell.name, CELL) as place:
        place.mkdir()
        (place / "record.json").write_text(as_json(finished.record), encoding="utf-8")
        pl.DataFrame(columns).write_parquet(place / "users.parquet")


def write_references(folder: Path, found: tuple[Reference, ...]) -> None:
    """The rows to compare with."""
    write_json(folder / "references.json", found)


NEEDED = tuple(figure for figure in FIGURES if figure != "ndcg_new")  # there may be nothing new that is relevant


def read_cell(folder: Path, cell: Cell) -> Record | None:
    """The record of a finished cell; None where it is not there, or not whole."""
    record = _read(folder, cell)
    if record is None or (record.method, record.K2, record.N, record.run) != cell:
        return None
    return record if all(math.isfinite(record.of(figure).mean) for figure in NEEDED) else None


def _read(folder: Path, cell: Cell) -> Record | None:
    """The record of a cell, if it agrees with its users."""
    try:
        record = from_json(Record, (folder / "cells" / cell.name / "record.json").read_bytes())
        users = _users(folder, cell, "ndcg")
    except DAMAGED:
        return None
    known = users[~np.isnan(users)]
    whole = len(known) == record.ndcg.n > 0 and abs(known.mean() - record.ndcg.mean) < 1e-5
    return record if whole else None


def _users(folder: Path, cell: Cell, figure: NdcgFigure) -> Floats:
    values = pl.read_parquet(folder / "cells" / cell.name / "users.parquet")[figure]
    return values.cast(pl.Float64).fill_null(float("nan")).to_numpy()


class Clock:
    """Wall time of a grid over all its parts: noted every ten seconds, so that an interruption loses no more."""

    def __init__(self, folder: Path) -> None:
        self.path, self.start = folder / "time.json", time.perf_counter()
        try:
            before = from_json(float, self.path.read_bytes())
        except DAMAGED:
            before = 0.0
        self.before = self.noted = before if 0 <= before < math.inf else 0.0

    def seconds(self, *, last: bool = False) -> float:
        """The time so far."""
        now = self.before + time.perf_counter() - self.start
        if last or now - self.noted > 10:
            write_json(self.path, now)
            self.noted = now
        return now
