"""What the race gradient costs and how sharp it is, beside its rivals: the figures of docs/race.md, as plain rows.

`gradient` compares it with REINFORCE (paper: cand-grad, ranker-grad), with PL-Rank-3 in the one-stage case, and with
the time of merely drawing exponentials. `epoch` compares a joint training epoch with its own matrix products.
Everything is measured on one thread unless told otherwise; times are medians, and what is compared is measured in turns.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank import race, reinforce
from tandemrank.policies import TwoStagePolicy
from tandemrank.scorers import MatrixFactorisation
from tandemrank.training import TrainingConfig, train
from tandemrank.vocabulary import Vocabulary

Row = dict[str, Any]
Shape = Literal["flat", "peaked"]
SHAPES: tuple[Shape, ...] = ("flat", "peaked")


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Inside, compiled code and torch use n threads."""
    import numba

    before = numba.get_num_threads(), torch.get_num_threads()
    numba.set_num_threads(n)
    torch.set_num_threads(n)
    try:
        yield
    finally:
        numba.set_num_threads(before[0])
        torch.set_num_threads(before[1])


def seconds(jobs: Sequence[Callable[[], object]], repeats: int) -> list[float]:
    """The median time of each job. They take turns, so that a busy moment of the machine hits all of them."""
    for job in jobs:
        job()
    taken = np.empty((repeats, len(jobs)))
    for i in range(repeats):
        for j, job in enumerate(jobs):
            start = time.perf_counter()
            job()
            taken[i, j] = time.perf_counter() - start
    return [float(x) for x in np.median(taken, 0)]


# Sharpness and time of a gradient


@dataclass(frozen=True)
class World:
    """One query n times over: the rows of an estimate are then independent repetitions.

    Shapes: s, r [n, D], all rows alike; w [n, D]; theta [K].
    """

    s: Tensor
    r: Tensor
    w: csr_matrix
    theta: Tensor

    def times(self, n: int) -> "World":
        s, r = (x[:1].expand(n, -1).contiguous().requires_grad_() for x in (self.s.detach(), self.r.detach()))
        docs, own = self.w.indices[: self.w.indptr[1]], self.w.data[: self.w.indptr[1]]
        indptr = np.arange(n + 1) * len(docs)
        return World(s, r, csr_matrix((np.tile(own, n), np.tile(docs, n), indptr), shape=s.shape), self.theta)


def world(shape: Shape, D: int, K: int, weighted: int, seed: int) -> World:
    """`flat`: scores of standard deviation 0.1, an untrained pair that shows hardly a weighted document.

    `peaked`: of standard deviation 1, and so much more for the weighted documents, in both stages, that they are about a
    third of the rates, as late in training. Weights lie between 0.5 and 1.5, theta_k = 1/k.
    """
    rng = np.random.default_rng([seed, SHAPES.index(shape)])
    docs = rng.choice(D, weighted, replace=False)
    s, r = rng.normal(size=(2, D)) * (0.1 if shape == "flat" else 1.0)
    if shape == "peaked":
        s[docs] += np.log(D / (2 * weighted))
        r[docs] += np.log(D / (2 * weighted))
    w = csr_matrix((rng.uniform(0.5, 1.5, weighted).astype(np.float32), (np.zeros_like(docs), docs)), shape=(1, D))
    s_c, s_r = (torch.tensor(x[None], dtype=torch.float32) for x in (s, r))
    return World(s_c, s_r, w, 1 / torch.arange(1.0, K + 1)).times(1)


Estimate = Callable[[World, torch.Generator], tuple[Tensor, Tensor]]


def by_race(K2: int, samples: int) -> Estimate:
    return lambda of, generator: _gradients(race.utility, of, K2, samples=samples, generator=generator)


def by_reinforce(K2: int, samples: int, baseline: bool) -> Estimate:
    return lambda of, generator: _gradients(
        reinforce.utility, of, K2, samples=samples, generator=generator, baseline=baseline
    )


def _gradients(utility: Callable[..., Tensor], of: World, K2: int, **options: Any) -> tuple[Tensor, Tensor]:
    """An estimate of both gradients for each row.  Shapes: -> [n, D], [n, D]."""
    value = utility(of.s, of.r, of.w, of.theta, K2, **options)
    by_s, by_r = torch.autograd.grad(value.sum(), (of.s, of.r))
    return by_s, by_r


def by_pl_rank(samples: int) -> Estimate:
    """PL-Rank-3, for the one-stage case: its first gradient, the generator's, is zero."""

    def estimate(of: World, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        from tandemrank import pl_rank_kernel

        r, n = of.r.detach().numpy(), len(of.r)
        value, grad = np.zeros(n), np.empty_like(r)
        pl_rank_kernel.utility(
            r, race.keys_for(n, generator), of.w.indptr.astype(np.int64), of.w.indices.astype(np.int32), of.w.data,
            of.theta.numpy(), samples, race.chunks(n), value, grad,
        )  # fmt: skip
        return torch.zeros(1), torch.from_numpy(grad)

    return estimate


@dataclass(frozen=True)
class Effort:
    """How much is spent on a measurement: repetitions of REINFORCE, samples of the race (over all repetitions) and of
    the true gradient, timed turns, queries in a batch."""

    reinforce: int = 16
    race: int = 16_384
    truth: int = 30_000
    turns: int = 7
    batch: int = 64


def true_gradients(of: World, K2: int, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Both gradients [D] by the race with many samples."""
    rows = min(samples, 250)
    estimate = by_race(K2, -(-samples // rows))
    by_s, by_r = estimate(of.times(rows), torch.Generator().manual_seed(seed))
    return by_s.double().mean(0), by_r.double().mean(0)


def relative_errors(
    estimate: Estimate, of: World, truth: tuple[Tensor, Tensor], repeats: int, generator: torch.Generator
) -> list[float | None]:
    """sqrt(E |g_hat - g|^2) / |g| of each stage, over at least `repeats` independent estimates; None where g = 0."""
    squares, turns = np.zeros(2), -(-repeats // len(of.s))
    for _ in range(turns):
        found = estimate(of, generator)
        squares += [float(((x - g) ** 2).sum()) for x, g in zip(found, truth, strict=True)]
    norms = [float((g**2).sum()) for g in truth]
    n = turns * len(of.s)
    return [float(np.sqrt(x / n / g)) if g > 0 else None for x, g in zip(squares, norms, strict=True)]


@dataclass(frozen=True)
class Method:
    name: str
    samples: int
    estimate: Estimate
    repeats: int
    batch: int


def measured(methods: Sequence[Method], of: World, K2: int, effort: Effort, seed: int) -> list[Row]:
    """A row for each method: time of a query, relative error of both gradients."""
    truth = true_gradients(of, K2, effort.truth, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    jobs = [partial(m.estimate, of.times(m.batch), generator) for m in methods]
    rows = []
    for m, t in zip(methods, seconds(jobs, effort.turns), strict=True):
        candidate, ranker = relative_errors(m.estimate, of.times(m.batch), truth, m.repeats, generator)
        rows.append(
            {
                "method": m.name,
                "K2": K2,
                "samples": m.samples,
                "ms_per_query": 1e3 * t / m.batch,
                "relative_error_candidate": candidate,
                "relative_error_ranker": ranker,
            }
        )
    return rows


def cost(row: Row, stage: str) -> float:
    """Variance times time: how long a method takes to a given accuracy, whatever its number of samples."""
    return float(row[f"relative_error_{stage}"] ** 2 * row["ms_per_query"])


def gradient(
    D: int = 3706,
    K: int = 10,
    weighted: int = 20,
    K2: Sequence[int] = (500, 1000, 1500),
    large_D: int = 1_000_000,
    reinforce_samples: int = 300,
    race_samples: Sequence[int] = (1, 4, 16),
    seed: int = 0,
    effort: Effort | None = None,
) -> Row:
    """The race gradient against REINFORCE, PL-Rank-3 and the drawing of exponentials, on one thread.

    `rows`: a method, K2, shape of the scores and number of samples each. `ratio_candidate`, `ratio_ranker`: variance
    times time of the better REINFORCE over that of the race with its first number of samples, the worst case. `draws`:
    `draw_ratio`, the race with one sample over NumPy's generator drawing D standard exponentials. `one_stage`: K2 = D;
    `pl_rank_ratio`: the time of PL-Rank-3 over that of the race at equal relative error, the worst case.
    """
    effort = effort or Effort()
    with threads(1):
        rows = [
            {**row, "scores": shape}
            for shape in SHAPES
            for k in K2
            for row in measured(
                _two_stage_methods(k, reinforce_samples, race_samples, effort),
                world(shape, D, K, weighted, seed),
                k,
                effort,
                seed,
            )
        ]
        draws = [_draw_row(n, K, weighted, shape, effort, seed) for n in (D, large_D) for shape in SHAPES]
        one_stage = [
            {**row, "scores": shape}
            for shape in SHAPES
            for row in measured(
                _one_stage_methods(D, reinforce_samples, race_samples, effort),
                world(shape, D, K, weighted, seed),
                D,
                effort,
                seed,
            )
        ]
    return {
        "D": D,
        "K": K,
        "weighted": weighted,
        "rows": rows,
        "ratio_candidate": _worst_ratio(rows, "candidate", "reinforce", race_samples[0]),
        "ratio_ranker": _worst_ratio(rows, "ranker", "reinforce", race_samples[0]),
        "draws": draws,
        "one_stage": one_stage,
        "pl_rank_ratio": _worst_ratio(one_stage, "ranker", "pl-rank-3", race_samples[0]),
    }


def _two_stage_methods(K2: int, reinforce_samples: int, race_samples: Sequence[int], effort: Effort) -> list[Method]:
    rivals = [
        Method(name, reinforce_samples, by_reinforce(K2, reinforce_samples, baseline), effort.reinforce, 2)
        for name, baseline in (("reinforce", False), ("reinforce+baseline", True))
    ]
    return rivals + [Method("race", n, by_race(K2, n), effort.race // n, effort.batch) for n in race_samples]


def _one_stage_methods(D: int, samples: int, race_samples: Sequence[int], effort: Effort) -> list[Method]:
    rival = Method("pl-rank-3", samples, by_pl_rank(samples), max(effort.race // 64, 2), 4)
    return [rival] + [Method("race", n, by_race(D, n), effort.race // n, effort.batch) for n in race_samples]


def _worst_ratio(rows: Sequence[Row], stage: str, rival: str, samples: int) -> float:
    """The smallest, over K2 and shapes, of the best rival's cost over that of the race with `samples` samples."""
    ratios = []
    for K2, shape in {(row["K2"], row["scores"]) for row in rows}:
        here = [row for row in rows if (row["K2"], row["scores"]) == (K2, shape)]
        best = min(cost(row, stage) for row in here if row["method"].startswith(rival))
        ours = [cost(row, stage) for row in here if row["method"] == "race" and row["samples"] == samples]
        ratios.append(best / ours[0])
    return min(ratios)


def _draw_row(D: int, K: int, weighted: int, shape: Shape, effort: Effort, seed: int, K2: int = 1000) -> Row:
    """One sample of the race, both gradients, over D standard exponentials of NumPy's generator; K2 = D/2 for small D."""
    K2, n = min(K2, max(1, D // 2)), max(1, min(effort.batch, 1_000_000 // D))
    of = world(shape, D, K, weighted, seed).times(n)
    generator, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    run, draw = seconds(
        [
            lambda: race.utility(of.s, of.r, of.w, of.theta, K2, generator=generator),
            lambda: [rng.standard_exponential(D) for _ in range(n)],
        ],
        3 * effort.turns,
    )
    return {"D": D, "K2": K2, "scores": shape, "ms_per_query": 1e3 * run / n, "draw_ratio": run / draw}


# A training epoch over its own matrix products

# What a training does once, a copy of the weights and the digest of its inputs, is shared by a few epochs, as in real ones.
EPOCHS = 4


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
) -> Row:
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
        epochs=EPOCHS, stopping="fixed", minibatch=minibatch, samples=samples, alpha="examination", learning_rate=1e-4,
        joint_start="start",
    )  # fmt: skip
    fixed = torch.randn(minibatch, items, generator=generator) / items
    with threads(on_threads):
        optimisers = [torch.optim.Adam(m.parameters(), lr=1e-4, fused=True) for m in stages]
        order = torch.randperm(users, generator=generator)
        batches = [order[first : first + minibatch] for first in range(0, users, minibatch)]
        run, floor = seconds(
            [lambda: train(pair, w, theta, config), lambda: floor_epoch(stages, optimisers, batches, fixed)], turns
        )
        run /= EPOCHS
    return {
        "users": users,
        "items": items,
        "K2": K2,
        "samples": samples,
        "threads": on_threads,
        "weighted_shown": _weighted_shown(stages, w, K2, K, generator),
        "seconds": run,
        "floor_seconds": floor,
        "ratio": run / floor,
    }


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
    """Two stages with scores of standard deviation about 2, and weights [users, items], `clicked` a user."""
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
    shown = race.draw(s_c, s_r, K2, K, rows=q.numpy(), keys=race.keys_for(len(q), generator))
    dense = w[q.numpy()].toarray()
    return float((np.take_along_axis(dense, shown.astype(np.int64), 1) != 0).sum(1).mean())
