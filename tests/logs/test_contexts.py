"""A log by queries in their context: ids, values of every kind, and the sums without contexts, bit by bit."""

import numpy as np
import polars as pl
import pytest

from tandemrank._base.frames import named, text_of
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError, InputError, LogError
from tandemrank.logs import reading
from tandemrank.logs.contexts import Contexts, in_context

LOG = pl.DataFrame(
    {
        "query_id": [7, 7, 8, 7],
        "items": [["a", "b"], ["b"], ["c", "a"], ["a"]],
        "clicks": [[1, 0], [1], [0, 1], [0]],
        "device": ["phone", None, "tv", "phone"],
        "hour": [20.0, 3.0, 20.0, 20.0],
    }
)


def test_a_query_in_its_context_has_an_id_of_both_and_is_taken_apart_again() -> None:
    read = reading.read_parts(LOG, context=["device", "hour"]).train[0]
    assert read.vocabulary.query_ids.to_list() == [
        '{"query_id":7,"device":"phone","hour":"20"}',
        '{"query_id":7,"device":null,"hour":"3"}',
        '{"query_id":8,"device":"tv","hour":"20"}',
    ]
    assert read.impressions.tolist() == [2, 1, 1]
    for found in (Contexts.of(read.vocabulary, ["device", "hour"]), Contexts.within(read.vocabulary)):
        assert found.vocabulary.query_ids.to_list() == [7, 8]
        assert found.base.tolist() == [0, 0, 1]
        assert found.table.rows() == [("phone", "20"), (None, "3"), ("tv", "20")]
    assert Contexts.within(Vocabulary(["7", "8"], ["a"])) is None
    assert Contexts.within(Vocabulary([7, 8], ["a"])) is None


def test_ids_that_are_texts_stay_texts() -> None:
    read = reading.read_parts(LOG.with_columns(pl.col("query_id").cast(pl.String)), context=["device"]).train[0]
    assert Contexts.of(read.vocabulary, ["device"]).vocabulary.query_ids.to_list() == ["7", "8"]


@pytest.mark.parametrize("weighted", [False, True])
def test_pooled_sums_are_the_bits_of_a_log_without_contexts(weighted) -> None:
    rng = np.random.default_rng(0)
    n = 300
    frame = pl.DataFrame(
        {
            "query_id": rng.integers(9, size=n),
            "items": [rng.permutation(6)[:3].tolist() for _ in range(n)],
            "clicks": rng.integers(2, size=(n, 3)).tolist(),
            "propensities": rng.uniform(0.1, 1, size=(n, 3)).tolist(),
            "device": rng.integers(3, size=n),
            "timestamp": rng.random(n),
            **({"weight": rng.uniform(0.1, 7, size=n)} if weighted else {}),
        }
    )
    plain, inside = (reading.read_parts(frame, (0.2,), times=3, lists=40, context=c) for c in ((), ("device",)))
    found = inside.without_contexts(Contexts.of(inside.train[0].vocabulary, ["device"]))
    for ours, theirs in zip((*found.train, *found.held_out), (*plain.train, *plain.held_out), strict=True):
        for name in ("query", "item", "rank", "shown", "clicks", "logged", "others", "impressions"):
            assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
        assert ours.exact.keys() == theirs.exact.keys()
        assert all(np.array_equal(ours.exact[name], theirs.exact[name]) for name in ours.exact)
        assert (ours.heaviest, ours.anew) == (theirs.heaviest, theirs.anew)
        assert ours.vocabulary.query_ids.equals(theirs.vocabulary.query_ids)
    assert np.array_equal(found.first.query, plain.first.query)
    assert np.array_equal(found.first.items, plain.first.items)


def test_forms_of_a_log_and_known_ids(tmp_path) -> None:
    """Long CSV, JSON lines; a column that some files do not have is unknown there."""
    long = (
        LOG.with_row_index("impression_id").explode("items", "clicks").rename({"items": "item_id", "clicks": "click"})
    )
    long = long.with_columns(position=pl.int_range(pl.len()).over("impression_id") + 1)
    long.write_csv(tmp_path / "a.csv")
    LOG.select("query_id", "items", "clicks", "device").write_ndjson(tmp_path / "b.jsonl")
    LOG.select("query_id", "items", "clicks").write_parquet(tmp_path / "c.parquet")
    for name, devices in (("a.csv", 3), ("b.jsonl", 3), ("c.parquet", 2)):
        assert devices == reading.read_parts(tmp_path / name, context=["device"]).train[0].Q
    read = reading.read_parts(tmp_path, context=["device"]).train[0]
    found = Contexts.of(read.vocabulary, ["device"], Vocabulary([8, 7, 9], ["c", "b", "a"]))
    assert found.pooled(read).impressions.tolist() == [3, 9, 0]
    with pytest.raises(InputError, match="2 unknown query ids"):
        Contexts.of(read.vocabulary, ["device"], Vocabulary([7], ["c", "b", "a"]))


@pytest.mark.parametrize(
    ("columns", "frame", "told"),
    [
        (
            ["device"],
            LOG.with_columns(device=pl.lit(None)),
            "expected a column device in the log; got none with a value",
        ),
        (["shop"], LOG, "expected a column shop in the log"),
        (["items"], LOG, "expected columns that a log does not use itself; got 'items'"),
        ("device", LOG, r'expected a list of columns of the log, such as \["device"\]'),
        (["device", "device"], LOG, "expected every column once"),
        (
            ["tags"],
            LOG.with_columns(tags=pl.lit([1])),
            "column tags: expected numbers, texts or categories as a context",
        ),
        (
            ["day"],
            LOG.with_columns(day=pl.lit(0).cast(pl.Date)),
            "the frame, column day: .* got Date. Make texts of it",
        ),
        (
            ["hour"],
            pl.concat([LOG] * 20).with_columns(hour=pl.int_range(80) / 7),
            "column hour: expected at most 50 different values of a context; got 80. Round numbers, or cut",
        ),
        (["device"], LOG.with_columns(query_id=pl.Series([7, None, 8, 7])), "row 1, column query_id: expected a value"),
    ],
)
def test_contexts_that_cannot_be_used_are_refused(columns, frame, told) -> None:
    with pytest.raises((LogError, ConfigError), match=told):
        Contexts.of(reading.read_parts(frame, context=columns).train[0].vocabulary, columns)


def test_an_impression_has_one_context() -> None:
    long = (
        LOG.with_row_index("impression_id").explode("items", "clicks").rename({"items": "item_id", "clicks": "click"})
    )
    long = long.with_columns(position=pl.int_range(pl.len()).over("impression_id") + 1, device=pl.int_range(pl.len()))
    with pytest.raises(LogError, match="one query in an impression"):
        reading.read_parts(long, context=["device"])


def test_values_are_texts_and_names_are_known() -> None:
    assert [text_of(x) for x in ("phone", 20, 20.0, 2.5, True, None)] == ["phone", "20", "20", "2.5", "true", None]
    assert named({"device": 3}, ["hour", "device"]) == {"hour": None, "device": "3"}
    with pytest.raises(
        ConfigError, match="expected columns among hour, device, which the policy was learned with; got 'shop'"
    ):
        named({"shop": 3}, ["hour", "device"])
    with pytest.raises(ConfigError, match="expected values by the names of columns"):
        named(["device"], ["device"])
    assert in_context(LOG, ()) is LOG
