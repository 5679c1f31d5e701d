"""What clicks lead to: values and gradients against a tiny world, and means of a log by hand."""

from dataclasses import replace

import numpy as np
import pytest

import session_enumeration as exact
from enumeration import utility
from session_enumeration import NONE, START, STATES, THETA
from session_tables import CURVE
from tandemrank.policies.memory import Memory, no_memory
from tandemrank.sessions import foresight
from tandemrank.sessions.foresight import Means, Transitions, backward, best_lists, foresight_of

POLICY, OLD, R = exact.policy(1), exact.policy(2), np.array(exact.relevance(3))
RHO = np.array([POLICY.exposure(x) for x in STATES])


class Known:
    """Where clicks lead to in the tiny world: to the clicked item; a step without one stays."""

    X, D = 6, 5

    def none(self, V: np.ndarray) -> np.ndarray:
        return V[:-1]

    def click(self, V: np.ndarray) -> tuple[np.ndarray, object]:
        return V[:5], no_memory(6, 5)

    def pooled(self, V: np.ndarray) -> np.ndarray:
        return V


def of_policy(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """What the policy's own lists are worth."""
    return (RHO[x] * weights).sum(1)


def weights_of_steps(T: int, g: float) -> np.ndarray:
    """sum_t g^t P_t(x) R(x, d) A_t(x, d), P_t by the policy itself."""
    V = backward(Known(), lambda x: R[x], of_policy, T, g)  # type: ignore[arg-type]
    P, total = np.eye(6)[START], np.zeros((6, 5))
    for t in range(T):
        A = foresight_of(Known(), V[t + 1], g)[0].matrix(np.arange(6))  # type: ignore[arg-type]
        total += g**t * P[:, None] * R * A
        after = np.zeros(6)
        for x in STATES:
            for e, p in exact.events(RHO[x], R[x]).items():
                after[exact.after(x, e)] += P[x] * p
        P = after
    return total


@pytest.mark.parametrize(("T", "g"), [(1, 0.9), (2, 1.0), (8, 0.9)])
def test_values_go_backward_as_dynamic_programming_does(T: int, g: float) -> None:
    V = backward(Known(), lambda x: R[x], of_policy, T, g)  # type: ignore[arg-type]
    np.testing.assert_allclose(V[0, :-1], exact.value(RHO.tolist(), R, T, g), rtol=1e-13)
    assert (V[T] == 0).all()
    assert (V[:, -1] == 0).all()


@pytest.mark.parametrize(("T", "g"), [(1, 0.9), (3, 0.8), (8, 1.0)])
def test_the_gradient_of_a_session_is_that_of_lists_with_other_weights(T: int, g: float) -> None:
    """Only the weights change: the gradient of one list's utility by them is that of the value of the session."""
    w = weights_of_steps(T, g)
    wanted = exact.gradient(POLICY, R.tolist(), T, g)
    for x in STATES:
        _, by_s, by_r = utility(POLICY.s[x], POLICY.r[x], w[x], THETA, exact.K2)
        np.testing.assert_allclose(by_s, wanted[0][x], atol=1e-12)
        np.testing.assert_allclose(by_r, wanted[1][x], atol=1e-12)


def test_clicks_of_a_log_have_these_weights_in_expectation() -> None:
    """sum_t g^t W_<t c(d) / rho_0(d) A_t(x, d), over all sessions of a log of another policy."""
    T, g = 3, 0.8
    V = backward(Known(), lambda x: R[x], of_policy, T, g)  # type: ignore[arg-type]
    A = [foresight_of(Known(), V[t + 1], g)[0].matrix(np.arange(6)) for t in range(T)]  # type: ignore[arg-type]
    found, sessions = np.zeros((6, 5)), [(1.0, 1.0, START)]
    for t in range(T):
        later = []
        for p, W, x in sessions:
            ratio = exact.ratios(POLICY, OLD, R.tolist(), x)
            for e, chance in exact.events(OLD.exposure(x), R[x]).items():
                if e != NONE:
                    found[x, e] += p * chance * g**t * W / OLD.exposure(x)[e] * A[t][x, e]
                later.append((p * chance, W * ratio[e], exact.after(x, e)))
        sessions = later
    np.testing.assert_allclose(found, weights_of_steps(T, g), atol=1e-12)


def test_the_best_list_has_the_highest_weights_on_top() -> None:
    weights = np.array([[0.1, 0.5, 0.3, 0.2, 0.4]])
    assert best_lists(CURVE)(np.array([0]), weights)[0] == pytest.approx(0.5 + 0.5 * 0.4)
    assert best_lists(np.ones(7))(np.array([0]), weights)[0] == pytest.approx(1.5)
    V = backward(Known(), lambda x: R[x], best_lists(CURVE), 4, 0.9)  # type: ignore[arg-type]
    assert (V[0, :-1] >= np.array(exact.value(RHO.tolist(), R, 4, 0.9))).all()


SOME = Transitions(
    state=np.array([0, 0, 0, 1, 1, 2]),
    item=np.array([2, 2, -1, 2, -1, 0]),
    after=np.array([1, 1, 0, 3, 3, 3]),  # 3 is the end
    query_of=np.array([0, 0, 1]),
    D=3,
)


def by_pair(pairs: Memory) -> dict[tuple[int, int], float]:
    return dict(zip(zip(pairs.query.tolist(), pairs.item.tolist(), strict=True), pairs.value.tolist(), strict=True))


def test_means_of_a_log_by_hand() -> None:
    means, V = Means(SOME), np.array([4.0, 2.0, 6.0, 0.0])
    after, pairs = means.click(V)
    whole = (2 + 2 + 0 + 0) / 4
    by_item = [(0 + whole) / 2, whole, (4 + whole) / 4]
    assert after == pytest.approx(by_item)
    of_query = (4 + by_item[2]) / 4  # item 2 was clicked three times by query 0
    wanted = {(0, 2): (4 + of_query) / 3, (1, 2): (0 + of_query) / 2}
    wanted[2, 0] = (0 + (0 + by_item[0]) / 2) / 2
    assert by_pair(pairs) == pytest.approx(wanted)
    none = (4 + 0) / 2
    assert means.none(V) == pytest.approx([(4 + 10 * none) / 11, (0 + 10 * none) / 11, none])


def test_of_too_many_pairs_those_that_a_state_has_clicked_are_remembered(monkeypatch) -> None:
    V, some = np.array([4.0, 2.0, 6.0, 0.0]), replace(SOME, item=np.array([2, 2, -1, -1, -1, 0]))
    every = by_pair(Means(some).click(V)[1])
    monkeypatch.setattr(foresight, "MOST_PAIRS", 2)
    assert (1, 2) in every  # the query has clicked it in another state
    assert by_pair(Means(some).click(V)[1]) == {pair: every[pair] for pair in [(0, 2), (2, 0)]}


def test_a_state_with_few_visits_is_worth_what_those_of_its_query_are() -> None:
    means = Means(SOME)
    mean = (3 * 4 + 2 * 2) / 5
    m = foresight.VISITS
    found = means.pooled(np.array([4.0, 2.0, 6.0]))
    assert found == pytest.approx([(12 + m * mean) / (3 + m), (4 + m * mean) / (2 + m), 6.0])
