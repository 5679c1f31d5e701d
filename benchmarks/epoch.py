"""A training epoch over its own matrix products.

    python benchmarks/epoch.py [--json]

The paper's sizes, one thread; the products and the optimiser's steps alone are the floor of any gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from _common import options, report, seconds, threads
from tandemrank._base.ids import Vocabulary
from tandemrank.gradients import _bridge, race
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.config import TrainingConfig
from tandemrank.training.loop import train
from tandemrank.training.schedules import BOTH

# What a training does once, a copy of the weights and the digest of its inputs, is shared by a few epochs, as in real ones.
EPOCHS = 4


@dataclass(frozen=True)
class Measured:
    """What is printed: the seconds of an epoch, of its floor, and their ratio.

    `weighted_shown`: how many of the K shown items carry weight.
    """

    users: int
    items: int
    K2: int
    samples: int
    threads: int
    weighted_shown: float
    seconds: float
    floor_seconds: float
    ratio: float


def epoch(
    users: int = 6040,
    items: int = 3706,
    F: int = 50,
    K2: int = 500,
    K: int = 10,
    clicked: int = 25,
    minibatch: int = 256,
    samples: int = 1,
    turns: int = 5,
    on_threads: int = 1,
    seed: int = 0,
) -> Measured:
    """One joint epoch of `training.train`, two matrix factorisations, over the floor of what any gradient needs.

    For each minibatch: a step of both stages, from one draw. The floor is the same forward and backward products, with a
    fixed matrix as the gradient by the scores, and the steps of PyTorch's fused Adam.
    Embeddings are synthetic: both stages agree but for noise, and each user's weighted items are drawn from those
    that score highest, so that shown lists contain them as late in training (`weighted_shown`, of K).
    """
    stages, w = _trained_pair(users, items, F, clicked, seed)
    theta, generator = 1 / np.arange(1.0, K + 1), torch.Generator().manual_seed(seed)
    pair = TwoStagePolicy(stages[0], stages[1], K2, K, Vocabulary(pl.Series(range(users)), pl.Series(range(items))))
    config = TrainingConfig(
        epochs=EPOCHS, minibatch=minibatch, samples=samples, rank_weights="examination", learning_rate=1e-4,
    )  # fmt: skip
    fixed = torch.randn(minibatch, items, generator=generator) / items
    with threads(on_threads):
        optimisers = [torch.optim.Adam(m.parameters(), lr=1e-4, fused=True) for m in stages]
        order = torch.randperm(users, generator=generator)
        batches = [order[first : first + minibatch] for first in range(0, users, minibatch)]
        run, floor = seconds(
            [
                lambda: train(pair, w, theta, config, schedule=(BOTH,)),
                lambda: floor_epoch(stages, optimisers, batches, fixed),
            ],
            turns,
        )
        run /= EPOCHS
    weighted_shown = _weighted_shown(stages, w, K2, K, generator)
    return Measured(
        users=users,
        items=items,
        K2=K2,
        samples=samples,
        threads=on_threads,
        weighted_shown=weighted_shown,
        seconds=run,
        floor_seconds=floor,
        ratio=run / floor,
    )


def floor_epoch(
    stages: Sequence[MatrixFactorisation],
    optimisers: Sequence[torch.optim.Optimizer],
    batches: Sequence[Tensor],
    gradient: Tensor,
) -> None:
    """The products and steps of a joint epoch and nothing else.  Shapes: gradient [minibatch, D]."""
    for q in batches:
        scores = [stage(q) for stage in stages]
        for number, optimiser in enumerate(optimisers):
            optimiser.zero_grad()
            scores[number].backward(gradient[: len(q)])
            optimiser.step()


def _trained_pair(
    users: int, items: int, F: int, clicked: int, seed: int
) -> tuple[list[MatrixFactorisation], csr_matrix]:
    """Two stages with scores of standard deviation about 2, and weights [users, items], `clicked` per user."""
    rng = np.random.default_rng(seed)
    scale = np.sqrt(2 / np.sqrt(F))
    stages, total = [], np.zeros((users, items), np.float32)
    common = rng.normal(size=(users, F)), rng.normal(size=(items, F))
    for _ in range(2):
        P, V = ((scale * (0.95 * x + 0.3 * rng.normal(size=x.shape))).astype(np.float32) for x in common)
        stages.append(MatrixFactorisation(P, V))
        total += P @ V.T
    best = np.argpartition(-total, 2 * clicked, axis=1)[:, : 2 * clicked]
    docs = np.sort(rng.permuted(best, axis=1)[:, :clicked], axis=1)
    weights = rng.uniform(0.5, 1.5, docs.size).astype(np.float32)
    w = csr_matrix((weights, docs.ravel(), np.arange(users + 1) * clicked), shape=(users, items))
    return stages, w


def _weighted_shown(
    stages: Sequence[MatrixFactorisation], w: csr_matrix, K2: int, K: int, generator: torch.Generator
) -> float:
    """How many of the K shown carry weight, on average over the first 256 users."""
    q = torch.arange(min(256, w.shape[0]))
    with torch.no_grad():
        s_c, s_r = stages[0](q), stages[1](q)
    shown = race.draw(s_c, s_r, K2, K, rows=q.numpy(), keys=_bridge.keys_for(len(q), generator))
    dense = w[q.numpy()].toarray()
    return float((np.take_along_axis(dense, shown.astype(np.int64), 1) != 0).sum(1).mean())


def main() -> None:
    """Measures and prints."""
    asked = options(__doc__).parse_args()
    report(lambda _: epoch(), "measuring an epoch", as_json=asked.json)


if __name__ == "__main__":
    main()
