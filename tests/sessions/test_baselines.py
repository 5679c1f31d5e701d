"""What the log says of steps without a click, and of what comes after them."""

import numpy as np
import pytest

import session_enumeration as exact
from session_enumeration import NONE, START, STATES
from session_tables import NEW, OLD, R, exposures, none_ratios, some_sessions, table_of
from tandemrank.sessions import baselines

SAME = np.arange(6)  # every situation is a state of its own


def test_on_policy_every_ratio_is_one() -> None:
    table = table_of(some_sessions(300, 3), 3)
    rho = exposures(OLD, table.log)
    none, _ = baselines.fitted(table, SAME, rho, rho, discount=1.0)
    np.testing.assert_allclose(none, 1.0, rtol=1e-12)


def test_a_session_is_not_valued_by_itself() -> None:
    """Changing the clicks of one fold changes nothing of that fold, and something of the other."""
    sessions = some_sessions(400, 3)
    blind = [[(x, y, NONE) for x, y, _ in steps] if i % 2 else steps for i, steps in enumerate(sessions)]
    found = []
    for some in (sessions, blind):
        table = table_of(some, 3)
        rho_cr, rho_0 = exposures(NEW, table.log), exposures(OLD, table.log)
        found.append(baselines.fitted(table, SAME, rho_cr, rho_0, discount=0.9))
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
    none, model = baselines.fitted(table, SAME, rho_cr, rho_0, discount=0.9)
    wanted = none_ratios(NEW, OLD, R)[START]
    assert none[:, 0] == pytest.approx(wanted, abs=0.03)
    V = np.array(exact.value([NEW.exposure(x) for x in STATES], R, 1, 0.9))
    assert model.after_none[:, 0] == pytest.approx(V[START], abs=0.03)
    ours = [NEW.exposure(START)[d] * R[START][d] for d in range(5)]
    after = sum(ours[d] * V[d] for d in range(5)) / sum(ours)
    assert model.slope[:, 0] == pytest.approx(1 + 0.9 * (after - V[START]), abs=0.04)
    assert (model.after_none[:, 1] == 0).all()
    assert (model.slope[:, 1] == 1).all()
