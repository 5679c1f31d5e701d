"""A logger that adapts while tastes move, in plain NumPy that shares no code with the package.

Relevance of an item rises and falls with the season, each item with a phase of its own. Every week the logger reweights its
items by the clicks of the last weeks, so that it shows an item most while it is liked. Lists are Plackett-Luce, and every
row has its true propensity, E[theta_k] of its item in its week, by the sum over all lists.
"""

from dataclasses import dataclass
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Season:
    """The log, in the order of time, and the truth of every impression.

    Shapes: query, week [n]; items, clicks, propensity [n, K]; R [weeks, Q, D]; rho [weeks, Q, D], the logger's; theta [K].
    """

    query: Whole
    week: Whole
    items: Whole
    clicks: Whole
    propensity: Floats
    R: Floats
    rho: Floats
    theta: Floats

    def value(self, scores: Floats) -> float:
        """What Plackett-Luce with these scores would have got of these very impressions.  Shapes: scores [Q, D]."""
        of_week = np.einsum("qd,wqd->wq", exposure(scores, self.theta)[0], self.R)
        return float(of_week[self.week, self.query].mean())

    def production(self) -> float:
        """What the logger's own lists are expected to get."""
        return float((self.rho * self.R).sum(2)[self.week, self.query].mean())


def exposure(scores: Floats, theta: Floats) -> tuple[Floats, Whole, Floats]:
    """E[theta_k] of every item; all lists, and the chance of each.  Shapes: scores [Q, D] -> [Q, D], [lists, K], [Q, lists]."""
    D = scores.shape[1]
    lists, e = np.array(list(permutations(range(D), len(theta)))), np.exp(scores)
    left, chance = np.tile(e.sum(1)[:, None], len(lists)), np.ones((len(e), len(lists)))
    rho = np.zeros_like(e)
    for k in range(len(theta)):
        chance, left = chance * e[:, lists[:, k]] / left, left - e[:, lists[:, k]]
    for k, theta_k in enumerate(theta):
        np.add.at(rho.T, lists[:, k], theta_k * chance.T)
    return rho, lists, chance


def season(
    world: int, draws: int, *, impressions: int = 20_000, queries: int = 30, items: int = 6, weeks: int = 20, K: int = 1,
    drift: float = 1.0, sharpness: float = 6.0,
) -> Season:  # fmt: skip
    """A log over a year, by the seeds of its tastes and of its draws.

    `drift`: how far tastes move, in log-odds; `sharpness`: how much the logger follows the clicks.
    """
    of_world, rng = np.random.default_rng(world), np.random.default_rng([world, draws])
    theta = 1 / np.arange(1, K + 1)
    level, phase = of_world.normal(-0.8, 0.5, (queries, items)), of_world.uniform(0, 2 * np.pi, (queries, items))
    t = 2 * np.pi * np.arange(weeks) / weeks
    R = 1 / (1 + np.exp(-level - drift * np.sin(t[:, None, None] + phase)))
    each = impressions // weeks
    clicked, seen = np.full((queries, items), 0.3), np.ones((queries, items))
    parts, rhos = [], []
    for week in range(weeks):
        scores = sharpness * (clicked / seen - 0.3)
        rho, lists, chance = exposure(scores, theta)
        rhos.append(rho)
        q = rng.integers(0, queries, each)
        shown = lists[np.minimum((rng.random((each, 1)) > chance.cumsum(1)[q]).sum(1), len(lists) - 1)]
        click = (rng.random(shown.shape) < theta * R[week][q[:, None], shown]).astype(np.int64)
        parts.append((q, np.full(each, week), shown, click, rho[q[:, None], shown]))
        clicked, seen = 0.5 * clicked + 0.15, 0.5 * seen + 0.5  # half of what was known is forgotten every week
        np.add.at(clicked, (q[:, None], shown), click)
        np.add.at(seen, (q[:, None], shown), np.broadcast_to(theta, shown.shape))
    query, when, shown, click, propensity = (np.concatenate(x) for x in zip(*parts, strict=True))
    return Season(query, when, shown, click, propensity, R, np.stack(rhos), theta)


def rates(log: Season) -> Floats:
    """Clicks per examination of every pair, whenever it was: what a team that forgets the season would rank by."""
    clicks, seen = np.full(log.R.shape[1:], 0.3), np.ones(log.R.shape[1:])
    np.add.at(clicks, (log.query[:, None], log.items), log.clicks)
    np.add.at(seen, (log.query[:, None], log.items), np.broadcast_to(log.theta, log.items.shape))
    return clicks / seen
