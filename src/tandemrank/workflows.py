"""What the commands do with files: simulate a log, learn from a log, judge saved policies. Each writes its configuration."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import tandemrank
from tandemrank import experiments, logs, own_logs, policies, training_report
from tandemrank.clicks import Impressions
from tandemrank.errors import ConfigError
from tandemrank.evaluation import difference, evaluate
from tandemrank.experiments import ExperimentConfig
from tandemrank.files import write_json
from tandemrank.learning import LearningConfig
from tandemrank.own_logs import Start, StartConfig, check_methods
from tandemrank.schedules import Method
from tandemrank.training import Progress, TrainingConfig

if TYPE_CHECKING:
    from rich.table import Table


def simulate(
    config: ExperimentConfig,
    out: str | Path,
    *,
    seed: int = 0,
    propensities: bool = False,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Writes `out/log` and `out/production`, the policy that drew it."""
    out = Path(out)
    if (out / "log").exists():
        raise ConfigError(f"{out / 'log'} exists. Give another --out, or delete it first.")
    world = experiments.build_world(experiments.load_task(config), config, experiments.derive(seed, "run", 0))
    parts = experiments.impressions(world, config.impressions, experiments.derive(seed, "run", 0))

    def rho_0(part: Impressions) -> Any:
        q = np.repeat(part.query, part.items.shape[1])
        found, _ = world.production.exposure(
            q, part.items.ravel(), world.theta, samples=config.learning.propensity_samples, seed=seed
        )
        return found.reshape(part.items.shape)

    logs.write(
        parts, out / "log", world.task.vocabulary,
        propensities=rho_0 if propensities else None, policy="production", progress=progress,
    )  # fmt: skip
    world.production.save(out / "production")
    write_json(out / "config.json", {"seed": seed, **config.model_dump(mode="json")})
    return {
        "data": world.task.name, "impressions": config.impressions, "users": len(world.q), "items": world.task.D,
        "log": str(out / "log"), "production": str(out / "production"),
    }  # fmt: skip


def learn(
    source: Sequence[str],
    out: str | Path,
    config: LearningConfig,
    *,
    methods: Sequence[str] = (),
    start: str | Path | None = None,
    logging_policy: str | Path | None = None,
    tables: Mapping[str, str | Path | None] | None = None,
    sizes: StartConfig | None = None,
    seed: int = 0,
    resume: bool = False,
    command: str = "",
    progress: Callable[[Method, Progress], None] | None = None,
) -> dict[str, Any]:
    """Trains pairs from a log (`own_logs.learn`): `out/METHOD/policy` and its history each, the summary, the report.

    `tables` are the files of features or embeddings, by the names of `Start`.
    """
    out, names = Path(out), check_methods(methods or [config.training.method])
    if not resume and (there := [name for name in names if (out / name / "policy").exists()]):
        raise ConfigError(
            f"{out / there[0] / 'policy'} exists. Give another --out, or --resume to go on with an interrupted training."
        )
    first = None if start is None else policies.load(start)
    drew = None if logging_policy is None else policies.load(logging_policy)
    begin = Start(first, **dict(tables or {}), sizes=sizes or StartConfig())
    learned = own_logs.learn(
        list(source), config, methods=names, start=begin, logging_policy=drew, seed=seed, checkpoints=out, resume=resume,
        progress=progress,
    )  # fmt: skip
    switches = {"seed": seed, **learned.config.model_dump(mode="json"), "start": begin.sizes.model_dump(mode="json")}
    summary = {
        "command": command, "version": tandemrank.__version__, **learned.summary(), "switches": switches,
        "switch_help": {n: f.description or "" for m in CONFIGS for n, f in m.model_fields.items()},
    }  # fmt: skip
    write_json(out / "config.json", switches)
    for method in summary["methods"]:
        folder = out / method["method"]
        write_json(folder / "history.json", method["history"])
        method["policy"] = str(learned.trained[method["method"]].policy.save(folder / "policy"))
    summary["report"] = str(training_report.write(summary, out / "report.html"))
    write_json(out / "summary.json", summary)
    return summary


CONFIGS = (StartConfig, TrainingConfig, LearningConfig)


def judge(
    paths: Sequence[str | Path],
    config: ExperimentConfig,
    *,
    logs_of: Sequence[str] | None = None,
    samples: int = 20,
    seed: int = 0,
) -> dict[str, Any]:
    """Evaluates saved policies on the ratings that `config.data` names, and compares the first with each other one."""
    task = experiments.load_task(config)
    q = np.arange(task.Q)
    if logs_of:
        q = np.flatnonzero(logs.read(list(logs_of), vocabulary=task.vocabulary).impressions)
    found = {}
    for path in paths:
        policy = policies.load(path)
        for side in ("query_ids", "item_ids"):
            if not getattr(policy.vocabulary, side).equals(getattr(task.vocabulary, side)):
                raise ConfigError(
                    f"{path} was made for other users or items than {task.name} has. Give its own data; a pair that was "
                    "trained without --start knows those of its log only."
                )
        found[str(path)] = evaluate(policy, task.relevance, config.learning.theta, q, samples=samples, seed=seed)
    first, *others = found
    return {
        "data": task.name,
        "policies": [{"policy": p, **{k: vars(v) for k, v in e.summary().items()}} for p, e in found.items()],
        "differences": [
            {
                "policy": first,
                "against": p,
                "figure": name,
                **vars(difference(vars(found[first])[name], vars(found[p])[name])),
            }
            for p in others
            for name in ("ndcg", "ndcg_expected", "recall_at_K2", "utility")
        ],
    }


def judge_table(found: dict[str, Any]) -> "Table":
    """The evaluation as a table for a terminal."""
    from rich.table import Table

    names = {
        "ndcg": "NDCG@K",
        "ndcg_expected": "expected NDCG@K",
        "recall_at_K2": "recall@K2",
        "utility": "clicks expected",
    }
    table = Table("policy", *names.values())
    for row in found["policies"]:
        table.add_row(
            row["policy"], *(f"{row[k]['mean']:.4f} [{row[k]['low']:.4f}, {row[k]['high']:.4f}]" for k in names)
        )
    for other in dict.fromkeys(d["against"] for d in found["differences"]):
        gaps = {d["figure"]: d for d in found["differences"] if d["against"] == other}
        cells = (f"{gaps[k]['mean']:+.4f} [{gaps[k]['low']:+.4f}, {gaps[k]['high']:+.4f}]" for k in names)
        table.add_row(f"the first less {other}", *cells)
    return table
