"""Features as numbers, as the posterior on features takes them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Tables:
    """Features as numbers, categories as columns of 0 and 1; None for a side without any.  Shapes: [Q, U]; [D, Z]."""

    queries: Floats | None = None
    items: Floats | None = None
