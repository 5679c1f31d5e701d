"""What the command `train` writes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

import tandemrank
from tandemrank._base.config import switch_help, switch_values
from tandemrank._base.files import Kind, claimed, write_json
from tandemrank.errors import ConfigError
from tandemrank.policies import two_stage
from tandemrank.reports import training
from tandemrank.training import learning
from tandemrank.training.config import LearningConfig
from tandemrank.training.history import Progress
from tandemrank.training.methods import check_methods
from tandemrank.training.schedules import Method
from tandemrank.training.start import Start, StartConfig

TRAINING = Kind("training")


class TrainSwitches(BaseModel):
    """Every switch of `train`: `--set` and a TOML file take them by their plain names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning: LearningConfig = LearningConfig()
    start: StartConfig = StartConfig()


def learn(
    source: Sequence[str],
    out: str | Path,
    config: LearningConfig,
    *,
    methods: Sequence[str] = ("joint",),
    start: str | Path | None = None,
    logging_policy: str | Path | None = None,
    tables: Mapping[str, str | Path | None] | None = None,
    sizes: StartConfig | None = None,
    seed: int = 0,
    resume: bool = False,
    command: str = "",
    progress: Callable[[Method, Progress], None] | None = None,
) -> dict[str, Any]:
    """Trains pairs from a log (`training.learn`): `out/METHOD/policy` and its history each, the summary, the report.

    `tables` are the files of features or embeddings, by the names of `Start`.
    """
    out, names = Path(out), check_methods(methods)
    if not resume and (there := [name for name in names if (out / name / "policy").exists()]):
        raise ConfigError(
            f"{out / there[0] / 'policy'} exists. Give another --out, or --resume to go on with an interrupted training."
        )
    first = None if start is None else two_stage.load(start)
    drew = None if logging_policy is None else two_stage.load(logging_policy)
    begin = Start(first, **dict(tables or {}), sizes=sizes or StartConfig())
    with claimed(out, TRAINING, inputs=[*source, start, logging_policy, *(tables or {}).values()]):
        learned = learning.learn(
            list(source), config, methods=names, start=begin, logging_policy=drew, seed=seed,
            checkpoints=out / "checkpoints", resume=resume, progress=progress,
        )  # fmt: skip
    switches = {"seed": seed, **switch_values(learned.config), **switch_values(learned.start.sizes)}
    summary = {
        "command": command, "version": tandemrank.__version__, **learned.summary(), "switches": switches,
        "switch_help": switch_help(StartConfig) | switch_help(LearningConfig),
    }  # fmt: skip
    write_json(out / "config.json", switches)
    for method in summary["methods"]:
        folder = out / method["method"]
        write_json(folder / "history.json", method["history"])
        method["policy"] = str(learned.trained[method["method"]].policy.save(folder / "policy"))
    summary["report"] = str(training.write(summary, out / "report.html"))
    write_json(out / "summary.json", summary)
    return summary
