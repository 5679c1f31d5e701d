"""A fitted logger against its log: the correction by hand, and what it does where the fit is wrong."""

import numpy as np
import polars as pl
import pytest

from independent import simulator
from tandemrank._base.ids import Vocabulary
from tandemrank.logs.counting import from_impressions
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy import calibration, valuation
from tandemrank.offpolicy.calibration import Drawn
from tandemrank.policies.outside import policy_from_scores
from tandemrank.policies.scorers import GivenScores
from tandemrank.policies.two_stage import TwoStagePolicy


def vocabulary(Q: int, D: int) -> Vocabulary:
    return Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))


def sums_of(query: list[int], items: list[list[int]], words: Vocabulary):
    lists = np.array(items, np.int32)
    return from_impressions([Impressions(np.array(query, np.int32), lists, np.zeros(lists.shape, np.uint8))], words)


def test_the_correction_of_each_group_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two groups by the fitted propensity: the log saw the first more often than the fit would, the second less often."""
    monkeypatch.setattr(calibration, "EACH", 1.0)
    monkeypatch.setattr(calibration, "GROUPS", 2)
    monkeypatch.setattr(calibration, "PRIOR", 1.0)
    words, theta = vocabulary(2, 4), np.array([1.0, 0.5])
    log = sums_of([0, 0, 1, 1], [[0, 1], [0, 2], [0, 3], [1, 0]], words)
    drawn = Drawn(sums_of([0, 1], [[2, 3], [0, 1]], words), np.array([2.0, 2.0]))
    rho_0 = np.where(log.item <= 1, 0.1, 0.4)
    drawn_rho_0 = np.where(drawn.lists.item <= 1, 0.1, 0.4)
    ones = np.ones(len(log.query)), np.ones(len(drawn.lists.query))
    found = calibration.calibrated(rho_0, ones[0], log, theta, drawn, drawn_rho_0, ones[1])
    # Examined of items 0 and 1: by the log 1 + .5, 1, 1, 1 + .5; by the fit 2 (1 + .5). Of 2 and 3: .5 + .5; 2 (1 + .5).
    first, second = (5.0 + 1) / (3.0 + 1), (1.0 + 1) / (3.0 + 1)
    assert found == pytest.approx(np.where(log.item <= 1, 0.1 * first, 0.4 * second))


def test_lists_are_drawn_in_the_logs_vocabulary_for_as_many_queries_as_are_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A logger that knows its items in another order, and one more, which the log does not know; two of three queries."""
    monkeypatch.setattr(calibration, "QUERIES", 2)
    monkeypatch.setattr(calibration, "DRAWN", 0)
    log = sums_of([0, 0, 1, 2], [[0, 1], [1, 0], [1, 2], [2, 1]], vocabulary(4, 3))
    words = Vocabulary(pl.Series([2, 1, 0]), pl.Series([7, 2, 1, 0]))
    scores = np.array([[0.0, 0.0, 0.0, 99.0], [0.0, 0.0, 99.0, 0.0], [0.0, 99.0, 0.0, 0.0]], np.float32)
    drawn = calibration.draw_lists(log, TwoStagePolicy(GivenScores(scores), GivenScores(scores), 4, 1, words), seed=0)
    taken = np.flatnonzero(drawn.scale)
    assert len(taken) == 2
    assert drawn.scale[taken] == pytest.approx(np.array([2, 1, 1, 0])[taken] / calibration.LISTS)
    best = {0: 2, 1: 1, 2: 0}  # of each query, in the log's positions
    assert [best[q] for q in drawn.lists.query.tolist()] == drawn.lists.item.tolist()
    assert set(drawn.lists.query.tolist()) == set(taken.tolist())


def test_a_right_fit_is_left_as_it_is_and_a_wrong_one_is_put_right() -> None:
    """IPS of a pair by the propensities of production itself, and of one whose tastes are half as strong."""
    world = simulator.world(0, queries=30, items=40, K=5, K2=8)
    log = simulator.impressions(world, 6_000, 1)
    frame = pl.DataFrame({"query_id": log.query, "items": log.items.tolist(), "clicks": log.clicks.tolist()})
    q, d = (x.ravel() for x in np.meshgrid(np.arange(30), np.arange(40), indexing="ij"))
    rows = pl.DataFrame({"query_id": q, "item_id": d})

    def pair(s_c: np.ndarray, s_r: np.ndarray, K2: int) -> TwoStagePolicy:
        scores = rows.with_columns(candidate_score=pl.Series(s_c.ravel()), ranker_score=pl.Series(s_r.ravel()))
        return policy_from_scores(scores, K2=K2, K=5)

    wanted = np.log(world.R)
    new, right, flat = (
        pair(wanted, wanted, 20),
        pair(world.s_c, world.s_r, 8),
        pair(0.5 * world.s_c, 0.5 * world.s_r, 8),
    )
    truth = simulator.value_by_query(world, np.arange(30), wanted, wanted, 20, 5, samples=400, seed=2)
    times = np.bincount(log.query, minlength=30)
    ask = {"examination": world.theta, "propensity": "exact", "estimator": "ips", "samples": 20, "replicates": 100}
    off = {
        (name, fitted): valuation.estimate(new, frame, logging_policy=of, fitted_lists=fitted, **ask).value
        / float(truth @ times / times.sum())
        - 1
        for name, of in (("right", right), ("flat", flat))
        for fitted in (None, 200.0)
    }
    assert abs(off["right", None]) < 0.1
    assert abs(off["right", 200.0]) < 0.1
    assert abs(off["flat", None]) > 0.2
    assert abs(off["flat", 200.0]) < 0.5 * abs(off["flat", None])
