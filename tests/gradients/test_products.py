"""Products of factors: scores of some documents against autograd, bad input."""

import pytest
import torch

from tandemrank.errors import PolicyError
from tandemrank.gradients import products
from tandemrank.gradients.products import Products


def factors(B: int, D: int, F: int, seed: int = 0) -> Products:
    generator = torch.Generator().manual_seed(seed)
    return Products(torch.randn(B, F, generator=generator), torch.randn(D, F, generator=generator))


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
    with pytest.raises(PolicyError, match="int64"):
        products.at(x, y, torch.zeros(2, 1))
    with pytest.raises(PolicyError, match=r"0 \.\.\. 3; got 0 \.\.\. 4"):
        products.at(x, y, torch.tensor([[0], [4]]))
