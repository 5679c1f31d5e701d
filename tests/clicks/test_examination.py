"""Examination: exact on exact counts, within 5% on many impressions, honest intervals, plain refusals."""

import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_matrix

from tandemrank._base.ids import Vocabulary
from tandemrank.clicks import examination, models, simulation
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs import counting, sums
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.pairs import compared, row_sums


def feedback_of(shown, clicked):
    """Feedback with the given sums. Shapes: shown, clicked [Q, D, K]."""
    query, item, rank = np.nonzero(shown)
    words = Vocabulary(pl.Series(np.arange(shown.shape[0])), pl.Series(np.arange(shown.shape[1])))
    return Feedback(
        words,
        query.astype(np.int32),
        item.astype(np.int32),
        rank.astype(np.int16),
        shown[query, item, rank].astype(float),
        clicked[query, item, rank].astype(float),
        None,
        shown[:, :, 0].sum(1).astype(float),
    )


def simulate(N, model, *, Q=200, D=60, seed=0, temperature=0.7):
    """A log of a logger that prefers relevant items, but not always."""
    rng = np.random.default_rng(seed)
    latent = rng.normal(size=(Q, D))
    R = 1 / (1 + np.exp(2 - 1.5 * latent))
    scores = ((latent + rng.normal(size=(Q, D))) / temperature).astype(np.float32)
    draw = simulation.one_stage(lambda q: scores[q], len(model.alpha))
    words = Vocabulary(pl.Series(np.arange(Q)), pl.Series(np.arange(D)))
    parts = simulation.simulate(draw, csr_matrix(R), np.arange(Q), N, model, seed=seed)
    return counting.from_impressions(parts, words)


def expected(model, R, rng, most=40):
    """Feedback whose clicks are their own expectation, n (alpha R + beta), at ranks that depend on R."""
    K = len(model.alpha)
    shown = rng.integers(0, most, (*R.shape, K)) * (rng.random((*R.shape, K)) < 0.6)
    shown = np.where(R[..., None] > 0.5, shown, shown * (np.arange(K) > 0) + (shown > 0))
    return feedback_of(shown, shown * models.click_probability(model, np.repeat(R[..., None], K, axis=2)))


# --- exact ------------------------------------------------------------------------------------------------------------


def test_one_comparison_is_the_ratio_of_click_rates():
    shown = np.array([[[10, 40]]] * 40)
    clicked = np.array([[[5, 8]]] * 40)  # rates 1/2 and 1/5
    curve = examination.examine(feedback_of(shown, clicked), 2)
    assert curve.theta == pytest.approx([1, 0.4])
    assert (curve.low, curve.high) == (pytest.approx([1, 0.4]), pytest.approx([1, 0.4]))  # every query says the same
    assert (curve.pairs_compared, curve.clicks) == (40, 40 * 13)


@pytest.mark.parametrize("curve", ["reciprocal", "dcg"])
def test_harvesting_is_exact_on_expected_clicks(curve):
    """Whatever the relevance, and though the logger shows relevant items higher."""
    rng = np.random.default_rng(0)
    theta = models.examination_curve(5, curve)
    feedback = expected(models.position_based(theta), rng.random((50, 8)), rng)
    assert examination.examine(feedback, 5).theta == pytest.approx(theta, rel=1e-8)
    naive = np.bincount(feedback.rank, feedback.clicks) / np.bincount(feedback.rank, feedback.shown)
    assert (np.abs(naive / naive[0] / theta - 1) > 0.2).any()  # click rates alone do not give it
    assert examination.examine(feedback, 3).theta == pytest.approx(theta[:3], rel=1e-8)  # ranks after K are ignored


def test_a_pair_at_one_rank_changes_nothing():
    rng = np.random.default_rng(0)
    feedback = expected(models.position_based(models.examination_curve(3)), rng.random((50, 8)), rng)
    alone = np.zeros((51, 8, 3), dtype=int)
    alone[50, 3, 1] = 1000
    both = sums.merge([feedback, feedback_of(alone, alone)])
    one, other = (examination.examine(f, 3) for f in (feedback, both))
    assert np.array_equal(one.theta, other.theta)
    assert np.array_equal(one.high, other.high)


# --- many impressions ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("curve", ["reciprocal", "dcg"])
def test_many_impressions_give_each_rank_within_five_percent(curve):
    theta = models.examination_curve(10, curve)
    feedback = simulate(300_000, models.position_based(theta))
    found = examination.examine(feedback, 10)
    assert np.abs(found.theta / theta - 1).max() < 0.05
    assert found.theta[0] == found.low[0] == found.high[0] == 1
    assert (found.high / found.low)[1:].max() < 1.1
    assert ((found.low <= theta) & (theta <= found.high)).sum() >= 7


def test_pairs_that_rarely_come_back_are_enough():
    """Thirty thousand impressions of 400 queries and 400 items: half the pairs are seen four times or less."""
    theta = models.examination_curve(5, "dcg")
    feedback = simulate(30_000, models.position_based(theta), Q=400, D=400, temperature=0.5)
    pairs = compared(feedback, 5)
    assert np.median(row_sums(pairs.shown)) <= 4
    assert np.abs(examination.examine(feedback, 5).theta / theta - 1).max() < 0.05


def test_ninety_five_percent_intervals_cover():
    theta = models.examination_curve(3)
    inside = [
        (curve.low[1:] <= theta[1:]) & (theta[1:] <= curve.high[1:])
        for seed in range(40)
        for curve in [examination.examine(simulate(3000, models.position_based(theta), Q=60, D=10, seed=seed), 3)]
    ]
    assert 0.95 - 5 * np.sqrt(0.95 * 0.05 / 80) <= np.mean(inside) < 1


def test_more_confidence_is_wider_and_the_seed_decides():
    feedback = simulate(5000, models.position_based(models.examination_curve(3)), Q=60, D=10)
    narrow, wide = (examination.examine(feedback, 3, level=level) for level in (0.8, 0.99))
    assert (wide.low[1:] < narrow.low[1:]).all()
    assert (narrow.high[1:] < wide.high[1:]).all()
    assert np.array_equal(wide.theta, narrow.theta)
    again, other = (examination.examine(feedback, 3, level=0.8, seed=seed) for seed in (0, 1))
    assert np.array_equal(again.low, narrow.low)
    assert not np.array_equal(other.low, narrow.low)


# --- refusals -----------------------------------------------------------------------------------------------------------


def test_a_deterministic_logger_is_refused():
    shown = np.zeros((50, 3, 3), dtype=int)
    shown[:, np.arange(3), np.arange(3)] = 20
    with pytest.raises(LogError, match="no item was shown at two ranks"):
        examination.examine(feedback_of(shown, shown // 2), 3)


def test_ranks_that_nothing_connects_are_named():
    """Items swap places within ranks 1 and 2, and within 3 and 4, but never between."""
    shown = np.zeros((50, 4, 4), dtype=int)
    shown[:, :2, :2] = shown[:, 2:, 2:] = 10
    with pytest.raises(LogError, match="ranks 3, 4 with rank 1"):
        examination.examine(feedback_of(shown, shown // 2), 4)
    assert examination.examine(feedback_of(shown, shown // 2), 2).theta == pytest.approx([1, 1])


def test_a_rank_without_clicks_is_named():
    shown = np.full((50, 4, 3), 10)
    clicked = shown // 2 * np.array([1, 1, 0])
    with pytest.raises(LogError, match="rank 3 with rank 1"):
        examination.examine(feedback_of(shown, clicked), 3)


def test_a_rank_that_hangs_on_a_few_queries_is_named():
    shown = np.full((50, 4, 3), 10)
    shown[1:, :, 2] = 0
    with pytest.raises(LogError, match="ranks 3 depend on"):
        examination.examine(feedback_of(shown, shown // 2), 3)


@pytest.mark.parametrize("options", [{"level": 1.0}, {"K": 0}, {"seed": -1}])
def test_bad_options_are_refused(options):
    feedback = feedback_of(np.full((50, 4, 3), 10), np.full((50, 4, 3), 5))
    with pytest.raises(ConfigError):
        examination.examine(feedback, **({"K": 3} | options))


def test_one_query_has_an_interval_over_pairs():
    feedback = simulate(20_000, models.position_based(models.examination_curve(3)), Q=1, D=40, temperature=2.0)
    curve = examination.examine(feedback, 3)
    assert (curve.low[1:] < curve.theta[1:]).all()
    assert np.abs(curve.theta / models.examination_curve(3) - 1).max() < 0.1


# --- a log itself -----------------------------------------------------------------------------------------------------


def two_ways():
    """Forty queries, three items in two orders, ten times each: at rank 1 every fifth impression clicks the first item."""
    rows = [
        {"query_id": q, "items": items, "clicks": [int(n % 5 == 0), int(n % 10 == 0), int(n % 10 == 5)]}
        for q in range(40)
        for items in (["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"])
        for n in range(10)
    ]
    return pl.DataFrame(rows)


def test_a_log_is_examined_to_its_last_rank_or_to_the_one_that_is_asked(tmp_path):
    found = examination.examine(two_ways())
    assert found.theta == pytest.approx([1, 0.5, 0.5])
    assert found.clicks == 480
    two_ways().write_parquet(tmp_path / "log.parquet")
    assert examination.examine(tmp_path / "log.parquet", 2).theta == pytest.approx([1, 0.5])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"K": 1}, "two ranks or more; got K = 1"),
        ({"engine": "Ray"}, "--engine takes local or ray; got 'Ray'"),
    ],
)
def test_what_examine_does_not_take_is_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        examination.examine(two_ways(), **options)


def test_lists_of_one_item_have_no_curve_and_it_is_said() -> None:
    log = pl.DataFrame({"query_id": [1, 1, 2], "items": [[3], [4], [3]], "clicks": [[1], [0], [1]]})
    with pytest.raises(LogError, match=r"have one item each.*its curve is 1, the default"):
        examination.examine(log)


def test_more_ranks_than_a_log_may_have_are_refused() -> None:
    log = pl.DataFrame({"query_id": [1, 1], "items": [[1, 2], [2, 1]], "clicks": [[1, 0], [1, 0]]})
    with pytest.raises(ConfigError, match=r"expected K from 1 to 512 ranks, .* got 9999999999999999999999"):
        examination.examine(log, 9999999999999999999999)
    with pytest.raises(ConfigError, match="at most 512 ranks; got 100,000"):
        models.check_examination([0.5] * 100_000)
