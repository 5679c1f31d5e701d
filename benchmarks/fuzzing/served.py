"""HTTP bodies for a server on the loopback; and journals and segments of a served log, valid in their frames, wrong inside."""

import http.client
import itertools
import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import polars as pl

from fuzzing.calls import Call, HangError
from fuzzing.commands import command_line
from tandemrank.policies.two_stage import load
from tandemrank.serving import journal
from tandemrank.serving.client import started
from tandemrank.serving.engine import Server
from tandemrank.serving.propensities import Propensities
from tandemrank.serving.recorder import Recorder
from tandemrank.serving.records import Event

TOKEN = "a-token-of-the-fuzzer-alone"
VALUES: list[Any] = [
    None, True, -1, 0, 1, 3, 2**63, -(2**70), 0.5, -0.0, 1e308, float("nan"), float("inf"), "", "x", "1", "\ud800", "é" * 300,
    [], [[]], {}, {"a": 1}, [None], [1, "1"], [1, 1], [0.5], [float("nan")] * 3, [1] * 20_000, "clicked", "split",
]  # fmt: skip
BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/rank"): {
        "query_id": 0,
        "K": 2,
        "items": [1, 2, 3],
        "unit": "u",
        "session": "s",
        "query_features": {"x": 1.0},
    },
    ("POST", "/rank "): {"requests": [{"query_id": 0}, {"query_id": 1, "K": 1}]},
    ("POST", "/feedback"): {"impression_id": "{id}", "events": [{"item": 1, "type": "click", "value": 1.0}]},
    ("POST", "/explain"): {"query_id": 0, "query_features": {"x": 1.0}},
    ("POST", "/policies"): {"folder": "policy"},
    ("POST", "/split"): {"policy": "{policy}", "share": 0.5},
    ("POST", "/rollback"): {},
    ("GET", "/status"): None,
    ("GET", "/metrics"): None,
    ("GET", "/openapi.json"): None,
    ("GET", "/"): None,
    ("DELETE", "/rank"): {},
    ("POST", "/../etc"): {},
}


def changed(rng: random.Random, value: Any) -> Any:
    """The same with one thing in it other than it should be."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        how = rng.random()
        if how < 0.15:
            return {name: inside for name, inside in value.items() if name != key}
        if how < 0.25:
            return {**value, rng.choice(["", "extra", key.upper(), "é"]): rng.choice(VALUES)}
        return {**value, key: changed(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.6:
        at = rng.randrange(len(value))
        whole = [value[::-1], value[:at], value + value, [*value[:at], changed(rng, value[at]), *value[at + 1 :]]]
        return rng.choice([*whole, whole[3], whole[3]])
    return rng.choice(VALUES)


@dataclass(frozen=True)
class Asker:
    """Asks a server: a status of 500, or a server that ended, is an error; no answer in ten seconds is a hang."""

    url: str
    process: "subprocess.Popen[str]"

    def ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        """The body of the answer; nothing where it closed the connection, as it does on what is no HTTP or too large."""
        address = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=10)
        status, content = 0, b""
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            status, content = answer.status, answer.read()
        except TimeoutError as error:
            raise HangError from error
        except (BrokenPipeError, ConnectionResetError, http.client.BadStatusLine):
            pass
        finally:
            connection.close()
        if status == 500 or self.process.poll() is not None:
            raise RuntimeError(f"status {status}, exit code {self.process.poll()}: {content[:200]!r}")
        return content


@contextmanager
def http_calls(good: Path, place: Path, rng: random.Random) -> Iterator[Iterator[Call]]:
    """Requests to a server of its own."""
    log = ["--log", str(place / "log"), "--seal-seconds", "1", "--window", "1", "--settle", "0.1"]
    with started(str(good / "policy"), "--policies", str(good), *log, token=TOKEN) as (url, process):
        yield _requests(Asker(url, process), rng)


def _requests(server: Asker, rng: random.Random) -> Iterator[Call]:
    ranked = json.loads(server.ask("POST", "/rank", b'{"query_id": 0}', {"Content-Type": "application/json"}))
    known = {"{id}": ranked["impression_id"], "{policy}": ranked["policy"]}
    for number in itertools.count():
        (method, path), good_body = rng.choice(list(BODIES.items()))
        body = good_body if number % 20 == 0 else changed(rng, good_body)
        data = json.dumps(body).encode() if body is not None else b""
        for mark, value in known.items():
            data = data.replace(mark.encode(), value.encode())
        if rng.random() < 0.1:
            data = rng.choice([data[:-1], b"", b"[" * 50_000, b"\xff" + data, data * 1000, b"null", b"NaN"])
        asked = (method, path.strip(), data, _headers(rng))
        yield Call(f"{method} {path} {data[:150]!r}", partial(server.ask, *asked))


def _headers(rng: random.Random) -> dict[str, str]:
    kinds = ["application/json"] * 6 + ["text/plain", "", "application/json; charset=latin-1"]
    found = {"Content-Type": rng.choice(kinds)}
    if rng.random() < 0.8:
        found["Authorization"] = f"Bearer {TOKEN}"
    if rng.random() < 0.1:
        found[rng.choice(["Origin", "Host", "Range"])] = rng.choice(["x", "http://a", "bytes=9-1"])
    return found


def seal_calls(good: Path, place: Path, rng: random.Random) -> Iterator[Call]:
    """`seal` of journals whose records have valid frames and checksums, and other shapes than a server writes."""
    records = _journal(good, place / "served")
    for number in itertools.count():
        folder = place / "log"
        content = list(records)
        # What is good must be taken, or nothing below says anything.
        for at in rng.sample(range(len(content)), rng.randrange(1, 4)) if number else []:
            content[at] = _other_record(rng, content[at])
        if rng.random() < 0.3:
            rng.shuffle(content)
        name = rng.choice(["journal-0-000000.bin"] * 8 + ["journal-x-999999.bin", "events-0-000000.bin"])
        more = rng.choice(
            [["--everything"]] * 4 + [[], ["--window", "0"], ["--window", "nan"], ["--everything", "--json"]]
        )

        def run(
            content: list[bytes] = content, name: str = name, more: list[str] = more, folder: Path = folder
        ) -> None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (folder / name).write_bytes(b"".join(map(journal.framed, content)))
            good_codes = (2,) if "nan" in more else (0,)
            codes = good_codes if content == records else (0, 1, 2)
            command_line(["seal", str(folder), "--policies", str(good), *more], codes)

        new = next((record for record in content if record not in records), b"")
        yield Call(f"seal ({name}, {more}) number {number}: {new[:500]!r}", run)


def _journal(good: Path, folder: Path) -> list[bytes]:
    """The records of a server that answered, and heard clicks."""
    log = Recorder(folder, Propensities(samples=2))
    server = Server(load(good / "policy"), recorder=log, seed=0)
    for q in range(6):
        ranked = server.rank(q, items=None if q % 2 else list(range(5)))
        server.feedback(ranked.impression_id, [Event(ranked.items[0], "click")])
    log.close()
    [path] = folder.glob("journal-*.bin")
    return list(journal.read(path).records)


def _other_record(rng: random.Random, record: bytes) -> bytes:
    if rng.random() < 0.1:
        return rng.choice([b"", b"{}", b"[]", b"null", b"\xff", b"1", record + record, record[:-1]])
    return json.dumps(changed(rng, json.loads(record))).encode()


def replay_calls(good: Path, place: Path, rng: random.Random) -> Iterator[Call]:
    """`replay` of segments with other columns, values and types than a server writes."""
    segment = pl.read_parquet(good / "segment-0-000000.parquet")
    place.mkdir(exist_ok=True)
    for number in itertools.count():
        column = rng.choice(segment.columns)
        changes = {
            "reversed": lambda f, c: f.with_columns(pl.col(c).reverse()),
            "null": lambda f, c: f.with_columns(pl.lit(None).alias(c)),
            "one null": lambda f, c: f.with_columns(
                pl.when(pl.int_range(pl.len()) == 0).then(None).otherwise(pl.col(c)).alias(c)
            ),
            "gone": lambda f, c: f.drop(c),
            "text": lambda f, c: f.with_columns(pl.lit("x").alias(c)),
            "number": lambda f, c: f.with_columns(pl.lit(-1).alias(c)),
            "list": lambda f, c: f.with_columns(pl.concat_list(pl.lit(1), pl.lit(2)).alias(c)),
            "NaN": lambda f, c: f.with_columns(pl.lit(float("nan")).alias(c)),
            "twice": lambda f, _: pl.concat([f, f]),
            "none": lambda f, _: f.head(0),
        }
        name = rng.choice(list(changes))
        path = place / "segment-0-000000.parquet"

        def run(change: Any = changes[name], column: str = column, path: Path = path) -> None:
            change(segment, column).write_parquet(path)
            command_line(["replay", str(path), "--policies", str(good)])

        yield Call(f"replay of {column} {name}, number {number}", run)
