"""Is my log fit? All that is wrong with a log at once, what kind of log it is, and what it can answer; and a clean copy.

One pass in batches, in the memory that reading the log takes. The description is of the impressions without a problem,
each counted once whatever its weight.
"""

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np

from tandemrank._base.arguments import checked
from tandemrank._base.files import plain, replacing
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.checks import impressions_of, split_good_rows
from tandemrank.logs.counting import tally
from tandemrank.logs.description import Answer, Columns, Description, answers, describe_log
from tandemrank.logs.impressions import Shown
from tandemrank.logs.keys import IdRegistry
from tandemrank.logs.repeats import TOGETHER
from tandemrank.logs.schema import NO_ROWS
from tandemrank.logs.sources import Batch, Source, batches, describe
from tandemrank.logs.writing import CLICK_LOG, write_part


@dataclass(frozen=True)
class Found:
    """One kind of problem in one file: the first rows (from 0; none where it is the whole file) and how many have it."""

    file: str
    column: str
    rows: tuple[int, ...]
    count: int
    message: str


@dataclass(frozen=True)
class Validation:
    """The outcome: `problems` (none: the log is fit), the impressions given and those without a problem, what it is."""

    fit: bool
    problems: tuple[Found, ...]
    files: int
    rows: int
    impressions: int
    usable: int
    log: Description | None
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Dropped:
    """Impressions (and rows; the same number in a wide log) that were left out, and why."""

    column: str
    reason: str
    impressions: int
    rows: int


@dataclass(frozen=True)
class Fixed:
    """A cleaned copy of a log: where it is, how many impressions were given and kept, and what was left out."""

    path: Path
    impressions: int
    kept: int
    dropped: tuple[Dropped, ...]


@dataclass
class _Survey:
    """What is counted while a log goes by."""

    problems: dict[tuple[str, str, str], Found] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)
    with_propensities: dict[str, bool] = field(default_factory=dict)
    rows: int = 0
    impressions: int = 0
    usable: int = 0
    met: Columns = field(default_factory=Columns)

    def add(self, found: Found, limit: int) -> None:
        """Keeps a problem, together with the same one of earlier batches."""
        key = (found.file, found.column, found.message.partition(";")[0])
        if before := self.problems.get(key):
            rows, count = before.rows + found.rows, before.count + found.count
            found = replace(before, rows=rows, count=count)
        self.problems[key] = replace(found, rows=found.rows[:limit])

    def meet(self, batch: Batch) -> None:
        """Counts a batch, and remembers which files have propensities."""
        self.files.add(batch.name)
        if batch.frame is None or not len(batch.frame):
            return
        self.rows += len(batch.frame)
        self.impressions += int(impressions_of(batch.frame)[-1]) + 1
        self.with_propensities[batch.name] = not {"propensity", "propensities"}.isdisjoint(batch.frame.columns)

    def odd(self) -> str | None:
        """A file that has propensities where the first has none, or the other way round."""
        has = list(self.with_propensities.values())
        return next((name for name, own in self.with_propensities.items() if own != has[0]), None)


@checked
def validate(source: Source, *, K: int | None = None, limit: int = 3, batch: int = 200_000) -> Validation:
    """Looks at a whole log: every problem with file, row, column and count (the first `limit` rows of each), and more.

    K is the number of ranks of the examination curve, where there is one. Nothing is raised for what is wrong inside
    the log, only where there is none at all.
    """
    survey = _Survey()
    names = IdRegistry(None)
    parts = _good(source, survey, names, K, limit, batch)
    first = next(parts, None)
    feedback = tally(chain([first], parts), names.vocabulary)[0] if first else None
    if name := survey.odd():
        message = "expected propensities in all files or in none; this one differs from the first."
        survey.add(Found(name, "propensities", (), 0, message), limit)
    if not survey.rows and not survey.problems:
        survey.add(
            Found(min(survey.files, default="the log"), "", (), 0, "expected impressions; the log is empty."), limit
        )
    log = None if feedback is None else describe_log(feedback, survey.met)
    return Validation(
        fit=not survey.problems,
        problems=tuple(survey.problems.values()),
        files=len(survey.files),
        rows=survey.rows,
        impressions=survey.impressions,
        usable=survey.usable,
        log=log,
        answers=() if feedback is None or log is None else answers(feedback, log),
    )


def _good(source: Source, survey: _Survey, names: IdRegistry, K: int | None, limit: int, batch: int) -> Iterator[Shown]:
    """The impressions without a problem, while the survey hears of everything else."""
    for piece in batches(source, batch):
        survey.meet(piece)
        found, left, shown = piece.found, NO_ROWS, None
        if piece.frame is not None:
            found, left, shown = split_good_rows(piece.frame, piece.found, names, K)
        for problem in found:
            rows = tuple((piece.first + problem.rows[:limit]).tolist())
            survey.add(Found(piece.name, problem.column, rows, problem.count, problem.message), limit)
        if shown is not None and piece.frame is not None:
            survey.usable += len(shown.query)
            survey.met.add(piece.frame[left], shown)
            yield replace(shown, weight=None, propensity=None)


# --- a clean copy -----------------------------------------------------------------------------------------------------


@checked
def fix(source: Source, path: str | Path, *, K: int | None = None, batch: int = 200_000) -> Fixed:
    """Writes the impressions without a problem as a folder of Parquet parts, with all their columns, and counts the rest.

    An impression counts under the first problem it has, so kept and dropped add up. Refuses what leaving out
    impressions cannot fix: an unreadable file, missing columns, propensities in some files only, nothing left.
    """
    given = [source] if isinstance(source, str | Path) else source if isinstance(source, list | tuple) else []
    given = [plain(p) for p in given]
    real = Path(os.path.realpath(path))  # unlike `resolve` it takes links that lead round in a circle
    if any(isinstance(p, str | Path) and real.is_relative_to(os.path.realpath(p)) for p in given):
        raise ConfigError(f"expected another path for the clean copy; {path} is the log itself, or in its folder.")
    survey, names = _Survey(), IdRegistry(None)
    impressions, rows = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    with replacing(path, CLICK_LOG, inputs=given) as folder:
        folder.mkdir()
        for number, piece in enumerate(batches(source, batch, every_column=True)):
            if piece.frame is None:
                raise LogError(f"{describe(piece, piece.found[0])} Leaving out impressions cannot fix this.")
            survey.meet(piece)
            if parted := [problem for problem in piece.found if problem.message == TOGETHER]:
                raise LogError(
                    f"{describe(piece, parted[0])} Leaving out impressions cannot fix this, since a part of each would "
                    "stay; `tandemrank import --from long` puts their rows together."
                )
            found, left, shown = split_good_rows(piece.frame, piece.found, names, K)
            run = impressions_of(piece.frame)
            survey.usable += 0 if shown is None else len(shown.query)
            gone = np.isin(np.arange(len(run)), left, invert=True)
            for problem in found:
                reason = problem.column, problem.message.partition(";")[0]
                here = gone & np.isin(run, run[problem.rows])
                gone &= ~here
                rows[reason] += int(here.sum())
                impressions[reason] += len(np.unique(run[here]))
            if len(left):
                write_part(piece.frame[left], folder, number)
        if not survey.usable:
            raise LogError("no impression of the log is without a problem, so there is nothing to write.")
        if survey.odd():
            raise LogError("some files of the log have propensities and others have none. Fix them separately.")
    dropped = tuple(Dropped(*reason, n, rows[reason]) for reason, n in impressions.items() if n)
    return Fixed(Path(path), survey.impressions, survey.usable, dropped)
