"""The log of a live pair: impressions and events go to a journal at once, and become Parquet segments when they are complete.

A segment is a click log that `validate`, `estimate` and `learn` take as it is: `query_id, items, clicks, propensities,
policy, timestamp`, and beside these `propensity_errors` (Monte-Carlo), `mixture`, `strategy`, `key`, `places`, `available`,
with which every list can be drawn again (`replay`). A click counts if it comes within the window after its impression.

Propensities are computed when a segment is made, off the way of any request (`propensities`). Several replicas write into
one folder, each under its own name.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol

import numpy as np
import polars as pl

from tandemrank._base.files import Kind, replacing
from tandemrank._base.ids import Id
from tandemrank.errors import InputError, OutputError
from tandemrank.policies.features import FeatureValues
from tandemrank.serving import journal
from tandemrank.serving.journal import Journal
from tandemrank.serving.records import WINDOW, Event, Impression, L

try:  # of the extra `serve`: several times as fast
    import orjson
except ImportError:
    orjson = None  # type: ignore[assignment]


def _dumps(value: Any) -> bytes:
    if orjson is not None:
        return orjson.dumps(value)
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


ROTATE = 64 * 2**20  # bytes of a journal before the next one begins
REMEMBERED = 100_000  # queries known by features alone that are kept in memory until their impressions are sealed
SEGMENT = Kind("segment of a served log")
ASIDE = ".set-aside"


@dataclass(frozen=True)
class Sealed:
    """A segment that was written: where it is, its impressions and clicks, and events that came late or for nothing.

    `set_aside`: impressions whose propensity is not known, since a process that died alone knew the features of the query.
    """

    path: Path
    impressions: int
    clicks: int
    late: int
    unmatched: int
    set_aside: int = 0


class Exposure(Protocol[L]):
    """Computes the propensities of impressions of pairs that it knows; `propensities.Propensities` is one."""

    @property
    def known(self) -> set[str]:
        """The digests of the pairs."""

    def know(self, live: L) -> None:
        """Another pair."""

    def of(self, impressions: Sequence[Impression]) -> list[tuple[list[float], list[float]]]:
        """rho_0 of every shown item of each impression, and its standard error."""


class Recorder(Generic[L]):
    """Writes a served log into a folder, under the name of one replica.

    `clock` tells the time, seconds since 1970; tests give their own. A journal that a process before left is taken up.
    """

    def __init__(
        self,
        folder: str | Path,
        propensities: Exposure[L],
        *,
        replica: str = "0",
        window: float = WINDOW,
        sync_seconds: float = journal.SYNC_SECONDS,
        rotate: int = ROTATE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not replica or not all(c.isalnum() or c in "-_" for c in replica):
            raise InputError(f"the name of a replica is letters, digits, - and _; got {replica!r}.")
        self.folder, self.replica = Path(folder), replica
        self.window, self.rotate, self.clock = window, rotate, clock
        self._sync_seconds = sync_seconds
        self._propensities = propensities
        self._features: dict[Id, FeatureValues] = {}
        self._lock, self._sealing = threading.Lock(), threading.Lock()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OutputError(f"cannot write the log to {folder}: {reason}. Give a folder.") from error
        self._number = max(self._numbers("journal-*.bin") | self._numbers("segment-*.parquet"), default=-1) + 1
        self._journal = self._open()

    def _numbers(self, pattern: str) -> set[int]:
        prefix = f"-{self.replica}-"
        names = [p.stem for p in self.folder.glob(pattern)]
        return {int(n.rpartition("-")[2]) for n in names if n.rpartition("-")[0].endswith(prefix[:-1])}

    def _open(self) -> Journal:
        return Journal(self._path("journal", self._number, "bin"), sync_seconds=self._sync_seconds)

    def _path(self, what: str, number: int, ending: str) -> Path:
        return self.folder / f"{what}-{self.replica}-{number:06d}.{ending}"

    def know(self, live: L) -> None:
        """A pair whose impressions will come: its propensities can be computed."""
        self._propensities.know(live)

    def missing(self) -> set[str]:
        """The digests of pairs that journals name and that are not known yet: their segments cannot be made."""
        numbers = self._numbers("journal-*.bin")
        read = [_records(self._path("journal", n, "bin"))[0] for n in sorted(numbers)]
        named = {digest for impressions in read for i in impressions for digest, _ in i.mixture}
        return named - self._propensities.known

    def impression(self, found: Impression, *, features: bool = False) -> None:
        """Records an answer, with the query's features if asked; an `OutputError` where the disk does not take it."""
        if found.uses_features and found.features is not None:
            if len(self._features) >= REMEMBERED:
                self._features.pop(next(iter(self._features)))
            self._features[_id_of(found.query_id)] = found.features
        values = dict(vars(found))
        if not features:
            values["features"] = None
        self._append({"impression": values})

    def events(self, impression_id: str, events: Sequence[Event]) -> None:
        """Records events of an impression, in any order, any number of times."""
        now = self.clock()
        for event in events:
            filled = {**asdict(event), "time": now if event.time is None else event.time}
            self._append({"event": {"impression": impression_id, **filled}})

    @property
    def unsynced(self) -> int:
        """Bytes of the journal that are not surely on disk yet."""
        return self._journal.size - self._journal.synced

    def _append(self, record: dict[str, Any]) -> None:
        payload = _dumps(record)
        with self._lock:
            if self._journal.size > self.rotate:
                self._turn_over()
            self._journal.append(payload)

    def _turn_over(self) -> None:
        self._journal.close()
        self._number += 1
        self._journal = self._open()

    def seal(self, *, everything: bool = False) -> list[Sealed]:
        """Makes segments of the journals whose impressions can get no more clicks, and removes those journals.

        With `everything` also of those that could: their later clicks will be unmatched. The journal in use is closed first.
        """
        with self._sealing:
            with self._lock:
                if self._journal.size:
                    self._turn_over()
                open_number = self._number
            numbers = sorted(self._numbers("journal-*.bin") - {open_number})
            if not numbers or not (everything or self._ripe(numbers[0])):
                return []
            read = {n: _records(self._path("journal", n, "bin")) for n in (*numbers, open_number)}
            events = [event for _, found in read.values() for event in found]
            sealed = []
            for number in numbers:
                impressions, _ = read[number]
                last = max((i.time for i in impressions), default=-np.inf)
                if not everything and last + self.window > self.clock():
                    break  # later ones are later still
                if impressions:
                    sealed.append(self._segment(number, impressions, events))
                self._path("journal", number, "bin").unlink()
            return sealed

    def _ripe(self, number: int) -> bool:
        """Whether a journal may be complete, without reading it: its first impression is as old as the window."""
        for payload in journal.read(self._path("journal", number, "bin"), most=1).records:
            first = json.loads(payload).get("impression")
            return first is None or bool(first["time"] + self.window <= self.clock())
        return True

    def _segment(self, number: int, impressions: Sequence[Impression], events: Sequence[dict[str, Any]]) -> Sealed:
        features = [self._known_features(i) for i in impressions]
        lost = [i.uses_features and found is None for i, found in zip(impressions, features, strict=True)]
        whole = [replace(i, features=f) for i, f, gone in zip(impressions, features, lost, strict=True) if not gone]
        kept = [i for i, gone in zip(impressions, lost, strict=True) if not gone]
        clicked, late, unmatched = join_clicks(impressions, events, self.window)
        path = self._path("segment", number, "parquet")
        if aside := [i for i, gone in zip(impressions, lost, strict=True) if gone]:
            (self.folder / ASIDE).mkdir(exist_ok=True)
            with replacing(self.folder / ASIDE / path.name, SEGMENT) as temporary:
                wide(aside, clicked, [([], [])] * len(aside)).write_parquet(temporary, compression="zstd")
        if kept:
            with replacing(path, SEGMENT) as temporary:
                wide(kept, clicked, self._propensities.of(whole)).write_parquet(temporary, compression="zstd")
        counted = sum(len(clicked.get(i.id, ())) for i in kept)
        return Sealed(path, len(kept), counted, late, unmatched, len(aside))

    def _known_features(self, i: Impression) -> FeatureValues | None:
        return i.features or self._features.get(_id_of(i.query_id)) if i.uses_features else None

    def close(self) -> None:
        """Everything on disk; the journal stays for the next process, or for `seal`."""
        with self._lock:
            self._journal.close()


def _id_of(query_id: Id | None) -> Id:
    return "unknown" if query_id is None else query_id


def _records(path: Path) -> tuple[list[Impression], list[dict[str, Any]]]:
    """The impressions and the events of a journal."""
    impressions, events = [], []
    for payload in journal.read(path).records:
        record = json.loads(payload)
        if "impression" in record:
            values = record["impression"]
            values["items"] = tuple(values["items"])
            values["available"] = None if values["available"] is None else tuple(values["available"])
            values["mixture"] = tuple((str(digest), float(share)) for digest, share in values["mixture"])
            impressions.append(Impression(**values))
        else:
            events.append(record["event"])
    return impressions, events


def join_clicks(
    impressions: Iterable[Impression], events: Iterable[dict[str, Any]], window: float
) -> tuple[dict[str, set[Id]], int, int]:
    """The clicked items of each impression, and how many distinct clicks came too late, or for an item that it did not show."""
    shown = {i.id: i for i in impressions}
    clicked: dict[str, set[Id]] = {}
    late: set[tuple[str, Id]] = set()
    unmatched: set[tuple[str, Id]] = set()
    for event in events:
        if event["type"] != "click" or event["impression"] not in shown:
            continue
        of, item = shown[event["impression"]], event["item"]
        if item not in of.items:
            unmatched.add((of.id, item))
        elif event["time"] > of.time + window:
            late.add((of.id, item))
        else:
            clicked.setdefault(of.id, set()).add(item)
    late -= {(name, item) for name, items in clicked.items() for item in items}
    return clicked, len(late), len(unmatched)


def wide(
    impressions: Sequence[Impression],
    clicked: dict[str, set[Id]],
    propensities: Sequence[tuple[list[float], list[float]]],
) -> pl.DataFrame:
    """Impressions as rows of a wide click log."""
    texts: dict[str, list[Any]] = {
        "available": [i.available for i in impressions],
        "features": [i.features for i in impressions],
    }
    optional = {
        name: pl.Series(name, [None if x is None else json.dumps(x) for x in column], dtype=pl.String)
        for name, column in texts.items()
    }
    return pl.DataFrame(
        {
            "impression_key": [i.id for i in impressions],
            "query_id": [_id_of(i.query_id) for i in impressions],
            "items": [list(i.items) for i in impressions],
            "clicks": [[int(item in clicked.get(i.id, ())) for item in i.items] for i in impressions],
            "propensities": [rho for rho, _ in propensities],
            "propensity_errors": [error for _, error in propensities],
            "policy": [i.policy for i in impressions],
            "strategy": [i.strategy for i in impressions],
            "key": pl.Series([i.key for i in impressions], dtype=pl.UInt64),
            "places": [i.places for i in impressions],
            "uses_features": [i.uses_features for i in impressions],
            "mixture": [json.dumps(i.mixture) for i in impressions],
            **optional,
            "timestamp": pl.from_epoch(pl.Series([round(i.time * 1e6) for i in impressions]), time_unit="us"),
        }
    )  # fmt: skip
