"""Items in cells of neighbours, for draws that do not look at every item (`lazy_race`).

About sqrt(D) cells, by k-means in two steps: sqrt(sqrt(D)) coarse cells, each then split by its size; a centre is placed by
64 items of its surroundings, at equal distances. Nothing is random. Cells stay cells wherever their items move: what has to
follow is what is known of them, the mean of a cell's items and their variances per coordinate, and the covariance of what is
left within cells, which all of them share.
"""

import math

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tandemrank.errors import ConfigError, PolicyError
from tandemrank.gradients._bridge import chunks, compiling, row_major
from tandemrank.gradients.products import Cells, Tally

# Standard deviations from the mean of a cell's scores to its cap, at least; and more where the proposals of a query, and the
# items of open cells, cost no more than so many: where scores are far from normal few are proposed, and caps too low.
Z, EFFORT = 3.25, 100_000.0
_SHARED = 8192  # items that tell the covariance within cells


def partition(items: Tensor, *, cells: int | None = None, z: float | None = None) -> Cells:
    """The items in about so many cells, by default sqrt(D), and what is known of them now. `z`: where caps are; by default as
    high as `EFFORT` allows.  Shapes: items [D, F]."""
    from tandemrank.gradients import _cells_kernel as kernel

    Y = _checked(items)
    wanted = math.isqrt(len(Y)) if cells is None else cells
    if not 1 <= wanted <= len(Y):
        raise ConfigError(f"expected 1 to {len(Y):,} cells, one per item at most; {wanted} came.")
    own = np.empty(len(Y), np.int32)
    with compiling():
        count = kernel.partition(Y, wanted, chunks(len(Y)), own)
        members, start = kernel.grouped(own, count)
    return _known(Y, members, start, Z if z is None else z, EFFORT if z is None else 0.0, Tally())


def follow(cells: Cells, items: Tensor) -> Cells:
    """The same cells, with what is known of them where the items are now.  Shapes: items [D, F]."""
    return _known(_checked(items), cells.members, cells.start, cells.z, cells.effort, cells.tally)


def _checked(items: Tensor) -> NDArray[np.float32]:
    Y = row_major(items)
    if Y.ndim != 2 or not Y.size:
        raise PolicyError(f"cells need items [D, F], at least one; got {Y.shape}.")
    return Y


def _known(
    Y: NDArray[np.float32],
    members: NDArray[np.int32],
    start: NDArray[np.int64],
    z: float,
    effort: float,
    tally: Tally,
) -> Cells:
    from tandemrank.gradients import _cells_kernel as kernel

    if not z >= 0 or not math.isfinite(z):
        raise ConfigError(f"z must be a number of standard deviations, at least 0; got {z}.")
    shape = len(start) - 1, Y.shape[1]
    mean, variance = np.empty(shape, np.float32), np.empty(shape, np.float32)
    with compiling():
        kernel.moments(Y, members, start, chunks(shape[0]), mean, variance)
        if not np.isfinite(variance).all():
            d = int(np.nan_to_num(np.abs(Y).max(1), nan=np.inf).argmax())
            raise PolicyError(
                f"the vector of item {d} is not finite, or too large; check the model's weights and the learning rate."
            )
        covariance = kernel.shared_covariance(Y, members, start, mean, min(_SHARED, len(Y)))
    return Cells(members, start, mean, variance, covariance, z, effort, tally)
