"""A small world with features, for the models of f."""

import numpy as np
import polars as pl

from tandemrank.beliefs.choice import Choice
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.features import Clicks, Encoded, Features, PairNumbers, PairTable, side_of
from tandemrank.beliefs.grades import Grades
from tandemrank.beliefs.model_fit import KNOWN, Lesson

Q, D = 30, 20
TABLES = {
    "query": pl.DataFrame({"age": np.linspace(20, 60, Q), "city": ["a", "b", "c"] * (Q // 3)}),
    "item": pl.DataFrame({"price": [None, *np.linspace(1, 5, D - 1)], "kind": ["x", "y"] * (D // 2)}),
}


def counts_of(seed: int = 0, n: int = 3000) -> Counts:
    """A log in which the young click cheap items, the old expensive ones; the last query and item were never shown."""
    rng = np.random.default_rng(seed)
    query, item = rng.integers(Q - 1, size=n), rng.integers(D - 1, size=n)
    taste = (query / Q - 0.5) * (item / D - 0.5)
    clicks = (rng.random(n) < 1 / (1 + np.exp(1 - 25 * taste))).astype(np.float64)
    impressions = np.bincount(query, minlength=Q).astype(np.float64)
    return Counts.of_rows(query, item, np.ones(n), np.ones(n), clicks, impressions=impressions, D=D)


def pair_table() -> PairTable:
    """A number for half of the pairs of the first query."""
    item = np.arange(0, D, 2)
    return PairTable(np.zeros(len(item), np.int64), item, item[:, None].astype(np.float64), ("distance",))


def lesson_of(counts: Counts, features: Features, grades: Grades) -> Lesson:
    """The pairs of a log, with nothing known of s but a level."""
    a, b = Choice.of(counts).opinion
    sides: list[Encoded] = list(features.encoded(Q, D))
    query, item = (
        side_of(side, Clicks.of(side, name, counts), vectors, np.bincount(getattr(counts, name), minlength=n) > 0)
        for side, name, vectors, n in zip(sides, ("query", "item"), (a, b), (Q, D), strict=True)
    )
    n = len(counts.query)
    return Lesson(
        grades=grades,
        query=query,
        item=item,
        pairs=PairNumbers.of(features.pair, D),
        q=counts.query,
        d=counts.item,
        s=np.full(n, -1.0),
        L=counts.likelihood(grades.R)[0],
        known_q=query.rows.numpy()[counts.query, : query.known],
        known_d=item.rows.numpy()[counts.item, : item.known],
        group=np.full(n, KNOWN, np.int8),
    )
