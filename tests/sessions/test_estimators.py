"""The estimators over sessions against every session of a tiny world."""

from dataclasses import replace

import numpy as np
import pytest

import session_enumeration as exact
from session_enumeration import NONE, START, STATES
from session_tables import CURVE, NEW, OLD, R, exposures, none_ratios, some_sessions, table_of
from tandemrank.offpolicy import estimators as one_list
from tandemrank.sessions import estimators
from tandemrank.sessions.estimators import Baseline

NONE_RATIO = none_ratios(NEW, OLD, R)
RHO = np.array([NEW.exposure(x) for x in STATES])


def by_events(T: int) -> tuple[list[float], list[list[exact.Step]]]:
    """Every session by its events alone, each with some list that shows what was clicked: estimators of clicks see no more."""
    found = [(1.0, [], START)]
    for _ in range(T):
        found = [
            (p * chance, [*steps, (x, (e, (e + 1) % 5) if e != NONE else (0, 1), e)], exact.after(x, e))
            for p, steps, x in found
            for e, chance in exact.events(OLD.exposure(x), R[x]).items()
        ]
    return [p for p, _, _ in found], [steps for _, steps, _ in found]


@pytest.mark.parametrize("T", [1, 2, 4])
def test_ips_has_the_mean_and_the_variance_of_all_sessions(T: int) -> None:
    p, sessions = by_events(T)
    table = table_of(sessions, T)
    found = estimators.ips(
        exposures(NEW, table.log), exposures(OLD, table.log), table, NONE_RATIO[table.state], discount=0.9
    )
    mean = float(np.dot(p, found.terms))
    wanted, variance = exact.moments(NEW, OLD, R, T, 0.9)
    assert mean == pytest.approx(exact.value(RHO.tolist(), R, T, 0.9)[START], abs=1e-12)
    assert mean == pytest.approx(wanted, abs=1e-12)
    assert np.dot(p, found.terms**2) - mean**2 == pytest.approx(variance, rel=1e-12)
    assert found.value == pytest.approx(found.terms.mean(), rel=1e-12)


def test_eight_steps_by_the_ratios_of_every_state_and_event() -> None:
    """Mean and variance go backward over the steps by the room's own ratios."""
    sessions = [[(x, (e, (e + 1) % 5) if e != NONE else (0, 1), e)] for x in STATES for e in (*range(5), NONE)]
    table = table_of(sessions, 1)
    w = estimators.ratios(exposures(NEW, table.log), exposures(OLD, table.log), table, NONE_RATIO[table.state]).reshape(
        6, 6
    )
    m1, m2 = np.zeros(6), np.zeros(6)
    for _ in range(8):
        chance = np.array([list(exact.events(OLD.exposure(x), R[x]).values()) for x in STATES])
        after = np.array([[*range(5), x] for x in STATES])
        X = np.where(np.arange(6) < 5, w, 0.0)
        m1, m2 = (
            (chance * (X + w * m1[after])).sum(1),
            (chance * (X**2 + 2 * X * w * m1[after] + w**2 * m2[after])).sum(1),
        )
    wanted, variance = exact.moments(NEW, OLD, R, 8, 1.0)
    assert m1[START] == pytest.approx(exact.value(RHO.tolist(), R, 8, 1.0)[START], abs=1e-12)
    assert m1[START] == pytest.approx(wanted, abs=1e-12)
    assert m2[START] - m1[START] ** 2 == pytest.approx(variance, rel=1e-12)


def test_ratios_of_lists_have_far_more_variance() -> None:
    """One stage, so that the chance of a list is known at all."""
    new, old = (replace(one, K2=5) for one in (NEW, OLD))
    ratio = {}
    for T in (2, 4, 8):
        (mean, ours), (same, theirs) = (exact.moments(new, old, R, T, 1.0, by_lists=lists) for lists in (False, True))
        assert mean == pytest.approx(same, rel=1e-12)
        ratio[T] = theirs / ours
    assert ratio[2] > 1
    assert ratio[4] >= 5
    assert ratio[8] >= 50


def random_baseline(table: estimators.SessionTable, seed: int, *, reward: bool = True) -> Baseline:
    """Any numbers: what they are must not matter. They depend on the state and the step alone."""
    rng = np.random.default_rng(seed)
    T = table.state.shape[1]
    r_hat = rng.random((6, 5)) / 2
    by_state = rng.random((2, T, 6))
    after_none, slope = (one[np.arange(T), table.state] for one in by_state)
    return Baseline(
        after_none=np.where(np.arange(T) < T - 1, after_none, 0.0),
        slope=slope,
        r_hat=r_hat[table.log.query, table.log.item] if reward else None,
        direct=(RHO * r_hat).sum(1) if reward else None,
    )


@pytest.mark.parametrize("reward", [True, False])
def test_doubly_robust_is_unbiased_whatever_the_model_expects(reward: bool) -> None:
    """Over all lists and clicks of two steps."""
    p, sessions = zip(*exact.sessions(OLD, R, 2), strict=True)
    table = table_of(sessions, 2)
    rho_cr, rho_0 = exposures(NEW, table.log), exposures(OLD, table.log)
    model = random_baseline(table, 4, reward=reward)
    found = estimators.doubly_robust(rho_cr, rho_0, table, NONE_RATIO[table.state], model, discount=0.8, theta=CURVE)
    plain = estimators.ips(rho_cr, rho_0, table, NONE_RATIO[table.state], discount=0.8)
    assert sum(p) == pytest.approx(1, abs=1e-12)
    assert np.dot(p, found.terms) == pytest.approx(exact.value(RHO.tolist(), R, 2, 0.8)[START], abs=1e-12)
    assert np.dot(p, plain.terms) == pytest.approx(exact.value(RHO.tolist(), R, 2, 0.8)[START], abs=1e-12)
    assert np.abs(found.terms - plain.terms).max() > 0.01
    assert found.value == pytest.approx(found.terms.mean(), rel=1e-12)


def test_doubly_robust_forgives_a_wrong_ratio_of_steps_without_a_click() -> None:
    """Where the value after none is right: the ratio of the first of two steps then does not matter at all."""
    p, sessions = zip(*exact.sessions(OLD, R, 2), strict=True)
    table = table_of(sessions, 2)
    rho_cr, rho_0 = exposures(NEW, table.log), exposures(OLD, table.log)
    true = np.array(exact.value(RHO.tolist(), R, 1, 0.8))  # of the last step
    after_none = np.stack([true[table.state[:, 0]], np.zeros(len(p))], 1)
    model = Baseline(after_none=after_none, slope=np.ones_like(after_none))
    wrong = NONE_RATIO * np.linspace(0.5, 1.5, 6)
    found = estimators.doubly_robust(rho_cr, rho_0, table, wrong[table.state], model, discount=0.8, theta=CURVE)
    plain = estimators.ips(rho_cr, rho_0, table, wrong[table.state], discount=0.8)
    wanted = exact.value(RHO.tolist(), R, 2, 0.8)[START]
    assert np.dot(p, found.terms) == pytest.approx(wanted, abs=1e-12)
    assert abs(np.dot(p, plain.terms) - wanted) > 0.01


def weights_by_hand(sessions: list[list[exact.Step]], T: int) -> list[list[tuple[float, float, float]]]:
    """Of every step: W_<t, w_t and the weighted clicks."""
    w = {x: exact.ratios(NEW, OLD, R, x) for x in STATES}
    found = []
    for steps in sessions:
        past, own = 1.0, []
        for t in range(T):
            x, _, e = steps[t] if t < len(steps) else (START, (), NONE)
            ratio = w[x][e] if t < len(steps) else 1.0
            own.append((past, ratio, ratio if e != NONE else 0.0))
            past *= ratio
        found.append(own)
    return found


def test_self_normalised_by_hand() -> None:
    sessions, g, T = some_sessions(40, 3), 0.9, 3
    table = table_of(sessions, T)
    rho_cr, rho_0 = exposures(NEW, table.log), exposures(OLD, table.log)
    found = estimators.self_normalised(rho_cr, rho_0, table, NONE_RATIO[table.state], discount=g)
    by_hand = weights_by_hand(sessions, T)
    mean = [sum(own[t][0] for own in by_hand) / len(sessions) for t in range(T)]
    step = [sum(own[t][0] * own[t][2] for own in by_hand) / len(sessions) / mean[t] for t in range(T)]
    total = sum(g**t * step[t] for t in range(T))
    assert found.value == pytest.approx(total, rel=1e-12)
    assert found.terms.mean() == pytest.approx(total, rel=1e-12)
    # The residuals of each step's ratio, as of any self-normalised estimator.
    residuals = [sum(g**t * own[t][0] * (own[t][2] - step[t]) / mean[t] for t in range(T)) for own in by_hand]
    error = sum(r * r for r in residuals) ** 0.5 / len(sessions)
    assert found.standard_error == pytest.approx(error, rel=1e-12)


def test_doubly_robust_by_hand() -> None:
    sessions, g, T = some_sessions(30, 3), 0.9, 3
    table = table_of(sessions, T)
    rho_cr, rho_0 = exposures(NEW, table.log), exposures(OLD, table.log)
    model = random_baseline(table, 8)
    found = estimators.doubly_robust(rho_cr, rho_0, table, NONE_RATIO[table.state], model, discount=g, theta=CURVE)
    r_hat = np.random.default_rng(8).random((6, 5)) / 2
    terms = []
    for i, (steps, own) in enumerate(zip(sessions, weights_by_hand(sessions, T), strict=True)):
        terms.append(0.0)
        for t, (x, y, _) in enumerate(steps):
            past, ratio, clicks = own[t]
            ours, theirs = NEW.exposure(x), OLD.exposure(x)
            direct = sum(ours[d] * r_hat[x, d] for d in range(5))
            balance = sum(ours[d] / theirs[d] * exact.THETA[k] * r_hat[x, d] for k, d in enumerate(y))
            control = g * model.after_none[i, t] * (1 - ratio) + model.slope[i, t] * (direct - balance)
            terms[-1] += g**t * past * (clicks + control)
    np.testing.assert_allclose(found.terms, terms, rtol=1e-12, atol=1e-12)
    assert found.value == pytest.approx(np.mean(terms), rel=1e-12)


@pytest.mark.parametrize(("T", "discount"), [(1, 0.7), (3, 0.0)])
def test_one_step_and_no_future_are_the_estimators_of_one_list_to_the_bit(T: int, discount: float) -> None:
    sessions = some_sessions(200, T)
    first = table_of([steps[:1] for steps in sessions], 1)
    table = first if T == 1 else table_of([steps[:1] for steps in sessions], T)
    rho_cr, rho_0 = exposures(NEW, table.log), exposures(OLD, table.log)
    wanted = one_list.ips(rho_cr, rho_0, first.log)
    for estimator in (estimators.ips, estimators.self_normalised):
        found = estimator(rho_cr, rho_0, table, NONE_RATIO[table.state], discount=discount)
        assert found.value == wanted.value
        np.testing.assert_array_equal(found.by_state.numerator, wanted.numerator)
    model = random_baseline(table, 6)
    model = replace(model, slope=np.ones_like(model.slope), after_none=np.zeros_like(model.after_none))
    robust = estimators.doubly_robust(
        rho_cr, rho_0, table, NONE_RATIO[table.state], model, discount=discount, theta=CURVE
    )
    assert model.r_hat is not None
    assert model.direct is not None
    wanted = one_list.doubly_robust(rho_cr, rho_0, first.log, theta=CURVE, r_hat=model.r_hat, direct=model.direct)
    assert robust.value == wanted.value


def test_on_policy_every_weight_is_one_and_the_value_is_the_mean() -> None:
    sessions = some_sessions(50, 4)
    table = table_of(sessions, 4)
    rho = exposures(OLD, table.log)
    none = none_ratios(OLD, OLD, R)[table.state]
    assert (estimators.ratios(rho, rho, table, none) == 1).all()
    clicks = np.mean([sum(e != NONE for _, _, e in steps) for steps in sessions])
    for estimator in (estimators.ips, estimators.self_normalised):
        assert estimator(rho, rho, table, none, discount=1.0).value == pytest.approx(clicks, rel=1e-12)
    model = random_baseline(table, 7, reward=False)
    found = estimators.doubly_robust(rho, rho, table, none, model, discount=1.0, theta=CURVE)
    assert found.value == pytest.approx(clicks, rel=1e-12)


def test_sessions_without_a_click_are_worth_nothing() -> None:
    table = table_of([[(START, (0, 1), NONE)] * 2] * 3, 2)
    found = estimators.ips(
        exposures(NEW, table.log), exposures(OLD, table.log), table, NONE_RATIO[table.state], discount=1.0
    )
    assert (found.value, found.standard_error) == (0, 0)


SAME = np.arange(6)  # every situation is a state of its own


def test_on_policy_every_ratio_is_one() -> None:
    table = table_of(some_sessions(300, 3), 3)
    rho = exposures(OLD, table.log)
    none, _ = estimators.fitted(table, SAME, rho, rho, discount=1.0)
    np.testing.assert_allclose(none, 1.0, rtol=1e-12)


def test_a_session_is_not_valued_by_itself() -> None:
    """Changing the clicks of one fold changes nothing of that fold, and something of the other."""
    sessions = some_sessions(400, 3)
    blind = [[(x, y, NONE) for x, y, _ in steps] if i % 2 else steps for i, steps in enumerate(sessions)]
    found = []
    for some in (sessions, blind):
        table = table_of(some, 3)
        rho_cr, rho_0 = exposures(NEW, table.log), exposures(OLD, table.log)
        found.append(estimators.fitted(table, SAME, rho_cr, rho_0, discount=0.9))
    (none, model), (other, changed) = found
    np.testing.assert_array_equal(none[1::2], other[1::2])
    np.testing.assert_array_equal(model.after_none[1::2], changed.after_none[1::2])
    assert np.abs(none[::2] - other[::2]).max() > 0.01
    assert np.abs(model.after_none[::2] - changed.after_none[::2]).max() > 0.01


def test_a_long_log_finds_ratios_and_values() -> None:
    """Every session of two steps, as often as it is likely: up to the prior, the means are exact."""
    p, sessions = zip(*exact.sessions(OLD, R, 2), strict=True)
    times = np.random.default_rng(0).multinomial(40_000, np.array(p) / sum(p))
    drawn = [sessions[i] for i in np.random.default_rng(1).permutation(np.repeat(np.arange(len(p)), times))]
    table = table_of(drawn, 2)
    rho_cr, rho_0 = exposures(NEW, table.log), exposures(OLD, table.log)
    none, model = estimators.fitted(table, SAME, rho_cr, rho_0, discount=0.9)
    wanted = none_ratios(NEW, OLD, R)[START]
    assert none[:, 0] == pytest.approx(wanted, abs=0.03)
    V = np.array(exact.value([NEW.exposure(x) for x in STATES], R, 1, 0.9))
    assert model.after_none[:, 0] == pytest.approx(V[START], abs=0.03)
    ours = [NEW.exposure(START)[d] * R[START][d] for d in range(5)]
    after = sum(ours[d] * V[d] for d in range(5)) / sum(ours)
    assert model.slope[:, 0] == pytest.approx(1 + 0.9 * (after - V[START]), abs=0.04)
    assert (model.after_none[:, 1] == 0).all()
    assert (model.slope[:, 1] == 1).all()
