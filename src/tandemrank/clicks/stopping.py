"""Readers who stop after a click: what they see of a list that the log does not have.

The log says how places are examined by rank and last click above, theta[k, j]. What that is in another list depends on how its
readers read. Two ways, R_k the relevance at rank k:

    down the list     who leaves an item out looks at none below; on after it with chance a_k, after a click on it with b_k
                      e_{k+1} = e_k (a_k (1 - R_k) + b_k R_k)
    here and there    every place is looked at or not, whatever was looked at above; a click alone changes the chances
                      e_k = sum_j p_k[j] theta[k, j],   p_{k+1}[j] = p_k[j] (1 - theta[k, j] R_k),   p_{k+1}[k] = e_k R_k

They differ in what it means that nothing above was clicked. Who reads down the list may have left, the more surely the more
relevant was what he passed by; who looks here and there has not. The clicks of the log tell which (`reads_down`).
"""

import numpy as np
from numpy.typing import NDArray

from tandemrank.logs.feedback import Feedback, by_rank
from tandemrank.logs.impressions import Impressions

Floats = NDArray[np.float64]
FEW = 2.0  # examinations elsewhere for which a pair's rate counts half
HIGHEST = 0.95  # of such a rate
DAMPED = 0.5  # the power of f that is compared: by rates that are noisy f differs more than it does in truth
ROUNDING = 1e-6  # of a sum of log likelihoods
TINY = np.finfo(float).tiny


def going_on(log: Feedback, theta: Floats) -> tuple[Floats, Floats]:
    """The chances to go on from every rank, without and with a click on it, by mean examinations e and click rates c of ranks:

        b_k = theta[k + 1, k],     e_{k+1} = a_k (e_k - c_k) + b_k c_k

    Shapes: theta [K, K] -> [K - 1], [K - 1].
    """
    K, seen = len(theta), by_rank(log, theta)
    shown, clicks = (np.bincount(log.rank, x, K)[:K] for x in (log.shown, log.clicks))
    rate = clicks / np.maximum(shown, 1.0)
    b = theta[np.arange(1, K), np.arange(1, K)]
    left = np.maximum(seen[:-1] - rate[:-1], TINY)
    a: Floats = np.clip((seen[1:] - b * rate[:-1]) / left, 0.0, 1.0)
    return a, b


def down_the_list(first: float, a: Floats, b: Floats, R: Floats) -> Floats:
    """The chance that each place of lists is examined, by readers down the list.  Shapes: a, b [K - 1]; R [n, K] -> [n, K]."""
    on = a * (1 - R[:, :-1]) + b * R[:, :-1]
    return np.asarray(first * np.cumprod(np.column_stack([np.ones(len(R)), on]), axis=1), np.float64)


def here_and_there(theta: Floats, R: Floats) -> Floats:
    """The same by readers who look here and there.  Shapes: theta [K, K]; R [n, K] -> [n, K]."""
    n, K = R.shape
    last, seen = np.zeros((n, K + 1)), np.empty((n, K))
    last[:, 0] = 1.0  # no click so far
    for k in range(K):
        looked = last[:, :K] * theta[k]
        seen[:, k] = looked.sum(1)
        last[:, :K] -= looked * R[:, k, None]
        last[:, k + 1] = seen[:, k] * R[:, k]
    return seen


def reads_down(log: Feedback, lists: Impressions, theta: Floats) -> bool:
    """Whether the clicks below no click are likelier of readers down the list than of readers here and there.

    For the first, a place below items that were not clicked is still examined with chance

        f_1 = theta[1, 0],   f_{k+1} = a_k f_k (1 - R_k) / (1 - f_k R_k),

    for the others with the same chance whatever stands above. At each rank both expect as many clicks as there are, so what is
    compared is sum c log f less that of the mean, weighted by R. R is the pair's rate in the other lists, and f is DAMPED.
    `log`: by last clicks.  Shapes: theta [K, K].
    """
    there = lists.items >= 0
    clicks = np.where(there, lists.clicks, 0).astype(np.float64)
    R = _rates(lists, clicks, there, theta)
    a, _ = going_on(log, theta)
    f, nothing, gain = np.full(len(R), theta[0, 0]), np.ones(len(R), np.bool_), 0.0
    for k in range(R.shape[1] - 1):
        nothing &= clicks[:, k] == 0
        f = np.maximum(a[k] * f * (1 - R[:, k]) / (1 - f * R[:, k]), TINY)
        below = nothing & there[:, k + 1]
        c, own, left = clicks[below, k + 1], R[below, k + 1], f[below] ** DAMPED
        if c.any():
            gain += float(c @ np.log(left) - c.sum() * np.log((left @ own) / own.sum()))
    return gain > -ROUNDING  # who cannot be told apart goes down


def _rates(lists: Impressions, clicks: Floats, there: NDArray[np.bool_], theta: Floats) -> Floats:
    """Clicks per examination of each shown pair in its other lists, near the mean where these are few.  Shapes: -> [n, K]."""
    n, K = clicks.shape
    last = np.zeros((n, K), np.int64)
    for k in range(1, K):
        last[:, k] = np.where(clicks[:, k - 1] > 0, k, last[:, k - 1])
    seen = theta[np.arange(K), last] * there
    wide = np.int64(lists.items.max(initial=0)) + 1
    pair = np.unique(lists.query[:, None] * wide + np.maximum(lists.items, 0), return_inverse=True)[1].reshape(n, K)
    C, E = (np.bincount(pair.ravel(), x.ravel())[pair] - x for x in (clicks, seen))
    mean = clicks.sum() / max(float(seen.sum()), TINY)
    rates: Floats = np.clip((C + FEW * mean) / (E + FEW), 0.0, HIGHEST)
    return rates
