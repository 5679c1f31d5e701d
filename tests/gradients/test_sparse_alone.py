"""One stage alone over very many documents, against complete enumeration and the dense race; identities, edges, bad input."""

import math

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

import enumeration
from tandemrank.errors import ConfigError, PolicyError
from tandemrank.gradients import lazy_race, race, sparse_alone
from tandemrank.gradients._kernels import race as race_kernel
from tandemrank.gradients._kernels import sparse_race as kernel
from tandemrank.gradients.products import Products, Source, at
from worlds import assert_mean, seeded


def value_and_gradient(s, w, alpha, **options):
    """As the dense race gives them: the gradient [B, D], 0 for what is not in the plan."""
    plan = sparse_alone.plan(s, csr_matrix(w.numpy()), alpha, **options)
    own = s.gather(1, plan.documents).requires_grad_()
    value = sparse_alone.utility(own, plan)
    [gradient] = torch.autograd.grad(value.sum(), own)
    return value.detach(), torch.zeros_like(s).scatter_add_(1, plan.documents, gradient)


# Documents, rank weights (falling, flat, rising, fewer documents than ranks), documents in a sample, races.
WORLDS = [
    (6, [1.0, 0.5, 0.2], 2, 1),
    (6, [1.0, 1.0], 1, 2),
    (6, [0.2, 0.9, 1.0], 3, 1),
    (3, [1.0, 0.8, 0.5, 0.2, 0.1], 1, 1),
    (1, [1.0], 1, 1),
]


@pytest.mark.parametrize("number", range(len(WORLDS)))
def test_value_and_gradient_by_enumeration(number: int) -> None:
    D, alpha, size, samples = WORLDS[number]
    rng = np.random.default_rng(number)
    s, w = rng.normal(size=D).tolist(), (rng.normal(size=D) * (rng.random(D) < 0.6)).tolist()
    if D > 5:
        s[int(rng.integers(D))] = -math.inf
    exact, _, by_s = enumeration.utility([0.0 if x > -math.inf else x for x in s], s, w, alpha, D)
    rows = [torch.tensor([x] * 30_000, dtype=torch.float32) for x in (s, w)]
    value, gradient = value_and_gradient(
        *rows, torch.tensor(alpha), samples=samples, size=size, generator=seeded(number)
    )
    assert_mean(value, exact, "value")
    assert_mean(gradient, by_s, "gradient")


def test_scores_that_differ_much_over_few_documents() -> None:
    """As a memory makes them: the sample of nearly everything is drawn at once, and is who arrives before its reach."""
    s = torch.linspace(-100, 100, 60).repeat(3, 1)
    own, others = np.split(lazy_race.streams(np.arange(3, dtype=np.uint64), range(4)), 2, 1)
    found = lazy_race.races(Source.of(s), 5, own, others, 500).in_order()
    assert (found.first[:, :, :3] == [59, 58, 57]).all()
    for q in range(3):
        ahead = s[q].numpy() + found.log_reach[q]
        for i in range(2):
            sampled = set(found.sampled[q, i, : found.count[q, i]].tolist())
            assert set(np.flatnonzero(ahead > 5)) <= sampled <= set(np.flatnonzero(ahead > -20))
    w = torch.zeros(3, 60)
    w[:, 59] = 1.0
    value, gradient = value_and_gradient(s, w, torch.ones(5), samples=2, generator=seeded(1))
    assert value.tolist() == pytest.approx([1.0] * 3)
    assert torch.isfinite(gradient).all()


def test_as_the_dense_race_with_a_bounded_noise() -> None:
    """D = 2,000, a quarter of the documents looked at: the mean is that of the dense race, the noise of
    the query's vector less than three times as large, where one sample for pulls and another for pushes has twenty times."""
    X, Y = torch.randn(1, 5, generator=seeded(1)).repeat(400, 1), torch.randn(2000, 5, generator=seeded(2)) + 0.5
    w = csr_matrix(np.tile((np.arange(2000) % 200 == 0).astype(np.float32), (400, 1)))
    alpha, s = torch.ones(20), (X @ Y.T).requires_grad_()
    race.utility(s.detach(), s, w, alpha, 2000, generator=seeded(3)).sum().backward()
    plan = sparse_alone.plan(Products(X, Y), w, alpha, size=500, generator=seeded(4))
    x = X.clone().requires_grad_()
    sparse_alone.utility(at(x, Y, plan.documents), plan).sum().backward()
    dense, ours = s.grad @ Y, x.grad
    assert torch.all((dense.mean(0) - ours.mean(0)).abs() <= 5 * ((dense.var(0) + ours.var(0)) / 400).sqrt())
    assert float(ours.var(0).sum().sqrt()) <= 3 * float(dense.var(0).sum().sqrt())
    assert plan.documents.shape[1] <= 1400
    assert np.all(np.abs(plan.gradient.sum(1)) <= 1e-5 * np.abs(plan.gradient).sum(1))


@pytest.mark.parametrize("D", [1, 300, 3706])
def test_the_time_of_the_pattern_is_that_of_the_dense_race(D: int) -> None:
    """From the same documents, whether scores are given or products; nobody available: never."""
    X, Y = torch.randn(4, 3, generator=seeded(1)), torch.randn(D, 3, generator=seeded(2))
    given = X @ Y.T
    given[1], given[2, ::3] = -math.inf, -math.inf
    for source in (Source.of(Products(X, Y)), Source.of(given)):
        scores = given.numpy() if source.given.size else (X @ Y.T).numpy()
        for q, s in enumerate(scores):
            log_t = kernel.typical_time_of(source.arrays, q, 20.0)
            available = (s > -np.inf).astype(np.float32)
            wanted = race_kernel.typical_time(s, available, np.float32(20), *np.empty((2, D), np.float32))
            assert log_t == wanted or log_t == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("scale", [0.0, 1e4])
def test_edges_are_finite(scale: float) -> None:
    """Ties, huge scores, nobody available, no weights, fewer documents than ranks."""
    for D in (1, 4, 3000):
        s = torch.randn(4, D, generator=seeded(0)).sign() * scale
        s[1], s[2, 1:] = -math.inf, -math.inf
        w = torch.zeros(4, D)
        w[:3, :3] = 1.0
        value, gradient = value_and_gradient(s, w, torch.tensor([1.0, 0.5, 0.0]), generator=seeded(1))
        assert torch.isfinite(torch.cat([value[:, None], gradient], 1)).all()
        assert not value[[1, 3]].any()
        assert not gradient[[1, 3]].any()
        assert value[2] == pytest.approx(1.0)


def test_what_is_refused() -> None:
    s, w = torch.zeros(2, 5), csr_matrix(np.ones((2, 5), np.float32))
    with pytest.raises(ConfigError, match=r"the shape of the scores, \(2, 5\), not \(1, 5\)"):
        sparse_alone.plan(s, w[:1], torch.ones(2), generator=seeded(0))
    with pytest.raises(ConfigError, match="at least 1 sample, document and rank"):
        sparse_alone.plan(s, w, torch.ones(2), samples=0, generator=seeded(0))
    plan = sparse_alone.plan(s, w, torch.ones(2), generator=seeded(0))
    with pytest.raises(PolicyError, match=r"must be those of plan\.documents"):
        sparse_alone.utility(s[:, :1], plan)
