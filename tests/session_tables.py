"""Sessions of the tiny world as the tables of the room, by plain loops."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from session_enumeration import NONE, STATES, THETA, D, Policy
from tandemrank._base.ids import Vocabulary
from tandemrank.logs.counting import from_impressions
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Impressions
from tandemrank.sessions.estimators import SessionTable

Step = tuple[int, tuple[int, ...], int]
IDS = Vocabulary(pl.Series([f"x{x}" for x in STATES]), pl.Series([f"d{d}" for d in range(D)]))


def table_of(sessions: Sequence[Sequence[Step]], T: int) -> SessionTable:
    """Sessions of steps (state, list, event), with all that was shown."""
    flat = [step for one in sessions for step in one]
    items = np.array([y for _, y, _ in flat], np.int32)
    clicks = np.array([[d == e for d in y] for _, y, e in flat], np.uint8)
    log = from_impressions([Impressions(np.array([x for x, _, _ in flat], np.int32), items, clicks)], IDS)
    place = {key: n for n, key in enumerate(zip(log.query.tolist(), log.item.tolist(), log.rank.tolist(), strict=True))}
    state, moved = np.full((len(sessions), T), -1), np.full((len(sessions), T), -1)
    clicked, shown = [], []
    for i, one in enumerate(sessions):
        for t, (x, y, e) in enumerate(one):
            state[i, t] = x
            shown += [(i, t, place[x, d, k]) for k, d in enumerate(y)]
            if e != NONE:
                moved[i, t] = place[x, e, y.index(e)]
                clicked.append((i, t, moved[i, t]))
    columns = [tuple(np.array(some, np.int64).reshape(-1, 3).T) for some in (clicked, shown)]
    return SessionTable(log=log, state=state, moved=moved, clicks=columns[0], shown=columns[1])  # type: ignore[arg-type]


def exposures(policy: Policy, log: Feedback) -> np.ndarray:
    """Of the rows of a log."""
    rho = np.array([policy.exposure(x) for x in STATES])
    return rho[log.query, log.item]


def none_ratios(new: Policy, old: Policy, R: Sequence[Sequence[float]]) -> np.ndarray:
    """(1 - sum rho_cr R) / (1 - sum rho_0 R) of every state."""
    ours, theirs = (np.array([p.exposure(x) for x in STATES]) for p in (new, old))
    return (1 - (ours * R).sum(1)) / (1 - (theirs * R).sum(1))


CURVE = np.array(THETA)
