"""The beliefs of a log as the scores of a stage (`policies.believed`)."""

import numpy as np
from numpy.typing import NDArray

from tandemrank.beliefs.belief import Beliefs
from tandemrank.policies.believed import Believed, Spread
from tandemrank.policies.memory import Memory, memory_from

REMEMBERED = 20_000_000  # shown pairs that a stage remembers at most, those that say most; one takes 8 bytes
LEAST = 1e-9  # of a chance, whose log-odds are taken


def ranker_of(beliefs: Beliefs) -> Believed:
    """The re-ranker: the log-odds of the expected relevance.  Shapes: queries [Q, F + 1], items [D, F + 1]."""
    x, y, level = beliefs.product()
    grades = beliefs.chosen.grades
    spread = Spread(
        grades.spread, beliefs.query_spread.astype(np.float32), beliefs.item_spread.astype(np.float32)
    )
    queries = np.column_stack([x, np.ones(len(x), np.float32)])
    return Believed(queries, np.column_stack([y, level]), spread, memory_of(beliefs))


def memory_of(beliefs: Beliefs) -> Memory:
    """The log-odds of what the showings of each pair say, of a bit those of its being relevant."""
    counts, (low, high) = beliefs.counts, (0.0, 1.0)
    if beliefs.chosen.grades.is_bit:
        low, high = beliefs.chosen.grades.R
    p = np.clip((beliefs.remembered[0] - low) / max(high - low, LEAST), LEAST, 1 - LEAST)
    value: NDArray[np.float32] = np.log(p / (1 - p)).astype(np.float32)
    return memory_from(counts.query, counts.item, value, counts.Q, counts.D).limited(REMEMBERED)
