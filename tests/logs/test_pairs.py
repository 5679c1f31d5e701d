"""What was clicked or shown, in the log's own positions and in others."""

import numpy as np
import polars as pl
import pytest

from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError
from tandemrank.logs.counting import from_impressions
from tandemrank.logs.impressions import Impressions
from tandemrank.logs.pairs import pairs_of

IDS = Vocabulary(pl.Series(["a", "b"]), pl.Series([10, 20, 30]))
SHOWN = Impressions(
    np.array([0, 0, 1], np.int32), np.array([[0, 1], [1, 0], [2, -1]], np.int32),
    np.array([[1, 0], [0, 1], [0, 0]], np.uint8),
)  # fmt: skip
LOG = from_impressions([SHOWN], IDS)


def test_pairs_that_were_clicked_and_shown() -> None:
    assert pairs_of(LOG, "clicked").toarray().tolist() == [[1, 0, 0], [0, 0, 0]]  # at two ranks, once
    assert pairs_of(LOG, "shown").toarray().tolist() == [[1, 1, 0], [0, 0, 1]]


def test_in_the_positions_of_another_vocabulary() -> None:
    """b is not known there, nor is item 20."""
    other = Vocabulary(pl.Series(["x", "a"]), pl.Series([30, 5, 10]))
    assert pairs_of(LOG, "shown", other).toarray().tolist() == [[0, 0, 0], [0, 0, 1]]


def test_anything_else_is_refused() -> None:
    with pytest.raises(ConfigError, match="exclude takes clicked or shown; got 'seen'"):
        pairs_of(LOG, "seen")
