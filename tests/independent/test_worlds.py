"""The worlds that judge learners: independent of the package, and what their names say."""

from pathlib import Path

import numpy as np

from independent import worlds


def test_the_worlds_know_the_package_by_no_import() -> None:
    assert "tandemrank" not in Path(worlds.__file__).read_text(encoding="utf-8")


def test_clicks_come_with_theta_times_relevance() -> None:
    rng = np.random.default_rng(0)
    w = worlds.logged(worlds.graded("w", rng, queries=20, items=30, K2=15), 20_000, rng)
    expected = (w.theta * w.R[w.query[:, None], w.items]).mean(0)
    assert np.abs(w.clicks.mean(0) - expected).max() < 5 * np.sqrt(0.25 / len(w.query))


def test_lists_have_no_item_twice_and_readers_who_stop_click_less() -> None:
    rng = np.random.default_rng(0)
    w = worlds.logged(worlds.graded("w", rng, queries=20, items=30, K2=15), 3_000, rng)
    assert (np.sort(w.items, 1)[:, 1:] != np.sort(w.items, 1)[:, :-1]).all()
    stopped = worlds.clicks_on(w, w.query, w.items, np.random.default_rng(1), stop=True)
    assert stopped.sum() < w.clicks.sum()


def test_expected_clicks_are_those_that_come() -> None:
    rng = np.random.default_rng(0)
    for how in ({}, {"trust": 0.2}, {"stop": True}):
        w = worlds.logged(worlds.graded("w", rng, queries=20, items=30, K2=15), 20_000, rng, **how)
        expected = worlds.expected_clicks(w, w.query, w.items)
        error = (w.clicks.sum(1) - expected).std() / np.sqrt(len(w.query))
        assert abs(w.clicks.sum(1).mean() - expected.mean()) < 5 * error


def test_the_best_is_above_production_and_the_judge_counts_theta_times_relevance() -> None:
    w = worlds.smallest(3)
    best = worlds.judge_best(w).all_items
    assert best > worlds.judge_production(w).all_items
    top = np.sort(w.R, 1)[:, ::-1][:, : len(w.theta)]
    assert abs(best - np.average(top @ w.theta, weights=w.traffic)) < 1e-12
