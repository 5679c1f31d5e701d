"""The item-rate reward model: click rates by item, by query and by pair, each shrunk to the one before."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from tandemrank.logs.feedback import Feedback, exposure
from tandemrank.offpolicy.estimators import Floats, sums_by


@dataclass(frozen=True)
class Reward:
    """r_hat(q, d) = min(1, rate f_d f_q f_qd): the click rate of what is examined, by item, by query, and by pair.

    Each factor is (c + s) / (x + s) with c the clicks and x those expected without it (Gamma prior with mean 1, empirical
    Bayes: s from the spread of c around x), so it is 1 where there is no data, and of items the log never showed.
    Shapes: item [D], with the rate; query [Q]; pair sparse [Q, D], the factor - 1 of logged pairs.
    """

    rate: float
    item: Floats
    query: Floats
    pair: csr_matrix

    def at(self, q: NDArray[np.integer], d: NDArray[np.integer]) -> Floats:
        """r_hat of pairs.  Shapes: q, d [n] -> [n]."""
        pair = np.asarray(self.pair[q, d], np.float64).ravel() if len(q) else np.zeros(0)
        r_hat: Floats = np.minimum(self.item[d] * self.query[q] * (1 + pair), 1.0)
        return r_hat

    def matrix(self, q: NDArray[np.integer]) -> Floats:
        """r_hat of every item for some queries; the last column is for items that the log does not know.

        Shapes: q [B] -> [B, D + 1].
        """
        plain = np.append(self.item, self.rate) * self.query[q, None]
        plain[:, :-1] *= 1 + self.pair[q].toarray()
        return np.minimum(plain, 1.0)


def reward_model(feedback: Feedback, theta: Floats) -> Reward:
    """The reward model of a log. Cross-fit it: an estimator must not see a model of its own impressions.

    Shapes: theta [K].
    """
    seen, clicks, Q, D = exposure(feedback, theta), feedback.clicks, feedback.Q, feedback.D
    query, item = feedback.query, feedback.item
    rate = float(clicks.sum() / seen.sum()) if seen.sum() > 0 else 0.0
    by_item = rate * _factor(sums_by(item, clicks, D), rate * sums_by(item, seen, D))
    by_query = _factor(sums_by(query, clicks, Q), sums_by(query, seen * by_item[item], Q))
    key, pair = np.unique(query.astype(np.int64) * D + item, return_inverse=True)
    expected = sums_by(pair, seen * by_item[item] * by_query[query], len(key))
    by_pair = _factor(sums_by(pair, clicks, len(key)), expected) - 1
    return Reward(rate, by_item, by_query, csr_matrix((by_pair, (key // D, key % D)), shape=(Q, D)))


def _factor(clicks: Floats, expected: Floats) -> Floats:
    """(c + s) / (x + s), where 1/s is the variance of the factor beyond that of Poisson counts.  Shapes: [n], [n] -> [n]."""
    excess, spread = float((np.square(clicks - expected) - expected).sum()), float(np.square(expected).sum())
    if excess <= 0 or spread <= 0:
        return np.ones(len(clicks))
    s = spread / excess
    return (clicks + s) / (expected + s)
