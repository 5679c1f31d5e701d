"""Click logs: writing them as Parquet, and reading them (`log_sources`) in batches with every check of `log_checks`.

A log is read once; its cost in memory is that of its distinct (query, item, rank).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tandemrank._base import cluster
from tandemrank._base.cluster import Engine, check_engine
from tandemrank._base.ids import Vocabulary, same_ids
from tandemrank.errors import JobError, LogError
from tandemrank.logs.checks import examine
from tandemrank.logs.counting import check_shares, tally
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.registry import IdRegistry
from tandemrank.logs.sources import Source, batches, describe, impressions_in, paths
from tandemrank.logs.sums import Shown, merge, push, renamed, total, unpacked

Progress = Callable[[int], None]


def read(
    source: Source,
    *,
    vocabulary: Vocabulary | None = None,
    K: int | None = None,
    batch: int = 200_000,
    engine: Engine = "local",
    progress: Progress | None = None,
) -> Feedback:
    """Reads a log, wide or long: files, folders, patterns, a frame. Refuses the first problem by file, row and column.

    With a `vocabulary` every id must be in it; without, the log's own ids become one, sorted. K is the number of ranks
    of the examination curve. The engine ray reads each file by a task of a Ray cluster (RAY_ADDRESS, else one started
    here) whose nodes all see the files: the same checks, the same bits. `progress(n)` hears of impressions read.
    """
    return _read(source, _How(vocabulary, K, batch), engine, progress)[0]


def read_split(
    source: Source,
    held_out: float = 0.15,
    *,
    seed: int = 0,
    vocabulary: Vocabulary | None = None,
    K: int | None = None,
    batch: int = 200_000,
    engine: Engine = "local",
    progress: Progress | None = None,
) -> tuple[Feedback, Feedback]:
    """As `read`, with the given share of the impressions held out: (for training, held out), of one vocabulary.

    Which impressions depends on the seed and their number in the log, not on the batches.
    """
    used, apart = read_parts(
        source, (held_out,), seed=seed, vocabulary=vocabulary, K=K, batch=batch, engine=engine, progress=progress
    )
    return used, apart


def read_parts(
    source: Source,
    shares: Sequence[float],
    *,
    seed: int = 0,
    vocabulary: Vocabulary | None = None,
    K: int | None = None,
    batch: int = 200_000,
    engine: Engine = "local",
    progress: Progress | None = None,
) -> tuple[Feedback, ...]:
    """As `read_split`, with several parts held out: (the rest, a part for each share), of one vocabulary."""
    check_shares(*shares)
    return _read(source, _How(vocabulary, K, batch, tuple(shares), seed), engine, progress)


@dataclass(frozen=True)
class _How:
    """How a log is read: the known ids, the ranks, rows at once, shares held out and their seed."""

    vocabulary: Vocabulary | None
    K: int | None
    batch: int
    shares: tuple[float, ...] = ()
    seed: int = 0


def _mixed(name: object) -> LogError:
    return LogError(
        f"{name}, column propensities: some parts of the log have propensities and others have none. "
        "Read them apart, or add them."
    )


class _EmptyError(LogError):
    """The log has no impressions."""

    def __init__(self, name: object) -> None:
        super().__init__(f"{name}: expected a log with impressions; it is empty. Check the path and how it was made.")


def _read(source: Source, how: _How, engine: Engine, progress: Progress | None) -> tuple[Feedback, ...]:
    check_engine(engine)
    return (_on_ray if engine == "ray" else _here)(source, how, progress)


def _here(source: Source, how: _How, progress: Progress | None, first: int = 0) -> tuple[Feedback, ...]:
    """Reads a log in this process; `first` is the number of its first impression in a larger log."""
    names = IdRegistry(how.vocabulary)

    def parts() -> Iterator[Shown]:
        done, name, propensities = 0, "nothing", None
        for piece in batches(source, how.batch):
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
            done += len(shown.query)
            yield shown
            if progress:
                progress(done)
        if not done:
            raise _EmptyError(name)

    found = tally(parts(), names.vocabulary, how.shares, how.seed, first)
    if how.vocabulary is not None:
        return found
    # The ids are in the order in which they came; sorted, they do not depend on the order of the files.
    met = found[0].vocabulary
    final = Vocabulary(met.query_ids.sort(), met.item_ids.sort())
    if same_ids(final, met):
        return found
    moved = (renamed(feedback, final) for feedback in found)
    return tuple(unpacked(total([sums]), final, impressions) for sums, impressions in moved)


def _on_ray(source: Source, how: _How, progress: Progress | None) -> tuple[Feedback, ...]:
    """Each file by a task of its own; what they return is merged here, the same bits in any order.

    The files are refused in their order, whichever is read first.
    """
    log = [path.absolute() for path in paths(source)]
    ray = cluster.connect()
    stacks: list[list[Feedback]] = [[] for _ in range(1 + len(how.shares))]
    done, waiting = 0, []
    try:
        # Which impressions are held out depends on their number in the log.
        count, part, known = cluster.task(ray, impressions_in), cluster.task(ray, _part), ray.put(how)
        lengths = ray.get([count.remote(path) for path in log]) if how.shares else [0] * len(log)
        waiting = [part.remote(path, known, sum(lengths[:i])) for i, path in enumerate(log)]
        for path in log:
            n, wrong, found = ray.get(waiting.pop(0))
            if wrong:
                raise LogError(wrong)
            for stack, feedback in zip(stacks, found, strict=n > 0):
                _check_alike(path, [*stack, feedback][0], feedback)
                push(stack, feedback, lambda one: len(one.query), merge)
            done += n
            if progress and n:
                progress(done)
    except ray.exceptions.RayError as error:
        why = str(error).strip().splitlines()[-1]
        raise JobError(f"a task that reads the log failed: {why}. Has every node the files, and memory?") from error
    finally:
        for reference in waiting:
            ray.cancel(reference)
    if not done:
        raise _EmptyError(log[-1])
    return tuple(merge(stack) for stack in stacks)


def _part(path: Path, how: _How, first: int) -> tuple[int, str, tuple[Feedback, ...]]:
    """A file of a log: its impressions, what is wrong with it ("" for nothing), and its feedback; none if it is empty."""
    heard = [0]
    try:
        found = _here(path, how, heard.append, first)
    except _EmptyError:
        return 0, "", ()
    except LogError as error:
        return 0, str(error), ()
    return heard[-1], "", found


def _check_alike(name: object, first: Feedback, other: Feedback) -> None:
    """Refuses a file whose ids or propensities are not of the kind of the first one's."""
    for column, ids in (("query_id", "query_ids"), ("items", "item_ids")):
        expected, came = (getattr(one.vocabulary, ids) for one in (first, other))
        if len(expected) and len(came) and expected.dtype != came.dtype:
            raise LogError(
                f"{name}, column {column}: expected ids that are {expected.dtype}, as in the files before; they are "
                f"{came.dtype}. Convert them to the same type."
            )
    if (first.logged is None) != (other.logged is None):
        raise _mixed(name)
