"""Products of factors: retrieval against a full sort, scores of some documents against autograd, splits, bad input."""

import numpy as np
import pytest
import torch

from tandemrank.errors import ConfigError, PolicyError
from tandemrank.gradients import products
from tandemrank.gradients._kernels import products as kernel
from tandemrank.gradients._kernels.products import BLOCK
from tandemrank.gradients.products import Products


def factors(B: int, D: int, F: int, seed: int = 0) -> Products:
    generator = torch.Generator().manual_seed(seed)
    return Products(torch.randn(B, F, generator=generator), torch.randn(D, F, generator=generator))


@pytest.mark.parametrize(("D", "n"), [(1, 1), (7, 3), (5000, 40), (9000, 3000), (20_000, 1)])
def test_top_is_the_full_sort(D: int, n: int) -> None:
    given = factors(5, D, 6)
    best, score = products.top(given, n)
    dense = (given.queries.double() @ given.items.double().T).numpy()
    np.testing.assert_allclose(score, -np.sort(-dense, axis=1)[:, :n], atol=1e-5)
    np.testing.assert_allclose(score, np.take_along_axis(dense, best.astype(np.int64), 1), atol=1e-5)
    assert all(len(set(row.tolist())) == n for row in best)


def test_top_of_given_scores_with_ties_and_documents_that_are_not_available() -> None:
    scores = torch.zeros(3, 10_000)
    scores[0, 9_000:] = 1.0
    scores[1, 5:] = -torch.inf
    scores[2] = -torch.inf
    best, score = products.top(scores, 8)
    assert best[0].tolist() == list(range(9_000, 9_008))
    assert best[1].tolist() == [0, 1, 2, 3, 4, -1, -1, -1]
    assert (best[2] == -1).all()
    assert (score[1, 5:] == -np.inf).all()


def test_top_finds_what_no_sample_shows() -> None:
    """All of the high scores lie between the documents that tell the level, or just below a level that promises too much."""
    scores = torch.zeros(2, 40_000)
    scores[0, 1:200:2] = 5.0
    scores[1, products.Source.of(scores).some()[:600]] = 3.0
    best, score = products.top(scores, 700)
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
    best, score = products.top(scores, 10)
    assert best[0].tolist() == [29_999, 25_000, *range(8)]
    assert best[1].tolist() == list(range(10))
    assert best[2].tolist() == list(range(29_900, 29_910))
    assert score[0].tolist() == [2.0, 1.0, *[0.0] * 8]
    source = products.Source.of(scores)
    b = np.full(3, -np.inf, np.float32)
    docs, _, filled = products._exceeding(source, b, np.zeros(3, np.float32), 10)
    assert docs.shape[1] == 2 * 10 + BLOCK
    assert filled.max() <= docs.shape[1]
    assert b.min() > -np.inf


@pytest.mark.parametrize("wanted", [1, 10, 500])
def test_a_level_is_exceeded_by_enough_and_not_by_many_more(wanted: int) -> None:
    """However few scores are far above all others: what bins of equal width would hold in one."""
    scores = torch.randn(4, 100_000, generator=torch.Generator().manual_seed(0)) * 0.1
    scores[:, ::5_000] += 1000.0
    source = products.Source.of(scores)
    b, margin = np.empty(4, np.float32), np.empty(4, np.float32)
    kernel.set_levels(0, 4, source.X, source.Y, source.given, source.some(), wanted, b, margin)
    above = (scores.numpy() > b[:, None]).sum(1)
    assert (above >= wanted).all()
    assert (above < wanted + 2_000).all()


def test_the_split_of_a_batch_changes_no_bit() -> None:
    given = factors(70, 9_000, 50)
    whole = products.top(given, 30)
    parts = [products.top(Products(given.queries[i:j], given.items), 30) for i, j in ((0, 1), (1, 40), (40, 70))]
    for n, x in enumerate(whole):
        np.testing.assert_array_equal(x, np.concatenate([part[n] for part in parts]))


@pytest.mark.parametrize("sparse", [False, True])
def test_scores_of_some_documents_and_their_gradients(sparse: bool) -> None:
    given = factors(6, 30, 5)
    queries, items = given.queries.requires_grad_(), given.items.requires_grad_()
    generator = torch.Generator().manual_seed(1)
    documents = torch.randint(30, (6, 9), generator=generator)
    gradient = torch.randn(6, 9, generator=generator)
    gradient[:, 3] = 0.0
    expected = (queries @ items.T).gather(1, documents)
    by_hand = torch.autograd.grad(expected, (queries, items), gradient)
    found = products.at(queries, items, documents, sparse=sparse)
    torch.testing.assert_close(found, expected)
    by_query, by_item = torch.autograd.grad(found, (queries, items), gradient)
    torch.testing.assert_close(by_query, by_hand[0])
    assert by_item.is_sparse == sparse
    torch.testing.assert_close(by_item.to_dense(), by_hand[1])
    if sparse:
        index = by_item.coalesce().indices()[0]
        assert torch.equal(index, torch.unique(documents[:, [0, 1, 2, 4, 5, 6, 7, 8]]))


def test_bad_input_is_refused_by_name() -> None:
    x, y = torch.zeros(2, 3), torch.zeros(4, 3)
    with pytest.raises(PolicyError, match="factors"):
        Products(x, torch.zeros(4, 2))
    with pytest.raises(ConfigError, match="at least 1 document"):
        products.top(Products(x, y), 0)
    with pytest.raises(PolicyError, match=r"\[queries, documents\]"):
        products.top(torch.zeros(3), 1)
    with pytest.raises(PolicyError, match="int64"):
        products.at(x, y, torch.zeros(2, 1))
    with pytest.raises(PolicyError, match=r"0 \.\.\. 3; got 0 \.\.\. 4"):
        products.at(x, y, torch.tensor([[0], [4]]))
    bad = torch.zeros(4, 3)
    bad[2, 1] = torch.nan
    with pytest.raises(PolicyError, match=r"row 0, document 2"):
        products.top(Products(x + 1, bad), 1)
    with pytest.raises(PolicyError, match=r"1 queries are NaN or \+inf \(first: row 1, document 0\)"):
        products.top(torch.tensor([[0.0, 1.0], [torch.inf, 1.0]]), 1)
