"""Newton steps of vectors against a general optimiser, and their spread against the inverse of the second derivative."""

import numpy as np
from scipy.optimize import approx_fprime, minimize

from graded import vectors
from graded.counts import Counts
from graded.grades import Grades
from graded.vectors import Seen, Space

F, D = 2, 8


def problem(grades: Grades, seed: int = 0) -> tuple[Space, Seen]:
    rng = np.random.default_rng(seed)
    query, item = np.repeat([0, 1], 6), np.concatenate([rng.permutation(D)[:6] for _ in range(2)])
    shown = rng.integers(1, 6, 12).astype(float)
    counts = Counts.of_rows(
        query,
        item,
        rng.choice([1.0, 0.5], 12),
        shown,
        np.floor(rng.random(12) * (shown + 1)),
        impressions=np.full(2, 9.0),
        D=D,
    )
    items = np.column_stack([rng.normal(size=(D, F)), np.ones(D)]).astype(np.float32)
    space = Space(items, rng.normal(-1, 0.5, D).astype(np.float32), np.zeros((2, F + 1)), np.diag([1.0, 1.0, 3.0]))
    return space, Seen.of(counts, grades, counts.likelihood(grades.R)[0], rng.normal(0, 0.2, 12))


def height(space: Space, seen: Seen, q: int, x: np.ndarray) -> float:
    own = slice(seen.first[q], seen.first[q + 1])
    d = seen.item[own]
    s = space.offset[d] + seen.other[own] + space.items[d].astype(float) @ x
    value = seen.grades.marginal(s.astype(float), np.zeros(len(d)), seen.L[own]).sum()
    return float(value - x @ space.precision @ x / 2)


def test_the_query_step_ends_at_the_mode() -> None:
    for grades in (Grades.bit(0.8, 0.1), Grades.graded(0.3, 0.7)):
        space, seen = problem(grades)
        x = vectors.query_step(space, seen, np.arange(2))
        for q in range(2):
            best = minimize(lambda v, q=q, a=space, b=seen: -height(a, b, q, v), np.zeros(F + 1)).fun
            assert height(space, seen, q, x[q]) > -best - 2e-3


def test_the_spread_is_the_inverse_of_the_second_derivative_where_that_is_positive() -> None:
    # Few showings and a large s: every pair adds a positive term, so nothing is left out of H.
    grades = Grades.graded(0.3, 0.5)
    space, seen = problem(grades, 3)
    x = vectors.query_step(space, seen, np.arange(2))
    _, _, h = grades.terms(space.s(seen.query, seen.item, x) + seen.other, seen.L)
    W = space.items[seen.item].astype(float)
    expected = np.zeros((F + 1, F + 1))
    for q in range(2):
        own = seen.query == q
        expected += np.linalg.inv(space.precision + (W[own] * h[own, None]).T @ W[own]) / 2
    found = vectors.spread_of(space, seen, np.arange(2), x).mean
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()
    gradient = approx_fprime(x[0], lambda v: height(space, seen, 0, v), 1e-5)
    assert np.abs(gradient).max() < 0.15


def test_queries_without_a_log_stay_at_the_prior() -> None:
    space, seen = problem(Grades.graded(0.3, 0.7))
    x = vectors.query_step(space, seen, np.array([1]))
    assert np.array_equal(x[0], space.mean[0])
    spread = vectors.spread_of(space, seen, np.array([1]), x)
    assert spread.query[0] > spread.query[1]
