"""Where training starts without ratings: from clicks, and from given embeddings."""

import numpy as np
import polars as pl
import pytest
import torch

from tandemrank._base.ids import Vocabulary
from tandemrank.errors import DataError
from tandemrank.training import start


def scores(scorer) -> np.ndarray:
    return scorer(torch.arange(scorer.spec()["Q"])).detach().numpy()


QUERIES = pl.DataFrame({"query_id": ["b", "a"], "embedding": [[1.0, 2.0], [3.0, 4.0]]})
ITEMS = pl.DataFrame({"item_id": [1, 2, 3], "embedding": [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]})
NAMES = Vocabulary(pl.Series(["a", "b"]), pl.Series([3, 1, 2]))


def test_given_embeddings_are_taken_as_they_are(tmp_path) -> None:
    QUERIES.write_parquet(tmp_path / "q.parquet")
    as_array = ITEMS.with_columns(pl.col("embedding").cast(pl.Array(pl.Float32, 2)))
    for queries, items in ((QUERIES, ITEMS), (tmp_path / "q.parquet", as_array)):
        assert np.array_equal(scores(start.from_embeddings(queries, items, NAMES)), [[7, 3, 4], [3, 1, 2]])


def test_given_embeddings_from_pandas() -> None:
    pd = pytest.importorskip("pandas")
    items = pd.DataFrame({"item_id": [1, 2, 3], "embedding": [np.array(x) for x in ITEMS["embedding"].to_list()]})
    assert np.array_equal(scores(start.from_embeddings(QUERIES, items, NAMES)), [[7, 3, 4], [3, 1, 2]])


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (ITEMS.drop("embedding"), r"the item frame: expected a column embedding; the columns are item_id"),
        (ITEMS.drop("item_id"), r"expected a column item_id; the columns are embedding"),
        (ITEMS.with_columns(embedding=pl.lit(1.0)), r"column embedding: expected lists of numbers; Float64 came"),
        (ITEMS.with_columns(embedding=pl.lit(["a"])), r"column embedding: expected lists of numbers; List\(String\)"),
        (
            ITEMS.with_columns(embedding=pl.Series([[1.0, 2.0], [1.0], [3.0, 4.0]])),
            r"row 1, column embedding: expected 2 numbers, as in row 0; 1 came",
        ),
        (ITEMS.with_columns(embedding=pl.Series([[1.0, 2.0], None, [3.0, 4.0]])), r"row 1, .* 2 numbers.* 0 came"),
        (
            ITEMS.with_columns(embedding=pl.Series([[], [], []], dtype=pl.List(pl.Float64))),
            r"row 0, column embedding: expected some numbers",
        ),
        (
            ITEMS.with_columns(embedding=pl.Series([[1.0, 2.0], [1.0, float("nan")], [None, 4.0]])),
            r"row 1, column embedding: expected finite numbers, at most 1e\+15 in size; \[1.0, nan\] came\. 2 rows",
        ),
        (ITEMS[:2], r"the item frame, column item_id: id 3 is in the log but not there, among its 2 rows"),
        (ITEMS.with_columns(item_id=pl.Series([1, 1, 3])), r"id 1 is there more than once"),
        (
            ITEMS.with_columns(embedding=pl.lit([1.0, 2.0, 3.0])),
            r"column embedding: those of queries have 2 numbers and those of items 3",
        ),
    ],
)
def test_refusals_of_embeddings(items, message) -> None:
    with pytest.raises(DataError, match=message):
        start.from_embeddings(QUERIES, items, NAMES)
