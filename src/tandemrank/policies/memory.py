"""The memory of a policy: one number per pair of a query and an item, which a model of few numbers per query would forget.

    Remembering     score(q, d) = base(q, d) + l[q, d],   l = 0 where nothing is remembered: any scorer
    Retrieval       score(q, d) = l[q, d] where the pair is in the query's list, else <queries[q], items[d]>: a light generator,
                    a product that any vector index can serve, and a short list of each query, merged in after retrieval

A `Retrieval` gets its vectors of queries and items that it has not seen from the scores that its re-ranker gives some items:
the nearest ones, near the top of a list above all,

    c, x = argmin sum_d m_d (score(d) - c - <x, y_d>)^2 + ridge |x|^2,      m_d = n softmax(score)_d + 0.1

`beliefs.scorer` makes the lists from a log. Training moves the base and the vectors, never what is remembered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor, nn
from torch.nn import functional

from tandemrank._base.ids import Vocabulary
from tandemrank._base.sparse import canonical_csr, entries_of_rows, places_in_rows
from tandemrank.errors import ConfigError, InputError, PolicyError
from tandemrank.gradients import products
from tandemrank.gradients.products import Listed, Products, Source
from tandemrank.policies.contexts import ContextShift, codes_of
from tandemrank.policies.features import FeatureSource
from tandemrank.policies.scorers import OnTop, Scorer, averages, check_rows

TINY = 1e-6  # of how much scores differ


@dataclass(frozen=True)
class Memory:
    """What is remembered, the pairs of query q at first[q] .. first[q + 1], their items in order.

    `doubt`: how far a value may be off, where that is known.  Shapes: first [Q + 1]; item, value [n]; doubt [n] or [0].
    """

    first: NDArray[np.int64]
    item: NDArray[np.int32]
    value: NDArray[np.float32]
    D: int
    doubt: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))

    @property
    def Q(self) -> int:
        """The number of queries, with a memory or without."""
        return len(self.first) - 1

    @property
    def query(self) -> NDArray[np.int64]:
        """The query of every pair.  Shapes: -> [n]."""
        return np.repeat(np.arange(self.Q), np.diff(self.first))

    def entries(self, q: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The row and the place of every pair of some queries.  Shapes: q [B] -> [m], [m]."""
        return entries_of_rows(self.first, q)

    def of_queries(self, q: NDArray[np.int64]) -> "Memory":
        """What is remembered of some queries, each as often as it is asked for.  Shapes: q [n]."""
        _, at = self.entries(q)
        first = np.append(0, np.cumsum(np.diff(self.first)[q])).astype(np.int64)
        doubt = self.doubt[at] if len(self.doubt) else self.doubt
        return Memory(first, self.item[at], self.value[at], self.D, doubt)

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

    def limited(self, pairs: int) -> "Memory":
        """The same with at most so many pairs: those that say most, |value| largest; ties to the lower query and item."""
        if pairs < 0:
            raise ConfigError(f"expected a limit of 0 or more pairs to remember; got {pairs}.")
        if len(self.item) <= pairs:
            return self
        kept = np.zeros(len(self.item), np.bool_)
        kept[np.argsort(-np.abs(self.value), kind="stable")[:pairs]] = True
        first = np.append(0, np.cumsum(kept))[self.first]
        doubt = self.doubt[kept] if len(self.doubt) else self.doubt
        return Memory(first.astype(np.int64), self.item[kept], self.value[kept], self.D, doubt)


def no_memory(Q: int, D: int, entries: int = 0) -> Memory:
    """Nothing is remembered; or so many entries, still to be loaded."""
    return Memory(np.zeros(Q + 1, np.int64), np.zeros(entries, np.int32), np.zeros(entries, np.float32), D)


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

    def listed(self, q: Tensor) -> Listed:
        """The pairs that are remembered of some queries, and what is.  Shapes: q [B]."""
        own = self.memory.of_queries(q.numpy())
        return Listed(own.first, own.item, own.value)

    def check_pairs(self) -> None:
        """Refuses pairs out of range, out of order or twice."""
        check_rows(self.first.numpy(), self.item.numpy(), self.D, "remembered pairs")


class Remembering(OnTop, WithMemory):
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
        rows, entries = self.memory.entries(q.numpy())
        remembered[rows, self.item.numpy()[entries]] = self.value.numpy()[entries]
        return scores + torch.from_numpy(remembered)

    def score(self, q: Tensor, items: Tensor) -> Tensor:
        scores = self.base.score(q, items)
        if not len(self.value):
            return scores
        at = places_in_rows(self.first.numpy(), self.item.numpy(), q.numpy(), items.numpy(), self.D)
        return scores + torch.from_numpy(np.where(at >= 0, self.value.numpy()[at], np.float32(0)))

    def factors(self, q: Tensor) -> Products | None:
        found = self.base.factors(q)
        if found is None:
            return None
        own, source = self.listed(q), Source.of(found)
        rows = np.repeat(np.arange(len(q)), np.diff(own.first))
        ours = replace(own, value=source.at(rows, own.item) + own.value)
        return replace(found, listed=ours if found.listed is None else both_listed(found.listed, ours, self.D))

    def spec(self) -> dict[str, Any]:
        return super().spec() | {"entries": len(self.value)}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> "Remembering":
        return cls(cls.base_from(spec), no_memory(spec["Q"], spec["D"], spec["entries"]))

    def of_queries(self, q: NDArray[np.int64]) -> "Remembering":
        return Remembering(self.base.of_queries(q), self.memory.of_queries(q))

    def strangers(self, features: pl.DataFrame | None, ids: Vocabulary) -> Scorer:
        return self.base.strangers(features, ids)  # nothing is remembered of them

    def more_items(self, features: pl.DataFrame | None, ids: Vocabulary) -> "Remembering":
        return self._of(self.base.more_items(features, ids), ids)

    def more_pairs(self, features: FeatureSource, ids: Vocabulary) -> "Remembering":
        return self._of(self.base.more_pairs(features, ids), ids)

    def joined(self, other: Scorer, ids: Vocabulary) -> "Remembering":
        return self._of(self.base.joined(base_of(other), ids), ids)

    def in_contexts(self, base: NDArray[np.int64], contexts: pl.DataFrame) -> "Remembering":
        return Remembering(self.base.in_contexts(base, contexts), self.memory.of_queries(base))

    def after(self, old: Scorer, new: Scorer, ids: Vocabulary) -> Scorer:
        found = self.base.after(base_of(old), base_of(new), ids)
        return self._of(found, ids) if len(ids.item_ids) > self.D else found

    def _of(self, base: Scorer, ids: Vocabulary) -> "Remembering":
        """What is remembered, beside a base for more ids."""
        memory = self.memory
        new = len(ids.query_ids) - memory.Q
        first = np.append(memory.first, np.full(new, memory.first[-1]))
        return Remembering(base, replace(memory, first=first, D=len(ids.item_ids)))

    def check(self) -> None:
        """Refuses pairs out of range or out of order, numbers that are not finite (-inf: not available), and what the base
        refuses."""
        self.base.check()
        self.check_pairs()
        if bool((torch.isnan(self.value) | (self.value == torch.inf)).any()):
            raise PolicyError("the memory has numbers that are not finite")


def both_listed(under: Listed, over: Listed, D: int) -> Listed:
    """The pairs that are listed in either; as `over` has them where they are in both."""
    pairs, values = [], []
    for one in (over, under):
        pairs.append(np.repeat(np.arange(len(one.first) - 1), np.diff(one.first)) * np.int64(D) + one.item)
        values.append(one.value)
    key, at = np.unique(np.concatenate(pairs), return_index=True)
    first = np.searchsorted(key, np.arange(len(under.first)) * np.int64(D))
    return Listed(first, (key % D).astype(np.int32), np.concatenate(values)[at])


def base_of(scorer: Scorer) -> Scorer:
    """A scorer without its memory, if it has one."""
    return scorer.base if isinstance(scorer, Remembering) else scorer


def remembering(scorer: Scorer, memory: Memory) -> Remembering:
    """A scorer with one more memory: what it remembers already is added to."""
    if isinstance(scorer, Remembering):
        return Remembering(scorer.base, scorer.memory.plus(memory))
    return Remembering(scorer, memory)


def excluding(scorer: Scorer, pairs: csr_matrix) -> Remembering:
    """The scorer with some pairs not available: a memory of -inf.  Shapes: pairs [Q, D]."""
    pairs = canonical_csr(pairs, drop_zeros=True)
    value = np.full(pairs.nnz, -np.inf, np.float32)
    return remembering(
        scorer, Memory(pairs.indptr.astype(np.int64), pairs.indices.astype(np.int32), value, pairs.shape[1])
    )


# --- a light generator ------------------------------------------------------------------------------------------------


class Listing(WithMemory):
    """Scores that are a list for some pairs of a query, and come from vectors for all others."""

    lengths: ClassVar[tuple[str, ...]] = ("F", "entries")

    def __init__(self, memory: Memory, contexts: ContextShift | None = None) -> None:
        super().__init__(memory)
        self.contexts = contexts

    @property
    def context_columns(self) -> tuple[str, ...]:
        return () if self.contexts is None else self.contexts.names

    def in_contexts(self, base: NDArray[np.int64], contexts: pl.DataFrame) -> Scorer:
        if self.contexts is None:
            return super().in_contexts(base, contexts)
        base, codes = np.array(base), codes_of(self.contexts.columns, contexts)
        memory = self.memory.of_queries(base)
        value = self.contexts.moved(base, codes, memory.query, memory.item, memory.value)
        return self._of_queries(
            base, replace(memory, value=value), self.contexts.of_queries(self.contexts.one_hot(codes))
        )

    def of_queries(self, q: NDArray[np.int64]) -> Scorer:
        if self.contexts is not None:
            return super().of_queries(q)  # refuses: lists in a context are by the places of all queries
        return self._of_queries(q, self.memory.of_queries(q), None)

    def _of_queries(self, q: NDArray[np.int64], memory: Memory, contexts: ContextShift | None) -> Scorer:
        """For some of its queries, with other lists.  Shapes: q [n]."""
        raise PolicyError(f"a {self.kind} cannot be cut into parts by queries.")

    def _shift(self, q: Tensor) -> Tensor | float:
        """What the context changes of all items.  Shapes: q [B] -> [B, D]."""
        return 0.0 if self.contexts is None else self.contexts.at(q)

    def _shift_at(self, q: Tensor, items: Tensor) -> Tensor | float:
        """The same of some items.  Shapes: q [B]; items [B, M] -> [B, M]."""
        return 0.0 if self.contexts is None else self.contexts.at_items(q, items)

    def _contexts_spec(self) -> dict[str, Any]:
        return {} if self.contexts is None else {"contexts": self.contexts.spec()}

    def _with_list(self, scores: Tensor, q: Tensor) -> Tensor:
        """Scores of all items, those of remembered pairs in their places.  Shapes: scores [B, D]; q [B] -> [B, D]."""
        rows, entries = self.memory.entries(q.numpy())
        places = torch.from_numpy(rows), self.item[torch.from_numpy(entries)].long()
        return scores.index_put(places, self._listed(q[places[0]], torch.from_numpy(entries)))

    def _with_listed(self, scores: Tensor, q: Tensor, items: Tensor) -> Tensor:
        """Scores of some items, those of remembered pairs in their places.  Shapes: scores, items [B, M]; q [B] -> [B, M]."""
        if not len(self.value):
            return scores
        at = torch.from_numpy(places_in_rows(self.first.numpy(), self.item.numpy(), q.numpy(), items.numpy(), self.D))
        known = self._listed(q[:, None].expand(at.shape), at.clamp(min=0))
        return torch.where(at >= 0, known, scores)

    def _listed(self, q: Tensor, entries: Tensor) -> Tensor:
        """The scores of remembered pairs.  Shapes: q, entries of one shape -> the same."""
        return self.value[entries]

    def _joined_memory(self, other: "Listing") -> Memory:
        """Our lists, then those of the other's queries."""
        first = np.concatenate([self.first.numpy(), other.first.numpy()[1:] + len(self.item)])
        item, value = (torch.cat([getattr(x, name) for x in (self, other)]).numpy() for name in ("item", "value"))
        return Memory(first, item, value, self.D)

    def check(self) -> None:
        """Refuses vectors and numbers that are not finite, and pairs out of range, out of order or twice."""
        super().check()
        self.check_pairs()
        if self.contexts is not None:
            self.contexts.check(len(self.first) - 1)


def contexts_from(spec: Mapping[str, Any]) -> ContextShift | None:
    """The contexts of a spec of a stage, if it has any."""
    return ContextShift(**spec["contexts"]) if "contexts" in spec else None


class Retrieval(Listing):
    """A light generator: products, and a list of its own for each query.  Shapes: queries [Q, F], items [D, F].

    Training moves the vectors; the lists stay as they are.
    """

    kind = "retrieval"

    def __init__(
        self,
        queries: NDArray[Any] | Tensor,
        items: NDArray[Any] | Tensor,
        memory: Memory,
        contexts: ContextShift | None = None,
    ) -> None:
        super().__init__(memory, contexts)
        self.queries = nn.Parameter(torch.as_tensor(queries, dtype=torch.float32).contiguous().clone())
        self.items = nn.Parameter(torch.as_tensor(items, dtype=torch.float32).contiguous().clone())

    def forward(self, q: Tensor) -> Tensor:
        return self._with_list(self.queries[q] @ self.items.T + self._shift(q), q)

    def score(self, q: Tensor, items: Tensor) -> Tensor:
        own = functional.embedding(q, self.queries, sparse=True)
        scores = products.at(own, self.items, items, sparse=True) + self._shift_at(q, items)
        return self._with_listed(scores, q, items)

    def factors(self, q: Tensor) -> Products:
        own: Tensor = self.queries[q]
        items: Tensor = self.items
        if self.contexts is not None and len(self.contexts.now):  # the context is a few dimensions more
            own, items = torch.cat([own, self.contexts.now[q]], 1), torch.cat([items, self.contexts.shift], 1)
        return Products(own, items, listed=self.listed(q))

    def spec(self) -> dict[str, Any]:
        Q, F = self.queries.shape
        return {"Q": Q, "D": self.D, "F": F, "entries": len(self.value), **self._contexts_spec()}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> "Retrieval":
        Q, D, F = spec["Q"], spec["D"], spec["F"]
        return cls(torch.empty(Q, F), torch.empty(D, F), no_memory(Q, D, spec["entries"]), contexts_from(spec))

    def per_query_parameters(self) -> Sequence[nn.Parameter]:
        return [self.queries]

    def strangers(self, features: pl.DataFrame | None, ids: Vocabulary) -> "Retrieval":
        return self._for_queries(averages(self.queries, len(ids.query_ids)))

    def more_items(self, features: pl.DataFrame | None, ids: Vocabulary) -> "Retrieval":
        n = len(ids.item_ids) - self.D
        return self._with_items(averages(self.items, n), None)

    @torch.no_grad()
    def after(self, old: Scorer, new: Scorer, ids: Vocabulary) -> "Retrieval":
        """Vectors for what the re-ranker has not seen: those nearest to its scores (`nearest`), in our scale."""
        q, items = some(len(self.queries)), some(self.D)
        scores, ours = (one.score(q, items.expand(len(q), -1)) for one in (old, self))
        scale = ours.std(1).mean() / scores.std(1).mean().clamp_min(TINY)
        if len(ids.item_ids) == self.D:
            new_queries = torch.arange(len(ids.query_ids))
            theirs = new.score(new_queries, items.expand(len(new_queries), -1)) * scale
            return self._for_queries(nearest(theirs, self.items[items])[0])
        new_items = torch.arange(self.D, len(ids.item_ids))
        # A constant of each query is in the re-ranker's scores, and not in ours.
        apart = (scores * scale - ours).mean(1, keepdim=True)
        theirs = new.score(q, new_items.expand(len(q), -1)) * scale - apart
        known = new.contexts if isinstance(new, Listing) else None
        more = None if known is None or self.contexts is None else known.shift[self.D :] * self.contexts.scale
        return self._with_items(nearest(theirs.T, self.queries[q], constant=False)[0], more)

    def _of_queries(self, q: NDArray[np.int64], memory: Memory, contexts: ContextShift | None) -> "Retrieval":
        return Retrieval(self.queries.detach()[torch.from_numpy(q)], self.items.detach(), memory, contexts)

    def _for_queries(self, queries: Tensor) -> "Retrieval":
        contexts = None if self.contexts is None else self.contexts.without_lists()
        return Retrieval(queries, self.items.detach(), no_memory(len(queries), self.D), contexts)

    def _with_items(self, more: Tensor, shift: Tensor | None) -> "Retrieval":
        items = torch.cat([self.items.detach(), more])
        contexts = None if self.contexts is None else self.contexts.with_items(len(more), shift)
        return Retrieval(self.queries.detach(), items, replace(self.memory, D=len(items)), contexts)

    def joined(self, other: Scorer, ids: Vocabulary) -> "Retrieval":
        assert isinstance(other, Retrieval)
        queries = torch.cat([self.queries, other.queries]).detach()
        return Retrieval(queries, other.items.detach(), self._joined_memory(other), self.contexts)


# --- vectors by the scores of another model ----------------------------------------------------------------------------------

RIDGE = 1e-4  # as a share of the mean square of the vectors
SOME = 512  # items, or queries, that are enough
LEAST = 0.1  # of what an item matters
LEAST_RIDGE = 1e-9  # so that there is always one answer


def matters(scores: Tensor) -> Tensor:
    """How much each item matters to its row, 1.1 in the mean.  Shapes: [B, M] -> [B, M]."""
    return torch.softmax(scores, 1) * scores.shape[1] + LEAST


def some(n: int, most: int = SOME) -> Tensor:
    """Places among n, evenly spread.  Shapes: -> [min(n, most)]."""
    return torch.from_numpy(np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64)))


@torch.no_grad()
def nearest(scores: Tensor, vectors: Tensor, *, constant: bool = True) -> tuple[Tensor, Tensor]:
    """x and c of every row of scores; c = 0 without a constant.  Shapes: scores [B, M]; vectors [M, F] -> [B, F], [B]."""
    s, one = scores.double(), torch.full((len(vectors), 1), float(constant), dtype=torch.float64)
    Y = torch.cat([vectors.double(), one], 1)
    weighted = matters(s)[:, None, :] * Y.T
    ridge = torch.full(
        (Y.shape[1],), RIDGE * float(vectors.square().mean()) * len(Y) + LEAST_RIDGE, dtype=torch.float64
    )
    ridge[-1] = LEAST_RIDGE
    found = torch.linalg.solve(weighted @ Y + ridge.diag(), (weighted @ s[:, :, None])[..., 0])
    return found[:, :-1].float(), found[:, -1].float()
