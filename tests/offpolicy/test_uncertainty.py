"""The bootstrap over queries: every query, as often as any other, and all estimates on the same draws."""

import numpy as np
import polars as pl
import pytest

from tandemrank._base.ids import Vocabulary
from tandemrank.logs.counting import from_impressions
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy.estimators import Estimate
from tandemrank.offpolicy.uncertainty import bootstrap, impression_noise, percentile_interval, share_of_wins


def test_bootstrap_agrees_with_the_delta_method_and_pairs_its_draws() -> None:
    rng = np.random.default_rng(0)
    n = rng.integers(0, 9, 400).astype(float)
    found = Estimate(rng.gamma(2, 1, 400) * n, n)
    other = Estimate(found.numerator + 0.5 * n, n)
    values = bootstrap([found, other], n > 0, replicates=4000, seed=1)
    assert values[:, 0].std() == pytest.approx(found.standard_error, rel=0.06)
    assert values[:, 1] - values[:, 0] == pytest.approx(0.5)  # a constant difference has no noise
    assert np.array_equal(values, bootstrap([found, other], n > 0, replicates=4000, seed=1))
    # One estimate alone sees the draws that it sees beside others, so values of one log are paired whoever made them.
    assert np.array_equal(values[:, 1], bootstrap([other], n > 0, replicates=4000, seed=1)[:, 0])


@pytest.mark.parametrize("at_once", [2**22, 50])
def test_every_logged_query_is_drawn_as_often_as_any_other(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its share of a draw is 1/n on average, of the first and of the last; queries without impressions are never drawn."""
    monkeypatch.setattr("tandemrank.offpolicy.uncertainty.RESAMPLED", at_once)
    Q, logged = 7, np.array([True, True, False, True, True, True, False])
    n, replicates = 5, 4000
    shares = np.column_stack(
        [bootstrap([Estimate(np.eye(Q)[q], np.ones(Q))], logged, replicates=replicates, seed=3)[:, 0] for q in range(Q)]
    )
    error = np.sqrt((1 - 1 / n) / n / n / replicates)
    assert np.abs(shares[:, logged].mean(0) - 1 / n).max() < 5 * error
    assert (shares[:, ~logged] == 0).all()
    assert shares.sum(1) == pytest.approx(1)  # n queries in each draw
    assert shares[:, logged].std(0) == pytest.approx(np.full(n, np.sqrt((1 - 1 / n) / n / n)), rel=0.1)


@pytest.mark.parametrize("several", [False, True])
def test_noise_over_impressions_is_that_of_clicks_drawn_anew(several: bool) -> None:
    """One query, three rows. With one click per list at most the covariance is that of a multinomial, exactly; with several the
    variance of the number of clicks is that of the impressions."""
    rng, n = np.random.default_rng(0), 4000
    chance = np.array([0.3, 0.2, 0.1])
    clicks = rng.random((n, 3)) < chance if several else rng.random((n, 1)) < np.cumsum(chance)
    if not several:
        clicks = np.diff(clicks.astype(int), axis=1, prepend=0) > 0
    items = np.tile(np.arange(3, dtype=np.int32), (n, 1))
    words = Vocabulary(pl.Series([7]), pl.Series(range(3)))
    log = from_impressions([Impressions(np.zeros(n, np.int32), items, clicks.astype(np.uint8))], words)
    weights = [np.ones(3), np.array([2.0, 0.0, 1.0])]
    noise = impression_noise(weights, log, most=3, replicates=8000, seed=1)
    X = clicks @ np.stack(weights, axis=1)
    wanted = np.cov(X.T, bias=True) / n
    assert noise[:, 0].var() == pytest.approx(wanted[0, 0], rel=0.08)
    assert noise[:, 1].var() == pytest.approx(wanted[1, 1], rel=0.08) or (several and noise[:, 1].var() > wanted[1, 1])
    if not several:
        assert np.cov(noise.T)[0, 1] == pytest.approx(wanted[0, 1], rel=0.1)
    assert np.abs(noise.mean(0)).max() < 5 * noise.std() / 8000**0.5
    assert np.array_equal(noise[:, 1], impression_noise(weights[1:], log, most=3, replicates=8000, seed=1)[:, 0])


def test_draws_that_say_nothing_are_left_out() -> None:
    nothing = np.full(3, np.nan)
    draws = np.concatenate([nothing, [-1.0, 0.0, 1.0, 2.0]])
    assert share_of_wins(draws) == 0.5
    assert percentile_interval(draws, 0.9) == pytest.approx((-0.85, 1.85))
    assert np.isnan([share_of_wins(nothing), *percentile_interval(nothing, 0.9)]).all()
