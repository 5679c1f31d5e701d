"""How a policy that always shows its most likely lists spreads attention."""

import numpy as np
import polars as pl
import pytest

from tandemrank._base.ids import Vocabulary
from tandemrank.beliefs.model import Belief
from tandemrank.logs import counting, reading
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy.exposure import MostLikely, Races, exposure_on
from tandemrank.policies import candidates
from tandemrank.policies.scorers import GivenScores
from tandemrank.policies.two_stage import TwoStagePolicy

THETA, K2 = [1.0, 0.5], 3
OLD, NEW = [[0.3, -0.5, 1.0, 0.1], [1.5, 0.2, -0.3, 0.4]], [[-0.8, 1.0, 0.7, 0.4], [-0.2, 0.6, 0.1, -1.0]]


def pair(scores: list[list[float]], items: list[int]) -> TwoStagePolicy:
    stage = GivenScores(np.array(scores))
    return TwoStagePolicy(stage, stage, K2, 2, Vocabulary(pl.Series([0, 1]), pl.Series(items)))


def test_most_likely_lists_share_the_candidates_of_the_pair_that_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where items are many no race is run for them; nothing else of their exposures changes."""
    policy = TwoStagePolicy(
        GivenScores(np.array(OLD)), GivenScores(np.array(NEW)), 3, 2, Vocabulary(pl.Series([0, 1]), pl.Series(range(4)))
    )
    items = np.array([[0, 1], [2, 3], [1, 0], [3, 1]], np.int32)
    shown = Impressions(np.array([0, 1, 1, 1], np.int32), items, np.zeros((4, 2), np.uint8))
    log = counting.from_impressions([shown], policy.vocabulary)
    monkeypatch.setattr(candidates, "LARGE_EXPOSURE", 0)
    drawn = exposure_on(policy, log, np.array(THETA), Races(4000, 1), HalfOfAll())
    alone = exposure_on(MostLikely(policy), log, np.array(THETA), Races(1, 1), HalfOfAll())
    monkeypatch.setattr(candidates, "shown", None)
    both = exposure_on(MostLikely(policy), log, np.array(THETA), Races(1, 1), HalfOfAll(), drawn=drawn)
    assert both.random is drawn.random
    for name in ("rho", "total", "supported", "direct", "error"):
        np.testing.assert_array_equal(getattr(both, name), getattr(alone, name))


def test_most_likely_lists_have_the_examination_of_their_ranks() -> None:
    """By a log that showed every item at every rank alike: the value of fixed lists is what their items are worth."""
    scores = np.array([[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]])
    vocabulary = Vocabulary(pl.Series([0, 1]), pl.Series(range(4)))
    pair = TwoStagePolicy(GivenScores(-scores), GivenScores(scores), 3, 2, vocabulary)  # the best item is no candidate
    log = reading.read(pl.DataFrame({"query_id": [0, 1], "items": [[0, 1, 2, 3]] * 2, "clicks": [[0, 0, 0, 0]] * 2}))
    found = exposure_on(MostLikely(pair), log, np.array([1.0, 0.5, 0.2, 0.1]), Races(1, 0))
    assert found.rho.tolist() == [0, 1.0, 0.5, 0, 0, 0.5, 1.0, 0]
    assert found.total.tolist() == found.supported.tolist() == [1.5, 1.5]


class HalfOfAll:
    """A reward model: every item is worth a number of its own."""

    def matrix(self, q: np.ndarray) -> np.ndarray:
        return np.tile([0.1, 0.5, 0.9, 0.3, 0.0], (len(q), 1))

    def at(self, q: np.ndarray, d: np.ndarray) -> Belief:
        return Belief(self.matrix(q)[np.arange(len(q)), d], np.zeros(len(q)))


@pytest.mark.parametrize("candidates_of", [3, 4])
def test_a_re_ranker_is_asked_about_candidates_only(candidates_of: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exposures of logged pairs, support and direct values are those of the pair that scores everything."""
    items = np.array([[0, 1], [2, 3], [1, 0], [3, 1]], np.int32)
    shown = Impressions(np.array([0, 1, 1, 1], np.int32), items, np.zeros((4, 2), np.uint8))
    ids = Vocabulary(pl.Series([0, 1]), pl.Series(range(4)))
    log = counting.from_impressions([shown], ids)
    policy = TwoStagePolicy(GivenScores(np.array(OLD)), GivenScores(np.array(NEW)), candidates_of, 2, ids)

    def found():
        return exposure_on(policy, log, np.array(THETA), Races(4000, 1), HalfOfAll())

    dense = found()
    monkeypatch.setattr(candidates, "LARGE_EXPOSURE", 0)
    monkeypatch.setattr(policy.ranker, "forward" if candidates_of == 3 else "unused", None, raising=False)
    for name, expected in vars(dense).items():
        assert np.allclose(getattr(found(), name), expected, atol=0.1 if name == "random" else 0.02), name
