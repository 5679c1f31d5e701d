"""A small world in plain NumPy that shares no code with the package: a two-stage logger, its users, and the truth.

Queries come by Zipf's law. The generator draws K2 candidates out of all items, the ranker K of them in order, both
Plackett-Luce, here by Gumbel noise and a sort; users look at rank k with chance theta_k, a curve of the world's own, and click
what is relevant to them. The truth of any pair of scores is found by drawing its lists and looking at the relevances.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
ROWS = 4096  # lists drawn at once


@dataclass(frozen=True)
class World:
    """Relevance, the logger's scores, its two numbers and the users.  Shapes: R, s_c, s_r [Q, D]; p [Q]; theta [K]."""

    R: Floats
    s_c: Floats
    s_r: Floats
    p: Floats
    theta: Floats
    K2: int


@dataclass(frozen=True)
class Log:
    """Impressions, and the logger's true exposure of what was shown, if it was asked for.  Shapes: query [n]; others [n, K]."""

    query: Whole
    items: Whole
    clicks: Whole


def world(
    seed: int, *, queries: int, items: int = 400, K: int = 10, K2: int = 40, rank: int = 6, zipf: float = 0.8,
    sharpness: float = 1.0,
) -> World:  # fmt: skip
    """Tastes of low rank and popularity make relevance; the generator knows them coarsely, the ranker better.

    `sharpness` multiplies both stages' scores: a large one makes a logger that always shows the same.
    """
    rng = np.random.default_rng(seed)
    popular = rng.normal(size=items)
    users, tastes = rng.normal(size=(queries, rank)), rng.normal(size=(items, rank)) / np.sqrt(rank)
    taste = users @ tastes.T
    R = 1 / (1 + np.exp(3.5 - 0.8 * popular - 1.5 * taste - 0.5 * rng.normal(size=(queries, items))))
    known = users + 0.7 * rng.normal(size=users.shape)
    s_c = sharpness * (0.8 * popular + known[:, :3] @ tastes[:, :3].T)
    s_r = sharpness * (0.3 * popular + 1.5 * known @ tastes.T)
    p = 1 / np.arange(1, queries + 1) ** zipf
    theta = (1 / np.arange(1, K + 1)) ** 0.7
    return World(R, s_c, s_r, p / p.sum(), theta, K2)


def draw(s_c: Floats, s_r: Floats, rows: Whole, K2: int, K: int, rng: np.random.Generator) -> Whole:
    """Lists of a pair: Gumbel noise and a sort for each stage.  Shapes: s_c, s_r [B, D]; rows [n] -> [n, K]."""
    lists = [np.zeros((0, K), np.int64)]
    for first in range(0, len(rows), ROWS):
        part = rows[first : first + ROWS]
        candidates = _best(s_c[part] + rng.gumbel(size=(len(part), s_c.shape[1])), K2)
        second = np.take_along_axis(s_r[part], candidates, 1) + rng.gumbel(size=candidates.shape)
        top = _best(second, K)
        order = np.argsort(-np.take_along_axis(second, top, 1), axis=1)
        lists.append(np.take_along_axis(candidates, np.take_along_axis(top, order, 1), 1))
    return np.concatenate(lists)


def _best(scores: Floats, n: int) -> Whole:
    """The places of the n best of every row, in any order.  Shapes: [B, D] -> [B, n]."""
    return np.argpartition(-scores, min(n, scores.shape[1] - 1), axis=1)[:, :n]


def impressions(w: World, n: int, seed: int) -> Log:
    """A log of n impressions."""
    rng = np.random.default_rng(seed)
    query = rng.choice(len(w.p), size=n, p=w.p)
    items = draw(w.s_c, w.s_r, query, w.K2, len(w.theta), rng)
    chance = w.theta[: items.shape[1]] * w.R[query[:, None], items]
    return Log(query, items, (rng.random(items.shape) < chance).astype(np.int64))


def value_by_query(
    w: World, q: Whole, s_c: Floats, s_r: Floats, K2: int, K: int, *, samples: float | Floats, seed: int
) -> Floats:
    """Expected clicks per impression of a pair for each query, by drawn lists.

    `samples` lists of each, or of each query its own number, rounded up.  Shapes: q [B]; s_c, s_r [B, D] -> [B].
    """
    rng = np.random.default_rng(seed)
    each = np.maximum(np.ceil(np.broadcast_to(samples, len(q))), 1).astype(np.int64)
    rows = np.repeat(np.arange(len(q)), each)
    lists = draw(s_c, s_r, rows, K2, K, rng)
    gained = (w.theta[:K] * w.R[q[rows, None], lists]).sum(1)
    return np.bincount(rows, gained, len(q)) / each


def exposures(w: World, q: Whole, *, samples: int, seed: int) -> Floats:
    """The logger's true exposure of every item, by drawn lists.  Shapes: q [B] -> [B, D]."""
    D, rows = w.R.shape[1], np.repeat(np.arange(len(q)), samples)
    lists = draw(w.s_c[q], w.s_r[q], rows, w.K2, len(w.theta), np.random.default_rng(seed))
    theta = np.tile(w.theta, (len(rows), 1))
    return np.bincount((rows[:, None] * D + lists).ravel(), theta.ravel(), len(q) * D).reshape(len(q), D) / samples


def search_log(n: int, queries: int, items: int, seed: int, *, K: int = 10) -> Log:
    """A log of the size of a search engine's: every query has 60 items of its own, shown by Plackett-Luce; rare clicks."""
    rng = np.random.default_rng(seed)
    p = 1 / np.arange(1, queries + 1) ** 0.9
    query = rng.choice(queries, size=n, p=p / p.sum())
    popular = 1 / np.arange(1, items + 1) ** 0.5
    own = rng.choice(items, size=(queries, 60), p=popular / popular.sum())
    lists = []
    for first in range(0, n, ROWS):
        part = query[first : first + ROWS]
        noisy = 2.0 * np.linspace(1, -1, 60) + rng.gumbel(size=(len(part), 60))
        order = np.argsort(-noisy, axis=1)
        mine = np.take_along_axis(own[part], order, 1)
        twice = np.triu(mine[:, None, :] == mine[:, :, None], 1).any(1)  # an item that the query has already
        lists.append(np.take_along_axis(mine, np.argsort(twice, axis=1, kind="stable"), 1)[:, :K])
    shown = np.concatenate(lists)
    chance = (1 / np.arange(1, K + 1)) * 0.3 * rng.random(items)[shown]
    return Log(query, shown, (rng.random(shown.shape) < chance).astype(np.int64))
