"""A log becomes `Feedback`, here or on a cluster: read in batches (`sources`), with every check (`checks`), counted.

A log is read once; its cost in memory is that of its distinct (query, item, rank).
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base import cluster
from tandemrank._base.arguments import checked
from tandemrank._base.cluster import Engine, check_engine
from tandemrank._base.frames import is_pandas
from tandemrank._base.ids import IdRegistry, Vocabulary, positions_of, same_ids
from tandemrank._base.processes import ahead
from tandemrank.errors import ConfigError, InputError, LogError
from tandemrank.logs.checks import ONCE, KnownFiles, KnownImpressions, first_rows
from tandemrank.logs.contexts import Contexts, check_columns, in_context
from tandemrank.logs.counting import Split, tally
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import By, FlatImpressions, Impressions, after_clicks, joined
from tandemrank.logs.sources import (
    Batch,
    EmptyLogError,
    Source,
    View,
    as_polars,
    impressions_in,
    parts,
    paths,
    plain_source,
    sound_batches,
    times_in,
)
from tandemrank.logs.sums import MIXED, check_alike, merge, push


@checked
def read(
    source: Source,
    *,
    vocabulary: Vocabulary | None = None,
    K: int | None = None,
    batch: int = 200_000,
    engine: Engine = "local",
    by: By | None = None,
    context: Sequence[str] = (),
) -> Feedback:
    """Reads a log, wide or long: files, folders, patterns, URLs of these, a frame. Refuses the first problem by its place.

    With a `vocabulary` every id must be in it; without, the log's own ids become one, sorted. K is the number of ranks
    of the examination curve. The engine ray reads each file by a task of a Ray cluster (RAY_ADDRESS, else one started
    here) whose nodes all see the files or reach the URLs: the same checks, the same bits. `by`: what else than the rank
    tells rows apart; `context`: columns that make queries in context.
    """
    return read_parts(source, vocabulary=vocabulary, K=K, batch=batch, engine=engine, by=by, context=context).train[0]


@dataclass(frozen=True)
class LogParts:
    """A log in parts of one vocabulary: those that train, a part for each share held out, and the first impressions.

    `by_time`: the held-out impressions are the last ones, the first share the very last; `train` has its parts oldest first.
    `split`: which impression is in which.
    """

    train: tuple[Feedback, ...]
    held_out: tuple[Feedback, ...]
    first: Impressions
    by_time: bool
    split: Split

    def in_vocabulary(self, vocabulary: Vocabulary) -> "LogParts":
        """The same in the positions of another vocabulary, which has all ids of this one."""
        return _together([self], vocabulary)

    def without_contexts(self, contexts: Contexts) -> "LogParts":
        """By queries, of a log that was read by queries in their context: the same bits as if nobody had asked for it."""
        train, held_out = (tuple(contexts.pooled(part) for part in some) for some in (self.train, self.held_out))
        first = contexts.of_lists(self.first, self.train[0].vocabulary)
        return replace(self, train=train, held_out=held_out, first=first)


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
    by: By | None = None,
    context: Sequence[str] = (),
) -> LogParts:
    """As `read`, with shares of the impressions held out, and the first `lists` impressions one by one, of all parts.

    Impressions are held out by chance, a function of the seed and of their number in the log, not of the batches. With
    `times` of 1 or more and a log that says when they were, the last ones are held out, and the rest is in so many parts of
    equal numbers of impressions, oldest first. Chance orders impressions of the same time; those without a time are the
    oldest; where no two times differ, chance splits the log as if it had none. Times are read before all else, so that a
    file at a URL is then fetched twice. A logging policy is fitted to lists, which sums do not have: the table is as wide as
    the longest of the first lists, and -1 pads. With the columns of a `context` queries are queries in their context
    (`contexts`), and no vocabulary may be given.
    """
    if times < 0:
        raise ConfigError(f"times: expected the number of parts that train, 0 or more; got {times}.")
    split, context = Split(tuple(shares), seed), check_columns(context)
    how = _How(vocabulary=vocabulary, K=K, batch=batch, split=split, times=times, lists=lists, by=by, context=context)
    if check_engine(engine) == "ray":
        return _on_ray(source, how)
    source = plain_source(source)
    if is_pandas(source):
        source = as_polars(source)  # once, since its values are converted one by one
    return _here(source, how.in_time([times_in(part) for part in parts(source)]) if times else how)


@dataclass(frozen=True)
class _How:
    """How a log is read: ids, ranks, rows at once, its parts, those by time, lists that are kept, states, its context."""

    vocabulary: Vocabulary | None
    K: int | None
    batch: int
    split: Split
    times: int
    lists: int
    by: By | None
    context: tuple[str, ...] = ()

    def split_parts(self, parts: tuple[Feedback, ...], first: Impressions) -> LogParts:
        """What was read of each part."""
        train = self.split.train
        return LogParts(parts[:train], parts[train:], first, self.split.in_time is not None, self.split)

    def in_time(self, times: Sequence[NDArray[np.float64]]) -> "_How":
        """The same with a split by time, where the times of the files tell an order."""
        return replace(self, split=self.split.by_time(np.concatenate([np.zeros(0), *times]), self.times))


def _here(source: Source, how: _How, before: int = 0, known: KnownImpressions | None = None) -> LogParts:
    """Reads a log in this process; `before` is the number of impressions before it in a larger log."""
    names, lists = IdRegistry(how.vocabulary), list[Impressions]()
    missing = max(how.lists - before, 0)

    def good() -> Generator[FlatImpressions]:
        done, propensities = 0, None
        every_column = bool(how.context) or (how.by is not None and not how.by.is_clicks)
        for piece, frame in sound_batches(source, how.batch, every_column=every_column, impressions=known):
            shown = impressions_in(piece, _in_context(piece, frame, how.context), names, how.K)
            propensities = shown.propensity is not None if propensities is None else propensities
            if propensities != (shown.propensity is not None):
                raise LogError(f"{piece.name}, {MIXED}")
            shown = _with_states(shown, piece.name, frame, how.by)
            if done < missing:
                lists.append(shown.table(missing - done))
            done += len(shown.query)
            yield shown

    found = tally(ahead(good()), names.vocabulary, how.split, before)
    read = how.split_parts(found, joined(lists))
    return read if how.vocabulary is not None else _in_order(read)


def _with_states(shown: FlatImpressions, name: str, frame: pl.DataFrame, by: By | None) -> FlatImpressions:
    """The impressions of a batch with what examination depends on beside the rank."""
    if by is None:
        return shown
    if by.is_clicks:
        return after_clicks(shown, by)
    values = column_values(name, frame, by.column)
    state = positions_of(pl.Series(by.values, dtype=pl.String), values, by.column, missing="mark")
    if (state < 0).any():
        raise LogError(
            f"{name}, column {by.column}: expected one of {', '.join(by.values)}; got {values[int(np.argmin(state))]!r}."
        )
    return replace(shown, state=np.repeat(state, shown.length).astype(np.int16), by=by)


def column_values(name: str, frame: pl.DataFrame, column: str) -> pl.Series:
    """A column of a log as text, one value for each impression of a batch of the file of that name."""
    if column not in frame.columns:
        raise LogError(f"{name}: expected a column {column!r}; it has {', '.join(frame.columns)}.")
    return frame[column].gather(first_rows(frame)).cast(pl.String).fill_null("")


def values_of(source: Source, column: str) -> tuple[str, ...]:
    """The values of a column of a log, sorted."""
    found: set[str] = set()
    for piece, frame in sound_batches(source, every_column=True):
        found.update(column_values(piece.name, frame, column).unique().to_list())
    return tuple(sorted(found))


def _in_context(piece: Batch, frame: pl.DataFrame, columns: tuple[str, ...]) -> pl.DataFrame:
    """The rows of a batch with queries in their context."""
    try:
        return in_context(frame, columns)
    except InputError as error:
        raise LogError(f"{piece.name}, {error}") from error


def _in_order(found: LogParts) -> LogParts:
    """The same with sorted ids: those that were read are in the order of the files."""
    met = found.train[0].vocabulary
    final = Vocabulary(met.query_ids.sort(), met.item_ids.sort())
    return found if same_ids(final, met) else found.in_vocabulary(final)


def _on_ray(source: Source, how: _How) -> LogParts:
    """Each file by a task of its own; what they return is merged here, the same bits in any order.

    The files are refused in their order, whichever is read first.
    """
    source = plain_source(source)
    period = source if isinstance(source, View) else None
    files_of = paths(source.log if isinstance(source, View) else source)
    here = [path.absolute() if isinstance(path, Path) else path for path in files_of]
    log: list[str | Path | View] = [path if period is None else replace(period, log=path) for path in here]
    read: list[LogParts] = []
    files, impressions = KnownFiles(), KnownImpressions()
    # Which impressions are held out, and which are the first, depends on their number in the log.
    lengths = [0] * len(log)
    if how.times or how.split.shares or how.lists:
        times = list(cluster.in_order(times_in, ((part,) for part in log)))
        how, lengths = how.in_time(times) if how.times else how, [len(some) for some in times]
    tasks = ((part, sum(lengths[:i])) for i, part in enumerate(log))
    with closing(cluster.in_order(_part, tasks, how)) as each:
        for path, (found, hashes) in zip(here, each, strict=True):
            with _naming(path):
                files.refuse_repeated(path)
            if isinstance(found, str):
                raise LogError(found)
            with _naming(path):
                if impressions.repeated(hashes).any():
                    raise LogError(f"column impression_id: {ONCE}")
                if found is not None:
                    check_alike([*read, found][0].train[0], found.train[0])
                    push(read, found, lambda one: len(one.train[0].query), _together)
    if not read:
        raise EmptyLogError(here[-1])
    return _together(read)


@contextmanager
def _naming(path: str | Path) -> Iterator[None]:
    """A refusal with the name of its file."""
    try:
        yield
    except LogError as error:
        raise LogError(f"{path}{', ' if str(error).startswith('column') else ': '}{error}") from error


def _part(path: str | Path | View, before: int, how: _How) -> tuple[LogParts | str | None, NDArray[np.uint64]]:
    """What was read of a file, None of an empty one, or what is wrong with it; and the hashes of its impressions."""
    known = KnownImpressions()
    try:
        return _here(path, how, before, known), known.hashes()
    except EmptyLogError:
        return None, known.hashes()
    except LogError as error:
        return str(error), known.hashes()


def _together(read: Sequence[LogParts], vocabulary: Vocabulary | None = None) -> LogParts:
    """Logs one after the other as one, part by part; in the positions of all their ids, or of a vocabulary that has them."""
    train = tuple(merge(some, vocabulary) for some in zip(*(one.train for one in read), strict=True))
    held_out = tuple(merge(some, vocabulary) for some in zip(*(one.held_out for one in read), strict=True))
    final = train[0].vocabulary
    lists = [one.first.in_vocabulary(one.train[0].vocabulary, final) for one in read if len(one.first.query)]
    return LogParts(train, held_out, joined(lists), read[0].by_time, read[0].split)
