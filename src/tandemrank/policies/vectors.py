"""Vectors of queries and items: what a factorisation knows, for others to start from (`prior` takes them from a policy)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank.errors import InputError

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
                f"vectors must be [queries, F] and [items, F]; {self.queries.shape} and {self.items.shape} came."
            )
        if not (np.isfinite(self.queries).all() and np.isfinite(self.items).all()):
            raise InputError("vectors must be finite; some are not.")
