"""Policies that keep what each query was shown: drawn lists, most likely ones, and where too little was shown."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from tandemrank._base.ids import Vocabulary
from tandemrank.logs.counting import from_impressions
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy.diagnostics import Diagnostics
from tandemrank.offpolicy.verdicts import is_outside
from tandemrank.policies.memory import Memory, Remembering
from tandemrank.policies.scorers import GivenScores, MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training import valuing
from tandemrank.training.parts import Parts
from tandemrank.training.valuing import staying

Q, D = 3, 8
WORDS = Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))


def shown_to_each() -> np.ndarray:
    """The first query was shown items 0 to 3, the second 4 and 5, the third nothing."""
    return np.array([0, 1, 2, 3, D + 4, D + 5])


def test_a_query_stays_by_what_trains_or_if_it_came_only_there_by_what_values() -> None:
    def part(query: list[int], items: list[list[int]]) -> Feedback:
        lists = np.array(items, np.int32).reshape(len(query), 2)
        return from_impressions([Impressions(np.array(query, np.int32), lists, np.ones_like(lists, np.uint8))], WORDS)

    train = part([0, 0, 0], [[0, 1], [1, 3], [2, 0]])
    evaluation = part([0, 1], [[6, 7], [5, 4]])
    first = Impressions(np.zeros(0, np.int32), np.zeros((0, 2), np.int32), np.zeros((0, 2), np.uint8))
    assert Parts(train, evaluation, first).shown.tolist() == shown_to_each().tolist()


def a_pair() -> TwoStagePolicy:
    """Both stages like the last items best, by 200 units."""
    queries, items = np.ones((Q, 1), np.float32), np.linspace(0, 200, D, dtype=np.float32)[:, None]
    scorer = MatrixFactorisation(queries, items)
    return TwoStagePolicy(scorer, scorer, 5, 3, WORDS)


@pytest.mark.parametrize("remembers", [False, True])
def test_what_a_query_was_shown_comes_first_and_in_the_order_of_the_pair(remembers: bool) -> None:
    pair = a_pair()
    if remembers:  # item 0 is remembered as better than all
        memory = Memory(np.array([0, 1, 1, 1]), np.zeros(1, np.int32), np.array([500], np.float32), D)
        scorer = Remembering(pair.generator, memory)
        pair = replace(pair, generator=scorer, ranker=scorer)
    found = staying(pair, shown_to_each())
    assert found is not None
    assert found.generator is found.ranker  # one model for both stays one
    wanted = [[0, 3, 2] if remembers else [3, 2, 1], [5, 4, 7], [7, 6, 5]]  # too few were shown: the best of the others
    assert found.most_likely(np.arange(Q)).tolist() == wanted
    drawn = found.sample(np.repeat(np.arange(Q), 50), np.arange(150, dtype=np.uint64))
    assert set(drawn[:50].ravel()) <= {0, 1, 2, 3}
    assert (np.sort(drawn[50:100, :2], axis=1) == [4, 5]).all()
    assert (drawn >= 0).all()


def test_what_cannot_remember_does_not_stay(monkeypatch) -> None:
    monkeypatch.setattr(valuing, "REMEMBERED", 5)
    assert staying(a_pair(), shown_to_each()) is None  # six pairs were shown
    monkeypatch.setattr(valuing, "REMEMBERED", 6)
    other = GivenScores(np.zeros((Q, D), np.float32))
    kept = staying(replace(a_pair(), ranker=other), shown_to_each())
    assert kept is not None
    assert isinstance(kept.ranker, Remembering)
    assert kept.ranker.base is other


@pytest.mark.parametrize(("balance", "error", "outside"), [(0.75, 0.01, True), (0.85, 0.01, False), (0.75, 0.1, False)])
def test_a_pair_is_outside_where_much_of_its_exposure_is_surely_missing(
    balance: float, error: float, outside: bool
) -> None:
    rests = Diagnostics(90, 1000.0, 800.0, 2000.0, 1234.0, 9.0, 0.1, 0.0, 0.1, 0.1, 0.0, balance, error)
    assert is_outside(rests) == outside
