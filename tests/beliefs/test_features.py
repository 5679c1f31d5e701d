"""What a model of features sees: columns of every kind, rows of what the log has not seen, pairs, leaks."""

import numpy as np
import polars as pl
import pytest
import torch

from beliefs.lessons import TABLES, D, Q, counts_of, lesson_of, pair_table
from tandemrank._base.ids import Vocabulary
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.features import Clicks, Features, PairNumbers, PairTable, leaks, side_of
from tandemrank.beliefs.features import pair_table as pairs_of
from tandemrank.beliefs.grades import Grades
from tandemrank.errors import DataError, InputError

VOCABULARY = Vocabulary(pl.Series([1, 2, 3]), pl.Series(["a", "b", "c", "d"]))


def test_columns_of_every_kind_have_a_defined_answer() -> None:
    items = pl.DataFrame({"price": [1.0, None, 3.0, 2.0], "same": [5, 5, 5, 5], "kind": ["a", "b", None, "a"]})
    u, z = Features(item=items).encoded(3, 4)
    assert u.numbers.shape == (3, 0)
    price, same, missing, a, b = z.numbers.T
    assert np.allclose(price, np.array([-1, 0, 1, 0]) / np.sqrt(2 / 3))
    assert not same.any()
    assert np.array_equal(missing, [0, 1, 0, 0])
    assert np.array_equal(a, [1, 0, 0, 1])
    assert np.array_equal(b, [0, 1, 0, 0])


def test_a_table_of_the_wrong_length_and_one_with_lists_are_refused() -> None:
    with pytest.raises(InputError, match="expected features of 4 items, one row each; got 3 rows"):
        Features(item=np.zeros((3, 2))).encoded(3, 4)
    with pytest.raises(DataError, match="column tags: features are numbers, booleans or strings"):
        Features(item=pl.DataFrame({"tags": [[1], [2]]})).encoded(3, 2)


def test_of_tables_with_ids_rows_come_in_the_order_of_the_log_and_who_has_none_is_missing() -> None:
    table = pl.DataFrame({"item_id": ["d", "a", "e"], "price": [4.0, 2.0, 9.0]})
    found = Features.of(VOCABULARY, item=table)
    assert found.query is None
    assert found.item["price"].to_list() == [2.0, None, None, 4.0]
    _, z = found.encoded(3, 4)
    assert np.array_equal(z.numbers, [[-1, 0], [0, 1], [0, 1], [1, 0]])


def test_known_columns_are_how_often_shown_and_the_rate_of_row_and_category() -> None:
    counts = Counts.of_rows(
        np.array([0, 0, 1]), np.array([0, 1, 1]), np.array([1.0, 0.5, 0.5]), np.array([4.0, 2.0, 4.0]),
        np.array([2.0, 0.0, 1.0]), impressions=np.array([6.0, 4.0]), D=3,
    )  # fmt: skip
    item = Features(item=pl.DataFrame({"kind": ["x", "y", "x"]})).encoded(2, 3)[1]
    found = Clicks.of(item, "item", counts)
    rate = (3 + 0.5) / (7 + 1)  # clicks of all examinations
    shrunk = [np.log((c / rate + 10) / (e + 10)) for c, e in ((2, 4), (1, 3), (0, 0))]
    assert np.allclose(found.rows[:, 0], np.log1p([4, 6, 0]))
    assert np.allclose(found.rows[:, 1], shrunk)
    assert np.allclose(found.rows[:, 2], [shrunk[0], shrunk[1], shrunk[0]])
    half = Clicks.of(item, "item", counts, 0.5)
    assert np.allclose(half.rows[:, 0], np.log1p([8, 12, 0]))  # a half stands for the whole


def test_rows_are_standardised_and_those_not_seen_have_the_opinion_of_their_features() -> None:
    lesson = lesson_of(counts_of(), Features(**TABLES), Grades.graded(0.3, 0.5))
    side = lesson.query
    rows = side.rows[:-1].double()
    varies = rows.std(0) > 0
    assert torch.allclose(rows.mean(0), torch.zeros(side.width).double(), atol=0.05)
    assert torch.allclose(rows[:, varies].std(0, correction=0), torch.ones(int(varies.sum())).double(), atol=0.1)
    assert not side.rows[-1, :2].any()  # never shown: the mean of what is known
    vectors = np.outer(np.arange(Q), [1.0, 0.0])  # an opinion that age explains
    encoded, seen = Features(**TABLES).encoded(Q, D)[0], np.arange(Q) < Q - 1
    side = side_of(encoded, Clicks.of(encoded, "query", counts_of()), vectors - vectors.mean(0), seen)
    assert np.allclose(side.opinions(encoded)[-1], vectors[-1] - vectors.mean(0), atol=0.5)
    own = slice(side.known, side.known + 2)
    assert np.allclose(
        (side.rows[:, own] * side.scale[own] + side.centre[own])[:, 0], vectors[:, 0] - vectors[:, 0].mean(), atol=0.5
    )


def test_a_new_row_refuses_features_that_it_does_not_know() -> None:
    side = lesson_of(counts_of(), Features(**TABLES), Grades.graded(0.3, 0.5)).query
    nothing = side.unseen(side.encoded({}))
    assert np.isfinite(nothing.numpy()).all()
    assert torch.equal(side.unseen(side.encoded({"age": None, "city": "nowhere"})), nothing)
    with pytest.raises(DataError, match="expected features among age, city; got 'wealth'"):
        side.encoded({"wealth": 1})


def test_numbers_of_pairs_are_standardised_and_0_where_there_are_none() -> None:
    table = PairTable(np.array([1, 0]), np.array([0, 2]), np.array([[3.0, np.nan], [1.0, 7.0]]), ("near", "same"))
    pairs = PairNumbers.of(table, 4)
    found = pairs.at(torch.tensor([0, 1, 1, 0]), torch.tensor([2, 0, 1, 3]))
    assert torch.equal(found, torch.tensor([[-1.0, 0, 1], [1, 0, 1], [0, 0, 0], [0, 0, 0]]))
    assert PairNumbers.of(None, 4).at(torch.tensor([0]), torch.tensor([1])).shape == (1, 0)


def test_pairs_keep_their_numbers_among_more_items_and_take_more_pairs() -> None:
    """New pairs come in the scale of the first; a pair that is known keeps its numbers."""
    first = PairTable(np.array([1, 0]), np.array([0, 2]), np.array([[3.0], [1.0]]), ("near",))
    pairs = PairNumbers.of(first, 3).with_items(5)
    more = PairTable(np.array([1, 1]), np.array([0, 4]), np.array([[9.0, 99.0], [9.0, 4.0]]), ("far", "near"))
    larger = pairs.plus(more)
    found = larger.at(torch.tensor([0, 1, 1, 1]), torch.tensor([2, 0, 4, 3]))
    assert torch.equal(found, torch.tensor([[-1.0, 1], [1, 1], [2, 1], [0, 0]]))
    assert torch.equal(pairs.at(torch.tensor([1]), torch.tensor([4])), torch.zeros(1, 2))
    assert larger.of_no_query().at(torch.tensor([1]), torch.tensor([0])).shape == (1, 2)
    with pytest.raises(DataError, match="expected the columns near of pairs, as the policy has; got no near"):
        pairs.plus(PairTable(first.query, first.item, first.values, ("far",)))


def test_a_table_of_pairs_is_read_by_ids_and_refused_where_it_is_wrong() -> None:
    table = pl.DataFrame({"query_id": [3, 1, 9], "item_id": ["b", "a", "a"], "near": [1.0, None, 3.0]})
    found = pairs_of(table, VOCABULARY)
    assert (found.query.tolist(), found.item.tolist(), found.names) == ([2, 0], [1, 0], ("near",))
    assert np.array_equal(found.values, [[1.0], [np.nan]], equal_nan=True)
    with pytest.raises(DataError, match="expected one row for each; got query"):
        pairs_of(pl.concat([table, table]), VOCABULARY)
    with pytest.raises(DataError, match="expected numbers beside query_id and item_id"):
        pairs_of(table.drop("near"), VOCABULARY)
    with pytest.raises(DataError, match="column near: expected numbers for pairs; got String"):
        pairs_of(table.with_columns(near=pl.lit("x")), VOCABULARY)


def test_a_feature_that_is_the_click_is_said_in_words() -> None:
    counts = counts_of()
    click = PairTable(counts.query, counts.item.astype(np.int64), (counts.C > 0)[:, None].astype(float), ("bought",))
    assert leaks(Features(**TABLES, pair=pair_table()).known(counts.Q, counts.D), counts) == ()
    (said,) = leaks(Features(**TABLES, pair=click).known(counts.Q, counts.D), counts)
    assert said.startswith("The feature bought alone tells clicked pairs from the others")
