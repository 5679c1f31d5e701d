"""The table's own arithmetic."""

import numpy as np
import pytest

from tandemrank.experiments.table import over_runs


def test_the_interval_over_few_runs_is_students() -> None:
    """Three runs: t = 4.303 at two degrees of freedom, not 1.96; more runs of the same spread say more."""
    found = over_runs(np.array([0.50, 0.52, 0.56]))
    mean, deviation = 1.58 / 3, np.sqrt(((0.50 - 1.58 / 3) ** 2 + (0.52 - 1.58 / 3) ** 2 + (0.56 - 1.58 / 3) ** 2) / 2)
    half = 4.302653 * deviation / np.sqrt(3)
    assert (found.mean, found.low, found.high) == pytest.approx((mean, mean - half, mean + half))
    assert found.n == 3
    two = over_runs(np.array([0.0, 1.0]))
    assert two.high - two.mean == pytest.approx(12.706205 * np.sqrt(0.5) / np.sqrt(2))
