"""Two logs, bit by bit."""

import numpy as np


def assert_same(a, b):
    """The same bits in every column, and in the digits of sums that float64 has no room for."""
    sums = ("shown", "clicks", "logged", "impressions")
    columns = [
        (name, getattr(a, name), getattr(b, name)) for name in ("query", "item", "rank", "others", "anew", *sums)
    ]
    columns += [(f"exact {name}", a.exact.get(name), b.exact.get(name)) for name in sums]
    for name, x, y in columns:
        assert (x is None) == (y is None), name
        assert x is None or (np.asarray(x).dtype == np.asarray(y).dtype and np.array_equal(x, y)), name
    assert a.vocabulary.query_ids.to_list() == b.vocabulary.query_ids.to_list()
    assert a.vocabulary.item_ids.to_list() == b.vocabulary.item_ids.to_list()
    assert a.vocabulary.item_ids.dtype == b.vocabulary.item_ids.dtype
