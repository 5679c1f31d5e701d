"""A corpus of malformed logs, made by code: what is wrong, how to write it, and where it must be found."""

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import polars as pl

K = 3  # the ranks of the examination curve


@dataclass(frozen=True)
class Malformed:
    """A bad log: `write(folder)` makes it and returns the file at fault; its column ("" for all) and row (or None)."""

    write: Callable[[Path], Path]
    column: str
    row: int | None


def wide_columns():
    """A good wide log of four impressions."""
    return {
        "query_id": [1, 2, 1, 3],
        "items": [[7, 8], [8, 9, 7], [9], [7, 9]],
        "clicks": [[0, 1], [0, 0, 1], [1], [0, 0]],
        "propensities": [[0.5, 0.5], [1.0, 0.2, 0.1], [1.0], [0.1, 0.3]],
        "weight": [1.0, 0.5, 2.0, 1.0],
        "timestamp": [datetime(2020, 1, day) for day in (1, 2, 3, 4)],
    }


def long_columns():
    """A good long log of two impressions."""
    return {
        "impression_id": [1, 1, 2, 2],
        "query_id": ["a", "a", "b", "b"],
        "item_id": ["x", "y", "y", "x"],
        "position": [1, 2, 1, 3],
        "click": [0, 1, 0, 0],
    }


def parquet(good, column, row, **columns):
    """A Parquet log with some columns replaced or (None) left out."""

    def write(folder):
        path = folder / "log.parquet"
        values = {name: v for name, v in (good() | columns).items() if v is not None}
        pl.DataFrame(values, strict=False).write_parquet(path)
        return path

    return Malformed(write, column, row)


def wide(column, row, **columns):
    return parquet(wide_columns, column, row, **columns)


def long(column, row, **columns):
    return parquet(long_columns, column, row, **columns)


def raw(name, column, row, data):
    """A file of the given bytes."""

    def write(folder):
        (folder / name).write_bytes(data)
        return folder / name

    return Malformed(write, column, row)


def lines(column, row, *objects):
    """JSON lines."""
    return raw("log.jsonl", column, row, "\n".join(json.dumps(o) for o in objects).encode())


def csv(column, row, *rows, header="impression_id,query_id,item_id,position,click"):
    return raw("log.csv", column, row, "\n".join([header, *rows]).encode())


def damaged(keep, name="log.parquet", column="", row=None):
    """A Parquet file of which only a part is left, or with another name."""

    def write(folder):
        path = folder / name
        pl.DataFrame(wide_columns()).write_parquet(path)
        path.write_bytes(keep(path.read_bytes()))
        return path

    return Malformed(write, column, row)


def two(second, column, row, first=None):
    """A folder of two files of which the second does not go with the first."""

    def write(folder):
        pl.DataFrame(wide_columns() | (first or {})).write_parquet(folder / "a.parquet")
        values = {name: v for name, v in (wide_columns() | second).items() if v is not None}
        pl.DataFrame(values).write_parquet(folder / "b.parquet")
        return folder / "b.parquet"

    return Malformed(write, column, row)


def linked():
    """A folder in which a file has a second name."""

    def write(folder):
        pl.DataFrame(wide_columns()).write_parquet(folder / "a.parquet")
        (folder / "b.parquet").symlink_to(folder / "a.parquet")
        return folder / "b.parquet"

    return Malformed(write, "", None)


GOOD_LINE = {"query_id": 1, "items": [7, 8], "clicks": [0, 1]}
FUTURE = datetime(2200, 1, 1)

CORPUS = {
    # types and columns
    "no clicks column": wide("clicks", None, clicks=None),
    "no position column": long("position", None, position=None),
    "other columns": raw("log.csv", "query_id", None, b"a,b\n1,2\n"),
    "items no lists": wide("items", None, items=[1, 2, 3, 4]),
    "items of floats": wide("items", None, items=[[1.5], [1.0], [1.0], [1.0]]),
    "query ids of floats": wide("query_id", None, query_id=[1.0, 2.0, 3.0, 4.0]),
    "clicks of strings": wide("clicks", None, clicks=[["0"]] * 4),
    "weights of strings": wide("weight", None, weight=["1"] * 4),
    "positions of floats": long("position", None, position=[1.0, 2.0, 1.0, 2.0]),
    "timestamps of lists": wide("timestamp", None, timestamp=[[1]] * 4),
    # lengths
    "more clicks than items": wide("clicks", 2, clicks=[[0, 1], [0, 0, 1], [1, 0], [0, 0]]),
    "fewer clicks than items": wide("clicks", 1, clicks=[[0, 1], [0, 0], [1], [0, 0]]),
    "fewer propensities": wide("propensities", 3, propensities=[[0.5, 0.5], [1.0, 0.2, 0.1], [1.0], [0.1]]),
    "clicks without impressions": wide("clicks", 2, items=[[7, 8], [8, 9, 7], [], [7, 9]]),
    "longer than the curve": wide(
        "items", 3, items=[[1], [1], [1], [1, 2, 3, 4]], clicks=[[0], [0], [0], [0] * 4], propensities=None
    ),
    # nulls
    "null query": wide("query_id", 1, query_id=[1, None, 1, 3]),
    "null list": wide("items", 2, items=[[7, 8], [8, 9, 7], None, [7, 9]]),
    "null item": wide("items", 1, items=[[7, 8], [8, None, 7], [9], [7, 9]]),
    "null click": wide("clicks", 3, clicks=[[0, 1], [0, 0, 1], [1], [0, None]]),
    "null propensity": wide("propensities", 2, propensities=[[0.5, 0.5], [1.0, 0.2, 0.1], [None], [0.1, 0.3]]),
    "null weight": wide("weight", 3, weight=[1.0, 1.0, 1.0, None]),
    "null position": long("position", 2, position=[1, 2, None, 1]),
    "null impression": long("impression_id", 3, impression_id=[1, 1, 2, None]),
    # values
    "click 2": wide("clicks", 1, clicks=[[0, 1], [0, 2, 1], [1], [0, 0]]),
    "click -1": wide("clicks", 2, clicks=[[0, 1], [0, 0, 1], [-1], [0, 0]]),
    "click NaN": wide("clicks", 1, clicks=[[0, 1], [0, float("nan"), 1], [1], [0, 0]]),
    "propensity 0 on a clicked item": wide("propensities", 0, propensities=[[0.5, 0.0], [1.0] * 3, [1.0], [0.1] * 2]),
    "propensity 1.5": wide("propensities", 0, propensities=[[1.5, 0.5], [1.0] * 3, [1.0], [0.1] * 2]),
    "propensity NaN": wide("propensities", 3, propensities=[[1.0] * 2, [1.0] * 3, [1.0], [0.1, float("nan")]]),
    "negative weight": wide("weight", 1, weight=[1.0, -1.0, 1.0, 1.0]),
    "infinite weight": wide("weight", 0, weight=[float("inf"), 1.0, 1.0, 1.0]),
    "id beyond 64 bits": wide("query_id", 2, query_id=pl.Series([1, 2, 2**64 - 1, 3], dtype=pl.UInt64)),
    "negative position": long("position", 2, position=[1, 2, -1, 3]),
    "position 0": long("position", 2, position=[1, 2, 0, 3]),
    "position beyond the curve": long("position", 3, position=[1, 2, 1, 4]),
    "timestamp in the future": wide("timestamp", 1, timestamp=[datetime(2020, 1, 1), FUTURE] * 2),
    "timestamp in milliseconds": wide("timestamp", 0, timestamp=[1_600_000_000_000] * 4),
    "timestamp no time": wide("timestamp", 2, timestamp=["2020-01-01 00:00:00", "2020-01-02 00:00:00", "soon", None]),
    # duplicates
    "item twice": wide("items", 1, items=[[7, 8], [8, 9, 8], [9], [7, 9]]),
    "position twice": long("position", 2, position=[1, 2, 1, 1]),
    "item twice in a long log": long("item_id", 0, item_id=["x", "x", "y", "z"]),
    "impression comes back": long("impression_id", 2, impression_id=[1, 2, 1, 1], query_id=["a"] * 4),
    "impression of two queries": long("query_id", 1, query_id=["a", "b", "b", "b"]),
    # mixed ids
    "integers, then strings": two({"query_id": list("abcd")}, "query_id", 0),
    "propensities in one file only": two({"propensities": None}, "propensities", None),
    "mixed ids in JSON lines": lines("query_id", 1, GOOD_LINE, GOOD_LINE | {"query_id": "1"}),
    "mixed ids in a list": lines("items", 1, GOOD_LINE, GOOD_LINE | {"items": [7, "8"]}),
    "an id in words in CSV": csv("item_id", 200_000, *[f"{i},1,2,1,0" for i in range(200_000)], "200000,1,x,1,0"),
    # text that is none
    "Latin-1 in CSV": raw(
        "log.csv",
        "item_id",
        1,
        "impression_id,query_id,item_id,position,click\n1,a,x,1,0\n2,a,café,1,0\n".encode("latin-1"),
    ),
    "Latin-1 in JSON lines": raw(
        "log.jsonl", "", 1, f'{json.dumps(GOOD_LINE)}\n{{"query_id": "café"}}\n'.encode("latin-1")
    ),
    "JSON cut off": raw("log.jsonl", "", 1, f'{json.dumps(GOOD_LINE)}\n{{"query_id": 2, "items": [1,'.encode()),
    "JSON of lists": lines("", 0, [1, 2]),
    "JSON without clicks": lines("clicks", None, {"query_id": 1, "items": [7]}),
    "JSON with a number for a list": lines("items", 1, GOOD_LINE, GOOD_LINE | {"items": 7}),
    "JSON, long": lines("", None, {"impression_id": 1, "query_id": 1, "item_id": 1, "position": 1, "click": 0}),
    "CSV, wide": raw("log.csv", "", None, b'query_id,items,clicks\n1,"[1,2]","[0,1]"\n'),
    "CSV with a word for a click": csv("click", 1, "1,a,x,1,0", "1,a,y,2,yes"),
    "CSV with half a position": csv("position", 0, "1,a,x,1.5,0"),
    "CSV with a short line": csv("click", 1, "1,a,x,1,0", "2,a,x,1"),
    "CSV with a long line": csv("", None, "1,a,x,1,0", "2,a,x,1,0,0"),
    "CSV with an open quote": csv("", None, '1,a,"x,1,0', "2,a,x,1,0"),
    # values that no column can hold
    "weights that are true": wide("weight", None, weight=[True] * 4),
    "propensities that are true": wide("propensities", None, propensities=[[True] * n for n in (2, 3, 1, 2)]),
    "a weight that is true in JSON": lines("weight", 1, GOOD_LINE | {"weight": 1}, GOOD_LINE | {"weight": True}),
    "a query that is true in JSON": lines("query_id", 0, GOOD_LINE | {"query_id": True}),
    "JSON integer of 100 digits": lines("query_id", 1, GOOD_LINE, GOOD_LINE | {"query_id": 10**100}),
    "JSON integer of 5000 digits": raw(
        "log.jsonl", "", 1, json.dumps(GOOD_LINE).encode() + b'\n{"query_id": ' + b"9" * 5000
    ),
    "JSON item of 100 digits": lines("items", 1, GOOD_LINE, GOOD_LINE | {"items": [7, -(10**100)]}),
    "lone surrogate": lines("query_id", 1, GOOD_LINE | {"query_id": "a"}, GOOD_LINE | {"query_id": "\ud800"}),
    "lone surrogate in a list": lines("items", 0, GOOD_LINE | {"items": ["a", "\udfff"]}),
    "JSON nested deeply": raw("log.jsonl", "", 0, b"[" * 100_000),
    "JSON with lists of lists": lines("items", 1, GOOD_LINE, GOOD_LINE | {"items": [[7], [8]]}),
    "JSON with objects for items": lines("items", 0, GOOD_LINE | {"items": [{"id": 7}, {"id": 8}]}),
    "JSON with NaN for a query": lines("query_id", None, GOOD_LINE | {"query_id": float("nan")}),
    "weight above a million": wide("weight", 2, weight=[1.0, 1.0, 1.1e6, 1.0]),
    "weight below a millionth": wide("weight", 2, weight=[1.0, 1.0, 9e-7, 1.0]),
    "propensity below 1e-12": wide("propensities", 2, propensities=[[0.5, 0.5], [0.5] * 3, [9e-13], [0.5] * 2]),
    "decimal weight of 0": wide("weight", 1, weight=pl.Series(["1", "0", "1", "1"]).cast(pl.Decimal(10, 2))),
    "binary ids": wide("query_id", None, query_id=[b"a", b"b", b"a", b"c"]),
    # policies and impressions
    "null policy": wide("policy", 2, policy=["a", "a", None, "b"]),
    "policies of floats": wide("policy", None, policy=[1.5, 1.5, 2.5, 2.5]),
    "two policies in an impression": long("policy", 1, policy=["a", "b", "b", "b"]),
    "impression id twice in a wide log": wide("impression_id", 3, impression_id=[1, 2, 3, 1]),
    "impression in two files": two(
        {"impression_id": [5, 1, 6, 7]}, "impression_id", 1, {"impression_id": [1, 2, 3, 4]}
    ),
    "a file twice": linked(),
    # damaged and empty files
    "Parquet without its end": damaged(lambda whole: whole[:-100]),
    "Parquet without its beginning": damaged(lambda whole: whole[100:]),
    "Parquet overwritten": damaged(lambda whole: whole[:8] + b"\xff" * 500 + whole[508:]),
    "Parquet that is text": raw("log.parquet", "", None, b"query_id,items\n1,2\n"),
    "Parquet of zeros": raw("log.parquet", "", None, bytes(1000)),
    "CSV of zeros": raw("log.csv", "query_id", None, bytes(1000)),
    "JSON lines of zeros": raw("log.jsonl", "", 0, bytes(1000)),
    "a blank line in JSON lines": raw("log.jsonl", "", 1, json.dumps(GOOD_LINE).encode() + b"\n\n"),
    "Parquet called CSV": damaged(bytes, "log.csv", "query_id"),
    "Parquet called JSON lines": damaged(bytes, "log.jsonl", "", 0),
    "gzip called Parquet": raw("log.parquet", "", None, gzip.compress(b"query_id,items,clicks\n")),
    "Parquet of no bytes": raw("log.parquet", "", None, b""),
    "CSV of no bytes": raw("log.csv", "", None, b""),
    "JSON lines of no bytes": raw("log.jsonl", "", None, b""),
    "zero rows": wide("", None, **{name: pl.Series(values)[:0] for name, values in wide_columns().items()}),
    "a header and no rows": csv("", None),
}
