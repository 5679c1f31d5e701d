"""Items in cells of neighbours, for draws that do not look at every item (`capped_race`).

About sqrt(D) cells, by k-means in two steps: sqrt(sqrt(D)) coarse cells, each then split by its size; a centre is placed by
64 items of its surroundings, at equal distances. Nothing is random. A partition is one of items, wherever they move: what has to
follow them is what is known of a cell, the mean of its items and their variances per coordinate, and the covariance of what is left
within cells, which all of them share.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tandemrank.errors import ConfigError, PolicyError
from tandemrank.gradients._bridge import chunks, compiling, row_major

Z = 3.5  # standard deviations from the mean of a cell's scores to its cap (docs/scale.md)
_SHARED = 8192  # items that tell the covariance within cells


@dataclass
class Tally:
    """What the draws through cells came to: arrivals, and arrivals that caps kept away, as far as proposals met them."""

    arrived: float = 0.0
    lost: float = 0.0
    proposed: float = 0.0
    opened: float = 0.0
    queries: int = 0

    def add(
        self, filled: NDArray[np.int64], lost: NDArray[np.float64], proposed: NDArray[np.int64], opened: NDArray[np.int64]
    ) -> None:
        """The draws of a batch.  Shapes: filled, lost [B, U]; proposed, opened [B]."""
        self.arrived += float(filled.sum())
        self.lost += float(lost.sum())
        self.proposed += float(proposed.sum())
        self.opened += float(opened.sum())
        self.queries += len(filled)

    @property
    def lost_share(self) -> float:
        """Of all arrivals that should have been; NaN before any draw."""
        due = self.arrived + self.lost
        return self.lost / due if due > 0 else math.nan


@dataclass(frozen=True)
class Cells:
    """Documents in cells, and what is known of each.

    Shapes: members [D], the documents cell by cell; start [cells + 1]; mean, variance [cells, F]; covariance [F, F].
    """

    members: NDArray[np.int32]
    start: NDArray[np.int64]
    mean: NDArray[np.float32]
    variance: NDArray[np.float32]
    covariance: NDArray[np.float32]
    z: float = Z
    tally: Tally = field(default_factory=Tally)

    @property
    def shape(self) -> tuple[int, int]:
        """(D, F)."""
        return len(self.members), self.mean.shape[1]

    @property
    def count(self) -> int:
        return len(self.start) - 1


def partition(items: Tensor, *, cells: int | None = None, z: float = Z) -> Cells:
    """The items in about so many cells, by default sqrt(D), and what is known of them now.  Shapes: items [D, F]."""
    from tandemrank.gradients import _cells_kernel as kernel

    Y = _checked(items)
    wanted = math.isqrt(len(Y)) if cells is None else cells
    if not 1 <= wanted <= len(Y):
        raise ConfigError(f"expected 1 to {len(Y):,} cells, one per item at most; {wanted} came.")
    own = np.empty(len(Y), np.int32)
    with compiling():
        count = kernel.partition(Y, wanted, chunks(len(Y)), own)
        members, start = kernel.grouped(own, count)
    return _known(Y, members, start, z, Tally())


def follow(cells: Cells, items: Tensor) -> Cells:
    """The same cells, with what is known of them where the items are now.  Shapes: items [D, F]."""
    return _known(_checked(items), cells.members, cells.start, cells.z, cells.tally)


def _checked(items: Tensor) -> NDArray[np.float32]:
    Y = row_major(items)
    if Y.ndim != 2 or not Y.size:
        raise PolicyError(f"cells need items [D, F], at least one; got {Y.shape}.")
    if not math.isfinite(float(np.add.reduce(Y.sum(1, dtype=np.float64)))):
        d = int(np.flatnonzero(~np.isfinite(Y).all(1))[0])
        raise PolicyError(f"the vector of item {d} is not finite; check the model's weights and the learning rate.")
    return Y


def _known(Y: NDArray[np.float32], members: NDArray[np.int32], start: NDArray[np.int64], z: float, tally: Tally) -> Cells:
    from tandemrank.gradients import _cells_kernel as kernel

    if not z >= 0 or not math.isfinite(z):
        raise ConfigError(f"z must be a number of standard deviations, at least 0; got {z}.")
    shape = len(start) - 1, Y.shape[1]
    mean, variance = np.empty(shape, np.float32), np.empty(shape, np.float32)
    with compiling():
        kernel.moments(Y, members, start, chunks(shape[0]), mean, variance)
        covariance = kernel.shared_covariance(Y, members, start, mean, min(_SHARED, len(Y)))
    return Cells(members, start, mean, variance, covariance, z, tally)
