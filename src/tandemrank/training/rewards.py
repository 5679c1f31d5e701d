"""A reward in place of clicks, for `learn`: what a click on each item is worth by what trains, and what values, in detail."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.ids import Vocabulary
from tandemrank.beliefs.worth import item_worth
from tandemrank.logs.counting import Split
from tandemrank.logs.details import Details, read_details
from tandemrank.logs.sources import Source

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rewards:
    """What a click on each item is worth, and the part of the log that values.  Shapes: worth [D]."""

    name: str
    worth: Floats
    evaluation: Details


def read_rewards(
    log: Source, name: str, split: Split, vocabulary: Vocabulary, numbers: NDArray[np.floating]
) -> Rewards:
    """Of the same parts of a log as its clicks. `numbers`: of the items' features.  Shapes: numbers [D, J]."""

    def trains(impressions: NDArray[np.int64]) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = split.part(impressions) < split.train
        return found

    train = read_details(log, reward=name, vocabulary=vocabulary, chosen=trains)
    rest = read_details(log, reward=name, vocabulary=vocabulary, chosen=lambda n: ~trains(n))
    rows, v = train.rows, train.reward
    assert v is not None
    gained, clicks, squares = (
        np.bincount(rows.item, x * rows.clicks, rows.D).astype(np.float64) for x in (v, np.ones_like(v), v * v)
    )
    return Rewards(name, item_worth(gained, clicks, squares, numbers), rest)
