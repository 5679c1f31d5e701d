"""Pairs that start from the posterior: the same order, with memory, whatever the stages are."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from tandemrank._base.ids import Vocabulary
from tandemrank.logs import counting
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy.reward import posterior
from tandemrank.policies.memory import Memory, memory_from
from tandemrank.policies.prior import vectors_of
from tandemrank.policies.remembering import Remembering
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.informed import SHARPNESS, forgetting, informed, is_factorisation
from tandemrank.training.schedules import schedule_of

Q, D, K = 8, 12, 3
IDS = Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))
THETA = 1 / np.arange(1.0, K + 1)


def factorisation(seed: int, rank: int = 3) -> MatrixFactorisation:
    rng = np.random.default_rng(seed)
    return MatrixFactorisation(rng.normal(size=(Q, rank)), rng.normal(size=(D, rank)))


def pair(generator, ranker) -> TwoStagePolicy:
    return TwoStagePolicy(generator, ranker, 6, K, IDS)


@pytest.fixture(scope="module")
def known() -> posterior.Posterior:
    rng = np.random.default_rng(0)
    items = np.argsort(rng.random((300, D)), axis=1)[:, :K].astype(np.int32)
    part = Impressions(rng.integers(Q, size=300).astype(np.int32), items, (rng.random((300, K)) < 0.3).astype(np.uint8))
    return posterior.fit(counting.from_impressions([part], IDS), THETA)


def test_a_factorisation_becomes_the_posterior_in_both_stages(known) -> None:
    one = factorisation(1)
    found = informed(pair(one, one), known)
    q = np.arange(Q)
    flat = 1 / np.sqrt(1 + np.pi / 8 * known.item_spread)
    wanted = SHARPNESS * known.memory.add_to(known.log_odds(q), q) * flat / flat.mean()
    for scores in found.plain_scores(q):
        assert scores.numpy() == pytest.approx(wanted, rel=1e-4, abs=1e-4)
    assert is_factorisation(found)
    assert (found.K2, found.K) == (6, K)


def test_a_query_that_is_as_sure_as_the_mean_one_is_shown_items_in_the_order_of_their_expected_relevance(known) -> None:
    one, q = factorisation(1), np.arange(Q)
    uneven = replace(known, query_spread=np.ones(Q), item_spread=np.geomspace(0.1, 40, D))
    order = [
        np.argsort(-scores.numpy(), axis=1).tolist() for scores in informed(pair(one, one), uneven).plain_scores(q)
    ]
    expected = np.argsort(-uneven.matrix(q)[:, :D], axis=1).tolist()
    assert order == [expected, expected]
    assert expected != np.argsort(-uneven.memory.add_to(uneven.log_odds(q), q), axis=1).tolist()


def test_other_stages_keep_their_scores_and_remember_on_both(known) -> None:
    small, large = factorisation(1, 2), factorisation(2, 5)
    plain, found = pair(small, large), informed(pair(small, large), known)
    assert not is_factorisation(found)
    q = np.arange(Q)
    for before, after in zip(plain.plain_scores(q), found.plain_scores(q), strict=True):
        wanted = known.memory.add_to(before.numpy().astype(np.float64), q)
        assert after.numpy() == pytest.approx(wanted, rel=1e-5, abs=1e-5)


def test_what_was_remembered_of_earlier_logs_is_added_up(known) -> None:
    one = factorisation(1)
    earlier = memory_from(np.array([0, 3]), np.array([2, 7], np.int32), np.array([1.5, -2.0], np.float32), Q, D)
    old = Remembering(one, earlier)
    fresh, found = (informed(pair(stage, stage), known) for stage in (one, old))
    added = found.ranker.memory.at(np.array([0, 3, 1]), np.array([2, 7, 1]))
    before = fresh.ranker.memory.at(np.array([0, 3, 1]), np.array([2, 7, 1]))
    assert added - before == pytest.approx([1.5, -2.0, 0.0])
    both = earlier.plus(earlier)
    assert (both.item.tolist(), both.value.tolist()) == ([2, 7], [3.0, -4.0])
    assert earlier.plus(Memory(np.zeros(Q + 1, np.int64), earlier.item[:0], earlier.value[:0], D)).value.tolist() == [
        1.5,
        -2,
    ]


def test_a_memory_has_a_limit_and_keeps_what_says_most(known) -> None:
    one, small, large = factorisation(1), factorisation(1, 2), factorisation(2, 5)
    whole = informed(pair(one, one), known)
    few = forgetting(whole, 5)
    assert few.generator is few.ranker
    assert len(whole.ranker.memory.item) > len(few.ranker.memory.item) == 5
    assert sorted(np.abs(whole.ranker.memory.value))[-5:] == sorted(np.abs(few.ranker.memory.value))
    two = forgetting(informed(pair(small, large), known), 7)
    assert [len(stage.memory.item) for stage in (two.generator, two.ranker)] == [7, 7]
    assert forgetting(pair(small, large), 0).ranker is large


def test_vectors_are_found_by_ids_and_not_where_some_are_missing() -> None:
    one = factorisation(1)
    live = pair(one, Remembering(one, memory_from(*(np.zeros(0, t) for t in (np.int64, np.int32, np.float32)), Q, D)))
    turned = Vocabulary(IDS.query_ids.reverse(), IDS.item_ids.reverse())
    found = vectors_of(live, turned)
    assert found is not None
    assert np.array_equal(found.items, one.items.detach().numpy()[::-1])
    assert np.array_equal(found.queries, one.queries.detach().numpy()[::-1])
    assert vectors_of(live, replace(IDS, item_ids=pl.Series([*range(D), 99]))) is None
    assert vectors_of(None, IDS) is None


def test_on_top_of_the_posterior_phases_are_slow_and_as_short_as_asked() -> None:
    one = factorisation(1)
    for method in ("baseline", "independent", "joint"):
        plain = schedule_of(method, "tandem", one, one)
        refined = schedule_of(method, "tandem", one, one, refine=2)
        assert [phase.key for phase in plain] == [phase.key for phase in refined]
        assert all(phase.most_epochs == 2 for phase in refined)
        assert all(a.rate == pytest.approx(b.rate / 10) for a, b in zip(refined, plain, strict=True))
        assert all(phase.most_epochs == 0 for phase in schedule_of(method, "tandem", one, one, refine=0))
