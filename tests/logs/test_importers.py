"""Logs of other systems: golden files, written by hand from the published schemas, become the logs they should be."""

import json
import re
from pathlib import Path

import polars as pl
import pytest

from tandemrank.errors import ConfigError, LogError
from tandemrank.logs import reading, validation
from tandemrank.logs.importers import run
from tandemrank.logs.importers.run import Imported

GOLDEN = Path(__file__).parent / "golden"


def rows(path: Path) -> list[tuple]:
    """(query, items, clicks) of every impression."""
    return pl.read_parquet(path / "*.parquet").select("query_id", "items", "clicks").rows()


def left_out(found: Imported, what: str) -> dict[str, int]:
    """Why some of a kind are not in the log."""
    return next((count.left_out for count in found.counts if count.what == what), {})


@pytest.mark.parametrize(
    ("kind", "names", "expected", "without"),
    [
        (
            "ubi", ["ubi_queries.jsonl", "ubi_events.jsonl"],
            [("red shoes", ["p1", "p2", "p3"], [0, 1, 0]), ("hat", ["p3", "p1"], [0, 0])], 1,
        ),
        ("metarank", ["metarank.jsonl"], [("cat", ["i3", "i1"], [1, 1]), ("u2", ["i1"], [0])], 1),
        (
            "obd", ["obd.csv"],
            [("position 2", [4], [0]), ("position 3", [12], [1]), ("position 1", [4], [1])], 0,
        ),
        ("ga4", ["ga4.jsonl"], [("home", ["a", "b"], [0, 1]), ("home", ["a"], [0])], 1),
    ],
)  # fmt: skip
def test_a_golden_file_becomes_its_log(kind, names, expected, without, tmp_path) -> None:
    found = run.import_log(kind, [GOLDEN / name for name in names], tmp_path / "log")
    assert rows(tmp_path / "log") == expected
    assert sum(left_out(found, "clicks").values()) == without
    assert (found.impressions, found.clicks) == (len(expected), sum(sum(c) for *_, c in expected))
    assert validation.validate(tmp_path / "log").fit
    assert all((note and note[0].islower()) or note[0].isdigit() for note in found.notes)


def test_obd_propensities_are_those_of_the_rows(tmp_path) -> None:
    run.import_log("obd", [GOLDEN / "obd.csv"], tmp_path / "log")
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
    found = run.import_log("clax", [tmp_path / "part-0.parquet"], tmp_path / "log")
    assert rows(tmp_path / "log") == [("5", [11, 12], [0, 1]), ("6", [11, 13, 14], [0, 1, 0])]
    frame.drop("query_id").write_parquet(tmp_path / "part-1.parquet")
    found = run.import_log("clax", [tmp_path / "part-1.parquet"], tmp_path / "other")
    assert any("name no query" in note for note in found.notes)


def test_ubi_says_whether_ordinals_agree(tmp_path) -> None:
    found = run.import_log("ubi", [GOLDEN / "ubi_queries.jsonl", GOLDEN / "ubi_events.jsonl"], tmp_path / "log")
    assert "100% of the clicks have the ordinal that the list says" in found.notes


def test_another_name_of_a_click(tmp_path) -> None:
    names = [GOLDEN / "ubi_queries.jsonl", GOLDEN / "ubi_events.jsonl"]
    run.import_log("ubi", names, tmp_path / "log", click_names=["hover"])
    assert rows(tmp_path / "log")[0] == ("red shoes", ["p1", "p2", "p3"], [1, 0, 0])


@pytest.mark.parametrize(
    ("kind", "name", "text", "error", "message"),
    [
        ("bing", "a.jsonl", "{}", ConfigError, "--from takes ubi, metarank, ga4, obd, clax, long, wide; got 'bing'"),
        ("ubi", "a.jsonl", '{"query_id": 1}', LogError, "expected events .* and lists"),
        ("metarank", "a.jsonl", '{"id": 1}', LogError, "event = ranking; got none"),
        ("metarank", "a.jsonl", '{"event": "item", "id": "1"}', LogError, "got none"),
        (
            "obd",
            "a.csv",
            "item_id,click\n1,0\n",
            LogError,
            "propensity_score are not there, the columns are item_id",
        ),
        ("ga4", "a.jsonl", '{"event_name": "x", "event_timestamp": 1, "items": 3}', LogError, "hold no impression"),
        (
            "obd",
            "a.csv",
            "item_id,position,click,propensity_score\n1,1,often,0.5\n",
            LogError,
            "a.csv: cannot be read as the format obd",
        ),
        ("ga4", "a.jsonl", '{"event_name": ', LogError, "hold no impression"),
        ("long", "a.jsonl", '{"query_id": 1}\n{"event_name": ', LogError, "cannot read .*line 2 is no JSON"),
        ("clax", "a.txt", "x", LogError, "ends in '.txt'"),
        ("clax", "missing.parquet", None, LogError, "cannot read"),
    ],
)
def test_what_is_not_of_the_format_is_refused(kind, name, text, error, message, tmp_path) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(error, match=message):
        run.import_log(kind, [tmp_path / name], tmp_path / "log")
    assert not (tmp_path / "log").exists()


LONG = """req,user,sku,rank,clicked,p
r2,u1,b,1,1,0.5
r1,u1,a,0,0,0.9
r2,u1,a,0,0,0.8
r1,u1,c,5,1,0.1
r1,u1,c,6,1,0.1
"""
NAMES = {"impression_id": "req", "query_id": "user", "item_id": "sku", "position": "rank", "click": "clicked"}


def test_a_long_table_in_any_order_with_names_of_its_own(tmp_path) -> None:
    (tmp_path / "a.csv").write_text(LONG)
    found = run.import_log("long", [tmp_path / "a.csv"], tmp_path / "log", columns=NAMES | {"propensity": "p"})
    log = pl.read_parquet(tmp_path / "log" / "*.parquet").sort("impression_id", "position")
    assert log.select("impression_id", "item_id", "position", "click", "propensity").rows() == [
        ("r1", "a", 1, 0, 0.9), ("r1", "c", 6, 1, 0.1), ("r2", "a", 1, 0, 0.8), ("r2", "b", 2, 1, 0.5),
    ]  # fmt: skip
    assert left_out(found, "shown items") == {"show an item again in its list (a click on any of them counts)": 1}
    assert left_out(found, "clicks") == {"repeat a click, or are on rows that are left out": 1}
    assert (found.impressions, found.clicks) == (2, 2)
    assert validation.validate(tmp_path / "log").fit


def test_rows_of_a_long_table_that_miss_something_are_left_out_and_counted(tmp_path) -> None:
    text = LONG.replace("r1,u1,a", "r1,,a") + "r3,u1,a,0,1,0.5\nr3,u2,b,1,0,0.5\n"
    (tmp_path / "a.csv").write_text(text)
    found = run.import_log("long", [tmp_path / "a.csv"], tmp_path / "log", columns=NAMES)
    assert pl.read_parquet(tmp_path / "log" / "*.parquet").select("impression_id", "position").rows() == [
        ("r2", 1), ("r2", 2), ("r1", 6),
    ]  # fmt: skip
    assert left_out(found, "shown items") == {
        "have no query_id": 1, "are in an impression of several queries": 2,
        "show an item again in its list (a click on any of them counts)": 1,
    }  # fmt: skip
    assert left_out(found, "impressions") == {"have no shown item that could be kept": 1}


@pytest.mark.parametrize(
    ("text", "columns", "message"),
    [
        (LONG, {}, "expected the columns impression_id, query_id, item_id, position, click"),
        (LONG, NAMES | {"query_id": "who"}, "--column names 'who', but the columns are req, user"),
        (LONG, NAMES | {"query_id": "user.id"}, "--column names 'user.id'"),
        (LONG.replace("0,0,0.9", "0,no,0.9"), NAMES, "expected clicks as 0 and 1; column click is String"),
    ],
)
def test_a_long_table_that_is_none_is_refused(text, columns, message, tmp_path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(LogError, match=message):
        run.import_log("long", [tmp_path / "a.csv"], tmp_path / "log", columns=columns)
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize(
    ("kind", "switches", "message"),
    [
        ("ubi", {"columns": {"query_id": "q"}}, "--column is for tables"),
        ("long", {"click_names": ["buy"]}, "--click-name is for events"),
        ("obd", {"rewards": ["x"]}, "--reward is for --from ubi"),
        ("long", {"rewards": ["click"]}, "that a log does not use itself; got 'click'"),
    ],
)
def test_a_switch_that_a_format_does_not_take_is_refused(kind, switches, message, tmp_path) -> None:
    with pytest.raises(ConfigError, match=message):
        run.import_log(kind, [GOLDEN / "obd.csv"], tmp_path / "log", **switches)


# --- context ----------------------------------------------------------------------------------------------------------


def with_devices() -> pl.DataFrame:
    return pl.DataFrame({
        "query_id": [7, 7, 8], "device": ["phone", "desk", "phone"], "hour": [1, 2, 1],
        "items": [[1, 2], [2, 1], [1, 3]], "clicks": [[1, 0], [0, 0], [0, 1]], "extra": [0, 0, 0],
    })  # fmt: skip


def test_columns_of_context_stay_in_the_log(tmp_path) -> None:
    with_devices().write_parquet(tmp_path / "a.parquet")
    found = run.import_log("wide", [tmp_path / "a.parquet"], tmp_path / "log", context=["device", "hour"])
    assert (found.impressions, found.rewards) == (3, ())
    [part] = (tmp_path / "log").glob("*.parquet")
    assert pl.read_parquet(part).equals(with_devices().select("query_id", "items", "clicks", "device", "hour"))
    flat = with_devices().with_row_index("impression_id").explode("items", "clicks")
    flat = flat.with_columns(position=pl.int_range(2).repeat_by(3).explode().head(len(flat)) + 1)
    flat.rename({"items": "item_id", "clicks": "click"}).write_csv(tmp_path / "a.csv")
    run.import_log("long", [tmp_path / "a.csv"], tmp_path / "again", context=["device"])
    [part] = (tmp_path / "again").glob("*.parquet")
    again = pl.read_parquet(part)
    assert again["device"].to_list() == ["phone", "desk", "phone"]
    assert "hour" not in again.columns


@pytest.mark.parametrize(
    ("kind", "frame", "context", "error", "message"),
    [
        ("ubi", with_devices(), ["device"], ConfigError, "--from long or wide; got 'ubi'"),
        ("wide", with_devices(), ["size"], LogError, "expected the columns query_id, items, clicks, size; size is not"),
        ("wide", with_devices(), ["items"], ConfigError, "got 'items'"),
        ("wide", with_devices().with_columns(items=1), ["device"], LogError, "Is it one row per shown item?"),
    ],
)
def test_context_that_cannot_be_had_is_refused(kind, frame, context, error, message, tmp_path) -> None:
    frame.write_parquet(tmp_path / "a.parquet")
    with pytest.raises(error, match=re.escape(message)):
        run.import_log(kind, [tmp_path / "a.parquet"], tmp_path / "log", context=context)
    assert not (tmp_path / "log").exists()


# --- odd, but legal ---------------------------------------------------------------------------------------------------


def lines(path: Path, *records: dict, mark: str = "") -> Path:
    path.write_text(mark + "".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


STORED = {"query_id": "q1", "user_query": "hat", "query_response_hit_ids": ["a", "b"], "timestamp": 1731240000123}


def clicked(item: str | None, **more: object) -> dict:
    return {"action_name": "click", "query_id": "q1", "event_attributes": {"object": {"object_id": item}}, **more}


def test_clicks_that_name_no_item_or_no_impression_are_counted(tmp_path) -> None:
    queries = lines(tmp_path / "q.jsonl", STORED, STORED | {"query_id": None}, mark="\ufeff")
    events = lines(tmp_path / "e.jsonl", clicked("b"), clicked(None), clicked("a", query_id=None))
    found = run.import_log("ubi", [queries, events], tmp_path / "log")
    assert rows(tmp_path / "log") == [("hat", ["a", "b"], [0, 1])]
    assert left_out(found, "clicks") == {"name no item": 1, "name no impression": 1}
    assert left_out(found, "impressions") == {"have no id, so no click can be theirs": 1}
    [when] = pl.read_parquet(tmp_path / "log" / "*.parquet")["timestamp"]
    assert when.isoformat() == "2024-11-10T12:00:00.123000+00:00"
    assert validation.validate(tmp_path / "log").fit


def test_where_nothing_is_a_click_the_names_of_the_events_are_said(tmp_path) -> None:
    queries, events = lines(tmp_path / "q.jsonl", STORED), lines(tmp_path / "e.jsonl", clicked("b", action_name="buy"))
    found = run.import_log("ubi", [queries, events], tmp_path / "log")
    assert any("the events are named buy. Say which are clicks: --click-name" in note for note in found.notes)
    assert not any(
        "--click-name" in x
        for x in run.import_log("ubi", [queries, events], tmp_path / "log", click_names=["buy"]).notes
    )


def test_metarank_times_in_iso_form_and_interactions_without_a_ranking(tmp_path) -> None:
    ranking = {"event": "ranking", "id": "r1", "user": "u", "timestamp": "2020-09-06T11:24:27Z", "items": [{"id": "a"}]}
    acts = {"event": "interaction", "id": "x", "type": "click", "item": "a", "timestamp": "2020-09-06T11:24:28Z"}
    file = lines(tmp_path / "m.jsonl", ranking, acts | {"ranking": "r1"}, acts | {"ranking": None})
    found = run.import_log("metarank", [file], tmp_path / "log")
    frame = pl.read_parquet(tmp_path / "log" / "*.parquet")
    assert frame["timestamp"].to_list()[0].isoformat() == "2020-09-06T11:24:27+00:00"
    assert frame["clicks"].to_list() == [[1]]
    assert left_out(found, "clicks") == {"name no impression": 1}
    with pytest.raises(LogError, match="hold no impression"):
        run.import_log("metarank", [lines(tmp_path / "n.jsonl", ranking | {"items": ["a"]})], tmp_path / "other")


def test_ga4_events_that_were_sent_together_or_twice(tmp_path) -> None:
    def event(name: str, items: str, index: int) -> dict:
        listed = [{"item_id": item, "item_list_name": "home"} for item in items]
        return {
            "event_name": name,
            "event_timestamp": 10**15,
            "user_pseudo_id": "u",
            "items": listed,
            "batch_event_index": index,
        }

    view, select = event("view_item_list", "ab", 1), event("select_item", "b", 1)
    found = run.import_log("ga4", [lines(tmp_path / "a.jsonl", select, view, view)], tmp_path / "log")
    assert rows(tmp_path / "log") == [("home", ["a", "b"], [0, 1])]
    assert left_out(found, "events") == {"repeat an event, the same in all": 1}
    later = event("view_item_list", "ba", 3)
    run.import_log(
        "ga4", [lines(tmp_path / "b.jsonl", later, select | {"batch_event_index": 2}, view)], tmp_path / "log"
    )
    assert rows(tmp_path / "log") == [("home", ["a", "b"], [0, 1]), ("home", ["b", "a"], [0, 0])]


HEAD = "impression_id,query_id,item_id,position,click\n"


def test_a_long_table_with_a_row_for_the_view_and_one_for_the_click(tmp_path) -> None:
    (tmp_path / "a.csv").write_text(HEAD + "1,7,a,1,0\n1,7,b,2,0\n1,7,b,2,1\n")
    run.import_log("long", [tmp_path / "a.csv"], tmp_path / "log")
    assert rows(tmp_path / "log") == [(7, ["a", "b"], [0, 1])]


def test_positions_of_a_long_table_that_are_texts_or_have_gaps_or_come_twice(tmp_path) -> None:
    def positions() -> list[tuple]:
        return pl.read_parquet(tmp_path / "log" / "*.parquet").select("impression_id", "item_id", "position").rows()

    shown = {"impression_id": 1, "query_id": 7, "click": 0}
    texts = [shown | {"item_id": f"d{n}", "position": str(n)} for n in (10, 2, 1)]
    run.import_log("long", [lines(tmp_path / "a.jsonl", *texts)], tmp_path / "log")
    assert positions() == [(1, "d1", 1), (1, "d2", 2), (1, "d10", 10)]
    (tmp_path / "a.csv").write_text(HEAD + "1,7,a,1,0\n1,7,b,1,1\n2,7,a,0,0\n2,7,b,1,0\n3,7,a,1,0\n3,7,b,,0\n")
    found = run.import_log("long", [tmp_path / "a.csv"], tmp_path / "log")
    assert rows(tmp_path / "log") == [(7, ["a", "b"], [0, 1]), (7, ["a", "b"], [0, 0]), (7, ["a", "b"], [0, 0])]
    assert found.notes[0].startswith("2 impressions have items without a position, or several at one")
    (tmp_path / "a.csv").write_text(HEAD + "1,7,a,11,0\n1,7,b,12,1\n1,7,c,900,1\n")
    found = run.import_log("long", [tmp_path / "a.csv"], tmp_path / "log")
    assert positions() == [(1, "a", 11), (1, "b", 12)]
    assert left_out(found, "shown items") == {"are at a position beyond 512": 1}
    for row, told in (
        ("1,7,a,top,0", "row 0, column position has 'top'"),
        ("1,7,a,1,-1", "row 0, column click has -1"),
    ):
        (tmp_path / "a.csv").write_text(HEAD + row + "\n")
        with pytest.raises(LogError, match=told):
            run.import_log("long", [tmp_path / "a.csv"], tmp_path / "log")


def test_what_is_wrong_with_the_log_that_comes_of_it_is_said(tmp_path) -> None:
    sessions = {
        "query_id": [None, 2],
        "query_doc_ids": [[1, 2], [3, 4]],
        "mask": [[1, 1], [1, 0]],
        "clicks": [[0, 1], [1, 0]],
    }
    pl.DataFrame(sessions).write_parquet(tmp_path / "a.parquet")
    found = run.import_log("clax", [tmp_path / "a.parquet"], tmp_path / "log")
    assert rows(tmp_path / "log") == [(None, [1, 2], [0, 1]), ("2", [3], [1])]
    assert "1 of 2 impressions are without a problem; column query_id in row 0: expected a value" in found.notes[-1]
    assert f"`tandemrank validate {tmp_path / 'log'} --fix CLEAN`" in found.notes[-1]
    (tmp_path / "a.csv").write_text(HEAD + "1,7.0,a,1,0\n")
    with pytest.raises(
        LogError, match="no impression of the files can be used; column query_id: expected integers or strings"
    ):
        run.import_log("long", [tmp_path / "a.csv"], tmp_path / "other")
    assert not (tmp_path / "other").exists()
