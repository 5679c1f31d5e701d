"""`Estimate`: a value as a ratio of sums over queries, with its error. Arrays alone."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A ratio of sums over queries, sum_q numerator[q] / sum_q denominator[q]: every estimator here is one.

    Shapes: numerator, denominator [Q].
    """

    numerator: Floats
    denominator: Floats

    @property
    def value(self) -> float:
        """The estimate itself; NaN where the log says nothing at all."""
        total = float(self.denominator.sum())
        return float(self.numerator.sum()) / total if total > 0 else float("nan")

    @property
    def standard_error(self) -> float:
        """By the residuals of the ratio (delta method), queries independent."""
        return float(np.sqrt(np.square(self.influence).sum()))

    @property
    def influence(self) -> Floats:
        """What each query adds to the error of the ratio, to first order.  Shapes: -> [Q]."""
        residual: Floats = self.numerator - self.value * self.denominator
        total = float(self.denominator.sum())
        return residual / total if total > 0 else np.full_like(residual, np.nan)

    def interval(self, z: float = 1.96) -> tuple[float, float]:
        """The normal interval value +- z standard errors."""
        return self.value - z * self.standard_error, self.value + z * self.standard_error
