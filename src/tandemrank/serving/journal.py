"""An append-only journal that survives `kill -9`: every record is framed, checksummed, and on disk within a second.

    record = length (4 bytes) | crc32 of the payload (4 bytes) | payload

A process that dies while it writes leaves at most one torn record at the end; `read` drops it and says so. A journal is
written by one process at a time (a lock), and is never changed where it was written before.
"""

import os
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tandemrank.errors import OutputError

HEADER = struct.Struct("<II")
LONGEST = 2**24  # bytes of a record
SYNC_SECONDS = 1.0


@dataclass(frozen=True)
class Recovered:
    """The whole records of a journal, and how many bytes of a torn or damaged end were dropped."""

    records: tuple[bytes, ...]
    dropped: int


def read(path: str | Path, *, most: int | None = None) -> Recovered:
    """Every whole record of a journal, in order, up to its end or to the first that is not whole; or the first few."""
    try:
        if most is None:
            content = Path(path).read_bytes()
        else:
            with Path(path).open("rb") as file:
                content = file.read(most * (HEADER.size + LONGEST))
    except OSError as error:
        raise OutputError(f"cannot read the journal {path}: {error.strerror}.") from error
    records: list[bytes] = []
    at = 0
    while at + HEADER.size <= len(content) and (most is None or len(records) < most):
        length, crc = HEADER.unpack_from(content, at)
        payload = content[at + HEADER.size : at + HEADER.size + length]
        if length > LONGEST or len(payload) < length or zlib.crc32(payload) != crc:
            break
        records.append(payload)
        at += HEADER.size + length
    return Recovered(tuple(records), len(content) - at)


class Journal:
    """A journal that is open for appending; a new file, or one that a process before left, whose torn end is cut off.

    `sync_seconds`: a thread has everything on disk this often; 0 has every record there before `append` returns.
    `size` is how many bytes were written.
    `alarm` hears, once, that the disk no longer takes records; they are refused from then on until one can be written.
    """

    def __init__(
        self, path: str | Path, *, sync_seconds: float = SYNC_SECONDS, alarm: Callable[[str], None] | None = None
    ) -> None:
        self.path = Path(path)
        self.sync_seconds, self._alarm = sync_seconds, alarm or shout
        self._lock, self._wake, self._closed = threading.Lock(), threading.Event(), False
        self._broken = False
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise OutputError(f"cannot write the journal {path}: {error.strerror}. Give another folder.") from error
        if not _locked(self._file):
            os.close(self._file)
            raise OutputError(f"{path} is being written by another process. Give each its own name.")
        found = read(self.path)
        self.recovered, self.size = found, os.fstat(self._file).st_size - found.dropped
        if found.dropped:
            os.ftruncate(self._file, self.size)
        self._synced = self.size
        os.fsync(self._file)
        self._thread = threading.Thread(target=self._keep_synced, name="journal", daemon=True)
        if sync_seconds > 0:
            self._thread.start()

    @property
    def synced(self) -> int:
        """Bytes that are surely on disk."""
        return self._synced

    def append(self, payload: bytes) -> None:
        """Writes one record; what cannot be written is refused with an `OutputError` and leaves no trace."""
        if len(payload) > LONGEST:
            raise OutputError(f"a record of {len(payload)} bytes is longer than the {LONGEST} that a journal takes.")
        record = HEADER.pack(len(payload), zlib.crc32(payload)) + payload
        with self._lock:
            if self._closed:
                raise OutputError(f"the journal {self.path} is closed.")
            try:
                if (written := os.write(self._file, record)) < len(record):
                    _write_all(self._file, record[written:])
                if self.sync_seconds == 0:
                    os.fsync(self._file)
            except OSError as error:
                self._give_up(error)
            self.size += len(record)
            self._broken = False
            if self.sync_seconds == 0:
                self._synced = self.size

    def _give_up(self, error: OSError) -> None:
        """Takes back a record that was written in part, and says so, the first time aloud."""
        try:
            os.ftruncate(self._file, self.size)
        finally:
            if not self._broken:
                self._broken = True
                self._alarm(f"the journal {self.path} takes no more records: {error.strerror}. Answers go on unlogged.")
        raise OutputError(
            f"cannot write to the journal {self.path}: {error.strerror}. Make room on the disk."
        ) from error

    def sync(self) -> None:
        """Has everything that was written on disk."""
        size = self.size
        if size > self._synced:
            os.fsync(self._file)
            self._synced = size

    def _keep_synced(self) -> None:
        while not self._wake.wait(self.sync_seconds):
            try:
                self.sync()
            except OSError as error:
                self._alarm(f"the journal {self.path} cannot be synced to disk: {error.strerror}.")

    def close(self) -> None:
        """Has everything on disk and lets go of the file; a second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            self.sync()
        except OSError as error:
            self._alarm(f"the journal {self.path} cannot be synced to disk: {error.strerror}.")
        os.close(self._file)


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def shout(message: str) -> None:
    """To whoever reads what the server says."""
    print(f"tandemrank: {message}", file=sys.stderr, flush=True)  # noqa: T201


def hold(path: Path, *, seconds: float = 0.0) -> int | None:
    """A file for this process alone, until it lets go or ends, however it ends; None if another has it for so long."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    until = time.monotonic() + seconds
    while not _locked(file):
        if time.monotonic() >= until:
            os.close(file)
            return None
        time.sleep(0.01)
    return file


def let_go(file: int | None) -> None:
    """Of what `hold` gave."""
    if file is not None:
        os.close(file)


@contextmanager
def held(path: Path, *, seconds: float = 0.0) -> Iterator[bool]:
    """Whether this process has the file for itself, while it does."""
    file = hold(path, seconds=seconds)
    try:
        yield file is not None
    finally:
        let_go(file)


def _locked(file: int) -> bool:
    """Whether this process has the file for itself now."""
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
