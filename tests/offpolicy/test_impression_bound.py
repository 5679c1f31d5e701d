"""The bound over independent impressions: by sums never more than the impressions say, and it holds."""

import itertools
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError, InputError
from tandemrank.logs import counting
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy import bounds, estimators
from tandemrank.offpolicy.estimators import Estimate

Q, D, K = 30, 6, 3
THETA = np.array([1.0, 0.5, 1 / 3])
LISTS = np.array([[a, b, c] for a in range(D) for b in range(D) for c in range(D) if len({a, b, c}) == 3])


def chances(s: np.ndarray) -> np.ndarray:
    """Plackett-Luce, list by list.  Shapes: s [Q, D] -> [Q, lists]."""
    p, left = np.ones((len(s), len(LISTS))), np.tile(np.exp(s).sum(1)[:, None], len(LISTS))
    for k in range(K):
        own = np.exp(s)[:, LISTS[:, k]]
        p, left = p * own / left, left - own
    return p


def exposure(p: np.ndarray) -> np.ndarray:
    rho = np.zeros((len(p), D))
    for k in range(K):
        for d in range(D):
            rho[:, d] += THETA[k] * p[:, LISTS[:, k] == d].sum(1)
    return rho


def world(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Relevance, the logger's lists, and the exposures of the logger and of a pair that is better."""
    rng = np.random.default_rng(seed)
    liked = rng.normal(size=(Q, D))
    logger, new = 0.3 * liked, 0.9 * liked
    return 1 / (1 + np.exp(-liked)), chances(logger), exposure(chances(logger)), exposure(chances(new))


def draw(R: np.ndarray, p: np.ndarray, N: int, rng: np.random.Generator) -> tuple[Feedback, Impressions]:
    query = rng.integers(Q, size=N)
    at = (rng.random(N)[:, None] > p.cumsum(1)[query]).sum(1)
    items = LISTS[np.minimum(at, len(LISTS) - 1)]
    clicks = (rng.random((N, K)) < THETA * R[query[:, None], items]).astype(np.uint8)
    shown = Impressions(query.astype(np.int32), items.astype(np.int32), clicks)
    return counting.from_impressions([shown], Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))), shown


def test_sums_say_no_more_than_impressions_do() -> None:
    """The wealth by sums is at most that of the bets, impression by impression; the sums are those of the impressions."""
    R, p, rho_0, rho = world(0)
    log, shown = draw(R, p, 400, np.random.default_rng(1))
    w = (rho / rho_0)[log.query, log.item]
    sums = bounds.difference_sums(w, np.ones(len(w)), log, most=K)
    v = (rho / rho_0 - 1)[shown.query[:, None], shown.items]
    X, together = (v * shown.clicks).sum(1), shown.clicks.sum(1)
    assert sums.total == pytest.approx(X.sum())
    assert sums.squares == pytest.approx((together * (v**2 * shown.clicks).sum(1)).sum())
    assert sums.squares >= np.square(X).sum()
    blind = bounds.difference_sums(w, np.ones(len(w)), replace(log, others=None), most=K)
    assert blind.squares == pytest.approx(K * (v**2 * shown.clicks).sum())
    assert blind.squares > sums.squares
    assert (sums.N, sums.floor) == (400, K)
    stakes = bounds.planned_stakes(400, 0.95, floor=K)
    for u in np.linspace(-K, K, 13):
        g = stakes.fractions / K
        bets = np.array([(np.log1p(a * X) - a * u).sum() for a in g])
        assert sums.log_wealth(0.95)(u) <= stakes.log_mean(bets) + 1e-9
    # An impression that loses all it can: there the inequality is an equality, 1 - f.
    stakes = bounds.planned_stakes(1, 0.95, floor=K)
    worst = stakes.log_mean(np.log1p(-stakes.fractions) - stakes.fractions / K * 0.7)
    assert bounds.ImpressionSums(-K, K * K, 1.0, K).log_wealth(0.95)(0.7) == pytest.approx(worst)
    value = bounds.value_sums(w, log, most=K)
    assert (value.floor, value.total) == (0.0, pytest.approx(((v + 1) * shown.clicks).sum()))


def test_the_expected_wealth_at_the_truth_is_at_most_one_over_all_outcomes() -> None:
    """Every outcome of three impressions whose users remember: what the second likes depends on what the first clicked.

    The claim that the bound rests on, by enumeration: E exp(g (sum X - sum U_i) - c g^2 sum X^2) <= 1, U_i given the past.
    """
    v = {0: -1.0, 1: 2.5}  # two lists of one item, each with chance 1/2
    floor, expected = 1.0, np.zeros(3)
    f = np.array([0.1, 0.5, 0.9])
    g, c = f / floor, (-f - np.log1p(-f)) / f**2
    for lists in itertools.product((0, 1), repeat=3):
        for clicks in itertools.product((0, 1), repeat=3):
            chance, gain, squares, past = 1.0, 0.0, 0.0, 0
            for d, click in zip(lists, clicks, strict=True):
                R = np.array([0.2 + 0.3 * past, 0.6 - 0.2 * past])
                chance *= 0.5 * (R[d] if click else 1 - R[d])
                gain += v[d] * click - 0.5 * (v[0] * R[0] + v[1] * R[1])
                squares += (v[d] * click) ** 2
                past = min(past + click, 2)
            expected += chance * np.exp(g * gain - c * g**2 * squares)
    assert (expected <= 1 + 1e-12).all()
    assert expected[0] > 0.98


def test_it_holds_and_is_tighter_than_the_bound_over_queries() -> None:
    R, p, rho_0, rho = world(0)
    n_truth = ((rho - rho_0) * R).sum(1)
    above, gain = 0, []
    for seed in range(200):
        log, _ = draw(R, p, 3000, np.random.default_rng(seed))
        w = (rho / rho_0)[log.query, log.item]
        sums = bounds.difference_sums(w, np.ones(len(w)), log, most=K)
        found = sums.lower_bound(0.9)
        truth = float(log.impressions @ n_truth) / log.N
        above += found > truth
        new = Estimate(estimators.by_query(w * log.clicks, log), log.impressions)
        over_queries = bounds.betting(bounds.difference_terms(new, estimators.by_query(log.clicks, log), K), 0.9)
        gain.append(found - over_queries)
        assert found < sums.mean
    assert above <= 20
    assert np.mean(gain) > 0.1


def test_it_holds_for_a_pair_that_is_worse_on_short_logs() -> None:
    R, p, rho_0, _ = world(3)
    shuffled = rho_0[:, ::-1]
    truth = float(((shuffled - rho_0) * R).sum(1).mean())
    above = 0
    for seed in range(200):
        log, _ = draw(R, p, 500, np.random.default_rng(seed))
        w = (shuffled / rho_0)[log.query, log.item]
        sums = bounds.difference_sums(w, np.ones(len(w)), log, most=K)
        above += sums.lower_bound(0.9) > truth
    assert above <= 20


def test_edges_and_what_is_refused() -> None:
    nothing = bounds.ImpressionSums(0.0, 0.0, 0.0, 3.0)
    assert nothing.lower_bound() == -3.0
    no_clicks = bounds.ImpressionSums(0.0, 0.0, 100.0, 3.0)
    assert -3.0 <= no_clicks.lower_bound() < 0
    lost = bounds.ImpressionSums(-300.0, 900.0, 100.0, 3.0)
    assert lost.lower_bound() == -3.0
    for floor in (0.0, 0.2, 1.0, 50.0):  # always below the mean, and closer with a longer log
        sums = bounds.ImpressionSums(40.0, 60.0, 100.0, floor)
        found = [sums.times(longer).lower_bound() for longer in (1.0, 10.0, 1000.0)]
        assert -floor <= found[0] < found[1] < found[2] < sums.mean
        assert found[2] > 0.37
    with pytest.raises(ConfigError, match="level must be"):
        nothing.lower_bound(1.0)
    R, p, _, _ = world(0)
    log, _ = draw(R, p, 50, np.random.default_rng(0))
    ones = np.ones(len(log.clicks))
    with pytest.raises(InputError, match="expected weights of each of"):
        bounds.value_sums(ones[:1], log, most=K)
    with pytest.raises(InputError, match="both sides need weights of the same rows"):
        bounds.difference_sums(ones[:1], ones, log, most=K)
    with pytest.raises(InputError, match="impressions with weights"):
        bounds.difference_sums(ones, ones, replace(log, impressions=log.impressions * 0.5), most=K)
