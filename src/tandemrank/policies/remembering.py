"""A scorer with a memory: the scores of any other scorer, plus one number per pair that was shown.

score(q, d) = base(q, d) + l[q, d],   l = 0 where nothing is remembered                                  (`policies.memory`)

Both stages can have one, so candidates are the best K2 with what is remembered. Training moves the base alone.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor, nn

from tandemrank._base.sparse import canonical_csr, places_in_rows
from tandemrank.errors import PolicyError
from tandemrank.policies.memory import Memory, memory_from
from tandemrank.policies.scorers import Scorer


class Remembering(Scorer):
    """The scores of `base` and what is remembered of single pairs.  Shapes: q [B] -> [B, D]."""

    kind = "remembering"
    lengths = ("entries",)
    first: Tensor
    item: Tensor
    value: Tensor

    def __init__(self, base: Scorer, memory: Memory) -> None:
        super().__init__()
        spec = base.spec()
        if (spec["Q"], spec["D"]) != (memory.Q, memory.D):
            raise PolicyError(
                f"the memory is of {memory.Q} queries and {memory.D} items, but the {base.kind} scores {spec['Q']} and "
                f"{spec['D']}."
            )
        if isinstance(base, Remembering):
            raise PolicyError("this scorer has a memory already: give its base, or add to its memory.")
        self.base, self.D = base, memory.D
        self.scores_everything = base.scores_everything
        self.register_buffer("first", torch.from_numpy(memory.first.astype(np.int64)))
        self.register_buffer("item", torch.from_numpy(memory.item.astype(np.int32)))
        self.register_buffer("value", torch.from_numpy(memory.value.astype(np.float32)))

    @property
    def memory(self) -> Memory:
        """What is remembered."""
        return Memory(self.first.numpy(), self.item.numpy(), self.value.numpy(), self.D)

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
        return cls(Scorer.kinds[base["kind"]].from_spec(base["sizes"]), empty)

    def per_query_parameters(self) -> Sequence[nn.Parameter]:
        return self.base.per_query_parameters()

    def owners(self) -> Sequence[Tensor]:
        return self.base.owners()

    def check(self) -> None:
        """Refuses entries out of range, out of order or not finite (-inf: not available), and what the base refuses."""
        self.base.check()
        first, item = self.first.numpy(), self.item.numpy()
        if first[0] != 0 or first[-1] != len(item) or (np.diff(first) < 0).any():
            raise PolicyError("the rows of the memory do not fit its entries")
        if len(item) and (item.min() < 0 or item.max() >= self.D):
            raise PolicyError(f"the memory is of items from 0 to {self.D - 1}; others came")
        if (np.diff(self.memory.query * np.int64(self.D) + item) <= 0).any():
            raise PolicyError("the memory has pairs that are not in order, or one twice")
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
