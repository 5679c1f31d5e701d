"""The log of a live policy: impressions and events go to a journal at once, and become Parquet segments when they are complete.

Propensities are computed when a segment is made, off the way of any request (`propensities`, `sealing`). Several replicas
write into one folder, each under its own name.
"""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tandemrank._base.files import hold, let_go
from tandemrank.errors import InputError, OutputError
from tandemrank.serving import journal
from tandemrank.serving.journal import JOURNAL, Journal, files
from tandemrank.serving.propensities import Propensities
from tandemrank.serving.records import WINDOW, Impression, StoredEvent, steady_clock
from tandemrank.serving.sealing import Sealed, Sealer, content_of

try:  # of the extra `serve`: several times as fast
    from orjson import dumps
except ImportError:
    from pydantic_core import to_json as dumps  # type: ignore[assignment]

# Bytes of a journal before the next one begins; as much is in memory while it is sealed, several times.
ROTATE = 16 * 2**20
PATIENCE = 5.0  # seconds; a process that seals looks whether a replica has ended


class Recorder:
    """Writes a served log into a folder, under the name of one replica.

    `clock` tells the time, seconds since 1970; tests give their own. The first journal has the number after all that are there.
    `failing` says why the log takes no records now, and is empty while it does.
    """

    def __init__(
        self,
        folder: str | Path,
        propensities: Propensities,
        *,
        replica: str = "0",
        window: float = WINDOW,
        sync_seconds: float = journal.SYNC_SECONDS,
        rotate: int = ROTATE,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if not replica or not all(c.isascii() and (c.isalnum() or c in "-_") for c in replica):
            raise InputError(f"the name of a replica is letters, digits, - and _; got {replica!r}.")
        self.folder = Path(folder)
        self.replica = replica
        self.rotate = rotate
        self.clock = clock or steady_clock()
        self.failing = ""
        self._sync_seconds = sync_seconds
        self.propensities = propensities
        self.sealer = Sealer(folder, propensities, replica=replica, window=window, clock=self.clock)
        self._lock = threading.Lock()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._name = hold(journal.lock_path(self.folder, replica), seconds=PATIENCE)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OutputError(f"cannot write the log to {folder}: {reason}. Give a folder.") from error
        if self._name is None:
            raise OutputError(
                f"{folder} is being written by another process under the name {replica!r}. Give each its own."
            )
        self._number = journal.next_number(self.folder, replica)
        self._journal = self._open(self._number)
        self._turn_at = rotate

    def _open(self, number: int) -> Journal:
        path = self.folder / f"journal-{self.replica}-{number:06d}.bin"
        return Journal(path, sync_seconds=self._sync_seconds)

    def impressions(self, found: Sequence[Impression]) -> None:
        """Records answers, all or none; an `OutputError` where the disk takes none."""
        self._append([{"impression": one._asdict()} for one in found])

    def events(self, found: Sequence[StoredEvent]) -> None:
        """Records events, in any order, any number of times."""
        self._append([{"event": one._asdict()} for one in found])

    def recent(self) -> tuple[list[Impression], list[StoredEvent]]:
        """Answers and clicks that are in journals still, of all replicas: after a restart, those of the last window."""
        found = [content_of(one.path) for one in files(self.folder, JOURNAL)]
        return [i for one in found for i in one.impressions], [click for one in found for click in one.clicks]

    @property
    def unsynced(self) -> int:
        """Bytes of the journal that are not surely on disk yet."""
        return self._journal.size - self._journal.synced

    def _append(self, records: Sequence[dict[str, Any]]) -> None:
        payloads = [dumps(record) for record in records]
        with self._lock:
            try:
                self._usable_journal().append(*payloads)
                self.failing = ""
            except OutputError as error:
                if not self.failing:
                    journal.shout(f"the log takes no records: {error} Answers go on unlogged.")
                self.failing = str(error)
                raise

    def _usable_journal(self) -> Journal:
        """The journal, or the next one: where this is long, and that cannot be opened, it goes on."""
        if not self._journal.is_usable:
            self._turn_over()
        elif self._journal.size > self._turn_at:
            try:
                self._turn_over()
            except OutputError as error:
                self._turn_at = self._journal.size + self.rotate // 8
                journal.shout(f"{self._journal.path} goes on, as the next one cannot be begun: {error}")
        return self._journal

    def _turn_over(self) -> None:
        """The next journal; where it cannot be begun, the one that there is stays."""
        if not journal.lock_path(self.folder, self.replica).exists() and self.folder.is_dir():
            let_go(self._name)  # the folder was removed, and is there again
            self._name = hold(journal.lock_path(self.folder, self.replica))
        opened = self._open(self._number + 1)
        before = self._journal
        self._journal = opened
        self._number += 1
        self._turn_at = self.rotate
        before.close()

    def seal(self, *, everything: bool = False) -> list[Sealed]:
        """Makes segments of what can get no more clicks, or of everything (`Sealer.seal`); the next journal begins."""
        with self._lock:
            if self._journal.size:
                self._turn_over()
            writing = self._number
        return self.sealer.seal(everything=everything, writing=writing)

    def close(self) -> None:
        """Everything on disk; the journal stays for the next process, or for `seal`."""
        with self._lock:
            self._journal.close()
            let_go(self._name)
            self._name = None
