"""How good saved policies truly are, on ratings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tandemrank.errors import ConfigError
from tandemrank.experiments.config import ExperimentConfig
from tandemrank.experiments.evaluation import difference, evaluate
from tandemrank.experiments.world import load_task
from tandemrank.logs import reading
from tandemrank.policies import two_stage


def judge(
    paths: Sequence[str | Path],
    config: ExperimentConfig,
    *,
    logs_of: Sequence[str] | None = None,
    samples: int = 20,
    seed: int = 0,
) -> dict[str, Any]:
    """Evaluates saved policies on the ratings that `config.data` names, and compares the first with each other one."""
    task = load_task(config)
    q = np.arange(task.Q)
    if logs_of:
        q = np.flatnonzero(reading.read(list(logs_of), vocabulary=task.vocabulary).impressions)
    found = {}
    for path in paths:
        policy = two_stage.load(path)
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
