"""The sparse race against complete enumeration and against the dense race; identities, edges, bad input."""

import math

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

import enumeration
from tandemrank.errors import ConfigError, PolicyError
from tandemrank.gradients import lazy_race, race, sparse_race
from tandemrank.gradients.products import Products, at
from worlds import assert_mean, seeded

INF = math.inf


def force(monkeypatch, b: float, log_T: float) -> None:
    """Every query gets this level and horizon: clocks, stream and completion all take part, however few the documents."""
    chosen = lazy_race.horizons

    def forced(source, K, races, *more):
        horizons = chosen(source, K, races, *more)
        horizons.b[:], horizons.log_T[:, :races] = b, log_T
        return horizons

    monkeypatch.setattr(lazy_race, "horizons", forced)


def value_and_gradients(s, r, w, theta, K2, **options):
    """As the dense race gives them: gradients [B, D], 0 for what is not in the plan."""
    plan = sparse_race.plan(s, csr_matrix(w.numpy()), K2, **options)
    s_c = s.gather(1, plan.documents).requires_grad_()
    s_r = r.gather(1, plan.ranker_documents).requires_grad_()
    value = sparse_race.utility(s_c, s_r, plan, theta)
    by_c, by_r = torch.autograd.grad(value.sum(), (s_c, s_r))
    spread = [
        torch.zeros_like(s).scatter_add_(1, documents, gradient)
        for documents, gradient in ((plan.documents, by_c), (plan.ranker_documents, by_r))
    ]
    return value.detach(), *spread


# (D, K2, K), (b, log T) or None as chosen, races
WORLDS = [
    ((6, 4, 2), None, 2),
    ((6, 4, 2), (0.0, -0.5), 2),
    ((6, 3, 2), (-INF, 0.3), 3),
    ((6, 2, 3), (3.0, -1.0), 2),
    ((6, 1, 1), (0.5, 0.5), 4),
    ((5, 5, 2), None, 2),
    ((3, 7, 4), None, 2),
    ((1, 1, 1), None, 2),
]


def world(D: int, K: int, seed: int):
    """Scores (one of each stage not available where there are enough), weights (some zero, some negative), a curve."""
    rng = np.random.default_rng(seed)
    s, r = rng.normal(size=(2, D)).tolist()
    w = (rng.normal(size=D) * (rng.random(D) < 0.5)).tolist()
    if D > 5 and seed % 2:
        s[int(rng.integers(D))] = r[int(rng.integers(D))] = -INF
    return s, r, w, np.sort(rng.random(K))[::-1].tolist()


@pytest.mark.parametrize("number", range(len(WORLDS)))
def test_cand_grad_ranker_grad_and_2stage_true_utility_by_enumeration(number: int, monkeypatch) -> None:
    (D, K2, K), horizon, samples = WORLDS[number]
    s, r, w, theta = world(D, K, number)
    exact = enumeration.utility(s, r, w, theta, K2)
    if horizon is not None:
        force(monkeypatch, *horizon)
    # One query many times: its rows are independent samples.
    rows = [torch.tensor([x] * 20_000, dtype=torch.float32) for x in (s, r, w)]
    found = value_and_gradients(*rows, torch.tensor(theta), K2, samples=samples, generator=seeded(number))
    for sample, value, what in zip(found, exact, ("value", "candidate gradient", "ranker gradient"), strict=True):
        assert_mean(sample, value, f"world {number}, {what}")


def test_one_world_with_a_small_standard_error(monkeypatch) -> None:
    """The same with 100,000 rows: the known sum taken out with the same sample would be off by many standard errors."""
    s, r, w, theta = world(6, 2, 3)
    exact = enumeration.utility(s, r, w, theta, 4)
    force(monkeypatch, 0.2, -0.7)
    rows = [torch.tensor([x] * 100_000, dtype=torch.float32) for x in (s, r, w)]
    found = value_and_gradients(*rows, torch.tensor(theta), 4, generator=seeded(1))
    for sample, value, what in zip(found, exact, ("value", "candidate gradient", "ranker gradient"), strict=True):
        assert_mean(sample, value, what)


@pytest.mark.parametrize("number", range(len(WORLDS)))
def test_exposure_by_enumeration(number: int, monkeypatch) -> None:
    (D, K2, K), horizon, _ = WORLDS[number]
    s, r, w, theta = world(D, K, number)
    exact = torch.tensor(enumeration.exposure(s, r, theta, K2), dtype=torch.float32)
    if horizon is not None:
        force(monkeypatch, *horizon)
    documents = csr_matrix((np.array([w]) != 0) | (np.arange(D) == 0))
    plan = sparse_race.plan(
        torch.tensor([s]),
        documents.astype(np.float32),
        K2,
        samples=2_000,
        moves_generator=False,
        generator=seeded(number),
    )
    s_r = torch.tensor([r], dtype=torch.float32).gather(1, plan.ranker_documents)
    rho, error = sparse_race.exposure(s_r, plan, torch.tensor(theta))
    assert torch.all((rho - exact[documents.indices]).abs() <= 5 * error + 1e-6), f"{rho} +- {error} against {exact}"


@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_against_the_dense_race(scale: float, monkeypatch) -> None:
    """D = 300: means of value and gradients along random directions agree; so does the exposure."""
    D, K2, n = 300, 40, 3_000
    s, r = (scale * torch.randn(D, generator=seeded(x)) for x in range(2))
    w = torch.zeros(D)
    w[:12] = torch.randn(12, generator=seeded(2))
    s[:12], s[200:210], r[30:35] = s[:12] + scale, -INF, -INF
    theta = 1 / torch.arange(1.0, 6)
    rows = [x.expand(n, -1).contiguous() for x in (s, r, w)]
    force(monkeypatch, scale, math.log(60 / D) - scale)
    sparse = value_and_gradients(*rows, theta, K2, generator=seeded(3))
    dense_s, dense_r = (x.clone().requires_grad_() for x in rows[:2])
    value = race.utility(dense_s, dense_r, rows[2], theta, K2, generator=seeded(4))
    dense = value.detach(), *torch.autograd.grad(value.sum(), (dense_s, dense_r))
    directions = torch.cat([torch.eye(D)[:, :15], torch.randn(D, 10, generator=seeded(5))], 1)
    for a, b, what in zip(sparse, dense, ("value", "generator", "ranker"), strict=True):
        a, b = ((x if x.ndim == 1 else x @ directions).double() for x in (a, b))
        assert torch.all((a.mean(0) - b.mean(0)).abs() <= 5 * ((a.var(0) + b.var(0)) / n).sqrt()), what
    wanted = csr_matrix((rows[2][:1] != 0).float().numpy())
    plan = sparse_race.plan(rows[0][:1], wanted, K2, samples=1000, moves_generator=False, generator=seeded(6))
    rho, error = sparse_race.exposure(rows[1][:1].gather(1, plan.ranker_documents), plan, theta)
    expected, its_error = race.exposure(
        rows[0][:1], rows[1][:1], theta, K2, samples=3000, generator=seeded(7), documents=wanted
    )
    assert torch.all((rho - expected).abs() <= 5 * (error**2 + its_error**2).sqrt() + 1e-6)


def test_the_exposures_of_all_documents_sum_to_the_curve() -> None:
    s, r, theta = (
        torch.randn(2, 9, generator=seeded(1)),
        torch.randn(2, 9, generator=seeded(2)),
        torch.tensor([1.0, 0.5]),
    )
    plan = sparse_race.plan(s, csr_matrix(np.ones((2, 9), np.float32)), 4, samples=3, generator=seeded(3))
    rho, _ = sparse_race.exposure(r.gather(1, plan.ranker_documents), plan, theta)
    torch.testing.assert_close(rho.reshape(2, 9).sum(1), torch.full((2,), 1.5))


def test_the_same_races_as_the_dense_one_where_all_documents_are_head(monkeypatch) -> None:
    """Clocks are the same functions of key, sample, stage and document: the value is the mean over the dense samples."""
    s, r, w = (torch.randn(30, 50, generator=seeded(n)) for n in range(3))
    force(monkeypatch, -INF, 10.0)
    ours = value_and_gradients(s, r, w, torch.ones(3), 10, samples=3, generator=seeded(3))[0]
    dense = race.utility(s, r, w, torch.ones(3), 10, samples=3, generator=seeded(3))
    torch.testing.assert_close(ours, dense, rtol=1e-4, atol=1e-5)


def test_each_gradient_sums_to_zero_and_nothing_is_asked_twice_or_in_vain() -> None:
    B, D, K2 = 40, 6_000, 50
    s, r = (torch.randn(B, D, generator=seeded(n)) for n in range(2))
    w = torch.zeros(B, D)
    w[:, ::300] = 1.0
    plan = sparse_race.plan(s, csr_matrix(w.numpy()), K2, generator=seeded(2))
    assert plan.ranker_columns <= 2 * (K2 + 1) + 20
    for q in range(B):
        both = plan.documents[q, : plan.listed[q, 0]].tolist()
        extra = plan.documents[q, plan.ranker_columns :][: plan.listed[q, 1]].tolist()
        assert len(set(both + extra)) == len(both) + len(extra)
        assert set(range(0, D, 300)) <= set(both)
        assert set(plan.documents[q].tolist()) == set(both + extra)
    torch.testing.assert_close(s.gather(1, plan.documents), plan.scores)
    _, by_s, by_r = value_and_gradients(s, r, w, torch.tensor([1.0, 0.5]), K2, generator=seeded(2))
    for gradient in (by_s, by_r):
        assert torch.all(gradient.sum(1).abs() <= 1e-5 * gradient.abs().sum(1) + 1e-7)
        assert gradient.abs().sum(1).min() > 0


def test_the_split_of_a_batch_changes_no_document_and_no_bit() -> None:
    X, Y = torch.randn(9, 12, generator=seeded(1)), torch.randn(5_000, 12, generator=seeded(2))
    w = csr_matrix((np.arange(5_000) % 500 == 0).astype(np.float32)[None].repeat(9, 0))

    def run(rows: slice, generator: torch.Generator) -> list[dict[int, float]]:
        x = X[rows].clone().requires_grad_()
        plan = sparse_race.plan(Products(x, Y), w[rows], 60, generator=generator)
        scores = [at(x, Y, documents) for documents in (plan.documents, plan.ranker_documents)]
        value = sparse_race.utility(*scores, plan, torch.ones(4))
        gradients = torch.autograd.grad(value.sum(), scores)
        found = []
        for q in range(len(x)):
            row = {-1: float(value[q].detach())}
            for gradient, offset in zip(gradients, (0, 10**6), strict=True):
                for d, g in zip(plan.documents[q].tolist(), gradient[q].tolist(), strict=False):
                    row[d + offset] = row.get(d + offset, 0.0) + g
            found.append({d: g for d, g in row.items() if g != 0.0})
        return found

    one = seeded(1)
    parts = [row for i, j in ((0, 2), (2, 7), (7, 9)) for row in run(slice(i, j), one)]
    assert run(slice(0, 9), seeded(1)) == parts


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e4])
@pytest.mark.parametrize(("D", "K2", "K"), [(1, 1, 1), (1, 5, 3), (5, 3, 2), (5, 1, 3), (4, 4, 10), (5000, 7, 3)])
def test_edges_are_finite(scale: float, D: int, K2: int, K: int) -> None:
    """Ties, huge and tiny scores, one document, fewer documents than places, rows with one or nobody available."""
    s, r = (torch.randn(6, D, generator=seeded(n)).sign() * scale for n in range(2))
    s[1, 1:], s[2], r[3] = -INF, -INF, -INF
    w = torch.zeros(6, D)
    w[:, : min(D, 8)] = 1.0
    w[4:] = 0.0
    found = value_and_gradients(s, r, w, 1 / torch.arange(1.0, K + 1), K2, generator=seeded(0))
    assert all(torch.isfinite(x).all() for x in found)
    # Nobody available, or no weight: no value and no gradient.
    assert all(torch.all(x[[2, 4, 5]] == 0) for x in found)
    assert torch.all(found[1][s == -INF] == 0)
    assert torch.all(found[2][s == -INF] == 0)
    plan = sparse_race.plan(s, csr_matrix(w.numpy()), K2, samples=2, generator=seeded(0))
    rho, _ = sparse_race.exposure(r.gather(1, plan.ranker_documents), plan, torch.ones(K))
    assert torch.all((rho >= -1e-6) & (rho <= 1 + 1e-6))


def test_bad_input_is_refused_by_name() -> None:
    s, w, theta = torch.zeros(2, 3), csr_matrix(np.ones((2, 3), np.float32)), torch.ones(2)
    plan = sparse_race.plan(s, w, 2, generator=seeded(0))
    s_c, s_r = s.gather(1, plan.documents), s.gather(1, plan.ranker_documents)
    with pytest.raises(ConfigError, match="shape of the scores"):
        sparse_race.plan(s, csr_matrix((2, 4)), 2, generator=seeded(0))
    with pytest.raises(ConfigError, match="weights must be finite"):
        sparse_race.plan(s, w * np.inf, 2, generator=seeded(0))
    with pytest.raises(ConfigError, match="K2 and samples"):
        sparse_race.plan(s, w, 0, generator=seeded(0))
    one = sparse_race.plan(s, w, 2, samples=1, generator=seeded(0))
    with pytest.raises(ConfigError, match="samples >= 2"):
        sparse_race.utility(s_c, s_r, one, theta)
    with pytest.raises(PolicyError, match=r"plan\.ranker_documents"):
        sparse_race.utility(s_c, s_r[:, :1], plan, theta)
    with pytest.raises(PolicyError, match=r"plan\.documents"):
        sparse_race.utility(s_c[:, :1], s_r, plan, theta)
    with pytest.raises(PolicyError, match="ranker scores are NaN"):
        sparse_race.utility(s_c, s_r * torch.nan, plan, theta)
    with pytest.raises(PolicyError, match=r"not those of the plan \(first: row 0"):
        sparse_race.utility(s_c + 1, s_r, plan, theta)
    with pytest.raises(ConfigError, match="theta"):
        sparse_race.utility(s_c, s_r, plan, torch.tensor([torch.nan]))
