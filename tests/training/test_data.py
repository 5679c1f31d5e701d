"""From a log to what training needs: which propensities, which weights, what is refused."""

import numpy as np
import polars as pl
import pytest

from tandemrank._base.ids import Vocabulary
from tandemrank.clicks import models
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs import counting
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy import propensities
from tandemrank.offpolicy.logger import lists_of
from tandemrank.policies.scorers import GivenScores, MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training import data
from tandemrank.training.config import LearningConfig
from tandemrank.training.data import TrainingData
from tandemrank.training.data import prepare as prepare_any
from tandemrank.training.weights import click_weights

Q, D, K = 6, 8, 3
THETA = models.examination_curve(K)
IDS = Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))
CONFIG = LearningConfig(list_length=K, candidates=5, clip="none", objective="ips")


def prepare(log: Feedback, config: LearningConfig, **more: object) -> TrainingData:
    """Without beliefs, unless they are the objective."""
    return prepare_any(log, config, needs_beliefs=False, **more)


def policy(seed: int = 0) -> TwoStagePolicy:
    scorer = GivenScores(np.random.default_rng(seed).normal(size=(Q, D)))
    return TwoStagePolicy(scorer, scorer, D, K, IDS)


def impressions(N: int = 400, seed: int = 0, *, fixed: bool = False) -> list[Impressions]:
    rng = np.random.default_rng(seed)
    query = rng.integers(Q, size=N).astype(np.int32)
    items = np.argsort(rng.random((Q if fixed else N, D)), axis=1)[:, :K].astype(np.int32)
    return [Impressions(query, items[query] if fixed else items, (rng.random((N, K)) < 0.3).astype(np.uint8))]


def log(**options: object) -> Feedback:
    return counting.from_impressions(impressions(**options), IDS)


def test_a_deterministic_logger_has_the_examination_of_the_rank_as_its_propensity() -> None:
    rows = log(fixed=True)
    found = prepare(rows, CONFIG)
    assert (found.propensities.kind, found.propensities.logger) == ("frequency", None)
    assert found.propensities.rho_0 == pytest.approx(THETA[rows.rank])
    asked = CONFIG.model_copy(update={"propensity": "frequency"})
    known = prepare(rows, asked, logging_policy=policy()).propensities
    assert known.logger is None  # known, and yet not used


def test_fitted_propensities_are_those_of_the_fitted_policy() -> None:
    parts = impressions(600)
    used = counting.from_impressions(parts, IDS)
    found = prepare(used, CONFIG, lists=lambda: lists_of(parts))
    resolved = found.propensities
    assert resolved.kind == "fitted"
    uniform = np.full(len(used.query), THETA.sum() / D)  # the logger shows what it likes
    assert np.abs(resolved.rho_0 / uniform - 1).mean() < 0.2
    wanted = propensities.row_propensities(used, THETA, "fitted", resolved.logger)
    assert found.weights.toarray() == pytest.approx(click_weights(wanted, used).toarray())
    with pytest.raises(ConfigError, match="fitted propensities need the lists"):
        prepare(used, CONFIG)


def test_the_beliefs_are_fitted_to_what_trains_with_the_logger_as_their_prior(monkeypatch) -> None:
    rng = np.random.default_rng(4)
    scorer = MatrixFactorisation(rng.normal(size=(Q, 2)), rng.normal(size=(D, 2)))
    live = TwoStagePolicy(scorer, scorer, D, K, IDS)
    config = CONFIG.model_copy(update={"objective": "beliefs"})
    heard, fit = [], data.fit
    monkeypatch.setattr(data, "fit", lambda *a, **more: heard.append(more["production"]) or fit(*a, **more))
    found = prepare(log(), config, logging_policy=live)
    assert found.beliefs is not None
    assert np.array_equal(heard[0].items, scorer.items.detach().numpy())
    q = np.arange(Q)
    wanted = found.beliefs.matrix(q)[:, :-1] * log().impressions[:, None]
    assert found.weights.rows(q).toarray() == pytest.approx(wanted, rel=1e-5)
    prepare(log(), config, logging_policy=policy())
    assert heard[1] is None
    assert prepare(log(), CONFIG, logging_policy=live).beliefs is None
    both = prepare_any(log(), CONFIG, needs_beliefs=True, logging_policy=live)
    assert both.beliefs is not None
    assert np.array_equal(both.weights.toarray(), prepare(log(), CONFIG, logging_policy=live).weights.toarray())


def test_a_log_without_clicks_is_refused() -> None:
    silent = counting.from_impressions([Impressions(p.query, p.items, 0 * p.clicks) for p in impressions()], IDS)
    for objective in ("beliefs", "ips"):
        config = CONFIG.model_copy(update={"objective": objective})
        with pytest.raises(LogError, match="expected clicks to learn from; got none, in 400 impressions"):
            prepare(silent, config, logging_policy=policy())
