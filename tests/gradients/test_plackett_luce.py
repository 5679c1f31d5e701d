"""Plackett-Luce against complete enumeration in plain Python."""

import math
import subprocess
import sys
from itertools import permutations

import numpy as np
import pytest
import torch

import enumeration
from tandemrank._base import random
from tandemrank.errors import ConfigError, PolicyError
from tandemrank.gradients import plackett_luce, race
from worlds import assert_mean, seeded, world

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
    scores = np.array([[-INF, 1.0, -INF, 0.0], [-INF] * 4], np.float32)
    lists = plackett_luce.draw(scores, np.arange(2), random.random_keys(0, 0, np.arange(2)), 3)
    assert sorted(lists[0, :2].tolist()) == [1, 3]
    assert lists[0, 2] == -1
    assert lists[1].tolist() == [-1, -1, -1]


def test_random_keys_differ_by_seed_stream_and_number():
    keys = np.concatenate([random.random_keys(s, t, np.arange(1000)) for s in (0, 1, -1) for t in (0, 1, 2)])
    assert len(np.unique(keys)) == len(keys)
    u = random.uniforms(random.random_keys(3, 0, np.arange(100_000)))
    assert 0 <= u.min() < u.max() < 1
    assert abs(u.mean() - 0.5) < 5 * math.sqrt(1 / 12 / 100_000)
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 5 / math.sqrt(100_000)


@pytest.mark.parametrize("bad", [float("nan"), INF])
def test_scores_that_are_not_numbers_are_refused(bad):
    scores = np.zeros((3, 4), np.float32)
    scores[1, 2] = bad
    with pytest.raises(PolicyError, match="row 1, document 2"):
        plackett_luce.draw(scores, np.zeros(1, dtype=int), np.zeros(1, dtype=np.uint64), 2)


@pytest.mark.parametrize("K", [0, 5])
def test_lists_longer_than_the_documents_are_refused(K):
    with pytest.raises(PolicyError, match="from 1 to 4"):
        plackett_luce.draw(np.zeros((1, 4), np.float32), np.zeros(1, dtype=int), np.zeros(1, dtype=np.uint64), K)


def test_importing_compiles_nothing():
    code = (
        "import tandemrank.gradients._kernels.plackett_luce as k, sys;"
        "sys.exit(any(getattr(f, 'signatures', ()) for f in vars(k).values()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("baseline", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_cand_grad_and_ranker_grad_by_enumeration(seed: int, baseline: bool) -> None:
    s, r, w, theta, K2 = world(seed)
    exact = enumeration.utility(s, r, w, theta, K2)
    rows = [torch.tensor([x] * 20_000, dtype=torch.float32) for x in (s, r, w)]
    rows[0].requires_grad_()
    rows[1].requires_grad_()
    value = plackett_luce.reinforce(
        *rows, torch.tensor(theta), K2, samples=2, generator=seeded(seed), baseline=baseline
    )
    by_s, by_r = torch.autograd.grad(value.sum(), rows[:2])
    for found, wanted, what in (
        (value.detach(), exact[0], "value"),
        (by_s, exact[1], "cand"),
        (by_r, exact[2], "ranker"),
    ):
        assert_mean(found, wanted, f"world {seed}, {what}")


@pytest.mark.parametrize("K2", [3, 6])
def test_a_gradient_asked_for_alone_is_the_one_that_is_asked_for_with_the_other(K2: int) -> None:
    """Of one stage less is computed; what is computed is the same, also where all documents are candidates (K2 = D)."""
    s, r, w = (torch.randn(50, 6, generator=seeded(n)) for n in range(3))
    theta = 1 / torch.arange(1.0, 4)

    def gradients(wanted: tuple[bool, bool]) -> list[torch.Tensor | None]:
        scores = [x.clone().requires_grad_(own) for x, own in zip((s, r), wanted, strict=True)]
        plackett_luce.reinforce(*scores, w, theta, K2, samples=20, generator=seeded(4)).sum().backward()
        return [x.grad for x in scores]

    by_s, by_r = gradients((True, True))
    alone_s, nothing_r = gradients((True, False))
    nothing_s, alone_r = gradients((False, True))
    assert nothing_s is None
    assert nothing_r is None
    torch.testing.assert_close(alone_s, by_s)
    torch.testing.assert_close(alone_r, by_r)
    assert by_r is not None
    assert by_r.abs().sum() > 0
    assert by_s is not None
    assert (by_s.abs().sum() > 0) == (K2 < 6)


def test_it_is_interchangeable_with_the_race() -> None:
    """One signature: the same lists of arguments, values within five standard errors of each other."""
    s, r, w = (torch.randn(1, 30, generator=seeded(n)).expand(400, 30) for n in range(3))
    theta = 1 / torch.arange(1.0, 6)
    a = race.utility(s, r, w, theta, 10, samples=5, generator=seeded(5)).double()
    b = plackett_luce.reinforce(s, r, w, theta, 10, samples=5, generator=seeded(6)).double()
    assert (a.mean() - b.mean()).abs() < 5 * ((a.var() + b.var()) / 400) ** 0.5


def test_the_baseline_needs_two_samples() -> None:
    s = torch.zeros(1, 3)
    with pytest.raises(ConfigError, match="at least 2 samples"):
        plackett_luce.reinforce(s, s, s, torch.ones(1), 2, samples=1, generator=seeded(0), baseline=True)
