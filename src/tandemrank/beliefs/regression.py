"""Regressions on features: vectors of queries and items that the log says little of, as their features suggest.

    y = x W + noise,      W = argmin |y - x W|^2 + strength |W|^2

The strength is chosen for each column of y by leaving one row out, W = 0 among the choices: columns that say nothing cost next
to nothing.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.cluster import ALONE, Group

Floats = NDArray[np.float64]

STRENGTHS = 10.0 ** np.arange(-1, 7)  # that leaving one out chooses from


@dataclass(frozen=True)
class Ridge:
    """Ridge regressions on the same rows x = U S V', without a constant.  Shapes: U [n, k]; S [k]; V [k, J]."""

    U: Floats
    S: Floats
    V: Floats

    @classmethod
    def of(cls, x: NDArray[np.floating]) -> "Ridge":
        """On these rows.  Shapes: x [n, J]."""
        return cls(*np.linalg.svd(np.asarray(x, np.float64), full_matrices=False))

    def weights(self, y: Floats) -> Floats:
        """W, each column as strong as leaving one row out says.  Shapes: y [n, F] -> [J, F]."""
        projected = self.U.T @ y
        best, found = np.square(y).sum(0), np.zeros((self.V.shape[1], y.shape[1]))
        for strength in STRENGTHS:
            shrunk = self.S**2 / (self.S**2 + strength)
            left = (y - self.U @ (shrunk[:, None] * projected)) / (1 - np.square(self.U) @ shrunk)[:, None]
            error = np.square(left).sum(0)
            better = error < best
            best[better] = error[better]
            weights = self.V.T @ ((self.S / (self.S**2 + strength))[:, None] * projected)
            found[:, better] = weights[:, better]
        return found


@dataclass(frozen=True)
class Regression:
    """Vectors by the numbers of features: constant + numbers W.  Shapes: W [J, F]; constant [F]."""

    W: Floats
    constant: Floats

    def at(self, numbers: NDArray[np.floating]) -> Floats:
        """Shapes: numbers [n, J] -> [n, F]."""
        return self.constant + np.asarray(numbers, np.float64) @ self.W


class Suggestion:
    """What features suggest of vectors, learned from the rows that the log knows: who has average features has the vector 0."""

    def __init__(
        self, numbers: NDArray[np.floating], rows: NDArray[np.integer] | NDArray[np.bool_], group: Group = ALONE
    ) -> None:
        """`group`: who has the other rows.  Shapes: numbers [n, J]; rows: the places of those that are known."""
        self.numbers, self.rows, self.group = np.asarray(numbers, np.float64), rows, group
        known = group.gather(self.numbers[rows])
        self.centre, spread = known.mean(0), known.std(0)
        self.scale = np.where(spread > 1e-6, spread, np.inf)  # what never varies says nothing
        self.ridge = Ridge.of((known - self.centre) / self.scale)

    def of(self, vectors: Floats) -> Regression:
        """The regression of these vectors.  Shapes: vectors [n, F]."""
        W = self.ridge.weights(self.group.gather(vectors[self.rows])) / self.scale[:, None]
        return Regression(W, -self.centre @ W)
