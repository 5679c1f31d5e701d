"""The folder of a grid: what is damaged is made again or refused with one clear message, never taken for a result."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from example_grid import figures
from tandemrank._base import processes
from tandemrank.errors import ConfigError, JobError, OutputError
from tandemrank.experiments import grid, store
from tandemrank.experiments.config import GridConfig, cells
from tandemrank.experiments.grid import Job
from tandemrank.experiments.results import Table
from tandemrank.experiments.store import Clock, Store

CELL = Path("cells", "joint-K2-10-N-2000-run-0")
OTHER = Path("cells", "joint-K2-20-N-2000-run-0")
RECORD, USERS = CELL / "record.json", CELL / "users.parquet"
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
            part = part[int(key) if isinstance(part, list) else key]
        part[keys[-1]] = value
        (folder / path).write_text(json.dumps(content))

    return damage


def as_folder(path: Path) -> Damage:
    def damage(folder: Path) -> None:
        (folder / path).unlink()
        (folder / path).mkdir()

    return damage


def users(frame: pl.DataFrame) -> Damage:
    return lambda folder: frame.write_parquet(folder / USERS)


def swapped(folder: Path) -> None:
    shutil.copytree(folder / OTHER, folder / CELL, dirs_exist_ok=True)


REFERENCES, HERE = Path("references.json"), Job(2000, 0)
REDONE: dict[str, tuple[Damage, Job]] = {
    "no record": (gone(RECORD), HERE),
    "no users": (gone(USERS), HERE),
    "neither": (lambda folder: (gone(RECORD)(folder), gone(USERS)(folder)), HERE),
    "no cell": (lambda folder: shutil.rmtree(folder / CELL), HERE),
    "no cells at all": (lambda folder: shutil.rmtree(folder / CELL), HERE),
    "an empty record": (put(RECORD, b""), HERE),
    "a record cut short": (cut(RECORD), HERE),
    "a record that is no text": (put(RECORD, b"\xff\xfe\x00"), HERE),
    "a record that is a list": (put(RECORD, b"[]"), HERE),
    "a record that is null": (put(RECORD, b"null"), HERE),
    "a record that is a folder": (as_folder(RECORD), HERE),
    "a record nested too deeply": (put(RECORD, b"[" * 100_000), HERE),
    "a record without NDCG": (edited(RECORD, "ndcg", "mean", value=None), HERE),
    "a record without clicks": (edited(RECORD, "utility", value={}), HERE),
    "a record with words for numbers": (edited(RECORD, "ndcg", "mean", value="high"), HERE),
    "a record with another history": (edited(RECORD, "history", value=3), HERE),
    "a record with NDCG that its users do not have": (edited(RECORD, "ndcg", "mean", value=0.999), HERE),
    "the record of another cell": (swapped, HERE),
    "users cut short": (cut(USERS), HERE),
    "users that are no Parquet": (put(USERS, b"PAR1 and nothing else PAR1"), HERE),
    "users without NDCG": (users(pl.DataFrame({"x": [0.5]})), HERE),
    "users in words": (users(pl.DataFrame({"ndcg": ["a", "b"]})), HERE),
    "other users": (users(pl.DataFrame({"ndcg": [0.5, 0.6]})), HERE),
    "no references": (gone(REFERENCES), Job(0, 0)),
    "empty references": (put(REFERENCES, b"[]"), Job(0, 0)),
    "references cut short": (cut(REFERENCES), Job(0, 0)),
    "references that are no list": (put(REFERENCES, b'{"name": "random"}'), Job(0, 0)),
    "references without figures": (edited(REFERENCES, "0", "ndcg", value={}), Job(0, 0)),
    "references that are a folder": (as_folder(REFERENCES), Job(0, 0)),
}


@pytest.fixture
def copy(whole_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole_folder, tmp_path / "grid"))


def test_a_whole_folder_needs_nothing(config: GridConfig, copy: Path) -> None:
    with store.opened(config, copy, resume=True) as mine:
        assert grid._missing(mine) == []
        assert list(mine.records()) == cells(config)


@pytest.mark.parametrize("name", REDONE)
def test_what_is_damaged_is_made_again(name: str, config: GridConfig, copy: Path) -> None:
    damage, job = REDONE[name]
    damage(copy)
    with store.opened(config, copy, resume=True) as mine:
        assert grid._missing(mine) == [job]


def test_a_damaged_folder_gives_the_same_table(config: GridConfig, whole: Table, copy: Path) -> None:
    """A cell without its record, one cut short, the references and the time gone bad: all at once."""
    for damage in (gone(RECORD), cut(OTHER / "record.json"), put(REFERENCES, b"{"), put(Path("time.json"), b"{")):
        damage(copy)
    assert figures(grid.run(config, copy, resume=True, jobs=1)) == figures(whole)


@pytest.mark.parametrize("content", [b"", b"{", b"null", b'"long"', b"[3]", b"-5", b"NaN", b"1e999", b"\xff"])
def test_a_time_that_is_none_counts_from_now(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "time.json").write_bytes(content)
    assert 0 <= Clock(tmp_path).seconds() < 3600


CONFIG = Path("config.json")
REFUSED: dict[str, tuple[Damage, str]] = {
    "no configuration": (gone(CONFIG), "config.json is missing, and there are finished cells"),
    "an empty configuration": (put(CONFIG, b""), "config.json is damaged, and there are finished cells"),
    "a configuration cut short": (cut(CONFIG), "config.json is damaged"),
    "a configuration that is no text": (put(CONFIG, b"\xff\xfe"), "config.json is damaged"),
    "a configuration that is a folder": (as_folder(CONFIG), "config.json is damaged"),
    "a switch that there is not": (edited(CONFIG, "magic", value=1), "config.json is damaged"),
    "other switches": (edited(CONFIG, "seed", value=5), "other switches"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_whose_cells_these_are_must_be_known(name: str, config: GridConfig, copy: Path) -> None:
    damage, message = REFUSED[name]
    damage(copy)
    before = sorted(copy.rglob("*"))
    with pytest.raises(ConfigError, match=message):
        grid.run(config, copy, resume=True)
    assert sorted(copy.rglob("*")) == before


def test_a_folder_without_a_finished_cell_is_free(config: GridConfig, tmp_path: Path) -> None:
    """Whatever was tried there before; and nothing of it is taken for a result of this grid."""
    folder = tmp_path / "grid"
    other = config.model_copy(update={"seed": 5})
    with store.opened(other, folder):
        pass
    (folder / "references.json").write_text("[]")
    (folder / "time.json").write_text("5000")
    with store.opened(config, folder) as mine:
        assert mine.references() is None
        assert Clock(folder).seconds() < 5000
    assert GridConfig.model_validate_json((folder / "config.json").read_text()) == config


def test_anew_begins_again(config: GridConfig, copy: Path) -> None:
    with store.opened(config, copy, anew=True) as mine:
        assert mine.records() == {}
    assert {path.name for path in copy.iterdir()} <= {"cells", "config.json", ".tandemrank"}


def test_anew_leaves_what_is_not_the_grids(config: GridConfig, copy: Path) -> None:
    (copy / CELL / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"notes\.txt is in it"), store.opened(config, copy, anew=True):
        pass
    assert (copy / CELL / "notes.txt").read_text() == "mine"


def test_a_second_process_is_kept_out(config: GridConfig, copy: Path) -> None:
    with store.opened(config, copy, resume=True), pytest.raises(JobError, match="another process is at work in"):
        grid.run(config, copy, resume=True)
    assert isinstance(Store(config, copy).records(), dict)
    with processes.alone_in(copy, store.MARK):
        pass  # free again


def test_a_full_disk_is_one_error_and_what_was_finished_stays(
    config: GridConfig, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = cells(config)[0]
    record = store.read_cell(copy, cell)
    assert record is not None
    users = (tuple(Store(config, copy).users(cell, name)) for name in ("ndcg", "ndcg_new"))
    finished = store.Finished(cell, record, store.CellUsers(*users))

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"cannot write .*: No space left on device"):
        store.write_cell(copy, finished)
    with pytest.raises(OutputError, match="No space left on device"):
        grid.run(config, copy, resume=True)  # all cells are there, and the table cannot be written
    monkeypatch.undo()
    assert store.read_cell(copy, cell) == record
    assert list(Store(config, copy).records()) == cells(config)


def test_checkpoints_of_a_grid_without_a_finished_cell_are_kept_for_the_same_switches_alone(config, tmp_path) -> None:
    place = store.checkpoints_of(tmp_path / "grid", 2000, 0)
    for switches, is_kept in ((config, False), (config, True), (config.model_copy(update={"seed": 5}), False)):
        with store.opened(switches, tmp_path / "grid"):
            assert place.exists() == is_kept
        place.mkdir(parents=True, exist_ok=True)
        (place / "both.safetensors").write_bytes(b"so far")
    store.clear_checkpoints(tmp_path / "grid")
    assert not (tmp_path / "grid" / "checkpoints").exists()
