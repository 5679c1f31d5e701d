"""A log becomes `Feedback`, here or on a cluster: read in batches (`sources`), with every check (`checks`), counted.

A log is read once; its cost in memory is that of its distinct (query, item, rank).
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandemrank._base import cluster
from tandemrank._base.arguments import checked
from tandemrank._base.cluster import Engine, check_engine
from tandemrank._base.ids import Vocabulary, same_ids
from tandemrank._base.processes import ahead
from tandemrank.errors import ConfigError, JobError, LogError
from tandemrank.logs.checks import examine
from tandemrank.logs.counting import WHOLE, Split, tally
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Impressions, Shown, joined
from tandemrank.logs.keys import IdRegistry, push
from tandemrank.logs.repeats import KnownFiles, KnownImpressions, in_two_files
from tandemrank.logs.sources import Source, batches, describe, impressions_in, is_frame, paths, times_in
from tandemrank.logs.sums import in_vocabulary, merge

Progress = Callable[[int], None]


@checked
def read(
    source: Source,
    *,
    vocabulary: Vocabulary | None = None,
    K: int | None = None,
    batch: int = 200_000,
    engine: Engine = "local",
    progress: Progress | None = None,
) -> Feedback:
    """Reads a log, wide or long: files, folders, patterns, URLs of these, a frame. Refuses the first problem by its place.

    With a `vocabulary` every id must be in it; without, the log's own ids become one, sorted. K is the number of ranks
    of the examination curve. The engine ray reads each file by a task of a Ray cluster (RAY_ADDRESS, else one started
    here) whose nodes all see the files or reach the URLs: the same checks, the same bits. `progress(n)` hears of n impressions.
    """
    return _read(source, _How(vocabulary, K, batch), engine, progress).train[0]


@dataclass(frozen=True)
class LogParts:
    """A log in parts of one vocabulary: those that train, a part for each share held out, and the first impressions.

    `by_time`: the held-out impressions are the last ones, the first share the very last; `train` has its parts oldest first.
    """

    train: tuple[Feedback, ...]
    held_out: tuple[Feedback, ...]
    first: Impressions
    by_time: bool

    def in_vocabulary(self, vocabulary: Vocabulary) -> "LogParts":
        """The same in the positions of another vocabulary, which has all ids of this one."""
        train, held_out = (
            tuple(in_vocabulary(part, vocabulary) for part in some) for some in (self.train, self.held_out)
        )
        first = self.first.in_vocabulary(self.train[0].vocabulary, vocabulary)
        return LogParts(train, held_out, first, self.by_time)


@checked
def read_parts(
    source: Source,
    shares: Sequence[float] = (),
    *,
    times: int = 0,
    lists: int = 0,
    seed: int = 0,
    vocabulary: Vocabulary | None = None,
    K: int | None = None,
    batch: int = 200_000,
    engine: Engine = "local",
    progress: Progress | None = None,
) -> LogParts:
    """As `read`, with shares of the impressions held out, and the first `lists` impressions one by one, of all parts.

    Impressions are held out by chance, a function of the seed and of their number in the log, not of the batches. With
    `times` of 1 or more and a log that says when they were, the last ones are held out, and the rest is in so many parts of
    equal numbers of impressions, oldest first. Chance orders impressions of the same time; those without a time are the
    oldest; where no two times differ, chance splits the log as if it had none. Times are read before all else, so that a
    file at a URL is then fetched twice. A logging policy is fitted to lists, which sums do not have: the table is as wide as
    the longest of the first lists, and -1 pads.
    """
    if times < 0:
        raise ConfigError(f"times: expected the number of parts that train, 0 or more; got {times}.")
    return _read(source, _How(vocabulary, K, batch, Split(tuple(shares), seed), times, lists), engine, progress)


@dataclass(frozen=True)
class _How:
    """How a log is read: the known ids, the ranks, rows at once, its parts, those by time, lists that are kept."""

    vocabulary: Vocabulary | None
    K: int | None
    batch: int
    split: Split = WHOLE
    times: int = 0
    lists: int = 0

    def split_parts(self, parts: tuple[Feedback, ...], first: Impressions) -> LogParts:
        """What was read of each part."""
        train = self.split.train
        return LogParts(parts[:train], parts[train:], first, bool(self.split.bounds))

    def in_time(self, times: Sequence[NDArray[np.float64] | None], lengths: Callable[[int], int]) -> "_How":
        """The same with a split by time, where a file has times; `lengths` says how long one without is, by its number."""
        if all(time is None for time in times):
            return self
        filled = [np.full(lengths(i), -np.inf) if time is None else time for i, time in enumerate(times)]
        return replace(self, split=self.split.by_time(np.concatenate(filled), self.times))


def _mixed(name: object) -> LogError:
    return LogError(
        f"{name}, column propensities: some parts of the log have propensities and others have none. "
        "Read them separately, or add the missing ones."
    )


class _EmptyError(LogError):
    """The log has no impressions."""

    def __init__(self, name: object) -> None:
        super().__init__(f"{name}: expected a log with impressions; it is empty. Check the path and how it was made.")


def _read(source: Source, how: _How, engine: Engine, progress: Progress | None) -> LogParts:
    check_engine(engine)
    if engine == "ray":
        return _on_ray(source, how, progress)
    if how.times:
        parts = [source] if is_frame(source) else list(paths(source))
        how = how.in_time([times_in(part) for part in parts], lambda i: impressions_in(parts[i]))
    return _here(source, how, progress)


def _here(
    source: Source, how: _How, progress: Progress | None, before: int = 0, known: KnownImpressions | None = None
) -> LogParts:
    """Reads a log in this process; `before` is the number of impressions before it in a larger log."""
    names, lists = IdRegistry(how.vocabulary), list[Impressions]()
    missing = max(how.lists - before, 0)

    def parts() -> Generator[Shown]:
        done, name, propensities = 0, "nothing", None
        for piece in batches(source, how.batch, impressions=known):
            if piece.frame is None or piece.found:
                raise LogError(describe(piece, piece.found[0]))
            name = piece.name
            if not len(piece.frame):
                continue
            found, shown = examine(piece.frame, names, how.K)
            if shown is None:
                raise LogError(describe(piece, found[0]))
            propensities = shown.propensity is not None if propensities is None else propensities
            if propensities != (shown.propensity is not None):
                raise _mixed(name)
            if done < missing:
                lists.append(shown.table(missing - done))
            done += len(shown.query)
            yield shown
        if not done:
            raise _EmptyError(name)

    found = tally(_heard(ahead(parts()), progress), names.vocabulary, how.split, before)
    read = how.split_parts(found, joined(lists))
    return read if how.vocabulary is not None else _in_order(read)


def _heard(parts: Iterator[Shown], progress: Progress | None) -> Iterator[Shown]:
    """The same impressions; `progress` hears of them when they are counted."""
    done = 0
    for shown in parts:
        yield shown
        done += len(shown.query)
        if progress:
            progress(done)


def _in_order(found: LogParts) -> LogParts:
    """The same with sorted ids: those that were read are in the order of the files."""
    met = found.train[0].vocabulary
    final = Vocabulary(met.query_ids.sort(), met.item_ids.sort())
    return found if same_ids(final, met) else found.in_vocabulary(final)


def _on_ray(source: Source, how: _How, progress: Progress | None) -> LogParts:
    """Each file by a task of its own; what they return is merged here, the same bits in any order.

    The files are refused in their order, whichever is read first.
    """
    log = [path.absolute() if isinstance(path, Path) else path for path in paths(source)]
    ray = cluster.connect()
    lists: list[tuple[Vocabulary, Impressions]] = []
    files, impressions = KnownFiles(), KnownImpressions()
    done, waiting = 0, []
    try:
        # Which impressions are held out, and which are the first, depends on their number in the log.
        count, when, part = (cluster.task(ray, function) for function in (impressions_in, times_in, _part))
        numbered = bool(how.split.shares or how.lists)
        lengths = ray.get([count.remote(path) for path in log]) if numbered else [0] * len(log)
        if how.times:
            how = how.in_time(ray.get([when.remote(path) for path in log]), lengths.__getitem__)
        stacks: list[list[Feedback]] = [[] for _ in range(how.split.parts)]
        task_how = ray.put(how)
        waiting = [part.remote(path, task_how, sum(lengths[:i])) for i, path in enumerate(log)]
        for path in log:
            if again := files.repeated(path):
                raise LogError(f"{path}: {again}")
            n, wrong, found, hashes = ray.get(waiting.pop(0))
            if wrong:
                raise LogError(wrong)
            _check_ids(path, impressions, hashes)
            if found is not None:
                _stack(path, stacks, found)
                lists.append((found.train[0].vocabulary, found.first))
            done += n
            if progress and n:
                progress(done)
    except ray.exceptions.RayError as error:
        why = str(error).strip().splitlines()[-1]
        raise JobError(
            f"a task that reads the log failed: {why}. Check that every node sees the files and has memory."
        ) from error
    finally:
        for reference in waiting:
            ray.cancel(reference)
    if not done:
        raise _EmptyError(log[-1])
    parts = tuple(merge(stack) for stack in stacks)
    final = parts[0].vocabulary
    first = joined([some.in_vocabulary(own, final) for own, some in lists if len(some.query)])
    return how.split_parts(parts, first)


def _part(path: str | Path, how: _How, before: int) -> tuple[int, str, LogParts | None, NDArray[np.uint64]]:
    """A file of a log: its impressions, what is wrong with it ("" for nothing), what was read, the impressions' hashes.

    Nothing is read of an empty file.
    """
    heard, known = [0], KnownImpressions()
    try:
        found = _here(path, how, heard.append, before, known)
    except _EmptyError:
        return 0, "", None, known.hashes()
    except LogError as error:
        return 0, str(error), None, known.hashes()
    return heard[-1], "", found, known.hashes()


def _check_ids(path: str | Path, known: KnownImpressions, hashes: NDArray[np.uint64]) -> None:
    """Refuses a file with impressions of an earlier one."""
    known.begin(str(path))
    before = known.add(hashes)
    if (twice := before[before >= 0]).size:
        raise LogError(f"{path}, column impression_id: {in_two_files(known.files[twice[0]])}")


def _stack(path: str | Path, stacks: list[list[Feedback]], found: LogParts) -> None:
    """Keeps what was read of a file, merged with what is of similar size."""
    for stack, feedback in zip(stacks, found.train + found.held_out, strict=True):
        _check_alike(path, [*stack, feedback][0], feedback)
        push(stack, feedback, lambda one: len(one.query), merge)


def _check_alike(name: object, first: Feedback, other: Feedback) -> None:
    """Refuses a file whose ids or propensities are not of the kind of the first one's."""
    for column, ids in (("query_id", "query_ids"), ("items", "item_ids")):
        expected, got = (getattr(one.vocabulary, ids) for one in (first, other))
        if len(expected) and len(got) and expected.dtype != got.dtype:
            raise LogError(
                f"{name}, column {column}: expected ids that are {expected.dtype}, as in the files before; got "
                f"{got.dtype}. Convert them to the same type."
            )
    if (first.logged is None) != (other.logged is None):
        raise _mixed(name)
