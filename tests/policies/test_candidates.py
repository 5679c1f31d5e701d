"""A pair whose re-ranker sees candidates only: the same lists, draws, exposures and utilities as where everything is scored."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_matrix

import enumeration
from tandemrank._base.ids import Vocabulary
from tandemrank.clicks import models, simulation
from tandemrank.errors import PolicyError
from tandemrank.experiments.evaluation import evaluate
from tandemrank.gradients import _bridge, sparse_alone
from tandemrank.logs import counting
from tandemrank.offpolicy import exposure
from tandemrank.offpolicy.valuation import estimate
from tandemrank.policies import candidates
from tandemrank.policies.scorers import GivenScores, MatrixFactorisation, Scorer
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.config import TrainingConfig
from tandemrank.training.loop import train

THETA = [1.0, 0.5]
RNG = np.random.default_rng(0)
USERS, ITEMS = (RNG.normal(size=(n, 3)).astype(np.float32) for n in (6, 9))
IDS = Vocabulary(pl.Series(range(6)), pl.Series(range(9)))


class Heavy(MatrixFactorisation):
    """A re-ranker that scores candidates only, and remembers how many it was asked about."""

    kind = "heavy"
    scores_everything = False
    forward = Scorer.forward
    asked = 0

    def score(self, q: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        Heavy.asked = max(Heavy.asked, items.shape[1])
        return super().score(q, items)


def pair(ranker: Scorer | None = None, K2: int = 4) -> TwoStagePolicy:
    ranker = ranker or MatrixFactorisation(-USERS[::-1].copy(), ITEMS)
    return TwoStagePolicy(MatrixFactorisation(USERS, ITEMS), ranker, K2, 2, IDS)


def heavy(K2: int = 4) -> TwoStagePolicy:
    return pair(Heavy(-USERS[::-1].copy(), ITEMS), K2)


def test_the_most_likely_lists_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = csr_matrix((np.arange(54).reshape(6, 9) % 3 == 0).astype(np.float32))
    expected = [pair(K2=K2).most_likely(exclude=seen) for K2 in (4, 9)]
    assert np.array_equal(heavy().most_likely(exclude=seen), expected[0])
    assert np.array_equal(heavy().most_likely(), pair().most_likely())
    assert heavy().recommend([2, 0])["items"].to_list() == pair().recommend([2, 0])["items"].to_list()
    monkeypatch.setattr(candidates, "LARGE", 0)
    assert np.array_equal(pair(K2=9).most_likely(exclude=seen), expected[1])


@pytest.mark.parametrize("K2", [4, 9])
def test_draws_are_those_of_the_pair(K2: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """How often each item comes first and second, against complete enumeration; 9 of 9 candidates is one stage."""
    n = 20_000
    policy = pair(K2=K2)
    s_c, s_r = (x[1].tolist() for x in policy.plain_scores(range(6)))
    expected = np.zeros((2, 9))
    lists = enumeration.two_stage(s_c, s_r, THETA, K2) if K2 < 9 else enumeration.rankings(s_r, range(9), 2)
    for y, p, *_ in lists:
        for k, d in enumerate(y):
            expected[k, d] += p
    monkeypatch.setattr(candidates, "LARGE", 0)
    drawn = policy.sample(np.full(n, 1), _bridge.keys_for(n, torch.Generator().manual_seed(1)))
    found = np.stack([np.bincount(drawn[:, k], minlength=9) / n for k in range(2)])
    assert np.all(np.abs(found - expected) <= 5 * np.sqrt(expected * (1 - expected) / n) + 1e-9)


@pytest.mark.parametrize("K2", [4, 9])
def test_exposure_and_utility(K2: int, monkeypatch: pytest.MonkeyPatch) -> None:
    q, d = (x.ravel() for x in np.meshgrid(np.arange(6), np.arange(9), indexing="ij"))
    w = csr_matrix(np.arange(54, dtype=np.float32).reshape(6, 9) % 5)
    exact, its_error = pair(K2=K2).exposure(q, d, THETA, samples=4000)
    value = pair(K2=K2).utility(w, THETA, samples=4000)
    monkeypatch.setattr(candidates, "LARGE", 0)
    rho, error = pair(K2=K2).exposure(q, d, THETA, samples=2000, seed=3)
    assert np.all(np.abs(rho - exact) <= 5 * np.hypot(error, its_error) + 1e-6)
    assert np.allclose(pair(K2=K2).utility(w, THETA, samples=4000), value, rtol=0.05)


@pytest.mark.parametrize("K2", [4, 9])
def test_exposures_and_lists_of_the_same_races_by_enumeration(K2: int) -> None:
    """Of one pass: exposures, those with the candidates shuffled, and lists, each with the law of the pair."""
    n, policy = 20_000, pair(K2=K2)
    q, documents = np.zeros(n // 4, np.int64), csr_matrix(np.ones((n // 4, 9), np.float32))
    found = candidates.shown(
        policy, q, torch.tensor(THETA), documents, samples=4, generator=torch.Generator().manual_seed(3)
    )
    s, r = (x[0].tolist() for x in policy.plain_scores(range(1)))

    def exact(by: list[float]) -> np.ndarray:
        if K2 < 9:
            return np.array(enumeration.exposure(s, by, THETA, K2))
        rho = np.zeros(9)
        for y, p, _ in enumeration.rankings(by, range(9), 2):
            rho[list(y)] += p * np.array(THETA)
        return rho

    assert np.allclose(found.rho.reshape(-1, 9).mean(0), exact(r), atol=0.01)
    assert np.allclose(found.shuffled.reshape(-1, 9).mean(0), exact([0.0] * 9), atol=0.01)
    often = sum(THETA[k] * np.bincount(found.lists[:, :, k].ravel(), minlength=9) / n for k in range(2))
    assert np.allclose(often, exact(r), atol=5 * 0.5 / np.sqrt(n))


def test_exposure_of_one_stage_by_enumeration() -> None:
    s = [0.5, -1.0, 1.5, 0.0, -np.inf]
    rho = np.zeros(5)
    for y, p, _ in enumeration.rankings(s, range(5), 2):
        rho[list(y)] += p * np.array(THETA)
    found, error = sparse_alone.exposure(
        torch.tensor([s]), torch.tensor(THETA), csr_matrix(np.ones((1, 5))), samples=4000,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert np.all(np.abs(found.numpy() - rho) <= 5 * error.numpy() + 1e-6)
    assert error.max() < 0.01


def test_evaluation_asks_about_candidates_only() -> None:
    """What the re-ranker alone would show is not known, the rest is the same."""
    R = csr_matrix((np.arange(54).reshape(6, 9) % 4 == 0).astype(np.float32))
    ours, theirs = evaluate(heavy(), R, THETA, samples=400), evaluate(pair(), R, THETA, samples=400)
    for figure in ("ndcg", "recall_at_K2", "generator_alone"):
        assert np.allclose(getattr(ours, figure), getattr(theirs, figure)), figure
    assert np.allclose(ours.utility, theirs.utility, atol=0.05)
    assert np.allclose(ours.ndcg_expected, theirs.ndcg_expected, atol=0.08)
    assert np.isnan(ours.ranker_alone).all()
    assert np.isnan(ours.figures().ranker_alone.mean)


def test_nobody_asks_a_re_ranker_about_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 items, 10 candidates: lists ask about the candidates; exposures and values about those of each race and what is
    wanted, S (K2 + 1) + |w| at most. (Training: `training/test_objective.py`; serving: `serving/test_engine.py`.)"""
    Q, D, K2, S, shown = 6, 1000, 10, 4, 3
    rng = np.random.default_rng(3)
    users, items = (rng.normal(size=(n, 3)).astype(np.float32) for n in (Q, D))
    made = TwoStagePolicy(
        MatrixFactorisation(users, items),
        Heavy(users, items),
        K2,
        shown,
        Vocabulary(pl.Series(range(Q)), pl.Series(range(D))),
    )
    R = csr_matrix((np.arange(Q * D).reshape(Q, D) % 200 == 0).astype(np.float32))
    wanted = int(np.diff(R.indptr).max())
    rows, columns = R.nonzero()
    theta = models.examination_curve(shown)
    parts = simulation.simulate(made.sample, R, np.arange(Q), 30, models.position_based(theta), seed=0)
    log = counting.from_impressions(list(parts), made.vocabulary)
    logged = int(np.bincount(log.query).max())
    questions = {
        "recommend": (lambda: made.recommend([3, 1]), K2),
        "sample": (lambda: made.recommend(sample=True), K2),
        "exposure": (lambda: made.exposure(rows, columns, theta, samples=S), S * (K2 + 1) + wanted),
        "utility": (lambda: made.utility(R, theta, samples=S), S * (K2 + 1) + wanted),
        "evaluate": (lambda: evaluate(made, R, theta, samples=S), S * (K2 + 1) + wanted),
        "estimate": (lambda: estimate(made, log, examination=theta, propensity="frequency", samples=S), S * (K2 + 1) + logged),
    }  # fmt: skip
    monkeypatch.setattr(exposure, "RACES", 0)  # few queries get no more races here
    for name, (ask, most) in questions.items():
        monkeypatch.setattr(Heavy, "asked", 0)
        ask()
        assert 0 < Heavy.asked <= most, name


BROKEN = {
    "shape": (lambda s: s[:, :1], "one per query and item"),
    "nan": (lambda s: s * torch.nan, "NaN"),
    "infinite": (lambda s: s + torch.inf, r"\+inf"),
    "order": (lambda s: s + torch.arange(s.shape[1]) / 10, "order of its candidates"),
    "chance": (lambda s: s + torch.rand(s.shape), "or on chance"),
    "array": (lambda s: s.detach().numpy(), "must return a tensor of scores; got ndarray"),
    "none": (lambda s: None, "got NoneType"),
    "whole numbers": (lambda s: (10 * s).long(), "as floats; got torch.int64"),
}


class Broken(Heavy):
    kind = "broken"
    how = "shape"

    def score(self, q: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        return BROKEN[self.how][0](super().score(q, items))


class BrokenDense(MatrixFactorisation):
    kind = "broken-dense"
    how = "shape"

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        return BROKEN[self.how][0](super().forward(q))


def asked(policy: TwoStagePolicy) -> list[Callable[[], object]]:
    """Whatever asks a re-ranker for scores."""
    W = csr_matrix((np.arange(54).reshape(6, 9) % 4 == 0).astype(np.float64))
    return [
        lambda: policy.recommend([0, 1]),
        lambda: policy.sample([0, 1], np.array([5, 6], np.uint64)),
        lambda: policy.exposure([0, 1], [0, 1], THETA),
        lambda: policy.utility(W, THETA),
        lambda: train(policy, W, THETA, TrainingConfig(epochs=1)),
    ]


@pytest.mark.parametrize("how", BROKEN)
def test_a_re_ranker_that_gives_no_scores_is_refused_wherever_it_is_asked(how: str) -> None:
    for number in range(5):
        broken = Broken(USERS, ITEMS)
        broken.how = how
        with pytest.raises(PolicyError, match=BROKEN[how][1]):
            asked(pair(broken))[number]()


@pytest.mark.parametrize("how", [how for how in BROKEN if how not in ("order", "chance")])
@pytest.mark.parametrize("stage", ["generator", "ranker"])
def test_a_stage_over_all_items_that_gives_no_scores_is_refused(how: str, stage: str) -> None:
    broken = BrokenDense(USERS, ITEMS)
    broken.how = how
    for ask in asked(replace(pair(), **{stage: broken})):
        with pytest.raises(PolicyError, match=BROKEN[how][1]):
            ask()


def test_given_scores_with_too_few_items() -> None:
    """What is not available is no candidate, wherever it is drawn."""
    some = GivenScores(csr_matrix(([1.0, 2.0], ([0, 1], [3, 4])), shape=(6, 9)))
    policy = TwoStagePolicy(some, Heavy(USERS, ITEMS), 4, 2, IDS)
    assert policy.most_likely([0, 1, 2]).tolist() == [[3, -1], [4, -1], [-1, -1]]
    assert policy.sample([1, 2], np.array([5, 6], np.uint64)).tolist() == [[4, -1], [-1, -1]]


def test_a_re_ranker_of_candidates_only_may_have_all_items_as_candidates() -> None:
    """K2 = D, as it is by default in a small catalogue."""
    ours, theirs = heavy(9), pair(K2=9)
    assert np.array_equal(ours.most_likely(), theirs.most_likely())
    q, d = (np.repeat(np.arange(6), 9), np.tile(np.arange(9), 6))
    (rho, error), (expected, other) = (p.exposure(q, d, THETA, samples=400) for p in (ours, theirs))
    assert (np.abs(rho - expected) < 5 * np.hypot(error, other) + 1e-6).all()
    first = ours.sample(np.zeros(4000, np.int64), np.arange(4000, dtype=np.uint64))[:, 0]
    s = theirs.plain_scores([0])[1][0]
    assert np.allclose(np.bincount(first, minlength=9) / 4000, torch.softmax(s, 0), atol=5 * 0.5 / 4000**0.5)
    assert np.isfinite(evaluate(ours, csr_matrix(np.eye(6, 9)), THETA, samples=10).ndcg).all()
