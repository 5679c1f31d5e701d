"""Training and retrieval against the number of items: the sparse race beside the dense one, exact retrieval.

python benchmarks/scale.py [--items 1000000] [--candidates 1000] [--seed 0] [--json]
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from _common import not_negative, options, positive, report, seconds, threads
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError
from tandemrank.gradients import race, sparse_race
from tandemrank.gradients._bridge import keys_for
from tandemrank.policies.scorers import MatrixFactorisation, Scorer
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.objective import Objective
from tandemrank.training.schedules import Stage

CLICKED, SPREAD = 25, 1.5  # weighted items per query; standard deviation of the scores
SMALL = 4_000  # items of the smallest catalogue that is recommended from
NOISE_AT, NOISE_K2 = 20_000, 500  # items and candidates where the noise is measured


@dataclass(frozen=True)
class Recommended:
    """The time of `recommend` for one query."""

    items: int
    exact_ms: float


@dataclass(frozen=True)
class Measured:
    """What is printed; times are of one query of a minibatch, in milliseconds of CPU, on one thread.

    growth_exact: a joint training step of both stages at the most items over that at a tenth of them.
    sparse_speedup: the dense race's step over the sparse one's, at the most items. noise_ratio: standard deviation of the
    gradient of the user vectors, sparse over dense. ranker_items_per_query: what the re-ranker is asked in a step. recommend:
    by the number of items.
    """

    items: int
    K2: int
    sparse_ms: float
    sparse_ms_tenth: float
    dense_ms: float
    growth_exact: float
    sparse_speedup: float
    noise_ratio: float
    ranker_items_per_query: float
    recommend_ms: tuple[Recommended, ...]


@dataclass(frozen=True)
class World:
    """Two factorisations that agree but for noise, and weights of items that score high."""

    pair: TwoStagePolicy
    w: csr_matrix
    theta: Tensor

    @property
    def q(self) -> Tensor:
        return torch.arange(self.w.shape[0])


def measure(items: int = 1_000_000, K2: int = 1000, queries: int = 64, turns: int = 3, seed: int = 0) -> Measured:
    """All of it, one thread."""
    if items < 10 * K2 or queries < 1 or turns < 1:
        raise ConfigError(f"expected at least 10 x {K2} items, 1 query and 1 turn; {items}, {queries}, {turns} came.")
    whole, tenth = (_world(D, K2, queries, seed) for D in (items, items // 10))
    few = _world(items, K2, max(1, queries // 16), seed)  # the dense race has [B, D] in memory
    with threads(1):
        steps = [_sparse_step(whole), _sparse_step(tenth), _dense_step(few)]
        many, fewer, dense = seconds(steps, turns, time.process_time)
        recommended = tuple(_recommended(D, K2, turns, seed) for D in sorted({SMALL, items // 10, items}))
        noise = _noise_ratio(min(NOISE_AT, items), seed)
    per_query = 1e3 / queries
    at, at_tenth, dense_ms = many * per_query, fewer * per_query, dense * 1e3 / few.w.shape[0]
    return Measured(
        items=items,
        K2=K2,
        sparse_ms=at,
        sparse_ms_tenth=at_tenth,
        dense_ms=dense_ms,
        growth_exact=at / at_tenth,
        sparse_speedup=dense_ms / at,
        noise_ratio=noise,
        ranker_items_per_query=_asked(whole),
        recommend_ms=recommended,
    )


def _world(D: int, K2: int, queries: int, seed: int, F: int = 50) -> World:
    rng = np.random.default_rng(seed)
    spectrum = np.arange(1.0, F + 1) ** -0.25  # of a side: the products' spectrum falls as that of a factorisation
    scale = (spectrum * math.sqrt(SPREAD / math.sqrt((spectrum**4).sum()))).astype(np.float32)
    X, Y = (scale * rng.standard_normal((n, F), dtype=np.float32) for n in (queries, D))
    other = Y + np.float32(0.3) * scale * rng.standard_normal(Y.shape, dtype=np.float32)
    ids = Vocabulary(pl.Series(range(queries)), pl.Series(range(D)))
    pair = TwoStagePolicy(MatrixFactorisation(X, Y), MatrixFactorisation(X, other), min(K2, D), 10, ids)
    liked = np.stack([_liked(x, Y, rng) for x in X])
    weights = rng.uniform(0.5, 1.5, liked.size).astype(np.float32)
    w = csr_matrix((weights, liked.ravel(), np.arange(queries + 1) * CLICKED), shape=(queries, D))
    return World(pair, w, torch.from_numpy(1 / np.arange(1.0, 11)).float())


def _liked(x: NDArray[np.float32], Y: NDArray[np.float32], rng: np.random.Generator) -> NDArray[np.int64]:
    best = np.argpartition(-(Y @ x), 4 * CLICKED)[: 4 * CLICKED]
    return np.sort(rng.permutation(best)[:CLICKED])


def _sparse_step(world: World) -> Callable[[], object]:
    """Value and both gradients of one minibatch, down to the parameters."""
    models: dict[Stage, Scorer] = {"generator": world.pair.generator, "ranker": world.pair.ranker}
    objective = Objective(models, world.pair.K2, "race", 2, is_sparse=True)
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        keys = keys_for(len(world.q), generator)
        value = objective.utility("pair", ("generator", "ranker"), world.q, world.w, world.theta, keys)
        _backward(world, value)

    return step


def _dense_step(world: World) -> Callable[[], object]:
    generator = torch.Generator().manual_seed(0)

    def step() -> None:
        s_c, s_r = world.pair.generator(world.q), world.pair.ranker(world.q)
        _backward(world, race.utility(s_c, s_r, world.w, world.theta, world.pair.K2, generator=generator))

    return step


def _backward(world: World, value: Tensor) -> None:
    for model in (world.pair.generator, world.pair.ranker):
        model.zero_grad()
    (-value.mean()).backward()


def _asked(world: World) -> float:
    """How many items of a query the re-ranker scores in a step, on average."""
    scores = world.pair.generator.factors(world.q)
    assert scores is not None
    plan = sparse_race.plan(scores, world.w, world.pair.K2, generator=torch.Generator().manual_seed(1))
    return float(plan.listed[:, 0].mean())


def _noise_ratio(D: int, seed: int, repeats: int = 200) -> float:
    """The standard deviation of the gradient of a user vector of both stages, sparse over dense: one minibatch of one user."""
    one = _world(D, NOISE_K2, 1, seed)
    q = torch.zeros(repeats, dtype=torch.int64)
    w = _repeated(one.w, repeats)
    spreads = []
    for is_sparse in (True, False):
        generator = torch.Generator().manual_seed(seed + 1)
        gradients = _query_gradients(one, q, w, is_sparse, generator)
        spreads.append(float(torch.cat(list(gradients), 1).var(0).sum().sqrt()))
    return spreads[0] / spreads[1]


def _repeated(w: csr_matrix, n: int) -> csr_matrix:
    return csr_matrix((np.tile(w.data, n), np.tile(w.indices, n), np.arange(n + 1) * w.nnz), shape=(n, w.shape[1]))


def _query_gradients(
    world: World, q: Tensor, w: csr_matrix, is_sparse: bool, generator: torch.Generator
) -> Sequence[Tensor]:
    """The gradient of the user vector of each stage, one row per repetition.  Shapes: q [n] -> two of [n, F]."""
    stages = (world.pair.generator, world.pair.ranker)
    if not is_sparse:
        s = [model(q).detach().requires_grad_() for model in stages]
        race.utility(s[0], s[1], w, world.theta, world.pair.K2, generator=generator).sum().backward()
        return [_g(x) @ _items(model) for x, model in zip(s, stages, strict=True)]
    scores = stages[0].factors(q)
    assert scores is not None
    plan = sparse_race.plan(scores, w, world.pair.K2, generator=generator)
    places = plan.documents, plan.ranker_documents
    s = [model.score(q, at).detach().requires_grad_() for model, at in zip(stages, places, strict=True)]
    sparse_race.utility(s[0], s[1], plan, world.theta).sum().backward()
    return [
        torch.stack([_g(x)[i] @ _items(model)[at[i]] for i in range(len(q))])
        for x, model, at in zip(s, stages, places, strict=True)
    ]


def _items(model: Scorer) -> Tensor:
    assert isinstance(model, MatrixFactorisation)
    return model.items.detach()


def _g(x: Tensor) -> Tensor:
    assert x.grad is not None
    return x.grad


def _recommended(D: int, K2: int, turns: int, seed: int) -> Recommended:
    pair = _world(D, min(K2, D // 4), 8, seed).pair
    [exact] = seconds([lambda: pair.recommend([3])], 5 * turns, time.process_time)
    return Recommended(D, 1e3 * exact)


def main() -> None:
    """Measures and prints."""
    found = options(__doc__)
    found.add_argument("--items", type=positive, default=1_000_000, help="items of the largest catalogue, D")
    found.add_argument("--candidates", type=positive, default=1000, help="candidates of the generator, K2")
    found.add_argument("--seed", type=not_negative, default=0)
    asked = found.parse_args()
    report(
        lambda _: measure(asked.items, asked.candidates, seed=asked.seed), "measuring growth with the items",
        as_json=asked.json,
    )  # fmt: skip


if __name__ == "__main__":
    main()
