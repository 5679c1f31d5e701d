"""One resolver of propensities and clipping: which source, why, which minimum, the same for whoever asks."""

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
from tandemrank.offpolicy.propensities import clip_minimum, resolve
from tandemrank.policies.scorers import GivenScores
from tandemrank.policies.two_stage import TwoStagePolicy

Q, D, K = 6, 8, 3
THETA = models.examination_curve(K)
IDS = Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))


def policy(seed: int = 0) -> TwoStagePolicy:
    scorer = GivenScores(np.random.default_rng(seed).normal(size=(Q, D)))
    return TwoStagePolicy(scorer, scorer, D, K, IDS)


def impressions(N: int = 400, seed: int = 0, *, fixed: bool = False) -> list[Impressions]:
    rng = np.random.default_rng(seed)
    query = rng.integers(Q, size=N).astype(np.int32)
    items = np.argsort(rng.random((Q if fixed else N, D)), axis=1)[:, :K].astype(np.int32)
    return [Impressions(query, items[query] if fixed else items, (rng.random((N, K)) < 0.3).astype(np.uint8))]


def log(*, logged: bool = False, **options: object) -> Feedback:
    chances = (lambda part: np.full(part.items.shape, 0.2)) if logged else None
    return counting.from_impressions(impressions(**options), IDS, propensities=chances)


def test_auto_takes_the_best_there_is_a_source_for() -> None:
    found = resolve(log(logged=True), THETA, logging_policy=policy())
    assert (found.kind, found.reason) == ("exact", "the policy that drew the log is given")
    found = resolve(log(logged=True), THETA)
    assert (found.kind, found.reason, found.logger) == ("logged", "the log has a column of them", None)
    assert found.rho_0 == pytest.approx(np.full(len(found.rho_0), 0.2))
    assert resolve(log(), THETA, lists=lambda: lists_of(impressions())).kind == "fitted"
    found = resolve(log(fixed=True), THETA)
    assert found.kind == "frequency"
    assert "100% of the queries always saw the same list" in found.reason
    found = resolve(log(logged=True), THETA, kind="frequency", logging_policy=policy())
    assert (found.kind, found.reason, found.logger) == ("frequency", "as asked", None)


def test_lists_of_queries_that_come_once_are_not_said_to_vary() -> None:
    query = np.arange(Q, dtype=np.int32)
    once = Impressions(query, np.tile(np.arange(K, dtype=np.int32), (Q, 1)), np.ones((Q, K), np.uint8))
    rows = counting.from_impressions([once], IDS)
    kind, reason = propensities.choose_propensity("auto", rows, None)
    assert kind == "fitted"
    assert "no query comes twice, so nobody can see whether its lists vary" in reason
    assert propensities.choose_propensity("auto", log(), None)[1].endswith("its lists vary, so a policy can be fitted")


@pytest.mark.parametrize("repeats", [9, 8])
def test_a_logger_counts_as_deterministic_from_nine_queries_in_ten(repeats: int) -> None:
    """Queries that came once say nothing of it."""
    query = np.repeat(np.arange(12), [2] * 10 + [1, 1]).astype(np.int32)
    items = np.tile(np.arange(K, dtype=np.int32), (len(query), 1))
    items[[2 * q for q in range(10 - repeats)]] = [5, 4, 3]
    vocabulary = Vocabulary(pl.Series(range(12)), pl.Series(range(6)))
    part = Impressions(query, items, np.ones(items.shape, np.uint8))
    kind, _ = propensities.choose_propensity("auto", counting.from_impressions([part], vocabulary), None)
    assert kind == ("frequency" if repeats == 9 else "fitted")


def test_what_has_no_source_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"need the lists of the log.*\(propensity = auto\)\. Give the log itself"):
        resolve(log(), THETA)
    with pytest.raises(ConfigError, match="exact propensities need the policy that drew the log"):
        resolve(log(), THETA, kind="exact")
    with pytest.raises(LogError, match="no column `propensities`"):
        resolve(log(), THETA, kind="logged")
    with pytest.raises(ConfigError, match="one of auto, logged, exact, frequency, fitted; got 'guessed'"):
        resolve(log(), THETA, kind="guessed")
    with pytest.raises(ConfigError, match="clip must be one of paper, quantile, none; got 'much'"):
        resolve(log(logged=True), THETA, clip="much")


def test_the_quantile_is_that_of_the_clicked_rows(monkeypatch) -> None:
    monkeypatch.setattr(propensities, "CLIP_QUANTILE", 0.3)
    used = log(N=150, seed=1)
    found = resolve(used, THETA, clip="quantile", logging_policy=policy())
    alone = resolve(used, THETA, logging_policy=policy())
    assert np.array_equal(alone.unclipped, found.unclipped)
    assert found.clip == np.quantile(alone.unclipped[used.clicks > 0], 0.3) != np.quantile(alone.unclipped, 0.3)
    assert np.array_equal(found.rho_0, np.maximum(alone.unclipped, found.clip))
    assert not np.array_equal(found.rho_0, alone.rho_0)
    assert resolve(used, THETA, clip="paper", logging_policy=policy()).clip == 10 / np.sqrt(150)


def test_the_quantile_is_of_the_propensities_above_nothing(monkeypatch) -> None:
    known = np.linspace(0.1, 1, 10)
    for share in (0.5, 0.0, 1.0):
        monkeypatch.setattr(propensities, "CLIP_QUANTILE", share)
        found = clip_minimum("quantile", np.concatenate([np.zeros(90), known]), 100)
        assert found == np.quantile(known, share)
    assert clip_minimum("quantile", np.zeros(3), 100) == 0.0


def test_few_queries_have_fifty_races_each_and_many_no_fewer_than_sixteen() -> None:
    assert [propensities.races_for(n) for n in (0, 1, 6_400, 10_000, 20_000, 10**7)] == [50, 50, 50, 32, 16, 16]


def test_clips_and_their_one_default_quantile() -> None:
    rho_0 = np.linspace(0.01, 1, 1000)
    for clip, wanted in (("paper", 0.1), ("none", 0.0), ("quantile", 0.011)):
        assert clip_minimum(clip, rho_0, 10_000) == pytest.approx(wanted, abs=1e-4)
    assert propensities.CLIP_QUANTILE == 0.001
    assert propensities.SAMPLES == 50


def test_propensities_are_the_same_whatever_the_vocabulary() -> None:
    """A logging policy that knows more ids, in another order, gives each row the propensity of its own ids."""
    rows, logger = log(), policy()
    turned = Vocabulary(IDS.query_ids.reverse(), pl.concat([IDS.item_ids.reverse(), pl.Series([99])]))
    scores = np.column_stack([logger.scores(np.arange(Q))[0].detach().numpy()[::-1, ::-1], np.full(Q, -np.inf)])
    other = TwoStagePolicy(GivenScores(scores), GivenScores(scores), D, K, turned)
    a, b = (propensities.row_propensities(rows, THETA, "exact", p, samples=4000) for p in (logger, other))
    assert a == pytest.approx(b, rel=0.05)
    fewer = GivenScores(scores[:, 1:])
    unknown = TwoStagePolicy(fewer, fewer, D, K, Vocabulary(turned.query_ids, turned.item_ids[1:]))
    assert (propensities.row_propensities(rows, THETA, "exact", unknown)[rows.item == D - 1] == 0).all()


def test_where_items_are_many_only_clicked_rows_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = log(N=60)
    plain = resolve(rows, THETA, logging_policy=policy(), samples=400).rho_0
    same = resolve(rows, THETA, logging_policy=policy(), samples=400, wanted="clicked").rho_0
    assert np.array_equal(plain, same)  # few items: nothing is gained by it
    monkeypatch.setattr("tandemrank.policies.candidates.LARGE", 0)
    found = resolve(rows, THETA, logging_policy=policy(), samples=400, wanted="clicked").rho_0
    clicked = rows.clicks > 0
    assert (found[~clicked] == 0).all()
    assert found[clicked] == pytest.approx(plain[clicked], rel=0.15)
    assert not len(resolve(rows, THETA, logging_policy=policy(), wanted="none").rho_0)
