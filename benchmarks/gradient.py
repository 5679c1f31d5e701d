"""What the race gradient costs and how sharp it is, beside its rivals: the figures of docs/explanation/race.md.

    python benchmarks/gradient.py [--json]


It is compared with REINFORCE (paper: cand-grad, ranker-grad), for the generator with the credit-assigned policy gradient,
with PL-Rank-3 in the one-stage case, and with the time of merely drawing exponentials. Everything is measured on one thread
unless told otherwise; times are medians, and what is compared is measured in turns.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

import credit
import pl_rank
from _common import options, report, seconds, threads
from tandemrank.gradients import _bridge, plackett_luce, race

Stage = Literal["generator", "ranker"]
Shape = Literal["flat", "peaked"]
SHAPES: tuple[Shape, ...] = ("flat", "peaked")


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
        plackett_luce.reinforce, of, K2, samples=samples, generator=generator, baseline=baseline
    )


def by_credit(K2: int, samples: int) -> Estimate:
    """The credit-assigned policy gradient, of the generator alone: its second gradient is none."""
    return lambda of, generator: (
        credit.gradient(of.s, of.r, of.w, of.theta, K2, samples=samples, generator=generator),
        torch.zeros(1),
    )


def _gradients(utility: Callable[..., Tensor], of: World, K2: int, **options: Any) -> tuple[Tensor, Tensor]:
    """An estimate of both gradients for each row.  Shapes: -> [n, D], [n, D]."""
    value = utility(of.s, of.r, of.w, of.theta, K2, **options)
    by_s, by_r = torch.autograd.grad(value.sum(), (of.s, of.r))
    return by_s, by_r


def by_pl_rank(samples: int) -> Estimate:
    """PL-Rank-3, for the one-stage case: its first gradient, the generator's, is zero."""

    def estimate(of: World, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        r, n = of.r.detach().numpy(), len(of.r)
        value, grad = np.zeros(n), np.empty_like(r)
        _bridge.over_rows(
            pl_rank.utility, n, r, _bridge.keys_for(n, generator), *_bridge.entries(of.w), of.theta.numpy(), samples, value,
            grad,
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
    """An estimate of the gradients with a number of samples, and how it is measured."""

    name: str
    samples: int
    estimate: Estimate
    repeats: int
    batch: int
    of_ranker: bool = True


@dataclass(frozen=True)
class Row:
    """A method on scores of one shape: time per query, and the relative error of both gradients (None where it is 0)."""

    method: str
    K2: int
    samples: int
    ms_per_query: float
    relative_error_generator: float | None
    relative_error_ranker: float | None
    scores: Shape

    def cost(self, stage: Stage) -> float:
        """Variance times time: how long a method takes to a given accuracy, whatever its number of samples."""
        error = self.relative_error_generator if stage == "generator" else self.relative_error_ranker
        return (math.nan if error is None else error) ** 2 * self.ms_per_query


@dataclass(frozen=True)
class DrawRow:
    """One sample of the race, both gradients, over the time of drawing D standard exponentials."""

    D: int
    K2: int
    scores: Shape
    ms_per_query: float
    draw_ratio: float


@dataclass(frozen=True)
class Measured:
    """What is printed.

    `ratio_generator`, `ratio_ranker`: variance times time of the better REINFORCE over that of the race with its first
    number of samples, the worst case. `one_stage`: K2 = D; `pl_rank_ratio`: the time of PL-Rank-3 over that of the race at
    equal relative error, the worst case.
    """

    D: int
    K: int
    weighted: int
    ratio_generator: float
    ratio_ranker: float
    pl_rank_ratio: float
    rows: tuple[Row, ...]
    draws: tuple[DrawRow, ...]
    one_stage: tuple[Row, ...]


def measured(methods: Sequence[Method], of: World, K2: int, shape: Shape, effort: Effort, seed: int) -> list[Row]:
    """A row for each method."""
    truth = true_gradients(of, K2, effort.truth, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    jobs = [partial(m.estimate, of.times(m.batch), generator) for m in methods]
    rows = []
    for m, t in zip(methods, seconds(jobs, effort.turns), strict=True):
        errors = relative_errors(m.estimate, of.times(m.batch), truth, m.repeats, generator)
        rows.append(
            Row(
                method=m.name,
                K2=K2,
                samples=m.samples,
                ms_per_query=1e3 * t / m.batch,
                relative_error_generator=errors[0],
                relative_error_ranker=errors[1] if m.of_ranker else None,
                scores=shape,
            )
        )
    return rows


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
) -> Measured:
    """The race gradient against REINFORCE, PL-Rank-3 and NumPy's drawing of exponentials, on one thread."""
    effort = effort or Effort()
    cases = [(shape, world(shape, D, K, weighted, seed)) for shape in SHAPES]
    with threads(1):
        rows = [
            row
            for shape, of in cases
            for k in K2
            for row in measured(
                _two_stage_methods(k, reinforce_samples, race_samples, effort), of, k, shape, effort, seed
            )
        ]
        draws = [_draw_row(n, K, weighted, shape, effort, seed) for n in (D, large_D) for shape in SHAPES]
        rivals = _one_stage_methods(D, reinforce_samples, race_samples, effort)
        one_stage = [row for shape, of in cases for row in measured(rivals, of, D, shape, effort, seed)]
    return Measured(
        D=D,
        K=K,
        weighted=weighted,
        ratio_generator=_worst_ratio(rows, "generator", "reinforce", race_samples[0]),
        ratio_ranker=_worst_ratio(rows, "ranker", "reinforce", race_samples[0]),
        pl_rank_ratio=_worst_ratio(one_stage, "ranker", "pl-rank-3", race_samples[0]),
        rows=tuple(rows),
        draws=tuple(draws),
        one_stage=tuple(one_stage),
    )


def _two_stage_methods(K2: int, reinforce_samples: int, race_samples: Sequence[int], effort: Effort) -> list[Method]:
    rivals = [
        Method(name, reinforce_samples, by_reinforce(K2, reinforce_samples, baseline), effort.reinforce, 2)
        for name, baseline in (("reinforce", False), ("reinforce+baseline", True))
    ]
    rivals.append(
        Method("credit-assigned", reinforce_samples, by_credit(K2, reinforce_samples), effort.reinforce, 2, False)
    )
    return rivals + [Method("race", n, by_race(K2, n), effort.race // n, effort.batch) for n in race_samples]


def _one_stage_methods(D: int, samples: int, race_samples: Sequence[int], effort: Effort) -> list[Method]:
    rival = Method("pl-rank-3", samples, by_pl_rank(samples), max(effort.race // 64, 2), 4)
    return [rival] + [Method("race", n, by_race(D, n), effort.race // n, effort.batch) for n in race_samples]


def _worst_ratio(rows: Sequence[Row], stage: Stage, rival: str, samples: int) -> float:
    """The smallest, over K2 and shapes, of the best rival's cost over that of the race with `samples` samples."""
    ratios = []
    for case in {(row.K2, row.scores) for row in rows}:
        here = [row for row in rows if (row.K2, row.scores) == case]
        best = min(row.cost(stage) for row in here if row.method.startswith(rival))
        ours = [row.cost(stage) for row in here if row.method == "race" and row.samples == samples]
        ratios.append(best / ours[0])
    return min(ratios)


def _draw_row(D: int, K: int, weighted: int, shape: Shape, effort: Effort, seed: int, K2: int = 1000) -> DrawRow:
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
    return DrawRow(D, K2, shape, 1e3 * run / n, run / draw)


def main() -> None:
    """Measures and prints."""
    asked = options(__doc__).parse_args()
    report(lambda _: gradient(), "measuring the gradients", as_json=asked.json)


if __name__ == "__main__":
    main()
