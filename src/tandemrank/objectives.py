"""The estimators: what clicks of the past say about a policy that was not live. Arrays in, numbers out; no models here.

    U_hat = 1/N sum_i sum_d rho_cr(d) / rho_0(d) c_i(d)          (paper: cltr-obj-2s; one stage: cltr-obj; K = 1: opl-obj)

Every estimator takes `(rho_cr, rho_0, feedback)`, exposures aligned with the rows of the feedback, and returns an
`Estimate`. Clicks enter only through sums, so the cost does not depend on the length of the log.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from tandemrank.errors import InputError, LogError
from tandemrank.feedback import Feedback, exposure

Floats = NDArray[np.float64]
Judge = Callable[[NDArray[np.int64], NDArray[np.int32]], float]


@dataclass(frozen=True)
class Estimate:
    """A ratio of sums over queries, sum_q numerator[q] / sum_q denominator[q]: every estimator here is one.

    Shapes: numerator, denominator [Q].
    """

    numerator: Floats
    denominator: Floats

    @property
    def value(self) -> float:
        """The estimate itself."""
        return float(self.numerator.sum() / self.denominator.sum())

    @property
    def standard_error(self) -> float:
        """By the residuals of the ratio (delta method), queries independent."""
        return float(np.sqrt(np.square(self.influence).sum()))

    @property
    def influence(self) -> Floats:
        """What each query adds to the error of the ratio, to first order.  Shapes: -> [Q]."""
        residual: Floats = (self.numerator - self.value * self.denominator) / self.denominator.sum()
        return residual

    def interval(self, z: float = 1.96) -> tuple[float, float]:
        """The normal interval value +- z standard errors."""
        return self.value - z * self.standard_error, self.value + z * self.standard_error


def ips(rho_cr: Floats, rho_0: Floats, feedback: Feedback) -> Estimate:
    """Inverse propensity scoring: U_hat = 1/N sum_i sum_d rho_cr(d) / rho_0(d) c_i(d)   (paper: cltr-obj-2s).

    Unbiased where rho_0 > 0 wherever rho_cr R > 0 (theorem 2s-unbiased); with a clipped rho_0 it is clipped IPS.
    Shapes: rho_cr, rho_0 [P], one for each row of the feedback.
    """
    _check(rho_cr, rho_0, feedback)
    clicks = feedback.clicks * _ratio(rho_cr, rho_0, feedback.clicks)
    return Estimate(_by_query(clicks, feedback), feedback.impressions.astype(np.float64))


def self_normalised(rho_cr: Floats, rho_0: Floats, feedback: Feedback, theta: Floats) -> Estimate:
    """IPS over the same sum for the exposure, whose expectation is known: U_hat = sum(theta) * sum(w c) / sum(w e).

    w = rho_cr / rho_0, e the examination theta_k of what was shown. Consistent, and bounded by sum(theta) whatever the
    weights: less noise for a little bias. It extends what the log supports to what it does not.
    Shapes: rho_cr, rho_0 [P]; theta [K].
    """
    _check(rho_cr, rho_0, feedback)
    w = _ratio(rho_cr, rho_0, feedback.shown)
    clicks, seen = (_by_query(w * x, feedback) for x in (feedback.clicks, exposure(feedback, theta)))
    return Estimate(clicks * float(theta.sum()), seen)


def click_weights(rho_0: Floats, feedback: Feedback) -> csr_matrix:
    """What training sees: w[q, d] = sum_i c_i(d) / rho_0(d), so that N U_hat = sum_q sum_d w[q, d] rho_cr(d).

    Shapes: rho_0 [P] -> sparse [Q, D], clicked pairs only.
    """
    _check(rho_0, rho_0, feedback)
    clicked = feedback.clicks > 0
    values = feedback.clicks[clicked] * _ratio(np.ones(int(clicked.sum())), rho_0[clicked], feedback.clicks[clicked])
    pairs = (feedback.query[clicked], feedback.item[clicked])
    weights = csr_matrix((values.astype(np.float32), pairs), shape=(feedback.Q, feedback.D))
    weights.sum_duplicates()
    return weights


def held_out_dcg(rho_0: Floats, feedback: Feedback, theta: Floats) -> Judge:
    """A judge of lists: their self-normalised DCG on held-out clicks, which follows the true NDCG closely.

        sum_{q, d in list} disc_k c(q, d) / rho_0(d)  /  sum_{q, d in list} disc_k e(q, d) / rho_0(d)

    with disc_k = 1 / log2(k + 1), c the clicks and e the exposure of the held-out log. NaN where no list meets the log.
    Shapes: rho_0 [P], theta [K]; the judge takes queries [n] and lists [n, K].
    """
    _check(rho_0, rho_0, feedback)
    w = _ratio(np.ones(len(rho_0)), rho_0, feedback.shown)
    key, first = np.unique(feedback.query.astype(np.int64) * feedback.D + feedback.item, return_index=True)
    clicks, seen = (np.add.reduceat(w * x, first) for x in (feedback.clicks, exposure(feedback, theta)))

    def judge(q: NDArray[np.int64], lists: NDArray[np.int32]) -> float:
        wanted = q[:, None] * np.int64(feedback.D) + lists
        at = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
        discount = np.where((key[at] == wanted) & (lists >= 0), 1 / np.log2(np.arange(2, lists.shape[1] + 2)), 0.0)
        total = float((discount * seen[at]).sum())
        return float((discount * clicks[at]).sum()) / total if total > 0 else float("nan")

    return judge


def _by_query(values: Floats, feedback: Feedback) -> Floats:
    """Sums over the rows of each query.  Shapes: [P] -> [Q]."""
    return np.bincount(feedback.query, weights=values, minlength=feedback.Q).astype(np.float64)


def _ratio(rho_cr: Floats, rho_0: Floats, matters: Floats) -> Floats:
    """rho_cr / rho_0 where a row matters, 0 elsewhere: a propensity of 0 is no harm where nothing was clicked."""
    return np.divide(rho_cr, rho_0, out=np.zeros(len(rho_0)), where=matters > 0)


def _check(rho_cr: Floats, rho_0: Floats, feedback: Feedback) -> None:
    for name, rho in (("rho_cr", rho_cr), ("rho_0", rho_0)):
        if rho.shape != feedback.query.shape:
            raise InputError(
                f"{name} must have one value a row of the feedback, {len(feedback.query)}, not {rho.shape}."
            )
        if not np.isfinite(rho).all() or (rho < 0).any():
            raise InputError(
                f"{name} must be finite and not negative; {int((~np.isfinite(rho) | (rho < 0)).sum())} are not."
            )
    bad = (feedback.clicks > 0) & (rho_0 <= 0)
    if bad.any():
        row = int(np.argmax(bad))
        query, item = (
            feedback.vocabulary.query_ids[int(feedback.query[row])],
            feedback.vocabulary.item_ids[int(feedback.item[row])],
        )
        raise LogError(
            f"{int(bad.sum())} clicked items have propensity 0 (first: query {query}, item {item}). "
            f"The log was not drawn from this policy; use frequency propensities or check the ids."
        )
