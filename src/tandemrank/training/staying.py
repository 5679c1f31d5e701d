"""Pairs that stay by what the log can speak about: what a query was shown comes first, the other items after it.

Where lists hardly vary, or where a trained pair would mostly show what the logger did not, nothing in the log contradicts a
model that thinks highly of items that were never shown, and the logger's own choice, which left them out, is all that is known
of them. Such a pair keeps the logger's choice of items and orders them by what the log says; its value can then be known.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tandemrank.offpolicy.values import Value
from tandemrank.offpolicy.verdicts import is_outside
from tandemrank.policies.memory import Memory, memory_from
from tandemrank.policies.remembering import Remembering
from tandemrank.policies.scorers import Scorer
from tandemrank.policies.stacked import Stacked
from tandemrank.policies.towers import TwoTowers
from tandemrank.policies.two_stage import TwoStagePolicy

# Added to the scores of what a query was shown: more than scores differ by (an item that was shown often and never clicked is
# far below the others), and yet they keep their order in single precision.
AHEAD = 1000.0


def staying(pair: TwoStagePolicy, shown: NDArray[np.int64], *, most: int) -> TwoStagePolicy | None:
    """The pair with what each query was shown ahead of the rest, in both stages; None where a stage takes no memory, or where
    more than `most` pairs would have to be remembered.  Shapes: shown [n], the pairs q D + d, each once, in order."""
    stages, Q, D = (pair.generator, pair.ranker), len(pair.vocabulary.query_ids), len(pair.vocabulary.item_ids)
    if any(isinstance(stage, TwoTowers | Stacked) for stage in stages) or len(shown) > most:
        return None
    ahead = memory_from(shown // D, (shown % D).astype(np.int32), np.full(len(shown), AHEAD, np.float32), Q, D)
    generator = _remembering(pair.generator, ahead)
    ranker = generator if pair.ranker is pair.generator else _remembering(pair.ranker, ahead)
    return replace(pair, generator=generator, ranker=ranker)


def _remembering(stage: Scorer, memory: Memory) -> Remembering:
    if isinstance(stage, Remembering):
        return Remembering(stage.base, stage.memory.plus(memory))
    return Remembering(stage, memory)


def strays(value: Value) -> bool:
    """Whether the log cannot speak about a pair, for it shows too much that the logger did not."""
    return value.diagnostics is not None and is_outside(value.diagnostics)
