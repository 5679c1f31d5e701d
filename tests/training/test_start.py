"""Where training starts without ratings: from clicks, and from given embeddings."""

import numpy as np
import polars as pl
import pytest
import torch

from tandemrank._base.ids import Vocabulary
from tandemrank.clicks import models, simulation
from tandemrank.errors import ConfigError, DataError, LogError
from tandemrank.experiments import datasets
from tandemrank.experiments.evaluation import ndcg
from tandemrank.logs import counting
from tandemrank.logs.feedback import Feedback
from tandemrank.policies.scorers import GivenScores, truncated_svd
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training import start

THETA = models.examination_curve(5)


def log_of(rows: list[tuple[int, int, int, float, float]], Q: int = 4, D: int = 6) -> Feedback:
    """Feedback of rows (query, item, rank, shown, clicks)."""
    query, item, rank, shown, clicked = (np.array(column) for column in zip(*rows, strict=True))
    vocabulary = Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))
    return Feedback(
        vocabulary, query, item, rank, shown.astype(float), clicked.astype(float), None, np.bincount(query, shown, Q)
    )


def scores(scorer) -> np.ndarray:
    return scorer(torch.arange(scorer.spec()["Q"])).detach().numpy()


def test_the_evidence_of_a_pair_is_its_formula() -> None:
    """Clicks over examinations, those of all ranks of the pair together."""
    log = log_of([(0, 1, 0, 10, 4), (0, 1, 2, 6, 1), (0, 2, 1, 8, 0), (3, 5, 4, 5, 1)])
    x = start._evidence(log, THETA).toarray()
    r = 6 / (10 + 2 + 4 + 1)
    assert x[0, 1] == pytest.approx(np.log1p(5 / (r * (12 + 1))))
    assert x[3, 5] == pytest.approx(np.log1p(1 / (r * (1 + 1))))
    assert np.count_nonzero(x) == 2


def test_a_click_that_fewer_could_see_counts_for_more() -> None:
    x = start._evidence(log_of([(0, 1, 0, 4, 1), (1, 2, 3, 4, 1)]), THETA).toarray()
    assert x[1, 2] > 1.5 * x[0, 1]


def simulated(N: int = 4000) -> tuple[datasets.Task, Feedback]:
    """A log of lists drawn at random."""
    task = datasets.load("synthetic", queries=150, items=80)
    flat = GivenScores(np.zeros((task.Q, task.D)))
    drew = TwoStagePolicy(flat, flat, task.D, 5, task.vocabulary)
    q = np.arange(task.Q - 5)  # the last five are never logged
    parts = simulation.simulate(drew.sample, task.relevance, q, N, models.position_based(THETA), seed=1)
    return task, counting.from_impressions(parts, task.vocabulary)


def judged(scorer, task: datasets.Task) -> float:
    q = np.arange(task.Q)
    policy = TwoStagePolicy(scorer, scorer, task.D, 5, task.vocabulary)
    return float(np.nanmean(ndcg(policy.most_likely(q), q, task.relevance)))


def test_the_start_is_far_better_than_chance_and_than_popularity() -> None:
    task, log = simulated()
    found = start.from_clicks(log, THETA, 20)
    popular = np.tile(np.bincount(log.item, log.clicks, task.D), (task.Q, 1))
    chance = judged(GivenScores(np.random.default_rng(0).normal(size=(task.Q, task.D))), task)
    assert judged(found, task) > judged(GivenScores(popular), task) + 0.05
    assert judged(found, task) > 2 * chance


def test_the_scores_have_the_scale_of_a_policy_that_still_draws_others() -> None:
    _, log = simulated()
    s = scores(start.from_clicks(log, THETA, 20))
    assert np.sqrt(s.var(1).mean()) == pytest.approx(start.SPREAD, rel=1e-4)


def test_a_query_is_its_own_taste_and_that_of_all_and_without_clicks_the_latter_alone() -> None:
    task, log = simulated()
    found = scores(start.from_clicks(log, THETA, 20))
    U, V = truncated_svd(start._evidence(log, THETA), 20)
    own, everybody = U @ V.T, U.mean(0) @ V.T
    clicked = np.bincount(log.query, log.clicks, task.Q) > 0
    assert not clicked[-5:].any()
    own[clicked] /= own[clicked].std(1, keepdims=True)
    expected = np.where(clicked[:, None], own, 0) + everybody / everybody.std()
    expected /= np.sqrt(expected.var(1).mean())
    assert np.allclose(found, expected, atol=1e-3)


def test_where_all_is_liked_alike_nothing_stands_out() -> None:
    log = log_of([(q, d, 0, 10, 5) for q in range(4) for d in range(6)])
    for rank in (1, 3):
        assert np.abs(scores(start.from_clicks(log, THETA, rank))).max() < 1e-3


def test_a_seed_is_the_same_start() -> None:
    _, log = simulated(500)
    a, b = (scores(start.from_clicks(log, THETA, 5, seed=3)) for _ in range(2))
    assert np.array_equal(a, b)


def test_the_fewest_clicks_and_the_highest_rank() -> None:
    one = log_of([(0, 1, 0, 10, 1), (1, 2, 0, 10, 0)])
    for rank in (1, 3, 50):  # at most min(Q, D) - 1 = 3
        found = start.from_clicks(one, THETA, rank)
        assert found.spec() == {"Q": 4, "D": 6, "F": min(rank, 3)}
        s = scores(found)
        assert np.isfinite(s).all()
        assert s[0].argmax() == 1


def test_refusals_of_clicks() -> None:
    with pytest.raises(LogError, match=r"expected clicks to start from; none of 10 impressions"):
        start.from_clicks(log_of([(0, 1, 0, 10, 0)]), THETA, 2)
    with pytest.raises(ConfigError, match="a rank of 1 or more for the embeddings; 0 came"):
        start.from_clicks(log_of([(0, 1, 0, 10, 1)]), THETA, 0)
    with pytest.raises(LogError, match="at least 2 queries and 2 items to factorise; the log has 1 and 6"):
        start.from_clicks(log_of([(0, 1, 0, 10, 1)], Q=1), THETA, 2)


QUERIES = pl.DataFrame({"query_id": ["b", "a"], "embedding": [[1.0, 2.0], [3.0, 4.0]]})
ITEMS = pl.DataFrame({"item_id": [1, 2, 3], "embedding": [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]})
NAMES = Vocabulary(pl.Series(["a", "b"]), pl.Series([3, 1, 2]))


def test_given_embeddings_are_taken_as_they_are(tmp_path) -> None:
    QUERIES.write_parquet(tmp_path / "q.parquet")
    as_array = ITEMS.with_columns(pl.col("embedding").cast(pl.Array(pl.Float32, 2)))
    for queries, items in ((QUERIES, ITEMS), (tmp_path / "q.parquet", as_array)):
        assert np.array_equal(scores(start.from_embeddings(queries, items, NAMES)), [[7, 3, 4], [3, 1, 2]])


def test_given_embeddings_from_pandas() -> None:
    pd = pytest.importorskip("pandas")
    items = pd.DataFrame({"item_id": [1, 2, 3], "embedding": [np.array(x) for x in ITEMS["embedding"].to_list()]})
    assert np.array_equal(scores(start.from_embeddings(QUERIES, items, NAMES)), [[7, 3, 4], [3, 1, 2]])


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (ITEMS.drop("embedding"), r"the item frame: expected a column embedding; the columns are item_id"),
        (ITEMS.drop("item_id"), r"expected a column item_id; the columns are embedding"),
        (ITEMS.with_columns(embedding=pl.lit(1.0)), r"column embedding: expected lists of numbers; Float64 came"),
        (ITEMS.with_columns(embedding=pl.lit(["a"])), r"column embedding: expected lists of numbers; List\(String\)"),
        (
            ITEMS.with_columns(embedding=pl.Series([[1.0, 2.0], [1.0], [3.0, 4.0]])),
            r"row 1, column embedding: expected 2 numbers, as in row 0; 1 came",
        ),
        (ITEMS.with_columns(embedding=pl.Series([[1.0, 2.0], None, [3.0, 4.0]])), r"row 1, .* 2 numbers.* 0 came"),
        (
            ITEMS.with_columns(embedding=pl.Series([[], [], []], dtype=pl.List(pl.Float64))),
            r"row 0, column embedding: expected some numbers",
        ),
        (
            ITEMS.with_columns(embedding=pl.Series([[1.0, 2.0], [1.0, float("nan")], [None, 4.0]])),
            r"row 1, column embedding: expected finite numbers, at most 1e\+15 in size; \[1.0, nan\] came\. 2 rows",
        ),
        (ITEMS[:2], r"the item frame, column item_id: id 3 is in the log but not there, among its 2 rows"),
        (ITEMS.with_columns(item_id=pl.Series([1, 1, 3])), r"id 1 is there more than once"),
        (
            ITEMS.with_columns(embedding=pl.lit([1.0, 2.0, 3.0])),
            r"column embedding: those of queries have 2 numbers and those of items 3",
        ),
    ],
)
def test_refusals_of_embeddings(items, message) -> None:
    with pytest.raises(DataError, match=message):
        start.from_embeddings(QUERIES, items, NAMES)
