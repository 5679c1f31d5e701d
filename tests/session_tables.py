"""Sessions of the tiny world as the tables of the room, by plain loops."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from session_enumeration import NONE, START, STATES, THETA, D, Policy, after, policy, relevance
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
NEW, OLD, R = policy(1), policy(2, spread=0.7), relevance(3)


def some_sessions(n: int, T: int) -> list[list[Step]]:
    """Drawn from the log's policy; some end early."""
    rng = np.random.default_rng(5)
    lists = {x: OLD.lists(x) for x in STATES}
    found = []
    for _ in range(n):
        x, steps = START, []
        for _ in range(T):
            y = list(lists[x])[rng.choice(len(lists[x]), p=list(lists[x].values()))]
            clicks = [THETA[k] * R[x][d] for k, d in enumerate(y)]
            e = [*y, NONE][rng.choice(3, p=[*clicks, 1 - sum(clicks)])]
            steps.append((x, y, e))
            x = after(x, e)
            if rng.random() < 0.2:
                break
        found.append(steps)
    return found
