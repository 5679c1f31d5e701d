"""What every scorer must do, whatever is inside: the one suite for all of them."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import torch
from scipy.sparse import csr_matrix

from tandemrank._base.ids import Vocabulary
from tandemrank.experiments.evaluation import evaluate
from tandemrank.policies import candidates, two_stage
from tandemrank.policies.scorers import MatrixFactorisation, Scorer
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.config import TrainingConfig
from tandemrank.training.loop import train


def check_ranker(scorer: Scorer, folder: Path) -> None:
    """The same of what scores candidates only, or needs a generator: as the re-ranker of a factorisation."""
    sizes = scorer.spec()
    Q, D = sizes["Q"], sizes["D"]
    rng = np.random.default_rng(1)
    generator = MatrixFactorisation(rng.normal(size=(Q, 2)), rng.normal(size=(D, 2)))
    vocabulary = Vocabulary(pl.Series(range(Q)), pl.Series([f"item {d}" for d in range(D)]))
    pair = TwoStagePolicy(generator, scorer, D - 2, 2, vocabulary)
    q, items = torch.arange(Q), torch.arange(D).expand(Q, -1)
    with torch.no_grad():
        every = pair.ranker.score(q, items)
        assert every.shape == (Q, D)
        some = torch.from_numpy(rng.integers(D, size=(Q, 4)))
        assert torch.allclose(pair.ranker.score(q, some), every.gather(1, some), atol=1e-5)
    candidates.check_ranker(pair.ranker)
    loaded = two_stage.load(pair.save(folder / "pair"))
    assert json.dumps(loaded.ranker.spec()) == json.dumps(sizes)
    assert torch.equal(loaded.ranker.score(q, items), every)
    liked = every.argmin(1).numpy()
    weights = csr_matrix((np.ones(Q, np.float32), (np.arange(Q), liked)), shape=(Q, D))
    config = TrainingConfig(epochs=12, shared_rate=0.5, minibatch=Q)  # with longer steps so few items overshoot
    trained = train(loaded, weights, [1.0, 0.5], config, method="stacking", seed=1).policy
    before, after = (policy.utility(weights, [1.0, 0.5], samples=50).mean() for policy in (pair, trained))
    assert after > before
    assert torch.equal(pair.ranker.score(q, items), every)  # a training leaves its start alone
    again = two_stage.load(trained.save(folder / "trained"))
    assert torch.equal(again.ranker.score(q, items), trained.ranker.score(q, items))


def check_scorer(scorer: Scorer, folder: Path) -> None:
    """Scores by row, sizes as JSON, the same after saving, trained and evaluated as either stage."""
    sizes = scorer.spec()
    Q, D = sizes["Q"], sizes["D"]
    with torch.no_grad():
        every = scorer(torch.arange(Q))
        some = torch.tensor([Q - 1, 0, 0])
        assert every.shape == (Q, D)
        assert every.dtype == torch.float32
        assert torch.allclose(scorer(some), every[some], atol=1e-5)
        items = torch.from_numpy(np.random.default_rng(0).integers(D, size=(3, 5)))  # also one twice
        assert torch.allclose(scorer.score(some, items), every[some].gather(1, items), atol=1e-5)
    _same_gradients(scorer, some, items)
    assert {id(p) for p in scorer.per_query_parameters()} <= {id(p) for p in scorer.parameters()}
    vocabulary = Vocabulary(pl.Series(range(Q)), pl.Series([f"item {d}" for d in range(D)]))
    pair = TwoStagePolicy(scorer, scorer, D - 1, 2, vocabulary)
    loaded = two_stage.load(pair.save(folder / "pair"))
    assert type(loaded.generator) is type(scorer)
    assert json.dumps(loaded.ranker.spec()) == json.dumps(sizes)
    for ours, theirs in zip(pair.scores(range(Q)), loaded.scores(range(Q)), strict=True):
        assert torch.equal(ours, theirs)
    rho, _ = loaded.exposure([0, Q - 1], [0, D - 1], [1.0, 0.5], samples=5)
    assert np.all((rho >= 0) & (rho <= 1))
    _learns(loaded)
    assert torch.equal(scorer(torch.arange(Q)), every)  # a training leaves its start alone


def _same_gradients(scorer: Scorer, q: torch.Tensor, items: torch.Tensor) -> None:
    """Of some items as of all."""
    up = torch.linspace(-1, 1, items.numel()).view_as(items)
    own = [p for p in scorer.parameters() if p.requires_grad]
    if not own:
        return
    available = scorer.score(q, items).detach() > -torch.inf
    by_all, by_some = (
        torch.autograd.grad(torch.where(available, s, 0.0).mul(up).sum(), own, allow_unused=True)
        for s in (scorer(q).gather(1, items), scorer.score(q, items))
    )
    for ours, theirs in zip(by_all, by_some, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None and theirs is not None:
            theirs = theirs.to_dense() if theirs.is_sparse else theirs
            assert torch.allclose(ours, theirs, atol=1e-5)


def _learns(pair: TwoStagePolicy) -> None:
    """A few epochs raise the utility of what was clicked: the last item that each query can be shown."""
    Q, D = len(pair.vocabulary.query_ids), len(pair.vocabulary.item_ids)
    scores, _ = pair.plain_scores(range(Q))
    liked = scores.masked_fill(scores == -torch.inf, torch.inf).argmin(1).numpy()
    weights = csr_matrix((np.ones(Q, np.float32), (np.arange(Q), liked)), shape=(Q, D))
    theta = [1.0, 0.5]
    if not any(p.requires_grad for p in pair.generator.parameters()):
        return  # nothing of it is trained
    trained = train(pair, weights, theta, TrainingConfig(epochs=6, learning_rate=0.5, shared_rate=0.5), seed=1).policy
    before, after = (evaluate(policy, weights, theta).utility.mean() for policy in (pair, trained))
    assert after > before
