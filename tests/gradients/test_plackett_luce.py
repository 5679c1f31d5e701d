"""Plackett-Luce against complete enumeration in plain Python."""

import math
import subprocess
import sys
from itertools import permutations

import numpy as np
import pytest
import torch

from tandemrank._base import random
from tandemrank.errors import PolicyError
from tandemrank.gradients import plackett_luce

INF = float("inf")


def exact(scores: list[float], K: int) -> dict[tuple[int, ...], float]:
    """Every list and its probability: one factor for each draw, from the largest remaining score down."""
    lists = {}
    for y in permutations([d for d, s in enumerate(scores) if s > -INF], K):
        log_p, left = 0.0, [d for d, s in enumerate(scores) if s > -INF]
        for d in y:
            largest = max(scores[e] for e in left)
            log_p += scores[d] - largest - math.log(sum(math.exp(scores[e] - largest) for e in left))
            left.remove(d)
        lists[y] = math.exp(log_p)
    return lists


def assert_frequencies(lists: np.ndarray, probabilities: dict[tuple[int, ...], float]) -> None:
    """Each list's frequency is within five standard errors of its probability (and one list, for the rare ones)."""
    n = len(lists)
    drawn, counts = np.unique(lists, axis=0, return_counts=True)
    frequency = {tuple(y.tolist()): c / n for y, c in zip(drawn, counts, strict=True)}
    assert set(frequency) <= set(probabilities)
    for y, p in probabilities.items():
        assert abs(frequency.get(y, 0.0) - p) <= 5 * math.sqrt(p * (1 - p) / n) + 1 / n, y


SCORES = {
    "moderate": [0.3, -1.0, 1.2, 0.0, 0.7],
    "equal": [2.0] * 5,
    "with -inf": [0.3, -INF, 1.2, 0.0, -INF, 0.7],
    "one far ahead": [60.0, 0.5, 0.0, -0.5, 1.0],
    "as far ahead as digits reach": [34.0, 0.5, 0.0, -0.5, 1.0],
    "two far ahead, apart": [0.0, 900.0, 0.5, 30.0, -0.7],
    "huge": [1e4, 1e4 + 1, -1e4, -1e4 + 1, -1e4],
}


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("K", [1, 3, 4])
def test_draw_agrees_with_enumeration(name, K):
    n = 40_000
    scores = np.array([SCORES[name], SCORES[name][::-1]], dtype=np.float32)
    rows = np.arange(2 * n) % 2
    lists = plackett_luce.draw(scores, rows, random.random_keys(5, 0, np.arange(2 * n)), K)
    for row in range(2):
        assert_frequencies(lists[rows == row], exact(scores[row].tolist(), K))


@pytest.mark.parametrize("name", SCORES)
def test_sample_agrees_with_enumeration(name):
    scores = torch.tensor([SCORES[name]], dtype=torch.float64)
    lists = plackett_luce.sample(scores, 3, samples=40_000, generator=torch.Generator().manual_seed(2))
    assert lists.shape == (40_000, 1, 3)
    assert_frequencies(lists[:, 0].numpy(), exact(SCORES[name], 3))


def test_a_drawn_list_depends_on_its_key_alone():
    scores = np.random.default_rng(0).normal(size=(4, 30)).astype(np.float32)
    rows = np.array([3, 0, 1, 3, 2, 0])
    keys = random.random_keys(1, 0, np.arange(6))
    lists = plackett_luce.draw(scores, rows, keys, 5)
    order = np.array([5, 2, 0, 4, 1, 3])
    assert np.array_equal(plackett_luce.draw(scores, rows[order], keys[order], 5), lists[order])
    assert np.array_equal(plackett_luce.draw(scores[3:], np.zeros(1, dtype=int), keys[3:4], 5), lists[3:4])
    assert not np.array_equal(lists[0], lists[3])  # the same scores, another key


def test_draw_from_many_documents_has_no_repetition_and_the_right_first_draw():
    scores = np.random.default_rng(1).normal(size=(1, 2000)).astype(np.float32) * 3
    n = 20_000
    lists = plackett_luce.draw(scores, np.zeros(n, dtype=int), random.random_keys(2, 0, np.arange(n)), 50)
    ordered = np.sort(lists, axis=1)
    assert ordered.min() >= 0
    assert (ordered[:, 1:] > ordered[:, :-1]).all()
    p = np.exp(scores[0].astype(float))
    p /= p.sum()
    best = int(p.argmax())
    assert abs((lists[:, 0] == best).mean() - p[best]) < 5 * math.sqrt(p[best] / n)


def test_lists_without_enough_documents_are_padded():
    scores = torch.tensor([[-INF, 1.0, -INF, 0.0], [-INF] * 4])
    keys = random.random_keys(0, 0, np.arange(2))
    for lists in (
        plackett_luce.draw(scores.numpy(), np.arange(2), keys, 3),
        plackett_luce.sample(scores, 3, samples=1, generator=torch.Generator().manual_seed(0))[0].numpy(),
        plackett_luce.most_likely(scores, 3).numpy(),
    ):
        assert sorted(lists[0, :2].tolist()) == [1, 3]
        assert lists[0, 2] == -1
        assert lists[1].tolist() == [-1, -1, -1]


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("K", [1, 2, 4])
def test_log_probabilities_are_exact_and_sum_to_one(name, K):
    scores = torch.tensor([SCORES[name], SCORES[name][::-1]], dtype=torch.float64)
    for row in range(2):
        probabilities = exact(scores[row].tolist(), K)
        rankings = torch.tensor(list(probabilities))[:, None, :].expand(-1, 2, -1)
        log_p = plackett_luce.log_probability(scores, rankings)[:, row]
        assert log_p.exp().sum().item() == pytest.approx(1, abs=1e-12)
        assert torch.allclose(log_p.exp(), torch.tensor(list(probabilities.values()), dtype=torch.float64), atol=1e-12)


def test_gradient_of_the_log_probability_by_differences():
    rankings = torch.tensor([[[2, 0, 3]], [[1, -1, -1]], [[3, 1, -1]]])
    scores = torch.tensor([[0.5, -1.0, 2.0, 0.0, -INF]], dtype=torch.float64, requires_grad=True)
    plackett_luce.log_probability(scores, rankings).sum().backward()
    assert scores.grad is not None
    for d in range(4):
        step = torch.zeros_like(scores)
        step[0, d] = 1e-5
        up, down = (plackett_luce.log_probability(scores.detach() + s, rankings).sum() for s in (step, -step))
        assert scores.grad[0, d].item() == pytest.approx((up - down).item() / 2e-5, abs=1e-8)
    assert scores.grad[0, 4] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_probability_is_stable_for_huge_scores(dtype):
    scores = torch.tensor([[1e4, -1e4, 0.0], [-1e4, -1e4, -1e4]], dtype=dtype, requires_grad=True)
    log_p = plackett_luce.log_probability(scores, torch.tensor([[[0, 2, 1], [0, 1, 2]], [[1, 2, 0], [2, 1, 0]]]))
    expected = torch.tensor([[0.0, -math.log(6)], [-3e4, -math.log(6)]], dtype=dtype)
    assert torch.allclose(log_p, expected, rtol=1e-6)
    log_p.sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert torch.allclose(scores.grad.sum(-1), torch.zeros(2, dtype=dtype), atol=1e-2)  # a shift changes nothing


def test_a_list_of_an_impossible_document_has_probability_zero():
    log_p = plackett_luce.log_probability(torch.tensor([[0.0, -INF, 1.0]]), torch.tensor([[1, 0]]))
    assert log_p.item() == -INF


def test_log_probability_of_a_batch_equals_a_loop():
    scores = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    rankings = plackett_luce.sample(scores, 4, samples=7, generator=torch.Generator().manual_seed(1))
    batch = plackett_luce.log_probability(scores, rankings)
    assert batch.shape == (7, 5)
    loop = [
        [plackett_luce.log_probability(scores[b : b + 1], rankings[s, b : b + 1])[0] for b in range(5)]
        for s in range(7)
    ]
    assert torch.allclose(batch, torch.tensor(loop), atol=1e-6)


def test_most_likely_breaks_ties_by_lower_position():
    scores = torch.tensor([[1.0, 3.0, 3.0, 1.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]])
    assert plackett_luce.most_likely(scores, 4).tolist() == [[1, 2, 0, 3], [5, 4, 3, 2]]
    many = torch.randint(0, 4, (50, 40), generator=torch.Generator().manual_seed(0)).float()
    expected = [sorted(range(40), key=lambda d, row=row: (-row[d], d))[:7] for row in many.tolist()]
    assert plackett_luce.most_likely(many, 7).tolist() == expected


def test_random_keys_differ_by_seed_stream_and_number():
    keys = np.concatenate([random.random_keys(s, t, np.arange(1000)) for s in (0, 1, -1) for t in (0, 1, 2)])
    assert len(np.unique(keys)) == len(keys)
    u = random.uniforms(random.random_keys(3, 0, np.arange(100_000)))
    assert 0 <= u.min() < u.max() < 1
    assert abs(u.mean() - 0.5) < 5 * math.sqrt(1 / 12 / 100_000)
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 5 / math.sqrt(100_000)


@pytest.mark.parametrize("bad", [float("nan"), INF])
def test_scores_that_are_not_numbers_are_refused(bad):
    scores = torch.zeros(3, 4)
    scores[1, 2] = bad
    with pytest.raises(PolicyError, match="row 1, document 2"):
        plackett_luce.sample(scores, 2, samples=1, generator=torch.Generator())
    with pytest.raises(PolicyError, match="row 1, document 2"):
        plackett_luce.draw(scores.numpy(), np.zeros(1, dtype=int), np.zeros(1, dtype=np.uint64), 2)


@pytest.mark.parametrize("K", [0, 5])
def test_lists_longer_than_the_documents_are_refused(K):
    with pytest.raises(PolicyError, match="from 1 to 4"):
        plackett_luce.most_likely(torch.zeros(1, 4), K)


def test_importing_compiles_nothing():
    code = (
        "import tandemrank.gradients._kernels.plackett_luce as k, sys;"
        "sys.exit(any(getattr(f, 'signatures', ()) for f in vars(k).values()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
