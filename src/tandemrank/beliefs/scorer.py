"""The beliefs of a log as the scores of a stage.

    score(q, d) = SHARPNESS (offset_d + beta_q + x_q . y_d + l[q, d]) f_d / mean(f)                          (`posterior`)

with f_d = 1 / sqrt(1 + pi v_d / 8), the order of the expected relevance: what is not known of a query's vector, v_d of the
log-odds of item d, takes from what is likely more than from what is not. The spread of the mean query stands for that of each,
so that it is a factorisation with one column for the offsets, and a memory (`policies.memory`).
"""

from dataclasses import replace

import numpy as np

from tandemrank.beliefs.posterior import Posterior
from tandemrank.beliefs.space import FLAT
from tandemrank.policies.memory import Remembering
from tandemrank.policies.scorers import MatrixFactorisation, Scorer

# The best lists do not depend on it, drawn ones come near them: docs/learning.md. Drawn by the log-odds alone, an item would be
# shown as often as it is relevant.
SHARPNESS = 4.0
REMEMBERED = 20_000_000  # shown pairs that a stage remembers at most, those that say most; one takes 8 bytes


def scorer_of(posterior: Posterior, earlier: Scorer | None = None) -> Remembering:
    """The beliefs as a scorer: their log-odds, flattened and sharpened; what `earlier` remembers of other logs stays.

    Shapes: queries [Q, F + 2], items [D, F + 2].
    """
    flat = (1 / np.sqrt(1 + FLAT * posterior.item_spread)).astype(np.float32)
    # The mean item keeps its scale: what is not known of items in general is no reason to draw at random.
    flat /= flat.mean()
    queries = SHARPNESS * np.column_stack([posterior.queries, np.ones(len(posterior.queries), np.float32)])
    items = np.column_stack([posterior.items, posterior.offset]) * flat[:, None]
    memory = posterior.memory
    memory = replace(memory, value=np.float32(SHARPNESS) * memory.value * flat[memory.item])
    if isinstance(earlier, Remembering):
        memory = earlier.memory.plus(memory)
    return Remembering(MatrixFactorisation(queries, items), memory.limited(REMEMBERED))
