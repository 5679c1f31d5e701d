"""Sparse matrices in one form, whatever form they come in."""

import numpy as np
import pytest
from scipy import sparse

from tandemrank._base.sparse import canonical_csr, means_by, places_in_rows

DENSE = np.array([[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]])


def with_duplicates() -> sparse.csr_matrix:
    """Row 0 has column 1 twice, row 1 is out of order and has a stored zero."""
    return sparse.csr_matrix(([0.5, 1.5, 3.0, 1.0, 0.0], [1, 1, 2, 0, 1], [0, 2, 5]), shape=(2, 3))


FORMS = [
    sparse.csr_matrix, sparse.csc_matrix, sparse.coo_matrix, sparse.lil_matrix, sparse.dok_matrix, sparse.csr_array,
    sparse.csc_array, np.asarray, np.ndarray.tolist,
]  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_right(form) -> None:
    found = canonical_csr(form(DENSE))
    assert isinstance(found, sparse.csr_matrix)
    assert found.has_canonical_format
    assert np.array_equal(found.toarray(), DENSE)


def test_what_comes_twice_is_added_up_and_the_matrix_that_came_stays_as_it_is() -> None:
    came = with_duplicates()
    kept, dropped = canonical_csr(came), canonical_csr(came, drop_zeros=True)
    assert came.nnz == 5
    assert (kept.nnz, dropped.nnz) == (4, 3)
    for found in (kept, dropped):
        assert np.array_equal(found.toarray(), DENSE)
        assert found.has_canonical_format


def test_a_matrix_in_that_form_is_not_copied() -> None:
    came = sparse.csr_matrix(DENSE)
    assert canonical_csr(came) is came
    assert canonical_csr(came, drop_zeros=True) is came


def test_entries_are_found_by_row_and_column() -> None:
    came = sparse.csr_matrix(DENSE)
    rows, wanted = np.array([1, 0, 1]), np.array([[2, 1], [1, 0], [0, 0]])
    found = places_in_rows(came.indptr, came.indices, rows, wanted, 3)
    assert np.array_equal(np.where(found >= 0, came.data[found], 0.0), DENSE[rows[:, None], wanted])
    assert found.tolist() == [[2, -1], [0, -1], [1, 1]]
    assert places_in_rows(came.indptr, came.indices, rows[:2], wanted[:2], 3).tolist() == [[2, -1], [0, -1]]
    empty = sparse.csr_matrix((2, 3))
    assert places_in_rows(empty.indptr, empty.indices, rows, wanted, 3).max() == -1


def test_means_of_little_are_near_the_prior() -> None:
    index, values, prior = np.array([0, 0, 2]), np.array([1.0, 3.0, 5.0]), np.array([0.5, 7.0, 1.0])
    assert means_by(index, values, prior, 2.0).tolist() == [(4 + 1) / 4, 7.0, (5 + 2) / 3]
    assert means_by(index, values, prior, 2.0, np.full(3, 0.5)).tolist() == [(4 + 1) / 3, 7.0, (5 + 2) / 2.5]
