"""The semi-synthetic experiment of the paper: a production policy, its clicks, three ways to learn from them, the truth.

Every choice that the paper leaves open is a named switch of `ExperimentConfig` (docs/experiment.md). One experiment is

    task -> production policy -> log of N impressions -> (w, rho_0) -> training -> evaluation on the true relevance

and everything random in it comes from seeds that are derived from the experiment's seed and its coordinates.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from scipy.sparse import csr_matrix

from tandemrank import clicks, datasets, feedback, propensities
from tandemrank.clicks import Impressions
from tandemrank.datasets import Task
from tandemrank.errors import ConfigError
from tandemrank.evaluation import Evaluation, evaluate, ndcg
from tandemrank.learning import Clicks, LearningConfig, prepare
from tandemrank.policies import TwoStagePolicy
from tandemrank.schedules import Method, Phase, schedule_of
from tandemrank.scorers import MatrixFactorisation, truncated_svd
from tandemrank.training import Criterion, Epoch, Progress, train

Floats = NDArray[np.float64]


class ExperimentConfig(BaseModel):
    """The switches of the experiment; the paper's reading and ours are in PRESETS."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data: str = Field(
        default="synthetic", description="synthetic, ml-1m, ml-100k, a MovieLens zip or folder, a ratings file"
    )
    queries: int | None = Field(default=None, ge=2, description="users of the synthetic world")
    items: int | None = Field(default=None, ge=2, description="items of the synthetic world")
    world_seed: int = Field(
        default=0, ge=0, description="seed of the synthetic world; --seed does not change the world"
    )
    threshold: float | None = Field(default=None, description="a rating above it is relevant (3 for MovieLens)")
    user_column: str = Field(default="user", description="column of the users in an own ratings file")
    item_column: str = Field(default="item", description="column of the items in an own ratings file")
    rating_column: str = Field(default="rating", description="column of the ratings in an own ratings file")
    production: Literal["mean", "zero", "ratings", "all"] = Field(
        default="mean",
        description="production policy: SVD of the ratings of a share of users, the others start from their mean vector or "
        "from zero; or SVD of a share of all ratings; or SVD of all ratings",
    )
    production_share: float = Field(
        default=0.1, gt=0, lt=1, description="share of users or ratings that production knows"
    )
    logged_users: Literal["rest", "all", "production"] = Field(
        default="rest",
        description="users who are logged and evaluated: those production does not know, all, or those it does",
    )
    rank: int = Field(default=50, ge=1, description="dimension of the embeddings")
    temperature: float = Field(default=1.0, gt=0, description="the logging policy's scores are divided by it")
    impressions: int = Field(default=100_000, ge=1, description="length of the log, N")
    evaluation_samples: int = Field(default=2, ge=1, description="sampled lists a user for the expected NDCG")
    learning: LearningConfig = LearningConfig()


PRESETS: dict[str, dict[str, Any]] = {
    "tandem": {},
    "paper": {
        "learning": {
            "propensity": "frequency",
            "clip": "paper",
            "training": {
                "gradient": "reinforce",
                "samples": 300,
                "stopping": "fixed",
                "epochs": 30,
                "learning_rate": 0.01,
                "shared_rate": 1.0,
                "rate": "constant",
                "query_step": "adam",
                "joint_start": "start",
                "joint_step": "alternate",
                "alpha": "examination",
            },
        },
    },
}


def derive(seed: int, *coordinates: object) -> int:
    """A seed of its own for every place in an experiment: a function of the seed and the coordinates alone."""
    digest = hashlib.sha256(repr((seed, *coordinates)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def load_task(config: ExperimentConfig, *, progress: bool = False) -> Task:
    """The data set that the configuration names."""
    return datasets.load(
        config.data,
        queries=config.queries,
        items=config.items,
        seed=config.world_seed,
        query_column=config.user_column,
        item_column=config.item_column,
        rating_column=config.rating_column,
        threshold=config.threshold,
        progress=progress,
    )


@dataclass(frozen=True)
class World:
    """A task with its production policy: PL over all documents on the scores of a factorisation."""

    task: Task
    production: TwoStagePolicy
    q: NDArray[np.int64]
    theta: Floats


def build_world(task: Task, config: ExperimentConfig, seed: int) -> World:
    """The production policy, trained on a small share of the true ratings, and the users whom it serves."""
    rng = np.random.default_rng(derive(seed, "production"))
    known = np.sort(rng.permutation(task.Q)[: max(int(task.Q * config.production_share), 2)])
    rest = np.setdiff1d(np.arange(task.Q), known)
    ratings = task.ratings
    if config.production in ("mean", "zero"):
        ratings = ratings[known]
    elif config.production == "ratings":
        kept = rng.random(ratings.nnz) < config.production_share
        rows = np.repeat(np.arange(task.Q), np.diff(ratings.indptr))
        ratings = csr_matrix((ratings.data[kept], (rows[kept], ratings.indices[kept])), shape=ratings.shape)
    users, items = truncated_svd(ratings, config.rank, seed=derive(seed, "svd") % 2**32)
    if config.production in ("mean", "zero"):
        start = users.mean(0) if config.production == "mean" else np.zeros(config.rank, np.float32)
        everybody = np.tile(start, (task.Q, 1)).astype(np.float32)
        everybody[known] = users
        users = everybody
    scorer = MatrixFactorisation(users / config.temperature, items)
    q = {"rest": rest, "all": np.arange(task.Q), "production": known}[config.logged_users]
    return World(
        task, TwoStagePolicy(scorer, scorer, task.D, config.learning.shown, task.vocabulary), q, config.learning.theta
    )


@dataclass(frozen=True)
class Log:
    """A simulated log of N impressions, ready for training."""

    clicks: Clicks
    N: int


def impressions(world: World, N: int, seed: int) -> Iterator[Impressions]:
    """The impressions themselves, in parts: the production policy's lists, and position-based clicks on them."""
    production = world.production.generator

    def scores(q: NDArray[np.int64]) -> NDArray[np.float32]:
        with torch.no_grad():
            found: NDArray[np.float32] = production(torch.as_tensor(q)).numpy()
        return found

    draw = clicks.one_stage(scores, world.production.K)
    model = clicks.position_based(world.theta)
    return clicks.simulate(draw, world.task.relevance, world.q, N, model, seed=derive(seed, "clicks", N) % 2**32)


def simulate(world: World, config: ExperimentConfig, N: int, seed: int) -> Log:
    """A log of N impressions of the production policy, its weights and its held-out part."""
    used, held_out = feedback.split_impressions(
        impressions(world, N, seed),
        world.task.vocabulary,
        config.learning.apart,
        seed=derive(seed, "split", N) % 2**32,
    )
    chosen = derive(seed, "rho_0") % 2**32
    found = prepare(
        used, config.learning, held_out=held_out if config.learning.apart else None, logging_policy=world.production,
        seed=chosen,
        lists=lambda: propensities.lists_of(impressions(world, N, seed)),
    )  # fmt: skip
    return Log(found, N)


def start_policy(world: World, config: ExperimentConfig, K2: int) -> TwoStagePolicy:
    """Both stages start from the production policy's embeddings."""
    if K2 > world.task.D:
        raise ConfigError(f"K2 = {K2} candidates, but there are only {world.task.D} items. Ask for fewer candidates.")
    scorer = world.production.generator
    return TwoStagePolicy(scorer, scorer, K2, config.learning.shown, world.task.vocabulary).copy()


@dataclass(frozen=True)
class Outcome:
    """One trained pair: the policy, its history and its evaluation on the true relevance."""

    policy: TwoStagePolicy
    history: tuple[Epoch, ...]
    evaluation: Evaluation
    seconds: float


class Trainer:
    """Trains methods on one log. A phase that does not involve the pair does not depend on K2 or on the method: it is
    trained once and used wherever it occurs (the stages alone, in Independent and Baseline, for every K2)."""

    def __init__(self, world: World, config: ExperimentConfig, log: Log, seed: int) -> None:
        self.world, self.config, self.log, self.seed = world, config, log, seed
        self._alone: dict[Phase, tuple[TwoStagePolicy, tuple[Epoch, ...], float]] = {}

    def run(self, method: Method, K2: int, *, progress: Callable[[Progress], None] | None = None) -> Outcome:
        """Trains and evaluates one method."""
        policy = start_policy(self.world, self.config, K2)
        history: tuple[Epoch, ...] = ()
        seconds = 0.0
        for phase in schedule_of(method, self.config.learning.training.joint_start, policy):
            alone = phase.judged != "pair"
            if alone and phase in self._alone:
                trained, epochs, taken = self._alone[phase]
            else:
                start = time.perf_counter()
                trained, epochs = self._train(policy, phase, progress)
                taken = time.perf_counter() - start
                if alone:
                    self._alone[phase] = trained, epochs, taken
            stages = {step.stage for step in phase.steps}
            policy = TwoStagePolicy(
                trained.generator if "candidate" in stages else policy.generator,
                trained.ranker if "ranker" in stages else policy.ranker,
                K2, self.config.learning.shown, self.world.task.vocabulary,
            )  # fmt: skip
            history, seconds = history + epochs, seconds + taken
        return Outcome(policy, history, self.evaluate(policy), seconds)

    def _train(
        self, policy: TwoStagePolicy, phase: Phase, progress: Callable[[Progress], None] | None
    ) -> tuple[TwoStagePolicy, tuple[Epoch, ...]]:
        coordinates = (phase.name, policy.K2) if phase.judged == "pair" else (phase.name,)
        seed = derive(self.seed, "training", self.log.N, *coordinates) % 2**32
        criterion, watch = self._judges(seed)
        trained = train(
            policy,
            self.log.clicks.weights,
            self.world.theta,
            self.config.learning.training,
            schedule=(phase,),
            criterion=criterion,
            seed=seed,
            progress=progress,
            watch=watch,
            # Lists that a criterion asked for are there already; made for the curves alone, they would be a fifth of the time.
            watch_every=4 if criterion is None else 1,
        )
        return trained.policy, trained.history

    def _judges(self, seed: int) -> tuple[Criterion | None, Callable[[TwoStagePolicy], dict[str, float]]]:
        """The criterion, and the true NDCG of the same lists: an epoch makes its lists once, for both."""
        q, judged = self.world.q, np.empty((0, 0), np.int32)

        def lists(policy: TwoStagePolicy) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
            nonlocal judged
            judged = policy.most_likely(q)
            return q, judged

        def watch(policy: TwoStagePolicy) -> dict[str, float]:
            shown = judged if self.config.learning.training.stopping == "dcg" else policy.most_likely(q)
            return {"ndcg": float(np.nanmean(ndcg(shown, q, self.world.task.relevance)))}

        return self.log.clicks.criterion(self.config.learning, seed, lists=lists), watch

    def evaluate(self, policy: TwoStagePolicy) -> Evaluation:
        """All figures of a policy, on the users who were logged."""
        return evaluate(
            policy, self.world.task.relevance, self.world.theta, self.world.q,
            samples=self.config.evaluation_samples, seed=derive(self.seed, "evaluation") % 2**32,
        )  # fmt: skip


def references(world: World, config: ExperimentConfig, K2: int, seed: int) -> dict[str, Evaluation]:
    """What to compare with: random lists, popularity, the production policy, and the same model trained on the truth."""
    task, rng = world.task, np.random.default_rng(derive(seed, "random list"))
    popularity = np.asarray(task.relevance.sum(0), np.float32).ravel()[:, None]
    scorers = {
        "random": MatrixFactorisation(rng.normal(size=(task.Q, 20)), rng.normal(size=(task.D, 20))),
        "popularity": MatrixFactorisation(np.ones((task.Q, 1)), popularity),
        "production": world.production.generator,
    }
    policies = {n: TwoStagePolicy(s, s, K2, config.learning.shown, task.vocabulary) for n, s in scorers.items()}
    chosen = config.learning.training.model_copy(
        update={"method": "joint", "stopping": "fixed", "gradient": "race", "samples": 1}
    )
    policies["full information"] = train(
        start_policy(world, config, K2),
        _rows(task.relevance, world.q),
        world.theta,
        chosen,
        seed=derive(seed, "truth") % 2**32,
    ).policy
    return {
        name: evaluate(
            policy, task.relevance, world.theta, world.q, samples=config.evaluation_samples, seed=seed % 2**32
        )
        for name, policy in policies.items()
    }


def _rows(relevance: csr_matrix, q: NDArray[np.int64]) -> csr_matrix:
    """The relevance of these queries only, the others empty."""
    keep = np.zeros(relevance.shape[0], np.float32)
    keep[q] = 1
    kept = csr_matrix(relevance.multiply(keep[:, None]))
    kept.eliminate_zeros()
    return kept
