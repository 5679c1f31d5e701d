"""How often a lower bound is above the truth, and how close it comes: simulations in plain NumPy, where the truth is known.

Six distributions of terms, each 1,000 times:

    light         360 queries, gamma, mean .97, sd .6: the example
    heavy tail    500 queries, Pareto with a tail index of 2.2
    rare clicks   360 queries, one in six has a term of 5.82
    few queries   12 queries, exponential
    correlated    150 queries of 1 to 100 impressions; frequent ones are better, and a query's impressions click together
    misfit        100 queries, 8 documents; the propensities are not those that drew the log. What a bound alone can promise
                  is the expectation of IPS with these propensities; that it is not the value is for the balance to see
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv

from tandemrank.offpolicy import bounds
from tandemrank.offpolicy.bounds import Name, Terms

Floats = NDArray[np.float64]

LEVEL, SIMULATIONS = 0.95, 1000
MEAN, SD, QUERIES = 0.97, 0.6, 360  # of the example


@dataclass(frozen=True)
class World:
    """A simulated log: its terms, and what a bound is about. `value` differs from `truth` where propensities are wrong.

    `balance`, `balance_error`: weighted exposure over what it should be, as the diagnostics see it.
    """

    terms: Terms
    truth: float
    value: float
    balance: float = 1.0
    balance_error: float = 0.0


@dataclass(frozen=True)
class Coverage:
    """One bound on one distribution: the share of the simulations in which it is not above the truth, and its mean."""

    distribution: str
    bound: Name
    coverage: float
    mean_bound: float
    truth: float


@dataclass(frozen=True)
class Example:
    """A bound on two fixed samples of 360 terms: light (mean .97, sd .6) and rare clicks (60 terms of 5.82)."""

    bound: Name
    light: float
    rare_clicks: float


@dataclass(frozen=True)
class Measured:
    """What `bench bounds` prints. `example`: the bound that `estimate` would print on the light example, and its name."""

    level: float
    simulations: int
    example: float
    example_rare_clicks: float
    example_bound: Name
    examples: list[Example]
    rows: list[Coverage]


def light(rng: np.random.Generator) -> World:
    x = rng.gamma((MEAN / SD) ** 2, SD**2 / MEAN, QUERIES)
    return World(Terms(x, np.ones(QUERIES)), MEAN, MEAN)


def heavy_tail(rng: np.random.Generator) -> World:
    x: Floats = rng.pareto(2.2, 500)
    return World(Terms(x, np.ones(500)), 1 / 1.2, 1 / 1.2)


def rare_clicks(rng: np.random.Generator) -> World:
    x = np.where(rng.random(QUERIES) < 1 / 6, 6 * MEAN, 0.0)
    return World(Terms(x, np.ones(QUERIES)), MEAN, MEAN)


def few_queries(rng: np.random.Generator) -> World:
    return World(Terms(rng.exponential(1.0, 12), np.ones(12)), 1.0, 1.0)


def correlated(rng: np.random.Generator) -> World:
    """In half of the queries all impressions click or none does; U_q grows with the impressions n_q, which are given."""
    n = np.minimum(1 + np.floor(rng.pareto(1.3, 150) * 4), 100.0)
    U = 0.2 + 0.6 * n / 100
    together = n * (rng.random(150) < U)
    clicks = np.where(rng.random(150) < 0.5, together, rng.binomial(n.astype(np.int64), U))
    truth = float((n * U).sum() / n.sum())
    return World(Terms(2.0 * clicks, n), 2 * truth, 2 * truth)


def misfit(rng: np.random.Generator) -> World:
    """Lists of one document: rho_0 = exp(s) normalised draws the log, exp(s / 2) normalised is taken for it."""
    Q, D, n = 100, 8, 20
    s, R = rng.normal(0, 1.5, (Q, D)), rng.uniform(0, 1, (Q, D)) ** 2
    drawn, taken, new = (np.exp(x) / np.exp(x).sum(1, keepdims=True) for x in (s, s / 2, s + 2 * R))
    shown = rng.multinomial(n, drawn)
    clicks = rng.binomial(shown, R)
    w = new / taken
    found = (w * shown).sum(1)
    balance = float(found.sum()) / (Q * n)
    error = float(np.sqrt(np.square(found - balance * n).sum())) / (Q * n)
    terms = Terms((w * clicks).sum(1), np.full(Q, float(n)))
    return World(terms, float((w * drawn * R).sum()) / Q, float((new * R).sum()) / Q, balance, error)


DISTRIBUTIONS: dict[str, Callable[[np.random.Generator], World]] = {
    "light": light,
    "heavy tail": heavy_tail,
    "rare clicks": rare_clicks,
    "few queries": few_queries,
    "correlated": correlated,
    "misfit": misfit,
}


def coverage(name: str, *, simulations: int = SIMULATIONS, level: float = LEVEL, seed: int = 0) -> list[Coverage]:
    """All bounds on one distribution."""
    rng = np.random.default_rng([seed, list(DISTRIBUTIONS).index(name)])
    worlds = [DISTRIBUTIONS[name](rng) for _ in range(simulations)]
    truth = np.array([world.truth for world in worlds])
    rows = []
    for bound, method in bounds.METHODS.items():
        values = np.array([method(world.terms, level).value for world in worlds])
        held = float((values <= truth).mean())
        rows.append(Coverage(name, bound, held, float(values.mean()), float(truth.mean())))
    return rows


def example(level: float = LEVEL) -> list[Example]:
    """Every bound on both examples: fixed samples, so that nothing but the bound differs."""
    samples = _example_terms()
    return [
        Example(name, *(method(terms, level).value for terms in samples)) for name, method in bounds.METHODS.items()
    ]


def _example_terms() -> tuple[Terms, Terms]:
    x = gammaincinv((MEAN / SD) ** 2, (np.arange(QUERIES) + 0.5) / QUERIES)
    x = np.maximum(MEAN + SD * (x - x.mean()) / x.std(ddof=1), 0.0)
    rare = np.where(np.arange(QUERIES) % 6 == 0, 6 * MEAN, 0.0)
    return Terms(x, np.ones(QUERIES)), Terms(rare, np.ones(QUERIES))


def measure(*, simulations: int = SIMULATIONS, level: float = LEVEL, seed: int = 0) -> Measured:
    """All bounds on all distributions, and the examples."""
    best, rare = (bounds.best(terms, level) for terms in _example_terms())
    rows = [row for name in DISTRIBUTIONS for row in coverage(name, simulations=simulations, level=level, seed=seed)]
    return Measured(level, simulations, best.value, rare.value, best.name, example(level), rows)
