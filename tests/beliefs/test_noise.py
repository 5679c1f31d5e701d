"""The bit of a log: r1 and r0 are recovered from pairs that were shown again, priors decide where there are none."""

import numpy as np
import pytest

from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.noise import START, fit_bit


def log(relevant: float, irrelevant: float, times: int, seed: int = 0) -> Counts:
    rng = np.random.default_rng(seed)
    Q, D = 400, 50
    R = np.where(rng.random((Q, D)) < 0.15, relevant, irrelevant)
    examined = np.array([1.0, 0.5])
    rows = [(e, times, rng.binomial(times, e * R)) for e in examined]
    query, item = np.repeat(np.arange(Q), D), np.tile(np.arange(D), Q)
    return Counts.of_rows(
        np.tile(query, 2), np.tile(item, 2), np.repeat(examined, Q * D), np.full(2 * Q * D, float(times)),
        np.concatenate([clicks.ravel() for _, _, clicks in rows]).astype(float), impressions=np.full(Q, 2.0 * times), D=D,
    )  # fmt: skip


@pytest.mark.parametrize(("relevant", "irrelevant"), [(0.9, 0.02), (0.5, 0.1)])
def test_the_bit_is_recovered_from_pairs_that_were_shown_again(relevant: float, irrelevant: float) -> None:
    found = fit_bit(log(relevant, irrelevant, 3))
    assert found.is_bit
    assert pytest.approx([irrelevant, relevant], rel=0.08) == found.R


def test_priors_decide_where_nothing_was_shown_again() -> None:
    rng = np.random.default_rng(0)
    once = Counts.of_rows(
        np.arange(200), np.arange(200) % 20, np.ones(200), np.ones(200), (rng.random(200) < 0.2).astype(float),
        impressions=np.ones(200), D=20,
    )  # fmt: skip
    assert fit_bit(once).R[1] == pytest.approx(START[0], abs=0.03)


def test_a_log_without_a_click_has_the_modes_of_the_priors() -> None:
    none = Counts.of_rows(
        np.zeros(3, np.int64), np.arange(3), np.ones(3), np.full(3, 5.0), np.zeros(3), impressions=np.full(1, 5.0), D=3
    )
    assert np.array_equal(fit_bit(none).R, START[::-1])
