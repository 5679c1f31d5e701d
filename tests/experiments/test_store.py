"""The folder of a grid: what is damaged is made again or refused with one clear message, never taken for a result."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from example_grid import figures, run_here
from tandemrank._base import processes
from tandemrank._base.files import MARK, write_json
from tandemrank.errors import ConfigError, JobError, OutputError
from tandemrank.experiments import grid
from tandemrank.experiments.config import GridConfig, cells
from tandemrank.experiments.grid import Job
from tandemrank.experiments.results import Record, Table

CELL = Path("cells", "joint-K2-10-N-2000-run-0.json")
OTHER = Path("cells", "joint-K2-20-N-2000-run-0.json")
REFERENCES, CONFIG = Path("references.json"), Path("config.json")
Damage = Callable[[Path], object]


def put(path: Path, content: bytes) -> Damage:
    return lambda folder: (folder / path).write_bytes(content)


def cut(path: Path) -> Damage:
    return lambda folder: (folder / path).write_bytes((folder / path).read_bytes()[:-40])


def gone(path: Path) -> Damage:
    return lambda folder: (folder / path).unlink()


def edited(path: Path, *keys: str, value: object) -> Damage:
    """A JSON file with one value changed."""

    def damage(folder: Path) -> None:
        content = part = json.loads((folder / path).read_text())
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] = value
        (folder / path).write_text(json.dumps(content))

    return damage


def as_folder(path: Path) -> Damage:
    def damage(folder: Path) -> None:
        (folder / path).unlink()
        (folder / path).mkdir()

    return damage


def opened(config: GridConfig, folder: Path, **how: bool) -> AbstractContextManager[None]:
    return grid.opened(config, folder, **how)


def missing(config: GridConfig, folder: Path) -> list[Job]:
    return grid._missing(config, folder, records_in(config, folder))


def records_in(config: GridConfig, folder: Path) -> grid.Records:
    found: grid.Records = {}
    grid._read_new(config, folder, found)
    return found


HERE = Job(2000, 0)
REDONE: dict[str, tuple[Damage, Job]] = {
    "no cell": (gone(CELL), HERE),
    "an empty cell": (put(CELL, b""), HERE),
    "a cell cut short": (cut(CELL), HERE),
    "a cell that is no text": (put(CELL, b"\xff\xfe\x00"), HERE),
    "a cell that is a list": (put(CELL, b"[]"), HERE),
    "a cell that is a folder": (as_folder(CELL), HERE),
    "a cell nested too deeply": (put(CELL, b"[" * 100_000), HERE),
    "a cell without NDCG": (edited(CELL, "ndcg", "mean", value=None), HERE),
    "a cell with words for numbers": (edited(CELL, "ndcg", "mean", value="high"), HERE),
    "a cell with another history": (edited(CELL, "history", value=3), HERE),
    "no references": (gone(REFERENCES), Job(0, 0)),
    "empty references": (put(REFERENCES, b"[]"), Job(0, 0)),
    "references cut short": (cut(REFERENCES), Job(0, 0)),
    "references that are a folder": (as_folder(REFERENCES), Job(0, 0)),
}


@pytest.fixture
def copy(whole_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole_folder, tmp_path / "grid"))


def test_a_whole_folder_needs_nothing(config: GridConfig, copy: Path) -> None:
    assert missing(config, copy) == []
    assert list(records_in(config, copy)) == cells(config)


@pytest.mark.parametrize("name", REDONE)
def test_what_is_damaged_is_made_again(name: str, config: GridConfig, copy: Path) -> None:
    damage, job = REDONE[name]
    damage(copy)
    assert missing(config, copy) == [job]


def test_a_damaged_folder_gives_the_same_table(config: GridConfig, whole: Table, copy: Path) -> None:
    """A cell that is gone, one cut short, the references gone bad: all at once."""
    for damage in (gone(CELL), cut(OTHER), put(REFERENCES, b"{")):
        damage(copy)
    assert figures(run_here(config, copy, resume=True)) == figures(whole)


REFUSED: dict[str, Damage] = {
    "no configuration": gone(CONFIG),
    "an empty configuration": put(CONFIG, b""),
    "a configuration that is no text": put(CONFIG, b"\xff\xfe"),
    "a configuration that is a folder": as_folder(CONFIG),
    "other switches": edited(CONFIG, "seed", value=5),
}


@pytest.mark.parametrize("name", REFUSED)
def test_whose_cells_these_are_must_be_known(name: str, config: GridConfig, copy: Path) -> None:
    REFUSED[name](copy)
    before = sorted(copy.rglob("*"))
    with pytest.raises(
        ConfigError, match=r"holds a grid with other switches, or its config\.json is missing or damaged"
    ):
        grid.run(config, copy, resume=True)
    assert sorted(copy.rglob("*")) == before


def test_a_folder_without_a_finished_cell_is_free(config: GridConfig, tmp_path: Path) -> None:
    """Whatever was tried there before; and nothing of it is taken for a result of this grid."""
    folder = tmp_path / "grid"
    with opened(config.model_copy(update={"seed": 5}), folder):
        pass
    (folder / "references.json").write_text("[]")
    with opened(config, folder):
        assert not (folder / "references.json").exists()
    assert GridConfig.model_validate_json((folder / "config.json").read_text()) == config


def test_anew_begins_again(config: GridConfig, copy: Path) -> None:
    with opened(config, copy, anew=True):
        assert records_in(config, copy) == {}
    assert {path.name for path in copy.iterdir()} <= {"cells", "config.json", MARK}


def test_anew_leaves_what_is_not_the_grids(config: GridConfig, copy: Path) -> None:
    (copy / "cells" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"notes\.txt is in it"), opened(config, copy, anew=True):
        pass
    assert (copy / "cells" / "notes.txt").read_text() == "mine"


def test_a_second_process_is_kept_out(config: GridConfig, copy: Path) -> None:
    with opened(config, copy, resume=True), pytest.raises(JobError, match="another process is at work in"):
        grid.run(config, copy, resume=True)
    with processes.alone_in(copy, MARK):
        pass  # free again


def test_a_full_disk_is_one_error_and_what_was_finished_stays(
    config: GridConfig, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = grid.read(copy / CELL, Record)
    assert record is not None

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"cannot write .*: No space left on device"):
        write_json(copy / CELL, record)
    with pytest.raises(OutputError, match="No space left on device"):
        grid.run(config, copy, resume=True)  # all cells are there, and the table cannot be written
    monkeypatch.undo()
    assert grid.read(copy / CELL, Record) == record
    assert list(records_in(config, copy)) == cells(config)
