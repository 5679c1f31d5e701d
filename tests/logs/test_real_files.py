"""Files as other systems really write them keep what their events say, and every count adds up."""

import json
from pathlib import Path

import polars as pl
import pytest

import dialects
from tandemrank.errors import LogError
from tandemrank.logs import reading, validation
from tandemrank.logs.importers import run
from tandemrank.logs.importers.run import Imported


def lists_of(path: Path) -> dict[str, tuple[str, list[str], set[str]]]:
    """Of every impression: the query, the items and those clicked."""
    rows = pl.read_parquet(path / "*.parquet").to_dicts()
    clicked = [{d for d, c in zip(row["items"], row["clicks"], strict=True) if c} for row in rows]
    return {
        row["impression_id"]: (row["query_id"], row["items"], some) for row, some in zip(rows, clicked, strict=True)
    }


def expected(known: dialects.Truth) -> dict[str, tuple[str, list[str], set[str]]]:
    return {q: (known.texts[q], items, known.clicked.get(q, set())) for q, items in known.lists.items()}


def adds_up(found: Imported) -> dict[str, tuple[int, int]]:
    """Kept and given of each kind; what was left out is the rest."""
    for count in found.counts:
        assert count.given == count.kept + sum(count.left_out.values())
        assert all(number > 0 for number in count.left_out.values())
    return {count.what: (count.kept, count.given) for count in found.counts}


def repeats(found: Imported) -> int:
    [number] = [count.repeats for count in found.counts if count.what == "clicks"]
    return number


@pytest.mark.parametrize("dialect", dialects.DIALECTS)
def test_every_dialect_of_ubi_keeps_what_its_events_say(dialect, tmp_path) -> None:
    known = dialects.truth()
    files = dialects.DIALECTS[dialect](known, tmp_path)
    found = run.import_log("ubi", files, tmp_path / "log")
    assert lists_of(tmp_path / "log") == expected(known)
    counts = adds_up(found)
    assert counts["shown items"] == (dialects.SHOWN, dialects.SHOWN)
    assert counts["clicks"] == (dialects.CLICKS - dialects.STRAY, dialects.CLICKS)
    assert repeats(found) == dialects.REPEATED
    assert found.clicks == dialects.CLICKS - dialects.STRAY - dialects.REPEATED
    given = dialects.LISTS if dialect == "first plugin" else dialects.QUERIES
    assert counts["impressions"] == (dialects.LISTS, given)
    assert validation.validate(tmp_path / "log").fit
    if dialect in ("schema", "chorus"):
        name = "add_to_cart" if dialect == "schema" else "purchase"
        assert found.rewards == (name,)
        assert rewards_of(tmp_path / "log", name) == known.carts


def rewards_of(path: Path, name: str) -> dict[tuple[str, str], float]:
    rows = pl.read_parquet(path / "*.parquet").select("impression_id", "items", name).explode("items", name).rows()
    return {(q, item): value for q, item, value in rows if value}


def test_lost_events_leave_a_gap_and_not_another_rank(tmp_path) -> None:
    known = dialects.truth()
    [file] = dialects.schema_1_3(known, tmp_path)
    query = max(known.lists)
    lines = file.read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if query in line and '"impression"' in line and '"ordinal": 1}' in line)
    file.write_text("\n".join(lines[: at - 1] + lines[at + 1 :]))
    found = run.import_log("ubi", [file], tmp_path / "log")
    log = pl.read_parquet(tmp_path / "log" / "*.parquet")
    assert log.filter(impression_id=query)["position"].to_list() == [1, 3, 4, 5]
    assert (found.impressions, len(log)) == (dialects.LISTS, dialects.SHOWN - 1)
    assert reading.read(tmp_path / "log").N == dialects.LISTS


def stored(q: str, *hits: object, text: str = "hat", time: str = "2024-12-10T00:00:01Z") -> dict:
    return {"query_id": q, "user_query": text, "query_response_hit_ids": list(hits), "timestamp": time}


def event(item: object, q: str = "a", ordinal: int | None = None, name: str = "impression", **more: object) -> dict:
    where = {"object": {"object_id": item}, "position": {"ordinal": ordinal}}
    return {"action_name": name, "query_id": q, "event_attributes": where} | more


def imported(folder: Path, *records: dict, end: str = "") -> Imported:
    path = folder / "a.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in records) + end)
    return run.import_log("ubi", [path], folder / "log")


def test_events_without_ordinals_are_in_the_order_they_came_and_hits_stand_in_for_none(tmp_path) -> None:
    found = imported(
        tmp_path,
        stored("a"),
        stored("b", "x", 7, time="2024-12-10"),
        {"query_id": "c", "user_query": "hat"},
        *(event("z"), event("x"), event("z"), event(None), event("x", "b", event_attributes={"page": 1})),
        event(7, "b", name="click"),
        end='{"half": ',
    )
    assert lists_of(tmp_path / "log") == {"a": ("hat", ["z", "x"], set()), "b": ("hat", ["x", "7"], {"7"})}
    counts = {count.what: count.left_out for count in found.counts}
    assert counts["impressions"] == {"have neither impression events nor hits": 1}
    assert counts["shown items"] == {
        "have no item_id": 2,
        "show an item again in its list (a click on any of them counts)": 1,
    }
    assert counts["lines"] == {"are no JSON objects (first: a.jsonl, line 10)": 1}
    assert (
        "1 impressions have items without a position, or several at one: their order is that of the rows" in found.notes
    )
    assert pl.read_parquet(tmp_path / "log" / "*.parquet")["timestamp"].null_count() == 0


def test_stored_hits_fill_the_places_of_lost_events_down_to_the_last_that_was_seen(tmp_path) -> None:
    clicks = event("w", ordinal=4, name="click"), event("y", ordinal=2, name="click")
    # The page counts its first two places as 1, and tells nothing of y and w.
    found = imported(tmp_path, stored("a", *"xyzwuv"), event("x", ordinal=1), event("z", ordinal=2), *clicks)
    assert lists_of(tmp_path / "log") == {"a": ("hat", ["x", "y", "z", "w"], {"y", "w"})}
    filled = "2 items have no event, but stand in the stored hits above one that has, and count as shown with it"
    assert filled in found.notes
    assert adds_up(found)["clicks"] == (2, 2)


def test_ordinals_that_contradict_the_hits_are_the_order_of_the_page(tmp_path) -> None:
    imported(tmp_path, stored("a", *"xyz"), event("z", ordinal=1), event("x", ordinal=2), event("x", name="click"))
    assert lists_of(tmp_path / "log") == {"a": ("hat", ["z", "x"], {"x"})}


def test_several_searches_of_one_id_are_several_impressions(tmp_path) -> None:
    twice = stored("a", *"xyz", text="red hta", time="2024-12-10T00:00:01Z")
    right = stored("a", *"uvw", text="red hat", time="2024-12-10T00:00:09Z")
    never = stored("a", *"st", text="red", time="2024-12-10T00:00:00Z")
    events = [
        event("u", ordinal=1),
        event("v", ordinal=2),
        event("x", ordinal=1),
        event("p", ordinal=1, user_query="r"),
    ]
    found = imported(tmp_path, right, twice, stored("a"), never, *events, event("v", name="click"))
    assert lists_of(tmp_path / "log") == {
        "a/0": ("r", ["p"], set()),
        "a/2": ("red hta", ["x"], set()),
        "a/3": ("red hat", ["u", "v"], {"v"}),
    }
    assert adds_up(found)["impressions"] == (3, 4)


def test_each_application_counts_ordinals_in_its_own_way(tmp_path) -> None:
    one = [event(item, "a", k, application="one") for k, item in enumerate("xyz")]
    other = [event(item, "b", k, application="other") for k, item in enumerate("xyz", 1)]
    found = imported(tmp_path, *one, *other, event("y", "a", 1, "click", application="one"))
    assert [items for _, items, _ in lists_of(tmp_path / "log").values()] == [["x", "y", "z"]] * 2
    assert "100% of the clicks have the ordinal that the list says" in found.notes


def test_the_public_sample_of_opensearch(tmp_path, ubi_sample) -> None:
    found = run.import_log("ubi", [ubi_sample], tmp_path / "log")
    counts = adds_up(found)
    assert counts["impressions"] == (290, 296)
    assert counts["clicks"] == (287, 298)  # the other 11 are of ids without a list
    assert (repeats(found), found.clicks) == (97, 190)
    assert counts["add_to_cart"] == (227, 234)
    assert found.rewards == ("add_to_cart",)
    assert validation.validate(tmp_path / "log").fit


def test_an_answer_of_a_search_engine_and_a_csv_with_names_of_fields_are_read(tmp_path) -> None:
    known = dialects.truth()
    [file] = dialects.first_plugin(known, tmp_path)
    records = [json.loads(line) for line in file.read_text().splitlines()]
    (tmp_path / "answer.json").write_text(
        json.dumps({"hits": {"total": 1, "hits": [{"_source": one} for one in records]}})
    )
    run.import_log("ubi", [tmp_path / "answer.json"], tmp_path / "log")
    assert lists_of(tmp_path / "log") == expected(known)
    rows = [
        {"query_id": r["query_id"], "user_query": r["user_query"], "action_name": r["action_name"],
         "event_attributes.object.object_id": r["event_attributes"]["object"]["object_id"],
         "event_attributes.position.ordinal": r["event_attributes"]["rank"]} for r in records
    ]  # fmt: skip
    pl.DataFrame(rows).write_csv(tmp_path / "events.csv")
    run.import_log("ubi", [tmp_path / "events.csv"], tmp_path / "log")
    assert lists_of(tmp_path / "log") == expected(known)
    pl.DataFrame(records).write_parquet(tmp_path / "events.parquet")
    run.import_log("ubi", [tmp_path / "events.parquet"], tmp_path / "log")
    assert lists_of(tmp_path / "log") == expected(known)


def test_ga4_as_bigquery_writes_it(tmp_path) -> None:
    known = dialects.truth()
    found = run.import_log("ga4", dialects.ga4(known, tmp_path), tmp_path / "log")
    log = {tuple(items): (query, clicked) for query, items, clicked in lists_of(tmp_path / "log").values()}
    assert log == {tuple(items): (query, clicked) for query, items, clicked in expected(known).values()}
    counts = adds_up(found)
    assert counts["shown items"] == (dialects.SHOWN, dialects.SHOWN)
    assert counts["impressions"] == (dialects.LISTS, dialects.LISTS)
    assert counts["clicks"] == (dialects.CLICKS - dialects.STRAY, dialects.CLICKS)
    assert found.rewards == ("purchase", "revenue")
    [events] = [count.left_out for count in found.counts if count.what == "events"]
    assert events == {"repeat an event, the same in all": dialects.LISTS, "name no visitor": 1}
    paid = pl.read_parquet(tmp_path / "log" / "*.parquet")["revenue"].list.sum().sum()
    assert paid == pytest.approx(2.5 * sum(known.carts.values()))


def test_metarank_with_fields_of_every_type(tmp_path) -> None:
    known = dialects.truth()
    found = run.import_log("metarank", dialects.metarank(known, tmp_path), tmp_path / "log")
    assert lists_of(tmp_path / "log") == expected(known)
    counts = adds_up(found)
    assert counts["clicks"] == (dialects.CLICKS - dialects.STRAY, dialects.CLICKS + 5)
    assert rewards_of(tmp_path / "log", "purchase") == dict.fromkeys(known.carts, 1.0)


NAMES = {
    "impression_id": "srch_id", "query_id": "srch_destination_id", "item_id": "prop_id", "click": "click_bool",
    "policy": "random_bool",
}  # fmt: skip


def test_a_table_of_searches_keeps_positions_rewards_and_the_policy(tmp_path) -> None:
    path, rows = dialects.expedia(tmp_path)
    found = run.import_log(
        "long", [path], tmp_path / "log", columns=NAMES, rewards=["booking_bool", "gross_bookings_usd"]
    )
    log = pl.read_parquet(tmp_path / "log" / "*.parquet")
    kept = {(r["impression_id"], r["item_id"]): r for r in log.to_dicts()}
    assert len(kept) == len(rows)
    for row in rows:
        one = kept[row["srch_id"], row["prop_id"]]
        assert one["position"] == row["position"]
        assert (one["click"], one["booking_bool"]) == (row["click_bool"], row["booking_bool"])
        assert one["gross_bookings_usd"] == (0.0 if row["gross_bookings_usd"] == "NULL" else row["gross_bookings_usd"])
        assert one["policy"] == row["random_bool"]
    counts = adds_up(found)
    assert counts["impressions"] == (300, 300)
    assert counts["booking_bool"] == (sum(r["booking_bool"] for r in rows),) * 2
    valid = validation.validate(tmp_path / "log")
    assert valid.fit
    assert {p.policy: p.impressions for p in valid.log.policies} == {"0": 200, "1": 100}
    shown = reading.read(tmp_path / "log")
    assert set(shown.rank + 1) == set(range(1, 21)) - set(dialects.GAPS)


def test_documents_of_a_search_engine_as_rows_of_a_table(tmp_path) -> None:
    documents = [
        {
            "search": {"query": "hat", "results": [{"document": {"id": "a"}}, {"document": {"id": "b"}}]},
            "opened": ["b"],
        },
        {"search": {"query": "cap", "results": [{"document": {"id": "b"}}]}, "opened": []},
        {"search": {"query": "none", "results": []}, "opened": []},
    ]
    lines = [{"index": {"_index": "searches"}}, documents[0], {"index": {}}, documents[1], {"index": {}}, documents[2]]
    (tmp_path / "a.ndjson").write_text("".join(json.dumps(one) + "\n" for one in lines))
    names = {"query_id": "search.query", "items": "search.results.document.id", "clicked": "opened"}
    found = run.import_log("wide", [tmp_path / "a.ndjson"], tmp_path / "log", columns=names)
    rows = pl.read_parquet(tmp_path / "log" / "*.parquet").select("query_id", "items", "clicks").rows()
    assert rows == [("hat", ["a", "b"], [0, 1]), ("cap", ["b"], [0])]
    assert adds_up(found)["impressions"] == (2, 3)
    (tmp_path / "a.ndjson").write_text("".join(json.dumps(one) + "\n" for one in lines) + '{"search"')
    with pytest.raises(LogError, match="line 7 is no JSON"):
        run.import_log("wide", [tmp_path / "a.ndjson"], tmp_path / "other", columns=names)
