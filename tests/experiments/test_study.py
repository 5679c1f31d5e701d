"""The study of two models: what its cells are, that it goes on, and its table by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tandemrank._base.config import resolve
from tandemrank._base.files import write_json
from tandemrank.errors import ConfigError
from tandemrank.experiments import study
from tandemrank.experiments.config import PRESETS, ExperimentConfig
from tandemrank.experiments.study import CellRecord, StudyCell, StudyConfig, cells, study_config, table_of
from tandemrank.reports import stages, style
from tandemrank.training import driver

FIRST, SECOND = study.SETTINGS[:2]


def config(**more: object) -> StudyConfig:
    small = {"queries": 150, "items": 60, "rank": 10, "epochs": 2, **PRESETS["stages"]}
    asked = {"impressions": 2000, "runs": 2, "seed": 0, **more}
    return study_config(resolve(ExperimentConfig, preset=small), **asked)  # type: ignore[arg-type]


def record(ndcg: float, **more: float) -> CellRecord:
    known = {"generator_alone": 0.2, "ranker_alone": 0.1, "generator_for_rank": 0.2, **more}
    return CellRecord(ndcg=ndcg, clicked_per_query=20.0, seconds=1.0, **known)


def put(folder: Path, cell: StudyCell, found: CellRecord) -> None:
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    write_json(folder / "cells" / f"{cell.name}.json", found)


def test_every_method_has_all_runs_and_the_score_where_the_stages_know_different_things() -> None:
    found = cells(config(runs=5))
    assert [cell.run for cell in found] == sorted(cell.run for cell in found)
    assert len(found) == len({cell.name for cell in found}) == 14 * 4 * 5 + 5 * 2 * 5
    with_score = {cell.setting for cell in found if cell.score == "stacked"}
    assert with_score == {setting.name for setting in study.SETTINGS if setting.question != "rank"}
    for setting in study.SETTINGS:
        plain = [(cell.score, cell.method) for cell in found if cell.setting == setting.name and cell.score == "off"]
        assert sorted(plain) == sorted(5 * study.PLAIN)


def test_the_table_is_that_of_the_cells_that_are_there(tmp_path) -> None:
    """Two runs of Joint and Stacking, one of Independent: each rival on its own runs, the best one first."""
    for run, (joint, stacking) in enumerate([(0.5, 0.4), (0.7, 0.62)]):
        put(tmp_path, StudyCell(FIRST.name, "joint", "off", run), record(joint))
        put(tmp_path, StudyCell(FIRST.name, "stacking", "off", run), record(stacking))
    put(tmp_path, StudyCell(FIRST.name, "independent", "off", 0), record(0.3, ranker_alone=0.45))
    (tmp_path / "cells" / f"{StudyCell(FIRST.name, 'baseline', 'off', 0).name}.json").write_text("{")
    table = table_of(config(), tmp_path)
    [found] = table.settings
    assert {line.name: line.ndcg_runs for line in found.lines} == {
        "joint": {0: 0.5, 1: 0.7}, "stacking": {0: 0.4, 1: 0.62}, "independent": {0: 0.3}, "single stage": {0: 0.45},
    }  # fmt: skip
    gains = {gain.rival: gain.difference for gain in found.gains}
    assert list(gains) == ["single stage", "stacking", "independent"]
    assert (gains["single stage"].mean, gains["single stage"].n) == (pytest.approx(0.05), 1)
    half = 12.7062 * np.std([0.1, 0.08], ddof=1) / np.sqrt(2)
    assert (gains["stacking"].low, gains["stacking"].high) == pytest.approx((0.09 - half, 0.09 + half), abs=1e-5)
    pairs, rivals = stages.markdown(table).splitlines()[-1].split(" | ")[-2:]
    assert pairs.startswith("+0.0900 [")
    assert pairs.endswith("over stacking, n = 2")
    assert rivals.startswith("+0.0500  over single stage, n = 1")
    assert "n = 2" in style.svg(stages.gains(table))


def test_the_figure_has_a_row_per_setting_and_both_joints_in_it(tmp_path) -> None:
    """The rival with the score is the better one: over it, in two runs, stands Joint; with the score Joint has one."""
    for run, score, method, ndcg in (
        (0, "off", "joint", 0.5), (1, "off", "joint", 0.7), (0, "off", "stacking", 0.4), (1, "off", "stacking", 0.5),
        (0, "stacked", "stacking", 0.45), (1, "stacked", "stacking", 0.6), (0, "stacked", "joint", 0.55),
    ):  # fmt: skip
        put(tmp_path, StudyCell(FIRST.name, method, score, run), record(ndcg))
    [axis] = stages.gains(table_of(config(), tmp_path)).axes
    assert [tick.get_text() for tick in axis.get_yticklabels()] == [
        f"{FIRST.name}\nover stacking with the score, n = 2 (1 with the score)"
    ]
    means = {line.get_label(): line.get_xydata().tolist() for line in axis.lines if line.get_label()[0] != "_"}
    assert means == {"Joint": [[pytest.approx(0.075), -0.14]], "Joint with the score": [[pytest.approx(0.1), 0.14]]}


@pytest.mark.parametrize(("generator", "ranker", "best"), [(0.4, 0.35, 0.4), (0.4, 0.6, 0.6), (0.4, float("nan"), 0.4)])
def test_a_single_stage_is_the_better_of_both_models_trained_for_rank(tmp_path, generator, ranker, best) -> None:
    """Not what the generator shows that was trained for a place among the K2."""
    put(tmp_path, StudyCell(FIRST.name, "joint", "off", 0), record(0.9))
    found = record(0.3, generator_alone=0.8, ranker_alone=ranker, generator_for_rank=generator)
    put(tmp_path, StudyCell(FIRST.name, "independent", "off", 0), found)
    [setting] = table_of(config(), tmp_path).settings
    assert next(line.ndcg.mean for line in setting.lines if line.name == "single stage") == best


def test_a_study_goes_on_where_it_stopped(tmp_path, monkeypatch) -> None:
    """Only what is missing is trained; another study's folder, and one that is not asked to go on, are refused."""
    monkeypatch.setattr(study, "SETTINGS", (FIRST, SECOND))
    trained: list[str] = []

    def fake(_: StudyConfig, missing: list[StudyCell]):
        for cell in missing:
            trained.append(cell.name)
            yield cell, record(0.5)
            if len(trained) == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(study, "_trained", fake)
    with pytest.raises(KeyboardInterrupt):
        study.run(config(), tmp_path / "study")
    with pytest.raises(ConfigError, match="holds this study of the stages already"):
        study.run(config(), tmp_path / "study")
    with pytest.raises(ConfigError, match="holds a study of the stages with other switches"):
        study.run(config(seed=1), tmp_path / "study", resume=True)
    study.run(config(), tmp_path / "study", resume=True)
    assert sorted(trained) == sorted(cell.name for cell in cells(config()))
    assert json.loads((tmp_path / "study" / "table.json").read_text())["settings"]
    with pytest.raises(ConfigError, match="exists and is not a study of the stages"):
        study.run(config(), Path(__file__).parent)


@pytest.mark.parametrize("damaged", [None, b"", b"\xff\xfe"])
def test_cells_of_a_study_that_cannot_be_told_are_refused(tmp_path, monkeypatch, damaged) -> None:
    monkeypatch.setattr(study, "SETTINGS", (FIRST, SECOND))
    monkeypatch.setattr(study, "_trained", lambda _, missing: ((cell, record(0.5)) for cell in missing))
    heard: list[int] = []
    study.run(config(), tmp_path / "study", progress=heard.append)
    assert heard == list(range(len(cells(config())) + 1))
    path = tmp_path / "study" / "config.json"
    path.unlink() if damaged is None else path.write_bytes(damaged)
    with pytest.raises(ConfigError, match="missing or damaged"):
        study.run(config(), tmp_path / "study", resume=True)


def test_too_few_items_are_refused_before_anything_is_trained(tmp_path) -> None:
    with pytest.raises(ConfigError, match="up to 500 candidates, but there are only 60 items"):
        study.run(config(), tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_one_cell_of_a_small_world_is_trained() -> None:
    [(cell, found)] = study._trained(config(), [StudyCell(FIRST.name, "stacking", "stacked", 0)])
    assert cell.method == "stacking"
    assert 0 < found.ndcg < 1
    assert found.clicked_per_query > 1
    assert np.isnan(found.generator_for_rank)


def test_settings_with_a_stage_in_common_train_it_alone_once(monkeypatch) -> None:
    """The re-ranker alone is one for every generator before it and every K2; another production has a log of its own."""
    small = replace(study.BY_NAME["rank 2, then rank 50, K2 = 20"], stages={"generator_rank": 2})
    other = replace(FIRST, name="two stages", world=(("production_candidates", 20), ("production_generator_rank", 3)))
    first = replace(FIRST, stages={**FIRST.stages, "generator_rank": 2}, K2=20)
    settings = {one.name: one for one in (first, replace(SECOND, K2=20), small, other)}
    monkeypatch.setattr(study, "BY_NAME", settings)
    trained: list[str] = []
    original = driver.Methods._phase

    def spy(self, policy, phase, progress):
        known = len(self._alone)
        found = original(self, policy, phase, progress)
        if len(self._alone) > known:
            trained.append(phase.key)
        return found

    monkeypatch.setattr(driver.Methods, "_phase", spy)
    asked = [StudyCell(name, "independent", "off", 0) for name in settings]
    found = [record for _, record in study._trained(config(), asked)]
    alone = "generator among K2", "ranker alone", "generator alone"
    # The rank 50 of SECOND is that of `small`; the generators of rank 2 are one, too; the other log shares nothing.
    assert [trained.count(key) for key in alone] == [3, 3, 3]
    assert len({one.clicked_per_query for one in found[:3]}) == 1 != len({one.clicked_per_query for one in found})
    assert all(0 < one.generator_for_rank < 1 for one in found)


def test_the_study_has_its_own_stages() -> None:
    own = resolve(ExperimentConfig, preset={"generator_rank": 3})
    with pytest.raises(ConfigError, match="the study has its own stages"):
        study_config(own, impressions=10, runs=1, seed=0)
