"""Reward models on a simulator of their own: what they find, how they are saved, what they refuse."""

from dataclasses import replace
from functools import cache

import numpy as np
import polars as pl
import pytest

from tandemrank._base.ids import Vocabulary
from tandemrank.beliefs import item_rate, memory, posterior
from tandemrank.beliefs.levels import item_levels
from tandemrank.beliefs.memory import Noise
from tandemrank.beliefs.model import RewardModel
from tandemrank.beliefs.space import Shape
from tandemrank.beliefs.vectors import Vectors
from tandemrank.errors import InputError, LogError
from tandemrank.logs import counting
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Impressions

THETA = np.array([1.0, 0.7, 0.4])
Q, D, F = 240, 60, 3


class World:
    """Tastes and items of three dimensions, hidden relevances, uniform lists, clicks with noise."""

    def __init__(self, r1: float, r0: float, n: int = 12_000) -> None:
        rng = np.random.default_rng(5)
        self.queries, self.items = rng.normal(size=(Q, F)), rng.normal(size=(D, F))
        self.level = rng.normal(size=D) - 1.5
        odds = self.level + 1.2 * self.queries @ self.items.T
        self.z = rng.random((Q, D)) < 1 / (1 + np.exp(-odds))
        query = rng.integers(Q, size=n).astype(np.int32)
        lists = rng.permuted(np.tile(np.arange(D), (n, 1)), axis=1)[:, :3].astype(np.int32)
        rate = np.where(self.z[query[:, None], lists], r1, r0)
        clicks = (rng.random((n, 3)) < THETA * rate).astype(np.uint8)
        vocabulary = Vocabulary(pl.Series("query_id", range(Q)), pl.Series("item_id", range(D)))
        self.log = counting.from_impressions([Impressions(query, lists, clicks)], vocabulary)
        self.R = np.where(self.z, r1, r0)

    @property
    def vectors(self) -> Vectors:
        """Of a policy that knows other queries of the same kind."""
        others = np.random.default_rng(6).normal(loc=[0.5, 0, 0], size=(Q, F))
        return Vectors(others.astype(np.float32), self.items.astype(np.float32))


@cache
def world(r1: float = 0.8, r0: float = 0.1, n: int = 12_000) -> World:
    return World(r1, r0, n)


@cache
def fitted(source: str) -> RewardModel:
    if source == "item rate":
        return item_rate.reward_model(world().log, THETA)
    return posterior.fit(world().log, THETA, vectors=world().vectors if source == "policy" else None)


def error(model: RewardModel) -> float:
    """The mean squared error of R over all pairs."""
    return float(np.square(model.matrix(np.arange(Q))[:, :-1] - world().R).mean())


def test_the_posterior_knows_more_than_rates_do() -> None:
    assert error(fitted("policy")) < 0.75 * error(fitted("item rate"))
    assert error(fitted("log")) < error(fitted("item rate"))


def test_the_shape_moves_only_where_held_out_pairs_are_sure() -> None:
    """Queries of this world have no level of their own: a long log says so, a short one leaves the default."""
    short, long = (
        posterior.fit(world(n=n).log, THETA, vectors=world(n=n).vectors).chosen.shape for n in (12_000, 100_000)
    )
    assert short == Shape()
    assert long.level < 0.5 * Shape().level


def test_a_gain_is_sure_by_two_of_its_standard_errors() -> None:
    """Gains 1 and x: 1 + x against 2 sqrt(1 + x^2), or n equal ones: n against 2 sqrt(n)."""
    assert not posterior.surely_better(np.ones(4))
    assert posterior.surely_better(np.ones(5))
    assert not posterior.surely_better(np.array([1.0, 0.2, 0.2]))
    assert not posterior.surely_better(np.zeros(3))


@pytest.mark.parametrize("source", ["policy", "log"])
def test_what_is_believed_happens_as_often_as_it_says(source: str) -> None:
    """Pairs in ten groups of equal belief: the mean of R is what was believed, within five standard errors and a bit."""
    q, d = np.divmod(np.arange(Q * D), D)
    found, truth = fitted(source).at(q, d), world().R.ravel()
    for part in np.array_split(np.argsort(found.mean), 10):
        away = truth[part].mean() - found.mean[part].mean()
        assert abs(away) < 5 * np.sqrt(found.variance[part].sum()) / len(part) + 0.03
    z = np.square(truth - found.mean).mean() / found.variance.mean()
    assert 0.85 < z < 1.15


@pytest.mark.parametrize("source", ["policy", "log", "item rate"])
def test_pairs_and_rows_agree(source: str) -> None:
    model = fitted(source)
    q, d = np.array([0, 7, 7, 239]), np.array([3, 0, 59, 11])
    belief = model.at(q, d)
    assert belief.mean == pytest.approx(model.matrix(q)[np.arange(4), d], rel=1e-5)
    assert (belief.variance >= 0).all()


def test_the_error_of_a_rate_is_that_of_its_gamma_posterior() -> None:
    """A factor (c + s) / (x + s) with s from the excess of variance; its squared relative error is 1 / (c + s)."""
    clicks, expected = np.array([0.0, 9.0, 1.0]), np.array([2.0, 3.0, 2.0])
    excess = (4 - 2) + (36 - 3) + (1 - 2)
    s = (4 + 9 + 4) / excess
    found = item_rate._factor(clicks, expected)
    assert found.value == pytest.approx((clicks + s) / (expected + s))
    assert found.error == pytest.approx(1 / (clicks + s))
    assert found.prior_error == pytest.approx(1 / s)
    model = fitted("item rate")
    assert len(model.at(np.zeros(0, int), np.zeros(0, int)).mean) == 0


@pytest.mark.parametrize(("r1", "r0"), [(0.8, 0.1), (1.0, 0.0), (0.5, 0.02)])
def test_noise_is_found_from_pairs_that_were_shown_again(r1: float, r0: float) -> None:
    found = memory.fit_noise(world(r1, r0).log, THETA)
    assert found.relevant == pytest.approx(r1, abs=0.06)
    assert found.irrelevant == pytest.approx(r0, abs=0.02)


def test_without_pairs_shown_again_the_prior_decides_and_is_never_one_and_zero(feedback_of) -> None:
    once = feedback_of([(q, d, 0, 1, float((q + d) % 4 == 0)) for q in range(6) for d in range(6)], 6, 6)
    found = memory.fit_noise(once, THETA)
    assert 0.5 < found.relevant < 1
    assert 0 < found.irrelevant <= 0.3
    assert memory.fit_noise(feedback_of([(0, 0, 0, 3, 0)], 1, 2), THETA) == memory.START


def test_levels_are_the_share_of_queries_and_shrink_to_what_was_known() -> None:
    rng = np.random.default_rng(0)
    truth, seen, chances = rng.uniform(0.05, 0.6, 40), np.full(40, 4000.0), Noise(0.9, 0.1)
    clicks = rng.poisson(seen * chances.rate(truth)).astype(float)
    many = item_levels(clicks, seen, np.ones((40, 1)), chances)
    assert 1 / (1 + np.exp(-many.after)) == pytest.approx(truth, abs=0.05)
    design = np.column_stack([np.ones(40), np.log(truth / (1 - truth)), rng.normal(size=40)])
    clicks[0], seen[0] = 0, 0  # never shown: only what was known before
    found = item_levels(clicks, seen, design, chances, rising=np.array([False, True, True]))
    assert found.after[0] == pytest.approx(found.before[0], abs=1e-4)
    assert found.after[0] == pytest.approx(design[0, 1], abs=0.3)
    assert found.knowledge > many.knowledge


def test_queries_and_items_without_a_log_have_the_prior(feedback_of) -> None:
    log = feedback_of([(q, d, q % 3, 1, float((q * d) % 5 == 0)) for q in range(10) for d in range(8)], 12, 9)
    model = posterior.fit(log, THETA)
    found = model.matrix(np.array([10, 11]))
    assert np.array_equal(found[0], found[1])
    assert np.isfinite(model.matrix(np.arange(12))).all()
    assert ((found >= 0) & (found <= 1)).all()


def test_extreme_logs_give_numbers(feedback_of) -> None:
    """One query, one item, no click, clicks only, huge counts."""
    for rows, queries, items in (
        ([(0, 0, 0, 1, 0)], 1, 1),
        ([(0, 0, 0, 1, 1)], 1, 2),
        ([(q, d, 0, 1e6, 1e6) for q in range(3) for d in range(3)], 3, 3),
        ([(q, d, 0, 5, 0) for q in range(3) for d in range(3)], 3, 4),
    ):
        model = posterior.fit(feedback_of(rows, queries, items), THETA)
        assert np.isfinite(model.matrix(np.arange(queries))).all()


def test_what_does_not_fit_is_refused(feedback_of) -> None:
    log = feedback_of([(0, 0, 0, 1, 1)], 2, 3)
    with pytest.raises(LogError, match="it has none"):
        posterior.fit(feedback_of([], 2, 3), THETA)
    with pytest.raises(InputError, match="vocabulary has 2 and 3"):
        posterior.fit(log, THETA, vectors=Vectors(np.zeros((3, 2), np.float32), np.zeros((3, 2), np.float32)))
    with pytest.raises(InputError, match="finite"):
        Vectors(np.full((2, 2), np.nan, np.float32), np.zeros((3, 2), np.float32))
    with pytest.raises(InputError, match=r"\[queries, F\]"):
        Vectors(np.zeros((2, 2), np.float32), np.zeros((3, 1), np.float32))


def test_a_policy_that_knows_nobody_apart_is_as_good_as_none() -> None:
    same = Vectors(np.ones((Q, 2), np.float32), np.ones((D, 2), np.float32))
    model = posterior.fit(world().log, THETA, vectors=same)
    assert isinstance(model, posterior.Posterior)
    assert model.chosen.source == "the log alone"


def test_a_fit_is_the_same_twice(feedback_of) -> None:
    log: Feedback = world(n=2000).log
    one, two = (posterior.fit(log, THETA, vectors=world().vectors, seed=3) for _ in range(2))
    assert np.array_equal(one.queries, two.queries)
    assert one.chosen == two.chosen


def chosen_log(informed: bool, seed: int = 0) -> Feedback:
    """The lists of a logger that shows each query what it likes, or what all others see too; 900 queries, 30 items."""
    rng = np.random.default_rng(seed)
    Q, D, K = 900, 30, 3
    likes = rng.random((Q, D)) < 0.3
    scores = 2.0 * (likes if informed else np.tile(likes[:1], (Q, 1)))
    query = rng.integers(Q, size=9000)
    items = np.argsort(-(scores[query] + rng.gumbel(size=(len(query), D))), axis=1)[:, :K]
    clicks = rng.random(items.shape) < THETA[:K] * np.where(likes[query[:, None], items], 0.9, 0.1)
    part = Impressions(query.astype(np.int32), items.astype(np.int32), clicks.astype(np.uint8))
    return counting.from_impressions([part], Vocabulary(pl.Series(range(Q)), pl.Series(range(D))))


def test_the_choice_of_a_logger_counts_as_far_as_its_log_shows_that_it_chooses_well() -> None:
    informed, blind = (posterior.fit(chosen_log(kind), THETA[:3]) for kind in (True, False))
    assert informed.chosen.logger >= 1
    assert blind.chosen.logger <= 0.5


def test_what_the_choice_adds_is_zero_in_the_mean_of_those_who_were_shown_an_item() -> None:
    found = replace(posterior.fit(chosen_log(False), THETA[:3]), query_spread=np.zeros(900))
    plain = replace(found, chosen=replace(found.chosen, logger=0.0))
    choice = np.random.default_rng(1).normal(size=len(found.memory.item))
    moved = posterior.with_choice(plain, choice, 0.5)
    q, d = found.memory.query, found.memory.item

    def log_odds(model, q, d):
        return model.log_odds(q)[np.arange(len(d)), d] + model.memory.at(q, d)

    added = log_odds(moved, q, d) - log_odds(plain, q, d)
    number = np.bincount(d, minlength=30)
    mean = (np.bincount(d, choice, 30) + choice.mean()) / (number + 1)
    assert added == pytest.approx(0.5 * (choice - mean[d]), abs=1e-4)
    shown = np.zeros((900, 30), bool)
    shown[q, d] = True
    others = np.argwhere(~shown)[:50]
    added = log_odds(moved, *others.T) - log_odds(plain, *others.T)
    assert added == pytest.approx(0.5 * (np.log(0.5) - mean[others[:, 1]]), abs=1e-4)
    assert posterior.with_choice(plain, choice, 0.0) is plain


def test_the_scores_of_a_logger_count_as_far_as_its_log_shows_that_they_are_right() -> None:
    rng = np.random.default_rng(0)
    likes, noisy = rng.random((900, 30)) < 0.3, rng.normal(size=(900, 30))  # the likes are those of `chosen_log`
    log, items = chosen_log(True), np.eye(30, dtype=np.float32)
    right, wrong, same = (
        posterior.fit(log, THETA[:3], logger=Vectors(scores.astype(np.float32), items)).chosen.opinion
        for scores in (2.0 * likes, noisy, np.tile(noisy[:1], (900, 1)))
    )
    assert right >= 1
    assert wrong <= 0.25
    assert same == 0  # it knows no query from another


def test_what_a_loggers_score_adds_is_zero_in_the_mean_of_those_who_were_shown_an_item() -> None:
    plain = posterior.fit(chosen_log(False), THETA[:3])
    rng = np.random.default_rng(2)
    logger = Vectors(*(rng.normal(size=(n, 2)).astype(np.float32) for n in (900, 30)))
    moved = posterior.with_opinion(plain, logger, 0.5)
    scores, (q, d) = logger.queries @ logger.items.T, (plain.memory.query, plain.memory.item)
    mean = (np.bincount(d, scores[q, d], 30) + scores.mean(0)) / (np.bincount(d, minlength=30) + 1)
    every = np.arange(900)
    assert moved.log_odds(every) - plain.log_odds(every) == pytest.approx(0.5 * (scores - mean), abs=1e-4)
    assert moved.chosen == replace(plain.chosen, opinion=0.5)
    assert posterior.with_opinion(plain, logger, 0.0) is plain
