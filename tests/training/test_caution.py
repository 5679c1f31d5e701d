"""Caution in the loop against enumeration: the weights of every view, the gradient of both stages, and what comes of it."""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_matrix

import enumeration
import tandemrank as tr
from safe_cases import (
    CASES,
    CLICKED,
    IMPRESSIONS,
    K2,
    LOGGER,
    RHO_0,
    SIGNED,
    THETA,
    N,
    R,
    S,
    Z,
    exposures,
)
from tandemrank._base.ids import Vocabulary
from tandemrank.gradients import race
from tandemrank.policies.scorers import GivenScores, MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.reports import training as pages
from tandemrank.training import caution, gate, safe
from tandemrank.training.caution import Caution
from tandemrank.training.config import Safety, TrainingConfig
from tandemrank.training.history import Progress
from tandemrank.training.loop import train

VOCABULARY = Vocabulary(pl.Series([0, 1]), pl.Series(range(5)))
ALPHA = torch.tensor(THETA)


def logger(vocabulary: Vocabulary = VOCABULARY, scores: object = LOGGER) -> TwoStagePolicy:
    scorer = GivenScores(np.array(scores))
    return TwoStagePolicy(scorer, scorer, len(vocabulary.item_ids), 2, vocabulary)


def careful(objective: str, reach: float) -> Caution:
    return Caution(objective, logger(), VOCABULARY, IMPRESSIONS, 0.1, reach)


def enumerated(s_c, s_r, theta, K2, *, samples, generator, documents=None):
    """The race's exposures, exactly."""
    rho = np.array(
        [enumeration.exposure(a, b, theta.tolist(), K2) for a, b in zip(s_c.tolist(), s_r.tolist(), strict=True)]
    )
    rho = rho if documents is None else rho[documents.nonzero()]
    return torch.tensor(rho, dtype=torch.float64), None


@pytest.mark.parametrize(
    ("objective", "reach", "w"), [("exposure", 1.0, CLICKED), ("prpo", 3 / 7, SIGNED), ("smoothing", 2.0, SIGNED)]
)
def test_the_weights_of_a_minibatch_are_the_gradient_of_the_safe_objective(objective, reach, w, monkeypatch) -> None:
    """For exposures without noise they are those of `safe`, whose gradients by both stages enumeration has checked."""
    monkeypatch.setattr(race, "exposure", enumerated)
    monkeypatch.setattr(caution, "LEAST", 0.0)
    _, weigh, _ = CASES[objective]
    s, r = (torch.tensor(x, dtype=torch.float64) for x in (S, R))
    q, own = np.arange(2), careful(objective, reach)
    rho, rho_0 = own.exposures(q, s, r, ALPHA, K2, torch.Generator())
    assert rho == pytest.approx(exposures(S, R), abs=1e-6)  # scores of policies have single precision
    assert rho_0 == pytest.approx(RHO_0, abs=1e-6)
    monkeypatch.setattr(Caution, "exposures", lambda *_: tuple(_pattern(x, _[-1]) for x in (exposures(S, R), RHO_0)))
    total = own.divergence(q, exposures(S, R), RHO_0, ALPHA)
    sparse = csr_matrix(w)
    found = own.weights(q, sparse, s, r, ALPHA, K2, torch.Generator(), total).toarray()
    wanted = weigh(w, exposures(S, R)).weights
    assert found == pytest.approx(wanted, rel=1e-6, abs=1e-6)  # the race takes weights in single precision


def _pattern(x: np.ndarray, documents: object) -> np.ndarray:
    return x[documents.nonzero()] if isinstance(documents, csr_matrix) else x


@pytest.mark.parametrize("objective", ["exposure", "prpo", "smoothing"])
def test_by_the_race_they_are_the_same_up_to_its_noise(objective, monkeypatch) -> None:
    monkeypatch.setattr(caution, "SAMPLES", 4000)
    own, w = careful(objective, 2.0), csr_matrix(SIGNED)
    s, r = (torch.tensor(x, dtype=torch.float32) for x in (S, R))
    rho, rho_0 = own.exposures(np.arange(2), s, r, ALPHA, K2, torch.Generator().manual_seed(0))
    assert rho == pytest.approx(exposures(S, R), abs=0.01)
    assert rho_0 == pytest.approx(RHO_0, abs=0.01)
    found = own.weights(np.arange(2), w, s, r, ALPHA, K2, torch.Generator().manual_seed(1)).toarray()
    exact = {
        "exposure": lambda: safe.exposure(SIGNED, exposures(S, R), RHO_0, IMPRESSIONS, Z=Z, N=N, delta=0.1),
        "prpo": lambda: safe.prpo(SIGNED, exposures(S, R), RHO_0, eps=1 / 3),
        "smoothing": lambda: safe.smoothing(SIGNED, exposures(S, R), RHO_0, L=2.0),
    }[objective]().weights
    assert found == pytest.approx(exact, abs=0.15)
    assert own.N == N


def test_a_logger_with_other_ids_shows_what_it_does_not_know_never() -> None:
    larger = Vocabulary(pl.Series([7, 1, 0]), pl.Series([9, 4, 3, 2, 1, 0]))
    own = Caution("prpo", logger(), larger, np.ones(3), 0.1, 1.0)
    s_c, s_r = own.logger_scores(np.array([2, 1]))
    assert s_c[:, 0].tolist() == [-np.inf, -np.inf]
    assert s_c[:, 1:].numpy() == pytest.approx(np.array(LOGGER)[:, ::-1])
    assert torch.isfinite(s_r).all()


def pair(seed: int, Q: int = 24, D: int = 12) -> TwoStagePolicy:
    rng = np.random.default_rng(seed)
    scorer = MatrixFactorisation(*(rng.normal(size=(n, 3)).astype(np.float32) for n in (Q, D)))
    return TwoStagePolicy(scorer, scorer, 6, 3, Vocabulary(pl.Series(range(Q)), pl.Series(range(D))))


@pytest.mark.parametrize("objective", ["exposure", "prpo", "smoothing"])
def test_training_with_caution_resumes_bit_by_bit_and_stays_nearer(objective, tmp_path) -> None:
    start, rng = pair(0), np.random.default_rng(1)
    w = csr_matrix((rng.random((24, 12)) < 0.1) * rng.exponential(20.0, (24, 12)))
    theta, config = 1 / np.arange(1, 4), TrainingConfig(epochs=4, rank_weights="examination", minibatch=6)
    own = Caution(objective, start, start.vocabulary, np.full(24, 5.0), 0.05, 0.5)
    whole = train(start, w, theta, config, caution=own, seed=3)
    for epochs in (1, 3):
        path = tmp_path / f"{epochs}.safetensors"

        def progress(state: Progress, epochs: int = epochs) -> None:
            if state.phase == 1 and state.epoch == epochs and state.done > 0:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train(start, w, theta, config, caution=own, seed=3, checkpoint=path, progress=progress)
        again = train(start, w, theta, config, caution=own, seed=3, checkpoint=path, resume=True)
        for stage in ("generator", "ranker"):
            ours, theirs = (getattr(x.policy, stage).state_dict() for x in (again, whole))
            assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    plain = train(start, w, theta, config, seed=3)

    def distance(policy: TwoStagePolicy) -> float:
        q, d = np.divmod(np.arange(24 * 12), 12)
        rho, rho_0 = (x.exposure(q, d, theta, samples=200)[0].reshape(24, 12) for x in (policy, start))
        return safe.divergence(rho, np.maximum(rho_0, 1e-3), np.ones(24), float(theta.sum())) / 24

    assert distance(whole.policy) < distance(plain.policy)
    assert distance(whole.policy) > 1.0001  # and yet it learns


def clicks(start: TwoStagePolicy, N: int, seed: int = 0) -> pl.DataFrame:
    """A log of the start, by Gumbel noise; odd items are liked."""
    rng = np.random.default_rng(seed)
    Q = len(start.vocabulary.query_ids)
    q = rng.integers(Q, size=N)
    s = start.plain_scores(np.arange(Q))[0].numpy()[q]
    noisy, r = s + rng.gumbel(size=s.shape), s + rng.gumbel(size=s.shape)
    np.put_along_axis(r, np.argsort(-noisy, axis=1)[:, start.K2 :], -np.inf, 1)
    items = np.argsort(-r, axis=1)[:, : start.K]
    likes = np.where(items % 2 == 1, 0.7, 0.2) / np.arange(1, start.K + 1)
    clicked = (rng.random(items.shape) < likes).astype(int)
    return pl.DataFrame({"query_id": q, "items": items.tolist(), "clicks": clicked.tolist()})


@pytest.mark.parametrize("objective", ["exposure", "prpo", "smoothing"])
def test_learn_with_caution_says_what_it_cost_and_keeps_production_where_nothing_is_sure(objective) -> None:
    start = pair(0)
    config = {"objective": "ips", "candidates": 6, "training": {"epochs": 3, "minibatch": 6}}
    methods = ["joint", "independent", "baseline"]
    sure = {"safe_objective": objective, "gate_independent": "impressions"}
    long = tr.learn(
        clicks(start, 20_000),
        tr.LearningConfig.model_validate({**config, "safe": sure}),
        methods=methods,
        start=tr.Start(start),
    )
    assert list(long.guarded) == methods
    for one in long.guarded.values():
        assert not one.kept_production
        assert one.careful_bound > 0
        assert one.objective == objective
        assert abs(one.cost.difference) < 0.5
        assert 0 < one.loss_at_worst < 11 / 6  # of all exposure
    assert "Whatever clicks mean, it loses at most 0." in pages.caution_sentences(long)[0]
    assert long.values["joint"] is long.guarded["joint"].careful
    short = tr.learn(
        clicks(start, 80), tr.LearningConfig.model_validate({**config, "safe": objective}), start=tr.Start(start)
    )
    [one] = short.guarded.values()
    assert one.kept_production
    assert one.loss_at_worst == 0
    kept, live = (x.generator.state_dict() for x in (short.policy, start))
    assert all(torch.equal(kept[name], live[name]) for name in live)
    assert short.values["joint"] is not one.careful
    [sentence] = pages.caution_sentences(short)
    assert "clicks per impression against the same training without caution" in sentence
    assert "production is kept" in sentence
    assert "What caution cost and what it saved" in pages.html(short)
    assert short.summary()["caution"][0]["kept_production"]
    assert pages.caution_sentences(tr.learn(clicks(start, 300), tr.LearningConfig.model_validate(config))) == []


@pytest.mark.parametrize(
    ("bound", "low", "kept"),
    [(None, 0.1, True), (-0.1, 0.1, True), (0.0, 0.1, True), (0.1, 0.1, False), (0.1, 0.0, True)],
)
def test_a_pair_passes_the_gate_by_a_bound_and_an_interval_above_nothing_alone(monkeypatch, bound, low, kept) -> None:
    monkeypatch.setattr(gate, "sure_difference", lambda *_, **__: bound)
    monkeypatch.setattr(gate, "compare_values", lambda *_: SimpleNamespace(over_queries=(low, 0.2)))
    value = SimpleNamespace(sample=SimpleNamespace(level=0.95))
    assert gate.guard(value, value, value, Safety(), lost=0.1).kept_production is kept
    assert not gate.guard(value, value, value, Safety(gate=False), lost=0.1).kept_production


def test_without_a_policy_production_is_fitted_and_is_the_start() -> None:
    found = tr.learn(
        clicks(pair(0), 4000),
        tr.LearningConfig.model_validate(
            {"safe": True, "objective": "ips", "candidates": 6, "training": {"epochs": 1}}
        ),
    )
    assert found.propensity == "fitted"
    assert found.start.policy is not None
    assert found.config.safe.safe_objective == "exposure"
