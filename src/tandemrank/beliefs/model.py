"""The interface of all reward models: what an examined item is worth to a query, and how sure that is.

R[q, d] is the chance that an examined item is clicked, P(C = 1 | d, q, k) = theta_k R[q, d] (paper: click-model). A model is
fitted to a `Feedback` by a function of its module, says mean and variance of R for any pair, and can be saved.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from tandemrank.errors import ConfigError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Belief:
    """What is believed of R for some pairs: its posterior mean and variance.  Shapes: [n] each."""

    mean: Floats
    variance: Floats


class RewardModel(ABC):
    """R of every pair of a vocabulary. Positions are those of the `Feedback` that the model was fitted to."""

    kind: ClassVar[str]

    @abstractmethod
    def at(self, q: NDArray[np.integer], d: NDArray[np.integer]) -> Belief:
        """Mean and variance of R.  Shapes: q, d [n] -> [n]."""

    def unseen(self, q: NDArray[np.integer], d: NDArray[np.integer]) -> Floats:
        """The mean of R of pairs as if they had never been shown.  Shapes: q, d [n] -> [n]."""
        return self.at(q, d).mean

    def unknown(self, q: NDArray[np.integer]) -> Floats:
        """The mean of R of an item that the log does not know, for some queries.  Shapes: q [B] -> [B]."""
        return self.matrix(q)[:, -1]

    @abstractmethod
    def matrix(self, q: NDArray[np.integer]) -> Floats:
        """The mean of R of every item for some queries; the last column is for items that the log does not know.

        Shapes: q [B] -> [B, D + 1].
        """

    def top(self, q: NDArray[np.integer], n: int) -> csr_matrix:
        """The mean of R of the items that promise most to some queries: about n of each, and all that they were shown.

        Of every item where n is as many, or where a model has no faster way.  Shapes: q [B] -> CSR [B, D].
        """
        R = self.matrix(q)[:, :-1]
        B, D = R.shape
        return csr_matrix((R.ravel(), np.tile(np.arange(D, dtype=np.int32), B), np.arange(B + 1) * D), shape=(B, D))

    def part(self, first: int, stop: int) -> "RewardModel":
        """The same model for some of the queries, which become the first ones."""
        raise ConfigError(f"a reward model of the kind {self.kind} cannot be cut into parts by queries.")

    def of_queries(self, base: NDArray[np.int64]) -> "RewardModel":
        """The same model of queries in other places, some of them more than once.  Shapes: base [n]."""
        return _Repeated(self, base)

    @abstractmethod
    def constants(self) -> dict[str, Any]:
        """Its plain numbers and words, as JSON takes them."""

    @abstractmethod
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its arrays: with the constants they are all of it."""


@dataclass(frozen=True)
class _Repeated(RewardModel):
    """A model of queries in other places.  Shapes: base [n]."""

    of: RewardModel
    base: NDArray[np.int64]

    def at(self, q: NDArray[np.integer], d: NDArray[np.integer]) -> Belief:
        return self.of.at(self.base[q], d)

    def unseen(self, q: NDArray[np.integer], d: NDArray[np.integer]) -> Floats:
        return self.of.unseen(self.base[q], d)

    def matrix(self, q: NDArray[np.integer]) -> Floats:
        return self.of.matrix(self.base[q])

    def top(self, q: NDArray[np.integer], n: int) -> csr_matrix:
        return self.of.top(self.base[q], n)

    def part(self, first: int, stop: int) -> "RewardModel":
        return _Repeated(self.of, self.base[first:stop])

    def constants(self) -> dict[str, Any]:
        return self.of.constants()

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {**self.of.arrays(), "base": self.base}
