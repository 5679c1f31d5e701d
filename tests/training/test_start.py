"""Where training starts without ratings: from clicks, and from given embeddings; and features of every awkward kind."""

import numpy as np
import polars as pl
import pytest
import torch

import featured
import tandemrank as tr
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError, DataError
from tandemrank.reports import training
from tandemrank.training import start
from tandemrank.training.learning import Listener


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
        (ITEMS.with_columns(embedding=pl.lit(1.0)), r"column embedding: expected lists of numbers; got Float64"),
        (
            ITEMS.with_columns(embedding=pl.lit(["a"])),
            r"column embedding: expected lists of numbers; got List\(String\)",
        ),
        (
            ITEMS.with_columns(embedding=pl.Series([[1.0, 2.0], [1.0], [3.0, 4.0]])),
            r"row 1, column embedding: expected 2 numbers, as in row 0; got 1",
        ),
        (ITEMS.with_columns(embedding=pl.Series([[1.0, 2.0], None, [3.0, 4.0]])), r"row 1, .* 2 numbers.* got 0"),
        (
            ITEMS.with_columns(embedding=pl.Series([[], [], []], dtype=pl.List(pl.Float64))),
            r"row 0, column embedding: expected some numbers",
        ),
        (
            ITEMS.with_columns(embedding=pl.Series([[1.0, 2.0], [1.0, float("nan")], [None, 4.0]])),
            r"row 1, column embedding: expected finite numbers, at most 1e\+15 in size; got \[1.0, nan\]\. 2 rows",
        ),
        (ITEMS[:2], r"the item frame, column item_id: id 3 is in the log but not there, among its 2 rows"),
        (
            ITEMS.with_columns(item_id=pl.Series([1, 1, 3])),
            r"row 1, column item_id: expected one row for each; got item 1 again",
        ),
        (
            ITEMS.with_columns(embedding=pl.lit([1.0, 2.0, 3.0])),
            r"column embedding: those of queries have 2 numbers and those of items 3",
        ),
    ],
)
def test_refusals_of_embeddings(items, message) -> None:
    with pytest.raises(DataError, match=message):
        start.from_embeddings(QUERIES, items, NAMES)


# --- features of every awkward kind -----------------------------------------------------------------------------------

SHORT, FEW = featured.log(400), tr.LearningConfig(candidates=12, model="none")


def test_columns_of_every_kind_are_learned_from_and_new_items_may_miss_any_of_them() -> None:
    """Half of the items have a row, most of it is useless, and one that was never shown has a row too."""
    ids = [*range(0, featured.D, 2), featured.NEW]
    n = len(ids)
    table = pl.DataFrame(
        {
            "item_id": ids,
            "a": [*featured.Z[0:-1:2, 0], featured.Z[-1, 0]],
            "word": ["x", "y", None] * (n // 3),
            "title": [f"title {d}" for d in ids],  # a category for every item
            "bool": [True, None, False] * (n // 3),
            "constant": [7] * n,
            "nothing": pl.Series([None] * n, dtype=pl.Float64),
            "untyped": [None] * n,
            "huge": [1e90] + [0.0] * (n - 1),
        }
    )
    found = tr.learn(SHORT, FEW, start=tr.Start(item_features=table), method="beliefs")
    policy = found.policy
    assert featured.NEW in policy.vocabulary.item_ids
    scores = [s.numpy() for s in policy.plain_scores(range(len(policy.vocabulary.query_ids)))]
    assert all(np.isfinite(s).all() for s in scores)
    place = policy.vocabulary.items(pl.Series([featured.NEW]))[0]
    before = [(s > s[:, [place]]).sum(1).mean() for s in scores]
    assert before[0] < before[1] + 3  # the generator does not leave it out for being new
    row = table.head(1).with_columns(item_id=pl.lit(901), a=None, word=pl.lit("never seen"), title=None)
    assert len(policy.recommend([3], item_features=row)["items"][0]) == featured.K
    with pytest.raises(DataError, match="was trained with the column word"):
        policy.recommend([3], item_features=row.drop("word"))
    with pytest.raises(DataError, match="expected ids of Int64, as the policy has; got String"):
        policy.recommend([3], item_features=row.with_columns(item_id=pl.lit("901")))


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"a": [1.0, 2.0, 3.0]}, "features of ids of the log|rows for none of them"),
        ({"item_id": ["0", "1", "2"], "a": [1.0, 2.0, 3.0]}, "Int64 in the log, String in the features"),
        (
            {"item_id": [0, 1, 1], "a": [1.0, 2.0, 3.0]},
            r"row 2, column item_id: expected one row for each; got item 1 again\. Keep one",
        ),
        ({"item_id": [0, 1, 2], "day": pl.Series([0, 1, 2]).cast(pl.Date)}, "got Date"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(table, told) -> None:
    with pytest.raises(DataError, match=told):
        tr.learn(SHORT, FEW, start=tr.Start(item_features=pl.DataFrame({"item_id": [97, 98, 99], **table})))


def test_what_is_known_after_the_click_alone_is_said_by_learn_and_in_the_report(tmp_path) -> None:
    """Seconds that were read: there where something was clicked, and nowhere else."""
    long = SHORT.explode("items", "clicks").group_by("query_id", "items").agg(pl.col("clicks").sum())
    read = long.filter(pl.col("clicks") > 0).select("query_id", item_id="items", seconds=pl.col("clicks") * 7)
    heard: list[str] = []
    found = tr.learn(
        SHORT.drop("timestamp"), FEW, start=tr.Start(pair_features=read), listener=Listener(note=heard.append)
    )
    words = "The feature of having a row in the table of pairs alone tells clicked pairs from the others."
    assert any(said.startswith(words) for said in heard)
    assert words in training.report(found).write(tmp_path / "report.html").read_text()


def test_features_without_effect_are_refused() -> None:
    some = tr.Start(query_embeddings=QUERIES, item_embeddings=ITEMS, item_features=featured.table("item"))
    config = tr.LearningConfig(objective="ips")
    with pytest.raises(ConfigError, match="features would have no effect: what is given is trained on clicks alone"):
        tr.learn(SHORT, config, start=some, method="joint")
