"""Counts against plain loops over showings: kinds of evidence, their likelihoods, rows in any order, parts of a log."""

from collections.abc import Callable

import numpy as np
import pytest

from tandemrank.beliefs.counts import Counts
from tandemrank.errors import LogError

THETA = np.array([1.0, 0.5, 0.25])
R = np.array([0.02, 0.3, 0.9])


TIMES = 8


def showings(n: int = 400, seed: int = 0) -> tuple[np.ndarray, ...]:
    """query, item, rank, clicked, time of single showings."""
    rng = np.random.default_rng(seed)
    rank = rng.integers(0, 3, n)
    return (
        rng.integers(0, 6, n),
        rng.integers(0, 7, n),
        rank,
        rng.random(n) < 0.4 * THETA[rank],
        rng.integers(0, TIMES, n),
    )


def counts_of(query: np.ndarray, item: np.ndarray, rank: np.ndarray, clicked: np.ndarray, time: np.ndarray) -> Counts:
    return Counts.of_rows(
        query, item, THETA[rank], np.ones(len(query)), clicked.astype(float), impressions=np.bincount(query, minlength=6) / 3,
        D=7, time=time,
    )  # fmt: skip


def test_the_likelihood_of_every_pair_is_the_product_over_its_showings() -> None:
    log = showings()
    counts = counts_of(*log)
    L, best = counts.likelihood(R)
    for pair, (q, d) in enumerate(zip(counts.query, counts.item, strict=True)):
        expected = np.zeros(3)
        for query, item, rank, clicked, _ in zip(*log, strict=True):
            if (query, item) == (q, d):
                click = THETA[rank] * R
                expected += np.log(click if clicked else 1 - click)
        assert np.log(L[pair]) + best[pair] == pytest.approx(expected, abs=1e-5)


def test_pairs_of_one_kind_have_the_same_evidence_and_others_have_not() -> None:
    counts = counts_of(*showings(120))
    kind, examples = counts.kinds
    rows = [
        sorted((e, n, c) for p, e, n, c in zip(x.pair, x.examined, x.shown, x.clicks, strict=True) if p == pair)
        for x in (counts, examples)
        for pair in range(len(x.query))
    ]
    of_pairs, of_examples = rows[: len(kind)], rows[len(kind) :]
    assert len(examples.query) < len(kind)
    assert all(of_pairs[pair] == of_examples[k] for pair, k in enumerate(kind))
    assert len({str(x) for x in of_examples}) == len(of_examples)


def test_rows_in_any_order_and_cut_in_any_way_are_one_log() -> None:
    log = showings()
    order = np.random.default_rng(1).permutation(len(log[0]))
    expected, found = counts_of(*log), counts_of(*(x[order] for x in log))
    for name in ("query", "item", "pair", "examined", "shown", "clicks", "time"):
        assert np.array_equal(getattr(expected, name), getattr(found, name))
    assert (np.diff(expected.query * expected.D + expected.item) > 0).all()
    assert np.bincount(log[0] * 7 + log[1], log[3])[expected.query * 7 + expected.item] == pytest.approx(expected.C)


def test_some_pairs_keep_all_that_was_seen_of_them() -> None:
    counts = counts_of(*showings())
    kept = counts.query % 2 == 0
    some = counts.only(kept)
    for name in ("query", "item", "C", "n", "E"):
        assert np.array_equal(getattr(some, name), getattr(counts, name)[kept])
    assert np.array_equal(some.likelihood(R)[0], counts.likelihood(R)[0][kept])


def test_times_with_weights_count_by_them_and_pairs_without_any_are_gone() -> None:
    log = showings(60)
    weight = np.append(np.zeros(TIMES - 1), 0.5)
    late = counts_of(*log).weighted(weight)
    last = log[4] == TIMES - 1
    assert late.n.sum() == pytest.approx(0.5 * last.sum())
    assert len(late.query) == len(np.unique((log[0] * 7 + log[1])[last]))


def test_a_showing_that_nobody_examines_says_nothing() -> None:
    counts = Counts.of_rows(
        np.zeros(2, np.int64), np.arange(2), np.array([0.0, 0.5]), np.ones(2), np.zeros(2), impressions=np.ones(1), D=2
    )
    L, best = counts.likelihood(R)
    assert np.array_equal(L[0], np.ones(3, np.float32))
    assert best[0] == pytest.approx(0)
    assert (np.diff(L[1]) < 0).all()


def test_parts_of_a_log_are_its_times(feedback_of: Callable[..., object]) -> None:
    parts = [feedback_of([(0, 1, 0, 2.0, 1.0)], 2, 3), feedback_of([(0, 1, 0, 3.0, 0.0), (1, 2, 1, 1.0, 1.0)], 2, 3)]
    counts = Counts.of(parts, THETA)  # type: ignore[arg-type]
    assert np.array_equal(counts.time, [0, 1, 1])
    assert np.array_equal(counts.n, [5, 1])
    assert np.array_equal(counts.E, [5, 0.5])
    assert not Counts.of(parts[:1], THETA).time.any()  # type: ignore[arg-type]


def test_more_clicks_than_showings_are_refused() -> None:
    with pytest.raises(LogError, match="more clicks than showings"):
        Counts.of_rows(
            np.array([0]), np.array([0]), np.ones(1), np.ones(1), np.array([2.0]), impressions=np.ones(1), D=1
        )
