"""The memory of a policy: one number per pair of a query and an item that was shown, sparse, added to the scores.

`beliefs.memory` makes it from a log: what the pair's own showings say about its relevance. The scorer that has one
is `Remembering`: whatever scores by a model of few numbers per query forgets single pairs, the memory holds them exactly.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.sparse import entries_of_rows
from tandemrank.errors import ConfigError, InputError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Memory:
    """What is remembered, the pairs of query q at first[q] .. first[q + 1], their items in order.

    Shapes: first [Q + 1]; item, value [n].
    """

    first: NDArray[np.int64]
    item: NDArray[np.int32]
    value: NDArray[np.float32]
    D: int

    @property
    def Q(self) -> int:
        """The number of queries, with a memory or without."""
        return len(self.first) - 1

    @property
    def query(self) -> NDArray[np.int64]:
        """The query of every pair.  Shapes: -> [n]."""
        return np.repeat(np.arange(self.Q), np.diff(self.first))

    def at(self, q: NDArray[np.integer], d: NDArray[np.integer]) -> Floats:
        """What is remembered of any pairs, 0 where one was never shown.  Shapes: q, d [n] -> [n]."""
        if not len(self.item):
            return np.zeros(len(q))
        key, wanted = self.query * self.D + self.item, np.asarray(q, np.int64) * self.D + d
        place = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
        return np.where(key[place] == wanted, self.value[place], 0.0).astype(np.float64)

    def add_to(self, scores: NDArray[np.floating], q: NDArray[np.integer]) -> NDArray[np.floating]:
        """Adds what is remembered to the scores of all items for some queries, in place, and returns them.

        Shapes: scores [B, D]; q [B] -> [B, D].
        """
        if scores.shape != (len(q), self.D):
            raise InputError(f"expected scores of shape {(len(q), self.D)}, as the memory has; {scores.shape} came.")
        rows, entries = self.entries(np.asarray(q, np.int64))
        scores[rows, self.item[entries]] += self.value[entries]
        return scores

    def entries(self, q: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The row and the place of every pair of some queries.  Shapes: q [B] -> [m], [m]."""
        return entries_of_rows(self.first, q)

    def plus(self, other: "Memory") -> "Memory":
        """What both remember, of a pair that both know the sum: log-likelihood ratios of different showings add up."""
        if (self.Q, self.D) != (other.Q, other.D):
            raise InputError(
                f"memories of {self.Q} x {self.D} and {other.Q} x {other.D} queries and items cannot be added up."
            )
        query, item, value = (
            np.concatenate([getattr(one, name) for one in (self, other)]) for name in ("query", "item", "value")
        )
        pairs, at = np.unique(query * self.D + item, return_inverse=True)
        total = np.bincount(at, value, len(pairs)).astype(np.float32)
        return memory_from(pairs // self.D, (pairs % self.D).astype(np.int32), total, self.Q, self.D)

    def only(self, kept: NDArray[np.bool_]) -> "Memory":
        """Some of the pairs.  Shapes: kept [n]."""
        first = np.append(0, np.cumsum(kept))[self.first]
        return Memory(first.astype(np.int64), self.item[kept], self.value[kept], self.D)

    def limited(self, pairs: int) -> "Memory":
        """The same with at most so many pairs: those that say most, |value| largest; ties to the lower query and item."""
        if pairs < 0:
            raise ConfigError(f"expected a limit of 0 or more pairs to remember; {pairs} came.")
        if len(self.item) <= pairs:
            return self
        kept = np.zeros(len(self.item), np.bool_)
        kept[np.argsort(-np.abs(self.value), kind="stable")[:pairs]] = True
        return self.only(kept)


def memory_from(
    query: NDArray[np.integer], item: NDArray[np.int32], value: NDArray[np.float32], Q: int, D: int
) -> Memory:
    """The memory of pairs that are sorted by query and item.  Shapes: query, item, value [n]."""
    return Memory(np.searchsorted(query, np.arange(Q + 1)).astype(np.int64), item, value, D)
