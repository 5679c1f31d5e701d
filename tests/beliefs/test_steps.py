"""The steps of the posterior against complete enumeration of hidden relevances, in plain Python."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from tandemrank.beliefs import steps
from tandemrank.beliefs.memory import Noise, memory_of
from tandemrank.beliefs.posterior import Chosen, Posterior
from tandemrank.beliefs.space import Shape, Space

THETA = np.array([1.0, 0.5, 0.2])
D, F = 5, 2


def showings(rng: np.random.Generator, queries: int, n: int) -> list[tuple[int, int, int, int]]:
    """(query, item, rank, click), some pairs more than once."""
    return [
        (int(rng.integers(queries)), int(rng.integers(D)), int(rng.integers(3)), int(rng.integers(2))) for _ in range(n)
    ]


def rows_of(seen) -> list[tuple[int, int, int, float, float]]:
    found: dict[tuple[int, int, int], list[int]] = {}
    for q, d, k, c in seen:
        found.setdefault((q, d, k), []).append(c)
    return [(*key, len(clicks), sum(clicks)) for key, clicks in found.items()]


def space_of(rng: np.random.Generator, queries: int) -> Space:
    items = np.column_stack([rng.normal(size=(D, F)), np.ones(D)]).astype(np.float32)
    root = rng.normal(size=(F + 1, F + 1))
    return Space(
        items, rng.normal(size=D).astype(np.float32), rng.normal(size=(queries, F + 1)), root @ root.T + np.eye(F + 1)
    )


def log_likelihood(x, space: Space, seen, noise: Noise) -> float:
    """log P(showings of one query | x) by the sum over all 2^D relevances."""
    total = 0.0
    s = [float(space.offset[d]) + sum(float(w) * v for w, v in zip(space.items[d], x, strict=True)) for d in range(D)]
    for z in itertools.product((0, 1), repeat=D):
        weight = math.prod(1 / (1 + math.exp(-s[d] if z[d] else s[d])) for d in range(D))
        for d, k, c in seen:
            p = float(THETA[k]) * (noise.relevant if z[d] else noise.irrelevant)
            weight *= p if c else 1 - p
        total += weight
    return math.log(total)


def log_prior(x, m, P) -> float:
    gap = np.asarray(x) - m
    return float(-0.5 * gap @ P @ gap)


def gradient(f, x, step: float = 1e-4) -> np.ndarray:
    x = np.asarray(x, float)
    return np.array([(f(x + step * e) - f(x - step * e)) / (2 * step) for e in np.eye(len(x))])


@pytest.mark.parametrize("seed", range(6))
def test_a_query_step_ends_at_the_mode_by_enumeration(seed: int, feedback_of) -> None:
    """The enumerated log posterior has no slope there, and no point around it is higher."""
    rng = np.random.default_rng(seed)
    noise, space, seen = Noise(0.85, 0.1), space_of(rng, 2), showings(rng, 2, 24)
    memory = memory_of(feedback_of(rows_of(seen), 2, D), THETA, noise)
    found = steps.query_step(space, memory, np.arange(2))
    for q in range(2):
        own = [(d, k, c) for query, d, k, c in seen if query == q]

        def f(x, own=own, q=q) -> float:
            return log_likelihood(x, space, own, noise) + log_prior(x, space.mean[q], space.precision)

        assert np.abs(gradient(f, found[q])).max() < 0.1  # the steps end where less than 1e-3 can be gained
        assert all(f(found[q]) > f(found[q] + 0.3 * rng.normal(size=F + 1)) - 1e-3 for _ in range(20))


def test_a_query_without_showings_stays_at_the_mean(feedback_of) -> None:
    rng = np.random.default_rng(0)
    space = space_of(rng, 3)
    memory = memory_of(feedback_of([(1, 0, 0, 1, 1)], 3, D), THETA, Noise(0.9, 0.1))
    found = steps.query_step(space, memory, np.arange(3))
    assert np.array_equal(found[[0, 2]], space.mean[[0, 2]])
    assert not np.array_equal(found[1], space.mean[1])


def test_held_out_terms_are_the_likelihood_by_enumeration(feedback_of) -> None:
    """log sum_z P(z) P(showings | z), less what all models share, P(showings | z = 0)."""
    noise, odds = Noise(0.8, 0.15), 0.7
    held = memory_of(feedback_of([(0, 0, 1, 3, 1), (0, 0, 2, 1, 0)], 1, D), THETA, noise)
    p = 1 / (1 + math.exp(-odds))
    shown = [(0.5, 1), (0.5, 0), (0.5, 0), (0.2, 0)]
    one, zero = (math.prod(t * r if c else 1 - t * r for t, c in shown) for r in (0.8, 0.15))
    assert steps.held_out_terms(np.array([odds]), held)[0] == pytest.approx(
        math.log((p * one + (1 - p) * zero) / zero), rel=1e-5
    )


@pytest.mark.parametrize("seed", range(3))
def test_an_item_step_ends_at_the_mode_by_enumeration(seed: int, feedback_of) -> None:
    """With queries known exactly: the log-likelihood of an item's column, by enumeration, plus its prior has no slope."""
    rng = np.random.default_rng(seed)
    Q, noise, seen = 6, Noise(0.85, 0.1), showings(rng, 6, 60)
    space, x, g = space_of(rng, Q), rng.normal(size=(Q, F + 1)), np.zeros(D)
    memory = memory_of(feedback_of(rows_of(seen), Q, D), THETA, noise)
    start = replace(space, items=np.column_stack([rng.normal(size=(D, F)), np.ones(D)]).astype(np.float32))
    found = space
    for _ in range(6):  # two Newton steps each
        found = steps.item_step(found, memory, x, np.zeros((F + 1, F + 1)), start, g)
    precision = steps.ITEM_KNOWLEDGE / 4
    for d in range(D):

        def f(y, d=d) -> float:
            total = -0.5 * precision * float(np.square(y - start.items[d, :F]).sum())
            for q in range(Q):
                s = float(space.offset[d]) + float(y @ x[q, :F]) + x[q, F]
                one = zero = 1.0
                for query, item, k, c in seen:
                    if (query, item) == (q, d):
                        a, b = THETA[k] * noise.relevant, THETA[k] * noise.irrelevant
                        one, zero = one * (a if c else 1 - a), zero * (b if c else 1 - b)
                p = 1 / (1 + math.exp(-s))
                total += math.log(p * one + (1 - p) * zero)
            return total

        assert np.abs(gradient(f, found.items[d, :F])).max() < 0.5  # of a precision of 75
        assert f(found.items[d, :F].astype(float)) >= f(space.items[d, :F].astype(float))
    assert (found.items[:, F] == 1).all()
    assert np.array_equal(found.offset, space.offset)


@pytest.mark.parametrize("seed", range(4))
def test_the_belief_is_near_the_posterior_by_enumeration_and_integration(seed: int, feedback_of) -> None:
    """One direction, so that the vector is integrated out on a grid; relevances by enumeration. Laplace is near."""
    rng = np.random.default_rng(seed)
    noise, seen = Noise(0.8, 0.1), showings(rng, 1, 10)
    items = np.column_stack([rng.normal(size=D), np.ones(D)]).astype(np.float32)
    space = Space(items, rng.normal(size=D).astype(np.float32) - 1, np.zeros((1, 2)), np.diag([1.0, 1e6]))
    memory = memory_of(feedback_of(rows_of(seen), 1, D), THETA, noise)
    x = steps.query_step(space, memory, np.arange(1))
    spread = steps.spread_of(space, memory, np.arange(1), x)
    model = Posterior(
        Chosen(noise, Shape(), 0, ""),
        memory,
        space.items,
        space.offset,
        x.astype(np.float32),
        spread.query,
        spread.item,
    )
    total, relevant = 0.0, np.zeros(D)
    for value in np.linspace(-5, 5, 201):
        s = space.offset + space.items[:, 0] * value
        for z in itertools.product((0, 1), repeat=D):
            weight = math.exp(-0.5 * value**2) * math.prod(
                1 / (1 + math.exp(-s[d] if z[d] else s[d])) for d in range(D)
            )
            for _, d, k, c in seen:
                p = float(THETA[k]) * (noise.relevant if z[d] else noise.irrelevant)
                weight *= p if c else 1 - p
            total += weight
            relevant += weight * np.array(z)
    exact = noise.rate(relevant / total)
    found = model.at(np.zeros(D, np.int64), np.arange(D))
    assert found.mean == pytest.approx(exact, abs=0.04)
    p = (found.mean - 0.1) / 0.7
    assert found.variance == pytest.approx(0.49 * p * (1 - p))
    assert model.matrix(np.array([0]))[0, :D] == pytest.approx(found.mean)
