"""Is my log fit? All that is wrong with a log at once, what kind of log it is, and what it can answer; and a clean copy.

One pass in batches, in the memory that reading the log takes. The description is of the impressions without a problem,
each counted once whatever its weight.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.arguments import checked
from tandemrank._base.files import plain, replacing
from tandemrank._base.ids import IdRegistry
from tandemrank._base.results import Result
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.checks import TOGETHER, first_rows, impressions_of, split_good_rows
from tandemrank.logs.counting import tally
from tandemrank.logs.description import Answer, Description, PolicyCount, answers, describe_log
from tandemrank.logs.impressions import FlatImpressions, Impressions, joined
from tandemrank.logs.pairs import TESTED, dependence
from tandemrank.logs.schema import NO_ROWS, Problem
from tandemrank.logs.sessions import SessionCounter, SessionFacts, session_answer
from tandemrank.logs.sources import Batch, Source, batches, describe, layout_of, placed, plain_source
from tandemrank.logs.writing import CLICK_LOG, write_part

MOST_ROWS = 3  # of a problem, that are named


@dataclass(frozen=True)
class Found:
    """One kind of problem in one file: the first rows (from 0; none where it is the whole file) and how many have it."""

    file: str
    column: str
    rows: tuple[int, ...]
    count: int
    message: str


@dataclass(frozen=True, repr=False)
class Validation(Result):
    """The outcome: `problems` (none: the log is fit), the impressions given and those without a problem, what it is.

    `sessions`: where impressions have a session_id.
    """

    fit: bool
    problems: tuple[Found, ...]
    files: int
    rows: int
    impressions: int
    usable: int
    log: Description | None
    answers: tuple[Answer, ...]
    sessions: SessionFacts | None = None

    def _lines(self) -> list[str]:
        wrong = [
            f"{one.file}{f', row {one.rows[0]}' if one.rows else ''}{f', column {one.column}' if one.column else ''}: "
            f"{one.message} ({one.count or 'the whole file'})"
            for one in self.problems
        ]
        fit = "fit" if self.fit else f"not fit: {len(wrong)} problem{'s' if len(wrong) > 1 else ''}"
        size = (
            ""
            if self.log is None
            else f", {self.log.queries:,} queries, {self.log.items:,} items, {self.log.clicks:,} clicks"
        )
        can = [f"{'yes' if one.possible else 'no'}: {one.question} ({one.why})" for one in self.answers]
        return [f"{fit}; {self.usable:,} of {self.impressions:,} impressions can be used{size}", *wrong, *can]

    def _rows(self) -> list[dict[str, Any]]:
        return [vars(one) for one in self.answers]


@dataclass(frozen=True)
class Dropped:
    """Impressions that were left out, and why."""

    column: str
    reason: str
    impressions: int


@dataclass(frozen=True)
class Fixed:
    """A cleaned copy of a log: where it is, how many impressions were given and kept, and what was left out."""

    path: Path
    impressions: int
    kept: int
    dropped: tuple[Dropped, ...]


@dataclass
class _Survey:
    """What is counted while a log goes by: more than sums keep, of all impressions or of those without a problem."""

    names: IdRegistry = field(default_factory=IdRegistry)
    problems: dict[tuple[str, str, str], Found] = field(default_factory=dict)
    files: dict[str, bool | None] = field(default_factory=dict)  # whether each has propensities; None of an empty one
    rows: int = 0
    impressions: int = 0
    usable: int = 0
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    policies: Counter[str] = field(default_factory=Counter)
    lists: list[Impressions] = field(default_factory=list)  # the first ones
    sessions: SessionCounter = field(default_factory=SessionCounter)

    def looked_at(
        self, pieces: Iterable[Batch], K: int | None
    ) -> Iterator[tuple[Batch, list[Problem], NDArray[np.int64], FlatImpressions | None]]:
        """Each batch with its problems, the rows without one, and their impressions."""
        for piece in pieces:
            self.files.setdefault(piece.name, None)
            if piece.frame is None:
                yield piece, piece.found, NO_ROWS, None
                continue
            if len(piece.frame):
                self.rows += len(piece.frame)
                self.impressions += int(impressions_of(piece.frame)[-1]) + 1
                self.files[piece.name] = not {"propensity", "propensities"}.isdisjoint(piece.frame.columns)
            found, left, good = split_good_rows(piece.frame, piece.found, self.names, K, piece.layout)
            if good is not None:
                if (missing := TESTED - self.usable) > 0:
                    self.lists.append(good.table(missing))
                self.usable += len(good.query)
            yield piece, found, left, good

    def good(self, pieces: Iterable[Batch], K: int | None) -> Iterator[FlatImpressions]:
        """The impressions without a problem, each counting once; all problems are kept, and what sums do not keep."""
        for piece, found, left, good in self.looked_at(pieces, K):
            for problem in found:
                rows = tuple((piece.first + problem.rows[:MOST_ROWS]).tolist())
                self.add(Found(piece.name, problem.column, rows, problem.count, problem.message))
            if good is not None and piece.frame is not None:
                self._meet(piece.frame[left], good)
                yield replace(good, weight=None, propensity=None)

    def add(self, found: Found) -> None:
        """Keeps a problem, together with the same one of earlier batches."""
        key = (found.file, found.column, found.message.partition(";")[0])
        if before := self.problems.get(key):
            rows, count = before.rows + found.rows, before.count + found.count
            found = replace(before, rows=rows[:MOST_ROWS], count=count)
        self.problems[key] = found

    def _meet(self, frame: pl.DataFrame, good: FlatImpressions) -> None:
        """Counts what sums do not keep; `good` are the impressions of the frame."""
        for name, values in (("weight", good.weight), ("propensity", good.propensity)):
            if values is not None and len(values):
                low, high = self.ranges.get(name, (np.inf, -np.inf))
                self.ranges[name] = min(low, float(values.min())), max(high, float(values.max()))
        first = first_rows(frame)
        own = (
            frame["policy"].gather(first).cast(pl.String) if "policy" in frame.columns else pl.Series([""] * len(first))
        )
        self.policies.update(dict(own.value_counts().iter_rows()))
        if "session_id" in frame.columns:
            self.sessions.add(frame[first], good)

    def odd(self) -> str | None:
        """A file that has propensities where the first has none, or the other way round."""
        has = {name: own for name, own in self.files.items() if own is not None}
        return next((name for name, own in has.items() if own != next(iter(has.values()))), None)


@checked
def validate(source: Source, *, K: int | None = None, batch: int = 200_000) -> Validation:
    """Looks at a whole log: every problem with file, row, column and count (the first rows of each), and more.

    K is the number of ranks of the examination curve, where there is one. Nothing is raised for what is wrong inside
    the log, only where there is none at all.
    """
    survey = _Survey()
    parts = survey.good(batches(placed(source, layout_of(source)), batch), K)
    first = next(parts, None)
    feedback = tally(chain([first], parts), survey.names.vocabulary)[0] if first else None
    if name := survey.odd():
        message = "expected propensities in all files or in none; this one differs from the first."
        survey.add(Found(name, "propensities", (), 0, message))
    if not survey.rows and not survey.problems:
        survey.add(Found(min(survey.files, default="the log"), "", (), 0, "expected impressions; the log is empty."))
    named = survey.policies if set(survey.policies) != {""} else Counter[str]()
    policies = tuple(PolicyCount(name, n) for name, n in named.most_common())
    log = None if feedback is None else describe_log(feedback, survey.ranges, policies)
    sessions = survey.sessions.facts()
    more = () if sessions is None else (session_answer(sessions),)
    return Validation(
        fit=not survey.problems,
        problems=tuple(survey.problems.values()),
        files=len(survey.files),
        rows=survey.rows,
        impressions=survey.impressions,
        usable=survey.usable,
        log=log,
        answers=()
        if feedback is None or log is None
        else (*answers(feedback, log, dependence(joined(survey.lists))), *more),
        sessions=sessions,
    )


@checked
def fix(source: Source, path: str | Path, *, K: int | None = None, batch: int = 200_000) -> Fixed:
    """Writes the impressions without a problem as a folder of Parquet parts, with all their columns, and counts the rest.

    An impression counts under the first problem it has, so kept and dropped add up. Refuses what leaving out
    impressions cannot fix: an unreadable file, missing columns, propensities in some files only, nothing left.
    """
    source = plain_source(source)
    given = [source] if isinstance(source, str | Path) else source if isinstance(source, list | tuple) else []
    given = [plain(p) for p in given]
    real = Path(os.path.realpath(path))  # unlike `resolve` it takes links that lead round in a circle
    if any(isinstance(p, str | Path) and real.is_relative_to(os.path.realpath(p)) for p in given):
        raise ConfigError(f"expected another path for the clean copy; {path} is the log itself, or in its folder.")
    survey, dropped = _Survey(), Counter[tuple[str, str]]()
    with replacing(path, CLICK_LOG, inputs=given) as folder:
        folder.mkdir()
        pieces = survey.looked_at(batches(placed(source, layout_of(source)), batch, every_column=True), K)
        for number, (piece, found, left, _) in enumerate(pieces):
            if piece.frame is None:
                raise LogError(f"{describe(piece, piece.found[0])} Leaving out impressions cannot fix this.")
            if parted := [problem for problem in found if problem.message == TOGETHER]:
                raise LogError(
                    f"{describe(piece, parted[0])} Leaving out impressions cannot fix this, since a part of each would "
                    "stay; `tandemrank import --from long` puts their rows together."
                )
            run, counted = impressions_of(piece.frame), set[int]()
            for problem in found:
                bad = set(run[problem.rows].tolist()) - counted
                dropped[problem.column, problem.message.partition(";")[0]] += len(bad)
                counted |= bad
            if len(left):
                write_part(piece.frame[left], folder, number)
        if not survey.usable:
            raise LogError("no impression of the log is without a problem, so there is nothing to write.")
        if survey.odd():
            raise LogError("some files of the log have propensities and others have none. Fix them separately.")
    reasons = tuple(Dropped(*reason, n) for reason, n in dropped.items() if n)
    return Fixed(Path(path), survey.impressions, survey.usable, reasons)
