"""Beliefs of small independent worlds: calibrated, ahead of production and of counting, of use for what has no history."""

from dataclasses import replace
from functools import cache

import graded as beliefs
import numpy as np
import pytest
from graded import Beliefs, Counts, Features

from independent import worlds
from independent.worlds import World
from tandemrank.errors import InputError, LogError


def counts_of(w: World) -> Counts:
    return Counts.of_lists(w.query, w.items, w.clicks, w.theta, Q=w.R.shape[0], D=w.R.shape[1])


@cache
def shop() -> tuple[World, Beliefs]:
    rng = np.random.default_rng(5)
    w = worlds.logged(worlds.graded("small shop", rng, queries=200, items=120, knows=0.5, cold=10), 12_000, rng)
    return w, beliefs.fit(counts_of(w))


def test_true_clicks_are_above_production_and_above_counting() -> None:
    w, found = shop()
    ours, production = worlds.judge(w, found.matrix), worlds.judge_production(w)
    c = found.counts
    rate = np.bincount(c.item, c.C, c.D) / np.maximum(np.bincount(c.item, c.E, c.D), 1)
    table = np.tile(rate, (c.Q, 1))
    table[c.query, c.item] = (c.C + 5 * rate[c.item]) / (c.E + 5)
    counting = worlds.judge(w, lambda q: table[q])
    assert ours.all_items > 1.1 * production.all_items
    assert ours.all_items > 1.02 * counting.all_items
    assert ours.new_items > counting.new_items


def test_beliefs_of_shown_pairs_are_calibrated_by_decile_and_in_their_spread() -> None:
    w, found = shop()
    c = found.counts
    mean, variance = found.remembered
    R = w.R[c.query, c.item]
    cut = np.quantile(mean, np.linspace(0, 1, 11))
    decile = np.clip(np.searchsorted(cut, mean) - 1, 0, 9)
    errors = [abs(float(R[decile == k].mean() - mean[decile == k].mean())) for k in range(10)]
    assert np.mean(errors) < 0.1 * R.mean()
    z = (R - mean) / np.sqrt(variance)
    assert 0.85 < np.mean(np.abs(z) < 1.96) < 0.99


def test_mean_and_variance_of_some_items_are_those_of_the_matrix() -> None:
    w, found = shop()
    q = np.concatenate([w.known[:3], w.cold[:2]])
    items = np.tile(np.arange(w.R.shape[1]), (len(q), 1))
    assert np.abs(found.mean(q, items) - found.matrix(q)).max() < 2e-3
    assert (found.variance(q, items) > 0).all()


def test_the_product_for_a_generator_is_what_is_believed_of_pairs_never_shown() -> None:
    w, found = shop()
    x, y, level = found.product()
    q, d = np.repeat(w.known[:20], w.R.shape[1]), np.tile(np.arange(w.R.shape[1]), 20)
    s = found.before(q, d)[0]
    product = np.einsum("nf,nf->n", x[q], y[d]) + level[d]
    assert np.abs(product - s).max() < 0.05


def test_what_was_seen_long_ago_counts_less_where_relevance_changed() -> None:
    rng = np.random.default_rng(3)
    before, after = (worlds.graded("drift", rng, queries=100, items=60, K2=20, zipf=0.2) for _ in range(2))
    later = replace(before, R=after.R)
    parts = worlds.logged(before, 6_000, rng), worlds.logged(later, 6_000, rng)
    w = replace(
        later,
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in ("query", "items", "clicks")},
    )
    found = beliefs.fit(counts_of(w))
    assert np.isfinite(found.chosen.half_life)
    steady = replace(counts_of(w), time=np.zeros_like(counts_of(w).time))
    assert worlds.judge(w, found.matrix).all_items > 1.02 * worlds.judge(w, beliefs.fit(steady).matrix).all_items


def test_the_same_seed_gives_the_same_beliefs() -> None:
    rng = np.random.default_rng(2)
    w = worlds.logged(worlds.graded("tiny", rng, queries=40, items=30, K2=20), 800, rng)
    a, b = (beliefs.fit(counts_of(w), seed=3).matrix(np.arange(40)) for _ in range(2))
    assert np.array_equal(a, b)


def test_features_answer_queries_without_history() -> None:
    rng = np.random.default_rng(7)
    w = worlds.taste_and_features("small", rng, queries=300, items=150, shares=(0.5, 0, 1), cold=40)
    w = worlds.logged(w, 15_000, rng)
    without = worlds.judge(w, beliefs.fit(counts_of(w)).matrix)
    known = beliefs.fit(counts_of(w), Features(query=w.query_features, item=w.item_features))
    found = worlds.judge(w, known.matrix)
    assert known.chosen.model != "none"
    assert found.cold > 1.1 * without.cold
    assert found.all_items > 0.99 * without.all_items


def test_noise_for_features_costs_next_to_nothing() -> None:
    w, plain = shop()
    rng = np.random.default_rng(0)
    noise = Features(query=rng.normal(size=(len(w.R), 5)), item=rng.normal(size=(w.R.shape[1], 5)))
    found = worlds.judge(w, beliefs.fit(counts_of(w), noise).matrix)
    assert found.all_items > 0.985 * worlds.judge(w, plain.matrix).all_items


def test_a_log_of_one_click_and_a_log_of_none_have_beliefs() -> None:
    rng = np.random.default_rng(0)
    w = worlds.logged(worlds.graded("tiny", rng, queries=5, items=12, K=3, K2=6), 12, rng)
    for clicks in (np.zeros_like(w.clicks), np.eye(12, 3, dtype=np.int64)[::1] * 0 + (np.arange(12) == 0)[:, None]):
        found = beliefs.fit(counts_of(replace(w, clicks=clicks.astype(np.int64)))).matrix(np.arange(5))
        assert np.isfinite(found).all()
        assert ((found >= 0) & (found <= 1)).all()


def test_what_cannot_be_fitted_is_refused() -> None:
    empty = Counts.of_lists(
        np.zeros(0, np.int64), np.zeros((0, 3), np.int64), np.zeros((0, 3), np.int64), np.ones(3), Q=2, D=4
    )
    with pytest.raises(LogError, match="expected a log with impressions"):
        beliefs.fit(empty)
    with pytest.raises(LogError, match="more clicks than showings"):
        Counts.of_rows(
            np.array([0]), np.array([0]), np.ones(1), np.ones(1), np.array([2.0]), impressions=np.ones(1), D=1
        )
    w, _ = shop()
    with pytest.raises(InputError, match="expected vectors of 200 queries"):
        beliefs.fit(counts_of(w), production=(np.ones((3, 2)), np.ones((120, 2))))
