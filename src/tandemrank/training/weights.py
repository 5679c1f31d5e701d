"""What training maximises: the value of every document to a query, a minibatch of rows at a time.

    w[q, d] = sum_i c_i(d) / rho_0(d)          clicks by inverse propensities             (paper: cltr-obj-2s, propensity_def)
    w[q, d] = n_q R_hat(q, d)                  what the beliefs of the log expect, of very many items of those near the top

so that N U_hat = sum_q sum_d w[q, d] rho_cr(d). Nothing has the size Q x D. And the weights alpha_k of the ranks that
rho_cr is taken by (paper: list-utility).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank.beliefs.model import RewardModel
from tandemrank.logs.feedback import Feedback
from tandemrank.offpolicy.estimators import Floats, check_exposures, safe_ratio
from tandemrank.policies.candidates import LARGE
from tandemrank.training.checkpoint import identity_of
from tandemrank.training.config import RankWeights

SEVERAL = 2  # documents with a weight for each candidate, where items are very many


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
    """Weights by a reward model: of every document, or of about `top` of each query, and of what it was shown.

    `clicked` (query, item) pairs, those that are `excluded` and have no weight too: how much is known of a query.
    `before`: the first query that the model is of, where it is of a part of them; `whole`: then the digest of the whole one.
    Shapes: impressions [Q]; excluded [Q, D].
    """

    impressions: Floats
    reward: RewardModel
    D: int
    top: int
    clicked: int
    excluded: csr_matrix | None = None
    before: int = 0
    whole: str = ""

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
        found = self.reward.top(q - self.before, self.top)
        found.data = (found.data * np.repeat(self.impressions[q], np.diff(found.indptr))).astype(np.float32)
        if self.excluded is not None:
            found = csr_matrix(found - found.multiply(self.excluded[q] != 0))
            found.eliminate_zeros()
        return found

    def arrays(self) -> Sequence[NDArray[Any]]:
        """Everything they are made of."""
        excluded = [] if self.excluded is None else [self.excluded.indptr, self.excluded.indices]
        digest = np.frombuffer(self.digest.encode(), np.uint8)
        return [np.array(self.top), self.impressions, digest, *excluded]

    @property
    def digest(self) -> str:
        """A name for the whole reward model."""
        return self.whole or identity_of([], [array for _, array in sorted(self.reward.arrays().items())])

    def part(self, first: int, stop: int) -> "BeliefWeights":
        """The same for those who ask about some of the queries alone."""
        return replace(self, reward=self.reward.part(first, stop), before=first, whole=self.digest)


def belief_weights(feedback: Feedback, reward: RewardModel, K2: int) -> BeliefWeights:
    """w[q, d] = n_q R_hat(q, d), by a model of this very log; where items are very many, of `SEVERAL` K2 of a query."""
    clicked = feedback.clicks > 0
    pairs = np.unique(feedback.query[clicked] * np.int64(feedback.D) + feedback.item[clicked])
    return BeliefWeights(
        impressions=feedback.impressions.astype(np.float64),
        reward=reward,
        D=feedback.D,
        top=feedback.D if feedback.D <= LARGE else min(SEVERAL * K2, feedback.D),
        clicked=len(pairs),
    )


def rank_weights(wanted: RankWeights, theta: Tensor, clicked: float, K2: int) -> Tensor:
    """alpha_k by name, for lists out of K2 candidates and `clicked` clicked items per query.  Shapes: theta [K] -> [depth].

    Flat and deep overfits far less where clicks are few: it asks that the clicked come near the top, and leaves it to all
    clicks together who comes first. The automatic depth, 200 / clicked, between 20 and 100, was chosen on MovieLens-1M
    (docs/results); it is at most a fifth of the candidates. Where that is no more than K, flat weights would leave the
    re-ranker little to decide, and not the order of what is shown (at K2 = K: nothing): ranks then count 1/log2(k + 1), down to
    twice K, so that what is nearly shown has a say, too.
    """
    if wanted == "examination":
        return theta
    K = len(theta)
    if K2 // 5 <= K:
        return 1 / torch.log2(torch.arange(2.0, max(K, min(2 * K, K2)) + 2))
    return torch.ones(max(K, min(int(np.clip(200 / max(clicked, 1), 20, 100)), K2 // 5)))
