"""Whom a pair helps: its value against another side's, by how often a query came.

A pair that knows much of frequent queries may harm those that came once or twice, and the mean over all impressions hides it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank.offpolicy.estimate import Estimate

Floats = NDArray[np.float64]
GROUPS = ((1, 2), (3, 9), (10, None))  # impressions of a query in the whole log, from and to
Z95 = 1.96


@dataclass(frozen=True)
class FrequencyGroup:
    """Queries that came `least` to `most` times: both sides in clicks per impression, their difference with a 95% interval.

    `queries` and `impressions` are those of the part that values it. An interval from fewer than 30 queries is too narrow.
    """

    least: int
    most: int | None
    queries: int
    impressions: float
    new: float
    old: float
    difference: float
    interval: tuple[float, float]


def by_frequency(new: Estimate, old: Estimate, times: Floats) -> tuple[FrequencyGroup, ...]:
    """The groups that have queries: (sum new - sum old) / sum n, queries independent (delta method).

    Shapes: estimates [Q], both per impression of the same part; times [Q], impressions of each query in the whole log.
    """
    found = []
    for least, most in GROUPS:
        inside = (times >= least) & (times <= (np.inf if most is None else most)) & (old.denominator > 0)
        n = old.denominator[inside]
        if not n.sum() > 0:
            continue
        sides = [Estimate(x.numerator[inside], n) for x in (new, old)]
        gap = Estimate(sides[0].numerator - sides[1].numerator, n)
        found.append(
            FrequencyGroup(
                least, most, len(n), float(n.sum()), sides[0].value, sides[1].value, gap.value, gap.interval(Z95)
            )
        )
    return tuple(found)
