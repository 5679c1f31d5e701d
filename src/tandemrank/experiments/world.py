"""The semi-synthetic world of the paper: a task, its production policy, and the clicks on its lists."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from tandemrank._base.config import switch_values
from tandemrank._base.files import Kind, claimed, write_json
from tandemrank._base.random import derive
from tandemrank.clicks import models, simulation
from tandemrank.clicks.models import ClickModel
from tandemrank.errors import ConfigError
from tandemrank.experiments import datasets
from tandemrank.experiments.config import ExperimentConfig
from tandemrank.experiments.datasets import Task
from tandemrank.experiments.results import SimulatedLog
from tandemrank.experiments.stage_models import low_rank, truncated_svd
from tandemrank.logs import writing
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy.propensities import SAMPLES
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy

# Standard deviations of a live production's scores that make a factor of e: its drawn lists get some 5% fewer clicks than its
# most likely ones, and ten lists of a query have about 45 items.
SPREAD = 2.5
LARGE_PART = 2_000_000  # impressions of a large world that are drawn at once


def load_task(config: ExperimentConfig) -> Task:
    """The data set that the configuration names."""
    return datasets.load(
        config.data,
        queries=config.queries,
        items=config.items,
        seed=config.world_seed,
        threshold=config.threshold,
    )


@dataclass(frozen=True)
class World:
    """A task with its production policy: PL over all documents on the scores of a factorisation, or of two in two stages."""

    task: Task
    production: TwoStagePolicy
    q: NDArray[np.int64]
    theta: NDArray[np.float64]
    click_model: ClickModel


def _known_users(task: Task, config: ExperimentConfig, rng: np.random.Generator) -> NDArray[np.int64]:
    return np.sort(rng.permutation(task.Q)[: max(int(task.Q * config.production_share), 2)])


def logged_users(task: Task, config: ExperimentConfig, seed: int) -> NDArray[np.int64]:
    """The users whom production serves."""
    everybody = np.arange(task.Q)
    if config.logged_users == "all":
        return everybody
    return np.setdiff1d(everybody, _known_users(task, config, np.random.default_rng(derive(seed, "production"))))


def build_world(task: Task, config: ExperimentConfig, seed: int) -> World:
    """The production policy, trained on a small share of the true ratings, and the users whom it serves."""
    rng = np.random.default_rng(derive(seed, "production"))
    known = _known_users(task, config, rng)
    ratings = task.ratings
    if config.production == "mean":
        ratings = ratings[known]
    elif config.production in ("ratings", "live"):
        kept = rng.random(ratings.nnz) < config.production_share
        rows = np.repeat(np.arange(task.Q), np.diff(ratings.indptr))
        ratings = csr_matrix((ratings.data[kept], (rows[kept], ratings.indices[kept])), shape=ratings.shape)
    users, items = truncated_svd(ratings, config.rank, seed=derive(seed, "svd") % 2**32)
    if config.production == "mean":
        everybody = np.tile(users.mean(0), (task.Q, 1)).astype(np.float32)
        everybody[known] = users
        users = everybody
    if config.production == "live":
        size = np.sqrt(float(((users.T @ users) * (items.T @ items)).sum()) / len(users) / len(items))
        users = users / np.float32(SPREAD * size)
    scorer = MatrixFactorisation(users / config.temperature, items)
    production = _production(scorer, task, config)
    theta = config.learning.theta
    model = models.noisy(theta, config.relevant, config.irrelevant)
    return World(task, production, logged_users(task, config, seed), theta, model)


def _production(scorer: MatrixFactorisation, task: Task, config: ExperimentConfig) -> TwoStagePolicy:
    """One stage; or two, of which the generator is the nearest factorisation of a lower rank."""
    K2, rank = config.production_candidates or task.D, config.production_generator_rank
    K2 = min(K2, task.D) if config.production == "live" else K2
    if K2 > task.D:
        raise ConfigError(f"production_candidates = {K2}, but there are only {task.D} items. Give fewer.")
    first = scorer if rank is None else low_rank(scorer, rank)
    return TwoStagePolicy(first, scorer, K2, config.learning.K, task.vocabulary)


def impressions(
    world: World, N: int, seed: int, progress: Callable[[int], None] | None = None
) -> Iterator[Impressions]:
    """The impressions themselves, in parts: the production policy's lists, and the clicks on them.

    `progress` hears how many lists of a large world are drawn, whose parts are long.
    """
    production, drawn = world.production, 0

    def scores(q: NDArray[np.int64]) -> NDArray[np.float32]:
        with torch.no_grad():
            found: NDArray[np.float32] = production.generator(torch.as_tensor(q)).numpy()
        return found

    def sample(q: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[np.int32]:
        nonlocal drawn
        before, drawn = drawn, drawn + len(q)
        return production.sample(q, keys, None if progress is None else lambda n: progress(before + n))

    # In a large world all lists of a query are drawn from one pass over its scores: then parts are few and long.
    is_plain = production.K2 == world.task.D and not production.is_large
    return simulation.simulate(
        simulation.one_stage(scores, production.K) if is_plain else sample,
        world.task.relevance,
        world.q,
        N,
        world.click_model,
        seed=derive(seed, "clicks", N) % 2**32,
        part=LARGE_PART if production.is_large else simulation.PART,
    )


def start_policy(world: World, config: ExperimentConfig, K2: int) -> TwoStagePolicy:
    """Both stages start from the production policy's embeddings, those of its re-ranker."""
    if K2 > world.task.D:
        raise ConfigError(f"K2 = {K2} candidates, but there are only {world.task.D} items. Ask for fewer candidates.")
    scorer = world.production.ranker
    return TwoStagePolicy(scorer, scorer, K2, config.learning.K, world.task.vocabulary).copy()


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
        run = derive(seed, "run", 0)
        world = build_world(load_task(config), config, run)

        def rho_0(part: Impressions) -> NDArray[np.float64]:
            q = np.repeat(part.query, part.items.shape[1])
            found, _ = world.production.exposure(q, part.items.ravel(), world.theta, samples=SAMPLES, seed=seed)
            return found.reshape(part.items.shape)

        writing.write(
            impressions(world, config.impressions, run, progress),
            out / "log",
            world.task.vocabulary,
            propensities=rho_0 if propensities else None,
            policy="production",
            progress=progress,
        )
    world.production.save(out / "production")
    write_json(out / "config.json", {"seed": seed, **switch_values(config)})
    return SimulatedLog(
        data=world.task.name,
        impressions=config.impressions,
        users=len(world.q),
        items=world.task.D,
        log=str(out / "log"),
        production=str(out / "production"),
    )
