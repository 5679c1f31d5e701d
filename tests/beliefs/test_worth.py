"""What a click is worth: shrunk as far as items differ, by features where these say it, and as the order of a belief."""

import numpy as np
import polars as pl
import pytest

import tandemrank as tr
from tandemrank._base.ids import Vocabulary
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.fitting import fit
from tandemrank.beliefs.scorer import generator_of, log_odds, ranker_of
from tandemrank.beliefs.worth import LEAST, by_worth, item_worth
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.counting import from_impressions
from tandemrank.logs.impressions import Impressions
from tandemrank.policies.two_stage import TwoStagePolicy


def sums(item: np.ndarray, v: np.ndarray, D: int) -> tuple[np.ndarray, ...]:
    return tuple(np.bincount(item, x, D) for x in (v, np.ones_like(v), v * v))


def test_worth_by_hand() -> None:
    """Two items with two clicks each: within variance 1, between them 16 less half of it."""
    v, item = np.array([1.0, 3.0, 9.0, 11.0]), np.array([0, 0, 1, 1])
    within, between = (1 + 1 + 1 + 1) / (4 - 2), (2 * 16 + 2 * 16 - 2 * 2) / 4
    kappa = within / between
    assert item_worth(*sums(item, v, 3)) == pytest.approx(
        [(4 + kappa * 6) / (2 + kappa), (20 + kappa * 6) / (2 + kappa), 6.0]
    )


def test_few_clicks_are_pulled_to_the_mean_and_many_are_not() -> None:
    rng, D = np.random.default_rng(0), 300
    truth = np.exp(rng.normal(2, 0.4, D))
    clicks = rng.geometric(0.1, D)
    item = np.repeat(np.arange(D), clicks)
    v = truth[item] * rng.exponential(size=len(item))
    gained, number, squares = sums(item, v, D)
    found = item_worth(gained, number, squares)
    errors = [
        float(np.square(x - truth).mean()) for x in (found, gained / number, np.full(D, gained.sum() / number.sum()))
    ]
    assert errors[0] < 0.8 * min(errors[1:])
    features = np.column_stack([np.log(truth), rng.normal(size=D)])
    assert float(np.square(item_worth(gained, number, squares, features) - truth).mean()) < 0.6 * errors[0]
    same = np.full(len(v), 3.0)
    assert item_worth(*sums(item, same, D + 1)) == pytest.approx(np.full(D + 1, 3.0))
    assert item_worth(*sums(np.array([0, 1]), np.array([0.0, 2.0]), 2)).min() >= LEAST
    with pytest.raises(LogError, match="worth something"):
        item_worth(np.zeros(2), np.ones(2), np.zeros(2))


Q, D, K = 60, 20, 4


def shop(N: int, seed: int) -> tuple[np.ndarray, np.ndarray, pl.DataFrame]:
    """Click rates, prices that have nothing to do with them, and the log of a system that draws at random."""
    rng = np.random.default_rng(seed)
    R, price = 0.6 * rng.beta(1, 2, (Q, D)), np.exp(rng.normal(2, 0.8, D))
    q = rng.integers(0, Q, N)
    items = np.argsort(rng.random((N, D)), 1)[:, :K]
    clicks = rng.random((N, K)) < R[q[:, None], items] / np.arange(1, K + 1)
    paid = np.where(clicks, price[items] * rng.uniform(0.5, 1.5, items.shape), 0.0)
    columns = {"items": items, "clicks": clicks.astype(np.uint8), "paid": paid}
    log = pl.DataFrame(
        {"query_id": q, **columns, "propensities": np.full(items.shape, (1 / np.arange(1, K + 1)).sum() / D)}
    )
    return R, price, log.with_columns(pl.col(*columns, "propensities").arr.to_list())


def test_a_belief_by_worth_orders_by_expected_values() -> None:
    R, price, log = shop(8_000, seed=1)
    frame = log.select("query_id", "items", "clicks")
    shown = Impressions(
        frame["query_id"].to_numpy().astype(np.int32),
        np.array(frame["items"].to_list(), np.int32),
        np.array(frame["clicks"].to_list(), np.uint8),
    )
    ids = Vocabulary(pl.Series(np.arange(Q)), pl.Series(np.arange(D)))
    beliefs = fit(Counts.of([from_impressions([shown], ids)], 1 / np.arange(1, K + 1)))
    ranker = ranker_of(beliefs)
    valued = by_worth(ranker, price)
    mean = beliefs.remembered[0]
    wanted = log_odds(mean * price[beliefs.counts.item] / price.max())
    if not beliefs.chosen.grades.is_bit:
        assert valued.memory.value == pytest.approx(wanted, abs=1e-4)
    assert np.array_equal(ranker.items.numpy()[:, :-2], valued.items.numpy()[:, :-2])
    policy = TwoStagePolicy(generator_of(valued, 8), valued, 10, K, ids)
    best = policy.most_likely(np.arange(Q))
    plain = TwoStagePolicy(ranker, ranker, D, K, ids).most_likely(np.arange(Q))
    theta = 1 / np.arange(1, K + 1)
    worth, clicked = ((theta * R[np.arange(Q)[:, None], x] * price[x]).sum(1).mean() for x in (best, plain))
    ideal = np.sort(R * price, 1)[:, ::-1][:, :K] @ theta
    assert worth > 1.1 * clicked
    assert worth > 0.9 * ideal.mean()


def test_learning_by_a_reward_gets_more_of_it(tmp_path) -> None:
    R, price, log = shop(8_000, seed=2)
    learned = tr.learn(log, reward="paid")
    by_clicks = tr.learn(log, method="beliefs")
    theta = 1 / np.arange(1, K + 1)

    def truth(policy: TwoStagePolicy) -> float:
        lists = policy.most_likely(np.arange(Q))
        return float((theta * R[np.arange(Q)[:, None], lists] * price[lists]).sum(1).mean())

    assert truth(learned.policy) > 1.1 * truth(by_clicks.policy)
    [value] = learned.values.values()
    assert (learned.reward, value.reward.name) == ("paid", "paid")
    assert learned.production.value == pytest.approx(log["paid"].list.sum().mean(), rel=0.2)
    assert (
        abs(learned.most_likely["beliefs"].value - truth(learned.policy))
        < 5 * learned.most_likely["beliefs"].standard_error
    )
    learned.policy.save(tmp_path / "policy")
    again = tr.load(tmp_path / "policy")
    assert np.array_equal(again.most_likely(np.arange(Q)), learned.policy.most_likely(np.arange(Q)))
    from tandemrank.reports import training

    page = training.report(learned).html()
    assert "Paid per impression" in page
    for switches in ({"method": "joint"}, {"config": tr.LearningConfig(safe=True)}):
        with pytest.raises(ConfigError, match="a reward is learned by the beliefs alone"):
            tr.learn(log, reward="paid", **switches)
