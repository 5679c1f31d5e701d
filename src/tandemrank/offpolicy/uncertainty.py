"""How sure an estimate is: queries are taken as a sample, and the bootstrap draws others like it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tandemrank.offpolicy.estimate import Estimate, Floats

RESAMPLED = 2**22  # queries drawn at once by the bootstrap: 32 MB


def bootstrap(
    estimates: Sequence[Estimate], logged: NDArray[np.bool_], *, replicates: int = 1000, seed: int = 0
) -> Floats:
    """The values that other samples of queries would have given: logged queries drawn with replacement, whole.

    The draws depend on the seed and on the number of logged queries alone, so all estimates of one log see the same ones and
    their differences are paired.  Shapes: m estimates of [Q], logged [Q] -> [replicates, m], NaN where a draw says nothing.
    """
    columns = np.stack([x[logged] for part in estimates for x in (part.numerator, part.denominator)], axis=1)
    n, rng = len(columns), np.random.default_rng(seed)
    sums = np.empty((replicates, columns.shape[1]))
    step = max(1, RESAMPLED // max(n, 1))
    for first in range(0, replicates, step):
        rows = min(step, replicates - first)
        drawn = rng.integers(n, size=(rows, n)) + np.arange(rows)[:, None] * n
        times = np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)
        sums[first : first + rows] = times @ columns
    top, bottom = sums[:, ::2], sums[:, 1::2]
    values: Floats = np.divide(top, bottom, out=np.full_like(top, np.nan), where=bottom > 0)
    return values


def percentile_interval(draws: Floats, level: float) -> tuple[float, float]:
    """The middle `level` of the draws that say something; NaN if none does.  Shapes: draws [replicates]."""
    known = draws[~np.isnan(draws)]
    if not len(known):
        return float("nan"), float("nan")
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def hull(draws: Sequence[Floats], level: float) -> tuple[float, float]:
    """From the lowest to the highest end of several answers' percentile intervals.  Shapes: draws [replicates] each."""
    ends = np.array([percentile_interval(some, level) for some in draws])
    return float(ends[:, 0].min()), float(ends[:, 1].max())


def share_of_wins(draws: Floats) -> float:
    """The share above 0 of the draws of a difference that say something; NaN if none does.  Shapes: draws [replicates]."""
    known = draws[~np.isnan(draws)]
    return float((known > 0).mean()) if len(known) else float("nan")
