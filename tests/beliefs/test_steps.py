"""The steps of the posterior against complete enumeration of hidden relevances, in plain Python; a single step, and what is
left of a vector's variance, against the same in NumPy."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from tandemrank.beliefs import _newton_kernel, steps
from tandemrank.beliefs.memory import Noise, memory_of
from tandemrank.beliefs.posterior import Chosen, Posterior
from tandemrank.beliefs.space import Shape, Space
from tandemrank.policies.memory import Memory, memory_from

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


# --- one step in NumPy, with the same formulas and other linear algebra -----------------------------------------------


def terms(s, ratio, kappa=1.0):
    """Of every pair: its term of f, its slope, and minus its second derivative where that is positive."""
    before, after = 1 / (1 + np.exp(-kappa * s)), 1 / (1 + np.exp(-kappa * (s + ratio)))
    value = (np.logaddexp(0, kappa * (s + ratio)) - np.logaddexp(0, kappa * s)) / kappa
    return value, after - before, kappa * np.maximum(before * (1 - before) - after * (1 - after), 0)


def objective(W, offset, ratio, kappa, m, P, x) -> float:
    return float(terms(offset + W @ x, ratio, kappa)[0].sum()) + log_prior(x, m, P)


def newton_step(W, offset, ratio, kappa, m, P, x) -> np.ndarray:
    """x + H^-1 gradient; f must rise by it, so that nothing is halved."""
    _, slope, h = terms(offset + W @ x, ratio, kappa)
    found = x + np.linalg.solve(P + (W.T * h) @ W, W.T @ slope - P @ (x - m))
    problem = (W, offset, ratio, kappa, m, P)
    assert objective(*problem, found) > objective(*problem, x)
    return found


def random_memory(rng: np.random.Generator, queries: int, items: int = D, share: float = 0.9) -> Memory:
    """Log-likelihood ratios of either sign for most pairs."""
    query, item = np.nonzero(rng.random((queries, items)) < share)
    return memory_from(
        query, item.astype(np.int32), (3 * rng.normal(size=len(query))).astype(np.float32), queries, items
    )


def own(memory: Memory, q: int) -> tuple[np.ndarray, np.ndarray]:
    """Items and values of one query."""
    of = slice(memory.first[q], memory.first[q + 1])
    return memory.item[of], memory.value[of].astype(float)


def covariance(space: Space, memory: Memory, q: int, x) -> np.ndarray:
    """H^-1 of a query."""
    item, ratio = own(memory, q)
    W = space.items[item].astype(float)
    _, _, h = terms(space.offset[item] + W @ x, ratio)
    return np.linalg.inv(space.precision + (W.T * h) @ W)


def test_a_step_of_a_query_is_newtons(monkeypatch) -> None:
    monkeypatch.setattr(steps, "STEPS", 1)
    monkeypatch.setattr(steps, "TOLERANCE", 0.0)
    rng, Q = np.random.default_rng(1), 30
    space, memory = space_of(rng, Q), random_memory(rng, Q)
    x = space.mean + 0.1 * rng.normal(size=(Q, F + 1))
    found = steps.query_step(space, memory, np.arange(Q), x)
    for q in range(Q):
        item, ratio = own(memory, q)
        problem = space.items[item].astype(float), space.offset[item], ratio, 1.0, space.mean[q], space.precision
        assert found[q] == pytest.approx(newton_step(*problem, x[q]), rel=1e-4, abs=1e-5)


def test_a_step_of_an_item_is_newtons_with_what_is_not_known_of_queries(monkeypatch) -> None:
    """What is not known of x is a ridge, by the information of the item's pairs, and shrinks its log-odds."""
    monkeypatch.setattr(steps, "ITEM_STEPS", 1)
    monkeypatch.setattr(steps, "TOLERANCE", 0.0)
    rng, Q = np.random.default_rng(2), 9
    space, memory, x = space_of(rng, Q), random_memory(rng, Q), rng.normal(size=(Q, F + 1))
    start = replace(space, items=space.items + np.array([0.3, -0.2, 0.0], np.float32))
    root = rng.normal(size=(F + 1, F + 1))
    mean, g = root @ root.T, rng.normal(size=D)
    found = steps.item_step(space, memory, x, mean, start, g)
    for d in range(D):
        there = memory.item == d
        query, ratio = memory.query[there], memory.value[there].astype(float)
        y = space.items[d].astype(float)
        _, _, h = terms(space.offset[d] + x[query] @ y, ratio)
        ridge = h.sum() * np.diag(mean)[:F]
        prior = steps.ITEM_KNOWLEDGE / (1 + math.exp(-g[d])) / (1 + math.exp(g[d]))
        m, P = start.items[d, :F] * prior / (prior + ridge), np.diag(prior + ridge)
        kappa = 1 / math.sqrt(1 + math.pi / 8 * (y @ mean @ y))
        known = space.offset[d] + x[query, F]
        wanted = newton_step(x[query, :F], known, ratio, kappa, m, P, y[:F])
        assert found.items[d, :F] == pytest.approx(wanted, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("kappa", [1.0, 0.4])
def test_steps_of_items_end_at_the_highest_f_and_say_it(kappa: float) -> None:
    """f with shrunken log-odds has no slope there, and is what is returned: the line search compares it."""
    rng, Q = np.random.default_rng(3), 12
    memory, X, level = random_memory(rng, Q, 1, 1.0), rng.normal(size=(Q, F)), rng.normal(size=Q)
    m, y = rng.normal(size=(1, F)), rng.normal(size=(1, F))
    query, precision = memory.query.astype(np.int32), np.full((1, F), 0.5)
    f = _newton_kernel.ascend_items(
        np.array([0, Q]), query, memory.value, np.array([kappa]), level.astype(np.float32), X.astype(np.float32), precision,
        m, y, 60, 1e-9,
    )  # fmt: skip
    problem = X, level, memory.value.astype(float), kappa, m[0], np.diag(precision[0])
    assert f[0] == pytest.approx(objective(*problem, y[0]), rel=1e-5)
    assert np.abs(gradient(lambda v: objective(*problem, v), y[0])).max() < 5e-3


def test_the_terms_of_pairs_are_their_value_and_its_derivatives() -> None:
    rng = np.random.default_rng(4)
    s, ratio = (3 * rng.normal(size=(2, 50))).astype(np.float32)
    for kappa in (1.0, 0.3):
        value, slope, curvature = (np.empty(50, np.float32) for _ in range(3))
        _newton_kernel._terms(s, ratio, np.float32(kappa), value, slope, curvature)
        for found, wanted in zip((value, slope, curvature), terms(s.astype(float), ratio, kappa), strict=True):
            assert found == pytest.approx(wanted, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("n", [15, 16, 200])
def test_few_pairs_stand_for_all_in_proportion_to_what_they_add(n: int) -> None:
    """Those above the unit for themselves; of the rest everyone at whom the sum passes a half unit more than whole ones."""
    rng, most = np.random.default_rng(n), 15
    item, h = rng.permutation(n).astype(np.int32), (rng.random(n) ** 4).astype(np.float32)
    kept, weight = np.empty(n, np.int32), np.empty(n, np.float32)
    count = _newton_kernel._thinned(item, h, most, kept, weight)
    found = dict(zip(kept[:count].tolist(), weight[:count].tolist(), strict=True))
    if n <= most:
        assert found == dict(zip(item.tolist(), h.tolist(), strict=True))
        return
    unit = h.astype(float).sum() / most
    rest = np.where(h < unit, h, 0.0).cumsum() / unit + 0.5
    passed = np.floor(rest) > np.floor(np.append(0.5, rest[:-1]))
    wanted = np.where(h >= unit, h, np.where(passed, unit, 0.0))
    assert found == pytest.approx(
        dict(zip(item[wanted > 0].tolist(), wanted[wanted > 0].tolist(), strict=True)), rel=1e-6
    )
    assert abs(sum(found.values()) - h.sum()) <= unit / 2 + 1e-5
    assert 0 < count <= most + 1


def test_what_is_left_of_the_variance_is_that_of_the_inverse() -> None:
    """Of more queries than there are chunks: the mean covariance, that of all items, of items, and of pairs asked for."""
    rng, Q = np.random.default_rng(5), 150
    space, memory, asked = space_of(rng, Q), random_memory(rng, Q), random_memory(rng, Q, share=0.5)
    x, rows = rng.normal(size=(Q, F + 1)), np.delete(np.arange(Q), [3, 77])
    found = steps.spread_of(space, memory, rows, x, asked)
    each = [covariance(space, memory, q, x[q]) for q in range(Q)]
    mean, W = np.mean([each[q] for q in rows], axis=0), space.items.astype(float)
    assert found.mean == pytest.approx(mean, rel=1e-4, abs=1e-6)
    assert found.item == pytest.approx([w @ mean @ w for w in W], rel=1e-4)
    each[3] = each[77] = np.linalg.inv(space.precision)  # not among those with a log
    wanted = np.array([np.mean([w @ C @ w for w in W]) for C in each])
    assert found.query == pytest.approx(wanted / np.mean([w @ mean @ w for w in W]), rel=1e-4)
    among = np.isin(asked.query, rows)
    pairs = [W[d] @ each[q] @ W[d] for q, d in zip(asked.query[among], asked.item[among], strict=True)]
    assert found.asked[among] == pytest.approx(pairs, rel=1e-4)


def test_many_pairs_leave_as_little_as_all_of_them_say() -> None:
    """200 pairs of one direction are thinned to 15 that count for all: right up to half of one of them."""
    rng, items = np.random.default_rng(6), 200
    W = np.tile(np.array([0.6, -0.3, 1.0], np.float32), (items, 1))
    space = Space(W, rng.normal(size=items).astype(np.float32), np.zeros((1, F + 1)), np.eye(F + 1))
    memory, x = random_memory(rng, 1, items, 1.0), np.zeros((1, F + 1))
    exact = covariance(space, memory, 0, x[0])
    asked = memory_from(np.zeros(1, np.int64), np.zeros(1, np.int32), np.zeros(1, np.float32), 1, items)
    found = steps.spread_of(space, memory, np.arange(1), x, asked)
    assert found.asked[0] == pytest.approx(W[0] @ exact @ W[0], rel=1 / 30)


def test_log_odds_of_held_out_pairs_are_those_of_the_mean_over_the_vector() -> None:
    """The mean of sigmoid(s) over x ~ N(x, C), by many draws, is the sigmoid of what is returned: nearly."""
    rng = np.random.default_rng(7)
    space, memory, held = space_of(rng, 4), random_memory(rng, 4, share=0.5), random_memory(rng, 4, share=0.5)
    x = rng.normal(size=(4, F + 1))
    found, _ = steps.held_out_log_odds(space, memory, np.arange(4), x, held)
    for odds, q, d in zip(found, held.query, held.item, strict=True):
        drawn = rng.multivariate_normal(x[q], covariance(space, memory, q, x[q]), size=20_000)
        s = space.offset[d] + drawn @ space.items[d]
        assert 1 / (1 + math.exp(-odds)) == pytest.approx(float((1 / (1 + np.exp(-s))).mean()), abs=0.02)


def test_a_step_that_is_too_long_is_halved() -> None:
    """Far from its mode f is not what its slope and H say; no step ends lower than it began, and a shorter one rises."""
    rng, n = np.random.default_rng(8), 400
    memory = memory_from(np.arange(n), np.zeros(n, np.int32), rng.normal(scale=20, size=n).astype(np.float32), n, 1)
    W, P, m, x = np.ones((1, 1), np.float32), np.eye(1) / 50, np.zeros((n, 1)), rng.normal(scale=8, size=(n, 1))
    ratio, before = memory.value.astype(float), x.copy()
    halved = 0
    offset = np.zeros(1, np.float32)
    f, _ = _newton_kernel.ascend(np.arange(n), memory.first, memory.item, memory.value, offset, W, P, m, x, 1, 0.0)
    for q in range(n):
        problem = np.ones((1, 1)), offset, ratio[[q]], 1.0, m[q], P
        height = objective(*problem, before[q])
        assert f[q] == pytest.approx(objective(*problem, x[q]), rel=1e-4, abs=1e-4)
        assert f[q] >= height - 1e-4
        _, slope, h = terms(before[q], ratio[[q]])
        whole = before[q] + (slope - P[0] * before[q]) / (P[0] + h)
        if objective(*problem, whole) < height - 1e-3:
            halved += 1
            assert f[q] > height + 1e-3  # and not given up
    assert halved > 10
