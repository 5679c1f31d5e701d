"""Sums and the first lists of a log from one reading of it."""

import numpy as np
import polars as pl
import pytest

from malformed import long_columns, wide_columns
from same import assert_same
from tandemrank._base.ids import Vocabulary
from tandemrank.logs import counting, reading, sources
from tandemrank.logs.impressions import Impressions


def log(n: int = 300) -> pl.DataFrame:
    """Lists of one to four items whose ids come in no order."""
    rng = np.random.default_rng(0)
    items = [rng.permutation(np.arange(90, 60, -1))[: 1 + i % 4].tolist() for i in range(n)]
    return pl.DataFrame(
        {
            "query_id": rng.integers(0, 20, n)[::-1] * 7,
            "items": items,
            "clicks": [rng.integers(0, 2, len(x)).tolist() for x in items],
        }
    )


def outside(lists: Impressions, vocabulary: Vocabulary) -> list[tuple[int, list[int], list[int]]]:
    """Lists in outside ids, without their padding."""
    query, item = vocabulary.query_ids.to_list(), vocabulary.item_ids.to_list()
    return [
        (query[q], [item[d] for d in row if d >= 0], clicks[: (row >= 0).sum()].tolist())
        for q, row, clicks in zip(lists.query, lists.items, lists.clicks, strict=True)
    ]


@pytest.mark.parametrize("batch", [7, 1000])
@pytest.mark.parametrize("limit", [0, 1, 100, 10_000])
def test_one_reading_gives_the_sums_and_the_first_lists(batch, limit, monkeypatch):
    frame = log()
    read, opened = sources._opened, []
    monkeypatch.setattr(sources, "_opened", lambda source: opened.append(1) or read(source))
    found = reading.read_parts(frame, (0.3, 0.2), lists=limit, seed=5, batch=batch)
    parts, first = found.train + found.held_out, found.first
    assert opened == [1]
    alone = reading.read_parts(frame, (0.3, 0.2), seed=5)
    for ours, expected in zip(parts, alone.train + alone.held_out, strict=True):
        assert_same(ours, expected)
    vocabulary = parts[0].vocabulary
    assert vocabulary.item_ids.is_sorted()
    assert outside(first, vocabulary) == [tuple(row) for row in frame[:limit].iter_rows()]
    if limit >= 300:
        assert_same(counting.from_impressions([first], vocabulary), reading.read(frame))


def test_a_given_vocabulary_stays():
    frame = log()
    whole = reading.read(frame).vocabulary
    larger = Vocabulary(whole.query_ids[::-1].append(pl.Series([-1])), whole.item_ids[::-1])
    found = reading.read_parts(frame, lists=50, vocabulary=larger)
    (sums,), first = found.train, found.first
    assert sums.vocabulary is larger
    assert outside(first, larger) == [tuple(row) for row in frame[:50].iter_rows()]
    own = reading.read_parts(frame, lists=50).first
    moved = own.in_vocabulary(whole, larger)
    assert np.array_equal(moved.items, first.items)
    assert np.array_equal(moved.query, first.query)


def test_an_item_is_at_its_rank():
    first = reading.read_parts(pl.DataFrame(long_columns()), lists=9).first
    assert first.items.tolist() == [[0, 1, -1], [1, -1, 0]]
    assert first.clicks.tolist() == [[0, 1, 0], [0, 0, 0]]
    first = reading.read_parts(pl.DataFrame(wide_columns()), lists=1).first
    assert first.items.tolist() == [[0, 1]]
