"""Journals become Parquet segments when they are complete: of this replica, and of those that have ended.

A segment is a click log that `validate`, `estimate` and `learn` take as it is: `query_id, items, clicks, propensities,
policy, timestamp`, and beside these `propensity_errors` (Monte-Carlo), `mixture`, `strategy`, `key`, `places`, `available`,
with which every list can be drawn again (`replay`). A click counts if it comes within the window after its impression,
whichever replica heard of it.

One process seals at a time (a lock of the folder). A sealed journal is renamed, so that no one seals it again, and goes when
no impression that is still open has a click in it:

    journal-REPLICA-NUMBER.bin  ->  segment-REPLICA-NUMBER.parquet, events-REPLICA-NUMBER.bin  ->  segment
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol

import numpy as np
import polars as pl

from tandemrank._base.files import Kind, replacing
from tandemrank._base.ids import Id
from tandemrank.errors import OutputError
from tandemrank.policies.features import FeatureValues
from tandemrank.serving import journal
from tandemrank.serving.records import WINDOW, Impression, L

SEGMENT = Kind("segment of a served log")
ASIDE = ".set-aside"
JOURNAL, EVENTS, SEGMENTS = "journal", "events", "segment"


class Named(NamedTuple):
    """What the name of a file of a served log says."""

    path: Path
    replica: str
    number: int


def files(folder: Path, what: str, replica: str | None = None) -> list[Named]:
    """The journals, segments or events of a folder, of all replicas or of one, in the order of their numbers."""
    found = [x for path in folder.glob(f"{what}-*-*") if (x := named(path, what)) and replica in (None, x.replica)]
    return sorted(found, key=lambda x: (x.replica, x.number))


def named(path: Path, what: str) -> Named | None:
    """What the name of a journal, segment or events says; None for any other."""
    name, _, number = path.stem.removeprefix(f"{what}-").rpartition("-")
    ours = path.stem.startswith(f"{what}-") and bool(name) and number.isdecimal()
    return Named(path, name, int(number)) if ours else None


def finished(folder: Path) -> list[Named]:
    """Segments that nobody will make again: those whose journals are gone. One that a kill left beside its journal is not."""
    segments = files(folder, SEGMENTS)  # before the journals: one that is sealed meanwhile waits
    waiting = {(x.replica, x.number) for x in files(folder, JOURNAL)}
    return [x for x in segments if (x.replica, x.number) not in waiting]


def lock_path(folder: Path, replica: str) -> Path:
    """The file that a replica holds for as long as it runs."""
    return folder / f".replica-{replica}.lock"


@dataclass(frozen=True)
class Sealed:
    """A segment that was written: where it is, its impressions and clicks, and events that came late or for nothing.

    `set_aside`: impressions whose propensity is not known, since a process that died alone knew the features of the query.
    `dropped`: bytes of a torn or damaged end of the journal.
    """

    path: Path
    impressions: int
    clicks: int
    late: int
    unmatched: int
    set_aside: int = 0
    dropped: int = 0


class Exposure(Protocol[L]):
    """Computes the propensities of impressions of pairs that it knows; `propensities.Propensities` is one."""

    @property
    def known(self) -> set[str]:
        """The digests of the pairs."""

    def know(self, live: L) -> None:
        """Another pair."""

    def forget(self, digests: set[str]) -> None:
        """Pairs whose impressions are all sealed."""

    def of(self, impressions: Sequence[Impression]) -> list[tuple[list[float], list[float]]]:
        """rho_0 of every shown item of each impression, and its standard error."""


class Sealer(Generic[L]):
    """Makes segments in the folder of a served log.

    `features`: those of queries that are known by features alone, as far as this process has them in memory.
    """

    def __init__(
        self,
        folder: str | Path,
        propensities: Exposure[L],
        *,
        window: float = WINDOW,
        clock: Callable[[], float] = time.time,
        features: Mapping[Id, FeatureValues] | None = None,
    ) -> None:
        self.folder, self.window, self.clock = Path(folder), window, clock
        self._propensities, self._features = propensities, {} if features is None else features
        self._sealing = threading.Lock()

    def know(self, live: L) -> None:
        """A pair whose impressions may come: its propensities can be computed."""
        self._propensities.know(live)

    def missing(self, *, replica: str | None = None) -> set[str]:
        """The digests of pairs that journals name and that are not known yet: their segments cannot be made."""
        return self._named(replica) - self._propensities.known

    def forget(self, keep: set[str], *, replica: str | None = None) -> None:
        """Lets go of pairs that are not among these digests and that no journal names."""
        if idle := self._propensities.known - keep:
            self._propensities.forget(idle - self._named(replica))

    def _named(self, replica: str | None) -> set[str]:
        read = [_records(found.path).impressions for found in self._ours(replica, None)]
        return {digest for impressions in read for i in impressions for digest, _ in i.mixture}

    def seal(
        self, *, everything: bool = False, replica: str | None = None, open_number: int | None = None
    ) -> list[Sealed]:
        """Makes segments of the journals whose impressions can get no more clicks, and removes those journals.

        Of the replica that asks, but for the number that it is writing, and of replicas that have ended. With `everything`
        also of those that could get some: these will be unmatched. Where another process seals nothing is done, or with
        `everything` after it. A pair that is missing is an `OutputError`, after everything else is sealed.
        """
        with (
            self._sealing,
            journal.held(self.folder / ".sealing.lock", seconds=np.inf if everything else 0.0) as alone,
        ):
            ours = self._ours(replica, open_number) if alone else []
            if not ours or not (everything or any(self._may_be_ripe(found.path) for found in ours)):
                return []
            return self._seal(ours, everything)

    def _ours(self, replica: str | None, open_number: int | None) -> list[Named]:
        """Journals that nobody writes any more: listed first, so that a replica that starts after it is not among them."""
        listed = files(self.folder, JOURNAL)
        ended = {name: name == replica or self._has_ended(name) for name in {found.replica for found in listed}}
        return [x for x in listed if ended[x.replica] and (x.replica, x.number) != (replica, open_number)]

    def _has_ended(self, replica: str) -> bool:
        with journal.held(lock_path(self.folder, replica)) as free:
            return free

    def _seal(self, ours: Sequence[Named], everything: bool) -> list[Sealed]:
        # After `ours`: whatever a click in them is of was written before, so it is read here.
        read = {found: _records(found.path) for found in (*files(self.folder, JOURNAL), *files(self.folder, EVENTS))}
        events: dict[str, list[dict[str, Any]]] = {}
        for content in read.values():
            for event in content.events:
                events.setdefault(event["impression"], []).append(event)
        done: dict[Named, Named] = {}
        sealed, waiting, problem = [], set(), None
        for found in ours:
            impressions, dropped = read[found].impressions, read[found].dropped
            last = max((i.time for i in impressions), default=-np.inf)
            if found.replica in waiting or (not everything and last + self.window > self.clock()):
                waiting.add(found.replica)  # later ones are later still
                continue
            own = [event for i in impressions for event in events.get(i.id, ())]
            try:
                sealed += [replace(self._segment(found, impressions, own), dropped=dropped)] if impressions else []
            except OutputError as error:  # a pair that is not there: what others left must not wait for it
                waiting.add(found.replica)
                problem = error
                continue
            done[found] = self._set_down(found)
            if dropped:
                journal.shout(
                    f"{found.path} ends in {dropped} bytes that are no record, torn by a kill or damaged: dropped."
                )
        self._clean(read, done)
        if problem is not None:
            raise problem
        return sealed

    def _set_down(self, found: Named) -> Named:
        """A sealed journal under another name: a process that dies from here on does not have it sealed once more."""
        path = found.path.with_name(f"{EVENTS}-{found.replica}-{found.number:06d}.bin")
        found.path.rename(path)
        return found._replace(path=path)

    def _clean(self, read: Mapping[Named, "_Content"], done: Mapping[Named, Named]) -> None:
        """Removes sealed journals that have no event of an impression that is not sealed."""
        is_sealed = {found: found in done or found.path.name.startswith(EVENTS) for found in read}
        waiting = {i.id for found, content in read.items() if not is_sealed[found] for i in content.impressions}
        for found, content in read.items():
            if is_sealed[found] and not any(event["impression"] in waiting for event in content.events):
                with suppress(FileNotFoundError):
                    done.get(found, found).path.unlink()

    def _may_be_ripe(self, path: Path) -> bool:
        """Whether a journal may be complete, without reading it: its first impression is as old as the window."""
        for payload in journal.read(path, most=1).records:
            first = json.loads(payload).get("impression")
            return first is None or bool(first["time"] + self.window <= self.clock())
        return True

    def _segment(self, found: Named, impressions: Sequence[Impression], events: Sequence[dict[str, Any]]) -> Sealed:
        features = [self._known_features(i) for i in impressions]
        lost = [i.uses_features and found is None for i, found in zip(impressions, features, strict=True)]
        whole = [i._replace(features=f) for i, f, gone in zip(impressions, features, lost, strict=True) if not gone]
        kept = [i for i, gone in zip(impressions, lost, strict=True) if not gone]
        clicked, late, unmatched = join_clicks(impressions, events, self.window)
        path = self.folder / f"segment-{found.replica}-{found.number:06d}.parquet"
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
        return i.features or self._features.get(id_of(i.query_id)) if i.uses_features else None


def id_of(query_id: Id | None) -> Id:
    """The id of a query in the log."""
    return "unknown" if query_id is None else query_id


class _Content(NamedTuple):
    """The impressions and the events of a journal, and how many bytes of its end are no record."""

    impressions: list[Impression]
    events: list[dict[str, Any]]
    dropped: int


def _records(path: Path) -> _Content:
    impressions, events, found = [], [], journal.read(path)
    for payload in found.records:
        record = json.loads(payload)
        if "impression" in record:
            values = record["impression"]
            values["items"] = tuple(values["items"])
            values["available"] = None if values["available"] is None else tuple(values["available"])
            values["mixture"] = tuple((str(digest), float(share)) for digest, share in values["mixture"])
            impressions.append(Impression(**values))
        else:
            events.append(record["event"])
    return _Content(impressions, events, found.dropped)


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
            "query_id": [id_of(i.query_id) for i in impressions],
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
