"""What training maximises: the estimators as weights of the documents."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from tandemrank.logs.feedback import Feedback, exposure
from tandemrank.offpolicy.estimators import Floats, check_exposures, safe_ratio
from tandemrank.offpolicy.folds import rows_of
from tandemrank.offpolicy.reward.item_rate import reward_model
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
class DoublyRobustWeights:
    """What training sees with the doubly robust objective, for every document, a minibatch of rows at a time.

        w[q, d] = n_q r_hat(q, d) + (clicks(q, d) - exposure(q, d) r_hat(q, d)) / rho_0(d)

    so that N U_hat = sum_q sum_d w[q, d] rho_cr(d) is the estimator `doubly_robust` (r_hat = 0: IPS, paper: cltr-obj-2s),
    and E[w[q, d]] = n_q R: its gradient is unbiased where that of IPS is. r_hat is cross-fitted: `parts` are the n_q of a
    part of the log and a reward model that never saw that part. Rows cost O(minibatch x D); nothing has the size Q x D.
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


def doubly_robust_weights(
    rho_0: Floats, feedback: Feedback, theta: Floats, folds: Sequence[tuple[Feedback, Feedback]]
) -> DoublyRobustWeights:
    """The weights of the doubly robust objective. `folds`: parts that make up the log, each with what its model learns from.

    Shapes: rho_0 [P], of the rows of the whole log; theta [K].
    """
    check_exposures(rho_0, rho_0, feedback)
    parts, residual = [], csr_matrix((feedback.Q, feedback.D))
    for part, rest in folds:
        reward = reward_model(rest, theta)
        left = part.clicks - exposure(part, theta) * reward.at(part.query, part.item).mean
        left *= safe_ratio(np.ones(len(left)), rho_0[rows_of(part, feedback)], part.shown)
        residual = residual + csr_matrix((left, (part.query, part.item)), shape=residual.shape)
        parts.append((part.impressions, reward))
    pairs = feedback.query[feedback.clicks > 0] * np.int64(feedback.D) + feedback.item[feedback.clicks > 0]
    return DoublyRobustWeights(tuple(parts), residual, len(np.unique(pairs)))
