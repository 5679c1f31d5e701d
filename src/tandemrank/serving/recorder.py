"""The log of a live pair: impressions and events go to a journal at once, and become Parquet segments when they are complete.

Propensities are computed when a segment is made, off the way of any request (`propensities`, `sealing`). Several replicas
write into one folder, each under its own name.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic

from tandemrank._base.ids import Id
from tandemrank.errors import InputError, OutputError
from tandemrank.policies.features import FeatureValues
from tandemrank.serving import journal, sealing
from tandemrank.serving.journal import Journal
from tandemrank.serving.records import WINDOW, Event, Impression, L
from tandemrank.serving.sealing import Exposure, Sealed, Sealer

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
PATIENCE = 5.0  # seconds; a process that seals looks whether a replica has ended


class Recorder(Generic[L]):
    """Writes a served log into a folder, under the name of one replica.

    `clock` tells the time, seconds since 1970; tests give their own. A journal that a process before left is taken up; the next
    one has the number after all that are there, and at least `first`.
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
        first: int = 0,
    ) -> None:
        if not replica or not all(c.isascii() and (c.isalnum() or c in "-_") for c in replica):
            raise InputError(f"the name of a replica is letters, digits, - and _; got {replica!r}.")
        self.folder, self.replica = Path(folder), replica
        self.rotate, self.clock = rotate, clock
        self._sync_seconds = sync_seconds
        self._features: dict[Id, FeatureValues] = {}
        self._sealer = Sealer(folder, propensities, window=window, clock=clock, features=self._features)
        self._lock = threading.Lock()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._name = journal.hold(sealing.lock_path(self.folder, replica), seconds=PATIENCE)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OutputError(f"cannot write the log to {folder}: {reason}. Give a folder.") from error
        if self._name is None:
            raise OutputError(
                f"{folder} is being written by another process under the name {replica!r}. Give each its own."
            )
        kinds = (sealing.JOURNAL, sealing.SEGMENTS, sealing.EVENTS)
        named = [x.number for what in kinds for x in sealing.files(self.folder, what, replica)]
        self._number = max(first, max(named, default=-1) + 1)
        self._journal = self._open(self._number)

    def _open(self, number: int) -> Journal:
        path = self.folder / f"journal-{self.replica}-{number:06d}.bin"
        return Journal(path, sync_seconds=self._sync_seconds)

    def know(self, live: L) -> None:
        """A pair whose impressions will come: its propensities can be computed."""
        self._sealer.know(live)

    def missing(self) -> set[str]:
        """The digests of pairs that journals name and that are not known yet: their segments cannot be made."""
        return self._sealer.missing(replica=self.replica)

    def forget(self, keep: set[str]) -> None:
        """Lets go of pairs that are not among these digests and that no journal names."""
        self._sealer.forget(keep, replica=self.replica)

    def impression(self, found: Impression, *, features: bool = False) -> None:
        """Records an answer, with the query's features if asked; an `OutputError` where the disk does not take it."""
        if found.uses_features and found.features is not None:
            if len(self._features) >= REMEMBERED:
                self._features.pop(next(iter(self._features)))
            self._features[sealing.id_of(found.query_id)] = found.features
        self._append({"impression": found.record(features=features)})

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
        """The next journal; where the disk has no room for it, the one that there is goes on."""
        before, self._journal = self._journal, self._open(self._number + 1)
        self._number += 1
        before.close()

    def seal(self, *, everything: bool = False) -> list[Sealed]:
        """Makes segments of what can get no more clicks, or of everything (`Sealer.seal`); the next journal begins."""
        with self._lock:
            if self._journal.size:
                self._turn_over()
            open_number = self._number
        return self._sealer.seal(everything=everything, replica=self.replica, open_number=open_number)

    def close(self) -> None:
        """Everything on disk; the journal stays for the next process, or for `seal`."""
        with self._lock:
            self._journal.close()
            journal.let_go(self._name)
            self._name = None
