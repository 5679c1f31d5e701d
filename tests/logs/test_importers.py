"""Logs of other systems: golden files, written by hand from the published schemas, become the logs they should be."""

from pathlib import Path

import polars as pl
import pytest

from tandemrank.errors import ConfigError, LogError
from tandemrank.logs import importers, reading, validation

GOLDEN = Path(__file__).parent / "golden"


def rows(path: Path) -> list[tuple]:
    """(query, items, clicks) of every impression."""
    return pl.read_parquet(path / "*.parquet").select("query_id", "items", "clicks").rows()


@pytest.mark.parametrize(
    ("kind", "names", "expected", "unmatched"),
    [
        (
            "ubi", ["ubi_queries.jsonl", "ubi_events.jsonl"],
            [("red shoes", ["p1", "p2", "p3"], [0, 1, 0]), ("hat", ["p3", "p1"], [0, 0])], 1,
        ),
        ("metarank", ["metarank.jsonl"], [("cat", ["i3", "i1"], [0, 1]), ("u2", ["i1"], [0])], 1),
        (
            "obd", ["obd.csv"],
            [("position 2", [4], [0]), ("position 3", [12], [1]), ("position 1", [4], [1])], 0,
        ),
        ("ga4", ["ga4.jsonl"], [("home", ["a", "b"], [0, 1]), ("home", ["a"], [0])], 1),
    ],
)  # fmt: skip
def test_a_golden_file_becomes_its_log(kind, names, expected, unmatched, tmp_path) -> None:
    found = importers.import_log(kind, [GOLDEN / name for name in names], tmp_path / "log")
    assert rows(tmp_path / "log") == expected
    assert found.unmatched == unmatched
    assert (found.impressions, found.clicks) == (len(expected), sum(sum(c) for *_, c in expected))
    assert validation.validate(tmp_path / "log").fit
    assert all((note and note[0].islower()) or note[0].isdigit() for note in found.notes)


def test_obd_propensities_are_those_of_the_rows(tmp_path) -> None:
    importers.import_log("obd", [GOLDEN / "obd.csv"], tmp_path / "log")
    feedback = reading.read(tmp_path / "log")
    assert sorted(feedback.propensity.tolist()) == pytest.approx([0.029412, 0.029412, 0.125])


def test_clax_sessions_with_padding_and_order(tmp_path) -> None:
    frame = pl.DataFrame(
        {
            "query_id": [5, 6],
            "query_doc_ids": [[11, 12, 0], [13, 11, 14]],
            "positions": [[1, 2, 3], [2, 1, 3]],
            "mask": [[True, True, False], [True, True, True]],
            "clicks": [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]],
        }
    )
    frame.write_parquet(tmp_path / "part-0.parquet")
    found = importers.import_log("clax", [tmp_path / "part-0.parquet"], tmp_path / "log")
    assert rows(tmp_path / "log") == [("5", [11, 12], [0, 1]), ("6", [11, 13, 14], [0, 1, 0])]
    frame.drop("query_id").write_parquet(tmp_path / "part-1.parquet")
    found = importers.import_log("clax", [tmp_path / "part-1.parquet"], tmp_path / "other")
    assert any("name no query" in note for note in found.notes)


def test_ubi_says_whether_ordinals_agree() -> None:
    log = importers.ubi(
        [importers.read(GOLDEN / "ubi_queries.jsonl"), importers.read(GOLDEN / "ubi_events.jsonl")],
        frozenset({"click"}),
    )
    assert any("100% of the clicks have the ordinal" in note for note in log.notes)


def test_another_name_of_a_click(tmp_path) -> None:
    names = [GOLDEN / "ubi_queries.jsonl", GOLDEN / "ubi_events.jsonl"]
    importers.import_log("ubi", names, tmp_path / "log", click_names=["hover"])
    assert rows(tmp_path / "log")[0] == ("red shoes", ["p1", "p2", "p3"], [1, 0, 0])


@pytest.mark.parametrize(
    ("kind", "name", "text", "error", "message"),
    [
        ("bing", "a.jsonl", "{}", ConfigError, "--from takes ubi, metarank, obd, ga4, clax; got 'bing'"),
        ("ubi", "a.jsonl", '{"query_id": 1}', LogError, "expected two kinds of files"),
        ("metarank", "a.jsonl", '{"id": 1}', LogError, "event is not there"),
        ("metarank", "a.jsonl", '{"event": "item", "id": "1"}', LogError, "none came"),
        ("obd", "a.csv", "item_id,click\n1,0\n", LogError, "position, propensity_score is not there"),
        ("ga4", "a.jsonl", '{"event_name": "x", "event_timestamp": 1, "items": 3}', LogError, "lists of records"),
        ("ga4", "a.jsonl", '{"event_name": ', LogError, "cannot read"),
        ("clax", "a.txt", "x", LogError, "ends in '.txt'"),
        ("clax", "missing.parquet", None, LogError, "cannot read"),
    ],
)
def test_what_is_not_of_the_format_is_refused(kind, name, text, error, message, tmp_path) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(error, match=message):
        importers.import_log(kind, [tmp_path / name], tmp_path / "log")
    assert not (tmp_path / "log").exists()
