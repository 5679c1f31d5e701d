"""Regressions on features: leaving one row out by hand, columns that say nothing, and beliefs that lean on them."""

import numpy as np
import pytest

from tandemrank.beliefs import regression
from tandemrank.beliefs.regression import Ridge, Suggestion


def left_out(x: np.ndarray, y: np.ndarray, strength: float) -> float:
    """The squared error of one column, each row by a regression on the others."""
    error = 0.0
    for row in range(len(x)):
        rest = np.arange(len(x)) != row
        w = np.linalg.solve(x[rest].T @ x[rest] + strength * np.eye(x.shape[1]), x[rest].T @ y[rest])
        error += float((y[row] - x[row] @ w) ** 2)
    return error


def test_each_column_is_as_strong_as_leaving_one_out_says() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    y = x @ (rng.normal(size=(4, 3)) * [1.0, 0.1, 0.0]) + 0.5 * rng.normal(size=(60, 3))
    found = Ridge.of(x).weights(y)
    chosen = set()
    for column in range(3):
        errors = {s: left_out(x, y[:, column], s) for s in regression.STRENGTHS}
        best = min(errors, key=errors.get)
        chosen.add(best)
        wanted = np.linalg.solve(x.T @ x + best * np.eye(4), x.T @ y[:, column])
        if errors[best] > np.square(y[:, column]).sum():
            wanted = np.zeros(4)
        assert np.allclose(found[:, column], wanted)
    assert len(chosen) > 1  # the columns differ in what features say of them


def test_features_that_say_nothing_suggest_next_to_nothing() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(400, 3)), rng.normal(size=(400, 5))
    assert np.abs(Ridge.of(x).weights(y)).max() < 0.1
    assert Ridge.of(np.zeros((400, 0))).weights(y).shape == (0, 5)


def test_who_has_average_features_has_the_vector_0_and_a_constant_column_says_nothing() -> None:
    rng = np.random.default_rng(2)
    numbers = np.column_stack([3 + 2 * rng.normal(size=50), np.full(50, 7.0)])
    vectors = (numbers[:, :1] - 3) @ np.array([[1.0, -2.0]])
    known = np.arange(40)
    found = Suggestion(numbers, known).of(vectors)
    assert found.at(numbers[known].mean(0)[None]) == pytest.approx(np.zeros((1, 2)), abs=1e-9)
    assert found.W[1] == pytest.approx([0, 0])
    assert found.W[0] == pytest.approx([1, -2], rel=0.02)
