"""The objective of a minibatch over many items: a stage alone, what the re-ranker is asked, steps that touch few rows."""

import math

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_matrix

from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError
from tandemrank.gradients import race
from tandemrank.gradients._bridge import keys_for
from tandemrank.policies import candidates
from tandemrank.policies.scorers import MatrixFactorisation, Scorer
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.config import TrainingConfig
from tandemrank.training.loop import train
from tandemrank.training.objective import Objective, thinned
from tandemrank.training.steps import RowNormalisedStep, WholeAdam, optimisers_of, sparse_pace

RNG = np.random.default_rng(1)
USERS, ITEMS = (RNG.normal(size=(n, 3)).astype(np.float32) for n in (20, 30))
IDS = Vocabulary(pl.Series(range(20)), pl.Series(range(30)))
LIKED = csr_matrix((RNG.random((20, 30)) < 0.1).astype(np.float32))


class Counting(MatrixFactorisation):
    """A re-ranker that scores candidates only, and remembers what it was asked."""

    kind = "counting"
    scores_everything = False
    forward = Scorer.forward
    asked: list[int] = []  # noqa: RUF012

    def score(self, q: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        self.asked.append(items.shape[1])
        return super().score(q, items)


def pair(ranker: Scorer, K2: int = 6) -> TwoStagePolicy:
    return TwoStagePolicy(MatrixFactorisation(USERS, ITEMS), ranker, K2, 2, IDS)


@pytest.mark.parametrize("method", ["joint", "baseline", "independent"])
def test_a_re_ranker_is_asked_about_candidates_only(method) -> None:
    """S (K2 + 1) + |w| of 30 items at most; both stages learn from it."""
    Counting.asked = []
    start = pair(Counting(USERS[::-1].copy(), ITEMS))
    config = TrainingConfig(epochs=4, rank_weights="examination")
    trained = train(start, LIKED, [1.0, 0.5], config, method=method, seed=1).policy
    weighted = int(np.diff(LIKED.indptr).max())
    assert max(Counting.asked) <= max(2 * (6 + 1) + weighted, 8)
    before, after = (policy.utility(LIKED, [1.0, 0.5], samples=200).mean() for policy in (start, trained))
    assert after > before + 0.05
    assert not torch.equal(trained.ranker.items, start.ranker.items)


def test_sparse_training_is_as_good_as_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    start, values = pair(MatrixFactorisation(USERS, ITEMS), 12), []
    for large in (30, 0):
        monkeypatch.setattr(candidates, "LARGE", large)
        found = train(start, LIKED, [1.0, 0.5], TrainingConfig(epochs=8), seed=2).policy
        values.append(found.utility(LIKED, [1.0, 0.5], samples=200).mean())
    assert values[1] == pytest.approx(values[0], abs=0.1)


@pytest.mark.parametrize("alpha", [[1.0, 1.0, 1.0], [0.5, 1.0, 0.25]])
def test_a_stage_alone(alpha) -> None:
    """Value and gradient are those of the one-stage race in expectation, whatever the weights of the ranks."""
    n, theta, w = 4000, torch.tensor(alpha), LIKED[:1]
    s = torch.from_numpy(USERS[:1] @ ITEMS.T).requires_grad_()
    exact = race.utility(s.detach(), s, w, theta, 30, samples=n, generator=torch.Generator().manual_seed(1))
    exact.sum().backward()
    model = MatrixFactorisation(USERS[:1], ITEMS)
    many = csr_matrix(np.repeat(w.toarray(), n, 0))
    objective = Objective({"generator": model, "ranker": model}, 5, "race", 2, is_sparse=True)
    keys = keys_for(n, torch.Generator().manual_seed(2))
    q = torch.zeros(n, dtype=torch.int64)
    value = objective.utility("generator", ["generator"], q, many, theta, keys)
    found = value.detach()
    assert float(found.mean()) == pytest.approx(float(exact.detach()), abs=5 * float(found.std()) / n**0.5 + 0.02)
    value.mean().backward()
    by_query = model.queries.grad.to_dense().ravel()
    assert torch.allclose(by_query, s.grad[0] @ torch.from_numpy(ITEMS), atol=0.06)


def test_what_needs_everything_is_refused() -> None:
    heavy = pair(Counting(USERS, ITEMS))
    with pytest.raises(ConfigError, match="gradient = reinforce needs scores of all items"):
        train(heavy, LIKED, [1.0, 0.5], TrainingConfig(gradient="reinforce"))


def test_adam_of_sparse_gradients_is_adam() -> None:
    """A row without a gradient goes on with what it remembers, as where all gradients are dense."""
    start = torch.linspace(-1, 1, 12).view(4, 3)
    ours, theirs = (start.clone().requires_grad_() for _ in range(2))
    optimisers = WholeAdam([ours], 0.1), torch.optim.Adam([theirs], 0.1)
    for rows in ([2, 2], [0, 1], [3, 0]):
        gradient = torch.sparse_coo_tensor([rows], [[1.0, 2.0, 0.5]] * 2, (4, 3), check_invariants=True)
        ours.grad, theirs.grad = gradient, gradient.to_dense()
        for optimiser in optimisers:
            optimiser.step()
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours[2], start[2] - 0.1)  # it moved after its first step


def test_items_go_faster_where_their_gradient_is_a_sample() -> None:
    """And nothing else does: not the queries, not what is no vector of an item. Less so where a minibatch has more queries."""
    model, config = MatrixFactorisation(USERS, ITEMS), TrainingConfig()
    rates = {
        sampled: {
            id(p): o.defaults["lr"]
            for o in optimisers_of(model, config, 1.0, sampled)
            for p in o.param_groups[0]["params"]
        }
        for sampled in (None, 7, 50, 250)
    }
    faster = [rates[sampled][id(model.items)] / rates[None][id(model.items)] for sampled in (7, 50, 250)]
    assert faster == pytest.approx([1.5, 1.5, math.sqrt(1 + 1.25 / 5)])
    assert len({rate[id(model.queries)] for rate in rates.values()}) == 1


def test_the_pace_is_what_adam_takes_away() -> None:
    """Gradients 1 + noise: steps of Adam, sampled over whole, are 1 / pace on average, whatever the number of queries."""
    rng = np.random.default_rng(0)
    for queries in (50, 200):
        noise = math.sqrt((1.5**2 - 1) * 50 / queries) * rng.standard_normal((4000, 500))
        moved = []
        for gradient in (np.ones((4000, 500)), 1 + noise):
            x = torch.zeros(4000, 1, requires_grad=True)
            adam = WholeAdam([x], 0.01)
            for g in gradient.T:
                x.grad = torch.from_numpy(g[:, None].astype(np.float32))
                adam.step()
            moved.append(float(x.detach().mean()))
        assert moved[0] / moved[1] == pytest.approx(sparse_pace(queries), rel=0.03)


def test_rows_without_a_gradient_stay_where_steps_have_no_memory() -> None:
    x = torch.zeros(4, 3, requires_grad=True)
    x.grad = torch.sparse_coo_tensor([[2, 2]], [[1.0, 2.0, 0.5]] * 2, (4, 3), check_invariants=True)
    RowNormalisedStep([x], 0.1).step()
    assert not x[[0, 1, 3]].any()
    assert bool((x[2] < 0).all())


def test_thinned_weights_are_unbiased_and_few() -> None:
    """E[thinned(w)] = w for every document, signs included, and rows of few documents stay as they are."""
    rng = np.random.default_rng(0)
    w = csr_matrix(np.vstack([rng.normal(size=30), np.where(np.arange(30) < 3, 1.0, 0.0), np.zeros(30)]))
    keys = rng.integers(2**63, size=(3000, 3)).astype(np.uint64)
    draws = np.stack([thinned(w, 6, own).toarray() for own in keys])
    error = draws.std(0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(0) - w.toarray()) <= 5 * error + 1e-9).all()
    assert (draws[:, 1:] == w.toarray()[1:]).all()
    assert (draws[:, 0] != 0).sum(1).mean() <= 6.1


def test_a_re_ranker_of_candidates_is_asked_about_few_where_everything_has_a_weight() -> None:
    Counting.asked = []
    everything = csr_matrix(0.1 + LIKED.toarray())
    train(pair(Counting(USERS, ITEMS), 3), everything, [1.0, 0.5], TrainingConfig(epochs=1), method="stacking", seed=1)
    assert np.mean(Counting.asked) <= 2 * (3 + 1) + 2 * 3 + 1
