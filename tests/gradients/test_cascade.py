"""docs/explanation/race.md, "A cascade of any depth": the recursion in plain Python, against enumeration for three stages
and against `race` for two, sample by sample on the same clocks."""

import math

import numpy as np
import pytest
import torch

import enumeration
import race_oracle
from tandemrank.gradients import _bridge, race
from worlds import seeded


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


@pytest.mark.parametrize("seed", range(5))
def test_two_stages_of_the_recursion_are_the_race(seed: int) -> None:
    """The same clocks give the same gradients of both stages in every sample: `race` is the recursion of depth two."""
    rng = np.random.default_rng(seed)
    D, K2, theta, samples = 7, 4, [1.0, 0.4, 0.2], 20
    scores, w = rng.normal(size=(2, D)), rng.normal(size=D)
    s, r, weights = (torch.tensor(x)[None] for x in (*scores, w))
    curve = torch.tensor(theta, dtype=torch.float64)
    keys = _bridge.keys_for(1, seeded(seed))
    p, density, _, gain, slope, _ = race_oracle.race(s, r, weights, curve, K2, samples, keys)
    found = torch.stack([density * gain, p * slope], 1)[:, :, 0]
    E = np.stack([race_oracle.log_clocks(keys, samples, D, stage, s)[:, 0].exp().numpy() for stage in (0, 1)], 1)
    clocks = (E / np.exp(scores)).tolist()
    world = (scores.tolist(), (K2,), theta, w.tolist())
    expected = np.array([[gradient(d, *world, clock) for d in range(D)] for clock in clocks]).transpose(0, 2, 1)
    assert found.numpy() == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("seed", range(2))
def test_two_stages_of_the_recursion_have_the_mean_of_the_kernel(seed: int) -> None:
    """The compiled race, with the noise of the sum taken out, has the same expectation."""
    rng = np.random.default_rng(seed)
    D, K2, theta, n = 5, 3, [1.0, 0.4], 4_000
    scores, w = rng.normal(size=(2, D)), rng.normal(size=D)
    clocks = (rng.standard_exponential((n, 2, D)) / np.exp(scores)).tolist()
    world = (scores.tolist(), (K2,), theta, w.tolist())
    ours = np.array([[gradient(d, *world, clock) for d in range(D)] for clock in clocks]).transpose(0, 2, 1)
    s, r = (torch.tensor(x, dtype=torch.float32).repeat(n, 1).requires_grad_() for x in scores)
    weights = torch.tensor(w, dtype=torch.float32).repeat(n, 1)
    value = race.utility(s, r, weights, torch.tensor(theta), K2, generator=seeded(seed))
    theirs = torch.stack(torch.autograd.grad(value.sum(), (s, r)), 1).double().numpy()
    error = np.sqrt(ours.var(0) / n + theirs.var(0) / n)
    assert np.all(np.abs(ours.mean(0) - theirs.mean(0)) < 5 * error + 1e-6)
