"""Is my log fit? All that is wrong with a log at once, what kind of log it is, and what it can answer; and a clean copy.

One pass in batches, in the memory that reading the log takes. The description is of the impressions without a problem,
each counted once whatever its weight.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.files import replacing
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.checks import impressions_of, split_good_rows
from tandemrank.logs.counting import tally
from tandemrank.logs.feedback import Feedback, always_the_same
from tandemrank.logs.impressions import Shown
from tandemrank.logs.pairs import compared, often, unconnected
from tandemrank.logs.parts import CLICK_LOG, write_part
from tandemrank.logs.registry import IdRegistry
from tandemrank.logs.sources import Batch, Source, batches, describe

FREQUENT = 10  # impressions of a query from which on frequencies begin to say something about the logger


@dataclass(frozen=True)
class Found:
    """One kind of problem in one file: the first rows (from 0; none where it is the whole file) and how many have it."""

    file: str
    column: str
    rows: tuple[int, ...]
    count: int
    message: str


@dataclass(frozen=True)
class Answer:
    """A question, whether this log can answer it, and why."""

    question: str
    possible: bool
    why: str


@dataclass(frozen=True)
class Description:
    """What a log is. Shares and means are None where there is nothing to compute them from.

    `click_rate` and `shown` are by position. `once` is the share of the (query, item) pairs that were shown once. Of the
    queries with two impressions or more, `repeated`: `fixed` is the share whose lists were all the same, `first_items`
    the mean effective number (the exponential of the entropy) of items at the first position.
    """

    impressions: int
    queries: int
    items: int
    clicks: int
    shown: tuple[int, ...]
    click_rate: tuple[float | None, ...]
    pairs: int
    once: float | None
    repeated: int
    fixed: float | None
    first_items: float | None
    deterministic: bool | None
    propensities: tuple[float, float] | None
    weights: tuple[float, float] | None


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
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, found: Found, limit: int) -> None:
        """Keeps a problem, together with the same one of earlier batches."""
        key = (found.file, found.column, found.message.partition(";")[0])
        if before := self.problems.get(key):
            rows, count = before.rows + found.rows, before.count + found.count
            found = replace(before, rows=rows, count=count)
        self.problems[key] = replace(found, rows=found.rows[:limit])

    def widen(self, name: str, values: NDArray[np.float64] | None) -> None:
        """Remembers the range of values."""
        if values is not None and len(values):
            low, high = self.ranges.get(name, (np.inf, -np.inf))
            self.ranges[name] = min(low, float(values.min())), max(high, float(values.max()))

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


def validate(source: Source, *, K: int | None = None, limit: int = 3, batch: int = 200_000) -> Validation:
    """Looks at a whole log: every problem with file, row, column and count (the first `limit` rows of each), and more.

    K is the number of ranks of the examination curve, where there is one. Nothing is raised for what is wrong inside
    the log, only where there is none at all.
    """
    survey = _Survey()
    names = IdRegistry(None)
    parts = _good(source, survey, names, K, limit, batch)
    first = next(parts, None)
    feedback = tally(chain([first], parts), names.vocabulary, (), 0)[0] if first else None
    if name := survey.odd():
        message = "expected propensities in all files or in none; this one differs from the first."
        survey.add(Found(name, "propensities", (), 0, message), limit)
    if not survey.rows and not survey.problems:
        survey.add(
            Found(min(survey.files, default="the log"), "", (), 0, "expected impressions; the log is empty."), limit
        )
    log = None if feedback is None else _describe(feedback, survey)
    return Validation(
        not survey.problems,
        tuple(survey.problems.values()),
        len(survey.files),
        survey.rows,
        survey.impressions,
        survey.usable,
        log,
        () if feedback is None or log is None else _answers(feedback, log),
    )


def _good(source: Source, survey: _Survey, names: IdRegistry, K: int | None, limit: int, batch: int) -> Iterator[Shown]:
    """The impressions without a problem, while the survey hears of everything else."""
    for piece in batches(source, batch):
        survey.meet(piece)
        found, shown = piece.found, None
        if piece.frame is not None:
            found, _, shown = split_good_rows(piece.frame, piece.found, names, K)
        for problem in found:
            rows = tuple((piece.first + problem.rows[:limit]).tolist())
            survey.add(Found(piece.name, problem.column, rows, problem.count, problem.message), limit)
        if shown is not None:
            survey.usable += len(shown.query)
            survey.widen("weight", shown.weight)
            survey.widen("propensity", shown.propensity)
            yield replace(shown, weight=None, propensity=None)


# --- what it is -------------------------------------------------------------------------------------------------------


def _describe(feedback: Feedback, survey: _Survey) -> Description:
    """What the log is, from its sums."""
    shown = np.bincount(feedback.rank, feedback.shown)
    clicks = np.bincount(feedback.rank, feedback.clicks)
    new = (np.diff(feedback.query, prepend=-1) != 0) | (np.diff(feedback.item, prepend=-1) != 0)
    pair = np.add.reduceat(feedback.shown, np.flatnonzero(new)) if len(new) else np.zeros(0)
    repeated = feedback.impressions >= 2
    fixed = always_the_same(feedback)[repeated]
    numbers = _first_items(feedback)[repeated]
    return Description(
        impressions=int(feedback.N),
        queries=int((feedback.impressions > 0).sum()),
        items=len(np.unique(feedback.item)),
        clicks=int(feedback.clicks.sum()),
        shown=tuple(int(n) for n in shown),
        click_rate=tuple(float(c / n) if n else None for c, n in zip(clicks, shown, strict=True)),
        pairs=len(pair),
        once=float((pair == 1).mean()) if len(pair) else None,
        repeated=int(repeated.sum()),
        fixed=float(fixed.mean()) if len(fixed) else None,
        first_items=float(numbers[numbers > 0].mean()) if (numbers > 0).any() else None,
        deterministic=bool(fixed.all()) if len(fixed) else None,
        propensities=survey.ranges.get("propensity"),
        weights=survey.ranges.get("weight"),
    )


def _first_items(feedback: Feedback) -> NDArray[np.float64]:
    """The effective number of items at the first rank, exp(-sum p log p); 0 for a query without one. Shapes: -> [Q]."""
    top = feedback.rank == 0
    query, n = feedback.query[top], feedback.shown[top]
    total = np.bincount(query, n, minlength=feedback.Q)
    p = n / total[query]
    return np.where(total > 0, np.exp(np.bincount(query, -p * np.log(p), minlength=feedback.Q)), 0.0)


def _answers(feedback: Feedback, log: Description) -> tuple[Answer, ...]:
    """Which questions the log can answer."""
    often = float(feedback.impressions[feedback.impressions >= FREQUENT].sum()) / max(feedback.N, 1)
    varied = log.deterministic is False
    same = (
        "the logger always shows the same list for a query"
        if log.deterministic
        else f"{1 - log.fixed:.0%} of the {log.repeated} queries with two impressions or more saw different lists"
        if log.fixed is not None
        else "no query comes twice, so nobody can see whether the logger varies"
    )
    return (
        Answer("train both stages from the clicks", log.clicks > 0, f"{log.clicks} clicks on {log.pairs} pairs"),
        *_bias(feedback, log),
        Answer(
            "the value of another policy, with logged propensities",
            log.propensities is not None and not log.deterministic,
            "the log has no propensities" if log.propensities is None else f"the log has propensities; {same}",
        ),
        Answer(
            "the value of another policy, with frequencies as propensities",
            varied and often >= 0.5,
            f"{same}; {often:.0%} of the impressions are of queries with at least {FREQUENT}",
        ),
        Answer("the value of another policy, with propensities fitted to the lists", varied, same),
    )


def _bias(feedback: Feedback, log: Description) -> Iterator[Answer]:
    """Whether position bias and trust bias can be had from the log."""
    pairs = compared(feedback, max(len(log.shown), 1))
    for question, some in (
        ("the examination curve, from the log itself", pairs),
        ("trust bias, from the log itself", often(pairs)),
    ):
        apart = unconnected(some) if len(some.query) else list(range(2, len(log.shown) + 1))
        why = f"{len(some.query)} pairs were seen at two ranks or more"
        if some is not pairs:
            why += ", ten times or more"
        if apart:
            why += f"; they do not connect rank 1 with {', '.join(map(str, apart))}"
        yield Answer(question, not apart and len(log.shown) > 1 and len(some.query) > 0, why)


# --- a clean copy -----------------------------------------------------------------------------------------------------


def fix(source: Source, path: str | Path, *, K: int | None = None, batch: int = 200_000) -> Fixed:
    """Writes the impressions without a problem as a folder of Parquet parts, with all their columns, and counts the rest.

    An impression counts under the first problem it has, so kept and dropped add up. Refuses what cannot be mended by
    leaving out impressions: an unreadable file, missing columns, propensities in some files only, nothing left.
    """
    given = [source] if isinstance(source, str | Path) else source if isinstance(source, list | tuple) else []
    if any(isinstance(p, str | Path) and Path(path).resolve().is_relative_to(Path(p).resolve()) for p in given):
        raise ConfigError(f"expected another path for the clean copy; {path} is the log itself, or in its folder.")
    survey, names = _Survey(), IdRegistry(None)
    impressions, rows = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    with replacing(path, CLICK_LOG, inputs=given) as folder:
        folder.mkdir()
        for number, piece in enumerate(batches(source, batch, every_column=True)):
            if piece.frame is None:
                raise LogError(f"{describe(piece, piece.found[0])} This cannot be mended by leaving out impressions.")
            survey.meet(piece)
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
            raise LogError("some files of the log have propensities and others have none. Mend them apart.")
    dropped = tuple(Dropped(*reason, n, rows[reason]) for reason, n in impressions.items() if n)
    return Fixed(Path(path), survey.impressions, survey.usable, dropped)
