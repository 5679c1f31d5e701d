"""The fitted logging policy: its likelihood by enumeration, its exposures and estimates near those of the truth."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_matrix

import enumeration
from tandemrank._base.ids import Vocabulary
from tandemrank.clicks import models, simulation
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs import counting, reading, writing
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy import estimators
from tandemrank.offpolicy import logger as loggers
from tandemrank.offpolicy.logger import Lists, fit, inclusion, lists_of
from tandemrank.offpolicy.propensities import fitted_policy
from tandemrank.policies.scorers import GivenScores
from tandemrank.policies.two_stage import TwoStagePolicy

Q, D, K, N = 80, 30, 4, 12_000
THETA = models.examination_curve(K)
IDS = Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))


def logger(tastes: float, seed: int = 0) -> np.ndarray:
    """Scores of a logging policy: popularity and, more or less, tastes.  Shapes: -> [Q, D]."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=D) + tastes * rng.normal(size=(Q, 4)) @ rng.normal(size=(4, D)) / 2


def shown(scores: np.ndarray, R: np.ndarray, seed: int = 0) -> list[Impressions]:
    draw = simulation.one_stage(lambda q: scores[q].astype(np.float32), K)
    return list(simulation.simulate(draw, csr_matrix(R), np.arange(Q), N, models.position_based(THETA), seed=seed))


def one_stage(scores: np.ndarray) -> TwoStagePolicy:
    return TwoStagePolicy(GivenScores(scores), GivenScores(scores), D, K, IDS)


def log_probability(
    parameters: list[torch.Tensor], query: list[int], items: list[list[int]], there: np.ndarray | None = None,
    pi: np.ndarray | None = None,
) -> torch.Tensor:  # fmt: skip
    """log pi(y) of lists, with all items or with a sample of them."""
    D = len(parameters[0])
    there, pi = np.ones(D, np.bool_) if there is None else there, np.ones(D) if pi is None else pi
    batch = loggers._batch(np.array(query), np.array(items))
    return loggers._log_probability(parameters, batch, loggers._drawn(pi, there))


def test_the_likelihood_is_that_of_plackett_luce() -> None:
    scores = [0.3, -0.5, 1.0, 0.1]
    a = torch.tensor(scores)
    total = 0.0
    for y, probability, _ in enumeration.rankings(scores, range(4), 3):
        found = log_probability([a], [0], [list(y)]).item()
        assert found == pytest.approx(np.log(probability), abs=1e-5)
        total += np.exp(found)
    assert total == pytest.approx(1, abs=1e-5)
    short = log_probability([a], [0], [[2, -1, -1]]).item()
    assert short == pytest.approx(1.0 - np.log(np.exp(scores).sum()), abs=1e-5)


def test_the_likelihood_with_tastes_is_that_of_each_query() -> None:
    generator = torch.Generator().manual_seed(0)
    a, u, v = torch.randn(6, generator=generator), *(torch.randn(n, 2, generator=generator) for n in (3, 6))
    query, items = [0, 0, 2], [[1, 2], [5, 0], [3, 4]]
    scores = (a + u @ v.T).tolist()
    wanted = [
        next(np.log(p) for list_, p, _ in enumeration.rankings(scores[q], range(6), 2) if list_ == tuple(y))
        for q, y in zip(query, items, strict=True)
    ]
    assert log_probability([a, u, v], query, items).tolist() == pytest.approx(wanted, abs=1e-5)


def test_a_sample_of_the_items_stands_for_all_in_the_mean_over_all_samples() -> None:
    """exp(s_y) / pi(y) of a list of one is the normaliser: over all samples of five items its mean is the sum of all."""
    generator = torch.Generator().manual_seed(1)
    a, u, v = torch.randn(5, generator=generator), *(torch.randn(n, 2, generator=generator) for n in (2, 5))
    pi, mean = np.array([0.3, 0.6, 1.0, 0.8, 0.5]), torch.zeros(2)
    lists = [[1], [3]]
    s = (a + u @ v.T)[torch.arange(2), [1, 3]]
    for bits in np.ndindex(2, 2, 2, 2, 2):
        there = np.array(bits, np.bool_)
        chance = float(np.where(there, pi, 1 - pi).prod())
        if chance > 0:
            mean += chance * (s - log_probability([a, u, v], [0, 1], lists, there, pi)).exp()
    assert mean == pytest.approx((a + u @ v.T).exp().sum(1), rel=1e-5)


def test_chances_of_a_sample_add_up_to_its_size_and_are_larger_for_what_is_shown_more() -> None:
    counts = np.array([0, 0, 1, 3, 50, 1_000])
    pi = inclusion(counts, 4)
    assert pi.sum() == pytest.approx(4)
    assert (np.diff(pi) >= 0).all()
    assert pi[-1] == 1
    assert pi.min() > 0
    assert (inclusion(counts, 6) == 1).all()


def test_a_fit_by_samples_comes_close_to_that_by_all_items(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = logger(1.0)
    lists = lists_of(shown(scores, np.full((Q, D), 0.5))[:1])
    dense = fit(lists, IDS, ranks=(4,), epochs=15)
    monkeypatch.setattr(loggers, "WHOLE", 0)
    monkeypatch.setattr(loggers, "SAMPLED", 12)
    sampled = fit(lists, IDS, ranks=(4,), epochs=15)
    ours, theirs = (torch.softmax(one.scorer(torch.arange(Q)), 1).detach() for one in (sampled, dense))
    alone = torch.softmax(dense.scorer.items[:, 0], 0).detach()
    assert (ours - theirs).abs().mean() < 0.2 * (alone - theirs).abs().mean()


@pytest.mark.parametrize("tastes", [0.0, 1.0])
def test_fitted_propensities_come_close_to_the_true_ones_and_so_do_estimates(tastes: float) -> None:
    rng = np.random.default_rng(1)
    scores, R = logger(tastes), rng.uniform(0, 1, (Q, D)) ** 2
    parts = shown(scores, R)
    fitted = fit(lists_of(parts), IDS)
    assert (fitted.rank > 0) == (tastes > 0)  # a logger that does not know its queries is given no tastes
    log = counting.from_impressions(parts, IDS)
    rho_0, rho_fit = (
        policy.exposure(log.query, log.item, THETA, samples=100)[0]
        for policy in (one_stage(scores), fitted_policy(lists_of(parts), IDS))
    )
    off = np.average(np.abs(rho_fit / rho_0 - 1), weights=log.shown)
    assert off < (0.04 if tastes == 0 else 0.12)
    new = TwoStagePolicy(GivenScores(0.7 * scores + rng.normal(size=(Q, D)) / 3), GivenScores(2 * R), 10, K, IDS)
    rho_cr, _ = new.exposure(log.query, log.item, THETA, samples=100)
    truth = float((new.utility(csr_matrix(R), THETA, samples=100) * log.impressions).sum() / log.N)
    exact, found, popular = (
        estimators.ips(rho_cr, rho, log).value for rho in (rho_0, rho_fit, np.full(len(log.query), THETA.sum() / D))
    )
    assert exact == pytest.approx(truth, rel=0.05)
    assert found == pytest.approx(exact, rel=0.015)
    assert abs(popular - exact) > 5 * abs(found - exact)  # as if the logger had been random


def test_lists_of_files_and_of_impressions_are_the_same(tmp_path: Path) -> None:
    parts = shown(logger(0.0), np.full((Q, D), 0.5))
    path = writing.write(parts, tmp_path / "log", IDS)
    first = reading.read_parts(path, lists=10**6, vocabulary=IDS).first
    read, given = lists_of([first]), lists_of(parts)
    assert np.array_equal(read.query, given.query)
    assert np.array_equal(read.items, given.items)
    assert len(lists_of(parts, limit=100).query) == 100


def test_edges_one_list_and_a_logger_that_never_changes() -> None:
    one = fit(Lists(np.array([0]), np.array([[3, 1]])), IDS, epochs=3)
    assert torch.isfinite(one.scorer(torch.tensor([0]))).all()
    fixed = Lists(np.repeat(np.arange(Q), 20), np.tile([3, 1, 2, 0], (20 * Q, 1)))
    assert fit(fixed, IDS, epochs=30).scorer(torch.tensor([0])).argmax() == 3


def test_refusals() -> None:
    with pytest.raises(LogError, match="it is empty"):
        lists_of([])
    with pytest.raises(ConfigError, match="expected ranks >= 1"):
        fit(Lists(np.array([0]), np.array([[1]])), IDS, ranks=(0,))
