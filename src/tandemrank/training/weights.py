"""What training maximises: the value of every document to a query, a minibatch of rows at a time.

    w[q, d] = sum_i c_i(d) / rho_0(d)          clicks by inverse propensities             (paper: cltr-obj-2s, propensity_def)
    w[q, d] = n_q R_hat(q, d)                  what the beliefs of the log expect

so that N U_hat = sum_q sum_d w[q, d] rho_cr(d). Nothing has the size Q x D.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from tandemrank.beliefs.model import RewardModel
from tandemrank.logs.feedback import Feedback
from tandemrank.offpolicy.estimators import Floats, check_exposures, safe_ratio


class Weights(Protocol):
    """What every document is worth to a query, a minibatch of rows at a time."""

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and items."""

    @property
    def queries(self) -> NDArray[np.int64]:
        """The queries to train on."""

    @property
    def clicked(self) -> int:
        """Clicked (query, item) pairs."""

    def rows(self, q: NDArray[np.int64]) -> csr_matrix:
        """Shapes: q [B] -> [B, D]."""

    def arrays(self) -> Sequence[NDArray[Any]]:
        """Everything they are made of, to tell one training from another."""


@dataclass(frozen=True)
class SparseWeights:
    """Weights of clicked pairs only.  Shapes: matrix [Q, D]."""

    matrix: csr_matrix

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and items."""
        return int(self.matrix.shape[0]), int(self.matrix.shape[1])

    @property
    def queries(self) -> NDArray[np.int64]:
        """A query without a click has no gradient."""
        return np.flatnonzero(np.diff(self.matrix.indptr)).astype(np.int64)

    @property
    def clicked(self) -> int:
        """Clicked (query, item) pairs."""
        return int(self.matrix.nnz)

    def rows(self, q: NDArray[np.int64]) -> csr_matrix:
        """Shapes: q [B] -> [B, D]."""
        return self.matrix[q]

    def arrays(self) -> Sequence[NDArray[Any]]:
        """Everything they are made of."""
        return self.matrix.indptr, self.matrix.indices, self.matrix.data


@dataclass(frozen=True)
class WithoutPairs:
    """Weights of which some pairs do not count.  Shapes: pairs [Q, D]."""

    base: Weights
    pairs: csr_matrix

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and items."""
        return self.base.shape

    @property
    def queries(self) -> NDArray[np.int64]:
        """Those of the weights themselves."""
        return self.base.queries

    @property
    def clicked(self) -> int:
        """Clicked (query, item) pairs, those that do not count too: how much is known of a query."""
        return self.base.clicked

    def rows(self, q: NDArray[np.int64]) -> csr_matrix:
        """Shapes: q [B] -> [B, D]."""
        return without_pairs(self.base.rows(q), self.pairs[q])

    def arrays(self) -> Sequence[NDArray[Any]]:
        """Everything they are made of."""
        return (*self.base.arrays(), self.pairs.indptr, self.pairs.indices)


def without_pairs(w: csr_matrix, pairs: csr_matrix) -> csr_matrix:
    """Weights without those of some pairs.  Shapes: w, pairs [B, D] -> [B, D]."""
    kept = csr_matrix(w - w.multiply(pairs != 0))
    kept.eliminate_zeros()
    return kept


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
class BeliefWeights:
    """Weights of every document, by a reward model.  Shapes: impressions [Q]."""

    impressions: Floats
    reward: RewardModel
    D: int
    clicked: int

    @property
    def shape(self) -> tuple[int, int]:
        """Queries and items."""
        return len(self.impressions), self.D

    @property
    def queries(self) -> NDArray[np.int64]:
        """Every logged query: one without a click has a gradient too."""
        return np.flatnonzero(self.impressions).astype(np.int64)

    def rows(self, q: NDArray[np.int64]) -> csr_matrix:
        """Shapes: q [B] -> [B, D]."""
        w = self.impressions[q, None] * self.reward.matrix(q)[:, :-1]
        B, D = w.shape
        every = np.tile(np.arange(D, dtype=np.int32), B)
        return csr_matrix((w.ravel().astype(np.float32), every, np.arange(B + 1) * D), shape=(B, D))

    def arrays(self) -> Sequence[NDArray[Any]]:
        """Everything they are made of."""
        return [self.impressions, *(array for _, array in sorted(self.reward.arrays().items()))]


def belief_weights(feedback: Feedback, reward: RewardModel) -> BeliefWeights:
    """w[q, d] = n_q R_hat(q, d), by a model of this very log."""
    clicked = feedback.clicks > 0
    pairs = np.unique(feedback.query[clicked] * np.int64(feedback.D) + feedback.item[clicked])
    return BeliefWeights(feedback.impressions.astype(np.float64), reward, feedback.D, len(pairs))
