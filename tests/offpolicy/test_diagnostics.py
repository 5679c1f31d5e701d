"""The worst and the best case of what a deterministic log never showed, by worlds in which either is true."""

import numpy as np
import polars as pl
import pytest

import item_rate
from tandemrank._base.ids import Vocabulary
from tandemrank.logs import counting
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy import valuation
from tandemrank.offpolicy.diagnostics import _by_weight
from tandemrank.offpolicy.estimators import Estimate
from tandemrank.offpolicy.verdicts import Verdict
from tandemrank.policies.scorers import GivenScores
from tandemrank.policies.two_stage import TwoStagePolicy

Q, D, K = 120, 6, 2
THETA = np.array([1.0, 0.5])
VOCABULARY = Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))


def world(unshown: float | None) -> tuple[np.ndarray, np.ndarray, TwoStagePolicy]:
    """Lists that never change, relevance (of what is never shown as told), and a pair that shows a third of the rest."""
    rng = np.random.default_rng(0)
    shown = np.argsort(rng.random((Q, D)), axis=1)[:, :K]
    R = rng.random((Q, D))
    if unshown is not None:
        seen = np.zeros((Q, D), bool)
        np.put_along_axis(seen, shown, True, 1)
        R = np.where(seen, R, unshown)
    scores = 0.3 * rng.normal(size=(Q, D))
    np.put_along_axis(scores, shown, 2.0, 1)
    scorer = GivenScores(scores)
    return shown, R, TwoStagePolicy(scorer, scorer, D, K, VOCABULARY)


def draw(shown: np.ndarray, R: np.ndarray, seed: int) -> Impressions:
    rng = np.random.default_rng(seed)
    query = rng.integers(Q, size=20_000)
    items = shown[query]
    clicks = rng.random(items.shape) < THETA * R[query[:, None], items]
    return Impressions(query.astype(np.int32), items.astype(np.int32), clicks.astype(np.uint8))


@pytest.mark.parametrize("unshown", [0.0, 1.0, None])
def test_the_value_is_in_the_range_and_at_its_ends_in_the_extreme_worlds(unshown) -> None:
    shown, R, pair = world(unshown)
    log = counting.from_impressions([draw(shown, R, 1)], VOCABULARY)
    found = valuation.estimate(pair, log, examination=THETA, estimator="ips", samples=200)
    q, d = np.divmod(np.arange(Q * D), D)
    rho = pair.exposure(q, d, THETA, samples=2000)[0].reshape(Q, D)
    truth = float(log.impressions @ (rho * R).sum(1)) / log.N
    cases, error = found.identified, 5 * found.standard_error
    assert found.propensity == "frequency"
    assert cases.worst == found.value
    assert cases.missing == pytest.approx(cases.best - cases.worst)
    assert 0.1 < cases.missing < 0.9
    assert cases.interval[0] < truth < cases.interval[1] or unshown is not None
    if unshown is not None:
        assert abs(truth - (cases.best if unshown else cases.worst)) < error + 0.01
    assert found.verdict != Verdict.TRUST
    assert any("whatever the items that were never shown are worth" in reason for reason in found.reasons)
    assert found.summary()["worst_case"] == cases.worst


def test_with_full_support_there_is_no_range() -> None:
    shown, R, _ = world(None)
    inside = np.full((Q, D), -30.0)
    np.put_along_axis(inside, shown, 0.0, 1)
    pair = TwoStagePolicy(GivenScores(inside), GivenScores(R), K, K, VOCABULARY)
    log = counting.from_impressions([draw(shown, R, 2)], VOCABULARY)
    found = valuation.estimate(pair, log, examination=THETA, estimator="ips")
    assert found.identified.missing == pytest.approx(0, abs=1e-6)
    assert found.verdict == Verdict.TRUST
    assert isinstance(found.estimate, Estimate)


@pytest.mark.parametrize("estimator", ["beta_ips", "doubly_robust"])
def test_the_range_holds_the_value_of_any_estimator(estimator) -> None:
    """Beta-IPS takes away what the weights found too much of: its value may be below IPS, which is the worst case by itself."""
    _, R, pair = world(None)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        query = rng.integers(Q, size=600)
        items = np.argsort(rng.random((600, D)), axis=1)[:, :K].astype(np.int32)
        clicks = rng.random(items.shape) < THETA * R[query[:, None], items]
        lists = Impressions(query.astype(np.int32), items, clicks.astype(np.uint8))
        log = counting.from_impressions(
            [lists], VOCABULARY, propensities=lambda part: np.full(part.items.shape, THETA.sum() / D)
        )
        reward = item_rate.reward_model(log, THETA) if estimator == "doubly_robust" else None
        found = valuation.estimate(pair, log, examination=THETA, estimator=estimator, reward=reward)
        assert found.identified.worst <= found.value <= found.identified.best


@pytest.mark.parametrize("changes", [False, True])
def test_the_error_of_the_balance_of_few_queries_is_not_below_its_bootstrap(changes: bool) -> None:
    """Items that stand together, and propensities that change from list to list: sums know neither."""
    rng, n, K = np.random.default_rng(1), 4000, 3
    theta, D = np.array([1.0, 0.6, 0.4]), 9
    sharp = rng.choice([0.0, 2.0], n) if changes else np.ones(n)
    block = (rng.random(n) < 1 / (1 + np.exp(sharp))).astype(int)  # one of two, each of three items in random order
    items = 3 * block[:, None] + rng.permuted(np.tile(np.arange(3), (n, 1)), axis=1)
    chance = np.where(block == 1, 1 / (1 + np.exp(sharp)), 1 / (1 + np.exp(-sharp)))
    p = np.repeat(chance[:, None] * theta.sum() / 3, K, axis=1)
    clicks = (rng.random((n, K)) < 0.3 * theta).astype(np.uint8)
    columns = {"items": items, "clicks": clicks, "propensities": p}
    frame = pl.DataFrame({"query_id": np.zeros(n, int), **{k: pl.Series(x).arr.to_list() for k, x in columns.items()}})
    scores = GivenScores(np.array([[0.0] * 3 + [1.0] * 3 + [-30.0] * 3]))
    policy = TwoStagePolicy(scores, scores, D, K, Vocabulary(pl.Series([0]), pl.Series(range(D))))
    found = valuation.estimate(policy, frame, examination=theta, samples=2000).diagnostics
    rho, _ = policy.exposure(np.zeros(D, int), np.arange(D), theta, samples=4000)
    each = (theta * rho[items] / p).sum(1) / theta.sum()
    bootstrap = each.std() / np.sqrt(n)
    assert bootstrap < found.balance_error < 2.5 * bootstrap
    assert abs(found.balance - 1) < 5 * bootstrap


def test_the_histogram_of_weights_adds_up_to_what_is_supported() -> None:
    shown, R, pair = world(None)
    log = counting.from_impressions([draw(shown, R, 1)], VOCABULARY)
    rests = valuation.estimate(pair, log, examination=THETA, samples=50).diagnostics
    assert rests is not None
    assert rests.by_weight is not None
    assert sum(rests.by_weight.logged) == pytest.approx(1)
    assert sum(rests.by_weight.exposed) == pytest.approx(1 - rests.unsupported)
    assert "by_weight" not in rests.summary()
    by_hand = _by_weight(np.array([0.05, 1.0, 2.0, 200.0]), np.array([4.0, 2.0, 1.0, 0.1]), 0.5)
    assert by_hand.logged == pytest.approx([4 / 7.1, 0, 0, 3 / 7.1, 0, 0, 0, 0.1 / 7.1])
    assert by_hand.exposed == pytest.approx([0.5 * 0.2 / 24.2, 0, 0, 0.5 * 4 / 24.2, 0, 0, 0, 0.5 * 20 / 24.2])
