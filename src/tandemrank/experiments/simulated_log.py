"""The log of a world's production policy, as files: what the command `simulate` leaves in its folder."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.config import switch_values
from tandemrank._base.files import Kind, claimed, write_json
from tandemrank._base.random import derive
from tandemrank.errors import ConfigError
from tandemrank.experiments.config import ExperimentConfig
from tandemrank.experiments.results import SimulatedLog
from tandemrank.experiments.world import World, build_world, impressions, load_task
from tandemrank.logs import writing
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy.propensities import SAMPLES

SIMULATION = Kind("simulation")


def write_simulated_log(
    config: ExperimentConfig,
    out: str | Path,
    *,
    seed: int = 0,
    propensities: bool = False,
    progress: Callable[[int], None] | None = None,
) -> SimulatedLog:
    """Draws a log of the production policy: writes `out/log`, and `out/production`, the policy itself."""
    out = Path(out)
    if os.path.exists(out / "log"):
        raise ConfigError(f"{out / 'log'} exists. Give another --out, or delete it first.")
    with claimed(out, SIMULATION, inputs=[config.data]):
        world = build_world(load_task(config), config, derive(seed, "run", 0))
        _write_impressions(world, config, out / "log", seed, propensities, progress)
    world.production.save(out / "production")
    write_json(out / "config.json", {"seed": seed, **switch_values(config)})
    return SimulatedLog(
        data=world.task.name, impressions=config.impressions, users=len(world.q), items=world.task.D,
        log=str(out / "log"), production=str(out / "production"),
    )  # fmt: skip


def _write_impressions(
    world: World,
    config: ExperimentConfig,
    out: Path,
    seed: int,
    propensities: bool,
    progress: Callable[[int], None] | None,
) -> None:
    """The log itself, with the exact propensities if they are asked for."""
    parts = impressions(world, config.impressions, derive(seed, "run", 0), progress)

    def rho_0(part: Impressions) -> NDArray[np.float64]:
        q = np.repeat(part.query, part.items.shape[1])
        found, _ = world.production.exposure(
            q, part.items.ravel(), world.theta, samples=config.learning.propensity_samples or SAMPLES, seed=seed
        )
        return found.reshape(part.items.shape)

    writing.write(
        parts, out, world.task.vocabulary,
        propensities=rho_0 if propensities else None, policy="production", progress=progress,
    )  # fmt: skip
