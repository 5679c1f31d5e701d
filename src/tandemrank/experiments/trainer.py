"""The log of a world ready for training, the methods that learn from it, and the references to compare them with."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from tandemrank._base.config import resolve
from tandemrank._base.random import derive
from tandemrank.beliefs.features import Features
from tandemrank.beliefs.scorer import Believed, generator_of
from tandemrank.errors import ConfigError
from tandemrank.experiments.config import PRESETS, ExperimentConfig
from tandemrank.experiments.evaluation import Evaluation, Truth, evaluate, ndcg
from tandemrank.experiments.stage_models import staged
from tandemrank.experiments.world import World, build_world, impressions, load_task, start_policy
from tandemrank.logs import counting
from tandemrank.logs.pairs import pairs_of
from tandemrank.offpolicy import logger
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.checkpoint import Epoch
from tandemrank.training.data import Besides, TrainingData, prepare
from tandemrank.training.loop import train
from tandemrank.training.methods import Methods
from tandemrank.training.schedules import UNTRAINED, Method
from tandemrank.training.start import GENERATOR_RANK, believed_policy

LISTS = 2  # drawn of every user for the expected figures: their interval is over users, and more lists hardly narrow it


@dataclass(frozen=True)
class TrainerLog:
    """A simulated log of N impressions, ready for training, the pairs clicked in it, and the seconds that all methods share.

    Shapes: clicked [Q, D].
    """

    clicks: TrainingData
    N: int
    clicked: csr_matrix
    seconds: float = 0.0


def simulate_log(
    world: World, config: ExperimentConfig, N: int, seed: int, methods: Sequence[Method] = ("joint",)
) -> TrainerLog:
    """A log of N impressions of the production policy and its weights; beliefs where a method uses them."""
    learning, task = config.learning, world.task
    believes = UNTRAINED in methods or learning.objective == "beliefs" or config.stages.ranker == "belief"
    if config.item_features and (task.item_features is None or not believes):
        lacks = "no features of items" if believes else "no beliefs, which would use them"
        raise ConfigError(f"item_features would have no effect: there are {lacks}. Leave it out.")
    log = counting.from_impressions(impressions(world, N, seed), world.task.vocabulary)
    since = time.perf_counter()
    found = prepare(
        log,
        learning,
        Besides(features=Features.of(task.vocabulary, item=task.item_features) if config.item_features else None),
        needs_beliefs=believes,
        logging_policy=world.production,
        seed=derive(seed, "rho_0") % 2**32,
        lists=lambda: logger.lists_of(impressions(world, N, seed)),
    )
    seconds = time.perf_counter() - since
    return TrainerLog(found, N, pairs_of(log, "clicked"), seconds)


@dataclass(frozen=True)
class Outcome:
    """One trained policy, its history and its evaluation on the true relevance."""

    policy: TwoStagePolicy
    history: tuple[Epoch, ...]
    evaluation: Evaluation
    seconds: float


class Trainer:
    """Trains methods on one log, and evaluates them on the truth; the stages alone are trained once, for every K2."""

    def __init__(self, world: World, config: ExperimentConfig, log: TrainerLog, seed: int) -> None:
        self.world, self.config, self.log, self.seed = world, config, log, seed
        start, beliefs = start_policy(world, config, world.task.D), log.clicks.beliefs
        untrained = None if beliefs is None else believed_policy(beliefs, start.vocabulary, K2=start.K2, K=start.K)
        if config.stages.ranker == "belief":
            assert untrained is not None  # `simulate_log` has fitted them
            assert isinstance(untrained.ranker, Believed)
            rank = config.stages.generator_rank or GENERATOR_RANK
            start = untrained = replace(untrained, generator=generator_of(untrained.ranker, rank))
        else:
            start = staged(config.stages, start, world.task.item_features)
        # Nothing below may hold the trainer: a circle is freed late, with its log.
        self.methods = Methods(
            start,
            untrained,
            log.clicks.weights,
            world.theta,
            config.learning.training,
            seed=seed,
            coordinates=(log.N,),
            watch=lambda policy: {"ndcg": ndcg_of(policy, world)},
            watch_every=4,  # curves of every epoch would be a fifth of the time
        )

    def run(self, method: Method, K2: int) -> Outcome:
        """Trains and evaluates one method."""
        found = self.methods.train(method, K2)
        return Outcome(found.policy, found.history, self.evaluate(found.policy), self.log.seconds + found.seconds)

    def evaluate(self, policy: TwoStagePolicy) -> Evaluation:
        """All figures of a policy, on the users who were logged."""
        return evaluate(
            policy,
            self.world.task.relevance,
            self.world.theta,
            self.world.q,
            samples=LISTS,
            seed=derive(self.seed, "evaluation") % 2**32,
            clicked=self.log.clicked,
        )


@dataclass(frozen=True)
class PaperWorld:
    """The paper's experiment, to train and evaluate by hand: `tr.experiments.paper`."""

    world: World
    config: ExperimentConfig
    K2: int
    seed: int

    @cached_property
    def start(self) -> TwoStagePolicy:
        """Both stages before training, as production has them."""
        policy = start_policy(self.world, self.config, self.K2)
        return staged(self.config.stages, policy, self.world.task.item_features)

    def log(self, N: int) -> TrainingData:
        """What N impressions of production say, ready for `tr.train`."""
        return simulate_log(self.world, self.config, N, self.seed, (UNTRAINED,)).clicks

    @property
    def truth(self) -> Truth:
        """The true relevance, for `tr.evaluate`."""
        return Truth(self.world.task.relevance, self.world.theta, self.world.q)


def paper_world(data: str, K2: int, preset: str, seed: int, switches: dict[str, Any]) -> PaperWorld:
    """The world of one run, its production policy made."""
    if preset not in PRESETS:
        raise ConfigError(f"preset: expected {' or '.join(PRESETS)}; got {preset!r}.")
    config = resolve(ExperimentConfig, preset=PRESETS[preset], flags={"data": data, "candidates": K2, **switches})
    run = derive(seed, "run", 0)
    return PaperWorld(build_world(load_task(config), config, run), config, K2, run)


def ndcg_of(policy: TwoStagePolicy, world: World) -> float:
    """The true NDCG of a policy's most likely lists, over the users who were logged."""
    return float(np.nanmean(ndcg(policy.most_likely(world.q), world.q, world.task.relevance)))


def references(world: World, config: ExperimentConfig, K2: int, seed: int) -> dict[str, Evaluation]:
    """What to compare with: random lists, popularity, the production policy, and the same model trained on the truth."""
    task, rng = world.task, np.random.default_rng(derive(seed, "random list"))
    popularity = np.asarray(task.relevance.sum(0), np.float32).ravel()[:, None]
    scorers = {
        "random": MatrixFactorisation(rng.normal(size=(task.Q, 20)), rng.normal(size=(task.D, 20))),
        "popularity": MatrixFactorisation(np.ones((task.Q, 1)), popularity),
        "production": world.production.ranker,
    }
    policies = {n: TwoStagePolicy(s, s, K2, config.learning.K, task.vocabulary) for n, s in scorers.items()}
    if config.production_candidates is not None:
        policies["production"] = world.production
    chosen = config.learning.training.model_copy(update={"gradient": "race", "samples": 1})
    policies["full information"] = train(
        start_policy(world, config, K2),
        _rows(task.relevance, world.q),
        world.theta,
        chosen,
        seed=derive(seed, "truth") % 2**32,
    ).policy
    return {
        name: evaluate(policy, task.relevance, world.theta, world.q, samples=LISTS, seed=seed % 2**32)
        for name, policy in policies.items()
    }


def _rows(relevance: csr_matrix, q: NDArray[np.int64]) -> csr_matrix:
    """The relevance of these queries only, the others empty."""
    keep = np.zeros(relevance.shape[0], np.float32)
    keep[q] = 1
    kept = csr_matrix(relevance.multiply(keep[:, None]))
    kept.eliminate_zeros()
    return kept
