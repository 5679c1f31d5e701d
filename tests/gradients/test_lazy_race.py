"""The lazy race has the law of the first race: by enumeration, by its times, by the dense race, whatever level and horizon;
without chance it is exact retrieval, by a full sort."""

import itertools
import math

import numpy as np
import pytest
import torch

import enumeration
from tandemrank.errors import ConfigError, PolicyError
from tandemrank.gradients import _bridge, lazy_race, race
from tandemrank.gradients._kernels.products import BLOCK
from tandemrank.gradients.products import Listed, Products, Source
from worlds import seeded

# Level and horizon (b, log T): all head, all tail, both, too short, long; None: as chosen.
HORIZONS = [None, (-math.inf, 0.0), (9.0, -6.0), (0.2, -1.0), (0.2, -math.inf), (1.0, 1.0)]


def candidates(scores, K2: int, seed: int) -> np.ndarray:
    """One draw of K2 candidates for each query, -1 where fewer are available.  Shapes: scores [B, D] -> [B, min(K2, D)]."""
    source = Source.of(scores)
    return lazy_race.races(source, min(K2, source.D), _bridge.keys_for(source.B, seeded(seed))[:, None]).first[
        :, 0, :-1
    ]


@pytest.fixture
def horizon(request, monkeypatch):
    """Every query gets this level and horizon, whatever its scores say."""
    if request.param is not None:
        chosen = lazy_race.horizons

        def forced(source, K, races, *more):
            at = chosen(source, K, races, *more)
            at.b[:], at.log_T[:, :races] = request.param
            return at

        monkeypatch.setattr(lazy_race, "horizons", forced)
    return request.param


def listing(s: list[float], n: int) -> Products:
    """The scores of one query n times: the even ones are products, the odd ones are listed, and their products are wrong."""
    items = torch.tensor(s).where(torch.arange(len(s)) % 2 == 0, torch.tensor(0.7))
    odd = np.arange(1, len(s), 2, dtype=np.int32)
    value = np.tile(np.array(s, np.float32)[odd], n)
    listed = Listed(np.arange(n + 1) * len(odd), np.tile(odd, n), value)
    return Products(torch.ones(n, 1), items[:, None], listed=listed)


@pytest.mark.parametrize("scores", [lambda s, n: torch.tensor([s] * n), listing], ids=["given", "listed"])
@pytest.mark.parametrize("horizon", HORIZONS, indirect=True)
def test_candidates_are_plackett_luce_by_enumeration(horizon, scores) -> None:
    s, K2, n = [0.5, -1.0, 1.5, 0.0, 0.3, -math.inf], 3, 40_000
    expected = dict.fromkeys(itertools.combinations(range(6), K2), 0.0)
    for y, p, _ in enumeration.rankings(s, range(6), K2):
        expected[tuple(sorted(y))] += p
    drawn = np.sort(candidates(scores(s, n), K2, 1), axis=1)
    sets, counts = np.unique(drawn, axis=0, return_counts=True)
    found = {tuple(y): count / n for y, count in zip(sets.tolist(), counts.tolist(), strict=True)}
    assert set(found) <= set(expected)
    for y, p in expected.items():
        assert abs(found.get(y, 0.0) - p) <= 5 * math.sqrt(p * (1 - p) / n) + 1e-9, y


@pytest.mark.parametrize("horizon", HORIZONS, indirect=True)
def test_the_last_candidate_and_who_missed_and_their_times(horizon) -> None:
    """The K2-th arrival: who it is, its time, and the time and name of the next, against the dense clocks' law."""
    s, K2, n = torch.tensor([0.5, -1.0, 1.5, 0.0, 0.3]), 2, 40_000
    keys = _bridge.keys_for(n, seeded(3))
    found = lazy_race.races(Source.of(s.expand(n, -1)), K2, keys[:, None])
    T = torch.empty(n, 5).exponential_(generator=seeded(4)) / s.exp()
    times, order = T.sort(dim=1)
    for place, name in ((0, K2 - 1), (K2, K2)):
        ours = np.bincount(found.first[:, 0, place], minlength=5) / n
        theirs = np.bincount(order[:, name].numpy(), minlength=5) / n
        assert np.all(np.abs(ours - theirs) <= 5 * np.sqrt((ours * (1 - ours) + theirs * (1 - theirs)) / n))
    edge, expected = np.exp(found.log_t[:, 0, [0, K2]].astype(np.float64)), times[:, K2 - 1 : K2 + 1].double().numpy()
    for power in (0.5, 1.0):
        a, b = edge**power, expected**power
        assert np.all(np.abs(a.mean(0) - b.mean(0)) <= 5 * np.sqrt((a.var(0) + b.var(0)) / n))
    gap_a, gap_b = edge[:, 1] - edge[:, 0], expected[:, 1] - expected[:, 0]
    assert abs(gap_a.mean() - gap_b.mean()) <= 5 * math.sqrt((gap_a.var() + gap_b.var()) / n)


def test_races_and_sample_are_independent_and_the_sample_has_its_chances() -> None:
    s, K2, n = [0.5, -1.0, 1.5, 0.0, 0.3], 2, 40_000
    own, other = np.split(lazy_race.streams(_bridge.keys_for(n, seeded(5)), range(3)), [2], 1)
    found = lazy_race.races(Source.of(torch.tensor([s] * n)), K2, own, other, 2)
    inside = np.zeros((3, n, 5))
    for i in range(2):
        np.put_along_axis(inside[i], found.first[:, i, :K2].astype(np.int64), 1.0, axis=1)
    for q in range(n):
        inside[2, q, found.sampled[q, 0, : found.count[q, 0]]] = 1.0
    chance = 1 - np.exp(-np.exp(np.array(s) + found.log_reach[0]))
    assert chance.sum() == pytest.approx(2, abs=0.1)
    assert np.all(np.abs(inside[2].mean(0) - chance) <= 5 * np.sqrt(chance * (1 - chance) / n))
    centred = inside - inside.mean(1, keepdims=True)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        covariance = centred[a].T @ centred[b] / n
        spread = np.sqrt(np.outer(centred[a].var(0), centred[b].var(0)) / n)
        assert np.all(np.abs(covariance) <= 5 * spread)


@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_against_the_dense_race_on_many_documents(scale: float) -> None:
    """How many candidates have scores in each of ten bands, D = 20,000; level and horizon are those that are chosen."""
    D, K2, n = 20_000, 300, 200
    s = scale * torch.randn(D, generator=seeded(6))
    lazy = candidates(s.expand(n, -1), K2, 7)
    same = torch.zeros(1, D)
    dense = race.draw(s[None], same, K2, K2, rows=np.zeros(n, np.int64), keys=_bridge.keys_for(n, seeded(8)))
    edges = np.quantile(s.numpy()[dense.ravel()], np.linspace(0, 1, 11)[1:-1])
    counts = [
        np.stack([np.bincount(np.digitize(s.numpy()[row], edges), minlength=10) for row in x]) for x in (lazy, dense)
    ]
    assert all(len(set(row.tolist())) == K2 for row in lazy)
    gap = np.abs(counts[0].mean(0) - counts[1].mean(0))
    assert np.all(gap <= 5 * np.sqrt((counts[0].var(0) + counts[1].var(0)) / n))


@pytest.mark.parametrize("K2", [10, 300])
def test_scores_far_apart_do_not_shorten_the_horizon(K2: int) -> None:
    """A few documents that always come first say nothing of when the others do; if too few had arrived by the horizon, all
    clocks would be drawn."""
    scores = torch.randn(8, 50_000, generator=seeded(0)) * 0.5
    scores[:, ::2_500] += torch.linspace(60.0, 1500.0, 20)
    scores[4:, 7::10] -= 200.0
    source = Source.of(scores)
    at = lazy_race.horizons(source, K2, 3, 0, 0)
    keys = np.arange(24, dtype=np.uint64).reshape(8, 3)
    *_, filled = lazy_race._arrived(source, at, keys, K2)
    assert (filled > K2).all()
    assert (filled < 10 * K2 + 2_000).all()


def test_the_split_of_a_batch_changes_no_bit() -> None:
    X, Y = torch.randn(70, 20, generator=seeded(1)), torch.randn(9_000, 20, generator=seeded(2))
    keys = _bridge.keys_for(70, seeded(3))
    own, other = np.split(lazy_race.streams(keys, range(3)), [2], 1)
    whole = lazy_race.races(Source.of(Products(X, Y)), 50, own, other, 100)
    parts = [
        lazy_race.races(Source.of(Products(X[i:j], Y)), 50, own[i:j], other[i:j], 100)
        for i, j in ((0, 1), (1, 40), (40, 70))
    ]
    for name in ("first", "s", "log_t", "count", "log_tau", "log_reach"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(getattr(whole, name), joined, err_msg=name)


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1e4])
@pytest.mark.parametrize(("D", "K2"), [(1, 1), (1, 5), (5, 3), (4, 4), (6000, 5), (6000, 5999)])
def test_edges_give_as_many_candidates_as_there_can_be(scale: float, D: int, K2: int) -> None:
    s = torch.randn(3, D, generator=seeded(D)).sign() * scale
    s[1, 1:] = -torch.inf
    s[2] = -torch.inf
    drawn = candidates(s, K2, 0)
    for q, available in enumerate((D, 1, 0)):
        row = drawn[q][drawn[q] >= 0]
        assert len(row) == len(set(row.tolist())) == min(K2, available)
        assert drawn.shape == (3, min(K2, D))
    if scale == 1e4 and D == 6000:
        best = int((s[0] > 0).sum())
        assert (s[0, drawn[0]] > 0).sum() == min(K2, best)


def factors(B: int, D: int, F: int) -> Products:
    return Products(torch.randn(B, F, generator=seeded(0)), torch.randn(D, F, generator=seeded(1)))


@pytest.mark.parametrize(("D", "n"), [(1, 1), (7, 3), (5000, 40), (9000, 3000), (20_000, 1)])
def test_top_is_the_full_sort(D: int, n: int) -> None:
    given = factors(5, D, 6)
    best, score = lazy_race.top(given, n)
    dense = (given.queries.double() @ given.items.double().T).numpy()
    np.testing.assert_allclose(score, -np.sort(-dense, axis=1)[:, :n], atol=1e-5)
    np.testing.assert_allclose(score, np.take_along_axis(dense, best.astype(np.int64), 1), atol=1e-5)
    assert all(len(set(row.tolist())) == n for row in best)


def test_top_of_products_of_which_some_are_listed() -> None:
    """In every tile of queries and every block of documents, also at their edges."""
    rng, plain = np.random.default_rng(2), factors(130, 2 * BLOCK + 5, 4)
    row = np.repeat([0, 63, 64, 129], 4)
    item = np.tile(np.array([0, BLOCK - 1, BLOCK, 2 * BLOCK + 4], np.int32), 4)
    value = rng.choice(np.array([-50.0, 50.0], np.float32), 16) + rng.random(16, np.float32)
    listed = Listed(np.searchsorted(row, np.arange(131)), item, value)
    given = Products(plain.queries, plain.items, listed=listed)
    dense = (plain.queries.double() @ plain.items.double().T).numpy()
    dense[row, item] = value
    assert np.allclose(given.whole().numpy(), dense, atol=1e-5)
    assert np.allclose(Source.of(given).at(row, item), value)
    best, score = lazy_race.top(given, 20)
    assert np.allclose(score, -np.sort(-dense, axis=1)[:, :20], atol=1e-5)
    assert np.allclose(score, np.take_along_axis(dense, best.astype(np.int64), 1), atol=1e-5)


def test_top_of_given_scores_with_ties_and_documents_that_are_not_available() -> None:
    scores = torch.zeros(3, 10_000)
    scores[0, 9_000:] = 1.0
    scores[1, 5:] = -torch.inf
    scores[2] = -torch.inf
    best, score = lazy_race.top(scores, 8)
    assert best[0].tolist() == list(range(9_000, 9_008))
    assert best[1].tolist() == [0, 1, 2, 3, 4, -1, -1, -1]
    assert (best[2] == -1).all()
    assert (score[1, 5:] == -np.inf).all()


def test_top_finds_what_no_sample_shows() -> None:
    """All of the high scores lie between the documents that tell the level, or just below a level that promises too much."""
    scores = torch.zeros(2, 40_000)
    scores[0, 1:200:2] = 5.0
    scores[1, Source.of(scores).some()[:600]] = 3.0
    best, score = lazy_race.top(scores, 700)
    assert set(best[0, :100].tolist()) == set(range(1, 200, 2))
    assert (score[1, :600] == 3).all()
    assert (score[1, 600:] == 0).all()
    assert len(set(best[1].tolist())) == 700


def test_top_needs_little_room_where_very_many_have_one_score() -> None:
    """Items that nobody rated have vectors of zeros. The first of them fill up the list, and the others are not kept."""
    scores = torch.zeros(3, 30_000)
    scores[0, [25_000, 29_999]] = torch.tensor([1.0, 2.0])
    scores[1, 7_000:] = -1.0
    scores[2] = torch.arange(30_000) // 100
    best, score = lazy_race.top(scores, 10)
    assert best[0].tolist() == [29_999, 25_000, *range(8)]
    assert best[1].tolist() == list(range(10))
    assert best[2].tolist() == list(range(29_900, 29_910))
    assert score[0].tolist() == [2.0, 1.0, *[0.0] * 8]
    source, none = Source.of(scores), np.zeros((3, 1), np.uint64)
    at = lazy_race.horizons(source, 10, 1, 0, 0, is_drawn=False)
    at.b[:] = -np.inf
    docs, _, _, filled = lazy_race._arrived(source, at, none, 10)
    assert docs.shape[2] == 2 * (10 + BLOCK)
    assert filled.max() <= docs.shape[2]
    assert at.b.min() > -np.inf


@pytest.mark.parametrize("wanted", [1, 10, 500])
def test_a_level_is_exceeded_by_enough_and_not_by_many_more(wanted: int) -> None:
    """However few scores are far above all others: what bins of equal width would hold in one."""
    scores = torch.randn(4, 100_000, generator=torch.Generator().manual_seed(0)) * 0.1
    scores[:, ::5_000] += 1000.0
    b = lazy_race.horizons(Source.of(scores), wanted, 1, 0, 0, is_drawn=False).b
    above = (scores.numpy() > b[:, None]).sum(1)
    assert (above >= wanted).all()
    assert (above < wanted + 2_000).all()


def test_the_split_of_a_batch_changes_no_document_at_the_top() -> None:
    given = factors(70, 9_000, 50)
    whole = lazy_race.top(given, 30)
    parts = [lazy_race.top(Products(given.queries[i:j], given.items), 30) for i, j in ((0, 1), (1, 40), (40, 70))]
    for n, x in enumerate(whole):
        np.testing.assert_array_equal(x, np.concatenate([part[n] for part in parts]))


def test_bad_input_is_refused_by_name() -> None:
    with pytest.raises(PolicyError, match="row 1, document 2"):
        candidates(torch.tensor([[0.0] * 3, [0.0, 0.0, torch.nan]]), 2, 0)
    x, y = torch.zeros(2, 3), torch.zeros(4, 3)
    with pytest.raises(ConfigError, match="at least 1 document"):
        lazy_race.top(Products(x, y), 0)
    with pytest.raises(PolicyError, match=r"\[queries, documents\]"):
        lazy_race.top(torch.zeros(3), 1)
    bad = torch.zeros(4, 3)
    bad[2, 1] = torch.nan
    with pytest.raises(PolicyError, match=r"row 0, document 2"):
        lazy_race.top(Products(x + 1, bad), 1)
    with pytest.raises(PolicyError, match=r"1 queries are NaN or \+inf \(first: row 1, document 0\)"):
        lazy_race.top(torch.tensor([[0.0, 1.0], [torch.inf, 1.0]]), 1)
