"""Draws through cells have the law of the race where caps are above the scores, and say what they lose where they are not."""

import itertools
import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

import enumeration
from tandemrank.errors import PolicyError
from tandemrank.gradients import _bridge, cells, lazy_race, sparse_alone, sparse_race
from tandemrank.gradients import _capped_race_kernel as kernel
from tandemrank.gradients.products import Products, Source, at

SCORES = [0.5, -1.0, 1.5, 0.0, 0.3, -2.0]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def factors(scores, wanted: int, z: float, seed: int = 0) -> Products:
    """Six items, or how many there are, with these scores for query (1, 0, 0); cells by all three coordinates."""
    items = torch.randn(len(scores), 3, generator=seeded(seed))
    items[:, 0] = torch.tensor(scores)
    return Products(torch.tensor([[1.0, 0.0, 0.0]]), items, cells.partition(items, cells=wanted, z=z))


def repeated(one: Products, n: int) -> Products:
    return Products(one.queries.expand(n, -1), one.items, one.cells)


def arrivals(one: Products, log_T, n: int, seed: int = 1):
    """Whether each document arrives, and when, as a share of the horizon: [n, U, D], two."""
    source, U = Source.of(repeated(one, n)), len(log_T)
    keys = _bridge.keys_for(n * U, seeded(seed)).reshape(n, U)
    docs, scores, times, filled = lazy_race.arrived_by_cells(source, np.tile(np.float32(log_T), (n, 1)), keys, 5)
    inside, when = np.zeros((n, U, source.D), bool), np.full((n, U, source.D), np.nan)
    kept = np.arange(docs.shape[2]) < filled[..., None]
    row, race = np.nonzero(kept)[:2]
    inside[row, race, docs[kept]] = True
    assert inside.sum() == kept.sum()  # nobody arrives twice
    when[row, race, docs[kept]] = np.exp(times[kept] - np.float32(log_T)[race])
    np.testing.assert_allclose(scores[kept], (one.items @ one.queries[0]).numpy()[docs[kept]], rtol=1e-5)
    return inside, when


# cells, horizons of the races, whether cells are opened
WORLDS = [(1, (-3.0, -3.3), False), (2, (-2.5, -1.5), None), (6, (-1.6, -4.0), None), (3, (1.0, 2.0), True)]


@pytest.mark.parametrize(("wanted", "log_T", "opened"), WORLDS)
def test_who_arrives_and_when_is_the_law_of_exponential_clocks(wanted, log_T, opened) -> None:
    n, one = 40_000, factors(SCORES, wanted, z=2.3)
    inside, when = arrivals(one, log_T, n)
    tally = one.cells.tally
    if opened is not None:
        assert (tally.opened > 0) == opened
        assert (tally.proposed > 0) != opened
    assert tally.lost <= 1e-4 * tally.arrived
    rate = np.exp(np.array(SCORES) + np.array(log_T)[:, None])
    for share in (1.0, 0.3):
        p = -np.expm1(-rate * share)
        found = (inside & (np.nan_to_num(when, nan=9.0) <= share)).mean(0)
        assert (np.abs(found - p) <= 5 * np.sqrt(p * (1 - p) / n) + 1e-9).all(), (found, p)
    flat = inside.reshape(n, -1).astype(float)
    flat -= flat.mean(0)
    covariance, spread = flat.T @ flat / n, np.sqrt(np.outer(flat.var(0), flat.var(0)) / n)
    np.fill_diagonal(covariance, 0.0)
    assert (np.abs(covariance) <= 5 * spread + 1e-9).all()


def force_horizon(monkeypatch, log_T: float | None) -> None:
    """Another horizon of the races than the chosen one: the law must not depend on it."""
    chosen = lazy_race.horizons

    def forced(source, K2, samples, wide):
        found = chosen(source, K2, samples, wide)
        found.log_T[:, :samples] = log_T
        return found

    if log_T is not None:
        monkeypatch.setattr(lazy_race, "horizons", forced)


@pytest.mark.parametrize("log_T", [None, -2.0, -math.inf])
@pytest.mark.parametrize("wanted", [1, 3])
def test_candidates_and_lists_are_plackett_luce_by_enumeration(wanted, log_T, monkeypatch) -> None:
    force_horizon(monkeypatch, log_T)
    n, K2, scores = 40_000, 3, repeated(factors(SCORES, wanted, z=3.0), 40_000)
    expected = dict.fromkeys(itertools.combinations(range(6), K2), 0.0)
    lists = {}
    for y, p, _ in enumeration.rankings(SCORES, range(6), K2):
        expected[tuple(sorted(y))] += p
        lists[tuple(y)] = p
    drawn = np.sort(lazy_race.candidates(scores, K2, generator=seeded(1)), axis=1)
    ordered = lazy_race.draw(scores, K2, rows=np.arange(n), keys=_bridge.keys_for(n, seeded(2)))
    for found, law in ((drawn, expected), (ordered, lists)):
        sets, counts = np.unique(found, axis=0, return_counts=True)
        share = {tuple(y): count / n for y, count in zip(sets.tolist(), counts.tolist(), strict=True)}
        assert set(share) <= set(law)
        for y, p in law.items():
            assert abs(share.get(y, 0.0) - p) <= 5 * math.sqrt(p * (1 - p) / n) + 1e-9, y


def assert_mean(sample: torch.Tensor, exact, what: str) -> None:
    sample, exact = sample.double(), torch.tensor(exact, dtype=torch.float64)
    error = sample.std(0) / len(sample) ** 0.5
    assert torch.all((sample.mean(0) - exact).abs() <= 5 * error + 1e-6), f"{what}: {sample.mean(0)} against {exact}"


@pytest.mark.parametrize("log_T", [None, -2.0])
def test_value_and_gradients_of_the_pair_by_enumeration(log_T, monkeypatch) -> None:
    n, K2, theta = 40_000, 3, [1.0, 0.6]
    r, w = [0.2, 1.0, -0.5, 0.7, 0.0, 0.4], [1.0, 0.0, -0.5, 0.0, 0.0, 2.0]
    force_horizon(monkeypatch, log_T)
    scores = repeated(factors(SCORES, 3, z=3.0), n)
    plan = sparse_race.plan(scores, csr_matrix(np.tile(np.float32(w), (n, 1))), K2, generator=seeded(2))
    s_c = at(scores.queries, scores.items, plan.generator_documents).requires_grad_()
    s_r = torch.tensor(r).expand(n, -1).gather(1, plan.ranker_documents).requires_grad_()
    value = sparse_race.utility(s_c, s_r, plan, torch.tensor(theta))
    gradients = torch.autograd.grad(value.sum(), (s_c, s_r))
    found = [value.detach()] + [
        torch.zeros(n, 6).scatter_add_(1, documents, g)
        for documents, g in zip((plan.generator_documents, plan.ranker_documents), gradients, strict=True)
    ]
    exact = enumeration.utility(SCORES, r, w, theta, K2)
    for sample, expected, what in zip(found, exact, ("value", "generator", "re-ranker"), strict=True):
        assert_mean(sample, expected, what)


@pytest.mark.parametrize("size", [2, 5])
def test_value_and_gradient_of_a_stage_alone_by_enumeration(size: int) -> None:
    n, alpha, w = 40_000, [1.0, 0.6], [1.0, 0.0, -0.5, 0.0, 0.0, 2.0]
    scores = repeated(factors(SCORES, 3, z=3.0), n)
    plan = sparse_alone.plan(
        scores, csr_matrix(np.tile(np.float32(w), (n, 1))), torch.tensor(alpha), size=size, generator=seeded(3)
    )
    found = torch.zeros(n, 6).scatter_add_(1, plan.documents, plan.gradient)
    value, _, by_s = enumeration.utility([0.0] * 6, SCORES, w, alpha, 6)
    assert_mean(plan.value, value, "value")
    assert_mean(found, by_s, "gradient")


def caps(one: Products) -> np.ndarray:
    """The cap of each document's cell, by numpy.  Shapes: -> [D]."""
    known, x = one.cells, one.queries[0].double().numpy()
    correction = x @ known.covariance @ x / (x**2 @ np.diag(known.covariance))
    cap = known.mean @ x + known.z * np.sqrt(correction * (known.variance @ x**2))
    found = np.empty(len(one.items))
    found[known.members] = np.repeat(cap, np.diff(known.start))
    return found


@pytest.mark.parametrize(
    ("wanted", "z", "log_T"), [(1, 0.0, (-0.7, -1.2)), (2, 0.5, (-4.0, -3.0)), (3, 0.3, (-3.5, -3.0))]
)
def test_what_caps_lose_is_what_is_said(wanted, z, log_T) -> None:
    """An item above its cap arrives at the cap's rate; the tally's arrivals that are lost have the true mean."""
    scores, n, parts = [0.5, -1.0, 1.5, 0.0, 0.3, -2.0, 2.2], 4_000, 20
    one = factors(scores, wanted, z)
    cap, log_T = caps(one), np.array(log_T)
    assert (np.array(scores) > cap + 0.1).any()
    rate, true = (np.exp(s + log_T[:, None]) for s in (np.minimum(scores, cap), np.array(scores)))
    found, inside = [], []
    for seed in range(parts):
        one.cells.tally.__init__()
        inside.append(arrivals(one, log_T, n, seed)[0].mean(0))
        found.append((one.cells.tally.lost / n, one.cells.tally.lost_share))
        assert one.cells.tally.opened == 0
    p = -np.expm1(-rate)
    assert (np.abs(np.mean(inside, 0) - p) <= 5 * np.sqrt(p * (1 - p) / (n * parts)) + 1e-9).all()
    lost = (np.exp(-rate) - np.exp(-true)).sum()
    error = np.std(found, 0, ddof=1) / math.sqrt(parts)
    exact = np.array([lost, lost / -np.expm1(-true).sum()])
    assert (np.abs(np.mean(found, 0) - exact) <= 5 * error).all(), (np.mean(found, 0), exact, error)


def test_the_basis_of_the_vectors_makes_no_difference() -> None:
    """Turned at random, coordinates move together; the covariance of all cells says so, their variances alone do not."""
    scale = 2 ** -torch.arange(8.0)
    X, Y = 3 * torch.randn(400, 8, generator=seeded(1)) * scale, torch.randn(4000, 8, generator=seeded(2)) * scale
    turned, _ = torch.linalg.qr(torch.randn(8, 8, generator=seeded(3)))
    lost = []
    for basis, shared in ((torch.eye(8), True), (turned, True), (turned, False)):
        known = cells.partition(Y @ basis, z=2.0)
        if not shared:
            known.covariance[:] = np.diag(np.diag(known.covariance))
        lazy_race.candidates(Products(X @ basis, Y @ basis, known), 40, generator=seeded(4))
        lost.append(known.tally.lost_share)
    assert lost[1] == pytest.approx(lost[0], rel=0.3)
    assert lost[2] > 2 * lost[0] > 0


def test_open_cells_have_the_clocks_of_the_dense_race() -> None:
    """With a long horizon every cell is opened: who arrives, and when, is what all clocks say."""
    X, Y = torch.randn(5, 4, generator=seeded(1)), torch.randn(300, 4, generator=seeded(2))
    keys, log_T = _bridge.keys_for(10, seeded(3)).reshape(5, 2), np.full((5, 2), 6.0, np.float32)
    horizons = lazy_race.Horizons(*(np.full(5, x, np.float32) for x in (-np.inf, 1e-4)), log_T, log_T[:, 0])
    exact = lazy_race._arrived(Source.of(Products(X, Y)), horizons, keys, 300)
    found = lazy_race._arrived(Source.of(Products(X, Y, cells.partition(Y, z=cells.Z))), horizons, keys, 300)
    np.testing.assert_array_equal(found[3], exact[3])
    for q, u in np.ndindex(5, 2):
        a, b = (
            {d: (s, t) for d, s, t in zip(*(x[q, u, : e[3][q, u]].tolist() for x in e[:3]), strict=True)}
            for e in (found, exact)
        )
        assert a.keys() == b.keys()
        np.testing.assert_allclose(list(a.values()), [b[d] for d in a], rtol=1e-5, atol=1e-6)


def test_more_arrivals_than_there_was_room_for(monkeypatch) -> None:
    """K2 says how many are expected; where far more come they are drawn once more, the same."""
    Y = torch.randn(30_000, 4, generator=seeded(1)) * 0.1
    source = Source.of(Products(torch.randn(2, 4, generator=seeded(2)), Y, cells.partition(Y, z=cells.Z)))
    keys, log_T = _bridge.keys_for(2, seeded(3))[:, None], np.full((2, 1), -0.7, np.float32)
    docs, _, _, filled = lazy_race.arrived_by_cells(source, log_T, keys, 5)
    assert filled.min() > 2 * (5 + 4096)
    assert docs.shape[2] >= filled.max()
    again = lazy_race.arrived_by_cells(source, log_T, keys, 30_000)
    np.testing.assert_array_equal(filled, again[3])
    for q in range(2):
        assert sorted(docs[q, 0, : filled[q, 0]]) == sorted(again[0][q, 0, : filled[q, 0]])
        assert len(set(docs[q, 0, : filled[q, 0]].tolist())) == filled[q, 0]
    tally = source.cells.tally
    assert tally.queries == 4
    assert tally.arrived == 2 * filled.sum()


def test_the_split_of_a_batch_changes_no_bit() -> None:
    X, Y = torch.randn(20, 12, generator=seeded(1)), torch.randn(9_000, 12, generator=seeded(2))
    keys, known = _bridge.keys_for(20, seeded(3)), cells.partition(Y, z=cells.Z)
    whole = lazy_race.races(Source.of(Products(X, Y, known)), 50, 2, keys, 2.0)
    parts = [
        lazy_race.races(Source.of(Products(X[i:j], Y, known)), 50, 2, keys[i:j], 2.0)
        for i, j in ((0, 1), (1, 13), (13, 20))
    ]
    for name in ("candidates", "s", "count", "log_edge", "log_tau", "sample_n"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(getattr(whole, name), joined, err_msg=name)


THREADS = """
import torch, numba
numba.set_num_threads(int(__import__("sys").argv[1]))
torch.set_num_threads(int(__import__("sys").argv[1]))
from tandemrank.gradients import cells, lazy_race
from tandemrank.gradients.products import Products
g = torch.Generator().manual_seed(0)
X, Y = torch.randn(17, 30, generator=g), torch.randn(9000, 30, generator=g)
print(hash(lazy_race.candidates(Products(X, Y, cells.partition(Y, z=cells.Z)), 100, generator=g).tobytes()))
"""


def test_the_number_of_threads_changes_nothing() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "0", "NUMBA_NUM_THREADS": "2"}
    one, two = (
        subprocess.run(
            [sys.executable, "-c", THREADS, n], capture_output=True, text=True, check=True, env=environment
        ).stdout
        for n in ("1", "2")
    )
    assert one == two


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e4])
@pytest.mark.parametrize(
    ("D", "K2", "wanted"), [(1, 1, 1), (1, 5, 1), (5, 3, 5), (4, 4, 2), (6000, 5, None), (6000, 5999, 70)]
)
def test_edges_give_as_many_candidates_as_there_can_be(scale: float, D: int, K2: int, wanted: int | None) -> None:
    X, Y = torch.randn(3, 2, generator=seeded(D)), scale * torch.randn(D, 2, generator=seeded(K2)).sign()
    drawn = lazy_race.candidates(Products(X, Y, cells.partition(Y, cells=wanted, z=cells.Z)), K2, generator=seeded(0))
    for row in drawn:
        assert len(set(row[row >= 0].tolist())) == min(K2, D)
    if scale == 1e4 and K2 == 5 and D == 6000:
        s = X @ Y.T
        assert all(bool((s[q, drawn[q]] == s[q].max()).all()) for q in range(3))
    nobody = lazy_race.candidates(
        Products(X[:0], Y, cells.partition(Y, cells=wanted, z=cells.Z)), K2, generator=seeded(0)
    )
    assert nobody.shape == (0, K2)


def test_scores_that_are_none_are_refused_by_name() -> None:
    X, Y = torch.randn(3, 2, generator=seeded(1)), torch.randn(500, 2, generator=seeded(2))
    known = cells.partition(Y, z=cells.Z)
    X[1] = torch.nan
    with pytest.raises(PolicyError, match="row 1"):
        lazy_race.candidates(Products(X, Y, known), 5, generator=seeded(0))


def test_caps_are_higher_where_scores_are_far_from_normal_and_proposals_few() -> None:
    """Items of which a few are far out: caps of one height lose many arrivals, those that go as high as is cheap hardly any."""
    rng = np.random.default_rng(5)
    items = torch.tensor(rng.normal(size=(4000, 3)) * np.exp(rng.normal(size=(4000, 1))), dtype=torch.float32)
    queries, keys = torch.tensor(rng.normal(size=(20, 3)), dtype=torch.float32), np.arange(1, 21, dtype=np.uint64)
    lost = {}
    for z in (2.0, None):
        known = cells.partition(items, z=z)
        lazy_race.races(Source.of(Products(queries, items, known)), 20, 2, keys)
        lost[z] = known.tally.lost_share
    assert lost[2.0] > 0.02
    assert lost[None] < 0.001


def test_heights_are_the_highest_that_the_effort_allows() -> None:
    """Two cells of 100 items, one far below; of 1 e^(0.1 z - 2) proposals per item, at most 2."""
    centre, spread = np.array([-2.0, -50.0], np.float32), np.array([0.1, 0.1], np.float32)
    sizes = np.array([100, 100])
    cost = {z: 100 * min(math.exp(0.1 * z - 2), 2.0) for z in (3.5, 4.0, 5.0, 6.0, 8.0, 12.0, 20.0)}
    for effort in (0.0, 19.0, 20.5, 31.0, 99.0, 150.0):
        wanted = max([3.0, *(z for z, one in cost.items() if one <= effort)])
        assert kernel.height_of(centre, spread, sizes, 0.0, 2.0, np.float32(3.0), effort) == wanted
