"""Small logs as sums, for the reward models."""

from collections.abc import Callable, Sequence

import numpy as np
import polars as pl
import pytest

from tandemrank._base.ids import Vocabulary
from tandemrank.logs.feedback import Feedback

Row = tuple[int, int, int, float, float]


@pytest.fixture
def feedback_of() -> Callable[[Sequence[Row], int, int], Feedback]:
    """Sums of (query, item, rank, shown, clicks), in any order."""

    def make(rows: Sequence[Row], Q: int, D: int) -> Feedback:
        columns = zip(*sorted(rows), strict=True) if rows else [()] * 5
        query, item, rank, shown, clicks = (np.array(x) for x in columns)
        impressions = np.bincount(query.astype(np.int64), shown, Q) if rows else np.zeros(Q)
        return Feedback(
            Vocabulary(pl.Series(range(Q)), pl.Series(range(D))),
            query.astype(np.int32), item.astype(np.int32), rank.astype(np.int16),
            shown.astype(np.float64), clicks.astype(np.float64), None, impressions,
        )  # fmt: skip

    return make
