"""A log of sessions: its steps in order, and the state before each.

The state is what relevance, the policy and what comes next depend on. By default it is the column `state` of the log, where it
has one, else the last clicked item and how many steps ago that was; or columns of the log by name, or a function of the steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.ids import IdRegistry, Vocabulary, id_series, plain_ids
from tandemrank.errors import ConfigError, JobError, LogError
from tandemrank.logs.checks import first_rows
from tandemrank.logs.counting import tally
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import FlatImpressions
from tandemrank.logs.schema import LISTS
from tandemrank.logs.sessions import last_clicks, moving_clicks, places, time_of
from tandemrank.logs.sources import Source, impressions_in, sound_batches
from tandemrank.logs.sums import MIXED, pack
from tandemrank.sessions.estimators import SessionTable

Whole = NDArray[np.int64]
State = str | Sequence[str] | Callable[[pl.DataFrame], pl.Series]
LAST_CLICK = ("last_click", "since_click")  # the state where nothing else is said


@dataclass(frozen=True, kw_only=True)
class SessionLog:
    """The steps of a log, session by session. A situation is a query in a state; its number is the query of `lists`.

    `situations`: the `query_id` and the `state` of each. `moved`: the place among the shown items of the click that moves the
    state, -1 without one.  Shapes: session, step, moved [n].
    """

    lists: FlatImpressions
    vocabulary: Vocabulary
    situations: pl.DataFrame
    session: Whole
    step: Whole
    moved: Whole

    @property
    def sessions(self) -> int:
        """How many there are."""
        return int(self.session[-1]) + 1

    def until(self, horizon: int) -> "SessionLog":
        """The first steps of every session."""
        return self.take(self.step < horizon)

    def of_sessions(self, chosen: NDArray[np.bool_]) -> "SessionLog":
        """Some of the sessions, with the same situations.  Shapes: chosen [N]."""
        found = self.take(chosen[self.session])
        return replace(found, session=(np.cumsum(chosen) - 1)[found.session])

    def take(self, chosen: NDArray[np.bool_]) -> "SessionLog":
        """Some of the steps.  Shapes: chosen [n]."""
        lists = self.lists.take(chosen)
        return replace(
            self, lists=lists, session=self.session[chosen], step=self.step[chosen], moved=moving_clicks(lists)
        )

    def feedback(self) -> Feedback:
        """The sums of its impressions; the queries are the situations."""
        return tally([self.lists], lambda: self.vocabulary)[0]

    def table(self, horizon: int, log: Feedback | None = None, *, shown: bool = False) -> SessionTable:
        """The sessions as tables of so many steps; `log` has its sums. `shown`: whether with all that was shown."""
        log = self.feedback() if log is None else log
        key = pack(log.query, log.item, log.rank)
        row_of = np.repeat(np.arange(len(self.session)), self.lists.length)

        def at(some: Whole) -> tuple[Whole, Whole, Whole]:
            step, lists = row_of[some], self.lists
            row = np.searchsorted(key, pack(lists.query[step], lists.item[some], lists.rank[some]))
            return self.session[step], self.step[step], row

        state, moved = np.full((2, self.sessions, horizon), -1, np.int64)
        state[self.session, self.step] = self.lists.query
        session, step, row = at(self.moved[self.moved >= 0])
        moved[session, step] = row
        clicks = at(np.flatnonzero(self.lists.click))
        every = at(np.arange(len(row_of))) if shown else None
        return SessionTable(log=log, state=state, moved=moved, clicks=clicks, shown=every)


def read(source: Source, state: State | None = None, *, K: int | None = None) -> SessionLog:
    """Reads a log of sessions with every check; refuses one whose steps have no order."""
    if not (state is None or isinstance(state, str | list | tuple) or callable(state)):
        raise ConfigError(f"state: expected names of columns, or a function of the steps; got {state!r:.60}.")
    names, lists, steps = IdRegistry(), list[FlatImpressions](), list[pl.DataFrame]()
    for piece, frame in sound_batches(source, every_column=True):
        if "session_id" not in frame.columns:
            raise LogError(f"{piece.name}: expected a column session_id; got {', '.join(frame.columns[:20])}.")
        lists.append(impressions_in(piece, frame, names, K))
        steps.append(frame.drop(LISTS, strict=False)[first_rows(frame)])
    return of_steps(_joined(lists), _together(steps), names.vocabulary(), state)


def of_steps(lists: FlatImpressions, steps: pl.DataFrame, met: Vocabulary, state: State | None = None) -> SessionLog:
    """Steps in any order as sessions; `steps` has a row for each list, `met` names the positions of their items."""
    if lists.weight is not None and not (lists.weight == 1).all():
        raise LogError("column weight: expected sessions that each count once; got weights. Leave the column out.")
    code, _ = IdRegistry().queries(plain_ids(steps["session_id"]))
    when = time_of(steps)
    order = np.lexsort((when, code))
    session, when = _numbered(code[order]), when[order]
    _refuse_without_order(session, when, steps["session_id"].gather(order))
    item_ids = met.item_ids.sort()
    position = np.empty(len(item_ids), np.int64)
    position[met.item_ids.arg_sort().to_numpy()] = np.arange(len(item_ids))
    lists = replace(lists, item=position[lists.item]).in_order(order)
    moved, step = moving_clicks(lists), places(session)[1]
    clicked = np.where(moved >= 0, np.append(lists.item, -1)[moved], -1)
    last, since = last_clicks(session, clicked)
    names = pl.concat([item_ids.cast(pl.String), pl.Series([""])])
    steps = steps[order].with_columns(
        last_click=names.gather(np.where(last < 0, len(item_ids), last)),
        since_click=pl.Series(since),
        step=pl.Series(step),
    )
    steps = steps.with_columns(state=state_ids(steps, state))
    situations = steps.select("query_id", "state").unique().sort("query_id", "state")
    numbered = situations.with_row_index("situation")
    number = steps.join(numbered, on=["query_id", "state"], how="left", maintain_order="left")["situation"]
    return SessionLog(
        lists=replace(lists, query=number.to_numpy().astype(np.int64), weight=None),
        vocabulary=Vocabulary(pl.Series("query_id", np.arange(len(situations))), item_ids),
        situations=situations,
        session=session,
        step=step,
        moved=moved,
    )


def state_ids(steps: pl.DataFrame, state: State | None = None) -> pl.Series:
    """The state before each step, as text; several columns are joined by |."""
    if callable(state):
        return _by_function(steps, state)
    default = ("state",) if "state" in steps.columns else LAST_CLICK
    names = list(default if state is None else [state] if isinstance(state, str) else state)
    if not names:
        raise ConfigError("state: expected at least one column; got none.")
    if missing := [name for name in names if not isinstance(name, str) or name not in steps.columns]:
        raise ConfigError(
            f"state: expected columns of the log, or last_click, since_click, step and query_id; got {missing[0]!r}."
        )
    texts = [steps[name].cast(pl.String).fill_null("").alias(str(n)) for n, name in enumerate(names)]
    return pl.DataFrame(texts).select(pl.concat_str(pl.all(), separator="|"))["0"]


def _by_function(steps: pl.DataFrame, state: Callable[[pl.DataFrame], pl.Series]) -> pl.Series:
    """The states that a user's function gives; whatever it raises is one sentence."""
    try:
        found = state(steps)
        found = (found if isinstance(found, pl.Series) else id_series("state", found)).cast(pl.String)
    except Exception as error:
        raise JobError(f"the function of the state failed: {type(error).__name__}: {error}") from error
    if len(found) != len(steps):
        raise ConfigError(f"state: expected a state for each of {len(steps)} steps; got {len(found)}.")
    return found.fill_null("")


def _refuse_without_order(session: Whole, when: NDArray[np.float64], ids: pl.Series) -> None:
    if np.isnan(when).any():
        raise LogError(
            f"expected an order of the steps of a session, by a column step, or timestamp; session "
            f"{ids[int(np.isnan(when).argmax())]!r} has none."
        )
    same = (np.diff(session, prepend=-1) == 0) & (np.diff(when, prepend=np.nan) == 0)
    if same.any():
        raise LogError(
            f"expected the steps of a session at different steps or times; {int(same.sum())} come together with another "
            f"(first: session {ids[int(same.argmax())]!r}). Add a column step."
        )


def _numbered(session: NDArray[np.integer]) -> Whole:
    """Sessions in order by numbers from 0."""
    return np.cumsum(np.diff(session, prepend=-1) != 0) - 1


def _joined(parts: Sequence[FlatImpressions]) -> FlatImpressions:
    if len({part.propensity is None for part in parts}) > 1:
        raise LogError(MIXED)
    columns = {name: [getattr(part, name) for part in parts] for name in vars(parts[0])}
    joined: dict[str, Any] = {
        name: None if any(x is None for x in some) else np.concatenate(some) for name, some in columns.items()
    }
    return FlatImpressions(**joined)


def _together(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Columns that all parts have."""
    common = [name for name in parts[0].columns if all(name in part.columns for part in parts)]
    try:
        return pl.concat([part.select(common) for part in parts], how="vertical_relaxed")
    except pl.exceptions.PolarsError as error:
        raise LogError(f"expected columns of one type in all parts of the log; got others: {error}.") from error
