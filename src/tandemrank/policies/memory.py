"""The memory of a policy: one number per pair of a query and an item that was shown, added to the scores of any scorer.

    score(q, d) = base(q, d) + l[q, d],   l = 0 where nothing is remembered

`beliefs.memory` makes it from a log: what the pair's own showings say about its relevance. Whatever scores by a model of few
numbers per query forgets single pairs, the memory holds them exactly. Training moves the base alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor, nn

from tandemrank._base.ids import Vocabulary
from tandemrank._base.sparse import canonical_csr, entries_of_rows, places_in_rows
from tandemrank.errors import ConfigError, InputError, PolicyError
from tandemrank.policies.features import FeatureValues
from tandemrank.policies.scorers import Scorer

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


class WithMemory(Scorer):
    """A scorer that remembers single pairs.  Buffers: first [Q + 1]; item, value [n], as in `Memory`."""

    first: Tensor
    item: Tensor
    value: Tensor

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.D = memory.D
        self.register_buffer("first", torch.from_numpy(memory.first.astype(np.int64)))
        self.register_buffer("item", torch.from_numpy(memory.item.astype(np.int32)))
        self.register_buffer("value", torch.from_numpy(memory.value.astype(np.float32)))

    @property
    def memory(self) -> Memory:
        """What is remembered."""
        return Memory(self.first.numpy(), self.item.numpy(), self.value.numpy(), self.D)

    def check_pairs(self) -> None:
        """Refuses pairs out of range, out of order or twice."""
        first, item = self.first.numpy(), self.item.numpy()
        if first[0] != 0 or first[-1] != len(item) or (np.diff(first) < 0).any():
            raise PolicyError("the rows of the remembered pairs do not fit their number")
        if len(item) and (item.min() < 0 or item.max() >= self.D):
            raise PolicyError(f"expected remembered items from 0 to {self.D - 1}; got others")
        if (np.diff(self.memory.query * np.int64(self.D) + item) <= 0).any():
            raise PolicyError("the remembered pairs are not in order, or one is there twice")


class Remembering(WithMemory):
    """The scores of `base` and what is remembered of single pairs.  Shapes: q [B] -> [B, D]."""

    kind = "remembering"
    lengths = ("entries",)

    def __init__(self, base: Scorer, memory: Memory) -> None:
        super().__init__(memory)
        spec = base.spec()
        if (spec["Q"], spec["D"]) != (memory.Q, memory.D):
            raise PolicyError(
                f"the memory is of {memory.Q} queries and {memory.D} items, but the {base.kind} scores {spec['Q']} and "
                f"{spec['D']}."
            )
        if isinstance(base, Remembering):
            raise PolicyError("this scorer has a memory already: give its base, or add to its memory.")
        self.base = base
        self.scores_everything = base.scores_everything

    def forward(self, q: Tensor) -> Tensor:
        scores: Tensor = self.base(q)
        remembered = np.zeros(tuple(scores.shape), np.float32)
        self.memory.add_to(remembered, q.numpy())
        return scores + torch.from_numpy(remembered)

    def score(self, q: Tensor, items: Tensor) -> Tensor:
        scores = self.base.score(q, items)
        if not len(self.value):
            return scores
        at = places_in_rows(self.first.numpy(), self.item.numpy(), q.numpy(), items.numpy(), self.D)
        return scores + torch.from_numpy(np.where(at >= 0, self.value.numpy()[at], np.float32(0)))

    def spec(self) -> dict[str, Any]:
        return {
            "Q": len(self.first) - 1,
            "D": self.D,
            "entries": len(self.value),
            "base": {"kind": self.base.kind, "sizes": self.base.spec()},
        }

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> "Remembering":
        base = spec["base"]
        n = spec["entries"]
        empty = Memory(np.zeros(spec["Q"] + 1, np.int64), np.zeros(n, np.int32), np.zeros(n, np.float32), spec["D"])
        kind = Scorer.of_kind(base["kind"])
        if kind is None:
            raise PolicyError(f"unknown kind {base['kind']!r:.60}")
        return cls(kind.from_spec(base["sizes"]), empty)

    def bind(self, vocabulary: Vocabulary) -> None:
        self.base.bind(vocabulary)

    @property
    def query_columns(self) -> tuple[str, ...]:
        return self.base.query_columns

    def query_table(self, values: FeatureValues) -> pl.DataFrame:
        return self.base.query_table(values)

    def strangers(self, features: pl.DataFrame | None, n: int) -> Scorer:
        return self.base.strangers(features, n)  # nothing is remembered of them

    def after(self, old: Scorer, new: Scorer) -> Scorer:
        return self.base.after(base_of(old), base_of(new))

    def joined(self, other: Scorer) -> "Remembering":
        memory = self.memory
        n = other.spec()["Q"]
        first = np.append(memory.first, np.full(n, memory.first[-1]))
        return Remembering(self.base.joined(base_of(other)), replace(memory, first=first, D=other.spec()["D"]))

    def per_query_parameters(self) -> Sequence[nn.Parameter]:
        return self.base.per_query_parameters()

    def owners(self) -> Sequence[Tensor]:
        return self.base.owners()

    def check(self) -> None:
        """Refuses pairs out of range or out of order, numbers that are not finite (-inf: not available), and what the base
        refuses."""
        self.base.check()
        self.check_pairs()
        if bool((torch.isnan(self.value) | (self.value == torch.inf)).any()):
            raise PolicyError("the memory has numbers that are not finite")


def base_of(scorer: Scorer) -> Scorer:
    """A scorer without its memory, if it has one."""
    return scorer.base if isinstance(scorer, Remembering) else scorer


def remembering(scorer: Scorer, memory: Memory) -> Remembering:
    """A scorer with one more memory: what it remembers already is added to."""
    if isinstance(scorer, Remembering):
        return Remembering(scorer.base, scorer.memory.plus(memory))
    return Remembering(scorer, memory)


def excluding(scorer: Scorer, pairs: csr_matrix) -> Remembering:
    """The scorer with some pairs not available, in a memory of -inf; what it remembers of others stays.

    Shapes: pairs [Q, D].
    """
    pairs = canonical_csr(pairs, drop_zeros=True)
    (Q, D), base = pairs.shape, scorer
    query = np.repeat(np.arange(Q, dtype=np.int64), np.diff(pairs.indptr))
    item, value = pairs.indices.astype(np.int64), np.full(pairs.nnz, -np.inf, np.float32)
    if isinstance(scorer, Remembering):
        old, base = scorer.memory, scorer.base
        query, item = np.concatenate([query, old.query]), np.concatenate([item, old.item])
        value = np.concatenate([value, old.value])
    key, first = np.unique(query * D + item, return_index=True)  # of a pair in both the first, -inf
    return Remembering(base, memory_from(key // D, (key % D).astype(np.int32), value[first], Q, D))
