"""The log of a live pair: impressions and events go to a journal at once, and become Parquet segments when they are complete.

A segment is a click log that `validate`, `estimate` and `learn` take as it is: `query_id, items, clicks, propensities,
policy, timestamp`, and beside these `propensity_errors` (Monte-Carlo), `strategy`, `key`, `places`, `available`, with which
every list can be drawn again (`replay`). A click counts if it comes within the window after its impression.

Propensities are computed when a segment is made, off the way of any request: once per query and pair, and from a seed that
depends on these alone. Several replicas write into one folder, each under its own name.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandemrank._base.files import Kind, replacing
from tandemrank._base.random import derive
from tandemrank.clicks.models import examination_curve
from tandemrank.errors import InputError, OutputError
from tandemrank.serving import exploration, journal
from tandemrank.serving.journal import Journal

Id = int | str
WINDOW = 1800.0  # seconds after an impression in which a click counts
SAMPLES = 100  # of the race, for propensities
ROTATE = 64 * 2**20  # bytes of a journal before the next one begins
SEGMENT = Kind("segment of a served log")


@dataclass(frozen=True)
class Impression:
    """One answer, with what is needed to draw it again."""

    id: str
    time: float
    query_id: Id | None
    items: tuple[Id, ...]
    policy: str
    strategy: str
    key: int
    places: int
    available: tuple[Id, ...] | None


@dataclass(frozen=True)
class Event:
    """What a user did with an item of an impression."""

    item: Id
    type: str = "click"
    value: float | None = None
    time: float | None = None


class Answering(Protocol):
    """What a recorder needs of a live pair; `engine.LivePair` is one."""

    digest: str
    items: list[Id]
    item_at: dict[Id, int]

    @property
    def pair(self) -> Any:
        """The two-stage policy."""

    def scores(self, query_id: Id | None, available: Sequence[Id] | None = None) -> tuple[Tensor, Tensor]:
        """Shapes: -> [1, D], [1, D]."""


@dataclass(frozen=True)
class Sealed:
    """A segment that was written: where it is, its impressions and clicks, and events that came late or for nothing."""

    path: Path
    impressions: int
    clicks: int
    late: int
    unmatched: int


class Recorder:
    """Writes a served log into a folder, under the name of one replica.

    `clock` tells the time, seconds since 1970; tests give their own. A journal that a process before left is taken up.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        replica: str = "0",
        theta: Sequence[float] | None = None,
        window: float = WINDOW,
        samples: int = SAMPLES,
        sync_seconds: float = journal.SYNC_SECONDS,
        rotate: int = ROTATE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not replica or not all(c.isalnum() or c in "-_" for c in replica):
            raise InputError(f"the name of a replica is letters, digits, - and _; got {replica!r}.")
        self.folder, self.replica = Path(folder), replica
        self.window, self.samples, self.rotate, self.clock = window, samples, rotate, clock
        self._theta, self._sync_seconds = theta, sync_seconds
        self._pairs: dict[str, Answering] = {}
        self._lock = threading.Lock()
        self.folder.mkdir(parents=True, exist_ok=True)
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

    def know(self, live: Answering) -> None:
        """A pair whose impressions will come: its propensities can be computed."""
        self._pairs[live.digest] = live

    def impression(self, found: Impression) -> None:
        """Records an answer; an `OutputError` where the disk does not take it."""
        self._append({"impression": asdict(found)})

    def events(self, impression_id: str, events: Sequence[Event]) -> None:
        """Records events of an impression, in any order, any number of times."""
        now = self.clock()
        for event in events:
            filled = {**asdict(event), "time": now if event.time is None else event.time}
            self._append({"event": {"impression": impression_id, **filled}})

    def _append(self, record: dict[str, Any]) -> None:
        payload = json.dumps(record, separators=(",", ":"), allow_nan=False).encode()
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
        with self._lock:
            if self._journal.size:
                self._turn_over()
            open_number = self._number
        numbers = sorted(self._numbers("journal-*.bin") - {open_number})
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

    def _segment(self, number: int, impressions: Sequence[Impression], events: Sequence[dict[str, Any]]) -> Sealed:
        clicked, late, unmatched = join_clicks(impressions, events, self.window)
        frame = wide(impressions, clicked, self._propensities(impressions))
        path = self._path("segment", number, "parquet")
        with replacing(path, SEGMENT) as temporary:
            frame.write_parquet(temporary, compression="zstd")
        return Sealed(path, len(frame), sum(map(len, clicked.values())), late, unmatched)

    def _propensities(self, impressions: Sequence[Impression]) -> list[tuple[list[float], list[float]]]:
        """rho_0 of every shown item and its error, one race per (pair, query, strategy, available items)."""
        found: dict[tuple[Any, ...], tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        rows = []
        for i in impressions:
            live = self._pairs.get(i.policy)
            if live is None:
                raise OutputError(
                    f"the log has impressions of the pair {i.policy}, which is not loaded: its propensities cannot be "
                    f"computed. Load that pair once more (its journal is kept)."
                )
            place = (i.policy, i.query_id, i.strategy, i.places, i.available)
            if place not in found:
                theta = torch.tensor(self.theta(i.places), dtype=torch.float32)
                found[place] = exploration.parse(i.strategy).exposure(
                    *live.scores(i.query_id, i.available), theta, live.pair.K2, samples=self.samples,
                    seed=derive(0, "served propensities", *place) % 2**63,
                )  # fmt: skip
            rho, error = found[place]
            at = [live.item_at[item] for item in i.items]
            rows.append((rho[at].clip(1e-12, 1.0).tolist(), error[at].tolist()))
        return rows

    def theta(self, places: int) -> list[float]:
        """The examination curve of a list of so many places."""
        curve = examination_curve(places) if self._theta is None else np.asarray(self._theta[:places])
        return [float(x) for x in curve]

    def close(self) -> None:
        """Everything on disk; the journal stays for the next process, or for `seal`."""
        with self._lock:
            self._journal.close()


def _records(path: Path) -> tuple[list[Impression], list[dict[str, Any]]]:
    """The impressions and the events of a journal."""
    impressions, events = [], []
    for payload in journal.read(path).records:
        record = json.loads(payload)
        if "impression" in record:
            values = record["impression"]
            values["items"] = tuple(values["items"])
            values["available"] = None if values["available"] is None else tuple(values["available"])
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
    """Impressions as rows of a wide click log; a query that nobody named is "unknown"."""
    text = any(isinstance(i.query_id, str) or i.query_id is None for i in impressions)
    queries = ["unknown" if i.query_id is None else i.query_id for i in impressions]
    return pl.DataFrame(
        {
            "impression_key": [i.id for i in impressions],
            "query_id": [str(q) for q in queries] if text else queries,
            "items": [list(i.items) for i in impressions],
            "clicks": [[int(item in clicked.get(i.id, ())) for item in i.items] for i in impressions],
            "propensities": [rho for rho, _ in propensities],
            "propensity_errors": [error for _, error in propensities],
            "policy": [i.policy for i in impressions],
            "strategy": [i.strategy for i in impressions],
            "key": pl.Series([i.key for i in impressions], dtype=pl.UInt64),
            "places": [i.places for i in impressions],
            "available": pl.Series([None if i.available is None else json.dumps(i.available) for i in impressions],
                                   dtype=pl.String),
            "timestamp": pl.from_epoch(pl.Series([round(i.time * 1e6) for i in impressions]), time_unit="us"),
        }
    )  # fmt: skip
