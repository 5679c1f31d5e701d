"""Click noise of the bit: how often an examined item is clicked that is relevant, and one that is not.

Pairs that were shown once say only how often items are clicked; pairs that were shown again say how much a click promises the
next one, and that separates r1 and r0. Items are put into groups by how much they were examined; a share p_g of the pairs of a
group is relevant:

    likelihood = prod over pairs shown again [ p_g P(showings | r1) + (1 - p_g) P(showings | r0) ]
                 prod over groups [ Poisson of their clicks, at a rate between r0 and r1 ]

with p_g at its best for every (r1, r0), and Beta priors for r1 and r0 / r1 that decide where nothing was shown again.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.grades import Grades, sigmoid

Floats = NDArray[np.float64]

# Beta priors with modes .9 and .1, worth five examinations each: pseudo-counts of (1, 0).
RELEVANT, IRRELEVANT = (4.5, 0.5), (0.5, 4.5)
GROUPS = 20
PAIRS = 60_000  # pairs shown again that are enough
GROUP_PRIOR = 0.5, 0.1  # pairs that a mean of .1 counts for in p_g
STEPS = 15  # of p_g for each (r1, r0)
START = 0.9, 0.1


def fit_bit(counts: Counts) -> Grades:
    """The bit of a log, by the likelihood above; the modes of the priors where the log has no click."""
    clicks_d, seen_d = (counts.by_item(x) for x in (counts.C, counts.E))
    if not clicks_d.any():
        return Grades.bit(*START)
    order = np.argsort(seen_d, kind="stable")
    group = np.empty(counts.D, np.int64)
    share = np.cumsum(seen_d[order]) / max(float(seen_d.sum()), np.finfo(float).tiny)
    group[order] = np.minimum((share * GROUPS).astype(np.int64), GROUPS - 1)
    again = counts.only(counts.n >= 2)
    kept = np.zeros(len(again.item), np.bool_)
    kept[again.some(PAIRS)] = True
    some = again.only(kept).together()
    groups = np.stack([np.bincount(group, x, GROUPS) for x in (clicks_d, seen_d)]).astype(np.float64)

    def cost(x: Floats) -> float:
        return -_log_posterior(some, group[some.item], groups, *x)

    start = [np.log(9.0), np.log((1 / 9) / (8 / 9))]
    options = {"xatol": 0.01, "fatol": 0.01, "maxfev": 200}
    found = minimize(cost, start, method="Nelder-Mead", options=options).x
    r1 = float(sigmoid(np.array(found[0])))
    return Grades.bit(r1, r1 * float(sigmoid(np.array(found[1]))))


def _log_posterior(some: Counts, group: NDArray[np.int64], groups: Floats, x1: float, x0: float) -> float:
    """Of r1 = sigmoid(x1) and r0 = r1 sigmoid(x0), up to a constant.  Shapes: group [pairs]; groups [2, GROUPS]."""
    r1, u = (float(np.clip(sigmoid(np.array(x)), 1e-9, 1 - 1e-9)) for x in (x1, x0))
    r0 = r1 * u
    irrelevant, relevant = some.log_likelihood(np.array([r0, r1]))[:, some.kinds[0]]
    ratio = np.exp(np.clip(relevant - irrelevant, -60, 60))
    clicks, seen = groups
    rate = clicks / np.maximum(seen, np.finfo(float).tiny)
    p = np.clip((rate - r0) / (r1 - r0), 1e-3, 1 - 1e-3)
    pairs, (worth, mean) = np.bincount(group, minlength=GROUPS), GROUP_PRIOR
    for _ in range(STEPS):
        odds = (p / (1 - p))[group] * ratio
        p = np.clip((np.bincount(group, odds / (1 + odds), GROUPS) + worth * mean) / (pairs + worth), 1e-6, 1 - 1e-6)
    possible = np.clip(rate, r0, r1)
    found = float((irrelevant + np.log1p(p[group] * (ratio - 1))).sum())
    found += float((clicks * np.log(possible) - seen * possible).sum())
    (a, b), (c, d) = RELEVANT, IRRELEVANT
    return found + float(a * np.log(r1) + b * np.log1p(-r1) + c * np.log(u) + d * np.log1p(-u))
