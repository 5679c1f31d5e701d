"""Two logs, bit by bit."""

from operator import attrgetter

import numpy as np


def assert_same(a, b):
    """The same bits in every column, and in the digits of sums that float64 has no room for."""
    sums = ("shown", "clicks", "logged", "impressions")
    for name in ("query", "item", "rank", "others", "anew", *sums, *(f"exact.{x}" for x in sums)):
        x, y = (attrgetter(name)(log) for log in (a, b))
        assert (x is None) == (y is None), name
        assert x is None or (np.asarray(x).dtype == np.asarray(y).dtype and np.array_equal(x, y)), name
    assert a.vocabulary.query_ids.to_list() == b.vocabulary.query_ids.to_list()
    assert a.vocabulary.item_ids.to_list() == b.vocabulary.item_ids.to_list()
    assert a.vocabulary.item_ids.dtype == b.vocabulary.item_ids.dtype
