"""The memory against complete enumeration of hidden relevances, its limits, its size, its edges."""

import itertools
import math

import numpy as np
import pytest

from tandemrank.beliefs.memory import LARGEST, Noise, memory_of
from tandemrank.errors import ConfigError, InputError, LogError

THETA = np.array([1.0, 0.5, 0.2])


def chance(z: int, rank: int, click: int, noise: Noise) -> float:
    """P(click | relevance, rank) as it is written."""
    p = float(THETA[rank]) * (noise.relevant if z else noise.irrelevant)
    return p if click else 1 - p


@pytest.mark.parametrize("seed", range(5))
def test_the_memory_and_a_prior_are_the_posterior_by_enumeration(seed: int, feedback_of) -> None:
    """All 2^4 hidden relevances of four items, weighted with prior and likelihood of every single showing."""
    rng = np.random.default_rng(seed)
    D, noise = 4, Noise(rng.uniform(0.5, 0.99), rng.uniform(0.01, 0.4))
    prior = rng.normal(size=D)
    showings = [(int(rng.integers(D)), int(rng.integers(3)), int(rng.integers(2))) for _ in range(9)]
    rows: dict[tuple[int, int], list[int]] = {}
    for d, k, c in showings:
        rows.setdefault((d, k), []).append(c)
    log = feedback_of([(0, d, k, len(c), sum(c)) for (d, k), c in rows.items()], 1, D)
    total, relevant = 0.0, np.zeros(D)
    for z in itertools.product((0, 1), repeat=D):
        weight = math.prod(1 / (1 + math.exp(-s if bit else s)) for bit, s in zip(z, prior, strict=True))
        weight *= math.prod(chance(z[d], k, c, noise) for d, k, c in showings)
        total += weight
        relevant += weight * np.array(z)
    scores = memory_of(log, THETA, noise).add_to(prior[None].copy(), np.array([0]))
    np.testing.assert_allclose(1 / (1 + np.exp(-scores[0])), relevant / total, rtol=1e-5)


def test_without_showings_nothing_is_remembered(feedback_of) -> None:
    memory = memory_of(feedback_of([], 3, 4), THETA, Noise(0.9, 0.1))
    scores = np.arange(8.0).reshape(2, 4)
    assert np.array_equal(memory.add_to(scores.copy(), np.array([2, 0])), scores)
    assert np.array_equal(memory.at(np.array([0, 2]), np.array([1, 3])), [0, 0])


def test_with_perfect_clicks_one_click_proves_relevance_and_none_at_the_top_the_opposite(feedback_of) -> None:
    log = feedback_of([(0, 0, 2, 1, 1), (0, 1, 0, 1, 0), (0, 2, 1, 1, 0)], 1, 3)
    found = memory_of(log, THETA, Noise(1.0, 0.0)).at(np.zeros(3, int), np.arange(3))
    assert found.tolist() == pytest.approx([LARGEST, -LARGEST, math.log(0.5)])


def test_extreme_counts_and_proofs_against_each_other_stay_numbers(feedback_of) -> None:
    log = feedback_of([(0, 0, 0, 1e9, 5e8), (0, 1, 0, 2, 1), (0, 2, 2, 1e9, 0)], 1, 3)
    for noise in (Noise(1.0, 0.0), Noise(0.9, 0.1), Noise(1e-9, 0.0)):
        assert np.isfinite(memory_of(log, THETA, noise).value).all()


def test_pairs_are_found_and_a_batch_is_its_rows(feedback_of) -> None:
    rng = np.random.default_rng(0)
    rows = [(q, d, 0, 1.0, float(rng.integers(2))) for q in (0, 2, 3) for d in range(6) if rng.random() < 0.6]
    memory = memory_of(feedback_of(rows, 5, 6), THETA, Noise(0.8, 0.1))
    whole = memory.add_to(np.zeros((5, 6)), np.arange(5))
    q, d = np.divmod(np.arange(30), 6)
    assert np.array_equal(memory.at(q, d).reshape(5, 6), whole)
    chosen = np.array([3, 0, 3, 1])
    assert np.array_equal(memory.add_to(np.zeros((4, 6)), chosen), whole[chosen])
    assert (whole != 0).sum() == len(rows)


def test_a_limit_keeps_what_says_most(feedback_of) -> None:
    rows = [(0, 0, 2, 1, 0), (0, 1, 0, 1, 0), (0, 2, 1, 1, 1), (0, 3, 2, 1, 0), (1, 3, 2, 1, 0)]
    whole = memory_of(feedback_of(rows, 2, 4), THETA, Noise(0.9, 0.1))
    assert whole.limited(5) is whole
    found = whole.limited(3)  # three are equal: the first of them stays
    assert (found.first.tolist(), found.item.tolist()) == ([0, 3, 3], [0, 1, 2])
    assert found.value.tolist() == whole.value[:3].tolist()
    assert len(whole.limited(0).item) == 0
    assert whole.limited(1).item.tolist() == [2 if abs(whole.value[2]) > abs(whole.value[1]) else 1]


def test_what_does_not_fit_is_refused(feedback_of) -> None:
    memory = memory_of(feedback_of([(0, 0, 0, 1, 0)], 1, 2), THETA, Noise(0.9, 0.1))
    with pytest.raises(InputError, match=r"shape \(1, 2\)"):
        memory.add_to(np.zeros((1, 3)), np.array([0]))
    with pytest.raises(ConfigError, match="0 or more pairs"):
        memory.limited(-1)
    with pytest.raises(LogError, match="rank 3"):
        memory_of(feedback_of([(0, 0, 2, 1, 0)], 1, 2), THETA[:2], Noise(0.9, 0.1))
    for bad in ((0.1, 0.9), (0.5, 0.5), (1.1, 0.1), (0.5, -0.1), (math.nan, 0.1)):
        with pytest.raises(ConfigError, match="irrelevant < relevant"):
            Noise(*bad)
