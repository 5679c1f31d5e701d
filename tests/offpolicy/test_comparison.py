"""Differences by how often a query came, by hand."""

import numpy as np
import pytest

from tandemrank.offpolicy.comparison import by_frequency
from tandemrank.offpolicy.estimators import Estimate


def test_groups_by_hand() -> None:
    n = np.array([1.0, 2.0, 0.0, 4.0, 5.0])  # of the part that values; the third query is not in it
    new = Estimate(np.array([1.0, 1.0, 0.0, 8.0, 5.0]), n)
    old = Estimate(np.array([2.0, 1.0, 0.0, 4.0, 5.0]), n)
    rare, often = by_frequency(new, old, np.array([1.0, 2.0, 2.0, 10.0, 40.0]))
    assert (rare.least, rare.most, rare.queries, rare.impressions) == (1, 2, 2, 3.0)
    assert (rare.new, rare.old, rare.difference) == pytest.approx((2 / 3, 1.0, -1 / 3))
    error = np.sqrt((-1 + 1 / 3) ** 2 + (0 + 2 / 3) ** 2) / 3  # residuals of the ratio: gap less its mean times n
    assert rare.interval == pytest.approx((-1 / 3 - 1.96 * error, -1 / 3 + 1.96 * error))
    assert (often.least, often.most, often.difference) == (10, None, pytest.approx(4 / 9))
