"""Files as other systems really write them, drawn from a known truth: dialects, wrappings, lost and repeated events."""

import csv
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

QUERIES, LISTS, SHOWN, CLICKS = 473, 400, 1999, 287  # of the public sample of OpenSearch
REPEATED, STRAY = 4, 3  # of the clicks: again on the same item, and on an item that was not shown
START = 1_733_788_800_000  # milliseconds: 2024-12-10


@dataclass(frozen=True)
class Truth:
    """What the events say: of each query its text, its list, the places clicked, and the rewards of items."""

    texts: dict[str, str]
    lists: dict[str, list[str]]
    clicked: dict[str, set[str]]
    carts: dict[tuple[str, str], int] = field(default_factory=dict)


def truth(seed: int = 1) -> Truth:
    """473 queries, 400 of them with a list of five items (one of four), 280 clicked items."""
    rng = random.Random(seed)
    ids = [f"q-{n:04d}" for n in range(QUERIES)]
    texts = {q: rng.choice(["tv", "ps4", "rugs", "iphone xr", "snow boots"]) for q in ids}
    shown = rng.sample(ids, LISTS)
    lists = {q: rng.sample([f"B{n:05d}" for n in range(900)], 4 if q == shown[0] else 5) for q in shown}
    pairs = rng.sample([(q, item) for q, items in lists.items() for item in items], CLICKS - REPEATED - STRAY)
    clicked: dict[str, set[str]] = {}
    for q, item in pairs:
        clicked.setdefault(q, set()).add(item)
    return Truth(texts, lists, clicked, {pair: rng.randint(1, 2) for pair in pairs[:20]})


def acts(known: Truth) -> list[tuple[str, str, int]]:
    """The clicks as they were sent: (query, item, place from 0), some of them twice, some on what was not shown."""
    sent = [
        (q, item, known.lists[q].index(item)) for q, items in sorted(known.clicked.items()) for item in sorted(items)
    ]
    other = [(q, "B99999", 9) for q in sorted(known.lists)[:STRAY]]
    return sent + sent[:REPEATED] + other


def _lines(path: Path, records: list[dict]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def schema_1_3(known: Truth, folder: Path) -> list[Path]:
    """One bulk file of queries and events, as the generator of OpenSearch writes it: no hits but of a few, ordinals from 0."""

    def event(name: str, q: str, item: str, place: int) -> dict:
        where = {"object": {"object_id": item, "object_id_field": "asin"}, "position": {"ordinal": place}}
        return {
            "application": "esci_ubi_sample", "action_name": name, "query_id": q, "client_id": "c",
            "timestamp": "2024-12-11T02:16:33.074Z", "user_query": known.texts[q], "message": None, "event_attributes": where,
        }  # fmt: skip

    with_hits = set(sorted(known.lists)[:13])
    records = []
    for q, text in known.texts.items():
        hits = {"query_response_hit_ids": [*known.lists[q], "more"]} if q in with_hits else {}
        stored = {"application": "esci_ubi_sample", "query_id": q, "user_query": text, "query_attributes": {}, **hits}
        records += [
            {"index": {"_index": "ubi_queries", "_id": f"i{q}"}},
            stored | {"timestamp": "2024-12-10T00:01:29.378Z"},
        ]
    events = [event("impression", q, item, k) for q, items in known.lists.items() for k, item in enumerate(items)]
    events += [event("click", *act) for act in acts(known)]
    events += [event("add_to_cart", q, item, 0) for (q, item), times in known.carts.items() for _ in range(times)]
    random.Random(2).shuffle(events)
    for number, one in enumerate(events):
        records += [{"index": {"_index": "ubi_events", "_id": f"e{number}"}}, one]
    return [_lines(folder / "ubi_queries_events.ndjson", records)]


def chorus(known: Truth, folder: Path) -> list[Path]:
    """Dumps of two indices: documents in `_source`, times in milliseconds, ordinals from 1, the text in `on_search`."""

    def document(record: dict) -> dict:
        return {"_index": "ubi", "_id": "x", "_score": 1.0, "_source": record}

    def event(name: str, q: str | None, item: str | None, place: int, detail: object = None) -> dict:
        thing = {"object_id": item, "object_id_field": "product", "object_detail": detail}
        record = {
            "action_name": name,
            "query_id": q,
            "client_id": "USER",
            "timestamp": START + place,
            "message_type": "INFO",
        }
        return document(record | {"event_attributes": {"object": thing, "position": {"ordinal": place + 1, "x": None}}})

    stored = [{"query_id": q, "query_response_id": "r", "query": "{}", "timestamp": START} for q in known.texts]
    events = [
        event("impression", q, item, k, {"price": k})
        for q, items in known.lists.items()
        for k, item in enumerate(items)
    ]
    events += [event("product_click", q, item, k, "text") for q, item, k in acts(known)]
    events += [event("purchase", q, item, 3) for (q, item), times in known.carts.items() for _ in range(times)]
    events += [event("login", None, None, 0) for _ in range(50)]
    said = [
        {"action_name": "on_search", "query_id": q, "message": text, "timestamp": START}
        for q, text in known.texts.items()
    ]
    events += [document(one) for one in said]
    random.Random(3).shuffle(events)
    return [
        _lines(folder / "queries.json", [document(one) for one in stored]),
        _lines(folder / "events.jsonl", events),
    ]


def flat(known: Truth, folder: Path) -> list[Path]:
    """Two CSV files with a column for each field, ranks from 0, as the generator's --generate-csv writes them."""
    queries, events = folder / "ubi_queries.csv", folder / "ubi_events.csv"
    with queries.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["application", "query_id", "client_id", "user_query", "timestamp"])
        rows.writerows(["esci", q, "c", text, "2024-06-01T00:00:00.000Z"] for q, text in known.texts.items())
    with events.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["object_id", "rank", "action_name", "query_id", "session_id", "timestamp"])
        lines = [
            [item, k, "impression", q, "s", "2024-06-01T00:00:00.000Z"]
            for q, items in known.lists.items()
            for k, item in enumerate(items)
        ]
        lines += [[item, k, "click", q, "s", "2024-06-01T00:00:01.000Z"] for q, item, k in acts(known)]
        random.Random(4).shuffle(lines)
        rows.writerows(lines)
    return [queries, events]


def first_plugin(known: Truth, folder: Path) -> list[Path]:
    """Events of the first plugin: the rank beside the object, queries known by their events alone."""

    def event(name: str, q: str, item: str, place: int) -> dict:
        where = {"object": {"object_id": item}, "rank": place}
        return {
            "action_name": name,
            "query_id": q,
            "user_query": known.texts[q],
            "timestamp": START,
            "event_attributes": where,
        }

    events = [event("impression", q, item, k) for q, items in known.lists.items() for k, item in enumerate(items)]
    return [_lines(folder / "events.jsonl", events + [event("click", *act) for act in acts(known)])]


DIALECTS: dict[str, Callable[[Truth, Path], list[Path]]] = {
    "schema": schema_1_3,
    "chorus": chorus,
    "flat": flat,
    "first plugin": first_plugin,
}


# --- Google Analytics 4 -----------------------------------------------------------------------------------------------


def ga4(known: Truth, folder: Path) -> list[Path]:
    """BigQuery's JSON: whole numbers are texts, what is missing is "(not set)". A list comes in two views, as somebody scrolls;
    half of the clicks name no list, and purchases never do."""

    def event(
        name: str, q: str, time: int, items: list[tuple[str, int]], *, named: bool = True, **more: object
    ) -> dict:
        of_list = {"item_list_name": known.texts[q] if named else "(not set)", "item_list_id": "(not set)"}
        listed = [
            {"item_id": item, "item_list_index": str(k) if named else "(not set)", **of_list, **more}
            for item, k in items
        ]
        session = {"key": "ga_session_id", "value": {"string_value": None, "int_value": q[2:]}}
        return {
            "event_name": name, "event_timestamp": str(1000 * (START + time)), "user_pseudo_id": "v" + q[2:3],
            "event_params": [{"key": "page", "value": {"string_value": "x", "int_value": None}}, session], "items": listed,
        }  # fmt: skip

    events = []
    for q, items in known.lists.items():
        places = [(item, k + 1) for k, item in enumerate(items)]
        events += [event("view_item_list", q, 0, places[:3]), event("view_item_list", q, 5, places[3:])]
        events.append(events[-1])  # sent twice
    for number, (q, item, k) in enumerate(acts(known)):
        events.append(event("select_item", q, 10 + number, [(item, k + 1)], named=number % 2 == 0))
    for (q, item), times in known.carts.items():
        events.append(event("purchase", q, 900, [(item, 0)], named=False, price=2.5, quantity=str(times)))
    events.append(event("select_item", "q-0000", 1, [("(not set)", 1)]) | {"user_pseudo_id": None})
    random.Random(5).shuffle(events)
    return [_lines(folder / "ga4.json", events)]


# --- Metarank ---------------------------------------------------------------------------------------------------------


def metarank(known: Truth, folder: Path) -> list[Path]:
    """Events of all kinds in one file; fields hold texts, numbers and lists; some interactions name no ranking."""
    events: list[dict] = [{"event": "item", "id": "m", "item": "B1", "fields": [{"name": "tags", "value": ["a", "b"]}]}]
    for q, items in known.lists.items():
        fields = [
            {"name": "page", "value": 1},
            {"name": "query", "value": known.texts[q]},
            {"name": "tags", "value": ["a"]},
        ]
        listed = [{"id": item, "fields": [{"name": "relevancy", "value": 1.5}]} for item in items]
        events.append(
            {"event": "ranking", "id": q, "timestamp": str(START), "user": 7, "fields": fields, "items": listed}
        )
    done = {"event": "interaction", "id": "x", "timestamp": "2024-12-10T00:00:01Z", "user": "7", "fields": []}
    events += [done | {"ranking": q, "item": item, "type": "click"} for q, item, _ in acts(known)]
    events += [done | {"ranking": q, "item": item, "type": "purchase"} for q, item in known.carts]
    events += [done | {"item": "B1", "type": "click"} for _ in range(5)]
    return [_lines(folder / "metarank.jsonl", events)]


# --- a table of searches, as Expedia published one --------------------------------------------------------------------

GAPS = (5, 11, 17)  # positions that are advertisements


def expedia(folder: Path, searches: int = 300, seed: int = 6) -> tuple[Path, list[dict]]:
    """A CSV with a row for each shown property, in any order, "NULL" where there is no booking; and its rows."""
    rng = random.Random(seed)
    rows = []
    for search in range(searches):
        places = [k for k in range(1, 21) if k not in GAPS]
        for place, hotel in zip(places, rng.sample(range(500), len(places)), strict=True):
            click = int(rng.random() < 0.3 / place)
            booked = int(click and rng.random() < 0.5)
            rows.append({
                "srch_id": search, "srch_destination_id": search % 7, "prop_id": hotel, "position": place, "click_bool": click,
                "booking_bool": booked, "gross_bookings_usd": round(rng.uniform(50, 900), 2) if booked else "NULL",
                "random_bool": int(search % 3 == 0),
            })  # fmt: skip
    rng.shuffle(rows)
    path = folder / "train.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path, rows
