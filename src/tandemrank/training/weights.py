"""What training maximises: the estimators as weights of the documents."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from tandemrank.logs.feedback import Feedback, exposure
from tandemrank.offpolicy.estimators import Floats, check_exposures, rows_of, safe_ratio
from tandemrank.offpolicy.reward.model import RewardModel


def click_weights(rho_0: Floats, feedback: Feedback) -> csr_matrix:
    """What training sees: w[q, d] = sum_i c_i(d) / rho_0(d), so that N U_hat = sum_q sum_d w[q, d] rho_cr(d).

    Shapes: rho_0 [P] -> sparse [Q, D], clicked pairs only.
    """
    check_exposures(rho_0, rho_0, feedback)
    clicked = feedback.clicks > 0
    values = feedback.clicks[clicked] * safe_ratio(
        np.ones(int(clicked.sum())), rho_0[clicked], feedback.clicks[clicked]
    )
    pairs = (feedback.query[clicked], feedback.item[clicked])
    weights = csr_matrix((values.astype(np.float32), pairs), shape=(feedback.Q, feedback.D))
    weights.sum_duplicates()
    return weights


@dataclass(frozen=True)
class RewardWeights:
    """What training sees with a reward model, for every document, a minibatch of rows at a time.

        w[q, d] = n_q r_hat(q, d) + residual(q, d)

    Without residuals N U_hat = sum_q sum_d w[q, d] rho_cr(d) is the direct method (`direct_weights`), with those of
    `doubly_robust_weights` the doubly robust estimator. `parts` are the n_q of a part of the log and its reward model.
    Rows cost O(minibatch x D); nothing has the size Q x D.
    Shapes: parts of [Q] each; residual sparse [Q, D], logged pairs only.
    """

    parts: tuple[tuple[Floats, RewardModel], ...]
    residual: csr_matrix
    clicked: int

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and items."""
        return int(self.residual.shape[0]), int(self.residual.shape[1])

    @property
    def queries(self) -> NDArray[np.int64]:
        """Every logged query: one without a click has a gradient too."""
        return np.flatnonzero(np.sum([n for n, _ in self.parts], axis=0)).astype(np.int64)

    def rows(self, q: NDArray[np.int64]) -> csr_matrix:
        """Shapes: q [B] -> [B, D]."""
        w = self.residual[q].toarray()
        for n, reward in self.parts:
            own = np.flatnonzero(n[q])
            w[own] += n[q[own], None] * reward.matrix(q[own])[:, :-1]
        B, D = w.shape
        every = np.tile(np.arange(D, dtype=np.int32), B)
        return csr_matrix((w.ravel().astype(np.float32), every, np.arange(B + 1) * D), shape=(B, D))

    def arrays(self) -> Sequence[NDArray[Any]]:
        """Everything they are made of."""
        models = [x for n, r in self.parts for x in (n, *(array for _, array in sorted(r.arrays().items())))]
        return [self.residual.indptr, self.residual.indices, self.residual.data, *models]


def direct_weights(feedback: Feedback, reward: RewardModel) -> RewardWeights:
    """The weights of the direct method: w[q, d] = n_q r_hat(q, d), what the model of this very log expects."""
    return RewardWeights(((feedback.impressions.astype(np.float64), reward),), _empty(feedback), _clicked(feedback))


def doubly_robust_weights(
    rho_0: Floats,
    feedback: Feedback,
    theta: Floats,
    folds: Sequence[tuple[Feedback, RewardModel]],
    *,
    shrink: bool = True,
) -> RewardWeights:
    """The weights of the doubly robust objective, whose residuals are shrunk as far as their noise asks.

        residual = lambda (clicks - exposure r_hat) / rho_0,     lambda = v / (v + r_hat / (n_q rho_0))

    v is the variance of R by the model, r_hat / (n_q rho_0) that of the residual by the clicks: lambda (...) / (n_q rho_0) is
    then the best linear guess of R - r_hat. With lambda = 1 (`shrink = False`) E[w] = n_q R for any r_hat that was not fitted
    to these clicks, unbiased where IPS is (r_hat = 0: IPS, paper: cltr-obj-2s). `folds`: parts that make up the log, each with
    a model that never saw it.  Shapes: rho_0 [P], of the rows of the whole log; theta [K].
    """
    check_exposures(rho_0, rho_0, feedback)
    parts, residual = [], _empty(feedback)
    for part, reward in folds:
        belief, own = reward.at(part.query, part.item), rho_0[rows_of(part, feedback)]
        left = part.clicks - exposure(part, theta) * belief.mean
        left *= safe_ratio(np.ones(len(left)), own, part.shown)
        if shrink:
            seen = part.impressions[part.query] * own
            left = left * safe_ratio(belief.variance * seen, belief.variance * seen + belief.mean, part.shown)
        residual = residual + csr_matrix((left, (part.query, part.item)), shape=residual.shape)
        parts.append((part.impressions, reward))
    return RewardWeights(tuple(parts), residual, _clicked(feedback))


def _empty(feedback: Feedback) -> csr_matrix:
    return csr_matrix((feedback.Q, feedback.D))


def _clicked(feedback: Feedback) -> int:
    """The clicked pairs."""
    clicked = feedback.clicks > 0
    return len(np.unique(feedback.query[clicked] * np.int64(feedback.D) + feedback.item[clicked]))
