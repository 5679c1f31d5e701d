"""What a policy is worth over sessions, from clicks of the past. Arrays in, numbers out; no policies here.

    U_T   = E sum_{t < T} g^t sum_d rho_cr(d | x_t) R(x_t, d)
    U_hat = 1/N sum_i sum_t g^t W_{i,<t} sum_d c_{i,t}(d) rho_cr(d | x_t) / rho_0(d | x_t)
    W_<t  = prod_{s < t} w_s,   w_s = rho_cr(d_s | x_s) / rho_0(d_s | x_s)                      after a click on d_s
                                w_s = (1 - sum_d rho_cr R) / (1 - sum_d rho_0 R) = none(x_s)    after none

Unbiased where, given the state x, an item is clicked with the chance rho(d | x) R(x, d), at most one click of a step moves the
state, and what comes next depends on the state and on that click alone. What else the lists had on them then cancels: the ratio
of lists, which nobody can compute for two stages, is not needed, and costs variance where it can be computed.

The first step is the estimator of one list (`offpolicy.estimators`), to the bit. A session that has ended has clicks of 0 and
ratios of 1 from there on.

Beside exposures they need the ratio of steps without a click and a value function, which the log itself gives (`fitted`):

    none(x)   = (1 - p_cr(x)) / (1 - p_0(x)),   p_0: the click rate of a state, p_cr: the same by inverse propensities
    V_0 = 0,    V_k(x) = E_cr[c + g V_{k-1}(x')],   G_k(x) = E[V_k(x') | x, none]        k steps are left

Means over the visits of a state, in which a click counts rho_cr / rho_0; few visits are pulled to the mean of all states.
Cross-fitted: a session is never valued by what it was part of. The value function may be wrong: that costs noise and no bias,
and it takes the error of the ratio away to first order (`doubly_robust`).
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.sparse import means_by, sums_by
from tandemrank.logs.feedback import Feedback, exposure
from tandemrank.offpolicy import estimators
from tandemrank.offpolicy.estimators import Estimate, by_query, check_exposures, safe_ratio

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SessionTable:
    """Sessions as tables, a row for each session and a column for each step below the horizon.

    `log`: the sums of all these steps; its queries are the states. `state`: -1 after the end of a session. `moved`: the row of
    the log of the click that moves the state, -1 where none does. `clicks`: the session, the step and the row of the log of
    every click; `shown`: of everything that was shown, None where nobody asks for it.
    Shapes: state, moved [N, T]; clicks three of [n]; shown three of [m].
    """

    log: Feedback
    state: Whole
    moved: Whole
    clicks: tuple[Whole, Whole, Whole]
    shown: tuple[Whole, Whole, Whole] | None = None

    @property
    def starts(self) -> Floats:
        """How many sessions begin in each state.  Shapes: -> [states]."""
        return np.bincount(self.state[:, 0], minlength=self.log.Q).astype(np.float64)


@dataclass(frozen=True)
class SessionEstimate:
    """An estimate as a sum over the states (`by_state`), and its terms by session, whose mean it is up to rounding.

    Shapes: terms [N].
    """

    by_state: Estimate
    terms: Floats

    @property
    def value(self) -> float:
        """Clicks per session."""
        return self.by_state.value

    @property
    def standard_error(self) -> float:
        """Sessions are independent."""
        return float(self.terms.std() / np.sqrt(len(self.terms)))


def ratios(rho_cr: Floats, rho_0: Floats, table: SessionTable, none: Floats) -> Floats:
    """w of every step; `none` is that of a step without a click.  Shapes: rho_cr, rho_0 [P]; none [N, T] -> [N, T]."""
    check_exposures(rho_cr, rho_0, table.log)
    weight = safe_ratio(rho_cr, rho_0, table.log.shown)
    found = np.where(table.moved >= 0, weight[table.moved], none)
    return np.where(table.state >= 0, found, 1.0)


def past_weights(ratio: Floats) -> Floats:
    """W_<t: the product of the ratios before each step.  Shapes: [N, T] -> [N, T]."""
    found = np.ones_like(ratio)
    np.cumprod(ratio[:, :-1], axis=1, out=found[:, 1:])
    return found


def ips(rho_cr: Floats, rho_0: Floats, table: SessionTable, none: Floats, *, discount: float) -> SessionEstimate:
    """The estimator of the module's docstring.  Shapes: rho_cr, rho_0 [P]; none [N, T]."""
    return _ips(rho_cr, rho_0, table, _discounted(past_weights(ratios(rho_cr, rho_0, table, none)), discount))


def self_normalised(
    rho_cr: Floats, rho_0: Floats, table: SessionTable, none: Floats, *, discount: float
) -> SessionEstimate:
    """The weights of the past over their mean at each step, which is 1 in expectation: a little bias for less noise.

    An ended session keeps its weight.  Shapes: as in `ips`.
    """
    W = past_weights(ratios(rho_cr, rho_0, table, none))
    W = _discounted(W / np.maximum(W.mean(0), np.finfo(float).tiny), discount)
    found = _ips(rho_cr, rho_0, table, W)
    by_step = sums_by(table.clicks[1], _gains(rho_cr, rho_0, table, W), W.shape[1]) / len(W)
    share = np.divide(W, W.mean(0), out=np.zeros_like(W), where=W.mean(0) > 0)
    return replace(found, terms=found.terms - share @ by_step + by_step.sum())


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """What a model expects, to take noise away; it may be wrong, but must not know the sessions it is used on.

    `after_none`: what the rest of the session is worth after a step without a click. `slope`: what a click is worth, itself
    and what it leads to beyond `after_none`. `r_hat`: of the rows of the log, and `direct` = sum_d rho_cr r_hat of the states,
    where there is a reward model; the table then needs what was `shown`.
    Shapes: after_none, slope [N, T]; r_hat [P]; direct [states].
    """

    after_none: Floats
    slope: Floats
    r_hat: Floats | None = None
    direct: Floats | None = None


def doubly_robust(
    rho_cr: Floats,
    rho_0: Floats,
    table: SessionTable,
    none: Floats,
    model: Baseline,
    *,
    discount: float,
    theta: Floats,
) -> SessionEstimate:
    """IPS, and two terms of expectation 0 that take noise away:

        U_hat = 1/N sum_i sum_t g^t W_<t [ sum_d c(d) rho_cr / rho_0 + g G_t(x_t) (1 - w_t)
                 + A_t(x_t) (sum_d rho_cr(d) r_hat(x_t, d) - sum_{d shown} rho_cr / rho_0 theta_k r_hat(x_t, d)) ]

    G_t is the value after a step without a click, A_t what a click is worth beyond it. The first term also takes the error of
    `none` away, to first order: it enters by the difference of G_t to the true value. Of one step, where G is 0 and A is 1, it
    is the doubly robust estimator of one list.  Shapes: as in `ips`; theta [K].
    """
    log, (N, T) = table.log, table.state.shape
    ratio = ratios(rho_cr, rho_0, table, none)
    W = np.where(table.state >= 0, _discounted(past_weights(ratio), discount), 0.0)
    control = (discount * W * model.after_none * (1 - ratio)).sum(1)
    found = _ips(rho_cr, rho_0, table, W)
    numerator, terms = found.by_state.numerator, found.terms + control
    if table.shown is not None and model.r_hat is not None and model.direct is not None:
        (session, step, row), slope = table.shown, W * model.slope
        weight = safe_ratio(rho_cr, rho_0, log.shown)
        shown, clicks = (_by_row(table, W, *at) for W, at in ((slope, table.shown), (W, table.clicks)))
        steps = sums_by(table.state.ravel() + 1, slope.ravel(), log.Q + 1)[1:]
        seen = exposure(replace(log, shown=shown), theta)
        numerator = model.direct * steps + by_query(weight * (clicks - seen * model.r_hat), log)
        of_row = weight * theta[log.rank] * model.r_hat
        balance = sums_by(session * T + step, of_row[row], N * T).reshape(N, T)
        terms = terms + (slope * (model.direct[table.state] - balance)).sum(1)
    numerator = numerator + sums_by(table.state[:, 0], control, log.Q)
    return SessionEstimate(replace(found.by_state, numerator=numerator), terms)


def _discounted(W: Floats, discount: float) -> Floats:
    return W * np.power(float(discount), np.arange(W.shape[1]))


def _by_row(table: SessionTable, W: Floats, session: Whole, step: Whole, row: Whole) -> Floats:
    """Sums of W over what happened in each row of the log.  Shapes: W [N, T]; session, step, row [n] -> [P]."""
    return sums_by(row, W[session, step], len(table.log.query))


def _gains(rho_cr: Floats, rho_0: Floats, table: SessionTable, W: Floats) -> Floats:
    """What every click counts for.  Shapes: W [N, T] -> [n]."""
    session, step, row = table.clicks
    found: Floats = W[session, step] * safe_ratio(rho_cr, rho_0, table.log.shown)[row]
    return found


def _ips(rho_cr: Floats, rho_0: Floats, table: SessionTable, W: Floats) -> SessionEstimate:
    """The clicks of the log, each times its W.  Shapes: W [N, T]."""
    weighted = replace(table.log, clicks=_by_row(table, W, *table.clicks), impressions=table.starts)
    terms = sums_by(table.clicks[0], _gains(rho_cr, rho_0, table, W), len(table.state))
    return SessionEstimate(estimators.ips(rho_cr, rho_0, weighted), terms)


# --- the ratio of steps without a click, and a value function, from the log ------------------------------------------------

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
