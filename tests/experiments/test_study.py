"""The study of two models: what its grids are, its table by hand, and that it runs and goes on."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import json_schemas
from example_table import one_setting, typed
from tandemrank._base.config import resolve
from tandemrank.errors import ConfigError
from tandemrank.experiments import study
from tandemrank.experiments.config import PRESETS, ExperimentConfig, cells
from tandemrank.experiments.results import Mean, Row
from tandemrank.experiments.study import SETTINGS, Setting, grids, result_of
from tandemrank.reports.experiment import study as sheet_of

SIZES = {"impressions": 2000, "runs": 2, "seed": 0}


def experiment(**more: object) -> ExperimentConfig:
    small = {"queries": 150, "items": 60, "rank": 10, "epochs": 2, **PRESETS["stages"], **more}
    return resolve(ExperimentConfig, preset=small)


def row(method: str, *ndcg: float, **alone: Mean) -> Row:
    mean = Mean(float(np.mean(ndcg)))
    return Row(method=method, K2=50, N=100, runs=len(ndcg), seconds=1.0, ndcg=mean, ndcg_runs=ndcg, **alone)


def test_every_method_has_all_runs_and_the_score_where_the_stages_know_different_things() -> None:
    wide = experiment(rank=50)
    asked = {one.name: grids(wide, one, impressions=1000, runs=5, seed=0) for one in SETTINGS}
    assert sum(len(cells(config)) for configs in asked.values() for config in configs) == 23 * 4 * 5 + 5 * 2 * 5
    assert len({one.folder for one in SETTINGS}) == len(SETTINGS)
    for setting in SETTINGS:
        plain, *scored = asked[setting.name]
        believes = plain.experiment.stages.ranker == "belief"
        assert (plain.experiment.learning.objective == "beliefs") == believes
        assert plain.methods == (study.BELIEF if believes else study.PLAIN)
        assert [one.methods for one in scored] == [study.SCORED] * setting.with_score
        assert {one.experiment.stages.generator_score for one in scored} <= {"stacked"}
        assert (plain.candidates, plain.impressions) == ((setting.K2,), (round(1000 * setting.share),))
    assert asked[SETTINGS[2].name][0].experiment.production_candidates == 500


def test_joint_is_compared_run_by_run_with_the_best_rival_with_or_without_the_score() -> None:
    alone = row("independent", 0.3, 0.3, generator_alone=Mean(0.2), ranker_alone=Mean(0.45))
    table = typed(one_setting())
    plain = replace(table, rows=(alone, row("stacking", 0.4, 0.62), row("joint", 0.5, 0.7)))
    scored = replace(table, rows=(row("stacking", 0.45, 0.64), row("joint", 0.6, 0.72)))
    found = result_of(SETTINGS[0], [plain, scored])
    assert list(found.ndcg) == ["independent", "stacking", "joint", "stacking with the score", "joint with the score"]
    assert found.single_stage == 0.45
    assert [(gain.method, gain.rival) for gain in found.gains] == [
        ("joint", "stacking with the score"), ("joint with the score", "stacking with the score"),
    ]  # fmt: skip
    half = 12.7062 * np.std([0.05, 0.06], ddof=1) / np.sqrt(2)
    gap = found.gains[0].difference
    assert (gap.low, gap.high) == pytest.approx((0.055 - half, 0.055 + half), abs=1e-5)
    line = sheet_of([found]).markdown().splitlines()[-1]
    assert line.startswith(
        "| factorisation, then features | 50 | 100 "
        "| 0.300 / – | 0.510 / – | 0.600 / – | 0.545 / – | 0.660 / – | 0.450 | +0.0550"
    )
    assert ", with the score +0.1150 [" in line


def test_a_small_study_runs_goes_on_and_refuses_the_folder_of_another(tmp_path: Path, monkeypatch) -> None:
    """Two settings on one log: the second world of its own has another one."""
    belief = {"generator_rank": 2, "ranker": "belief"}
    small = Setting("rank 2, K2 = 20", belief, 20, world={"item_features": True}, with_score=False)
    monkeypatch.setattr(study, "SETTINGS", (small, Setting("features", {"ranker": "features"}, 20, 0.5)))
    heard: list[tuple[int, int]] = []
    folder, asked = tmp_path / "study", {"sizes": {**SIZES, "runs": 1}, "jobs": 1}
    found = study.run(experiment(), folder, **asked, progress=lambda *state: heard.append(state))
    assert [(one.N, len(one.ndcg), len(one.gains)) for one in found] == [(2000, 4, 1), (1000, 6, 2)]
    assert all(0 < mean.mean < 1 for one in found for mean in one.ndcg.values())
    assert (4, 4) in heard
    table = (folder / "table.json").read_text()
    assert len(json.loads(table)) == 2
    json_schemas.check("table", "_study", found, table)
    with pytest.raises(ConfigError, match=r"holds this grid already\. Go on with --resume"):
        study.run(experiment(), folder, **asked)
    assert study.run(experiment(), folder, **asked, resume=True) == found
    with pytest.raises(ConfigError, match="exists and is not a study of the stages"):
        study.run(experiment(), Path(__file__).parent, **asked)


def test_what_cannot_be_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="K2 = 200 candidates, but there are only 60 items"):
        study.run(experiment(rank=50), tmp_path / "study", sizes=SIZES)
    with pytest.raises(ConfigError, match="the study has its own stages"):
        study.run(experiment(generator_rank=3), tmp_path / "study", sizes=SIZES)
    assert not (tmp_path / "study").exists()
