"""What the loop asks of the weights of the documents, and of a change of them; `weights` makes them from clicks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor


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


class Change(Protocol):
    """A change of these weights as the exposures of the pair move; `caution` is one.  Shapes: s_c, s_r, w [B, D]; q [B]."""

    @property
    def needs_total(self) -> bool:
        """Whether the change of one query depends on all of them, by what `divergence` adds up to."""

    def exposures(
        self, q: NDArray[np.int64], s_c: Tensor, s_r: Tensor, alpha: Tensor, K2: int, generator: torch.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """rho of the pair and rho_0 of the logger.  Shapes: -> [B, D], twice."""

    def divergence(
        self, q: NDArray[np.int64], rho: NDArray[np.float64], rho_0: NDArray[np.float64], alpha: Tensor
    ) -> float:
        """What these queries add to the total."""

    def weights(
        self, q: NDArray[np.int64], w: csr_matrix, s_c: Tensor, s_r: Tensor, alpha: Tensor, K2: int,
        generator: torch.Generator, total: float | None = None,
    ) -> csr_matrix:  # fmt: skip
        """The weights of a minibatch, changed.  Shapes: -> [B, D]."""

    def identity(self) -> tuple[Sequence[object], list[NDArray[Any]]]:
        """What a training with it depends on: switches and arrays."""


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
