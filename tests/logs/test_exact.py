"""Exact sums: those of fractions over the whole range that a log may have, in any order and any grouping."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from same import assert_same
from tandemrank.errors import LogError
from tandemrank.logs import exact, reading
from tandemrank.logs.sums import merge

WEIGHTS = st.one_of(st.floats(exact.SMALLEST_WEIGHT, 1e6), st.sampled_from([exact.SMALLEST_WEIGHT, 1.4e-6, 1.0, 1e6]))
CHANCES = st.one_of(st.floats(exact.SMALLEST_PROPENSITY, 1.0), st.sampled_from([exact.SMALLEST_PROPENSITY, 1e-12, 1.0]))
ROWS = st.lists(st.tuples(st.integers(0, 2), WEIGHTS, CHANCES, st.integers(0, 1)), min_size=1, max_size=30)


def fraction(limbs: np.ndarray) -> list[Fraction]:
    """The numbers that limbs, or counts, stand for."""
    if limbs.ndim == 1:
        return [Fraction(int(x)) for x in limbs]
    units = [Fraction(2) ** (exact.BITS * j + exact.LOWEST) for j in range(len(limbs))]
    return [sum(int(x) * unit for x, unit in zip(column, units, strict=True)) for column in limbs.T]


def one_item(weight, propensity, click=0, query=0) -> pl.DataFrame:
    """Impressions of one item each; numbers are repeated for all of them."""
    n = max(np.size(x) for x in (weight, propensity, click, query))
    columns = {"query_id": query, "clicks": click, "propensities": propensity, "weight": weight}
    frame = pl.DataFrame({name: np.broadcast_to(x, n) for name, x in columns.items()})
    return frame.with_columns(pl.col("clicks", "propensities").reshape((-1, 1)).arr.to_list(), items=pl.lit([7]))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(2.0**-20, 1e18), max_size=40), st.lists(st.integers(0, 40), max_size=4))
def test_limbs_are_the_fractions(x, cuts) -> None:
    x = np.array(x)
    limbs = exact.split(x, exact.INVERSE_LIMBS)
    assert fraction(limbs) == [Fraction(v) for v in x]
    assert (limbs[:-1] < 2**exact.BITS).all()
    assert exact.value(limbs) == pytest.approx(x, rel=2.0**-52, abs=0)
    starts = np.unique([0, *(c for c in cuts if c < len(x))])[: len(x)]
    groups = np.split(x, starts[1:])
    assert fraction(exact.sums_of_runs(x, starts, 4)) == [sum(map(Fraction, g)) for g in groups][: len(starts)]
    index = np.repeat(np.arange(len(groups)), [len(g) for g in groups])
    assert (
        fraction(exact.sums_by(index, x, 50, 4))[: len(starts)]
        == [sum(map(Fraction, g)) for g in groups][: len(starts)]
    )


def test_many_rows_by_index_are_exact(monkeypatch) -> None:
    monkeypatch.setattr(exact, "_AT_ONCE", 7)
    x = np.random.default_rng(0).uniform(1e-6, 1e6, 100)
    assert fraction(exact.sums_by(np.zeros(100, int), x, 1, 3)) == [sum(map(Fraction, x))]


def test_a_million_limbs_and_more_are_summed_exactly() -> None:
    """All digits of the lowest limb: a float64 is full after 2^20 of them."""
    x = np.full(2**20 + 3, 2.0**-20 - 2.0**-72)
    assert exact.split(x[:1], 3)[0] == 2**exact.BITS - 1
    for found in (exact.sums_by(np.zeros(len(x), int), x, 1, 3), exact.sums_of_runs(x, np.zeros(1, np.int64), 3)):
        assert fraction(found) == [len(x) * Fraction(x[0])]


def test_sums_of_a_column_that_was_changed_have_room_for_large_weights() -> None:
    log = reading.read(one_item(np.array([0.3, 0.4]), np.array([0.3, 0.7]), 1, np.array([0, 1])))
    changed = replace(log, shown=np.array([1e9 + 0.5, 0.5]), impressions=np.array([1e9 + 0.5, 0.5]))
    twice = merge([changed, changed])
    assert twice.shown.tolist() == twice.impressions.tolist() == [2e9 + 1, 1.0]
    plain = reading.read(one_item(1.0, np.array([0.3, 0.7]), 1, np.array([0, 1])).drop("weight"))
    both = merge([changed, plain])
    assert both.shown.tolist() == both.impressions.tolist() == [1e9 + 1.5, 1.5]


@settings(max_examples=100, deadline=None)
@given(ROWS, st.randoms(use_true_random=False))
def test_a_log_over_the_whole_range_is_summed_exactly_in_any_order(rows, random) -> None:
    def read(some):
        query, weight, propensity, click = (np.array(x) for x in zip(*some, strict=True))
        return reading.read(one_item(weight, propensity, click, query))

    whole = read(rows)
    for position, q in enumerate(sorted({row[0] for row in rows})):
        own = [row for row in rows if row[0] == q]
        shown, clicks = sum(Fraction(w) for _, w, _, _ in own), sum(Fraction(w) * c for _, w, _, c in own)
        inverse = sum(Fraction(w / p) for _, w, p, _ in own)
        assert fraction(whole.sums("shown"))[position] == fraction(whole.sums("impressions"))[position] == shown
        assert fraction(whole.sums("clicks"))[position] == clicks
        assert fraction(whole.exact["logged"])[position] == inverse
        assert whole.shown[position] == pytest.approx(float(shown), rel=1e-15)
        assert whole.propensity[position] == pytest.approx(float(shown / inverse), rel=1e-15)
    shuffled = random.sample(rows, len(rows))
    cut = random.randint(0, len(rows))
    parts = [read(part) for part in (shuffled[:cut], shuffled[cut:]) if part]
    assert_same(merge(parts), whole)
    assert_same(read(shuffled), whole)


@pytest.mark.parametrize("n", [134, 5000])
def test_large_weights_do_not_overflow(n) -> None:
    found = reading.read(one_item(np.full(n, 1e6), 1.0))
    assert found.shown[0] == found.impressions[0] == n * 1e6
    assert found.propensity[0] == 1.0


@pytest.mark.parametrize("weight", [1.4e-6, 1.0, 1e6])
@pytest.mark.parametrize("propensity", [1e-12, 1.7e-12, 0.3])
def test_small_weights_and_propensities_are_not_rounded(weight, propensity) -> None:
    found = reading.read(one_item(np.full(3, weight), propensity, 1))
    assert found.shown[0] == found.clicks[0] == float(3 * Fraction(weight))
    assert found.propensity[0] == pytest.approx(propensity, rel=1e-15)


@pytest.mark.parametrize(
    ("weight", "propensity", "message"),
    [
        (9e-7, 0.5, "row 1, column weight: expected weights from a millionth to a million; got 9e-07"),
        (1.1e6, 0.5, "row 1, column weight: expected weights from a millionth to a million; got 1100000.0"),
        (1.0, 9e-13, "row 1, column propensities: expected propensities from 1e-12 to 1; got 9e-13"),
        (1.0, 5e-324, "row 1, column propensities: expected propensities from 1e-12 to 1; got 5e-324"),
    ],
)
def test_what_is_outside_the_range_is_refused(weight, propensity, message) -> None:
    with pytest.raises(LogError, match=message):
        reading.read(one_item(np.array([1.0, weight]), np.array([1.0, propensity])))


def test_the_ends_of_the_range_may_be_of_float32() -> None:
    frame = one_item(np.array([1e-6, 1e6], np.float32), np.array([1e-12, 1.0], np.float32))
    found = reading.read(frame)
    assert found.impressions == pytest.approx([1e6 + 1e-6])


def test_a_changed_column_counts_and_not_the_sums_it_had() -> None:
    log = reading.read(one_item(np.array([0.1, 0.2]), np.array([0.3, 0.7]), 1, np.array([0, 1])))
    assert "clicks" in log.exact
    without = replace(log, clicks=np.zeros(2))
    assert merge([without, without]).clicks.tolist() == [0, 0]
    first = replace(
        log, **{name: getattr(log, name)[:1] for name in ("query", "item", "rank", "shown", "clicks", "logged")}
    )
    assert merge([first, log]).shown.tolist() == [0.1 + 0.1, 0.2]


def test_logs_with_and_without_weights_are_one_log() -> None:
    weighted, plain = one_item(np.array([0.1, 1e6, 3.0]), 0.3), one_item(np.ones(4), 0.7)
    whole = reading.read(pl.concat([weighted, plain]))
    assert_same(merge([reading.read(plain.drop("weight")), reading.read(weighted)]), whole)
    assert fraction(whole.exact["shown"]) == [Fraction(0.1) + 1_000_007]


def test_clicks_beside_a_click_are_counted_with_and_without_weights_and_survive_merging() -> None:
    """By hand, list by list: for every click on an item at a rank, how many other items of its list were clicked."""
    rng = np.random.default_rng(3)
    query, items = rng.integers(4, size=60), np.argsort(rng.random((60, 5)), axis=1)[:, :3]
    clicks = (rng.random((60, 3)) < 0.5).astype(int)
    wanted: dict[tuple[int, int, int], int] = {}
    for q, row, clicked in zip(query.tolist(), items.tolist(), clicks.tolist(), strict=True):
        for k, (d, c) in enumerate(zip(row, clicked, strict=True)):
            wanted[q, d, k] = wanted.get((q, d, k), 0) + c * (sum(clicked) - 1)
    frame = pl.DataFrame({"query_id": query, "items": items.tolist(), "clicks": clicks.tolist()})
    for extra in ({}, {"weight": pl.lit(0.5)}, {"propensities": pl.lit([0.5, 0.25, 0.1])}):
        whole = reading.read(frame.with_columns(**extra))
        halves = [reading.read(frame.with_columns(**extra)[rows]) for rows in (slice(0, 20), slice(20, 60))]
        for found in (whole, merge(halves)):
            ids = [found.vocabulary.query_ids.to_numpy()[found.query], found.vocabulary.item_ids.to_numpy()[found.item]]
            rows = zip(*(x.tolist() for x in (*ids, found.rank)), strict=True)
            assert found.others is not None
            assert dict(zip(rows, found.others.tolist(), strict=True)) == wanted
