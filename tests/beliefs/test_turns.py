"""One belief of some pairs: what is held out leaves no trace, and is judged by the sum over all that it could be."""

from dataclasses import replace

import numpy as np
import pytest

from independent import worlds
from tandemrank.beliefs import fitting, steps
from tandemrank.beliefs.belief import Chosen, columns
from tandemrank.beliefs.choice import Choice
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.features import Features
from tandemrank.beliefs.grades import Grades
from tandemrank.beliefs.turns import Given, Part, judged, run, started, weights

GRADES = Grades.graded(0.2, 0.7)


def small(seed: int = 0) -> tuple[Counts, np.ndarray, Given]:
    rng = np.random.default_rng(seed)
    w = worlds.logged(worlds.graded("small", rng, queries=60, items=40, K2=20), 1500, rng)
    n, K = w.items.shape
    counts = Counts.of_rows(
        np.repeat(w.query, K), w.items.ravel(), np.tile(w.theta, n), np.ones(n * K), w.clicks.ravel().astype(float),
        impressions=np.bincount(w.query, minlength=60).astype(float), D=40,
    )  # fmt: skip
    X = columns(Choice.of(counts), counts.query, counts.item, counts.n, counts.E)
    return counts, X, fitting._given(counts, Features().known(counts.Q, counts.D), Choice.of(counts), None, {})


def test_held_out_pairs_are_judged_by_the_sum_over_what_their_s_could_be() -> None:
    counts, X, given = small()
    held = np.random.default_rng(2).random(len(counts.query)) < 0.1
    part = Part.of(counts, GRADES, X)
    fitted = run(part.only(~held), replace(Chosen.log(GRADES), steps=1), given, 0)
    judge = part.only(held)
    found = judged(fitted, judge)
    c, log_odds = judge.counts, np.log(GRADES.R / (1 - GRADES.R))
    variance = steps.spread_of(fitted.space, fitted.seen, c.rows, fitted.x, c).asked
    for i in range(0, len(c.query), 7):
        prior = np.exp(-((log_odds - found.s[i]) ** 2) / (2 * (GRADES.spread**2 + variance[i])))
        prior /= prior.sum()
        seen = np.ones(len(prior))
        for e, n, k in zip(*(x[c.pair == i] for x in (c.examined, c.shown, c.clicks)), strict=True):
            seen *= (e * GRADES.R) ** k * (1 - e * GRADES.R) ** (n - k)
        assert found.terms[i] == pytest.approx(np.log(prior @ seen), abs=2e-3)


def test_weights_of_the_choice_are_at_the_mode_and_never_against_production() -> None:
    counts, X, given = small()
    part = Part.of(counts, GRADES, X)
    start = started(part, Chosen.log(GRADES), given)

    def height(w: np.ndarray) -> float:
        s = start.flat.s(counts.query, counts.item, start.beta) + (X - start.centre[counts.item]) @ w
        return float(GRADES.terms(s, part.L)[0].sum() - (4 * (w[0] - 0.5) ** 2 + 4 * w[1] ** 2 + w[2] ** 2) / 2)

    best = height(start.w)
    for j in range(3):
        for step in (-0.03, 0.03):
            assert height(start.w + step * np.eye(3)[j]) < best + 1e-2
    against = replace(part, X=-part.X)
    assert weights(against, start.flat, start.beta, -start.centre)[0] >= 0
    assert start.choice(part) == pytest.approx((X - start.centre[counts.item]) @ start.w)
