"""What the commands do with files: simulate a log, learn from a log, judge saved policies. Each writes its configuration."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tandemrank import experiments, logs, policies
from tandemrank.clicks import Impressions
from tandemrank.errors import ConfigError
from tandemrank.evaluation import difference, evaluate
from tandemrank.experiments import ExperimentConfig
from tandemrank.files import write_json
from tandemrank.learning import LearningConfig, prepare
from tandemrank.policies import TwoStagePolicy
from tandemrank.training import Progress, train

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
    start: str | Path,
    out: str | Path,
    config: LearningConfig,
    *,
    logging_policy: str | Path | None = None,
    seed: int = 0,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Trains a pair from a log, both stages starting as the saved policy `start`; writes `out/policy` and its history."""
    out = Path(out)
    if (out / "policy").exists() and not resume:
        raise ConfigError(
            f"{out / 'policy'} exists. Give another --out, or --resume to go on with an interrupted training."
        )
    first = policies.load(start)
    pair = TwoStagePolicy(first.generator, first.ranker, config.candidates, config.shown, first.vocabulary)
    drew = first if logging_policy is None else policies.load(logging_policy)
    used, held_out = logs.read_split(
        list(source), config.held_out, seed=seed, vocabulary=first.vocabulary, K=config.shown
    )
    clicks = prepare(used, held_out, config, logging_policy=drew, seed=seed)
    trained = train(
        pair, clicks.weights, config.theta, config.training, criterion=clicks.criterion(config, seed), seed=seed,
        checkpoint=out / "checkpoint.safetensors", resume=resume, progress=progress,
    )  # fmt: skip
    history = [epoch._asdict() for epoch in trained.history]
    write_json(out / "config.json", {"seed": seed, **config.model_dump(mode="json")})
    write_json(out / "history.json", history)
    trained.policy.save(out / "policy")
    return {
        "method": config.training.method,
        "impressions": used.N + held_out.N,
        "clicked_pairs": int(clicks.weights.nnz),
        "epochs": len(history),
        "propensities": config.propensity + (f", of {logging_policy or start}" if config.propensity == "exact" else ""),
        "held_out": max(
            (e.held_out for e in trained.history if e.phase == trained.history[-1].phase), default=float("nan")
        ),
        "policy": str(out / "policy"),
    }


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
                raise ConfigError(f"{path} was made for other users or items than {task.name} has. Give its own data.")
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
