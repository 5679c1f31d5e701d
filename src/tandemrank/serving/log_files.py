"""The files of a served log: their names, what journals have in them, and copies of the segments in a bucket.

    journal-REPLICA-NUMBER.bin      answers and events as they come (`journal`)
    events-REPLICA-NUMBER.bin       a sealed journal with clicks that other journals wait for
    segment-REPLICA-NUMBER.parquet  impressions with clicks and propensities (`sealing`)
    .set-aside/                     what cannot be used, as it was

A bucket has a copy of every finished segment, so that servers that share no folder write one log. What was copied is what the
bucket has: nothing is remembered beside it, so a copy that is gone is made again, and one that failed is tried again.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from tandemrank._base import buckets
from tandemrank._base.ids import Id
from tandemrank.errors import ConfigError, InputError, OutputError
from tandemrank.serving import journal
from tandemrank.serving.records import LATEST, Impression, StoredId

ASIDE = ".set-aside"
JOURNAL, EVENTS, SEGMENTS = "journal", "events", "segment"


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


def finished(folder: Path) -> list[LogFile]:
    """Segments that nobody will make again: those whose journals are gone. One that a kill left beside its journal is not."""
    segments = files(folder, SEGMENTS)  # before the journals: one that is sealed meanwhile waits
    waiting = {(x.replica, x.number) for x in files(folder, JOURNAL)}
    return [x for x in segments if (x.replica, x.number) not in waiting]


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


class Click(NamedTuple):
    """A click on an item of an impression."""

    impression: str
    item: Id
    time: float


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _EventRecord(_Strict):
    impression: str
    item: StoredId
    type: str
    value: float | None
    time: Annotated[float, Field(ge=0, le=LATEST)]


class _Record(_Strict):
    """What a journal's record has: one of the two."""

    impression: Impression | None = None
    event: _EventRecord | None = None


def parsed(payload: bytes) -> Impression | Click | None:
    """What a record has; None for an event that is no click. Refuses another shape with a `ValueError`."""
    record = _Record.model_validate_json(payload)
    event = record.event
    if (record.impression is None) == (event is None):
        raise ValueError("expected an impression or an event")
    if event is None:
        return record.impression
    return Click(event.impression, event.item, event.time) if event.type == "click" else None


class JournalContent(NamedTuple):
    """The impressions and clicks of a journal; how many records cannot be used, and how many bytes are in none."""

    impressions: list[Impression]
    clicks: list[Click]
    damaged: int
    dropped: int


def read_journal(path: Path) -> JournalContent:
    found = journal.read(path)
    impressions: list[Impression] = []
    clicks: list[Click] = []
    damaged = found.gaps
    for payload in found.records:
        try:
            one = parsed(payload)
        except ValueError:
            damaged += 1
            continue
        if isinstance(one, Impression):
            impressions.append(one)
        elif one is not None:
            clicks.append(one)
    return JournalContent(impressions, clicks, damaged, found.dropped)


@dataclass
class ClicksElsewhere:
    """Clicks that another file has than that of their impression, by impression; and which impressions a file names so."""

    clicks: dict[str, list[Click]] = field(default_factory=dict)
    named: dict[LogFile, set[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, everywhere: Iterable[LogFile]) -> "ClicksElsewhere":
        """Reads all files, one after the other."""
        found = cls()
        for file in everywhere:
            content = read_journal(file.path)
            own = {i.id for i in content.impressions}
            away = [click for click in content.clicks if click.impression not in own]
            found.named[file] = {click.impression for click in away}
            for click in away:
                found.clicks.setdefault(click.impression, []).append(click)
        return found


END = 2**16  # bytes; the end of a segment has the extremes of its random keys, which no other has


@dataclass(frozen=True)
class Copied:
    """How many segments were copied, and what went wrong, in words."""

    segments: int
    problems: tuple[str, ...] = ()


class Bucket:
    """The bucket path of a served log. Its files have the names that they have in the folder: REPLICA makes them distinct."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        if not buckets.is_url(url):
            raise ConfigError(f"a bucket path is a URL such as s3://bucket/prefix; got {url!r}.")
        buckets.check(url)
        self._same: set[str] = set()  # names that were compared with what the bucket has

    def next_number(self, replica: str) -> int:
        """After all numbers of a replica there: one that lost its disk must not use them again."""
        try:
            names = buckets.sizes(self.url)
        except OSError as error:
            raise OutputError(f"cannot copy the log to {self.url}: {error}.") from error
        if "" in names:
            raise OutputError(
                f"cannot copy the log to {self.url}: it is a file. Give a path that segments may be below."
            )
        found = [named(Path(name), SEGMENTS) for name in names]
        return max((x.number + 1 for x in found if x is not None and x.replica == replica), default=0)

    def copy(self, folder: Path) -> Copied:
        """Copies the finished segments of a folder that are not in the bucket yet; where another process does, nothing.

        Never over something else: another segment of the same name is a problem, and the others are copied all the same.
        """
        with journal.held(folder / ".copying.lock") as alone:
            return self._copy(folder) if alone else Copied(0)

    def _copy(self, folder: Path) -> Copied:
        count, problems = 0, list[str]()
        try:
            there = buckets.sizes(self.url)
            for found in finished(folder):
                name = found.path.name
                if name not in there:
                    try:
                        buckets.create(found.path, f"{self.url}/{name}")
                        count += 1
                        self._same.add(name)
                        continue
                    except FileExistsError:  # another machine was faster
                        there = buckets.sizes(self.url)
                if name not in self._same and not self._is_same(found.path, there.get(name)):
                    problems.append(
                        f"{self.url}/{name} is there and is another segment than {found.path}. Has another server the "
                        f"name {found.replica!r}? Give each its own --replica, and rename one of the two segments."
                    )
                else:
                    self._same.add(name)
        except OSError as error:  # the store does not answer: the rest waits for the next time
            problems.append(f"cannot copy the log to {self.url}: {error}. It is tried again.")
        return Copied(count, tuple(problems))

    def _is_same(self, path: Path, size: int | None) -> bool:
        if path.stat().st_size != size:
            return False
        with path.open("rb") as file:
            file.seek(-min(END, size), 2)
            return file.read() == buckets.end(f"{self.url}/{path.name}", END)
