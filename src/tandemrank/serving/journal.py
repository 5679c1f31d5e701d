"""The journals of a served log: append-only files that survive `kill -9`; and the names of all files of a log.

    journal-REPLICA-NUMBER.bin      answers and events as they come
    events-REPLICA-NUMBER.bin       a sealed journal with clicks that other journals wait for
    segment-REPLICA-NUMBER.parquet  impressions with clicks and propensities (`sealing`)
    .set-aside/                     what cannot be used, as it was

Every record of a journal is framed, checksummed, and on disk within a second:

    record = magic (4 bytes) | length (4 bytes) | crc32 of length and payload (4 bytes) | payload

A process that dies while it writes leaves at most one torn record at the end. Behind whatever is torn or damaged `read` goes on
with the next whole record, which the magic finds: no byte of it is in any UTF-8 text. A journal is a new file, written by the
process that made it, and never changed where it was written before.
"""

import os
import struct
import sys
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tandemrank.errors import InputError, OutputError

MAGIC = b"\xff\xf5\xfe\xf6"
HEADER = struct.Struct("<4sII")
LONGEST = 2**24  # bytes of a record
SYNC_SECONDS = 1.0
ASIDE = ".set-aside"
JOURNAL, EVENTS, SEGMENTS = "journal", "events", "segment"


@dataclass(frozen=True)
class Recovered:
    """The whole records of a journal; how many bytes are in none of them, and in how many places these are."""

    records: tuple[bytes, ...]
    dropped: int = 0
    gaps: int = 0


def framed(payload: bytes) -> bytes:
    """A record as it is written."""
    if len(payload) > LONGEST:
        raise OutputError(f"a record of {len(payload)} bytes is longer than the {LONGEST} that a journal takes.")
    return HEADER.pack(MAGIC, len(payload), zlib.crc32(payload, len(payload))) + payload


def read(path: str | Path) -> Recovered:
    """Every whole record of a journal, in order."""
    try:
        return recovered(Path(path).read_bytes())
    except OSError as error:
        raise OutputError(f"cannot read the journal {path}: {error.strerror}.") from error


def recovered(content: bytes) -> Recovered:
    """The same of its bytes."""
    records: list[bytes] = []
    dropped = gaps = end = 0
    for at, payload in _whole_records(content):
        dropped += at - end
        gaps += at > end
        end = at + HEADER.size + len(payload)
        records.append(payload)
    return Recovered(tuple(records), dropped + len(content) - end, gaps + (len(content) > end))


def _whole_records(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Where each whole record begins, and what is in it."""
    at = content.find(MAGIC)
    while 0 <= at <= len(content) - HEADER.size:
        _, length, crc = HEADER.unpack_from(content, at)
        end = at + HEADER.size + length
        payload = content[at + HEADER.size : end] if length <= LONGEST and end <= len(content) else None
        if payload is not None and zlib.crc32(payload, length) == crc:
            yield at, payload
            at = content.find(MAGIC, end)
        else:
            at = content.find(MAGIC, at + 1)


class Journal:
    """A new journal that is open for appending.

    `sync_seconds`: a thread has everything on disk this often; 0 has every record there before `append` returns. The first
    record always is: a disk that takes no more is found before anybody relies on it. `size` is how many bytes were written.
    `broken` says why the file can no longer be relied on, and is empty while it can.
    """

    def __init__(self, path: str | Path, *, sync_seconds: float = SYNC_SECONDS) -> None:
        self.path = Path(path)
        self.sync_seconds = sync_seconds
        self.size = 0
        self.synced = 0
        self.broken = ""
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            raise OutputError(f"cannot write the journal {path}: {error.strerror}. Give another folder.") from error
        self._thread = threading.Thread(target=self._keep_synced, name="journal", daemon=True)
        if sync_seconds > 0:
            self._thread.start()

    @property
    def is_usable(self) -> bool:
        """Whether a record that is written here will be found: the disk took the others, and the file has a name."""
        return not self.broken and os.fstat(self._file).st_nlink > 0

    def append(self, *payloads: bytes) -> None:
        """Writes records, all or none; what cannot be written is refused with an `OutputError` and leaves no trace."""
        data = framed(payloads[0]) if len(payloads) == 1 else b"".join(map(framed, payloads))
        with self._lock:
            if self._closed:
                raise OutputError(f"the journal {self.path} is closed.")
            try:
                if (written := os.write(self._file, data)) < len(data):
                    _write_all(self._file, data[written:])
                if self.sync_seconds == 0 or self.synced == 0:
                    os.fsync(self._file)
                    self.synced = self.size + len(data)
            except OSError as error:
                self._take_back(error)
            self.size += len(data)

    def _take_back(self, error: OSError) -> None:
        """Of records that were written in part nothing stays; where that fails the file is not used any more."""
        try:
            os.ftruncate(self._file, self.size)
        except OSError as again:
            self.broken = again.strerror or str(again)
        raise OutputError(
            f"cannot write to the journal {self.path}: {error.strerror}. Make room on the disk, or replace it."
        ) from error

    def sync(self) -> None:
        """Has everything that was written on disk; where the system refuses, nobody knows what is there, and it is told."""
        size = self.size
        if size == self.synced or self.broken:
            return
        try:
            os.fsync(self._file)
            self.synced = size
        except OSError as error:
            self.broken = error.strerror or str(error)
            shout(f"the journal {self.path} cannot be synced to disk: {self.broken}. The next one begins.")

    def _keep_synced(self) -> None:
        while not self._wake.wait(self.sync_seconds):
            self.sync()

    def close(self) -> None:
        """Has everything on disk and lets go of the file; a second call does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        self.sync()
        os.close(self._file)


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def shout(message: str) -> None:
    """To whoever reads what the server says."""
    print(f"tandemrank: {message}", file=sys.stderr, flush=True)  # noqa: T201


# --- the files of a log -----------------------------------------------------------------------------------------------


class LogFile(NamedTuple):
    """A file of a served log, and what its name says."""

    path: Path
    replica: str
    number: int


def files(folder: Path, what: str, replica: str | None = None) -> list[LogFile]:
    """The journals, segments or events of a folder, of all replicas or of one, in the order of their numbers."""
    found = [x for path in folder.glob(f"{what}-*-*") if (x := named(path, what)) and replica in (None, x.replica)]
    return sorted(found, key=lambda x: (x.replica, x.number))


def named(path: Path, what: str) -> LogFile | None:
    """What the name of a journal, segment or events says; None for any other."""
    name, _, number = path.stem.removeprefix(f"{what}-").rpartition("-")
    ours = path.stem.startswith(f"{what}-") and bool(name) and number.isdecimal()
    return LogFile(path, name, int(number)) if ours else None


def in_utf8(path: str | Path) -> Path:
    """The path, if Parquet files can be written and read there."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"expected a path in UTF-8, got {os.fsencode(path)!r}. Rename it, or give another.") from error
    return Path(path)


def next_number(folder: Path, replica: str) -> int:
    """After all numbers that a replica has used, as far as their files are there."""
    places = (folder, JOURNAL), (folder, SEGMENTS), (folder, EVENTS), (folder / ASIDE, JOURNAL)
    return max((x.number + 1 for place, what in places for x in files(place, what, replica)), default=0)


def lock_path(folder: Path, replica: str) -> Path:
    """The file that a replica holds for as long as it runs."""
    return folder / f".replica-{replica}.lock"
