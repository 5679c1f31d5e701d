"""Logs of random rows, good and bad, for the property tests."""

import math

import polars as pl
from hypothesis import strategies as st

IDS = st.one_of(st.none(), st.integers(-3, 3))
NUMBERS = st.one_of(st.none(), st.sampled_from([0.0, 1.0, 0.5, -1.0, 2.0, math.nan, math.inf]))


def _of_lists(draw, items, right, wrong):
    """A number for each item; mostly, where wrong ones are allowed."""
    rows = []
    for row in items:
        good = st.lists(right, min_size=len(row or []), max_size=len(row or []))
        rows.append(draw(st.one_of(good, good, good, wrong) if wrong is not None else good))
    return rows


@st.composite
def wide_logs(draw):
    """Half of the logs are sound; of the others some rows are good and some are not."""
    n, sound = draw(st.integers(0, 12)), draw(st.booleans())
    good = st.lists(st.integers(0, 5), max_size=4, unique=True)
    items = [draw(good if sound else st.one_of(good, good, st.none(), st.lists(IDS, max_size=4))) for _ in range(n)]
    queries = [draw(st.integers(0, 3) if sound else st.one_of(st.integers(0, 3), IDS)) for _ in range(n)]
    wrong = None if sound else st.one_of(st.none(), st.lists(NUMBERS, max_size=4))
    clicks = _of_lists(draw, items, st.sampled_from([0.0, 1.0]), wrong)
    schema = {"query_id": pl.Int64, "items": pl.List(pl.Int64), "clicks": pl.List(pl.Float64)}
    log = pl.DataFrame({"query_id": queries, "items": items, "clicks": clicks}, schema=schema)
    if draw(st.booleans()):
        chances = _of_lists(draw, items, st.sampled_from([0.5, 0.25, 1.0, 0.01]), wrong)
        log = log.with_columns(propensities=pl.Series(chances, dtype=pl.List(pl.Float64)))
    if draw(st.booleans()):
        weights = st.sampled_from([1.0, 0.5, 2.0]) if sound else NUMBERS
        log = log.with_columns(weight=pl.Series([draw(weights) for _ in range(n)], dtype=pl.Float64))
    return log


@st.composite
def long_logs(draw):
    n = draw(st.integers(0, 12))
    columns = {
        "impression_id": sorted([draw(st.integers(0, 4)) for _ in range(n)]),
        "query_id": [draw(st.sampled_from([1, 1, 1, 2, None])) for _ in range(n)],
        "item_id": [draw(st.one_of(st.none(), st.integers(0, 20), st.integers(0, 20))) for _ in range(n)],
        "position": [draw(st.sampled_from([1, 2, 3, 4, 0, None])) for _ in range(n)],
        "click": [draw(st.sampled_from([0, 1, 0, 1, 0, 2, None])) for _ in range(n)],
    }
    log = pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.Int64))
    return draw(st.sampled_from([log, log[::-1], pl.concat([log, log])]))
