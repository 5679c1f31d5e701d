"""Shown lists and their clicks, in inside positions."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Impressions:
    """Shown lists and their clicks, in inside positions; -1 pads a short list.

    Shapes: query [n]; items, clicks [n, K].
    """

    query: NDArray[np.int32]
    items: NDArray[np.int32]
    clicks: NDArray[np.uint8]
