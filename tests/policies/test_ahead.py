"""A scorer that looks ahead."""

import numpy as np
import polars as pl
import pytest
import torch

from tandemrank._base.ids import Vocabulary
from tandemrank.errors import PolicyError
from tandemrank.policies import two_stage
from tandemrank.policies.ahead import LEAST, Ahead, Foresight
from tandemrank.policies.memory import Memory, no_memory
from tandemrank.policies.scorers import GivenScores
from tandemrank.policies.two_stage import TwoStagePolicy

SCORES = np.random.default_rng(0).normal(0, 2, (2, 4)).astype(np.float32)
PAIRS = Memory(np.array([0, 1, 2]), np.array([3, 0], np.int32), np.array([2.5, -9.0], np.float32), 4)
FORESIGHT = Foresight.of(np.array([0.5, 1.5]), np.array([1.0, 0.9]), np.array([0.2, 1.0, 0.4, 0.0]), PAIRS)
SCALE = np.array([1.0, 3.0])
EVERY = torch.arange(4).expand(2, -1)


def ahead() -> Ahead:
    return Ahead(GivenScores(SCORES), FORESIGHT, SCALE)


def test_what_a_click_is_worth_by_hand() -> None:
    wanted = [[0.7, 1.5, 0.9, 3.0], [-6.6, 2.4, 1.86, 1.5]]
    np.testing.assert_allclose(FORESIGHT.matrix(np.arange(2)), wanted)
    q, d = np.divmod(np.arange(8), 4)
    np.testing.assert_allclose(FORESIGHT.at(q, d), np.ravel(wanted))
    np.testing.assert_allclose(FORESIGHT.highest, [3.0, 2.4])


def test_scores_are_the_log_odds_of_relevance_times_worth() -> None:
    q = torch.arange(2)
    found = ahead()(q).detach().numpy()
    R = 1 / (1 + np.exp(-SCORES / SCALE[:, None]))
    share = R * np.maximum(FORESIGHT.matrix(np.arange(2)), LEAST) / FORESIGHT.highest[:, None]
    np.testing.assert_allclose(found, SCALE[:, None] * np.log(share / (1 - share)), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(ahead().score(q, EVERY).detach().numpy(), found)


def test_where_all_clicks_lead_to_the_same_the_scores_are_those_of_the_base() -> None:
    same = Foresight.of(np.array([0.5, 1.5]), np.ones(2), np.full(4, 2.0), no_memory(2, 4))
    base = GivenScores(np.array([[0.0, 50.0, -80.0, 1.0], [-np.inf, 3.0, 2.0, 1.0]]))
    torch.testing.assert_close(Ahead(base, same, SCALE)(torch.arange(2)), base(torch.arange(2)), rtol=0, atol=0)


def test_huge_and_missing_scores_stay_what_they_are() -> None:
    base = GivenScores(np.array([[-np.inf, 300.0, -300.0, 0.0]] * 2))
    found = Ahead(base, FORESIGHT, SCALE)(torch.arange(2))
    assert (found[:, 0] == -torch.inf).all()
    assert bool(torch.isfinite(found[:, 1:]).all())


def test_it_is_saved_and_loaded_and_refused_when_damaged(tmp_path) -> None:
    ids = Vocabulary(pl.Series(["a", "b"]), pl.Series([1, 2, 3, 4]))
    policy = TwoStagePolicy(GivenScores(SCORES), ahead(), 3, 2, ids)
    again = two_stage.load(policy.save(tmp_path / "policy"))
    for one, other in zip(policy.scores([0, 1]), again.scores([0, 1]), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    broken = ahead()
    broken.scale[0] = 0
    with pytest.raises(PolicyError, match="above 0"):
        broken.check()


def test_states_that_nobody_has_seen_lead_to_what_the_average_one_does() -> None:
    class Average(GivenScores):
        def strangers(self, features, ids):
            return GivenScores(np.tile(SCORES.mean(0), (len(ids.query_ids), 1)))

        def more_items(self, features, ids):
            return GivenScores(np.column_stack([SCORES, SCORES.mean(1)]))

        def joined(self, other, ids):
            return GivenScores(np.vstack([SCORES, SCORES.mean(0)]))

    found = Ahead(Average(SCORES), FORESIGHT, SCALE)
    ids = Vocabulary(pl.Series(["c"]), pl.Series([1, 2, 3, 4]))
    new = found.strangers(None, ids)
    assert new.foresight.start == pytest.approx([1.0])
    both = found.joined(new, ids)
    torch.testing.assert_close(both(torch.arange(2)), found(torch.arange(2)))
    torch.testing.assert_close(both(torch.tensor([2])), new(torch.tensor([0])))
    larger = found.more_items(None, Vocabulary(pl.Series(["a", "b"]), pl.Series([1, 2, 3, 4, 5])))
    torch.testing.assert_close(larger(torch.arange(2))[:, :4], found(torch.arange(2)))
    assert larger.foresight.after[4] == pytest.approx(0.4)
