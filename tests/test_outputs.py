"""Every output holds to the one rule: no result replaces or deletes what we did not write, nor an input of its own."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tandemrank._base.files import MARK
from tandemrank._base.ids import Vocabulary
from tandemrank.cli import experiments, policies
from tandemrank.errors import ConfigError
from tandemrank.experiments import grid
from tandemrank.experiments.config import ExperimentConfig, GridConfig
from tandemrank.experiments.world import write_simulated_log
from tandemrank.logs import validation, writing
from tandemrank.logs.impressions import Impressions
from tandemrank.policies.scorers import GivenScores, MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.reports.page import Report
from tandemrank.serving.export import export
from tandemrank.sessions.simulation import SessionWorldConfig
from tandemrank.sessions.simulation import write_log as write_sessions

IDS = Vocabulary(pl.Series([1, 2]), pl.Series([10, 20, 30]))
SHOWN = Impressions(
    np.array([0, 1], np.int32), np.array([[0, 1], [2, 1]], np.int32), np.array([[1, 0], [0, 0]], np.uint8)
)
SMALL = ExperimentConfig(queries=50, items=40)


def write_log(path: Path) -> None:
    writing.write([SHOWN], path, IDS)


def fix_log(path: Path) -> None:
    validation.fix(pl.DataFrame({"query_id": [1], "items": [[10, 20]], "clicks": [[1, 0]]}), path)


def save_policy(path: Path) -> None:
    TwoStagePolicy(GivenScores(np.zeros((2, 3))), GivenScores(np.zeros((2, 3))), 2, 1, IDS).save(path)


def export_policy(path: Path) -> None:
    scorer = MatrixFactorisation(np.ones((2, 1)), np.ones((3, 1)))
    export(TwoStagePolicy(scorer, scorer, 2, 1, IDS), "numpy", path)


def simulate(path: Path) -> None:
    write_simulated_log(SMALL, path)


def simulate_sessions(path: Path) -> None:
    write_sessions(SessionWorldConfig(), path, 10)


def train(path: Path, logs: str = "nowhere.parquet") -> None:
    policies.learn(logs=[logs], out=path)


def run_grid(path: Path) -> None:
    grid.run(GridConfig(experiment=SMALL, candidates=(20,)), path)


WHOLE: list[Callable[[Path], None]] = [write_log, fix_log, save_policy, export_policy]
FILLED: list[Callable[[Path], None]] = [simulate, simulate_sessions, train, run_grid, partial(experiments.demo)]


@pytest.mark.parametrize("write", WHOLE + FILLED)
def test_a_folder_of_somebody_else_is_refused_and_stays_as_it_is(tmp_path, write) -> None:
    for name in ("config.json", "report.html", "log", "part-00000.parquet"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match="exists"):
        write(tmp_path)
    assert all((tmp_path / name).read_text() == "mine" for name in os.listdir(tmp_path))


@pytest.mark.parametrize("write", WHOLE)
def test_a_result_of_ours_is_replaced_unless_something_else_is_in_it(tmp_path, write) -> None:
    target = tmp_path / "result"
    write(target)
    write(target)
    (target / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"notes.txt is in it"):
        write(target)
    assert (target / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("write", WHOLE)
@pytest.mark.parametrize("other", WHOLE)
def test_a_result_of_another_kind_is_refused(tmp_path, write, other) -> None:
    other(tmp_path / "result")
    if {write, other} <= {write_log, fix_log} or write is other:
        write(tmp_path / "result")
    else:
        with pytest.raises(ConfigError, match="result exists and is not a"):
            write(tmp_path / "result")


def test_a_log_of_another_program_with_our_names_is_refused(tmp_path) -> None:
    (tmp_path / "log").mkdir()
    pl.DataFrame({"query_id": [1]}).write_parquet(tmp_path / "log" / "part-00000.parquet")
    with pytest.raises(ConfigError, match="written by another program"):
        write_log(tmp_path / "log")


def test_the_clean_copy_goes_neither_over_nor_above_nor_into_the_log(tmp_path) -> None:
    log = tmp_path / "data" / "log"
    write_log(log)
    before = sorted(log.rglob("*"))
    for target in (log, log / "part-00000.parquet", tmp_path / "data", tmp_path):
        for source in (str(log), [str(log / "*.parquet")]):
            with pytest.raises(ConfigError):
                validation.fix(source, target)
    with pytest.raises(ConfigError, match="or in its folder"):
        validation.fix(log, log / "clean")
    assert sorted(log.rglob("*")) == before
    assert sorted(os.listdir(tmp_path)) == ["data"]
    assert validation.fix(log, tmp_path / "data" / "clean").kept == 2


def test_training_does_not_write_above_its_log(tmp_path) -> None:
    write_log(tmp_path / "log")
    with pytest.raises(ConfigError, match="it holds the input"):
        train(tmp_path, str(tmp_path / "log"))
    assert os.listdir(tmp_path) == ["log"]


def test_the_demo_clears_its_own_folder_but_nothing_else(tmp_path) -> None:
    folder = tmp_path / "demo"
    (folder / "cells").mkdir(parents=True)
    (folder / "cells" / "joint.json").write_text("a finished cell")
    (folder / MARK).write_text("grid\n")
    (folder / "config.json").write_text('{"runs": 2}')
    with pytest.raises(ConfigError, match="a grid with other switches"):
        experiments.demo(folder)
    config = GridConfig.model_validate({**experiments.DEMO, "seed": 0})
    (folder / "config.json").write_text(config.model_dump_json(indent=2) + "\n")
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"notes.txt is in it"):
        experiments.demo(folder)
    assert sorted(os.listdir(folder)) == [MARK, "cells", "config.json", "notes.txt"]
    assert (folder / "cells" / "joint.json").read_text() == "a finished cell"


def test_a_page_of_somebody_else_is_not_replaced_by_a_report(tmp_path) -> None:
    path = tmp_path / "report.html"
    for _ in range(2):
        Report("Title", ["text"], []).write(path)
    path.write_text("<html>mine</html>")
    with pytest.raises(ConfigError, match="not a report of ours"):
        Report("Title", [], []).write(path)
