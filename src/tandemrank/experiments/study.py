"""The study: when training the stages for each other pays, for stages that are two models.

    gain = NDCG(Joint) - NDCG(best other policy of the same two stages),    paired over runs

A list of settings, each a grid of its own (`grid.run`) in a folder of its own. Seeds are those of the grid, so a run has one
production policy, and one log per length, in all settings. The best rival is the one with the highest mean by the truth, a
choice in its favour. Every stage has as many epochs in every method.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tandemrank._base.cluster import Engine
from tandemrank._base.config import validated
from tandemrank._base.files import Kind, claimed, write_json
from tandemrank.errors import ConfigError
from tandemrank.experiments import grid
from tandemrank.experiments.config import ExperimentConfig, GridConfig
from tandemrank.experiments.evaluation import over_runs
from tandemrank.experiments.results import Mean, Table
from tandemrank.experiments.stage_models import Stages

STUDY = Kind("study of the stages")
LOW = 8  # the rank of a generator that knows less
_DIFFERENT = {"generator": "factorisation", "generator_rank": LOW, "ranker": "features"}


@dataclass(frozen=True, eq=False)
class Setting:
    """Two models, K2, the length of the log as a share of the study's, and switches of its world.

    `with_score`: whether Joint and Stacking also have a re-ranker that is given the generator's score, the fair rival.
    """

    name: str
    stages: dict[str, Any]
    K2: int = 50
    share: float = 1.0
    world: dict[str, Any] = field(default_factory=dict)
    with_score: bool = True

    @property
    def folder(self) -> str:
        """The name of its folder."""
        return re.sub(r"[^a-z0-9.]+", "-", self.name.lower())


SETTINGS: tuple[Setting, ...] = (
    Setting("factorisation, then features", _DIFFERENT),
    Setting("features, then factorisation", {"generator": "features", "ranker": "factorisation"}),
    Setting(
        "factorisation, then features, production of two stages",
        _DIFFERENT,
        world={"production_candidates": 500, "production_generator_rank": LOW},
    ),
    Setting("factorisation, then features, 0.32 of the log", _DIFFERENT, share=0.32),
    Setting("factorisation, then features, 0.1 of the log", _DIFFERENT, share=0.1),
    *(
        Setting(
            f"rank {rank}, then the belief{' with features' if known else ''}, K2 = {K2}",
            {"generator_rank": rank, "ranker": "belief"},
            K2,
            world={"item_features": known},
            with_score=False,
        )
        for known in (False, True)
        for rank in (2, LOW, 32)
        for K2 in (20, 50, 200)
    ),
)
PLAIN, SCORED = ("independent", "baseline", "stacking", "joint"), ("stacking", "joint")
BELIEF = (
    "beliefs",
    "independent",
    "baseline",
    "joint",
)  # nothing of the belief is trained: stacking would be independent
SUFFIX = " with the score"  # of a method whose re-ranker is given the generator's


@dataclass(frozen=True)
class Gain:
    """Joint less its best rival."""

    method: str
    rival: str
    difference: Mean


@dataclass(frozen=True)
class SettingResult:
    """What came of a setting: NDCG of every method, on all items and on items not clicked before; of each Joint its gain; and
    `single_stage`: the better of what the two stages of Independent show alone, over all items."""

    name: str
    K2: int
    N: int
    ndcg: dict[str, Mean]
    ndcg_new: dict[str, Mean]
    single_stage: float
    gains: tuple[Gain, ...]


def grids(experiment: ExperimentConfig, setting: Setting, **sizes: int) -> list[GridConfig]:
    """The grids of a setting: of every method, and with the generator's score. `sizes`: impressions, runs and seed."""
    if experiment.stages != Stages():
        raise ConfigError("the study has its own stages: leave generator, ranker and their switches out.")
    N = max(round(sizes["impressions"] * setting.share), 1)
    asked = {**sizes, "impressions": [N], "candidates": [setting.K2], "references": False}
    switches = experiment.model_dump()
    believes = setting.stages.get("ranker") == "belief"
    if believes:
        switches["learning"]["objective"] = "beliefs"
    kinds = [(BELIEF if believes else PLAIN, "off"), (SCORED, "stacked")][: 1 + setting.with_score]
    return [
        validated(
            GridConfig,
            {
                **asked,
                "methods": methods,
                "experiment": {
                    **switches,
                    **setting.world,
                    "stages": {**setting.stages, "generator_score": score},
                },
            },
        )
        for methods, score in kinds
    ]


def run(
    experiment: ExperimentConfig,
    folder: Path,
    *,
    sizes: dict[str, int],
    engine: Engine = "local",
    jobs: int | None = None,
    resume: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[SettingResult, ...]:
    """Trains what is missing, and returns (and writes, setting by setting) what came of it.

    `sizes`: impressions, runs and seed. `progress` hears how many trainings of the grid that is under way are finished.
    """
    asked = {setting: grids(experiment, setting, **sizes) for setting in SETTINGS}
    for config in (one for configs in asked.values() for one in configs):
        grid.check_candidates(config)
    how: dict[str, Any] = {"engine": engine, "jobs": jobs, "resume": resume, "progress": progress}
    found: list[SettingResult] = []
    with claimed(folder, STUDY, inputs=[experiment.data]):
        for setting, configs in asked.items():
            places = [folder / setting.folder, folder / f"{setting.folder}-with-the-score"]
            tables = [grid.run(config, place, **how) for config, place in zip(configs, places, strict=False)]
            found.append(result_of(setting, tables))
            write_json(folder / "table.json", found)
    return tuple(found)


def result_of(setting: Setting, tables: list[Table]) -> SettingResult:
    """A setting by its tables, without and with the generator's score."""
    rows = {row.method + SUFFIX * part: row for part, table in enumerate(tables) for row in table.rows}
    gains = []
    for joint in (name for name in rows if name.startswith("joint")):
        rival = max((name for name in rows if not name.startswith("joint")), key=lambda name: rows[name].ndcg.mean)
        each = np.subtract(rows[joint].ndcg_runs, rows[rival].ndcg_runs)
        gains.append(Gain(joint, rival, over_runs(each) if len(each) > 1 else Mean(float(each[0]), n=1)))
    alone = rows["independent"]
    return SettingResult(
        name=setting.name,
        K2=setting.K2,
        N=alone.N,
        ndcg={name: row.ndcg for name, row in rows.items()},
        ndcg_new={name: row.ndcg_new for name, row in rows.items()},
        single_stage=float(np.nanmax([alone.generator_alone.mean, alone.ranker_alone.mean])),
        gains=tuple(gains),
    )
