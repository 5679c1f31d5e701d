"""NDCG against ir-measures, recall and utility against plain arithmetic, intervals."""

import ir_measures
import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_matrix

import enumeration
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import DataError, InputError
from tandemrank.experiments import evaluation
from tandemrank.experiments.datasets import Task
from tandemrank.experiments.evaluation import judge_by_qrels
from tandemrank.logs.counting import from_impressions
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy.exposure import Races, exposure_on
from tandemrank.policies.outside import policy_from_run
from tandemrank.policies.scorers import GivenScores
from tandemrank.policies.two_stage import TwoStagePolicy


def test_ndcg_agrees_with_ir_measures() -> None:
    rng = np.random.default_rng(0)
    relevance = csr_matrix((rng.random((30, 40)) < 0.2).astype(np.float32))
    lists = np.stack([rng.permutation(40)[:10] for _ in range(30)]).astype(np.int32)
    found = evaluation.ndcg(lists, np.arange(30), relevance)
    qrels = [ir_measures.Qrel(str(q), str(d), 1) for q, d in zip(*relevance.nonzero(), strict=True)]
    run = [ir_measures.ScoredDoc(str(q), str(d), -k) for q in range(30) for k, d in enumerate(lists[q])]
    wanted = {m.query_id: m.value for m in ir_measures.iter_calc([ir_measures.nDCG @ 10], qrels, run)}
    for q in range(30):
        assert found[q] == pytest.approx(wanted[str(q)], abs=1e-6)


def test_ndcg_of_graded_relevance_and_empty_places() -> None:
    relevance = csr_matrix(np.array([[0.5, 1.0, 0.0], [0.0, 0.0, 0.0]], np.float32))
    second = 1 / np.log2(3)
    found = evaluation.ndcg(np.array([[0, -1], [1, 2]], np.int32), np.array([0, 1]), relevance)
    assert found[0] == pytest.approx(0.5 / (1.0 + 0.5 * second))
    assert np.isnan(found[1])


def test_ndcg_of_new_items_by_hand() -> None:
    """Both stages like 0 > 1 > 2 > 3; relevant are 0, 2, 3, and 0 is clicked: shown are 1 and 2, ideal would be 2 and 3."""
    ids = Vocabulary(pl.Series([0, 1, 2]), pl.Series(range(4)))
    scores = GivenScores([[3.0, 2.0, 1.0, 0.0]] * 3)
    policy = TwoStagePolicy(scores, scores, 2, 2, ids)
    relevance = csr_matrix(np.array([[1, 0, 1, 1], [1, 0, 0, 0], [0, 0.5, 1, 0]], np.float32))
    clicked = csr_matrix(np.array([[2, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]))
    second = 1 / np.log2(3)
    found = evaluation.evaluate(policy, relevance, [1.0, 0.5], clicked=clicked)
    assert found.ndcg_new[0] == pytest.approx(second / (1 + second))
    assert np.isnan(found.ndcg_new[1])  # nothing new is relevant
    assert found.ndcg_new[2] == pytest.approx(
        0.5 * second / (1 + 0.5 * second)
    )  # nothing is clicked: that of all items
    assert found.ndcg_new[2] == found.ndcg[2]
    assert found.figures().ndcg_new.n == 2
    assert np.isnan(evaluation.evaluate(policy, relevance, [1.0, 0.5]).figures().ndcg_new.mean)  # no log


def one_query(relevance, q=None) -> evaluation.Evaluation:
    policy = TwoStagePolicy(
        GivenScores([[3.0, 2.0, 1.0, 0.0]]), GivenScores([[0.0, 1.0, 2.0, 3.0]]), 2, 1,
        Vocabulary(pl.Series([0]), pl.Series(range(4))),
    )  # fmt: skip
    return evaluation.evaluate(policy, relevance, [1.0], q)


def test_how_the_relevance_is_stored_makes_no_difference() -> None:
    """Zeros that are stored, entries in two parts, a matrix by columns: recall is one half in each."""
    plain = csr_matrix(np.array([[1.0, 0.0, 0.0, 1.0]], np.float32))
    zeros = csr_matrix((np.array([1, 0, 1], np.float32), np.array([0, 1, 3]), np.array([0, 3])), shape=(1, 4))
    twice = csr_matrix((np.array([0.5, 0.5, 1], np.float32), np.array([0, 0, 3]), np.array([0, 3])), shape=(1, 4))
    for relevance in (plain, zeros, twice, plain.tocsc()):
        found = one_query(relevance)
        assert found.recall_at_K2.tolist() == [0.5]
        assert found.ndcg.tolist() == one_query(plain).ndcg.tolist()
    assert zeros.nnz == 3  # what came is left as it was


def test_no_query_gives_no_figures() -> None:
    found = one_query(csr_matrix(np.ones((1, 4), np.float32)), [])
    assert all(len(values) == 0 for values in vars(found).values())
    with pytest.raises(DataError, match="no query has a relevant document"):
        found.figures()


def test_2stage_true_utility_and_recall() -> None:
    s, r, theta, K2 = [0.5, -1.0, 1.5, 0.0, 0.3], [0.0, 1.0, -0.5, 0.8, 0.1], [1.0, 0.5], 3
    vocabulary = Vocabulary(pl.Series([0]), pl.Series(range(5)))
    policy = TwoStagePolicy(GivenScores([s]), GivenScores([r]), K2, 2, vocabulary)
    R = [0.0, 1.0, 1.0, 0.0, 1.0]
    found = evaluation.evaluate(policy, csr_matrix([R]), theta, samples=4000)
    assert found.utility[0] == pytest.approx(enumeration.utility(s, r, R, theta, K2)[0], rel=0.02)
    assert found.recall_at_K2[0] == pytest.approx(2 / 3)  # candidates 2, 0, 4; relevant 1, 2, 4
    second = 1 / np.log2(3)
    assert found.ndcg[0] == pytest.approx(1 / (1 + second))  # shown: 4, 0
    exact = sum(
        p * sum(R[d] / np.log2(k + 2) for k, d in enumerate(y)) / (1 + second)
        for y, p, _, _ in enumeration.two_stage(s, r, theta, K2)
    )
    assert found.ndcg_expected[0] == pytest.approx(exact, abs=5 * 0.4 / 4000**0.5)
    other = evaluation.evaluate(policy, csr_matrix([[0.0, 0.0, 1.0, 1.0, 0.0]]), theta, samples=1)
    assert other.generator_alone[0] == pytest.approx(1 / (1 + second))  # 2 is first
    assert other.ranker_alone[0] == pytest.approx(second / (1 + second))  # 3 is second


def test_means_and_paired_differences() -> None:
    a, b = np.array([1.0, 2.0, 3.0, np.nan]), np.array([0.5, 1.5, 2.5, np.nan])
    found = evaluation.mean(a)
    assert (found.mean, found.n) == (2.0, 3)
    assert found.high - found.mean == pytest.approx(1.96 / 3**0.5)
    gap = evaluation.difference(a, b)
    assert (gap.mean, gap.low, gap.high) == (0.5, 0.5, 0.5)
    paired = evaluation.difference(np.array([1.0, 2.0, 3.0]), np.array([3.0, 1.0, 2.0]))  # -2, 1, 1: each with its own
    assert (paired.mean, paired.high) == (0.0, pytest.approx(1.96))
    with pytest.raises(DataError, match="no query has a relevant document"):
        evaluation.mean(np.array([np.nan]))


def test_queries_are_told_of_while_they_are_evaluated(monkeypatch) -> None:
    """Batches of two of three queries, by two policies after one another."""
    monkeypatch.setattr("tandemrank.policies.two_stage.BATCH", 2)
    ids, heard = Vocabulary(pl.Series([0, 1, 2]), pl.Series(range(4))), []
    scorer, relevance = GivenScores([[3.0, 2.0, 1.0, 0.0]] * 3), csr_matrix(np.eye(3, 4, dtype=np.float32))
    pair, task = TwoStagePolicy(scorer, scorer, 3, 2, ids), Task("three", relevance, relevance, ids)
    truth = evaluation.Truth(relevance, np.array([1.0, 0.5]), np.arange(3))
    evaluation.judge({"a": pair, "b": pair}, task, truth, samples=2, progress=heard.append)
    assert heard == [2, 3, 5, 6]


def test_the_interval_over_few_runs_is_students() -> None:
    """Three runs: t = 4.303 at two degrees of freedom, not 1.96; more runs of the same spread say more."""
    found = evaluation.over_runs(np.array([0.50, 0.52, 0.56]))
    mean, deviation = 1.58 / 3, np.sqrt(((0.50 - 1.58 / 3) ** 2 + (0.52 - 1.58 / 3) ** 2 + (0.56 - 1.58 / 3) ** 2) / 2)
    half = 4.302653 * deviation / np.sqrt(3)
    assert (found.mean, found.low, found.high) == pytest.approx((mean, mean - half, mean + half))
    assert found.n == 3
    two = evaluation.over_runs(np.array([0.0, 1.0]))
    assert two.high - two.mean == pytest.approx(12.706205 * np.sqrt(0.5) / np.sqrt(2))


THETA = np.array([1.0, 0.5])
RUN = "7 Q0 30 1 2.5 x\n7 Q0 10 2 0.5 x\n7 Q0 20 3 1.5 x\n8 Q0 20 1 9 x\n"


def written(folder, name: str, text: str):
    (folder / name).write_text(text)
    return folder / name


def test_ndcg_of_a_run_and_of_a_policy_is_what_it_is_by_hand(tmp_path) -> None:
    run = policy_from_run(written(tmp_path, "a.run", RUN), 2)
    ids = Vocabulary(pl.Series([7, 8]), pl.Series([10, 20]))
    scores = GivenScores(np.array([[100.0, 0.0], [0.0, 100.0]]))
    saved = TwoStagePolicy(scores, scores, 2, 2, ids)
    judged = written(tmp_path, "a.qrels", "7 0 30 2\n7 0 10 1\n7 0 99 1\n8 0 10 2\n9 0 10 2\nx 0 y 1\n")
    found = judge_by_qrels({"run": run, "saved": saved}, judged, THETA)
    log3 = 1 / np.log2(3)
    ideal = 1 + 0.5 * log3
    # The run shows 30, 20 to 7 and 20 to 8; the policy 10, 20 to 7 and 20, 10 to 8. Grades over the highest, 2.
    assert found.policies[0].ndcg.mean == pytest.approx((1 / ideal + 0) / 2)
    assert found.policies[1].ndcg.mean == pytest.approx((0.5 / ideal + log3) / 2)
    assert found.policies[0].utility.mean == pytest.approx((1 + 0) / 2, abs=1e-6)
    assert found.policies[1].utility.mean == pytest.approx((0.5 + 0.5) / 2, abs=1e-6)
    assert found.policies[1].recall_at_K2.mean == pytest.approx((1 / 3 + 1) / 2)
    assert found.notes == ("2 of 4 judged queries are not known to every policy, and are left out",)
    assert found.differences[0].mean == pytest.approx(found.policies[0].ndcg.mean - found.policies[1].ndcg.mean)


def test_a_run_always_shows_its_list(tmp_path) -> None:
    run = policy_from_run(written(tmp_path, "a.run", RUN), 2)
    shown = Impressions(np.zeros(1, np.int32), np.array([[0, 1, 2]], np.int32), np.zeros((1, 3), np.uint8))
    log = from_impressions([shown], Vocabulary(pl.Series([7]), pl.Series([10, 20, 30])))
    assert exposure_on(run, log, THETA, Races(5, 0)).rho == pytest.approx([0.0, 0.5, 1.0], abs=1e-6)
    assert run.recommend().rows() == [(7, [30, 20]), (8, [20])]
    texts = Vocabulary(pl.Series(["7", "8"]), pl.Series(["10", "20", "30"]))
    assert policy_from_run(tmp_path / "a.run", 2, texts).vocabulary is texts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got nothing"), ("7 Q0 1 1 nan x\n", "got nothing, or others"), ("7 Q0 1 1 2\n", "line 1 has 5 words"),
        ("7 Q0 1 first 2 x\n", "invalid literal"), ("7 Q0 1 1 2 x\n7 Q0 1 2 1 x\n", "expected one row for each"),
    ],
)  # fmt: skip
def test_what_is_no_run_is_refused(text, message, tmp_path) -> None:
    with pytest.raises(InputError, match=message):
        policy_from_run(written(tmp_path, "a.run", text), 2)


def test_judgements_that_say_nothing_are_refused(tmp_path) -> None:
    run = policy_from_run(written(tmp_path, "a.run", RUN), 2)
    for text, message in (("7 0 10 0\n", "some judgement above 0"), ("1 0 10 1\n", "queries that every policy knows")):
        with pytest.raises(DataError, match=message):
            judge_by_qrels({"run": run}, written(tmp_path, "a.qrels", text), THETA)
