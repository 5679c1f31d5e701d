"""A light generator: a product that any vector index can serve, and a short list of each query, merged in after retrieval.

    score(q, d) = listed[q, d] where the pair is in the query's list, else <queries[q], items[d]>

The lists hold what is remembered of single pairs; training moves the vectors alone.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from tandemrank._base.sparse import places_in_rows
from tandemrank.errors import PolicyError
from tandemrank.gradients import products
from tandemrank.policies.memory import Memory, WithMemory
from tandemrank.policies.scorers import Scorer

RIDGE = 1e-4  # of the regression that gives new queries and items their vectors, as a share of the mean square


class Listing(WithMemory):
    """Scores that are a list for some pairs of a query, and come from vectors for all others."""

    lengths = ("F", "entries")

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


def no_memory(spec: dict[str, Any]) -> Memory:
    """Lists of the sizes of a spec, still to be loaded."""
    n = spec["entries"]
    return Memory(np.zeros(spec["Q"] + 1, np.int64), np.zeros(n, np.int32), np.zeros(n, np.float32), spec["D"])


class Retrieval(Listing):
    """A light generator: products, and a list of its own for each query.  Shapes: queries [Q, F], items [D, F].

    Training moves the vectors; the lists stay as they are.
    """

    kind = "retrieval"

    def __init__(self, queries: NDArray[Any] | Tensor, items: NDArray[Any] | Tensor, memory: Memory) -> None:
        super().__init__(memory)
        self.queries = nn.Parameter(torch.as_tensor(queries, dtype=torch.float32).contiguous().clone())
        self.items = nn.Parameter(torch.as_tensor(items, dtype=torch.float32).contiguous().clone())
        self._map: tuple[Tensor, Tensor] | None = (
            None  # from the vectors of a re-ranker to ours, made where it is asked for
        )

    def forward(self, q: Tensor) -> Tensor:
        return self._with_list(self.queries[q] @ self.items.T, q)

    def score(self, q: Tensor, items: Tensor) -> Tensor:
        own = functional.embedding(q, self.queries, sparse=True)
        return self._with_listed(products.at(own, self.items, items, sparse=True), q, items)

    def spec(self) -> dict[str, Any]:
        Q, F = self.queries.shape
        return {"Q": Q, "D": self.D, "F": F, "entries": len(self.value)}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> "Retrieval":
        Q, D, F = spec["Q"], spec["D"], spec["F"]
        return cls(torch.empty(Q, F), torch.empty(D, F), no_memory(spec))

    def per_query_parameters(self) -> Sequence[nn.Parameter]:
        return [self.queries]

    def after(self, old: Scorer, new: Scorer) -> "Retrieval":
        """Vectors for what the re-ranker has not seen: as the re-ranker's vectors of known ones suggest, a regression."""
        (X, Y), (X_new, Y_new) = (_vectors(one) for one in (old, new))
        items = self.items.detach()
        if len(Y_new) > len(Y):
            items = torch.cat([items, _with_one(Y_new[len(Y) :]) @ _regression(Y, items)])
            return Retrieval(self.queries.detach(), items, replace(self.memory, D=len(items)))
        if self._map is None or self._map[0] is not X:
            self._map = X, _regression(X, self.queries)
        n = len(X_new)
        none = Memory(np.zeros(n + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), self.D)
        return Retrieval(_with_one(X_new) @ self._map[1], items, none)

    def joined(self, other: Scorer) -> "Retrieval":
        assert isinstance(other, Retrieval)
        return Retrieval(
            torch.cat([self.queries, other.queries]).detach(), other.items.detach(), self._joined_memory(other)
        )


def _vectors(scorer: Scorer) -> tuple[Tensor, Tensor]:
    """The vectors of a re-ranker that has some.  Shapes: -> [Q, F], [D, F]."""
    queries, items = getattr(scorer, "queries", None), getattr(scorer, "items", None)
    if not isinstance(queries, Tensor) or not isinstance(items, Tensor):
        raise PolicyError(f"a {scorer.kind} has no vectors, so its generator cannot score what it has not seen.")
    return queries, items


def _with_one(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones(len(x), 1)], 1)


@torch.no_grad()
def _regression(x: Tensor, y: Tensor) -> Tensor:
    """The weights of a ridge regression of y on x and a constant.  Shapes: x [n, F]; y [n, r] -> [F + 1, r]."""
    X = _with_one(x).double()
    G = X.T @ X
    G += RIDGE * G.diagonal().mean() * torch.eye(len(G), dtype=torch.float64)
    found: Tensor = torch.linalg.solve(G, X.T @ y.double()).float()
    return found
