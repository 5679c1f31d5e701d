"""A path in a bucket that has a copy of every finished segment: servers that share no folder write one log.

The journal stays on this machine's disk, where it is safe within a second. What was copied is what the bucket has: nothing is
remembered beside it, so a copy that is gone is made again, and one that failed is tried again at the next call.
"""

from dataclasses import dataclass
from pathlib import Path

from tandemrank._base import buckets
from tandemrank.errors import ConfigError, OutputError
from tandemrank.serving import journal, sealing

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
        found = [sealing.named(Path(name), sealing.SEGMENTS) for name in names]
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
            for found in sealing.finished(folder):
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
