"""Levels of items against the highest point of their likelihood on a grid, and at their limits."""

import numpy as np
import pytest

from tandemrank.beliefs.grades import Grades, sigmoid
from tandemrank.beliefs.levels import KNOWLEDGE, item_levels, log_shown

GRADES = Grades.bit(0.9, 0.02)


def test_a_level_is_the_mode_of_likelihood_and_prior() -> None:
    rng = np.random.default_rng(0)
    seen = rng.integers(5, 400, 60).astype(float)
    rate = GRADES.rate(rng.normal(-2, 1, 60))
    clicks = rng.poisson(seen * rate).astype(float)
    found = item_levels(clicks, seen, np.ones((60, 1)), GRADES)
    grid = np.linspace(-9, 6, 30_001)
    p = sigmoid(found.before[:1])
    precision = float(found.knowledge * (p * (1 - p))[0])
    for d in range(60):
        rate = GRADES.rate(grid)
        height = clicks[d] * np.log(rate) - seen[d] * rate - precision * (grid - found.before[d]) ** 2 / 2
        assert found.after[d] == pytest.approx(grid[np.argmax(height)], abs=0.02)


def test_an_item_without_a_log_has_the_level_of_its_design() -> None:
    rng = np.random.default_rng(1)
    z = rng.normal(size=200)
    seen = np.full(200, 300.0)
    clicks = rng.poisson(seen * GRADES.rate(-1.5 + 0.8 * z)).astype(float)
    seen[:20] = clicks[:20] = 0
    found = item_levels(clicks, seen, np.column_stack([np.ones(200), z]), GRADES)
    assert found.after[:20] == pytest.approx(found.before[:20], abs=1e-6)
    assert found.before == pytest.approx(-1.5 + 0.8 * z, abs=0.15)


def test_a_column_that_may_only_rise_is_left_out_where_it_falls() -> None:
    rng = np.random.default_rng(2)
    z, seen = rng.normal(size=100), np.full(100, 200.0)
    clicks = rng.poisson(seen * GRADES.rate(-1.0 - z)).astype(float)
    design = np.column_stack([np.ones(100), z])
    free, bound = (
        item_levels(clicks, seen, design[:, :1], GRADES, z[:, None]),
        item_levels(clicks, seen, design, GRADES),
    )
    assert np.corrcoef(free.before, z)[0, 1] < -0.99
    assert np.ptp(bound.before) < 1e-9


def test_features_count_where_they_say_something_and_columns_of_noise_do_not() -> None:
    rng = np.random.default_rng(4)
    z, seen, one = rng.normal(size=(400, 30)), np.full(400, 15.0), np.ones((400, 1))
    clicks = rng.poisson(seen * GRADES.rate(-2 + 0.8 * z[:, 0])).astype(float)
    told, noise, plain = (item_levels(clicks, seen, one, GRADES, x).before for x in (z, z[:, 1:], None))
    assert np.corrcoef(told, z[:, 0])[0, 1] > 0.9
    assert noise.std() < 0.12 < told.std()
    assert plain.std() < 1e-9


def test_items_that_do_not_differ_are_worth_much_knowledge_and_others_little() -> None:
    rng = np.random.default_rng(3)
    seen = np.full(300, 500.0)
    same, apart = (
        item_levels(rng.poisson(seen * GRADES.rate(g)).astype(float), seen, np.ones((300, 1)), GRADES).knowledge
        for g in (np.full(300, -2.0), rng.normal(-2, 2, 300))
    )
    assert same >= 1000 * apart
    assert apart <= KNOWLEDGE[4]


def test_no_click_at_all_and_clicks_at_every_look_have_finite_levels() -> None:
    for clicks in (np.zeros(5), np.full(5, 40.0)):
        found = item_levels(clicks, np.full(5, 40.0), np.ones((5, 1)), GRADES)
        assert np.isfinite(found.after).all()


def test_an_item_that_was_never_shown_is_new_or_production_had_the_chance() -> None:
    """Counts are drawn from the model; the posterior is the sum over a fine grid, at the true constants."""
    rng = np.random.default_rng(2)
    D, tau, share = 4000, 1.0, 0.1
    z = rng.normal(size=(D, 1))
    mu, new = 1.5 + 2.0 * z[:, 0], rng.random(D) < share
    number = np.where(new, 0, rng.poisson(np.exp(mu + tau * rng.normal(size=D)))).astype(float)
    never = number == 0
    found = log_shown(number, np.ones(D), z)
    at = mu[never, None] + tau * np.linspace(-6, 6, 2001)
    none = np.exp(-(np.linspace(-6, 6, 2001) ** 2) / 2 - np.exp(at))
    chance = none.sum(1) / np.exp(-(np.linspace(-6, 6, 2001) ** 2) / 2).sum()
    had = (1 - share) * chance / ((1 - share) * chance + share)
    wanted = had * (none * at).sum(1) / none.sum(1) + (1 - had) * mu[never]
    shift = np.mean(found[~never] - np.log(number[~never] + 0.5))
    assert np.abs(found[never] - shift - wanted).mean() < 0.15
    assert found[new & (mu > 3)].mean() > found[never & ~new].mean() + 2


def test_no_item_is_new_where_all_were_shown_and_without_features_none_is_told_from_another() -> None:
    shown = np.array([1.0, 4.0, 9.0])
    wanted = np.log(shown + 0.5)
    assert log_shown(shown, np.ones(3), np.zeros((3, 0))) == pytest.approx(wanted - wanted.mean())
    found = log_shown(np.append(np.full(50, 200.0), [0, 0]), np.ones(52), np.zeros((52, 0)))
    assert found[-1] == found[-2]
    assert found[-1] == pytest.approx(found[0], abs=0.1)  # others are shown 200 times: it had no chance
