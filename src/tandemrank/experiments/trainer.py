"""The log of a world ready for training, three ways to learn from it, and the references to compare them with."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from tandemrank._base.random import derive
from tandemrank.beliefs.posterior import Posterior
from tandemrank.beliefs.scorer import scorer_of
from tandemrank.experiments.config import ExperimentConfig
from tandemrank.experiments.evaluation import Evaluation, evaluate, ndcg
from tandemrank.experiments.stage_models import staged
from tandemrank.experiments.world import World, impressions, start_policy
from tandemrank.logs import counting
from tandemrank.logs.pairs import pairs_of
from tandemrank.offpolicy import logger
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.data import TrainingData, prepare
from tandemrank.training.driver import Alone, Methods
from tandemrank.training.history import Epoch, Progress
from tandemrank.training.loop import Criterion, train
from tandemrank.training.results import are_same_policy
from tandemrank.training.schedules import UNTRAINED, Method


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
    """A log of N impressions of the production policy, its weights and its held-out part; beliefs where a method uses them."""
    learning = config.learning
    train_log, held_out = counting.parts_of(
        impressions(world, N, seed),
        world.task.vocabulary,
        [learning.held_out_share],
        seed=derive(seed, "split", N) % 2**32,
    )
    since = time.perf_counter()
    found = prepare(
        train_log,
        learning,
        needs_beliefs=UNTRAINED in methods or learning.objective == "beliefs",
        held_out=held_out if learning.held_out_share else None,
        logging_policy=world.production,
        seed=derive(seed, "rho_0") % 2**32,
        lists=lambda: logger.lists_of(impressions(world, N, seed)),
    )
    seconds = time.perf_counter() - since
    return TrainerLog(found, N, pairs_of(train_log, "clicked") + pairs_of(held_out, "clicked"), seconds)


@dataclass(frozen=True)
class Outcome:
    """One trained policy, its history and its evaluation on the true relevance."""

    policy: TwoStagePolicy
    history: tuple[Epoch, ...]
    evaluation: Evaluation
    seconds: float


class Trainer:
    """Trains methods on one log, and evaluates them on the truth; the stages alone are trained once, for every K2.

    With `checkpoints`, a folder, an interrupted training goes on from there. Trainers on one log may share what they trained
    `alone`. Curves of the true NDCG cost a fifth of the time; without them (`watched`) nothing else changes.
    """

    def __init__(
        self,
        world: World,
        config: ExperimentConfig,
        log: TrainerLog,
        seed: int,
        checkpoints: Path | None = None,
        *,
        alone: Alone | None = None,
        watched: bool = True,
    ) -> None:
        self.world, self.config, self.log, self.seed = world, config, log, seed
        self._evaluated: list[tuple[TwoStagePolicy, Evaluation]] = []
        criterion, watch = self._judges()
        start = start_policy(world, config, world.task.D)
        self.methods = Methods(
            staged(config.stages, start, world.task.item_features),
            None if log.clicks.posterior is None else _believed(start, log.clicks.posterior),
            log.clicks.weights,
            world.theta,
            config.learning.training,
            seed=seed,
            coordinates=(log.N,),
            criterion=criterion,
            watch=watch if watched else None,
            alone=alone,
            # Lists that a criterion asked for are there already; made for the curves alone, they would be a fifth of the time.
            watch_every=4 if criterion is None else 1,
            checkpoints=checkpoints,
            resume=checkpoints is not None,
        )

    def run(self, method: Method, K2: int, *, progress: Callable[[Progress], None] | None = None) -> Outcome:
        """Trains and evaluates one method."""
        found = self.methods.train(method, K2, progress=progress)
        return Outcome(found.policy, found.history, self.evaluate(found.policy), self.log.seconds + found.seconds)

    def _judges(self) -> tuple[Criterion | None, Callable[[TwoStagePolicy], dict[str, float]]]:
        """The criterion, and the true NDCG of the same lists: an epoch makes its lists once, for both."""
        # Nothing below may hold the trainer: it holds what comes of this, and a circle is freed late, with its log.
        q, relevance, judged = self.world.q, self.world.task.relevance, np.empty((0, 0), np.int32)

        def lists(policy: TwoStagePolicy) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
            nonlocal judged
            judged = policy.most_likely(q)
            return q, judged

        criterion = self.log.clicks.criterion(self.config.learning, lists=lists)

        def watch(policy: TwoStagePolicy) -> dict[str, float]:
            shown = policy.most_likely(q) if criterion is None else judged
            return {"ndcg": float(np.nanmean(ndcg(shown, q, relevance)))}

        return criterion, watch

    def evaluate(self, policy: TwoStagePolicy) -> Evaluation:
        """All figures of a policy, on the users who were logged; of methods that come to one policy, once."""
        for known, found in self._evaluated:
            if are_same_policy(known, policy):
                return found
        found = evaluate(
            policy,
            self.world.task.relevance,
            self.world.theta,
            self.world.q,
            samples=self.config.evaluation_samples,
            seed=derive(self.seed, "evaluation") % 2**32,
            clicked=self.log.clicked,
        )
        self._evaluated.append((policy, found))
        return found


def _believed(start: TwoStagePolicy, beliefs: Posterior) -> TwoStagePolicy:
    """The beliefs in both stages."""
    scorer = scorer_of(beliefs)
    return replace(start, generator=scorer, ranker=scorer)


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
    chosen = config.learning.training.model_copy(update={"early_stopping": False, "gradient": "race", "samples": 1})
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
