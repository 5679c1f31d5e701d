"""How sure an estimate is: queries are taken as a sample, and the bootstrap draws others like it.

Where queries are few, one constant query above all, they are no sample: other impressions of the same queries are drawn.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tandemrank.logs.feedback import Feedback
from tandemrank.offpolicy.estimate import Estimate, Floats

RESAMPLED = 2**22  # queries drawn at once by the bootstrap: 32 MB
FEW_QUERIES = 30  # fewer are no sample of others


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


def impression_noise(
    weights: Sequence[Floats], log: Feedback, *, most: float, replicates: int = 1000, seed: int = 0
) -> Floats:
    """What values  sum w c / N  would differ by if other impressions of the same queries had come: normal, with

        Cov(c_r, c_s) = [r = s] v_r - c_r c_s / n_q,     v_r = c_r + clicks on others beside them

    of the clicks on two rows of a query. Exact where a list gets one click at most; else the variance of a value is at most
    this (Cauchy and Schwarz), and for the sum of all clicks it is this. `most` clicks of an impression. All weights see the
    same draws.  Shapes: m weights of [P] -> [replicates, m].
    """
    v = np.minimum(np.inf if log.others is None else log.clicks + log.others, most * log.clicks)
    rows = np.flatnonzero(v > 0)
    query, root, c = log.query[rows], np.sqrt(v[rows]), log.clicks[rows]
    u = c / (root * np.sqrt(log.impressions[query]))
    length = np.bincount(query, u * u, log.Q)  # of u, squared, of each query: clicks per impression at most
    pulled = np.divide(1 - np.sqrt(1 - np.minimum(length, 1.0)), length, out=np.zeros(log.Q), where=length > 0)
    columns = np.stack([w[rows] for w in weights], axis=1) * root[:, None] / max(log.N, 1.0)
    rng, noise = np.random.default_rng(seed), np.empty((replicates, len(weights)))
    first = np.flatnonzero(np.diff(query, prepend=-1))
    for replicate in range(replicates):
        z = rng.standard_normal(len(rows))
        along = pulled[query[first]] * np.add.reduceat(u * z, first) if len(first) else np.zeros(0)
        z -= u * np.repeat(along, np.diff(np.append(first, len(rows))))
        noise[replicate] = z @ columns
    return noise


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
