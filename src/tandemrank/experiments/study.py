"""The study: when training the stages for each other pays, for stages that are two models.

    gain = NDCG(Joint) - NDCG(best rival),    rivals: Independent that knows K2, Baseline, Stacking, the best single stage

Paired over runs; the best rival is the one with the highest mean by the truth, a choice in its favour. Every stage has as
many epochs in every method. All settings are fixed; a run has one production policy, and one log per length, for all of
them. Cells come run by run, one file each: a study that was interrupted goes on, and one that is not finished says how many
runs it has.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tandemrank import __version__
from tandemrank._base.config import validated
from tandemrank._base.files import Kind, write_json
from tandemrank._base.random import derive
from tandemrank.errors import ConfigError
from tandemrank.experiments import store
from tandemrank.experiments.config import ExperimentConfig
from tandemrank.experiments.datasets import Task
from tandemrank.experiments.evaluation import over_runs
from tandemrank.experiments.results import Mean, Number
from tandemrank.experiments.stage_models import Stages
from tandemrank.experiments.trainer import Trainer, TrainerLog, ndcg_of, simulate_log
from tandemrank.experiments.world import World, build_world, load_task
from tandemrank.policies.scorers import Scorer
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.driver import Alone
from tandemrank.training.schedules import GENERATOR_ALONE, Method

Question = Literal["information", "production", "clicks", "rank"]
Score = Literal["off", "stacked"]
SINGLE = "single stage"


@dataclass(frozen=True)
class Setting:
    """Two models, K2, the length of the log, as a share of the study's, and switches of its world; `question`: what it is
    there for."""

    name: str
    question: Question
    stages: dict[str, Any]
    K2: int = 50
    share: float = 1.0
    world: tuple[tuple[str, int], ...] = ()


LOW = 8  # the rank of a generator that knows less
FACTORS, FEATURES = "factorisation", "features"
_DIFFERENT = {"generator": FACTORS, "generator_rank": LOW, "ranker": FEATURES}
_TWO_STAGES = (("production_candidates", 500), ("production_generator_rank", LOW))
SETTINGS: tuple[Setting, ...] = (
    Setting("factorisation, then features", "information", _DIFFERENT),
    Setting("features, then factorisation", "information", {"generator": FEATURES, "ranker": FACTORS}),
    Setting("factorisation, then features, production of two stages", "production", _DIFFERENT, world=_TWO_STAGES),
    *(
        Setting(f"factorisation, then features, {share:g} of the log", "clicks", _DIFFERENT, 50, share)
        for share in (0.32, 0.1)
    ),
    *(
        Setting(f"rank {rank}, then rank 50, K2 = {K2}", "rank", {"generator_rank": rank}, K2)
        for K2 in (50, 20, 500)
        for rank in (2, LOW, 48)  # 50 would be one model twice, which has a schedule of its own
    ),
)
BY_NAME = {setting.name: setting for setting in SETTINGS}


class StudyCell(NamedTuple):
    """One training: a setting, what trains it, a run."""

    setting: str
    method: Method
    score: Score
    run: int

    @property
    def name(self) -> str:
        """The name of its file."""
        how = "-with-score" if self.score != "off" else ""
        return f"{list(BY_NAME).index(self.setting):02d}-{self.method}{how}-run-{self.run}"


@dataclass(frozen=True)
class StudyConfig:
    """What a study is made of."""

    experiment: ExperimentConfig
    impressions: int
    runs: int
    seed: int


@dataclass(frozen=True)
class CellRecord:
    """NDCG of one trained pair and of what its generator would show alone; with Independent also of the re-ranker's and of the
    generator's model as the only stage, trained for rank."""

    ndcg: Number
    generator_alone: Number
    ranker_alone: Number
    generator_for_rank: Number
    clicked_per_query: Number
    seconds: Number


@dataclass(frozen=True)
class Line:
    """A method, or the best single stage, in a setting: NDCG of every run."""

    name: str
    ndcg: Mean
    ndcg_runs: dict[int, Number]


@dataclass(frozen=True)
class Gain:
    """Joint less one rival, run by run."""

    method: str
    rival: str
    difference: Mean
    difference_runs: dict[int, Number]


@dataclass(frozen=True)
class SettingResult:
    """What came of a setting, over the runs that are finished; of each Joint the best rival comes first."""

    name: str
    question: str
    K2: int
    N: int
    switches: dict[str, Any]
    clicked_per_query: Number
    lines: tuple[Line, ...]
    gains: tuple[Gain, ...]

    def best(self, method: str = "joint", *, pairs_only: bool = False) -> Gain | None:
        """Joint less its best rival, or the best that is a pair of the same two stages; None where it was not run."""
        rivals = (gain for gain in self.gains if not (pairs_only and gain.rival == SINGLE))
        return next((gain for gain in rivals if gain.method == method), None)


@dataclass(frozen=True)
class StudyTable:
    """The whole study."""

    command: str
    version: str
    data: str
    seed: int
    asked_runs: int
    seconds_per_cell: Number
    settings: tuple[SettingResult, ...]


ORDER: tuple[tuple[Score, Method], ...] = (
    ("off", "joint"), ("off", "stacking"), ("off", "independent"), ("off", "baseline"), ("stacked", "joint"),
    ("stacked", "stacking"),
)  # fmt: skip
PLAIN = ORDER[:4]


def cells(config: StudyConfig) -> list[StudyCell]:
    """All of them, run by run; with the generator's score where the stages know different things."""
    return [
        StudyCell(setting.name, method, score, run)
        for run in range(config.runs)
        for setting in SETTINGS
        for score, method in (PLAIN if setting.question == "rank" else ORDER)
    ]


def length(config: StudyConfig, setting: Setting) -> int:
    """The impressions of a setting."""
    return max(round(config.impressions * setting.share), 1)


def read_cell(folder: Path, cell: StudyCell) -> CellRecord | None:
    """The record of a finished cell; None where it is not there, or not whole."""
    found = store.read(folder / "cells" / f"{cell.name}.json", CellRecord)
    return found if found is not None and np.isfinite(found.ndcg) else None


def table_of(config: StudyConfig, folder: Path, command: str = "") -> StudyTable:
    """What the finished cells of a folder say."""
    records = {cell: found for cell in cells(config) if (found := read_cell(folder, cell)) is not None}
    results = [result for setting in SETTINGS if (result := _result(config, setting, records)) is not None]
    seconds = [record.seconds for record in records.values()]
    return StudyTable(
        command=command,
        version=__version__,
        data=Path(config.experiment.data).stem,
        seed=config.seed,
        asked_runs=config.runs,
        seconds_per_cell=float(np.mean(seconds)) if seconds else float("nan"),
        settings=tuple(results),
    )


def _result(config: StudyConfig, setting: Setting, records: dict[StudyCell, CellRecord]) -> SettingResult | None:
    """A setting over the runs that are there; a rival that has fewer than Joint is compared on those."""
    values: dict[str, dict[int, float]] = {}
    for score, method in ORDER:
        own = {run: records.get(StudyCell(setting.name, method, score, run)) for run in range(config.runs)}
        values[_label(method, score)] = {run: record.ndcg for run, record in own.items() if record is not None}
    values[SINGLE] = {run: _single(setting, run, records) for run in values["independent"]}
    values = {name: found for name, found in values.items() if found}
    gains = [gain for joint in ("joint", "joint with the score") for gain in _gains(joint, values)]
    if not gains:
        return None
    first = records[StudyCell(setting.name, "joint", "off", min(values["joint"]))]
    lines = tuple(Line(name, _over(list(found.values())), found) for name, found in values.items())
    return SettingResult(
        name=setting.name,
        question=setting.question,
        K2=setting.K2,
        N=length(config, setting),
        switches=setting.stages,
        clicked_per_query=first.clicked_per_query,
        lines=lines,
        gains=tuple(gains),
    )


def _label(method: Method, score: Score) -> str:
    return method if score == "off" else f"{method} with the score"


def _gains(joint: str, values: dict[str, dict[int, float]]) -> list[Gain]:
    """Joint less every rival, paired over the runs that both have; the best rival, by the mean, first."""
    found = []
    for rival in (name for name in values if not name.startswith("joint")):
        runs = sorted(values.get(joint, {}).keys() & values[rival].keys())
        if runs:
            each = {run: values[joint][run] - values[rival][run] for run in runs}
            found.append(Gain(joint, rival, _over(list(each.values())), each))
    return sorted(found, key=lambda gain: gain.difference.mean)


def _single(setting: Setting, run: int, records: dict[StudyCell, CellRecord]) -> float:
    """The better of the two models alone, each trained for rank, and scoring everything."""
    own = records[StudyCell(setting.name, "independent", "off", run)]
    return float(np.nanmax([own.generator_for_rank, own.ranker_alone]))


def _over(values: list[float]) -> Mean:
    """The mean over runs with its Student interval; none of one run."""
    return over_runs(np.array(values)) if len(values) > 1 else Mean(values[0], n=1)


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
    with store.opened(folder, STUDY, _as_text(config), data=config.experiment.data, resume=resume):
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


def _as_text(config: StudyConfig) -> str:
    head = f'"impressions": {config.impressions}, "seed": {config.seed}'
    return f'{{{head}, "experiment": {config.experiment.model_dump_json()}}}\n'


def _trained(config: StudyConfig, missing: list[StudyCell]) -> Iterator[tuple[StudyCell, CellRecord]]:
    """Every cell that is missing."""
    task = load_task(config.experiment)
    for run, asked in groupby(missing, key=lambda cell: cell.run):
        yield from _trained_run(config, task, run, asked)


def _trained_run(
    config: StudyConfig, task: Task, run: int, asked: Iterable[StudyCell]
) -> Iterator[tuple[StudyCell, CellRecord]]:
    """The cells of one run; what shares a world, a log, a stage that was trained alone or a start is made once."""
    seed = derive(config.seed, "run", run)

    @cache
    def world_of(switches: tuple[tuple[str, int], ...]) -> World:
        return build_world(task, _with(config.experiment, dict(switches)), seed)

    @cache
    def log_of(switches: tuple[tuple[str, int], ...], N: int) -> tuple[TrainerLog, Alone]:
        return simulate_log(world_of(switches), config.experiment, N, seed, ("joint",)), {}

    @lru_cache(maxsize=1)
    def trainer_of(name: str, score: str) -> Trainer:
        setting = BY_NAME[name]
        own = _with(config.experiment, {**dict(setting.world), "stages": {**setting.stages, "generator_score": score}})
        log, alone = log_of(setting.world, length(config, setting))
        return Trainer(world_of(setting.world), own, log, seed, alone=alone)

    for cell in asked:
        since = time.perf_counter()
        trainer = trainer_of(cell.setting, cell.score)
        pair = trainer.methods.train(cell.method, BY_NAME[cell.setting].K2).policy
        figures = _figures(trainer, pair, is_independent=cell.method == "independent")
        clicked = trainer.log.clicked.nnz / len(trainer.world.q)
        yield cell, CellRecord(**figures, clicked_per_query=clicked, seconds=time.perf_counter() - since)


def _figures(trainer: Trainer, pair: TwoStagePolicy, *, is_independent: bool) -> dict[str, float]:
    """NDCG of the pair and of its stages alone; those trained for rank come with Independent."""
    world = trainer.world

    def alone(scorer: Scorer) -> float:
        return ndcg_of(TwoStagePolicy(scorer, scorer, world.task.D, pair.K, pair.vocabulary), world)

    found = {"ndcg": ndcg_of(pair, world), "generator_alone": alone(pair.generator)}
    for_rank = dict.fromkeys(("ranker_alone", "generator_for_rank"), float("nan"))
    if is_independent:
        single = trainer.methods.alone(GENERATOR_ALONE).policy.generator
        for_rank = {"ranker_alone": alone(pair.ranker), "generator_for_rank": alone(single)}
    return found | for_rank


def _with(experiment: ExperimentConfig, switches: dict[str, Any]) -> ExperimentConfig:
    return validated(ExperimentConfig, {**experiment.model_dump(), **switches})
