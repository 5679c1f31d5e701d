"""A fitted logger against its log: the correction by hand, and what it does where the fit is wrong."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from independent import simulator
from tandemrank._base.ids import Vocabulary
from tandemrank.logs.counting import from_impressions
from tandemrank.logs.feedback import Feedback, exposure
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy import calibration, valuation
from tandemrank.offpolicy.calibration import Expected
from tandemrank.offpolicy.examined import Curves
from tandemrank.offpolicy.logger import FittedLogger
from tandemrank.offpolicy.propensities import frequency_propensity, row_propensities
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
    pairs = sums_of([0, 1], [[2, 3], [0, 1]], words)
    expected = Expected(pairs, np.where(pairs.item <= 1, 0.1, 0.4), 2 * exposure(pairs, theta), np.ones(2, bool))
    rho_0 = np.where(log.item <= 1, 0.1, 0.4)
    ones = np.ones(len(log.query)), np.ones(len(pairs.query))
    found = calibration.calibrated(rho_0, ones[0], log, theta, expected, ones[1])
    # Examined of items 0 and 1: by the log 1 + .5, 1, 1, 1 + .5; by the fit 2 (1 + .5). Of 2 and 3: .5 + .5; 2 (1 + .5).
    first, second = (5.0 + 1) / (3.0 + 1), (1.0 + 1) / (3.0 + 1)
    assert found == pytest.approx(np.where(log.item <= 1, 0.1 * first, 0.4 * second))


def test_a_group_is_as_the_fit_has_it_for_five_examinations_and_nothing_is_exposed_above_the_first_rank() -> None:
    words, theta = vocabulary(1, 2), np.array([0.8])
    log = sums_of([0] * 20, [[0]] * 20, words)  # examined 16 times
    expected = Expected(sums_of([0], [[0]], words), np.array([0.1]), np.array([2.0]), np.ones(1, bool))
    one = np.ones(1)
    found = calibration.calibrated(np.array([0.1]), one, log, theta, expected, one)
    assert found == pytest.approx([0.1 * (16 + 5) / (2 + 5)])
    high = calibration.calibrated(np.array([0.5]), one, log, theta, expected, one)  # by the ratio it would be 1.5
    assert high.tolist() == [0.8]
    short = replace(log, shown=np.zeros(1))
    low = calibration.calibrated(np.array([1e-12]), one, short, theta, expected, one)
    assert low.tolist() == [calibration.TINY]


def test_all_pairs_of_the_queries_get_what_their_impressions_have_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """By enumeration: scores of 2, 1 and 0 for the items of each query, lists of one; and some of the queries are enough."""
    log = sums_of([0, 0, 1, 3], [[0], [1], [1], [2]], vocabulary(4, 3))
    scores = GivenScores(np.tile(np.array([[2.0, 1.0, 0.0]], np.float32), (4, 1)))
    logger = TwoStagePolicy(scores, scores, 3, 1, log.vocabulary)

    def fitted(pairs: Feedback) -> np.ndarray:
        return row_propensities(pairs, np.ones(1), "exact", logger, samples=1)

    found = calibration.expected_of(log, logger, Curves.same(np.ones(1), log.Q), fitted)
    chance = np.exp([2.0, 1.0, 0.0]) / np.exp([2.0, 1.0, 0.0]).sum()
    assert found.pairs.query.tolist() == [0, 0, 0, 1, 1, 1, 3, 3, 3]
    assert found.rho_0 == pytest.approx(np.tile(chance, 3), abs=1e-6)
    assert found.exposure == pytest.approx(np.concatenate([2 * chance, chance, chance]), abs=1e-6)
    assert found.queries.tolist() == [True, True, False, True]
    monkeypatch.setattr(calibration, "PAIRS", 7)
    some = calibration.expected_of(log, logger, Curves.same(np.ones(1), log.Q), fitted)
    assert some.queries.sum() == 2
    assert set(some.pairs.query.tolist()) == set(np.flatnonzero(some.queries).tolist())


def test_frequencies_of_other_impressions_are_corrected_to_what_the_log_was_shown() -> None:
    """An item that the others were shown once in four, and the log never: three such pairs get a third of what was expected."""
    words, theta = vocabulary(3, 4), np.ones(1)
    others = sums_of([0] * 4 + [1] * 4 + [2] * 4, [[0], [0], [0], [1]] * 3, words)
    log = sums_of([0, 0, 1, 1, 2, 2], [[0], [0], [0], [0], [0], [1]], words)
    assert frequency_propensity(log, theta, others) == pytest.approx([0.75, 0.75, 0.75, 0.25])
    assert frequency_propensity(log, theta) == pytest.approx([1.0, 1.0, 0.5, 0.5])
    found = calibration.expected_by(others, log, theta, frequency_propensity(others, theta))
    assert found.rho_0 == pytest.approx([0.75, 0.25] * 3)
    assert found.exposure == pytest.approx([1.5, 0.5] * 3)
    unknown = sums_of([0, 0], [[3], [0]], words)
    assert frequency_propensity(unknown, theta, others) == pytest.approx([0.75, 1 / 6])


def test_clicks_are_divided_by_what_clicked_pairs_were_exposed() -> None:
    """Exposures are z times what a fit believes, z of a gamma distribution, and relevance goes with z, as the logger knew."""
    rng, Q, n, s, g = np.random.default_rng(0), 40_000, 6, 0.3, 1.0
    rho_0, theta = 0.04, np.ones(1)
    z = rng.gamma(1 / s, s, Q)
    R = np.minimum(0.1 * z**g, 1.0)
    words = vocabulary(Q, 2)

    def drawn(times: int) -> Feedback:
        query = np.repeat(np.arange(Q), times)
        item = (rng.random(len(query)) >= np.minimum(rho_0 * z[query], 1.0)).astype(np.int32)  # item 0, or another
        clicks = ((rng.random(len(query)) < R[query]) & (item == 0)).astype(np.uint8)
        return from_impressions([Impressions(query.astype(np.int32), item[:, None], clicks[:, None])], words)

    log, others = drawn(n), drawn(3 * n)
    shown = (log.item == 0).astype(float)
    found = calibration.excess(shown, np.full(len(log.query), rho_0), log, others, theta)
    by_fit = float(log.clicks.sum() / rho_0 / log.N / R.mean())
    assert by_fit == pytest.approx(1 + g * s, abs=0.1)  # so much too high
    assert found == pytest.approx(1 + g * s, abs=0.1)
    nothing = replace(others, shown=np.zeros(len(others.query)), impressions=np.zeros(Q))
    assert calibration.excess(shown, np.full(len(log.query), rho_0), log, nothing, theta) == 1


def test_lists_are_drawn_in_the_logs_vocabulary_for_as_many_queries_as_are_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A logger that knows its items in another order, and one more, which the log does not know; two of three queries."""
    monkeypatch.setattr(calibration, "QUERIES", 2)
    monkeypatch.setattr(calibration, "DRAWN", 0)
    log = sums_of([0, 0, 1, 2], [[0, 1], [1, 0], [1, 2], [2, 1]], vocabulary(4, 3))
    words = Vocabulary(pl.Series([2, 1, 0]), pl.Series([7, 2, 1, 0]))
    scores = np.array([[0.0, 0.0, 0.0, 99.0], [0.0, 0.0, 99.0, 0.0], [0.0, 99.0, 0.0, 0.0]], np.float32)
    logger = TwoStagePolicy(GivenScores(scores), GivenScores(scores), 4, 1, words)
    lists, scale = calibration.draw_lists(log, logger, seed=0)
    taken = np.flatnonzero(scale)
    assert len(taken) == 2
    assert scale[taken] == pytest.approx(np.array([2, 1, 1, 0])[taken] / calibration.LISTS)
    best = {0: 2, 1: 1, 2: 0}  # of each query, in the log's positions
    assert [best[q] for q in lists.query.tolist()] == lists.item.tolist()
    assert set(lists.query.tolist()) == set(taken.tolist())


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
    ask = {"examination": world.theta, "estimator": "ips", "samples": 20}
    off = {
        (name, fitted): valuation.estimate(
            new, frame, logging_policy=FittedLogger(of, fitted) if fitted else of, **ask
        ).value
        / float(truth @ times / times.sum())
        - 1
        for name, of in (("right", right), ("flat", flat))
        for fitted in (None, 200.0)
    }
    assert abs(off["right", None]) < 0.1
    assert abs(off["right", 200.0]) < 0.1
    assert abs(off["flat", None]) > 0.2
    assert abs(off["flat", 200.0]) < 0.5 * abs(off["flat", None])
