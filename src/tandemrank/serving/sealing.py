"""Journals become Parquet segments when they are complete: of this replica, and of those that have ended.

A segment is a click log that `validate`, `estimate` and `learn` take as it is: `query_id, items, clicks, values, propensities,
policy, timestamp`, a column for everything in the context of requests, and beside these `propensity_errors` (Monte-Carlo),
`mixture`, `strategy`, `key`, `places`, `available`, `features` and `context`, with which every list can be drawn again
(`replay`); of sessions `session_id, state`. A click counts if it comes within the window after its impression, whichever
replica heard of it.

One process seals at a time (a lock of the folder), and holds one journal at a time in memory, beside the clicks that another
journal has than that of their impression. A sealed journal is renamed, so that no one seals it again, and goes when no
impression that is still open has a click in it; one that was damaged goes to `.set-aside`, as it is:

    journal-REPLICA-NUMBER.bin  ->  segment-REPLICA-NUMBER.parquet, events-REPLICA-NUMBER.bin  ->  segment
"""

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from pydantic import BaseModel, ConfigDict

from tandemrank._base import frames
from tandemrank._base.files import Kind, held, replacing
from tandemrank._base.ids import Id
from tandemrank.errors import OutputError
from tandemrank.serving import journal
from tandemrank.serving.journal import (
    ASIDE,
    EVENTS,
    JOURNAL,
    LogFile,
    files,
    in_utf8,
    lock_path,
)
from tandemrank.serving.propensities import Propensities
from tandemrank.serving.records import WINDOW, Impression, StoredEvent, steady_clock

SEGMENT = Kind("segment of a served log")


@dataclass(frozen=True)
class Sealed:
    """What became of a journal: its segment, impressions and clicks there, and events that were late or for nothing.

    `path` is None where nothing is left to write. `empty`: answers that showed nothing, of which there is no row. `damaged`:
    records that cannot be used, `dropped`: bytes that are in none; where either is there the journal stays, in `.set-aside`.
    """

    path: Path | None
    impressions: int
    clicks: int
    late: int
    unmatched: int
    empty: int = 0
    damaged: int = 0
    dropped: int = 0


STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _Record(BaseModel):
    """An answer or an event; both or neither is damage."""

    model_config = STRICT
    impression: Impression | None = None
    event: StoredEvent | None = None


class _Content(NamedTuple):
    """The impressions and clicks of a journal; how many records cannot be used, and how many bytes are in none."""

    impressions: list[Impression]
    clicks: list[StoredEvent]
    damaged: int
    dropped: int


def content_of(path: Path) -> _Content:
    """Everything that can be read of a journal."""
    found = journal.read(path)
    impressions: list[Impression] = []
    clicks: list[StoredEvent] = []
    damaged = found.gaps
    for payload in found.records:
        try:
            record = _Record.model_validate_json(payload)
        except ValueError:
            damaged += 1
            continue
        damaged += (record.impression is None) == (record.event is None)
        if record.event is None and record.impression is not None:
            impressions.append(record.impression)
        elif record.impression is None and record.event is not None and record.event.counts:
            clicks.append(record.event)
    return _Content(impressions, clicks, damaged, found.dropped)


@dataclass
class _Overview:
    """Of all files: clicks that another file has than that of their impression, by impression, and which impressions a file
    names so; when the last impression of a file was shown; and which replicas showed lists of a session."""

    clicks: dict[str, list[StoredEvent]] = field(default_factory=dict)
    named: dict[LogFile, set[str]] = field(default_factory=dict)
    last: dict[LogFile, float] = field(default_factory=dict)
    replicas: dict[str, set[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, everywhere: Iterable[LogFile], latest: float) -> "_Overview":
        """Reads them one after the other. A time beyond the latest is that of a clock that leapt."""
        found = cls()
        for file in everywhere:
            content = content_of(file.path)
            own = {i.id for i in content.impressions}
            away = [click for click in content.clicks if click.impression not in own]
            found.named[file] = {click.impression for click in away}
            found.last[file] = max((i.time for i in content.impressions if i.time <= latest), default=-np.inf)
            for click in away:
                found.clicks.setdefault(click.impression, []).append(click)
            for session in {i.session for i in content.impressions if i.session is not None}:
                found.replicas.setdefault(session, set()).add(file.replica)
        return found

    def torn(self) -> dict[str, set[str]]:
        """Sessions that several replicas have shown lists of, though each knows its own clicks alone."""
        return {session: names for session, names in self.replicas.items() if len(names) > 1}


class Sealer:
    """Makes segments in the folder of a served log: of journals of replicas that have ended, and of `replica`, one's own."""

    def __init__(
        self,
        folder: str | Path,
        propensities: Propensities,
        *,
        replica: str | None = None,
        window: float = WINDOW,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.folder = in_utf8(folder)
        self.replica = replica
        self.window = window
        self.clock = clock or steady_clock()
        self.propensities = propensities
        self._sealing = threading.Lock()
        self._torn: set[str] = set()  # sessions of which it was said

    def forget(self, keep: set[str]) -> None:
        """Lets go of policies that are not among these digests and that no journal names."""
        if idle := self.propensities.known - keep:
            journals = (content_of(found.path) for found in self._ours(None))
            named = {digest for content in journals for i in content.impressions for digest, _ in i.mixture}
            self.propensities.forget(idle - named)

    def seal(self, *, everything: bool = False, writing: int | None = None) -> list[Sealed]:
        """Makes segments of the journals whose impressions can get no more clicks, and removes those journals.

        `writing`: the number of one's own journal that is still written. With `everything` also of journals whose impressions
        could get more: such clicks will be unmatched. Where another process seals nothing is done, or with `everything` after
        it. A policy that is missing is an `OutputError`, after everything else is sealed.
        """
        with (
            self._sealing,
            held(self.folder / ".sealing.lock", seconds=np.inf if everything else 0.0) as alone,
        ):
            ours = self._ours(writing) if alone else []
            return self._seal(ours, everything) if ours else []

    def _ours(self, writing: int | None) -> list[LogFile]:
        """Journals that nobody writes any more: listed first, so that a replica that starts after it is not among them."""
        listed = files(self.folder, JOURNAL)
        ended = {name: name == self.replica or self._has_ended(name) for name in {found.replica for found in listed}}
        return [x for x in listed if ended[x.replica] and (x.replica, x.number) != (self.replica, writing)]

    def _has_ended(self, replica: str) -> bool:
        with held(lock_path(self.folder, replica)) as free:
            return free

    def _seal(self, ours: Sequence[LogFile], everything: bool) -> list[Sealed]:
        # After `ours`: whatever a click in them is of was written before, so it is read here.
        everywhere = [*files(self.folder, JOURNAL), *files(self.folder, EVENTS)]
        now = self.clock()
        survey = _Overview.of(everywhere, now + self.window)
        self._tell_of_torn(survey.torn())
        done: dict[LogFile, LogFile] = {}
        sealed: list[Sealed] = []
        waiting: set[str] = set()
        problem: OutputError | None = None
        for found in ours:
            is_ripe = survey.last[found] + self.window <= now  # no impression can get more clicks
            if found.replica in waiting or not (everything or is_ripe):
                waiting.add(found.replica)  # later ones are later still
                continue
            try:
                one = self._segment(found, content_of(found.path), survey)
            except OutputError as error:  # a policy that is not there: what others left must not wait for it
                waiting.add(found.replica)
                problem = error
                continue
            done[found] = self._set_down(found, damaged=one.damaged > 0)
            if one.impressions or one.empty or one.damaged:
                sealed.append(one)
            if one.damaged:
                journal.shout(
                    f"{found.path} has {one.damaged} records that cannot be used and {one.dropped} bytes that are in no "
                    f"record, torn by a kill or damaged; all others are sealed. It is kept in {self.folder / ASIDE}."
                )
        self._clean(everywhere, done, survey)
        if problem is not None:
            raise problem
        return sealed

    def _tell_of_torn(self, torn: Mapping[str, set[str]]) -> None:
        if new := sorted(torn.keys() - self._torn):
            self._torn.update(new)
            names = ", ".join(sorted(torn[new[0]]))
            journal.shout(
                f"{len(new)} sessions have lists of several replicas (first: {new[0]!r}, of {names}). "
                f"Each knows its own clicks alone, so the states may be wrong. Send all of a session to one replica."
            )

    def _set_down(self, found: LogFile, *, damaged: bool) -> LogFile:
        """A sealed journal under another name: a process that dies from here on does not have it sealed once more."""
        if damaged:
            (self.folder / ASIDE).mkdir(exist_ok=True)
            with suppress(FileExistsError):  # of a process that died right here
                (self.folder / ASIDE / found.path.name).hardlink_to(found.path)
        path = found.path.with_name(f"{EVENTS}-{found.replica}-{found.number:06d}.bin")
        found.path.rename(path)
        return found._replace(path=path)

    def _clean(self, everywhere: Sequence[LogFile], done: Mapping[LogFile, LogFile], survey: _Overview) -> None:
        """Removes sealed journals that have no event of an impression that is not sealed."""
        is_sealed = {found: found in done or found.path.name.startswith(EVENTS) for found in everywhere}
        open_ids: set[str] = set()
        if any(is_sealed[found] and survey.named[found] for found in everywhere):
            open_journals = [found for found in everywhere if not is_sealed[found]]
            open_ids = {i.id for found in open_journals for i in content_of(found.path).impressions}
        for found in everywhere:
            if is_sealed[found] and not survey.named[found] & open_ids:
                with suppress(FileNotFoundError):
                    done.get(found, found).path.unlink()

    def _segment(self, found: LogFile, content: _Content, survey: _Overview) -> Sealed:
        good, damaged = self._usable(content.impressions)
        shown = [i for i in good if i.items]
        events = [*content.clicks, *(click for i in shown for click in survey.clicks.get(i.id, ()))]
        clicked, late, unmatched = join_clicks(shown, events, self.window)
        path = self.folder / f"segment-{found.replica}-{found.number:06d}.parquet"
        if shown:
            with replacing(path, SEGMENT) as temporary:
                frames.write_parquet(wide(shown, clicked, self.propensities.of(shown)), temporary)
        return Sealed(
            path=path if shown else None,
            impressions=len(shown),
            clicks=sum(map(len, clicked.values())),
            late=late,
            unmatched=unmatched,
            empty=len(good) - len(shown),
            damaged=damaged + content.damaged,
            dropped=content.dropped,
        )

    def _usable(self, impressions: Sequence[Impression]) -> tuple[list[Impression], int]:
        """Impressions that can be right, each once, and how many others there are."""
        found: dict[str, Impression] = {}
        for i in impressions:
            with suppress(ValueError):
                self.propensities.check(i)
                found.setdefault(i.id, i)
        return list(found.values()), len(impressions) - len(found)


def join_clicks(
    impressions: Iterable[Impression], clicks: Iterable[StoredEvent], window: float
) -> tuple[dict[str, dict[Id, dict[str, float]]], int, int]:
    """The clicked items of each impression, and how many distinct clicks were too late, or on an item that it did not show.

    Of each item what events of each type say that it was worth: the most of it, since an event may come several times.
    """
    shown = {i.id: i for i in impressions}
    clicked: dict[str, dict[Id, dict[str, float]]] = {}
    late: set[tuple[str, Id]] = set()
    unmatched: set[tuple[str, Id]] = set()
    for click in clicks:
        of, name = shown.get(click.impression), (click.impression, click.item)
        if of is None:
            continue
        if click.item not in of.items:
            unmatched.add(name)
        elif click.time > of.time + window:
            late.add(name)
        else:
            worth = clicked.setdefault(click.impression, {}).setdefault(click.item, {})
            worth[click.type] = max(worth.get(click.type, 0.0), click.worth)
    late -= {(name, item) for name, items in clicked.items() for item in items}
    return clicked, len(late), len(unmatched)


def wide(
    impressions: Sequence[Impression],
    clicked: dict[str, dict[Id, dict[str, float]]],
    propensities: Sequence[tuple[list[float], list[float]]],
) -> pl.DataFrame:
    """Impressions as rows of a wide click log."""
    texts: dict[str, list[Any]] = {
        "available": [i.available for i in impressions],
        "features": [i.features for i in impressions],
        "context": [i.context for i in impressions],
    }
    names = dict.fromkeys(name for i in impressions for name in i.context or ())
    contexts = {name: pl.Series([(i.context or {}).get(name) for i in impressions], dtype=pl.String) for name in names}
    optional = {
        name: pl.Series(name, [None if x is None else json.dumps(x) for x in column], dtype=pl.String)
        for name, column in texts.items()
    }
    return pl.DataFrame(
        {
            "impression_key": [i.id for i in impressions],
            "query_id": [i.query_id for i in impressions],
            "items": [list(i.items) for i in impressions],
            "clicks": [[int(item in clicked.get(i.id, ())) for item in i.items] for i in impressions],
            "values": [
                [sum(clicked.get(i.id, {}).get(item, {}).values(), 0.0) for item in i.items] for i in impressions
            ],
            "propensities": pl.Series([rho for rho, _ in propensities], dtype=pl.List(pl.Float64)),
            "propensity_errors": pl.Series([error for _, error in propensities], dtype=pl.List(pl.Float64)),
            "policy": [i.policy for i in impressions],
            "strategy": [i.strategy for i in impressions],
            "key": pl.Series([i.key for i in impressions], dtype=pl.UInt64),
            "places": [i.places for i in impressions],
            "mixture": [json.dumps(i.mixture) for i in impressions],
            "theta": [json.dumps(i.theta) for i in impressions],
            **optional,
            **contexts,
            **_sessions(impressions),
            "timestamp": pl.from_epoch(pl.Series([round(i.time * 1e6) for i in impressions]), time_unit="us"),
        }
    )


def _sessions(impressions: Sequence[Impression]) -> dict[str, list[Any]]:
    """Columns of sessions, where some impression has one; any other is a session of its own."""
    if all(i.session is None for i in impressions):
        return {}
    return {
        "session_id": [i.id if i.session is None else i.session for i in impressions],
        "state": [i.state or "|1" for i in impressions],
    }
