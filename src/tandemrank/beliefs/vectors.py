"""Vectors of queries and items: what a factorisation knows, as the prior of a belief."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tandemrank._base.ids import Vocabulary, positions_of, same_ids
from tandemrank.errors import InputError
from tandemrank.policies.memory import base_of
from tandemrank.policies.two_stage import TwoStagePolicy

Floats32 = NDArray[np.float32]


@dataclass(frozen=True)
class Vectors:
    """The vectors of a policy whose scores are their products.  Shapes: queries [Q, F]; items [D, F]."""

    queries: Floats32
    items: Floats32

    def __post_init__(self) -> None:
        """Refuses what does not fit, and what is not finite."""
        if self.queries.ndim != 2 or self.items.ndim != 2 or self.queries.shape[1] != self.items.shape[1]:
            raise InputError(
                f"vectors must be [queries, F] and [items, F]; got {self.queries.shape} and {self.items.shape}."
            )
        if not (np.isfinite(self.queries).all() and np.isfinite(self.items).all()):
            raise InputError("vectors must be finite; some are not.")


def vectors_of(policy: TwoStagePolicy | None, vocabulary: Vocabulary) -> Vectors | None:
    """The vectors of a policy's re-ranker in a vocabulary.

    None where it has none, or does not know every id.  Shapes: -> [Q, F], [D, F].
    """
    if policy is None:
        return None
    scorer = base_of(policy.ranker)
    found = [getattr(scorer, name, None) for name in ("queries", "items")]
    if not all(isinstance(x, Tensor) for x in found):
        return None
    queries, items = (x.detach().numpy() for x in found if isinstance(x, Tensor))
    own = policy.vocabulary
    if not same_ids(own, vocabulary):
        q = positions_of(own.query_ids, vocabulary.query_ids, "query", missing="mark")
        d = positions_of(own.item_ids, vocabulary.item_ids, "item", missing="mark")
        if min(q.min(initial=0), d.min(initial=0)) < 0:
            return None
        queries, items = queries[q], items[d]
    return Vectors(queries, items)
