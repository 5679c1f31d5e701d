"""Safe objectives of two-stage pairs against complete enumeration: the gradient by both stages' scores, and identities."""

import numpy as np
import pytest

import enumeration
from safe_cases import CASES, CLICKED, DELTA, IMPRESSIONS, K2, RHO_0, SIGNED, THETA, N, R, S, Z, exposures, moved, slope
from tandemrank.errors import ConfigError, InputError
from tandemrank.training import safe


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_of_a_safe_objective_is_that_of_changed_weights(case: str) -> None:
    """For both stages: dS/ds and dS/dr by enumeration, against the two-stage gradient with the weights w' held fixed."""
    objective, weigh, w = CASES[case]
    rho = exposures(S, R)
    found = weigh(w, rho)
    assert found.value.sum() == pytest.approx(objective(rho, w), rel=1e-12)
    assert not np.allclose(found.weights, w)  # caution changes something here
    for q in range(2):
        _, by_s, by_r = enumeration.utility(S[q], R[q], found.weights[q], THETA, K2)
        for d in range(5):
            exact_s = slope(lambda h, q=q, d=d: objective(exposures(moved(S, q, d, h), R), w))
            exact_r = slope(lambda h, q=q, d=d: objective(exposures(S, moved(R, q, d, h)), w))
            assert by_s[d] == pytest.approx(exact_s, abs=1e-9)
            assert by_r[d] == pytest.approx(exact_r, abs=1e-9)


def test_the_case_of_prpo_has_weights_on_both_sides_of_the_clip() -> None:
    rho = exposures(S, R)
    kept = safe.prpo(SIGNED, rho, RHO_0, eps=0.7).weights != 0
    for sign in (SIGNED > 0, SIGNED < 0):
        assert set(kept[sign]) == {True, False}


def test_without_caution_the_weights_are_as_they_were() -> None:
    rho = exposures(S, R)
    for found in (
        safe.prpo(SIGNED, rho, RHO_0, eps=0.0),
        safe.smoothing(SIGNED, rho, RHO_0, L=np.inf),
        safe.exposure(SIGNED, rho, RHO_0, IMPRESSIONS, Z=Z, N=N, delta=1 - 1e-15),
    ):
        assert found.weights == pytest.approx(SIGNED, abs=1e-6)
        assert found.value == pytest.approx((SIGNED * rho).sum(1), abs=1e-6)


def test_no_click_counts_for_more_and_no_value_is_above_that_of_ips() -> None:
    rho = exposures(S, R)
    for case, (_, weigh, w) in CASES.items():
        found = weigh(w, rho)
        assert (np.abs(found.weights[w > 0]) <= np.abs(w[w > 0]) + 1e-12).all() or case.startswith("exposure")
        assert (found.weights <= w + 1e-12).all() or case == "prpo"
        assert (found.value <= (w * rho).sum(1) + 1e-12).all()


def test_at_the_logger_with_eps_one_nothing_moves_outward() -> None:
    """eps = 1: a rewarded document gets nothing for more exposure than the logger gave, a punished one for less."""
    found = safe.prpo(SIGNED, RHO_0, RHO_0, eps=1.0)
    assert (found.weights == 0).all()


def test_the_divergence_is_one_on_policy_and_minibatches_add_up() -> None:
    rho = exposures(S, R)
    assert safe.divergence(RHO_0, RHO_0, IMPRESSIONS, Z) / N == pytest.approx(1)
    whole = safe.exposure(CLICKED, rho, RHO_0, IMPRESSIONS, Z=Z, N=N, delta=DELTA)
    total = safe.divergence(rho, RHO_0, IMPRESSIONS, Z)
    for q in range(2):
        row = slice(q, q + 1)
        part = safe.exposure(CLICKED[row], rho[row], RHO_0[row], IMPRESSIONS[row], Z=Z, N=N, delta=DELTA, total=total)
        assert part.weights == pytest.approx(whole.weights[row], rel=1e-12)
        assert part.value == pytest.approx(whole.value[row], rel=1e-12)


def test_the_bound_that_is_trained_is_the_bound_that_is_printed() -> None:
    """A larger safe value is a larger lower bound: one is an increasing function of the other."""
    rng = np.random.default_rng(0)
    found, wanted = [], []
    for _ in range(20):
        rho = rng.dirichlet(np.ones(5), 2) * Z
        terms = (CLICKED * rho).sum(1) * 2 / IMPRESSIONS.sum()
        found.append(safe.bound(CLICKED, rho, L=2.0, queries=2, N=N).value.sum())
        wanted.append(np.log1p(terms / 2.0).mean())  # logarithmic smoothing (Sakhi et al. 2024)
    assert (np.argsort(found) == np.argsort(wanted)).all()


def test_edges_documents_that_the_logger_never_shows() -> None:
    w, rho, rho_0 = np.array([[1.0, -1.0, 0.0]]), np.array([[0.5, 0.5, 0.5]]), np.array([[0.0, 0.0, 1.0]])
    with pytest.raises(InputError, match="2 documents are shown that the logger never shows"):
        safe.exposure(w, rho, rho_0, np.ones(1), Z=Z, N=1.0, delta=0.1)
    assert safe.prpo(w, rho, rho_0, eps=0.5).weights.tolist() == [[0.0, -1.0, 0.0]]
    assert safe.smoothing(w, rho, rho_0, L=1.0).weights.tolist() == [[0.0, -1.0, 0.0]]
    nothing = safe.exposure(0 * w, 0 * rho, rho_0, np.ones(1), Z=Z, N=1.0, delta=0.1)
    assert nothing.value.tolist() == [0.0]


def test_what_is_refused() -> None:
    one = np.ones((1, 2))
    with pytest.raises(ConfigError, match="eps must be from 0"):
        safe.prpo(one, one, one, eps=1.5)
    with pytest.raises(ConfigError, match="L must be above 0"):
        safe.smoothing(one, one, one, L=0.0)
    with pytest.raises(ConfigError, match="0 < delta < 1"):
        safe.exposure(one, one, one, np.ones(1), Z=1.0, N=1.0, delta=1.0)
    with pytest.raises(InputError, match="one shape"):
        safe.prpo(one, np.ones((1, 3)), one, eps=0.5)
    with pytest.raises(InputError, match="rho_0 must be finite and not negative"):
        safe.prpo(one, one, -one, eps=0.5)
    with pytest.raises(InputError, match="not negative"):
        safe.bound(-one, one, L=1.0, queries=1, N=1.0)
