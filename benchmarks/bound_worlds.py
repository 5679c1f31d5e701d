"""Simulated logs with a known truth, for bounds: plain NumPy that shares no code with what it checks, known by no import.

Terms of queries, six distributions:

    light         360 queries, gamma, mean .97, sd .6: the example
    heavy tail    500 queries, Pareto with a tail index of 2.2
    rare clicks   360 queries, one in six has a term of 5.82
    few queries   12 queries, exponential
    correlated    150 queries of 1 to 100 impressions; frequent ones are better, and a query's impressions click together
    misfit        100 queries, 8 documents; the propensities are not those that drew the log. What a bound alone can promise
                  is the expectation of IPS with these propensities; that it is not the value is for the balance to see

Impressions, the same six: lists of two out of six documents (Plackett-Luce), a new policy less production, 20 impressions of
a query. Correlated: a query has one mood for all of its impressions, and its users tire of clicking.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

MEAN, SD, QUERIES = 0.97, 0.6, 360  # of the example
D, K = 6, 2
THETA = np.array([1.0, 0.5])
LISTS = np.array([(a, b) for a in range(D) for b in range(D) if a != b])


@dataclass(frozen=True)
class ByQuery:
    """Terms of a log, query by query, and what a bound is about. `value` differs from `truth` where propensities are wrong.

    `balance`, `balance_error`: weighted exposure over what it should be, as the diagnostics see it.  Shapes: terms, sizes [Q].
    """

    terms: Floats
    sizes: Floats
    truth: float
    value: float
    balance: float = 1.0
    balance_error: float = 0.0


@dataclass(frozen=True)
class ByImpression:
    """Sums of several logs: of X_i, of m_i sum_d v(d)^2 c_i(d); `truth`: the mean of U_i over its impressions, N in each.

    Shapes: total, squares, truth [logs].
    """

    total: Floats
    squares: Floats
    truth: Floats
    N: int


def light(rng: np.random.Generator) -> ByQuery:
    return ByQuery(rng.gamma((MEAN / SD) ** 2, SD**2 / MEAN, QUERIES), np.ones(QUERIES), MEAN, MEAN)


def heavy_tail(rng: np.random.Generator) -> ByQuery:
    return ByQuery(rng.pareto(2.2, 500), np.ones(500), 1 / 1.2, 1 / 1.2)


def rare_clicks(rng: np.random.Generator) -> ByQuery:
    return ByQuery(np.where(rng.random(QUERIES) < 1 / 6, 6 * MEAN, 0.0), np.ones(QUERIES), MEAN, MEAN)


def few_queries(rng: np.random.Generator) -> ByQuery:
    return ByQuery(rng.exponential(1.0, 12), np.ones(12), 1.0, 1.0)


def correlated(rng: np.random.Generator) -> ByQuery:
    """In half of the queries all impressions click or none does; U_q grows with the impressions n_q, which are given."""
    n = np.minimum(1 + np.floor(rng.pareto(1.3, 150) * 4), 100.0)
    U = 0.2 + 0.6 * n / 100
    together = n * (rng.random(150) < U)
    clicks = np.where(rng.random(150) < 0.5, together, rng.binomial(n.astype(np.int64), U))
    truth = float((n * U).sum() / n.sum())
    return ByQuery(2.0 * clicks, n, 2 * truth, 2 * truth)


def misfit(rng: np.random.Generator) -> ByQuery:
    """Lists of one document: rho_0 = exp(s) normalised draws the log, exp(s / 2) normalised is taken for it."""
    Q, documents, n = 100, 8, 20
    s, R = rng.normal(0, 1.5, (Q, documents)), rng.uniform(0, 1, (Q, documents)) ** 2
    drawn, taken, new = (np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in (s, s / 2, s + 2 * R))
    shown = rng.multinomial(n, drawn)
    clicks = rng.binomial(shown, R)
    w = new / taken
    found = (w * shown).sum(1)
    balance = float(found.sum()) / (Q * n)
    error = float(np.sqrt(np.square(found - balance * n).sum())) / (Q * n)
    truth, value = (float((x * R).sum()) / Q for x in (w * drawn, new))
    return ByQuery((w * clicks).sum(1), np.full(Q, float(n)), truth, value, balance, error)


BY_QUERY: dict[str, Callable[[np.random.Generator], ByQuery]] = {
    "light": light,
    "heavy tail": heavy_tail,
    "rare clicks": rare_clicks,
    "few queries": few_queries,
    "correlated": correlated,
    "misfit": misfit,
}


def chances(s: Floats) -> Floats:
    """Of every list of two, by Plackett-Luce.  Shapes: s [Q, D] -> [Q, lists]."""
    p = np.exp(s) / np.exp(s).sum(1, keepdims=True)
    first, second = p[:, LISTS[:, 0]], p[:, LISTS[:, 1]]
    found: Floats = first * second / (1 - first)
    return found


def exposure(p: Floats) -> Floats:
    """E[theta_k] of every document.  Shapes: p [Q, lists] -> [Q, D]."""
    shown = np.zeros((len(LISTS), D))
    for k in range(K):
        shown[np.arange(len(LISTS)), LISTS[:, k]] += THETA[k]
    found: Floats = p @ shown
    return found


@dataclass(frozen=True)
class Users:
    """How a simulated log differs from the plain one: its queries and how often each comes, how steep the logger is, the
    scale of relevance; `moods`: one for all impressions of a query, and tiring; `taken`: the steepness that is taken for the
    logger's."""

    queries: int = 60
    times: int = 20
    steep: float = 0.5
    relevance: float = 0.8
    moods: bool = False
    taken: float | None = None


USERS = {
    "light": Users(),
    "heavy tail": Users(steep=2.5),
    "rare clicks": Users(relevance=0.02),
    "few queries": Users(queries=4, times=30),
    "correlated": Users(moods=True),
    "misfit": Users(steep=1.0, taken=0.5),
}


def impressions(rng: np.random.Generator, users: Users, logs: int) -> ByImpression:
    """Logs of production, drawn list by list; a new policy less production.  Shapes within: [logs * Q], one step in time."""
    rows = logs * users.queries
    liked, own = rng.normal(size=(2, rows, D))
    p = chances(users.steep * own)
    new, drawn = exposure(chances(liked)), exposure(p)
    taken = drawn if users.taken is None else exposure(chances(users.taken * own))
    v = new / taken - 1  # what a click on each document says of the difference
    mood = rng.choice([0.05, 1.0], rows) if users.moods else np.ones(rows)
    q, up_to, tired = np.arange(rows)[:, None], p.cumsum(1), np.ones(rows)
    total, squares, truth = np.zeros((3, rows))
    for _ in range(users.times):
        fresh = users.relevance * mood * tired
        shown = LISTS[np.minimum((rng.random((rows, 1)) > up_to).sum(1), len(LISTS) - 1)]
        R = fresh[:, None] / (1 + np.exp(-liked))
        clicks = rng.random(shown.shape) < THETA * R[q, shown]
        worth = v[q, shown] * clicks
        total += worth.sum(1)
        squares += clicks.sum(1) * np.square(worth).sum(1)
        truth += (drawn * v * R).sum(1)  # with right propensities: (new - drawn) R
        if users.moods:
            tired *= np.where(clicks.any(1), 0.8, 1.0)
    N = users.queries * users.times
    total, squares, truth = (x.reshape(logs, users.queries).sum(1) for x in (total, squares, truth))
    return ByImpression(total, squares, truth / N, N)
