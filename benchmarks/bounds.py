"""How often a lower bound is above the truth, and how close it comes: `bound_worlds` simulates logs, the package bounds them.

    python benchmarks/bounds.py [--simulations 1000] [--seed 0] [--json]

1,000 logs of each of six distributions, for the bound over queries and for the bound over impressions.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaincinv

from _common import not_negative, options, positive, report
from bound_worlds import BY_QUERY, MEAN, QUERIES, SD, USERS, K, impressions
from tandemrank.offpolicy import bounds
from tandemrank.offpolicy.bounds import ImpressionSums, Terms

LEVEL, SIMULATIONS = 0.95, 1000


@dataclass(frozen=True)
class Coverage:
    """One bound on one distribution: the share of the simulations in which it is not above the truth, and its mean."""

    distribution: str
    over: str
    bound: str
    coverage: float
    mean_bound: float
    truth: float


@dataclass(frozen=True)
class Example:
    """A bound on two fixed samples of 360 terms: light (mean .97, sd .6) and rare clicks (60 terms of 5.82)."""

    bound: str
    light: float
    rare_clicks: float


@dataclass(frozen=True)
class Measured:
    """What is printed. `example`: the bound that `estimate` would print on the light example, and its name."""

    level: float
    simulations: int
    example: float
    example_rare_clicks: float
    example_bound: str
    examples: list[Example]
    rows: list[Coverage]


def coverage(name: str, *, simulations: int = SIMULATIONS, level: float = LEVEL, seed: int = 0) -> Coverage:
    """The bound over queries on one distribution."""
    rng = np.random.default_rng([seed, list(BY_QUERY).index(name)])
    worlds = [BY_QUERY[name](rng) for _ in range(simulations)]
    truth = np.array([world.truth for world in worlds])
    values = np.array([bounds.betting(Terms(world.terms, world.sizes), level) for world in worlds])
    held = float((values <= truth).mean())
    return Coverage(
        distribution=name,
        over="queries",
        bound="betting",
        coverage=held,
        mean_bound=float(values.mean()),
        truth=float(truth.mean()),
    )


def impression_coverage(name: str, *, simulations: int = SIMULATIONS, level: float = LEVEL, seed: int = 0) -> Coverage:
    """The bound over impressions on one distribution: of the difference to production on the log's own impressions."""
    rng = np.random.default_rng([seed, 100 + list(USERS).index(name)])
    logs = impressions(rng, USERS[name], simulations)
    sums = [
        ImpressionSums(total, squares, logs.N, float(K))
        for total, squares in zip(logs.total, logs.squares, strict=True)
    ]
    values = np.array([one.lower_bound(level) for one in sums])
    return Coverage(
        distribution=name,
        over="impressions",
        bound="betting",
        coverage=float((values <= logs.truth).mean()),
        mean_bound=float(values.mean()),
        truth=float(logs.truth.mean()),
    )


def example(level: float = LEVEL) -> list[Example]:
    """The bound on both examples: fixed samples, so that nothing but the bound differs."""
    light, rare = (bounds.betting(terms, level) for terms in _example_terms())
    return [Example("betting", light, rare)]


def _example_terms() -> tuple[Terms, Terms]:
    x = gammaincinv((MEAN / SD) ** 2, (np.arange(QUERIES) + 0.5) / QUERIES)
    x = np.maximum(MEAN + SD * (x - x.mean()) / x.std(ddof=1), 0.0)
    rare = np.where(np.arange(QUERIES) % 6 == 0, 6 * MEAN, 0.0)
    return Terms(x, np.ones(QUERIES)), Terms(rare, np.ones(QUERIES))


def measure(*, simulations: int = SIMULATIONS, level: float = LEVEL, seed: int = 0) -> Measured:
    """Both bounds on all distributions, and the examples."""
    examples = example(level)
    rows = [coverage(name, simulations=simulations, level=level, seed=seed) for name in BY_QUERY]
    rows += [impression_coverage(name, simulations=simulations, level=level, seed=seed) for name in USERS]
    return Measured(
        level=level,
        simulations=simulations,
        example=examples[0].light,
        example_rare_clicks=examples[0].rare_clicks,
        example_bound=examples[0].bound,
        examples=examples,
        rows=rows,
    )


def main() -> None:
    """Measures and prints."""
    found = options(__doc__)
    found.add_argument("--simulations", type=positive, default=SIMULATIONS, help="simulated logs of each distribution")
    found.add_argument("--seed", type=not_negative, default=0)
    asked = found.parse_args()
    report(lambda _: measure(simulations=asked.simulations, seed=asked.seed), "simulating logs", as_json=asked.json)


if __name__ == "__main__":
    main()
