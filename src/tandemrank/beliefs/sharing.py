"""The fit on a Ray cluster: every node has some queries of the log, and all of them make up a group (`_base.cluster`)."""

from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from tandemrank._base import cluster
from tandemrank._base.cluster import ALONE, Group
from tandemrank.beliefs.belief import Beliefs, Chosen, merged
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.features import Features, KnownFeatures
from tandemrank.beliefs.fitting import fit
from tandemrank.beliefs.space import Vectors

Part = tuple[Counts, KnownFeatures, Vectors | None]


def fit_on_ray(
    counts: Counts,
    features: Features | None = None,
    *,
    production: Vectors | None = None,
    model: str | nn.Module | None = None,
    seed: int = 0,
    chosen: Chosen | None = None,
) -> Beliefs:
    """`fitting.fit`, by all nodes of a cluster.  Shapes: production [Q, F], [D, F]."""
    known = (features or Features()).known(counts.Q, counts.D)
    bounds = shares(counts, len(cluster.nodes(cluster.connect())))
    parts = [
        (
            counts.of_queries(first, stop),
            known.of_queries(first, stop),
            None if production is None else replace(production, queries=production.queries[first:stop]),
        )
        for first, stop in pairwise(bounds)
    ]
    return merged(cluster.together(fit_part, parts, model, seed, chosen))


def fit_part(
    group: Group, part: Part, model: str | nn.Module | None, seed: int, chosen: Chosen | None = None
) -> Beliefs:
    """Our queries' part of the beliefs."""
    counts, known, production = part
    # What comes from another process may not be written to, and is another type to compiled code.
    values: dict[str, Any] = {f.name: getattr(counts, f.name) for f in fields(counts)}
    columns: dict[str, Any] = {name: x.copy() for name, x in values.items() if isinstance(x, np.ndarray)}
    own = replace(counts, **columns, group=group)
    found = fit(own, known, production=production, model=model, seed=seed, chosen=chosen)
    return replace(found, counts=replace(found.counts, group=ALONE))


def shares(counts: Counts, n: int) -> NDArray[np.int64]:
    """Where the queries of n parts begin, each with about as many pairs; at least one query with a log in each.

    Shapes: -> [parts + 1].
    """
    rows = counts.rows
    n, pairs = max(1, min(n, len(rows))), counts.first[rows + 1]
    bounds, taken = [0], 0
    for k in range(1, n):
        wanted = int(np.searchsorted(pairs, k * len(counts.query) / n)) + 1
        taken = min(max(wanted, taken + 1), len(rows) - (n - k))
        bounds.append(int(rows[taken - 1]) + 1)
    return np.array([*bounds, counts.Q], np.int64)
