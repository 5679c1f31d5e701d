"""The beliefs as the scores of a stage: flattened, sharpened, with what earlier logs are remembered for; and vectors by ids."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from tandemrank._base.ids import Vocabulary
from tandemrank.beliefs import posterior, scorer
from tandemrank.beliefs.scorer import SHARPNESS, scorer_of
from tandemrank.beliefs.vectors import vectors_of
from tandemrank.logs import counting
from tandemrank.logs.impressions import Impressions
from tandemrank.policies.memory import Memory, Remembering, memory_from
from tandemrank.policies.scorers import GivenScores, MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy

Q, D, K = 8, 12, 3
IDS = Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))
EVERY = torch.arange(Q)


@pytest.fixture(scope="module")
def known() -> posterior.Posterior:
    """With a spread that differs much between items."""
    rng = np.random.default_rng(0)
    items = np.argsort(rng.random((300, D)), axis=1)[:, :K].astype(np.int32)
    part = Impressions(rng.integers(Q, size=300).astype(np.int32), items, (rng.random((300, K)) < 0.3).astype(np.uint8))
    found = posterior.fit(counting.from_impressions([part], IDS), 1 / np.arange(1.0, K + 1))
    return replace(found, query_spread=np.ones(Q), item_spread=np.geomspace(0.1, 40, D))


def log_odds(known: posterior.Posterior) -> np.ndarray:
    """offset_d + y_d . x_q + beta_q + l[q, d], pair by pair."""
    found = np.zeros((Q, D))
    for q in range(Q):
        for d in range(D):
            found[q, d] = known.offset[d] + known.items[d].astype(float) @ known.queries[q]
        own = slice(known.memory.first[q], known.memory.first[q + 1])
        found[q, known.memory.item[own]] += known.memory.value[own]
    return found


def test_the_scores_are_the_flattened_log_odds(known) -> None:
    flat = 1 / np.sqrt(1 + np.pi / 8 * known.item_spread)
    wanted = SHARPNESS * log_odds(known) * flat / flat.mean()
    assert scorer_of(known)(EVERY).detach().numpy() == pytest.approx(wanted, rel=1e-4, abs=1e-4)


def test_items_are_in_the_order_of_their_expected_relevance(known) -> None:
    found = scorer_of(known)(EVERY).detach().numpy()
    order = np.argsort(-known.matrix(np.arange(Q))[:, :D], axis=1).tolist()
    assert np.argsort(-found, axis=1).tolist() == order
    assert np.argsort(-log_odds(known), axis=1).tolist() != order


def test_what_was_remembered_of_earlier_logs_is_added_up(known, monkeypatch) -> None:
    at = np.array([0, 3, 1]), np.array([2, 7, 1])
    earlier = memory_from(np.array([0, 3]), np.array([2, 7], np.int32), np.array([1.5, -2.0], np.float32), Q, D)
    base = MatrixFactorisation(np.zeros((Q, 1)), np.zeros((D, 1)))
    found, fresh = scorer_of(known, Remembering(base, earlier)).memory, scorer_of(known, base).memory
    assert found.at(*at) - fresh.at(*at) == pytest.approx([1.5, -2.0, 0.0])
    both = earlier.plus(earlier)
    assert (both.item.tolist(), both.value.tolist()) == ([2, 7], [3.0, -4.0])
    nothing = Memory(np.zeros(Q + 1, np.int64), earlier.item[:0], earlier.value[:0], D)
    assert earlier.plus(nothing).value.tolist() == [1.5, -2.0]
    monkeypatch.setattr(scorer, "REMEMBERED", 5)
    assert sorted(np.abs(scorer_of(known).memory.value)) == sorted(np.abs(fresh.value))[-5:]


def test_vectors_are_found_by_ids_and_not_where_some_are_missing() -> None:
    rng = np.random.default_rng(1)
    one = MatrixFactorisation(rng.normal(size=(Q, 3)), rng.normal(size=(D, 3)))
    nothing = memory_from(np.zeros(0, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), Q, D)
    live = TwoStagePolicy(one, Remembering(one, nothing), 6, K, IDS)
    found = vectors_of(live, Vocabulary(IDS.query_ids.reverse(), IDS.item_ids.reverse()))
    assert found is not None
    assert np.array_equal(found.items, one.items.detach().numpy()[::-1])
    assert np.array_equal(found.queries, one.queries.detach().numpy()[::-1])
    assert vectors_of(live, replace(IDS, item_ids=pl.Series([*range(D), 99]))) is None
    assert vectors_of(replace(live, ranker=GivenScores(np.zeros((Q, D)))), IDS) is None
    assert vectors_of(None, IDS) is None
