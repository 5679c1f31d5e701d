"""When training the stages for each other pays: Joint less the best of its rivals, for pairs of stages that are two models.

    gain = NDCG(Joint) - NDCG(best rival),    rivals: Independent that knows K2, Baseline, Stacking, the best single stage

Paired over runs; the best rival is the one with the highest mean by the truth, a choice in its favour. Every stage has as
many epochs in every method. All settings are fixed (`study`); a run has one production policy, and one log per length, for
all of them. The most telling cells come first, one file each: a study that was interrupted goes on, and one that is not
finished says how many runs it has.
"""

import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tandemrank._base.config import validated
from tandemrank._base.files import MARK, Kind, check_target, claim, write_json, write_text
from tandemrank._base.processes import alone_in
from tandemrank._base.random import derive
from tandemrank.errors import ConfigError
from tandemrank.experiments.config import ExperimentConfig
from tandemrank.experiments.evaluation import ndcg
from tandemrank.experiments.stage_models import Stages
from tandemrank.experiments.study import (
    BY_NAME,
    DAMAGED,
    Cell,
    CellRecord,
    StudyConfig,
    StudyTable,
    cells,
    length,
    read_cell,
    table_of,
)
from tandemrank.experiments.trainer import Log, Trainer, simulate_log
from tandemrank.experiments.world import World, build_world, load_task
from tandemrank.policies.scorers import Scorer
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.driver import Alone
from tandemrank.training.schedules import GENERATOR_ALONE

KEPT = 24  # logs, and what was trained alone on each, some 50 MB of MovieLens-1M
STUDY = Kind("study of the stages", r"(config|table)\.json|table\.md|gains\.svg|cells/([^/]+\.json)?")


def study_config(experiment: ExperimentConfig, *, impressions: int, runs: int, seed: int) -> StudyConfig:
    """The study on this world: started from what production knows, trained by inverse propensities, as in the paper."""
    if experiment.stages != Stages():
        raise ConfigError("the study has its own stages: leave generator, ranker and their switches out.")
    return StudyConfig(experiment, impressions, runs, seed)


def run(
    config: StudyConfig,
    folder: Path,
    *,
    command: str = "",
    resume: bool = False,
    progress: Callable[[int], None] | None = None,
) -> StudyTable:
    """Trains what is missing, and returns (and writes) the table of all that is there; `progress` hears how many cells are."""
    _check_candidates(config)
    claim(folder, STUDY, inputs=[config.experiment.data])
    with alone_in(folder, MARK):
        _claim(config, folder, resume)
        asked = cells(config)
        done = {cell.name for cell in asked if read_cell(folder, cell) is not None}
        missing = [cell for cell in asked if cell.name not in done]
        tell = progress or (lambda done: None)
        tell(len(done))
        for number, (cell, record) in enumerate(_trained(config, missing), 1):
            write_json(folder / "cells" / f"{cell.name}.json", record)
            tell(len(done) + number)
        table = table_of(config, folder, command)
        write_json(folder / "table.json", table)
        return table


def _check_candidates(config: StudyConfig) -> None:
    """Now, and not after the first settings were trained."""
    most, items = max(BY_NAME[cell.setting].K2 for cell in cells(config)), load_task(config.experiment).D
    if most > items:
        raise ConfigError(f"the study has up to {most} candidates, but there are only {items} items. Give more items.")


def _claim(config: StudyConfig, folder: Path, resume: bool) -> None:
    """Refuses the folder of another study, and without `resume` one with finished cells."""
    check_target(folder, STUDY)
    path, text = folder / "config.json", _as_text(config)
    (folder / "cells").mkdir(exist_ok=True)
    if any((folder / "cells").glob("*.json")):
        try:
            came = path.read_text(encoding="utf-8")
        except DAMAGED as error:
            raise ConfigError(
                f"{path} is missing or damaged, and there are finished cells: it cannot be told which study they belong to. "
                "Put it back, or give another folder."
            ) from error
        if came != text:
            raise ConfigError(f"{folder} holds a study with other switches. Give another folder, or the same switches.")
        if not resume:
            raise ConfigError(f"{folder} holds this study already. Go on with --resume, or give another folder.")
    write_text(path, text)


def _as_text(config: StudyConfig) -> str:
    head = f'"impressions": {config.impressions}, "seed": {config.seed}'
    return f'{{{head}, "experiment": {config.experiment.model_dump_json()}}}\n'


def _trained(config: StudyConfig, missing: list[Cell]) -> Iterator[tuple[Cell, CellRecord]]:
    """Every cell that is missing; what shares a world, a log, a stage that was trained alone or a start is made once."""

    @lru_cache(maxsize=KEPT)
    def world_of(run: int, switches: tuple[tuple[str, int], ...]) -> World:
        return build_world(task, _with(config.experiment, dict(switches)), derive(config.seed, "run", run))

    @lru_cache(maxsize=KEPT)
    def log_of(run: int, switches: tuple[tuple[str, int], ...], N: int) -> tuple[Log, Alone]:
        return (
            simulate_log(world_of(run, switches), config.experiment, N, derive(config.seed, "run", run), ("joint",)),
            {},
        )

    @lru_cache(maxsize=1)
    def trainer_of(name: str, score: str, run: int) -> Trainer:
        setting = BY_NAME[name]
        own = _with(config.experiment, {**dict(setting.world), "stages": {**setting.stages, "generator_score": score}})
        log, alone = log_of(run, setting.world, length(config, setting))
        world, seed = world_of(run, setting.world), derive(config.seed, "run", run)
        return Trainer(world, own, log, seed, alone=alone, watched=False)

    if not missing:
        return
    task = load_task(config.experiment)
    for cell in missing:
        since = time.perf_counter()
        trainer = trainer_of(cell.setting, cell.score, cell.run)
        pair = trainer.methods.train(cell.method, BY_NAME[cell.setting].K2).policy
        figures = _figures(trainer, pair, is_independent=cell.method == "independent")
        clicked = trainer.log.clicked.nnz / len(trainer.world.q)
        yield cell, CellRecord(**figures, clicked_per_query=clicked, seconds=time.perf_counter() - since)


def _figures(trainer: Trainer, pair: TwoStagePolicy, *, is_independent: bool) -> dict[str, float]:
    """NDCG of the pair and of its stages alone; those trained for rank come with Independent."""
    world = trainer.world

    def ndcg_of(policy: TwoStagePolicy) -> float:
        return float(np.nanmean(ndcg(policy.most_likely(world.q), world.q, world.task.relevance)))

    def alone(scorer: Scorer) -> float:
        return ndcg_of(TwoStagePolicy(scorer, scorer, world.task.D, pair.K, pair.vocabulary))

    found = {"ndcg": ndcg_of(pair), "generator_alone": alone(pair.generator)}
    for_rank = dict.fromkeys(("ranker_alone", "generator_for_rank"), float("nan"))
    if is_independent:
        single = trainer.methods.alone(GENERATOR_ALONE).policy.generator
        for_rank = {"ranker_alone": alone(pair.ranker), "generator_for_rank": alone(single)}
    return found | for_rank


def _with(experiment: ExperimentConfig, switches: dict[str, Any]) -> ExperimentConfig:
    return validated(ExperimentConfig, {**experiment.model_dump(), **switches})
