"""What the log itself says that the estimators need beside exposures: the ratio of steps without a click, and a value function.

    none(x)   = (1 - p_cr(x)) / (1 - p_0(x)),   p_0: the click rate of a state, p_cr: the same by inverse propensities
    V_0 = 0,    V_k(x) = E_cr[c + g V_{k-1}(x')],   G_k(x) = E[V_k(x') | x, none]        k steps are left

Means over the visits of a state, in which a click counts rho_cr / rho_0; few visits are pulled to the mean of all states.
Cross-fitted: a session is never valued by what it was part of. The value function may be wrong: that costs noise and no bias.
It takes the error of the ratio away to first order (`estimators.doubly_robust`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.sparse import means_by
from tandemrank.offpolicy.estimators import Floats, safe_ratio
from tandemrank.sessions.estimators import Baseline, SessionTable

Whole = NDArray[np.int64]
FOLDS = 2
PRIOR = 10.0  # visits of a state for which the mean of all states counts
MOST_CLICKED = 0.98  # of a chance to click: the ratio divides by the rest
TINY = 1e-12


@dataclass(frozen=True)
class _Visits:
    """Every step that was shown: its session, step, situation, state, whether it had a click, and the weight of that.

    `after`: the next state, the number of states where the session ended; `known`: whether that is below the horizon.
    Shapes: [n] each.
    """

    session: Whole
    step: Whole
    situation: Whole
    state: Whole
    click: NDArray[np.bool_]
    weight: Floats
    after: Whole
    known: NDArray[np.bool_]


def fitted(
    table: SessionTable, state_of: Whole, rho_cr: Floats, rho_0: Floats, *, discount: float
) -> tuple[Floats, Baseline]:
    """The ratios of steps without a click, and the value function; sessions are split by their number.

    Shapes: state_of [situations]; rho_cr, rho_0 [P] -> [N, T].
    """
    visits = _visits(table, state_of, safe_ratio(rho_cr, rho_0, table.log.shown))
    N, T = table.state.shape
    none, after_none, slope = np.ones((N, T)), np.zeros((N, T)), np.ones((N, T))
    for fold in range(FOLDS):
        others, own = (visits.session % FOLDS != fold), (visits.session % FOLDS == fold)
        at = visits.session[own], visits.step[own]
        ratio = _none(visits, others, state_of)[visits.situation]
        none[at] = ratio[own]
        if T > 1:
            ratio = np.where(visits.click, visits.weight, ratio)
            G, A = _values(visits, others, ratio, int(state_of.max()) + 1, T, discount)
            left = T - 1 - visits.step[own]
            after_none[at], slope[at] = G[left, visits.state[own]], A[left, visits.state[own]]
    return none, Baseline(after_none=after_none, slope=slope)


def _visits(table: SessionTable, state_of: Whole, weight: Floats) -> _Visits:
    session, step = np.nonzero(table.state >= 0)
    situation, moved = table.state[session, step], table.moved[session, step]
    known = step < table.state.shape[1] - 1
    after = table.state[session, np.where(known, step + 1, step)]
    click = moved >= 0
    return _Visits(
        session=session,
        step=step,
        situation=situation,
        state=state_of[situation],
        click=click,
        weight=np.where(click, weight[moved], 0.0),
        after=np.where(after >= 0, state_of[after], state_of.max() + 1),
        known=known,
    )


def _none(visits: _Visits, chosen: NDArray[np.bool_], state_of: Whole) -> Floats:
    """The ratio of every situation: its own visits, with the mean of its state, with that of all.  Shapes: -> [situations]."""
    p, ones = [], np.ones(int(chosen.sum()))
    for value in (visits.weight[chosen], visits.click[chosen].astype(np.float64)):
        by_state = _mean_by_state(visits.state[chosen], value, ones, int(state_of.max()) + 1)
        own = means_by(visits.situation[chosen], value, by_state[state_of], PRIOR)
        p.append(np.clip(own, 0.0, MOST_CLICKED))
    found: Floats = (1 - p[0]) / (1 - p[1])
    return found


def _values(
    visits: _Visits, chosen: NDArray[np.bool_], ratio: Floats, states: int, T: int, discount: float
) -> tuple[Floats, Floats]:
    """G and A = 1 + g (E_cr[V | click] - G) of every state, with 0 .. T - 1 steps left.

    Shapes: ratio [n], w of every visit -> [T, states] each.
    """
    now = _mean_by_state(visits.state[chosen], visits.weight[chosen], ratio[chosen], states)
    known = chosen & visits.known
    x, after, click, ratio = visits.state[known], visits.after[known], visits.click[known], ratio[known]
    V, G, A = np.zeros(states + 1), np.zeros((T, states)), np.ones((T, states))
    for left in range(1, T):
        V[:-1] = now + discount * _mean_by_state(x, ratio * V[after], ratio, states)
        clicked, G[left] = (
            _mean_by_state(x[some], ratio[some] * V[after[some]], ratio[some], states) for some in (click, ~click)
        )
        A[left] = 1 + discount * (clicked - G[left])
    return G, A


def _mean_by_state(x: Whole, total: Floats, weight: Floats, states: int) -> Floats:
    """The mean of every state, near that of all.  Shapes: [m] each -> [states]."""
    return means_by(x, total, np.full(states, total.sum() / max(weight.sum(), TINY)), PRIOR, weight)
