"""Ids and positions: one look-up, that never rounds and never guesses."""

import numpy as np
import polars as pl
import pytest

from tandemrank._base.ids import Vocabulary, checked_positions, id_series, positions_of, same_ids
from tandemrank.errors import InputError, PolicyError

NUMBERS, TEXTS = pl.Series([30, 10, 20]), pl.Series(["c", "a", "b"])


@pytest.mark.parametrize("dtype", [pl.Int8, pl.UInt16, pl.Int64, pl.UInt64, pl.Int128])
def test_integers_of_any_size_are_found(dtype) -> None:
    assert positions_of(NUMBERS, pl.Series([10, 20, 10], dtype=dtype), "item").tolist() == [1, 2, 1]
    assert positions_of(NUMBERS.cast(dtype), pl.Series([10, 30]), "item").tolist() == [1, 0]


@pytest.mark.parametrize("dtype", [pl.String, pl.Categorical, pl.Enum(["a", "b", "c"])])
def test_texts_are_found(dtype) -> None:
    assert positions_of(TEXTS, pl.Series(["b", "c"], dtype=dtype), "item").tolist() == [2, 0]
    assert positions_of(TEXTS.cast(dtype), pl.Series(["b", "c"]), "item").tolist() == [2, 0]


@pytest.mark.parametrize("wanted", [[10.0], [1.5], [True], [[10]], [None], [b"a"], [object()]])
@pytest.mark.parametrize("missing", ["refuse", "mark"])
def test_what_is_no_id_is_refused_and_never_rounded(wanted, missing) -> None:
    for ids in (NUMBERS, TEXTS):
        with pytest.raises(InputError, match="item ids are integers or strings"):
            positions_of(ids, pl.Series(wanted), "item", missing=missing)


def test_texts_and_integers_are_not_the_same() -> None:
    with pytest.raises(InputError, match=r"query ids are integers here; got String \(first: '10'\)"):
        positions_of(NUMBERS, pl.Series(["10"]), "query")
    with pytest.raises(InputError, match=r"query ids are strings here; got Int64 \(first: 10\)"):
        positions_of(TEXTS, pl.Series([10]), "query", missing="mark")


def test_the_unknown_are_named_or_marked() -> None:
    wanted = pl.Series([10, 99, None, 2**80], dtype=pl.Int128)
    with pytest.raises(InputError, match=r"3 unknown item ids \(first: 99\); 3 are known"):
        positions_of(NUMBERS, wanted, "item")
    assert positions_of(NUMBERS, wanted, "item", missing="mark").tolist() == [1, -1, -1, -1]
    assert positions_of(NUMBERS.clear(), wanted[:1], "item", missing="mark").tolist() == [-1]
    assert positions_of(TEXTS.clear(), wanted[:1], "item", missing="mark").tolist() == [-1]


def test_no_ids_have_no_positions_whatever_their_type() -> None:
    for nothing in (pl.Series([]), pl.Series([], dtype=pl.Float64), pl.Series([], dtype=pl.String)):
        found = positions_of(NUMBERS, nothing, "item")
        assert found.shape == (0,)
        assert found.dtype == np.int64


def test_vocabularies_are_the_same_where_both_sides_are() -> None:
    own = Vocabulary(NUMBERS, TEXTS)
    assert same_ids(own, own)
    assert same_ids(own, Vocabulary(NUMBERS.clone(), TEXTS.clone()))
    assert not same_ids(own, Vocabulary(NUMBERS, TEXTS.reverse()))
    assert not same_ids(own, Vocabulary(NUMBERS.reverse(), TEXTS))


def test_known_ids_that_come_twice_are_refused() -> None:
    with pytest.raises(InputError, match="item ids must be distinct"):
        positions_of(pl.Series([1, 1, 2]), pl.Series([1]), "item")


def test_a_vocabulary_speaks_both_ways() -> None:
    both = Vocabulary(TEXTS, NUMBERS)
    assert both.queries(pl.Series(["a"])).tolist() == [1]
    assert both.items(pl.Series([20])).tolist() == [2]


@pytest.mark.parametrize("ids", [[1, "a"], 7, [1, 2.5], {"a": 1}])
def test_what_is_no_list_of_ids_is_one_error(ids) -> None:
    with pytest.raises(InputError, match="query_id: expected a list of integers or of strings"):
        id_series("query_id", ids)


def test_ids_of_numpy_and_pandas_are_taken() -> None:
    pandas = pytest.importorskip("pandas")
    for ids in (np.array([1, 2]), pandas.Series([1, 2]), (1, 2), range(1, 3), pl.Series([1, 2])):
        assert id_series("query_id", ids).to_list() == [1, 2]


@pytest.mark.parametrize("wrong", [[-1], [3], [0, 5], [1.5], [1.0], [True], ["a"], [[0]], [0, [1]], 0, [2**63]])
def test_positions_out_of_range_or_not_whole_are_refused(wrong) -> None:
    with pytest.raises(PolicyError, match="positions of queries"):
        checked_positions(wrong, 3, "queries")


def test_positions_in_range_are_taken() -> None:
    for right in ([], [0, 2], np.array([0, 2], np.uint8), np.array([])):
        assert checked_positions(right, 3, "queries").dtype == np.int64
    assert checked_positions([0, 2], 3, "queries").tolist() == [0, 2]
