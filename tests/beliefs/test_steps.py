"""Newton steps of vectors against a general optimiser, their spread against the inverse of the second derivative, a batch
against a loop."""

from dataclasses import replace

import numba
import numpy as np
import pytest
from scipy.optimize import approx_fprime, minimize

from tandemrank.beliefs import _newton_kernel, steps
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.grades import FLAT, Grades
from tandemrank.beliefs.space import Space
from tandemrank.beliefs.steps import ItemPrior, Seen

F, D = 2, 9
FAMILIES = [Grades.bit(0.8, 0.1), Grades.graded(0.3, 0.7)]


def problem(grades: Grades, seed: int = 0, Q: int = 2, shown: int = 7) -> tuple[Space, Seen]:
    """Queries with seven pairs each: not a multiple of four, as compiled loops take them."""
    rng = np.random.default_rng(seed)
    query, item = np.repeat(np.arange(Q), shown), np.concatenate([rng.permutation(D)[:shown] for _ in range(Q)])
    n = Q * shown
    times = rng.integers(1, 6, n).astype(float)
    counts = Counts.of_rows(
        query, item, rng.choice([1.0, 0.5], n), times, np.floor(rng.random(n) * (times + 1)), impressions=np.full(Q, 9.0), D=D
    )  # fmt: skip
    items = np.column_stack([rng.normal(size=(D, F)), np.ones(D)]).astype(np.float32)
    space = Space(
        items, rng.normal(-1, 0.5, D).astype(np.float32), rng.normal(size=(Q, F + 1)), np.array([1.0, 2.0, 3.0])
    )
    seen = Seen(
        counts.first, counts.item, counts.kinds[0], counts.table(grades.R)[0], rng.normal(0, 0.2, n).astype(np.float32), grades
    )  # fmt: skip
    return space, seen


def log_likelihood(grades: Grades, s: float, L: np.ndarray) -> float:
    """log sum_j w_j(s) L_j / sum_j w_j(s), the sum over levels in plain Python."""
    if grades.is_bit:
        w = [1.0, np.exp(s)]
    else:
        w = [np.exp(-((np.log(r / (1 - r)) - s) ** 2) / (2 * grades.spread**2)) for r in grades.R]
    return float(np.log(sum(a * b for a, b in zip(w, L, strict=True)) / sum(w)))


def height(space: Space, seen: Seen, q: int, x: np.ndarray) -> float:
    """f of a query, pair by pair."""
    total = -float(space.precision @ (x - space.mean[q]) ** 2) / 2
    for j in range(seen.first[q], seen.first[q + 1]):
        d = seen.item[j]
        s = float(space.offset[d]) + float(seen.other[j]) + float(space.items[d].astype(float) @ x)
        total += log_likelihood(seen.grades, s, seen.table[:, seen.kind[j]])
    return total


@pytest.mark.parametrize("grades", FAMILIES)
def test_the_query_step_ends_at_the_mode(grades: Grades) -> None:
    space, seen = problem(grades)
    x = steps.query_step(space, seen, np.arange(2))
    for q in range(2):
        best = minimize(lambda v, q=q: -height(space, seen, q, v), space.mean[q]).fun
        assert height(space, seen, q, x[q]) > -best - 2e-3


@pytest.mark.parametrize("grades", FAMILIES)
def test_a_batch_is_a_loop_and_where_it_begins_does_not_matter(grades: Grades) -> None:
    space, seen = problem(grades, Q=5)
    together = steps.query_step(space, seen, np.arange(5))
    for q in range(5):
        assert np.array_equal(steps.query_step(space, seen, np.array([q]))[q], together[q])
    again = steps.query_step(space, seen, np.arange(5), together + 0.3)
    assert np.abs(again - together).max() < 0.1
    assert all(height(space, seen, q, again[q]) > height(space, seen, q, together[q]) - 2e-3 for q in range(5))


def second_derivative(space: Space, seen: Seen, q: int, x: np.ndarray) -> np.ndarray:
    """Minus the second derivative of f with its negative terms left out, by differences, pair by pair."""
    H, step = np.diag(space.precision), 1e-3
    for j in range(seen.first[q], seen.first[q + 1]):
        w = space.items[seen.item[j]].astype(float)
        s = float(space.offset[seen.item[j]]) + float(seen.other[j]) + float(w @ x)
        low, middle, high = (
            log_likelihood(seen.grades, s + d, seen.table[:, seen.kind[j]]) for d in (-step, 0.0, step)
        )
        H = H + max(-(high - 2 * middle + low) / step**2, 0.0) * np.outer(w, w)
    return H


@pytest.mark.parametrize("grades", FAMILIES)
def test_the_spread_is_that_of_the_inverse_of_the_second_derivative(grades: Grades) -> None:
    space, seen = problem(grades, 3)
    x = steps.query_step(space, seen, np.arange(2))
    covariances = [np.linalg.inv(second_derivative(space, seen, q, x[q])) for q in range(2)]
    asked = Counts.of_rows(
        np.array([0, 1, 1]), np.array([4, 2, 8]), np.ones(3), np.ones(3), np.zeros(3), impressions=np.ones(2), D=D
    )
    spread = steps.spread_of(space, seen, np.arange(2), x, asked)
    W = space.items.astype(float)
    assert spread.mean == pytest.approx((covariances[0] + covariances[1]) / 2, abs=2e-3)
    assert spread.asked == pytest.approx([W[d] @ covariances[q] @ W[d] for q, d in ((0, 4), (1, 2), (1, 8))], rel=1e-2)
    over_items = [np.trace(C @ W.T @ W) / D for C in covariances]
    assert spread.query == pytest.approx(np.array(over_items) / np.mean(over_items), rel=1e-2)
    assert spread.query.mean() == pytest.approx(1, rel=1e-5)
    assert spread.item == pytest.approx([w @ spread.mean @ w for w in W], rel=1e-5)


def test_many_pairs_have_the_spread_that_all_of_them_leave() -> None:
    # More pairs than five for each number of a vector: H is made of some that stand for all.
    rng = np.random.default_rng(0)
    n, grades = 600, Grades.bit(0.9, 0.05)
    counts = Counts.of_rows(
        np.zeros(n, np.int64), np.arange(n), np.ones(n), np.ones(n), np.zeros(n), impressions=np.ones(1), D=n
    )
    items = np.column_stack([rng.normal(size=(n, F)), np.ones(n)]).astype(np.float32)
    space = Space(items, np.full(n, -1.0, np.float32), np.zeros((1, F + 1)), np.ones(F + 1))
    seen = Seen(counts.first, counts.item, counts.kinds[0], counts.table(grades.R)[0], np.zeros(n, np.float32), grades)
    x = steps.query_step(space, seen, np.arange(1))
    expected = np.linalg.inv(second_derivative(space, seen, 0, x[0]))
    assert np.diag(steps.spread_of(space, seen, np.arange(1), x).mean) == pytest.approx(np.diag(expected), rel=0.3)


@pytest.mark.parametrize("grades", FAMILIES)
def test_a_step_is_newtons(grades: Grades, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "STEPS", 1)
    space, seen = problem(grades)
    near = steps.query_step(
        space, seen, np.arange(2)
    )  # one step away from the prior's mean the next one need not be halved
    found = steps.query_step(space, seen, np.arange(2), near)
    for q in range(2):
        gradient = approx_fprime(near[q], lambda v, q=q: height(space, seen, q, v), 1e-5)
        step = np.linalg.solve(second_derivative(space, seen, q, near[q]), gradient)
        assert found[q] - near[q] == pytest.approx(step, abs=2e-2 * np.abs(step).max())


@pytest.mark.parametrize("n", [9, 15, 16, 60, 400])
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


def test_a_step_that_falls_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far from its mode f is not what its slope and H say: the step is halved until it rises, no more often."""
    monkeypatch.setattr(steps, "STEPS", 1)
    monkeypatch.setattr(steps, "TOLERANCE", 1e-6)
    rng, n = np.random.default_rng(8), 300
    ratio, x, P = rng.normal(scale=10, size=n), rng.normal(scale=8, size=(n, 1)), 0.02
    table = np.exp(np.minimum([np.zeros(n), ratio], [-ratio, np.zeros(n)])).astype(np.float32)
    space = Space(np.ones((1, 1), np.float32), np.zeros(1, np.float32), np.zeros((n, 1)), np.array([P]))
    every, nothing = np.arange(n), np.zeros(n, np.float32)
    seen = Seen(np.arange(n + 1), np.zeros(n, np.int32), every.astype(np.int32), table, nothing, Grades.bit(0.9, 0.1))
    found, halved = steps.query_step(space, seen, every, x)[:, 0], 0

    def f(s: float, r: float) -> float:
        return float(np.logaddexp(0, s + r) - np.logaddexp(0, s) - P * s**2 / 2)

    for q in range(n):
        s, r = float(x[q, 0]), float(ratio[q])
        before, after = (1 / (1 + np.exp(-v)) for v in (s, s + r))
        step = (after - before - P * s) / (P + max(before * (1 - before) - after * (1 - after), 0.0))
        t = 1.0
        while f(s + t * step, r) <= f(s, r) and t > 1e-3:
            t /= 2
        halved += t < 1
        assert found[q] == pytest.approx(s + t * step, rel=1e-2, abs=1e-2)
    assert halved > 10


def test_queries_without_a_log_stay_at_the_prior() -> None:
    space, seen = problem(Grades.graded(0.3, 0.7))
    x = steps.query_step(space, seen, np.array([1]))
    assert np.array_equal(x[0], space.mean[0])
    spread = steps.spread_of(space, seen, np.array([1]), x)
    assert spread.query[0] > spread.query[1]
    nobody = steps.spread_of(space, seen, np.zeros(0, np.int64), x)
    assert nobody.mean == pytest.approx(np.diag(1 / space.precision))
    assert nobody.query == pytest.approx([1, 1])


def item_height(
    space: Space, seen: Seen, x: np.ndarray, d: int, y: np.ndarray, prior: ItemPrior, C: np.ndarray
) -> float:
    """f of an item whose direction and offset are y: its pairs, its prior, and the ridge of what is not known of x."""
    total = -float(prior.precision[d] @ (y - prior.centre[d]) ** 2) / 2
    for j in np.flatnonzero(seen.item == d):
        q = int(np.searchsorted(seen.first, j, side="right")) - 1
        still = float(seen.other[j]) + x[q, F]
        at = space.items[d, :F] @ x[q, :F] + float(space.offset[d]) + still
        h = (
            -np.diff([log_likelihood(seen.grades, at + e, seen.table[:, seen.kind[j]]) for e in (-1e-3, 0, 1e-3)], 2)[0]
            / 1e-6
        )
        total += log_likelihood(seen.grades, y[:F] @ x[q, :F] + y[F] + still, seen.table[:, seen.kind[j]])
        total -= max(h, 0.0) * float(np.diag(C)[:F] @ y[:F] ** 2) / 2
    return total


def test_the_item_step_ends_at_the_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "ITEM_STEPS", 20)
    rng = np.random.default_rng(5)
    space, seen = problem(Grades.graded(0.3, 0.7), Q=6)
    x, C = rng.normal(size=(6, F + 1)), np.diag([0.3, 0.2, 0.1])
    prior = ItemPrior(rng.normal(size=(D, F + 1)), np.full((D, F + 1), 2.0))
    found = steps.item_step(space, seen, x, C, prior)
    assert np.array_equal(found.items[:, F], np.ones(D))
    for d in range(D):
        y = np.append(found.items[d, :F], found.offset[d]).astype(float)
        best = minimize(lambda v, d=d: -item_height(space, seen, x, d, v, prior, C), y).fun
        assert item_height(space, seen, x, d, y, prior, C) > -best - 5e-3


def test_an_item_of_the_bit_has_the_slope_of_the_mean_over_what_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    # At the mode: sum of sigmoid(kappa (s + l)) - sigmoid(kappa s) over the queries is what prior and ridge pull back.
    monkeypatch.setattr(steps, "ITEM_STEPS", 30)
    grades = Grades.bit(0.8, 0.1)
    space, seen = problem(grades, Q=6)
    x = np.random.default_rng(5).normal(size=(6, F + 1))
    prior = ItemPrior(np.zeros((D, F + 1)), np.full((D, F + 1), 2.0))
    C = np.diag([0.5, 0.5, 0.1])
    found = steps.item_step(space, seen, x, C, prior)
    W = space.items.astype(float)
    kappa = 1 / np.sqrt(1 + FLAT * np.mean([W[d] @ C @ W[d] for d in seen.item]))
    for d in range(D):
        own = np.flatnonzero(seen.item == d)
        at = x[seen.query[own]]
        s = at[:, :F] @ found.items[d, :F] + found.offset[d] + seen.other[own] + at[:, F]
        ratio = np.log(seen.table[1, seen.kind[own]]) - np.log(seen.table[0, seen.kind[own]])
        slope = 1 / (1 + np.exp(-kappa * (s + ratio))) - 1 / (1 + np.exp(-kappa * s))
        assert slope.sum() == pytest.approx(2.0 * found.offset[d], abs=0.05)


def test_threads_do_not_change_a_bit() -> None:
    space, seen = problem(Grades.graded(0.3, 0.7), Q=40)
    rows, before, found = np.arange(40), numba.get_num_threads(), []
    try:
        for threads in {1, min(2, numba.config.NUMBA_NUM_THREADS)}:
            numba.set_num_threads(threads)
            x = steps.query_step(space, seen, rows)
            found.append((x, steps.spread_of(space, seen, rows, x).mean))
    finally:
        numba.set_num_threads(before)
    assert all(np.array_equal(a, b) for one in found for a, b in zip(one, found[0], strict=True))


def test_directions_of_a_log_are_those_in_which_queries_differ() -> None:
    rng = np.random.default_rng(1)
    Q, items = 300, 40
    direction, taste = np.where(np.arange(items) < 20, 1.0, -1.0), rng.choice([-1.0, 1.0], Q)
    p = 1 / (1 + np.exp(1 - 2 * np.outer(taste, direction)))
    clicks = (rng.random((Q, items)) < p).astype(float).ravel()
    counts = Counts.of_rows(
        np.repeat(np.arange(Q), items), np.tile(np.arange(items), Q), np.ones(Q * items), np.ones(Q * items), clicks,
        impressions=np.ones(Q), D=items,
    )  # fmt: skip
    grades = Grades.graded(0.3, 0.4)
    seen = Seen(
        counts.first, counts.item, counts.kinds[0], counts.table(grades.R)[0], np.zeros(len(clicks), np.float32), grades
    )
    found = steps.from_log(seen, np.full(items, -0.5), np.arange(Q), 0.3, most=3, seed=0).items
    assert abs(np.corrcoef(found[:, 0], direction)[0, 1]) > 0.95
    assert np.square(found[:, 0]).sum() > 5 * np.square(found[:, 1]).sum()


def test_a_log_in_which_all_is_the_same_has_directions_too() -> None:
    _, seen = problem(Grades.graded(0.3, 0.7))
    nothing = replace(seen, table=np.ones_like(seen.table))
    found = steps.from_log(nothing, np.zeros(D), np.arange(2), 0.3, most=4, seed=0)
    assert found.items.shape == (D, 1)
    assert np.isfinite(found.items).all()


def test_items_that_were_never_shown_do_not_turn_the_directions_of_the_others() -> None:
    rng = np.random.default_rng(2)
    Q, items = 200, 30
    shown = np.sort(rng.random((Q, items)).argsort(1)[:, :12], axis=1)
    clicks = (rng.random((Q, 12)) < 0.3).astype(float).ravel()
    grades = Grades.graded(0.3, 0.4)
    found = []
    for D_ in (items, 4 * items):
        counts = Counts.of_rows(
            np.repeat(np.arange(Q), 12),
            shown.ravel(),
            np.ones(Q * 12),
            np.ones(Q * 12),
            clicks,
            impressions=np.ones(Q),
            D=D_,
        )
        still = np.zeros(len(clicks), np.float32)
        seen = Seen(counts.first, counts.item, counts.kinds[0], counts.table(grades.R)[0], still, grades)
        directions = steps.from_log(seen, np.full(D_, -0.5), np.arange(Q), 0.3, most=3, seed=0).items[:items]
        found.append(directions @ directions.T)
    assert found[1] == pytest.approx(found[0], rel=0.05, abs=0.02 * np.abs(found[0]).max())
