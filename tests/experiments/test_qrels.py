"""Policies by graded judgements: NDCG by hand, what a policy does not know, and runs as policies."""

import numpy as np
import polars as pl
import pytest

from tandemrank._base.ids import Vocabulary
from tandemrank.errors import DataError, PolicyError
from tandemrank.experiments.qrels import judge_by_qrels
from tandemrank.logs.counting import from_impressions
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy.exposure import exposure_on
from tandemrank.policies.outside import policy_from_run
from tandemrank.policies.scorers import GivenScores
from tandemrank.policies.two_stage import TwoStagePolicy

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
    assert exposure_on(run, log, THETA, samples=5, seed=0).rho == pytest.approx([0.0, 0.5, 1.0], abs=1e-6)
    assert run.recommend().rows() == [(7, [30, 20]), (8, [20])]
    texts = Vocabulary(pl.Series(["7", "8"]), pl.Series(["10", "20", "30"]))
    assert policy_from_run(tmp_path / "a.run", 2, texts).vocabulary is texts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "got nothing"), ("7 Q0 1 1 nan x\n", "got nothing, or others"), ("7 Q0 1 1 2\n", "line 1 has 5 words"),
        ("7 Q0 1 first 2 x\n", "invalid literal"), ("7 Q0 1 1 2 x\n7 Q0 1 2 1 x\n", "one row for each query and item"),
    ],
)  # fmt: skip
def test_what_is_no_run_is_refused(text, message, tmp_path) -> None:
    with pytest.raises(PolicyError, match=message):
        policy_from_run(written(tmp_path, "a.run", text), 2)


def test_judgements_that_say_nothing_are_refused(tmp_path) -> None:
    run = policy_from_run(written(tmp_path, "a.run", RUN), 2)
    for text, message in (("7 0 10 0\n", "some judgement above 0"), ("1 0 10 1\n", "queries that every policy knows")):
        with pytest.raises(DataError, match=message):
            judge_by_qrels({"run": run}, written(tmp_path, "a.qrels", text), THETA)
