"""Trust bias: the affine form is the model, and tau is found by pairs whose relevance differs."""

import numpy as np
import polars as pl
import pytest

from tandemrank._base.ids import Vocabulary
from tandemrank.clicks import models, trust
from tandemrank.logs import counting
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Impressions

Q, D, K = 60, 20, 4


def log(n: int, tau: float, seed: int, level: float = 1.0) -> Feedback:
    rng = np.random.default_rng(seed)
    R = 0.7 / (1 + np.exp(level - rng.normal(size=D) - 0.7 * rng.normal(size=(Q, D))))
    model = models.noisy(models.examination_curve(K), trust_bias=tau)
    query = rng.integers(0, Q, n)
    items = np.argsort(-(R[query] + 0.3 * rng.gumbel(size=(n, D))), axis=1)[:, :K]
    clicks = rng.random((n, K)) < models.click_probability(model, R[query[:, None], items])
    shown = Impressions(query.astype(np.int32), items.astype(np.int32), clicks.astype(np.uint8))
    return counting.from_impressions([shown], Vocabulary(pl.Series(range(Q)), pl.Series(range(D))))


def test_slope_and_offset_are_the_click_model_in_terms_of_clicks_at_rank_one() -> None:
    theta, tau, R = models.examination_curve(K), 0.3, np.linspace(0, 1, 7)
    slope, offset = trust._affine(tau, theta)
    model = models.noisy(theta, trust_bias=tau)
    at_first = R + tau * (1 - R)
    for k in range(K):
        assert slope[k] * at_first + offset[k] == pytest.approx(model.alpha[k] * R + model.beta[k])
    assert (slope[0], offset[0]) == pytest.approx((1.0, 0.0))
    assert all(x == pytest.approx(y) for x, y in zip(trust._affine(0.0, theta), (theta, np.zeros(K)), strict=True))


@pytest.mark.parametrize(("tau", "surely"), [(0.0, False), (0.3, True)])
def test_it_is_found_and_nothing_is_found_where_there_is_none(tau, surely) -> None:
    found = [trust.trust_of(log(15_000, tau, seed)) for seed in range(4)]
    assert all(one is not None and one.surely == surely for one in found)
    z = [(one.tau - tau) / one.error for one in found if one is not None]
    assert abs(np.mean(z)) < 5 / np.sqrt(len(z))
    spread = np.std([one.tau for one in found if one is not None], ddof=1)
    assert spread < 2 * np.mean([one.error for one in found if one is not None])  # .5 and .7; of a twentieth 2.1, 3.3
    assert np.mean([one.theta for one in found if one is not None], 0) == pytest.approx(
        [1, 1 / 2, 1 / 3, 1 / 4], rel=0.1
    )
    assert all(("because it stands high" in one.words) == surely for one in found if one is not None)


def test_where_clicks_are_few_nothing_is_explained_by_a_curve_of_zeros() -> None:
    """An offset that leaves no click has no loss, as there is nothing to lose: that is no trust bias."""
    found = [trust.trust_of(log(4_000, 0.0, seed, level=3.5)) for seed in range(12)]
    known = [one for one in found if one is not None]
    assert len(known) > 5
    assert all(one.theta[0] == 1 and not one.surely for one in known)


def test_the_curve_has_the_offset() -> None:
    found = trust.Trust(0.3, 0.01, (1.0, 0.5, 0.25)).curve
    slope, offset = trust._affine(0.3, np.array([1.0, 0.5, 0.25]))
    assert found.states is None
    assert found.array == pytest.approx(slope)
    assert found.offset == pytest.approx(offset)
    assert max(found.offset) == 0


def test_edges_one_rank_few_clicks() -> None:
    some = log(200, 0.0, 0)
    assert trust.trust_of(some.of_rows(some.rank == 0)) is None
    assert trust.trust_of(log(20, 0.0, 0)) is None


def test_nothing_is_said_of_a_log_whose_clicks_are_of_pairs_that_were_shown_once() -> None:
    rng, n, items = np.random.default_rng(0), 60_000, 100_000
    shown = rng.integers(0, items, (n, 2)).astype(np.int32)
    often = np.arange(n) % 2 == 0  # half of the lists are of few items, which nobody clicks
    shown[often] = np.stack([rng.integers(0, 5, n), rng.integers(5, 10, n)], 1)[often]
    clicks = (rng.random((n, 2)) < 0.02) & ~often[:, None]
    lists = Impressions(rng.integers(0, Q, n).astype(np.int32), shown, clicks.astype(np.uint8))
    seen = counting.from_impressions([lists], Vocabulary(pl.Series(range(Q)), pl.Series(range(items))))
    assert clicks.sum() > trust.ENOUGH
    assert trust.trust_of(seen) is None


def test_a_trust_at_the_end_of_its_range_was_not_found() -> None:
    assert trust.trust_of(log(15_000, 0.9, 0)) is None
