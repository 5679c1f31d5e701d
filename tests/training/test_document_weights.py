"""The weights of documents: by clicks unbiased over all logs of a tiny world; by beliefs what is expected of each."""

import itertools
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_matrix

import enumeration
import item_rate
from tandemrank._base.ids import Vocabulary
from tandemrank.beliefs.model import RewardModel
from tandemrank.logs import counting
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Impressions
from tandemrank.training import weights as weights_module
from tandemrank.training.weights import belief_weights, click_weights

THETA = [1.0, 0.5]
S, R_SCORES, K2 = [0.3, -0.5, 1.0], [0.8, 0.0, -0.7], 2
LOGGER = [0.2, 0.9, -0.4]
RELEVANCE = [0.9, 0.2, 0.6]
RHO_0 = np.array(enumeration.exposure(LOGGER, LOGGER, THETA, 3))


def log_of(lists: list[tuple[int, ...]], clicked: list[tuple[int, ...]]) -> Feedback:
    part = Impressions(np.zeros(len(lists), np.int32), np.array(lists, np.int32), np.array(clicked, np.uint8))
    return counting.from_impressions([part], Vocabulary(pl.Series([0]), pl.Series(range(3))))


def test_cltr_grad_2s_of_the_click_weights_is_unbiased_over_all_logs_of_a_tiny_world() -> None:
    """The mean of what training maximises, and of its gradients, over *every* log of two impressions is the truth's."""
    one = []
    for y, p, _ in enumeration.rankings(LOGGER, range(3), 2):
        for c in itertools.product((0, 1), repeat=2):
            chances = [THETA[k] * RELEVANCE[d] if c[k] else 1 - THETA[k] * RELEVANCE[d] for k, d in enumerate(y)]
            one.append((y, c, p * chances[0] * chances[1]))
    mean = np.zeros(7)
    for (y1, c1, p1), (y2, c2, p2) in itertools.product(one, repeat=2):
        log = log_of([y1, y2], [c1, c2])
        w = click_weights(RHO_0[log.item], log).toarray()[0]
        value, by_s, by_r = enumeration.utility(S, R_SCORES, w, THETA, K2)
        mean += p1 * p2 * np.array([value, *by_s, *by_r])
    value, by_s, by_r = enumeration.utility(S, R_SCORES, RELEVANCE, THETA, K2)
    assert mean == pytest.approx(2 * np.array([value, *by_s, *by_r]), abs=1e-6)  # two impressions


def test_belief_weights_are_what_the_model_expects_of_every_document() -> None:
    log = log_of([(0, 1), (1, 0)], [(1, 0), (0, 1)])
    model = item_rate.reward_model(log, np.array(THETA))
    weights = belief_weights(log, model, 2)
    q = np.zeros(1, np.int64)
    assert weights.rows(q).toarray()[0] == pytest.approx(2 * model.matrix(q)[0, :-1], rel=1e-6)
    assert (weights.shape, weights.queries.tolist(), weights.clicked) == ((1, 3), [0], 1)


def test_where_items_are_very_many_those_near_the_top_have_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice K2 of each query and what it was shown; where that is all of them, nothing is lost."""
    log, asked = log_of([(0, 1), (1, 0)], [(1, 0), (0, 1)]), []
    model = item_rate.reward_model(log, np.array(THETA))
    monkeypatch.setattr(type(model), "top", lambda self, q, n: asked.append(n) or RewardModel.top(self, q, n))
    q = np.zeros(1, np.int64)
    whole = belief_weights(log, model, 1).rows(q)
    monkeypatch.setattr(weights_module, "LARGE", 2)
    assert (belief_weights(log, model, 1).rows(q) != whole).nnz == 0
    belief_weights(log, model, 2).rows(q)
    assert asked == [3, 2, 3]


def test_excluded_pairs_have_no_weight() -> None:
    log = log_of([(0, 1), (1, 0)], [(1, 0), (0, 1)])
    every = belief_weights(log, item_rate.reward_model(log, np.array(THETA)), 2)
    some = replace(every, excluded=csr_matrix(np.array([[0.0, 2.0, 1.0]])))
    q = np.zeros(1, np.int64)
    assert some.rows(q).toarray().tolist() == [[every.rows(q)[0, 0], 0, 0]]
    assert (some.shape, some.clicked, some.queries.tolist()) == (every.shape, every.clicked, [0])
    assert len(some.arrays()) == len(every.arrays()) + 2


def test_belief_weights_never_have_the_size_of_all_queries_by_all_items() -> None:
    """A million queries by a hundred thousand items: only the rows that are asked for exist."""
    Q, D = 1_000_000, 100_000
    query = np.array([5, 5, 999_999], np.int32)
    part = Impressions(query, np.array([[0], [7], [99_999]], np.int32), np.array([[1], [0], [1]], np.uint8))
    log = counting.from_impressions([part], Vocabulary(pl.Series(range(Q)), pl.Series(range(D))))
    weights = belief_weights(log, item_rate.reward_model(log, np.ones(1)), 2)
    rows = weights.rows(np.array([5, 999_999]))
    assert (rows.shape, rows.dtype) == ((2, D), np.float32)
    assert weights.queries.tolist() == [5, 999_999]
