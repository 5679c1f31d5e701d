"""Journals become Parquet segments when they are complete: of this replica, and of those that have ended.

A segment is a click log that `validate`, `estimate` and `learn` take as it is: `query_id, items, clicks, propensities,
policy, timestamp`, and beside these `propensity_errors` (Monte-Carlo), `mixture`, `strategy`, `key`, `places`, `available`,
with which every list can be drawn again (`replay`). A click counts if it comes within the window after its impression,
whichever replica heard of it.

One process seals at a time (a lock of the folder), and holds one journal at a time in memory, beside the clicks that another
journal has than that of their impression. A sealed journal is renamed, so that no one seals it again, and goes when no
impression that is still open has a click in it; one that was damaged goes to `.set-aside`, as it is:

    journal-REPLICA-NUMBER.bin  ->  segment-REPLICA-NUMBER.parquet, events-REPLICA-NUMBER.bin  ->  segment
"""

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol

import numpy as np
import polars as pl

from tandemrank._base import checksum
from tandemrank._base.files import Kind, replacing
from tandemrank._base.ids import Id
from tandemrank.errors import OutputError
from tandemrank.policies.features import FeatureValues
from tandemrank.serving import journal
from tandemrank.serving.log_files import (
    ASIDE,
    EVENTS,
    JOURNAL,
    Click,
    ClicksElsewhere,
    JournalContent,
    LogFile,
    files,
    in_utf8,
    lock_path,
    parsed,
    read_journal,
)
from tandemrank.serving.records import WINDOW, Impression, L, steady_clock

SEGMENT = Kind("segment of a served log")


@dataclass(frozen=True)
class Sealed:
    """What became of a journal: its segment, impressions and clicks there, and events that came late or for nothing.

    `path` is None where nothing is left to write. `set_aside`: impressions whose propensity is not known, since a process that
    died alone knew the features of the query. `empty`: answers that showed nothing, of which there is no row. `damaged`:
    records that cannot be used, `dropped`: bytes that are in none; where either is there the journal stays, in `.set-aside`.
    """

    path: Path | None
    impressions: int
    clicks: int
    late: int
    unmatched: int
    set_aside: int = 0
    empty: int = 0
    damaged: int = 0
    dropped: int = 0


class PropensitySource(Protocol[L]):
    """Computes the propensities of impressions of pairs that it knows; `propensities.Propensities` is one."""

    @property
    def known(self) -> set[str]:
        """The digests of the pairs."""

    def know(self, live: L) -> None:
        """Another pair."""

    def forget(self, digests: set[str]) -> None:
        """Pairs whose impressions are all sealed."""

    def check(self, impression: Impression) -> None:
        """Refuses an impression that those pairs cannot have given, with an `InputError`."""

    def of(self, impressions: Sequence[Impression]) -> list[tuple[list[float], list[float]]]:
        """rho_0 of every shown item of each impression, and its standard error."""


class Sealer(Generic[L]):
    """Makes segments in the folder of a served log.

    `features`: those that decided answers, by their keys, as far as this process has them in memory.
    """

    def __init__(
        self,
        folder: str | Path,
        propensities: PropensitySource[L],
        *,
        window: float = WINDOW,
        clock: Callable[[], float] | None = None,
        features: Mapping[str, FeatureValues] | None = None,
    ) -> None:
        self.folder = in_utf8(folder)
        self.window = window
        self.clock = clock or steady_clock()
        self._propensities = propensities
        self._features = {} if features is None else features
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
        return {
            digest
            for found in self._ours(replica, None)
            for i in read_journal(found.path).impressions
            for digest, _ in i.mixture
        }

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

    def _ours(self, replica: str | None, open_number: int | None) -> list[LogFile]:
        """Journals that nobody writes any more: listed first, so that a replica that starts after it is not among them."""
        listed = files(self.folder, JOURNAL)
        ended = {name: name == replica or self._has_ended(name) for name in {found.replica for found in listed}}
        return [x for x in listed if ended[x.replica] and (x.replica, x.number) != (replica, open_number)]

    def _has_ended(self, replica: str) -> bool:
        with journal.held(lock_path(self.folder, replica)) as free:
            return free

    def _seal(self, ours: Sequence[LogFile], everything: bool) -> list[Sealed]:
        # After `ours`: whatever a click in them is of was written before, so it is read here.
        everywhere = [*files(self.folder, JOURNAL), *files(self.folder, EVENTS)]
        elsewhere = ClicksElsewhere.of(everywhere)
        done: dict[LogFile, LogFile] = {}
        sealed: list[Sealed] = []
        waiting: set[str] = set()
        problem: OutputError | None = None
        for found in ours:
            content = read_journal(found.path)
            if found.replica in waiting or not (everything or self._is_ripe(content.impressions)):
                waiting.add(found.replica)  # later ones are later still
                continue
            try:
                one = self._segment(found, content, elsewhere)
            except OutputError as error:  # a pair that is not there: what others left must not wait for it
                waiting.add(found.replica)
                problem = error
                continue
            done[found] = self._set_down(found, damaged=one.damaged > 0)
            if content.impressions or one.damaged:
                sealed.append(one)
            if one.damaged:
                journal.shout(
                    f"{found.path} has {one.damaged} records that cannot be used and {one.dropped} bytes that are in no "
                    f"record, torn by a kill or damaged; all others are sealed. It is kept in {self.folder / ASIDE}."
                )
        self._clean(everywhere, done, elsewhere)
        if problem is not None:
            raise problem
        return sealed

    def _is_ripe(self, impressions: Sequence[Impression]) -> bool:
        """Whether no impression can get more clicks. A time further ahead than the window is that of a clock that leapt."""
        now = self.clock()
        last = max((i.time for i in impressions if i.time <= now + self.window), default=-np.inf)
        return bool(last + self.window <= now)

    def _may_be_ripe(self, path: Path) -> bool:
        """Whether a journal may be complete, without reading it: its first impression is as old as the window."""
        payload = journal.first_record(path)
        try:
            first = None if payload is None else parsed(payload)
        except ValueError:
            return True
        return not isinstance(first, Impression) or self._is_ripe([first])

    def _set_down(self, found: LogFile, *, damaged: bool) -> LogFile:
        """A sealed journal under another name: a process that dies from here on does not have it sealed once more."""
        if damaged:
            (self.folder / ASIDE).mkdir(exist_ok=True)
            with suppress(FileExistsError):  # of a process that died right here
                (self.folder / ASIDE / found.path.name).hardlink_to(found.path)
        path = found.path.with_name(f"{EVENTS}-{found.replica}-{found.number:06d}.bin")
        found.path.rename(path)
        return found._replace(path=path)

    def _clean(
        self, everywhere: Sequence[LogFile], done: Mapping[LogFile, LogFile], elsewhere: ClicksElsewhere
    ) -> None:
        """Removes sealed journals that have no event of an impression that is not sealed."""
        is_sealed = {found: found in done or found.path.name.startswith(EVENTS) for found in everywhere}
        open_ids: set[str] = set()
        if any(is_sealed[found] and elsewhere.named[found] for found in everywhere):
            open_journals = [found for found in everywhere if not is_sealed[found]]
            open_ids = {i.id for found in open_journals for i in read_journal(found.path).impressions}
        for found in everywhere:
            if is_sealed[found] and not elsewhere.named[found] & open_ids:
                with suppress(FileNotFoundError):
                    done.get(found, found).path.unlink()

    def _segment(self, found: LogFile, content: JournalContent, elsewhere: ClicksElsewhere) -> Sealed:
        good, damaged = self._usable(content.impressions)
        shown = [i for i in good if i.items]
        whole = [i._replace(features=self._known_features(i)) for i in shown]
        lost = [i.features_key is not None and i.features is None for i in whole]
        kept = [i for i, gone in zip(shown, lost, strict=True) if not gone]
        aside = [i for i, gone in zip(shown, lost, strict=True) if gone]
        events = [*content.clicks, *(click for i in shown for click in elsewhere.clicks.get(i.id, ()))]
        clicked, late, unmatched = join_clicks(shown, events, self.window)
        path = self.folder / f"segment-{found.replica}-{found.number:06d}.parquet"
        if aside:
            (self.folder / ASIDE).mkdir(exist_ok=True)
            self._write(self.folder / ASIDE / path.name, wide(aside, clicked, [([], [])] * len(aside)))
        if kept:
            rho = self._propensities.of([i for i, gone in zip(whole, lost, strict=True) if not gone])
            self._write(path, wide(kept, clicked, rho))
        return Sealed(
            path=path if kept else None,
            impressions=len(kept),
            clicks=sum(len(clicked.get(i.id, ())) for i in kept),
            late=late,
            unmatched=unmatched,
            set_aside=len(aside),
            empty=len(good) - len(shown),
            damaged=damaged + content.damaged,
            dropped=content.dropped,
        )

    def _usable(self, impressions: Sequence[Impression]) -> tuple[list[Impression], int]:
        """Impressions that can be right, each once, and how many others there are."""
        found: dict[str, Impression] = {}
        for i in impressions:
            with suppress(ValueError):
                self._propensities.check(i)
                found.setdefault(i.id, i)
        return list(found.values()), len(impressions) - len(found)

    def _write(self, path: Path, frame: pl.DataFrame) -> None:
        with replacing(path, SEGMENT) as temporary:
            checksum.write_parquet(frame, temporary)

    def _known_features(self, i: Impression) -> dict[str, Any] | None:
        if i.features_key is None or i.features is not None:
            return i.features
        found = self._features.get(i.features_key)
        return None if found is None else dict(found)


def join_clicks(
    impressions: Iterable[Impression], clicks: Iterable[Click], window: float
) -> tuple[dict[str, set[Id]], int, int]:
    """The clicked items of each impression, and how many distinct clicks came too late, or for an item that it did not show."""
    shown = {i.id: i for i in impressions}
    clicked: dict[str, set[Id]] = {}
    late: set[tuple[str, Id]] = set()
    unmatched: set[tuple[str, Id]] = set()
    for name, item, time in clicks:
        of = shown.get(name)
        if of is None:
            continue
        if item not in of.items:
            unmatched.add((name, item))
        elif time > of.time + window:
            late.add((name, item))
        else:
            clicked.setdefault(name, set()).add(item)
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
            "query_id": [i.query_id for i in impressions],
            "items": [list(i.items) for i in impressions],
            "clicks": [[int(item in clicked.get(i.id, ())) for item in i.items] for i in impressions],
            "propensities": pl.Series([rho for rho, _ in propensities], dtype=pl.List(pl.Float64)),
            "propensity_errors": pl.Series([error for _, error in propensities], dtype=pl.List(pl.Float64)),
            "policy": [i.policy for i in impressions],
            "strategy": [i.strategy for i in impressions],
            "key": pl.Series([i.key for i in impressions], dtype=pl.UInt64),
            "places": [i.places for i in impressions],
            "uses_features": [i.features_key is not None for i in impressions],
            "mixture": [json.dumps(i.mixture) for i in impressions],
            "theta": [json.dumps(i.theta) for i in impressions],
            **optional,
            "timestamp": pl.from_epoch(pl.Series([round(i.time * 1e6) for i in impressions]), time_unit="us"),
        }
    )  # fmt: skip
