"""Sparse matrices at the edge: whatever form they come in, one form inside; and the look-up of some of their entries."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, issparse


def canonical_csr(matrix: Any, *, drop_zeros: bool = False) -> csr_matrix:
    """A matrix by rows, each entry once and in the order of the columns; what is there twice is added up.

    Any sparse form or an array; the given matrix is not changed. A stored zero is an entry like any other (a score of 0
    is not an item that is not available), unless zeros are dropped.  Shapes: [n, m] -> [n, m].
    """
    found = matrix
    if not isinstance(matrix, csr_matrix):
        found = csr_matrix(matrix if issparse(matrix) else np.asarray(matrix))
    if not found.has_canonical_format or (drop_zeros and not found.data.all()):
        found = found.copy()
        found.sum_duplicates()
        if drop_zeros:
            found.eliminate_zeros()
    return found


def entries_of_rows(
    first: NDArray[np.integer], rows: NDArray[np.integer]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The entries of some rows of a matrix by rows: which of the rows asked for, and the place of the entry.

    Shapes: first [n + 1], rows [B] -> [m], [m].
    """
    start, length = first[rows].astype(np.int64), (first[rows + 1] - first[rows]).astype(np.int64)
    row = np.repeat(np.arange(len(rows)), length)
    return row, np.arange(len(row)) + np.repeat(start - (np.cumsum(length) - length), length)


def places_in_rows(
    first: NDArray[np.integer],
    column: NDArray[np.integer],
    rows: NDArray[np.integer],
    wanted: NDArray[np.integer],
    width: int,
) -> NDArray[np.int64]:
    """Where the entries (rows[b], wanted[b, j]) lie in a matrix by rows with columns in order; -1 where there is none.

    The cost is that of the rows asked for, not of the matrix.  Shapes: first [n + 1]; column [nnz]; rows [B]; wanted [B, M] ->
    [B, M].
    """
    own = np.arange(len(rows))
    if len(rows) >= len(first):  # some come several times: once is enough
        rows, own = np.unique(rows, return_inverse=True)
    row, place = entries_of_rows(first, rows)
    if not len(place):
        return np.full(wanted.shape, -1, np.int64)
    key = row * width + column[place]
    asked = own[:, None] * width + wanted
    at = np.minimum(np.searchsorted(key, asked), len(key) - 1)
    return np.where(key[at] == asked, place[at], -1)


def sums_by(index: NDArray[np.integer], values: NDArray[np.floating], n: int) -> NDArray[np.float64]:
    """Sums of values by their index.  Shapes: [P], [P] -> [n]."""
    return np.bincount(index, weights=values, minlength=n).astype(np.float64)


def means_by(
    index: NDArray[np.integer],
    values: NDArray[np.floating],
    prior: NDArray[np.floating],
    strength: float,
    weight: NDArray[np.floating] | None = None,
) -> NDArray[np.float64]:
    """sum values / sum weight of every group, near the prior where that is little beside its strength; the weight of each is 1.

    Shapes: index, values, weight [m]; prior [n] -> [n].
    """
    n, weight = len(prior), np.ones(len(index)) if weight is None else weight
    found: NDArray[np.float64] = (sums_by(index, values, n) + strength * prior) / (sums_by(index, weight, n) + strength)
    return found
