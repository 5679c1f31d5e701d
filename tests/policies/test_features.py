"""Tables of features: what becomes which number, that it survives JSON, and every refusal."""

import json
from datetime import date

import numpy as np
import polars as pl
import pytest

from tandemrank.errors import DataError
from tandemrank.policies import features

TABLE = pl.DataFrame(
    {
        "item_id": [10, 20, 30, 40],
        "price": [1.0, 3.0, None, 5.0],
        "stock": [0, 4, 4, 0],
        "new": [True, False, True, None],
        "same": [0.1, 0.1, 0.1, 0.1],
        "kind": ["b", "a", None, "b"],
        "shop": pl.Series(["x", "y", "x", "z"], dtype=pl.Categorical),
    }
)


def fitted() -> tuple[pl.DataFrame, features.Encoder]:
    frame = features.read(TABLE, "item_id")
    return frame, features.fit(frame, "item_id")


def test_numbers_are_standardised_and_categories_counted() -> None:
    frame, encoder = fitted()
    assert [c.name for c in encoder.numeric] == ["price", "stock", "new", "same"]
    assert encoder.categorical == (
        features.Categorical("kind", ("b", "a")),  # the most frequent first, then by the alphabet
        features.Categorical("shop", ("x", "y", "z")),
    )
    found = features.encode(encoder, frame, pl.Series([40, 10, 30]))
    spread = np.sqrt(8 / 3)  # of 1, 3, 5, whose mean is 3; null counts as 3
    assert np.allclose(found.numeric[:, 0], [2 / spread, -2 / spread, 0])
    assert np.allclose(found.numeric[:, 1], [-1, -1, 1])
    assert np.allclose(found.numeric[:, 2], [0, 2**-0.5, 2**-0.5])  # 1, 0, 1: mean 2/3, scale sqrt(2)/3
    assert np.array_equal(found.numeric[:, 3], [0, 0, 0])  # a constant is not divided by 0
    assert np.array_equal(found.numeric[:, 4:], [[0, 1], [0, 0], [1, 0]])  # price and new: where they are missing
    assert np.array_equal(found.categorical, [[1, 3], [1, 1], [0, 1]])
    assert (found.numeric.dtype, found.categorical.dtype) == (np.float32, np.int64)


def test_the_encoder_goes_through_json() -> None:
    _, encoder = fitted()
    again = features.encoder_from(json.loads(json.dumps(encoder.as_json())))
    assert again == encoder


def test_new_rows_are_encoded_as_the_old_ones_were() -> None:
    _, encoder = fitted()
    fresh = TABLE.with_columns(
        item_id=pl.Series([1, 2, 3, 4]),
        kind=pl.Series(["c", "a", "b", ""]),
        price=pl.Series([1.0, float("nan"), 1e9, -1e9]),
        more=pl.Series([date(2020, 1, 1)] * 4).cast(pl.String),
    )
    found = features.encode(encoder, features.read(fresh, "item_id"), pl.Series([1, 2, 3, 4]))
    assert np.array_equal(found.categorical[:, 0], [0, 2, 1, 0])  # never seen: 0
    assert np.allclose(found.numeric[:, 0], [-2 / np.sqrt(8 / 3), 0, 10, -10])  # NaN: the mean; far away: ten scales
    assert np.array_equal(found.numeric[:, 4], [0, 1, 0, 0])  # NaN is missing


def test_who_has_no_row_has_all_of_it_missing() -> None:
    frame = features.read(TABLE.select("item_id", "stock", "kind"), "item_id")
    ids = pl.Series([10, 50, 20])
    assert not features.fit(frame, "item_id").numeric[0].flagged
    encoder = features.fit(frame, "item_id", ids)
    found = features.encode(encoder, frame, ids)
    assert np.array_equal(found.numeric, [[-1, 0], [0, 1], [1, 0]])
    assert np.array_equal(found.categorical[:, 0], [1, 0, 2])
    assert np.array_equal(features.one_hot(encoder, found)[:, 2:], [[1, 0], [0, 0], [0, 1]])


def test_rare_categories_are_not_told_apart(monkeypatch) -> None:
    monkeypatch.setattr(features, "CODES", 2)
    encoder = features.fit(features.read(TABLE, "item_id"), "item_id")
    assert encoder.categorical[1].values == ("x", "y")
    assert features.encode(encoder, TABLE, pl.Series([40])).categorical[0, 1] == 0


def test_a_column_without_any_value_is_the_mean_everywhere() -> None:
    frame = features.read(TABLE.with_columns(price=pl.lit(None, pl.Float64), kind=pl.lit(None, pl.String)), "item_id")
    encoder = features.fit(frame, "item_id")
    found = features.encode(encoder, frame, TABLE["item_id"])
    assert not found.numeric[:, 0].any()
    assert not found.categorical[:, 0].any()
    untyped = features.read(TABLE.with_columns(price=pl.lit(None), kind=pl.lit(None)), "item_id")
    assert [c.name for c in features.fit(untyped, "item_id").numeric] == ["stock", "new", "same"]
    found = features.encode(fitted()[1], untyped, TABLE["item_id"])
    assert not found.numeric[:, 0].any()
    assert not found.categorical[:, 0].any()


def test_a_file_a_lazy_frame_and_string_ids(tmp_path) -> None:
    table = TABLE.with_columns(pl.col("item_id").cast(pl.String))
    table.write_parquet(tmp_path / "items.parquet")
    for source in (tmp_path / "items.parquet", str(tmp_path / "items.parquet"), table.lazy()):
        assert features.read(source, "item_id")["item_id"].to_list() == ["10", "20", "30", "40"]


def test_a_pandas_frame_is_the_same() -> None:
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame(
        {
            "item_id": [10, 20, 30, 40],
            "price": [1.0, 3.0, None, 5.0],
            "stock": [0, 4, 4, 0],
            "new": pd.array([True, False, True, None], dtype="boolean"),
            "same": [0.1] * 4,
            "kind": ["b", "a", None, "b"],
            "shop": pd.Categorical(["x", "y", "x", "z"]),
        }
    )
    frame, encoder = fitted()
    from_pandas = features.read(table, "item_id")
    assert features.fit(from_pandas, "item_id") == encoder
    ours, theirs = (features.encode(encoder, f, TABLE["item_id"]) for f in (frame, from_pandas))
    assert np.array_equal(ours.numeric, theirs.numeric)
    assert np.array_equal(ours.categorical, theirs.categorical)
    with pytest.raises(DataError, match=r"the item frame, column kind: values of mixed types"):
        features.read(table.assign(kind=["a", 1, 2.5, "b"]), "item_id")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (TABLE.drop("item_id"), r"expected a column item_id; the columns are price, stock"),
        (TABLE.clear(), r"has no rows"),
        (TABLE.select("item_id"), r"has item_id and no other column with values\. Add at least one"),
        (
            TABLE.with_columns(item_id=pl.Series([1.5, 2, 3, 4])),
            r"column item_id: expected integers or strings; got Float64",
        ),
        (TABLE.with_columns(item_id=pl.Series([1, None, 3, 4])), r"row 1, column item_id: expected an id; got None"),
        (
            TABLE.with_columns(item_id=pl.Series([7, 8, 7, 8])),
            r"row 2, column item_id: expected one row for each; got item 7 again\. Keep one",
        ),
        (
            TABLE.with_columns(tags=pl.Series([[1], [2], [3], [4]])),
            r"column tags: .* got List\(Int64\)\. Turn it into",
        ),
        (TABLE.with_columns(tags=pl.struct("price", "stock")), r"column tags: features are .* Struct"),
        (TABLE.with_columns(day=pl.lit(date(2020, 1, 1))), r"column day: features are .* got Date\. .*date into days"),
        (
            TABLE.with_columns(price=pl.Series([1.0, 2.0, float("inf"), -float("inf")])),
            r"row 2, column price: expected a number below 1e\+100 in size, or null; got inf\. 2 rows",
        ),
        (42, r"expected a path or a frame of polars or pandas; got int"),
    ],
)
def test_refusals(table, message) -> None:
    with pytest.raises(DataError, match=message):
        features.read(table, "item_id")


def test_a_file_that_is_not_there_or_no_parquet(tmp_path) -> None:
    (tmp_path / "text.parquet").write_text("no")
    for name in ("missing.parquet", "text.parquet"):
        with pytest.raises(DataError, match=rf"{name} cannot be read as a table"):
            features.read(tmp_path / name, "query_id")


def test_refusals_of_encoding() -> None:
    frame, encoder = fitted()
    with pytest.raises(
        DataError, match=r"expected rows for ids of the log \(first: 50\); got rows for none of them \(first: 10"
    ):
        features.encode(encoder, frame, pl.Series([50, 60]))
    with pytest.raises(DataError, match=r"2 ids \(first: 50, 60\) are in the log but not there, among its 4 rows"):
        features.rows(frame, "item_id", pl.Series([10, 50, 60]))
    with pytest.raises(DataError, match=r"item ids are String in the log and Int64 in the table"):
        features.encode(encoder, frame, pl.Series(["10"]))
    with pytest.raises(
        DataError, match=r"trained with the column price \(numbers\), which is not among item_id, stock"
    ):
        features.encode(encoder, frame.drop("price"), pl.Series([10]))
    with pytest.raises(DataError, match=r"column price: the model was trained with numbers; got String"):
        features.encode(encoder, frame.with_columns(pl.col("price").cast(pl.String)), pl.Series([10]))
    with pytest.raises(DataError, match=r"column kind: the model was trained with strings; got Int32"):
        features.encode(encoder, frame.with_columns(kind=pl.lit(1)), pl.Series([10]))
