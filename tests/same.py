"""Two logs, bit by bit."""

import numpy as np


def assert_same(a, b):
    """The same bits in every column."""
    for name in ("query", "item", "rank", "shown", "clicks", "logged", "impressions"):
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None), name
        assert x is None or (x.dtype == y.dtype and np.array_equal(x, y)), name
    assert a.vocabulary.query_ids.to_list() == b.vocabulary.query_ids.to_list()
    assert a.vocabulary.item_ids.to_list() == b.vocabulary.item_ids.to_list()
    assert a.vocabulary.item_ids.dtype == b.vocabulary.item_ids.dtype
