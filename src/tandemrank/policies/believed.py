"""What a log says of relevance as the scores of a stage: the belief, for candidates, and its product, for all items.

    s[q, d]     = <x_q, y_d> + f(q, d)                              before the pair's own showings, f where it is not a product
    l[q, d]     = s / sqrt(1 + pi / 8 (spread^2 + v_q v_d))         the log-odds of E[R | s], s known up to a variance v_q v_d
    score(q, d) = SHARPNESS l[q, d],                                of a remembered pair l is the log-odds of what its showings say

`Believed` is the re-ranker. `Retrieval` is the generator: a product that any vector index can serve, and a short list of what
is remembered of the query, merged in after retrieval. Queries and items that neither has seen are known by their features
(`Strangers`), or else they are the average ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from tandemrank._base.sparse import places_in_rows
from tandemrank.errors import PolicyError
from tandemrank.gradients import products
from tandemrank.policies.memory import Memory
from tandemrank.policies.scorers import Scorer

# The best lists do not depend on it, drawn ones come near them (docs/beliefs.md). Drawn by the log-odds alone, an item would be
# shown as often as it is relevant.
SHARPNESS = 4.0
FLAT = np.pi / 8  # E sigmoid(N(mu, v)) = sigmoid(mu / sqrt(1 + pi v / 8)), nearly


class _Listing(Scorer):
    """Scores that are a list for some pairs of a query, and come from vectors for all others."""

    lengths = ("F", "entries")
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
        """What is remembered of single pairs."""
        return Memory(self.first.numpy(), self.item.numpy(), self.value.numpy(), self.D)

    def _with_list(self, scores: Tensor, q: Tensor) -> Tensor:
        """Scores of all items, those of remembered pairs in their places.  Shapes: scores [B, D]; q [B] -> [B, D]."""
        rows, entries = self.memory.entries(q.numpy())
        places = torch.from_numpy(rows), self.item[torch.from_numpy(entries)].long()
        return scores.index_put(places, self._listed(q[places[0]], torch.from_numpy(entries)))

    def _with_listed(self, scores: Tensor, q: Tensor, items: Tensor) -> Tensor:
        """Scores of some items, those of remembered pairs in their places.  Shapes: scores, items [B, M]; q [B] -> [B, M]."""
        if not len(self.value):
            return scores
        at = torch.from_numpy(
            places_in_rows(self.first.numpy(), self.item.numpy(), q.numpy(), items.numpy(), self.D)
        )
        known = self._listed(q[:, None].expand(at.shape), at.clamp(min=0))
        return torch.where(at >= 0, known, scores)

    def _listed(self, q: Tensor, entries: Tensor) -> Tensor:
        """The scores of remembered pairs.  Shapes: q, entries of one shape -> the same."""
        return self.value[entries]

    def check(self) -> None:
        """Refuses vectors and numbers that are not finite, and pairs out of range, out of order or twice."""
        super().check()
        first, item = self.first.numpy(), self.item.numpy()
        if first[0] != 0 or first[-1] != len(item) or (np.diff(first) < 0).any():
            raise PolicyError("the rows of the remembered pairs do not fit their number")
        if len(item) and (item.min() < 0 or item.max() >= self.D):
            raise PolicyError(f"expected remembered items from 0 to {self.D - 1}; got others")
        if (np.diff(self.memory.query * np.int64(self.D) + item) <= 0).any():
            raise PolicyError("the remembered pairs are not in order, or one is there twice")


def _no_memory(spec: dict[str, Any]) -> Memory:
    n = spec["entries"]
    return Memory(np.zeros(spec["Q"] + 1, np.int64), np.zeros(n, np.int32), np.zeros(n, np.float32), spec["D"])


@dataclass(frozen=True)
class Spread:
    """How far relevance spreads around its mean, and how well the means are known: v_q v_d.  Shapes: query [Q]; item [D]."""

    around: float
    query: NDArray[np.float32]
    item: NDArray[np.float32]


class Believed(_Listing):
    """The belief as the scores of the re-ranker: nothing of it is trained.  Shapes: queries [Q, F], items [D, F]."""

    kind = "belief"
    queries: Tensor
    items: Tensor
    query_spread: Tensor
    item_spread: Tensor

    def __init__(self, queries: NDArray[Any], items: NDArray[Any], spread: Spread, memory: Memory) -> None:
        """`memory`: the log-odds of the expected relevance of pairs that were shown."""
        super().__init__(memory)
        self.around = float(spread.around)
        named = {"queries": queries, "items": items, "query_spread": spread.query, "item_spread": spread.item}
        for name, values in named.items():
            self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(values, np.float32)))

    def forward(self, q: Tensor) -> Tensor:
        scores = (self.queries[q] @ self.items.T) * self._flat(q, self.item_spread)
        return SHARPNESS * self._with_list(scores, q)

    def score(self, q: Tensor, items: Tensor) -> Tensor:
        s = products.at(self.queries[q], self.items, items)
        return SHARPNESS * self._with_listed(s * self._flat(q, self.item_spread[items]), q, items)

    def _flat(self, q: Tensor, v: Tensor) -> Tensor:
        """1 / sqrt(1 + pi / 8 (spread^2 + v_q v_d)), over that of the mean item: what is not known of items in general is no
        reason to draw at random, and changes no order.  Shapes: q [B]; v [D] or [B, M] -> [B, D] or [B, M]."""
        own, around = self.query_spread[q][:, None], self.around**2
        flat: Tensor = 1 / torch.sqrt(1 + FLAT * (around + own * v))
        return flat * self.scale(q)[:, None]

    def scale(self, q: Tensor) -> Tensor:
        """The scale of a query's scores, that of its mean item.  Shapes: q [B] -> [B]."""
        return torch.sqrt(1 + FLAT * (self.around**2 + self.query_spread[q] * self.item_spread.mean()))

    def _listed(self, q: Tensor, entries: Tensor) -> Tensor:
        return self.value[entries] * self.scale(q.ravel()).view(q.shape)

    def spec(self) -> dict[str, Any]:
        (Q, F), D = self.queries.shape, self.D
        return {"Q": Q, "D": D, "F": F, "entries": len(self.value), "spread": self.around}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> "Believed":
        Q, D, F = spec["Q"], spec["D"], spec["F"]
        spread = Spread(float(spec["spread"]), np.zeros(Q, np.float32), np.zeros(D, np.float32))
        return cls(np.zeros((Q, F)), np.zeros((D, F)), spread, _no_memory(spec))

    def per_query_parameters(self) -> Sequence[nn.Parameter]:
        return []


class Retrieval(_Listing):
    """A light generator: products, and a list of its own for each query.  Shapes: queries [Q, F], items [D, F].

    Training moves the vectors; the lists stay as they are.
    """

    kind = "retrieval"

    def __init__(self, queries: NDArray[Any] | Tensor, items: NDArray[Any] | Tensor, memory: Memory) -> None:
        super().__init__(memory)
        self.queries = nn.Parameter(torch.as_tensor(queries, dtype=torch.float32).contiguous().clone())
        self.items = nn.Parameter(torch.as_tensor(items, dtype=torch.float32).contiguous().clone())

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
        return cls(torch.empty(Q, F), torch.empty(D, F), _no_memory(spec))

    def per_query_parameters(self) -> Sequence[nn.Parameter]:
        return [self.queries]
