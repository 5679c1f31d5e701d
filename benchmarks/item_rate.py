"""The item-rate reward model: click rates by item, by query and by pair, each shrunk to the one before."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from tandemrank._base.sparse import sums_by
from tandemrank.beliefs.model import Belief, Floats, RewardModel
from tandemrank.logs.feedback import Feedback, exposure


@dataclass(frozen=True)
class ItemRate(RewardModel):
    """r_hat(q, d) = min(1, rate f_d f_q f_qd): the click rate of what is examined, by item, by query, and by pair.

    Each factor is (c + s) / (x + s) with c the clicks and x those expected without it (Gamma prior with mean 1, empirical
    Bayes: s from the spread of c around x), so it is 1 where there is no data, and of items the log never showed. Its
    squared relative error is 1 / (c + s), that of the Gamma posterior; those of the factors add up, to first order.
    Shapes: item [D], with the rate; query [Q]; pair sparse [Q, D], the factor - 1 of logged pairs; their errors likewise, for
    pairs less that of one without a log, `pair_error`.
    """

    kind: ClassVar[str] = "item-rate"

    rate: float
    item: Floats
    query: Floats
    pair: csr_matrix
    item_errors: Floats
    query_errors: Floats
    pair_errors: csr_matrix
    pair_error: float

    def at(self, q: NDArray[np.integer], d: NDArray[np.integer]) -> Belief:
        """Mean and variance of r_hat of pairs.  Shapes: q, d [n] -> [n]."""
        pair, error = (
            np.asarray(x[q, d], np.float64).ravel() if len(q) else np.zeros(0) for x in (self.pair, self.pair_errors)
        )
        r_hat: Floats = np.minimum(self.item[d] * self.query[q] * (1 + pair), 1.0)
        errors = self.item_errors[d] + self.query_errors[q] + self.pair_error + error
        return Belief(r_hat, np.minimum(r_hat**2 * errors, r_hat * (1 - r_hat)))

    def matrix(self, q: NDArray[np.integer]) -> Floats:
        """r_hat of every item for some queries; the last column is for items that the log does not know.

        Shapes: q [B] -> [B, D + 1].
        """
        plain = np.append(self.item, self.rate) * self.query[q, None]
        plain[:, :-1] *= 1 + self.pair[q].toarray()
        return np.minimum(plain, 1.0)

    def constants(self) -> dict[str, Any]:
        """Its plain numbers."""
        return {"rate": self.rate, "pair_error": self.pair_error}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its arrays."""
        names = ("item", "query", "item_errors", "query_errors")
        pair = {"first": self.pair.indptr, "column": self.pair.indices, "pair": self.pair.data}
        return {name: getattr(self, name) for name in names} | pair | {"pair_errors": self.pair_errors.data}


def reward_model(feedback: Feedback, theta: Floats) -> ItemRate:
    """The reward model of a log. Cross-fit it: an estimator must not see a model of its own impressions.

    Shapes: theta [K].
    """
    seen, clicks, Q, D = exposure(feedback, theta), feedback.clicks, feedback.Q, feedback.D
    query, item = feedback.query, feedback.item
    rate = float(clicks.sum() / seen.sum()) if seen.sum() > 0 else 0.0
    by_item = _factor(sums_by(item, clicks, D), rate * sums_by(item, seen, D))
    expected = seen * (rate * by_item.value)[item]
    by_query = _factor(sums_by(query, clicks, Q), sums_by(query, expected, Q))
    key, pair = np.unique(query.astype(np.int64) * D + item, return_inverse=True)
    by_pair = _factor(sums_by(pair, clicks, len(key)), sums_by(pair, expected * by_query.value[query], len(key)))

    def sparse(values: Floats) -> csr_matrix:
        return csr_matrix((values, (key // D, key % D)), shape=(Q, D))

    return ItemRate(
        rate, rate * by_item.value, by_query.value, sparse(by_pair.value - 1), by_item.error, by_query.error,
        sparse(by_pair.error - by_pair.prior_error), by_pair.prior_error,
    )  # fmt: skip


class _Factor(NamedTuple):
    """Factors, their squared relative errors, and the error of one without data."""

    value: Floats
    error: Floats
    prior_error: float


def _factor(clicks: Floats, expected: Floats) -> _Factor:
    """(c + s) / (x + s), where 1/s is the variance of the factor beyond that of Poisson counts.  Shapes: [n], [n] -> [n]."""
    excess, spread = float((np.square(clicks - expected) - expected).sum()), float(np.square(expected).sum())
    if excess <= 0 or spread <= 0:
        return _Factor(np.ones(len(clicks)), np.zeros(len(clicks)), 0.0)
    s = spread / excess
    return _Factor((clicks + s) / (expected + s), 1 / (clicks + s), 1 / s)
