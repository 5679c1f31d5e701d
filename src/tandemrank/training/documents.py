"""What the loop asks of the weights of the documents, and the plainest of them; `weights` makes them from clicks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix


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
