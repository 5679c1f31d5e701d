"""Two arms of live traffic against the bounds of a sample; and coverage when one looks after every impression."""

import numpy as np
import pytest
from scipy.stats import binom

from tandemrank.errors import ConfigError, InputError
from tandemrank.offpolicy import bounds, sequential
from tandemrank.offpolicy.bounds import Terms
from tandemrank.offpolicy.sequential import TwoArms


def arms(most: int, centre: float, new: np.ndarray, old: np.ndarray, share: float) -> TwoArms:
    return TwoArms(most, centre).update(new, old, share)


def test_the_interval_of_two_arms_is_that_of_the_terms_written_out() -> None:
    rng = np.random.default_rng(2)
    new, old = rng.binomial(3, 0.3, 200), rng.binomial(3, 0.2, 800)
    found = arms(3, 0.6, new, old, 0.2)
    z = np.concatenate([(new - 0.6) / 0.2, -(old - 0.6) / 0.8])
    assert found.difference == pytest.approx(z.mean())
    assert found.impressions == (200, 800)
    low, high = found.interval(0.9)
    floor, ceiling = max(2.4 / 0.8, 0.6 / 0.2), max(2.4 / 0.2, 0.6 / 0.8)
    terms = Terms(z, np.ones(1000), floor, ceiling)
    stakes = bounds.spread_stakes()
    assert low == pytest.approx(bounds.betting(terms, 0.95, stakes=stakes), rel=1e-6)
    assert high == pytest.approx(-bounds.betting(terms.mirrored(), 0.95, stakes=stakes), rel=1e-6)
    assert low < z.mean() < high
    # An end of the interval is where the evidence is 1 / (half of delta).
    assert found.evidence(low)[0] == pytest.approx(np.log(20), rel=1e-6)
    assert found.evidence(high)[1] == pytest.approx(np.log(20), rel=1e-6)
    assert found.evidence(high)[0] < 0
    # Parts of the stream make the whole.
    parts = TwoArms(3, 0.6).update(new[:50], old[:300], 0.2).update(new[50:], old[300:], 0.2)
    assert parts.interval(0.9) == found.interval(0.9)


def test_a_share_that_changes_joins_its_evidence() -> None:
    rng = np.random.default_rng(3)
    first = TwoArms(2, 0.5).update(rng.binomial(2, 0.3, 100), rng.binomial(2, 0.25, 1900), 0.05)
    both = first.update(rng.binomial(2, 0.3, 10_000), rng.binomial(2, 0.25, 10_000), 0.5)
    widths = [high - low for low, high in (first.interval(), both.interval())]
    assert widths[1] < widths[0] / 3
    low, high = both.interval()
    assert low < 0.1 < high
    assert low > 0


def test_the_centre_takes_noise_out() -> None:
    rng = np.random.default_rng(4)
    new, old = rng.binomial(10, 0.1, 5000), rng.binomial(10, 0.1, 5000)
    plain, centred = (arms(10, centre, new, old, 0.5).interval() for centre in (0.0, 1.0))
    assert centred[1] - centred[0] < 0.8 * (plain[1] - plain[0])


@pytest.mark.parametrize(("share", "rates"), [(0.5, (0.1, 0.1)), (0.1, (0.12, 0.1))])
def test_the_interval_holds_at_every_look(share: float, rates: tuple[float, float]) -> None:
    """300 streams of 2,000 impressions, 20 looks each: all looks of a stream together count as one."""
    rng = np.random.default_rng(5)
    misses = 0
    for _ in range(300):
        stream, missed = TwoArms(2, 0.2), False
        for _ in range(20):
            n = rng.binomial(100, share)
            stream = stream.update(rng.binomial(2, rates[0], n), rng.binomial(2, rates[1], 100 - n), share)
            missed |= max(stream.evidence(2 * (rates[0] - rates[1]))) > np.log(40)
        misses += missed
    assert misses <= 15


def test_edges_nothing_yet_no_clicks_and_what_is_refused() -> None:
    nothing = TwoArms(10)
    assert nothing.interval() == (-10, 10)
    assert np.isnan(nothing.difference)
    quiet = nothing.update([0] * 100, [0] * 900, 0.1)
    low, high = quiet.interval()
    assert -10 < low < 0 < high < 10
    assert nothing.update([], [], 0.1).impressions == (0, 0)
    assert nothing.update([], [], 0.1).interval() == (-10, 10)
    with pytest.raises(InputError, match="expected 0 to 10 clicks per impression; got 11 to 11"):
        nothing.update([11], [], 0.1)
    with pytest.raises(ConfigError, match="share of the new policy"):
        nothing.update([1], [0], 1.0)
    with pytest.raises(ConfigError, match="0 <= centre <= most"):
        TwoArms(2, 3.0)


def test_stakes_for_a_loss_find_it_soon_and_hold_as_all_others() -> None:
    """The stake is the best of its kind for the loss that it is for, and the wealth of no stake grows without a loss."""
    K, usual, share = 10, 0.5, 0.1
    stakes = sequential.stakes_against_a_loss(K, usual, share)
    assert stakes.shares.sum() == pytest.approx(1)
    assert stakes.shares[-1] == 0.8
    clicks = np.arange(K + 1)
    values = np.concatenate([-(clicks - usual) / share, (clicks - usual) / (1 - share)])
    floor = -values.min()

    def growth(rate: float) -> np.ndarray:
        chances = np.concatenate(
            [share * binom.pmf(clicks, K, rate / K), (1 - share) * binom.pmf(clicks, K, usual / K)]
        )
        return np.log1p(stakes.fractions[:, None] * values / floor) @ chances

    assert growth(usual).max() <= 0
    assert growth(usual / 2)[-1] == growth(usual / 2).max() > 0
    assert sequential.stakes_against_a_loss(K, 0.0, share).shares.max() == pytest.approx(1 / 24)
    arms = TwoArms(K, usual, against=stakes).update(np.array([0] * 150), np.array([0, 1] * 700), share)
    low, high = arms.one_sided(0.95)
    wide = arms.interval(0.95)
    assert wide[0] < low < arms.difference < high < wide[1]
    assert arms.evidence(high)[1] == pytest.approx(np.log(20), abs=1e-5)
    assert arms.evidence(low)[0] == pytest.approx(np.log(20), abs=1e-5)
