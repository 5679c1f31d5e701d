"""Guardrails: what must not fall while something else decides: another reward, clicks while revenue does, say; or any segment.

Better on average may be much worse for some: the difference of two sides is told segment by segment of the queries.

A segment is a value of a column: of the log, or of a table of the queries. Segments are of queries; a query that came with
several values is in a segment of its own kind, and so are those without any.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.ids import Vocabulary, positions_of
from tandemrank.errors import ConfigError
from tandemrank.logs.contexts import Contexts
from tandemrank.logs.sources import Source, sound_batches
from tandemrank.offpolicy.comparison import compare_values, difference_interval
from tandemrank.offpolicy.estimators import Estimate
from tandemrank.offpolicy.uncertainty import normal_interval
from tandemrank.offpolicy.values import Value
from tandemrank.policies.features import FeatureSource, table

SEVERAL, NONE = "(several)", "(none)"
MOST_SEGMENTS = 100
MOST_SEVERAL = 0.5  # of the impressions, of queries with several values: a limit for each value says nothing of these


@dataclass(frozen=True)
class Segments:
    """The segment of every query of a vocabulary.  Shapes: of_query [Q], positions in `names`."""

    column: str
    names: tuple[str, ...]
    of_query: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SegmentDifference:
    """New less old in one segment; the intervals of a table are bounds and hold all together.

    `worse`: the interval is below 0.
    """

    segment: str
    queries: int
    impressions: float
    new: float
    old: float
    difference: float
    interval: tuple[float, float]

    @property
    def worse(self) -> bool:
        """Whether the new side is surely worse here."""
        return self.interval[1] < 0

    def words(self, unit: str) -> str:
        """As a reason."""
        gap = f"{self.difference:+.3g} [{self.interval[0]:+.3g}, {self.interval[1]:+.3g}] {unit} per impression"
        return f"WORSE for {self.segment} ({self.impressions:,.0f} impressions): {gap}"


def segments_of_log(log: Source, column: str, vocabulary: Vocabulary) -> Segments:
    """By a column of the log. The log is read for it once more, query and column only; not for one of a known context."""
    contexts = Contexts.within(vocabulary)
    if contexts is not None and column in contexts.table.columns:
        own = contexts.table.select(vocabulary.query_ids.alias("query_id"), column)
        return _of_values(own, column, vocabulary)
    parts = [part.select("query_id", column).unique() for part in _frames(log, column)]
    return _segments(pl.concat(parts, how="vertical_relaxed").unique(), column, vocabulary)


def segments_of_table(source: FeatureSource, column: str, vocabulary: Vocabulary) -> Segments:
    """By a column of a table of the queries, which has a `query_id`."""
    frame, name = table(source, "query_id")
    if column not in frame.columns or column == "query_id":
        others = ", ".join(c for c in frame.columns if c != "query_id") or "none"
        raise ConfigError(f"{name} has no column {column!r} to make segments of; others: {others}.")
    return _segments(frame.select("query_id", column).unique(), column, vocabulary)


def check_limits(segments: Segments, impressions: NDArray[np.float64]) -> None:
    """Refuses a limit for every segment where most impressions are of queries with several values.  Shapes: impressions [Q]."""
    several = np.array([*segments.names, NONE])[segments.of_query] == SEVERAL
    share = float(impressions[several].sum() / max(float(impressions.sum()), 1e-12))
    if share > MOST_SEVERAL:
        raise ConfigError(
            f"no_segment_below: expected a column with one value for a query; {segments.column} has several for queries with "
            f"{share:.0%} of the impressions, and no limit would be checked for these values. Decide on the log of each value."
        )


def differences(new: Value, old: Value, segments: Segments, level: float) -> tuple[SegmentDifference, ...]:
    """The difference in every segment with logged queries, the most impressions first.

    Intervals are bounds on both sides, by what new and old take as independent, at 1 - (1 - level) / number of segments: all
    of them hold together, however small a segment is. They always hold the estimate, which need not be that of the bounds.
    """
    found = []
    inside = [(name, segments.of_query == place) for place, name in enumerate(segments.names)]
    there = [(name, rows) for name, rows in inside if new.estimate.denominator[rows].sum() > 0]
    for name, rows in there:
        a, b = (Estimate(x.estimate.numerator[rows], x.estimate.denominator[rows]) for x in (new, old))
        queries, gap = int((b.denominator > 0).sum()), a.value - b.value
        low, high = difference_interval(new, old, rows, 1 - (1 - level) / len(there))
        one = SegmentDifference(
            segment=name,
            queries=queries,
            impressions=float(b.denominator.sum()),
            new=a.value,
            old=b.value,
            difference=gap,
            interval=(min(low, gap), max(high, gap)),
        )
        found.append(one)
    return tuple(sorted(found, key=lambda one: -one.impressions))


def _frames(log: Source, column: str) -> Iterator[pl.DataFrame]:
    for piece, frame in sound_batches(log, every_column=True):
        if column not in frame.columns:
            raise ConfigError(
                f"{piece.name} has no column {column!r} to make segments of; it has {', '.join(frame.columns)}."
            )
        yield frame


def _segments(frame: pl.DataFrame, column: str, vocabulary: Vocabulary) -> Segments:
    """The segment of every query, or of its query where it is one in a context."""
    contexts = Contexts.within(vocabulary)
    if contexts is None:
        return _of_values(frame, column, vocabulary)
    found = _of_values(frame, column, contexts.vocabulary)
    return replace(found, of_query=found.of_query[contexts.base])


def _of_values(frame: pl.DataFrame, column: str, vocabulary: Vocabulary) -> Segments:
    if isinstance(frame.schema[column], pl.List | pl.Array | pl.Struct):
        raise ConfigError(f"column {column!r} has lists; segments are made of numbers, words or truth values.")
    values = frame.with_columns(pl.col(column).cast(pl.String).alias("value"))
    own = values.group_by("query_id", maintain_order=True).agg(
        pl.when(pl.col("value").n_unique() > 1)
        .then(pl.lit(SEVERAL))
        .otherwise(pl.col("value").first())
        .first()
        .alias("value")
    )
    names = tuple(sorted(set(own["value"].drop_nulls().to_list())))
    if len(names) > MOST_SEGMENTS:
        raise ConfigError(
            f"column {column!r} has {len(names)} values; at most {MOST_SEGMENTS} segments can be told apart. Group them first."
        )
    at = positions_of(vocabulary.query_ids, own["query_id"], "query", missing="mark")
    known = at >= 0
    of_query = np.full(len(vocabulary.query_ids), len(names), np.int64)
    place = {name: i for i, name in enumerate(names)}
    of_query[at[known]] = [len(names) if x is None else place[x] for x in own["value"].filter(pl.Series(known))]
    return Segments(column, (*names, NONE), of_query)


# --- what must not fall -----------------------------------------------------------------------------------------------

CLICKS = "clicks"  # what is counted where no column is named
TOLERATED = 0.01  # of the old side's value, that a guardrail may fall by unless it is told


@dataclass(frozen=True, kw_only=True)
class Guardrail:
    """New less old in another reward, with an interval that holds together with those of all guardrails and policies.

    `least`: the difference that is still good. `broken`: surely below it; `doubtful`: perhaps.
    """

    reward: str
    new: float
    old: float
    difference: float
    interval: tuple[float, float]
    least: float

    @property
    def broken(self) -> bool:
        """Whether it surely falls by more than is good."""
        return self.interval[1] < self.least

    @property
    def doubtful(self) -> bool:
        """Whether it may fall by more than is good."""
        return self.interval[0] < self.least

    @property
    def words(self) -> str:
        """As a reason."""
        low, high = self.interval
        said = "surely falls" if self.broken else "may fall" if self.doubtful else "does not fall"
        per = f"{self.difference:+.3g} [{low:+.3g}, {high:+.3g}] per impression"
        return f"guardrail: {self.reward} {said} below {self.least:+.3g}: {per}"


def guardrail(reward: str, new: Value, old: Value, least: float | None, level: float) -> Guardrail:
    """Of two values by that reward; without `least` a hundredth of what the old side has."""
    found = compare_values(new, old)
    return Guardrail(
        reward=reward,
        new=new.value,
        old=old.value,
        difference=found.difference,
        interval=normal_interval(found.difference, found.standard_error, level),
        least=-TOLERATED * old.value if least is None else float(least),
    )


def segment_rails(gaps: Sequence[SegmentDifference], least: float | None) -> tuple[Guardrail, ...]:
    """The segments that fall below a limit, or may; none where there is no limit."""
    rails = [
        Guardrail(
            reward=one.segment, new=one.new, old=one.old, difference=one.difference, interval=one.interval, least=least
        )
        for one in gaps
        if least is not None
    ]
    return tuple(sorted((rail for rail in rails if rail.doubtful), key=lambda rail: rail.difference))


def check_guardrails(guardrails: Mapping[str, float | None], reward: str) -> None:
    """Refuses what is no guardrail."""
    for name, least in guardrails.items():
        if not isinstance(name, str) or name == reward:
            raise ConfigError(f"a guardrail is another reward than the one that decides, {reward}; got {name!r}.")
        if least is not None and (not isinstance(least, Real) or not abs(least) < float("inf")):
            raise ConfigError(f"guardrail {name}: expected the least difference per impression; got {least!r}.")
