"""docs/race.md, "A cascade of any depth": the recursion in plain Python, for three stages, against enumeration."""

import math

import numpy as np
import pytest

import enumeration


def joining(e, B, j, scores, keep, theta, w, clocks):
    """V_j(e; B): the expected utility if e joins the set B before stage j, e's own clocks from j on integrated out."""
    order = sorted(B, key=lambda d: clocks[j][d])
    if j == len(scores) - 1:
        return last_stage(e, order, scores[j][e], theta, w, clocks[j])[0]
    b, rest = order[keep[j] - 1], order[: keep[j] - 1]
    p = 1 - math.exp(-math.exp(scores[j][e]) * clocks[j][b])
    world = (scores, keep, theta, w, clocks)
    return p * joining(e, rest, j + 1, *world) + (1 - p) * joining(b, rest, j + 1, *world)


def last_stage(e, order, score, theta, w, clock):
    """Utility of the list if e joins those who arrive in that order, and its derivative by e's score."""
    theta = [*theta, 0.0]
    value, slope = theta[0] * w[e], 0.0
    for k in range(min(len(theta) - 1, len(order))):
        d, delta = order[k], theta[k + 1] - theta[k]
        y = math.exp(score) * clock[d]
        value += theta[k + 1] * w[d] + math.exp(-y) * delta * (w[e] - w[d])
        slope -= y * math.exp(-y) * delta * (w[e] - w[d])
    return value, slope


def gradient(d, scores, keep, theta, w, clocks):
    """dU/ds_d of every stage, from one draw of the others' clocks."""
    world = (scores, keep, theta, w, clocks)
    B, reached, result = [e for e in range(len(w)) if e != d], 1.0, []
    for j in range(len(scores) - 1):
        order = sorted(B, key=lambda e: clocks[j][e])
        b, B = order[keep[j] - 1], order[: keep[j] - 1]
        a = math.exp(scores[j][d]) * clocks[j][b]
        gain = joining(d, B, j + 1, *world) - joining(b, B, j + 1, *world)
        result.append(reached * a * math.exp(-a) * gain)
        reached *= 1 - math.exp(-a)
    order = sorted(B, key=lambda e: clocks[-1][e])
    return [*result, reached * last_stage(d, order, scores[-1][d], theta, w, clocks[-1])[1]]


def enumerated(scores, keep, theta, w):
    """The gradient of three stages by complete enumeration: E[U grad log pi] of every stage.  -> [3, D]."""
    total = np.zeros((3, len(w)))
    for y_1, p_1, g_1 in enumeration.rankings(scores[0], range(len(w)), keep[0]):
        for y_2, p_2, g_2 in enumeration.rankings(scores[1], y_1, keep[1]):
            for y_3, p_3, g_3 in enumeration.rankings(scores[2], y_2, len(theta)):
                reward = sum(theta[k] * w[d] for k, d in enumerate(y_3))
                total += p_1 * p_2 * p_3 * reward * np.array([g_1, g_2, g_3])
    return total


@pytest.mark.parametrize("seed", range(3))
def test_three_stages_by_enumeration(seed: int) -> None:
    rng = np.random.default_rng(seed)
    D, keep, theta, n = 5, (4, 3), [1.0, 0.4], 3_000
    scores, w = rng.normal(size=(3, D)).tolist(), rng.normal(size=D).tolist()
    clocks = rng.standard_exponential((n, 3, D)) / np.exp(scores)
    found = np.array(
        [[gradient(d, scores, keep, theta, w, clock) for d in range(D)] for clock in clocks.tolist()]
    ).transpose(0, 2, 1)
    error = found.std(0) / n**0.5
    assert np.all(np.abs(found.mean(0) - enumerated(scores, keep, theta, w)) < 5 * error + 1e-9)
