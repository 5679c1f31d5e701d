"""Sessions of a log: the order of their steps, what was clicked last before each, and whether they say enough.

A session is a sequence of impressions with one `session_id`, in the order of `step`, else of `timestamp`. The click of a list
that moves the state is the one furthest down, where there are several: users read from the top.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.ids import IdRegistry, plain_ids
from tandemrank.logs.description import FREQUENT, Answer
from tandemrank.logs.impressions import FlatImpressions
from tandemrank.logs.schema import seconds

Whole = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST_SINCE = 3  # steps since the last click that are told apart
SOME_CLICKS = 0.05  # of the steps: with more that have several clicks, there is a word of care


def time_of(steps: pl.DataFrame) -> Floats:
    """What orders the steps of a session, NaN where nothing does.  Shapes: -> [n]."""
    if "step" in steps.columns:
        return steps["step"].cast(pl.Float64).to_numpy()
    times = seconds(steps["timestamp"]).fill_null(np.nan) if "timestamp" in steps.columns else None
    return np.full(len(steps), np.nan) if times is None else times.to_numpy()


def moving_clicks(lists: FlatImpressions) -> Whole:
    """Where the click of each list is that is furthest down, a place among all shown items; -1 without one.  Shapes: -> [n]."""
    found = np.full(len(lists.query), -1, np.int64)
    clicked = np.flatnonzero(lists.click)
    row = np.searchsorted(np.cumsum(lists.length), clicked, side="right")
    order = np.lexsort((lists.rank[clicked], row))
    found[row[order]] = clicked[order]  # of several the last one stays
    return found


def places(session: NDArray[np.integer]) -> tuple[Whole, Whole]:
    """Of steps in the order of their sessions: where its session begins, and the number of the step in it, from 0.

    Shapes: session [n] -> [n], [n].
    """
    first = np.flatnonzero(np.diff(session, prepend=-1))
    begins = np.repeat(first, np.diff(first, append=len(session)))
    return begins, np.arange(len(session)) - begins


def last_clicks(session: NDArray[np.integer], click: Whole) -> tuple[Whole, Whole]:
    """What was clicked last before each step (-1: nothing yet), and how many steps ago, or since the session began.

    Of the first step after a click, and of the first of a session, it is 1; more than `MOST_SINCE` are as many.
    Shapes: session, click [n], in order -> [n], [n].
    """
    begins, _ = places(session)
    here = np.arange(len(click))
    before = np.append(-1, np.maximum.accumulate(np.where(click >= 0, here, -1)))[:-1]
    known = before >= begins
    last = np.where(known, click[before], -1)
    since = np.where(known, here - before, here - begins + 1)
    return last, np.minimum(since, MOST_SINCE)


@dataclass(frozen=True)
class SessionFacts:
    """The sessions of a log.

    `order`: the column by which steps are ordered, None where there is none. `repeated_steps`: steps at the same time as
    another of their session. `several_clicks`: the share of the steps with more than one click. `states`: distinct last clicks
    and steps since; `frequent_states`: the share of the steps in states that came ten times or more.
    """

    sessions: int
    steps: int
    longest: int
    order: str | None
    repeated_steps: int
    several_clicks: float
    states: int
    frequent_states: float

    @property
    def words(self) -> str:
        """In a sentence."""
        mean = self.steps / self.sessions
        return f"{self.sessions:,} of {mean:.3g} steps in the mean, the longest of {self.longest:,}"


class SessionCounter:
    """Counts the sessions of a log as it goes by."""

    def __init__(self) -> None:
        self.names = IdRegistry()
        self.parts: list[tuple[NDArray[np.int32], Floats, Whole, Whole]] = []
        self.order = "timestamp"

    def add(self, steps: pl.DataFrame, lists: FlatImpressions) -> None:
        """More impressions; `steps` has a row for each, with the columns of the log."""
        session, _ = self.names.queries(plain_ids(steps["session_id"]))
        self.order = "step" if "step" in steps.columns else "timestamp"
        clicks = np.add.reduceat(np.append(lists.click, 0), np.cumsum(lists.length) - lists.length)
        clicks = np.where(lists.length > 0, clicks, 0).astype(np.int64)
        moved = moving_clicks(lists)
        item = np.where(moved >= 0, np.append(lists.item, -1)[moved], -1).astype(np.int64)
        self.parts.append((session, time_of(steps), item, clicks))

    def facts(self) -> SessionFacts | None:
        """All of it; None where no impression has a session."""
        if not self.parts:
            return None
        session, when, click, clicks = (np.concatenate(some) for some in zip(*self.parts, strict=True))
        order = np.lexsort((when, session))
        session, when, click = session[order], when[order], click[order]
        last, since = last_clicks(session, click)
        _, state, visits = np.unique(last * (MOST_SINCE + 1) + since, return_inverse=True, return_counts=True)
        same = np.diff(session, prepend=-1) == 0
        return SessionFacts(
            sessions=int((~same).sum()),
            steps=len(session),
            longest=int(places(session)[1].max()) + 1,
            order=None if np.isnan(when).any() else self.order,
            repeated_steps=int((same & (np.diff(when, prepend=np.nan) == 0)).sum()),
            several_clicks=float((clicks > 1).mean()),
            states=len(visits),
            frequent_states=float((visits[state] >= FREQUENT).mean()),
        )


def session_answer(found: SessionFacts) -> Answer:
    """Whether a log says what a policy is worth over sessions, and why."""
    states = f"{found.frequent_states:.0%} of the steps are in states (last click, steps since) seen {FREQUENT} times or more"
    if found.order is None:
        why = "nothing orders the steps of a session: a column step or timestamp is needed"
    elif found.repeated_steps:
        why = f"{found.repeated_steps:,} steps come at the same {found.order} as another of their session"
    else:
        why = f"{states}; {found.several_clicks:.1%} of the steps have several clicks"
        if found.several_clicks > SOME_CLICKS:
            why += ", of which the one furthest down is taken to move the state: values may be off"
    possible = found.order is not None and not found.repeated_steps and found.frequent_states >= 0.5
    return Answer("value over sessions", possible, why)
