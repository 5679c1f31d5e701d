"""A log of the experiment's production policy, as files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tandemrank._base import random
from tandemrank._base.files import Kind, claimed, write_json
from tandemrank.errors import ConfigError
from tandemrank.experiments.config import ExperimentConfig
from tandemrank.experiments.world import build_world, impressions, load_task
from tandemrank.logs import writing
from tandemrank.logs.impressions import Impressions

SIMULATION = Kind("simulation")


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
    world = build_world(load_task(config), config, random.derive(seed, "run", 0))
    parts = impressions(world, config.impressions, random.derive(seed, "run", 0))

    def rho_0(part: Impressions) -> Any:
        q = np.repeat(part.query, part.items.shape[1])
        found, _ = world.production.exposure(
            q, part.items.ravel(), world.theta, samples=config.learning.propensity_samples, seed=seed
        )
        return found.reshape(part.items.shape)

    with claimed(out, SIMULATION, inputs=[config.data]):
        writing.write(
            parts, out / "log", world.task.vocabulary,
            propensities=rho_0 if propensities else None, policy="production", progress=progress,
        )  # fmt: skip
    world.production.save(out / "production")
    write_json(out / "config.json", {"seed": seed, **config.model_dump(mode="json")})
    return {
        "data": world.task.name, "impressions": config.impressions, "users": len(world.q), "items": world.task.D,
        "log": str(out / "log"), "production": str(out / "production"),
    }  # fmt: skip
