"""Sparse matrices at the edge: whatever form they come in, one form inside."""

from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse


def canonical_csr(matrix: Any, *, drop_zeros: bool = False) -> csr_matrix:
    """A matrix by rows, each entry once and in the order of the columns; what came twice is added up.

    Any sparse form or an array; the matrix that came is not changed. A stored zero is an entry like any other (a score of 0
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
