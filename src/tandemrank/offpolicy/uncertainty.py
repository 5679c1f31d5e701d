"""How sure an estimate is: the bootstrap over queries, and a lower bound for any number of queries."""

from collections.abc import Sequence

import numpy as np

from tandemrank.errors import InputError
from tandemrank.offpolicy.estimators import Estimate, Floats

TRUNCATIONS = 2.0 ** np.arange(-4, 8)  # of a query's term in the lower bound, in multiples of its scale
RESAMPLED = 2**22  # queries drawn at once by the bootstrap: 32 MB


def bootstrap(estimates: Sequence[Estimate], *, replicates: int = 1000, seed: int = 0) -> Floats:
    """The values that other samples of queries would have given: queries drawn with replacement, whole.

    All estimates, of one log, see the same draws: their differences are paired. Only queries that were logged are drawn.
    Shapes: m estimates of [Q] -> [replicates, m], NaN where a draw says nothing.
    """
    logged = np.any([part.denominator > 0 for part in estimates], axis=0)
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


def lower_bound(estimate: Estimate, scale: float, *, level: float = 0.95) -> float:
    """A number that the expectation of IPS (clipped or not) exceeds with the given probability, however few the queries.

    Empirical Bernstein bound (Maurer and Pontil 2009, theorem 4) on the mean of the terms x_q = min(numerator_q, b) / b:
        mean(x) - sqrt(2 var(x) log(2 J / delta) / n) - 7 log(2 J / delta) / (3 (n - 1)),    delta = 1 - level
    Cutting a term that is not negative at b only lowers its mean, so no largest weight need be known; the best of J
    fixed cuts b, multiples of `scale` clicks an impression, is taken, at the price of the J in the logarithm.
    Assumes independent queries, given how often each came, and terms that are not negative: IPS or clipped, no other.
    """
    logged = estimate.denominator > 0
    numerator, n, N = estimate.numerator[logged], int(logged.sum()), float(estimate.denominator.sum())
    if n < 2:
        return 0.0
    if (numerator < 0).any():
        raise InputError("the lower bound needs terms that are not negative; give it the IPS or the clipped estimate.")
    log_term = np.log(2 * len(TRUNCATIONS) / (1 - level))
    bounds = []
    for b in scale * N / n * TRUNCATIONS:
        x = np.minimum(numerator, b) / b
        below = x.mean() - np.sqrt(2 * x.var(ddof=1) * log_term / n) - 7 * log_term / (3 * (n - 1))
        bounds.append(b * n / N * below)
    return max(0.0, float(max(bounds)))
