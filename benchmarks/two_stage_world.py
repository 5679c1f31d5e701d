"""A two-stage world in plain NumPy, which shares no code with the package: who likes what, lists, clicks, true values.

A pair is two tables of scores. It draws the `K2` best of scores plus Gumbel noise (Plackett-Luce), and shows the `K` best of
these by the second table plus noise of its own. A user examines rank k with chance theta_k = 1/k, and clicks on what is
examined with chance R.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Pair = tuple[Floats, Floats]  # scores of the generator and of the re-ranker, [Q, D] each

CELLS = 2**22  # random numbers in memory at once


@dataclass(frozen=True)
class World:
    """Tastes of the queries, what production knows of them, and the sizes.

    Production's scores are  known + popularity,  <u, v> over `live_queries`, `live_items`.
    Shapes: relevance, other [Q, D], `other`: the taste that production does not know; live_queries [Q, F], live_items [D, F].
    """

    relevance: Floats
    other: Floats
    live_queries: Floats
    live_items: Floats
    K: int
    K2: int

    @property
    def theta(self) -> Floats:
        """The examination curve.  Shapes: -> [K]."""
        return 1 / np.arange(1.0, self.K + 1)

    @property
    def live(self) -> Floats:
        """Production's scores, the same for both stages.  Shapes: -> [Q, D]."""
        return self.live_queries @ self.live_items.T


def world(seed: int, Q: int, D: int, *, K: int = 5, K2: int = 20, items_seed: int | None = None) -> World:
    """Tastes of three dimensions that production knows, three that it does not, and popularity; relevance from .02 to .6.

    With `items_seed` worlds share their items and differ by their queries.
    """
    rng = np.random.default_rng([seed, 1])
    items = np.random.default_rng([seed if items_seed is None else items_seed, 2])
    v, w, popular = items.normal(size=(D, 3)), items.normal(size=(D, 3)), items.normal(size=D)
    x, y = rng.normal(size=(Q, 3)) / np.sqrt(3), rng.normal(size=(Q, 3)) / np.sqrt(3)
    known, other = x @ v.T, y @ w.T
    relevance = 0.02 + 0.58 / (1 + np.exp(2 - known - other - 0.5 * popular))
    spare = items.normal(size=(D, 4))  # dimensions that production has no use for, and training has
    queries = np.concatenate([0.8 * x, np.full((Q, 1), 0.5), np.zeros((Q, 4))], axis=1)
    return World(relevance, other, queries, np.concatenate([v, popular[:, None], spare], axis=1), K, K2)


def lists(pair: Pair, query: NDArray[np.integer], K2: int, K: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """One shown list for each query asked for.  Shapes: query [n] -> [n, K]."""
    D = pair[0].shape[1]
    step = max(1, CELLS // D)
    shown = []
    for first in range(0, len(query), step):
        q = query[first : first + step]
        row = np.arange(len(q))[:, None]
        s, r = (scores[q] - np.log(rng.exponential(size=(len(q), D))) for scores in pair)
        candidates = np.argpartition(-s, K2 - 1, axis=1)[:, :K2] if K2 < D else np.tile(np.arange(D), (len(q), 1))
        r = r[row, candidates]
        best = np.argpartition(-r, K - 1, axis=1)[:, :K] if K < K2 else np.tile(np.arange(K2), (len(q), 1))
        best = np.take_along_axis(best, np.argsort(-np.take_along_axis(r, best, 1), axis=1), 1)
        shown.append(np.take_along_axis(candidates, best, 1))
    return np.concatenate(shown)


def log(of: World, N: int, seed: int) -> pl.DataFrame:
    """N impressions of production for queries drawn at random."""
    rng = np.random.default_rng([seed, 3])
    R = of.relevance
    query = rng.integers(len(R), size=N)
    items = lists((of.live, of.live), query, of.K2, of.K, rng)
    clicks = (rng.random(items.shape) < of.theta * R[query[:, None], items]).astype(np.uint8)
    columns = {"items": items, "clicks": clicks}
    return pl.DataFrame({"query_id": query} | {name: list_column(x) for name, x in columns.items()})


def list_column(x: NDArray[np.integer]) -> pl.Series:
    """Rows of a matrix as lists."""
    return pl.Series(x, dtype=pl.Array(pl.Int64 if x.dtype == np.int64 else pl.UInt8, x.shape[1])).arr.to_list()


def value(pair: Pair, of: World, *, draws: int, seed: int = 0) -> Floats:
    """The true value of each query: sum_k theta_k R over many lists; the same noise for every pair.  Shapes: -> [Q]."""
    rng = np.random.default_rng([seed, 4])
    query = np.repeat(np.arange(len(of.relevance)), draws)
    items = lists(pair, query, of.K2, of.K, rng)
    found: Floats = (of.theta * of.relevance[query[:, None], items]).sum(1).reshape(-1, draws).mean(1)
    return found
