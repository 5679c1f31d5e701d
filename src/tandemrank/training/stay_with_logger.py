"""Policies that keep what each query was shown: those items come first, the others after them.

Where lists hardly vary, or where a learned policy would mostly show what the logger did not, nothing in the log contradicts a
model that thinks highly of items that were never shown, and the logger's own choice, which left them out, is all that is known
of them. Such a policy keeps the logger's choice of items and orders them by what the log says; its value can then be known.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tandemrank.beliefs.scorer import REMEMBERED
from tandemrank.offpolicy.values import Value
from tandemrank.offpolicy.verdicts import is_outside
from tandemrank.policies.memory import memory_from, remembering
from tandemrank.policies.towers import TwoTowers
from tandemrank.policies.two_stage import TwoStagePolicy

# Added to the scores of what a query was shown: more than scores differ by (an item that was shown often and never clicked is
# far below the others), and yet they keep their order in single precision.
AHEAD = 1000.0


def staying(policy: TwoStagePolicy, shown: NDArray[np.int64]) -> TwoStagePolicy | None:
    """The policy with what each query was shown ahead of the rest, in both stages; None where a stage takes no memory, or where
    too many pairs would have to be remembered.  Shapes: shown [n], the pairs q D + d, each once, in order."""
    stages = (policy.generator, policy.ranker)
    Q, D = len(policy.vocabulary.query_ids), len(policy.vocabulary.item_ids)
    if any(isinstance(stage, TwoTowers) for stage in stages) or len(shown) > REMEMBERED:
        return None
    ahead = memory_from(shown // D, (shown % D).astype(np.int32), np.full(len(shown), AHEAD, np.float32), Q, D)
    generator = remembering(policy.generator, ahead)
    ranker = generator if policy.ranker is policy.generator else remembering(policy.ranker, ahead)
    return replace(policy, generator=generator, ranker=ranker)


def far_from_log(value: Value) -> bool:
    """Whether the log cannot speak about a policy, because it shows too much that the logger did not."""
    return value.diagnostics is not None and is_outside(value.diagnostics)
