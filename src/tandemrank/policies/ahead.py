"""Scores that look ahead: what a click is worth to a session, itself and what it leads to.

    A(x, d)     = start_x + gain_x after(x, d)                 of a state x, which is the query, and an item d
    score(x, d) = scale_x log-odds( R(x, d) A(x, d) / max_d A ),         R = sigmoid(base(x, d) / scale_x)

`base` scores by log-odds of relevance, as the beliefs do. The list of the highest R A is the one that is worth most; where A is
the same for all items, the scores are those of the base.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from tandemrank._base.ids import Vocabulary
from tandemrank._base.sparse import entries_of_rows, places_in_rows
from tandemrank.errors import PolicyError
from tandemrank.policies.memory import Listing, Memory, no_memory
from tandemrank.policies.scorers import OnTop, Scorer

Floats = NDArray[np.float64]
LEAST = 0.01  # of A in a score: an item that ruins the rest of a session comes last


@dataclass(frozen=True)
class Foresight:
    """What clicks lead to: `after` an item, or a remembered pair of state and item, the rest of the session is worth so much.

    `highest`: A of the best item of every state.  Shapes: start, gain, highest [Q]; after [D]; pairs of [Q, D].
    """

    start: Floats
    gain: Floats
    after: Floats
    pairs: Memory
    highest: Floats

    @staticmethod
    def of(start: Floats, gain: Floats, after: Floats, pairs: Memory) -> "Foresight":
        """With the highest A, at least LEAST."""
        most = np.full(len(start), float(after.max(initial=-np.inf)))
        np.maximum.at(most, pairs.query, pairs.value)
        return Foresight(start, gain, after, pairs, np.maximum(start + gain * most, LEAST))

    def matrix(self, q: NDArray[np.integer]) -> Floats:
        """A of every item.  Shapes: q [B] -> [B, D]."""
        after = np.tile(self.after, (len(q), 1))
        rows, entries = entries_of_rows(self.pairs.first, np.asarray(q, np.int64))
        after[rows, self.pairs.item[entries]] = self.pairs.value[entries]
        return self._worth(q[:, None], after)

    def at(self, q: NDArray[np.integer], d: NDArray[np.integer]) -> Floats:
        """A of pairs.  Shapes: [n], [n] -> [n]."""
        q = np.asarray(q, np.int64)
        place = places_in_rows(self.pairs.first, self.pairs.item, q, np.asarray(d)[:, None], self.pairs.D)[:, 0]
        known = np.append(self.pairs.value, np.float32(0)).astype(np.float64)[place]
        return self._worth(q, np.where(place >= 0, known, self.after[d]))

    def _worth(self, q: NDArray[np.integer], after: Floats) -> Floats:
        found: Floats = self.start[q] + self.gain[q] * after
        return found


class Ahead(OnTop, Listing):
    """A scorer of relevance that looks ahead.  Buffers: start, gain, highest, scale [Q]; after_item [D]; those of the pairs."""

    kind = "ahead"
    lengths: ClassVar[tuple[str, ...]] = ("entries",)
    start: Tensor
    gain: Tensor
    highest: Tensor
    scale: Tensor
    after_item: Tensor

    def __init__(self, base: Scorer, foresight: Foresight, scale: NDArray[Any]) -> None:
        super().__init__(foresight.pairs)
        self.base, self.scores_everything = base, base.scores_everything
        named = {name: getattr(foresight, name) for name in ("start", "gain", "highest")}
        for name, values in {**named, "scale": scale, "after_item": foresight.after}.items():
            self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(values, np.float32)))

    @property
    def foresight(self) -> Foresight:
        """What clicks lead to."""
        start, gain, after, highest = (
            x.double().numpy() for x in (self.start, self.gain, self.after_item, self.highest)
        )
        return Foresight(start, gain, after, self.memory, highest)

    def forward(self, q: Tensor) -> Tensor:
        after = self._with_list(self.after_item.expand(len(q), -1).clone(), q)
        return self._scores(self.base(q), q, after)

    def score(self, q: Tensor, items: Tensor) -> Tensor:
        return self._scores(self.base.score(q, items), q, self._with_listed(self.after_item[items], q, items))

    def _scores(self, base: Tensor, q: Tensor, after: Tensor) -> Tensor:
        scale = self.scale[q][:, None]
        A = torch.clamp(self.start[q][:, None] + self.gain[q][:, None] * after, min=LEAST)
        a, odds = torch.clamp(A / self.highest[q][:, None], max=1.0), base / scale
        rest = torch.sigmoid(-odds) + torch.sigmoid(odds) * (1 - a)  # 1 - R a, precise where both are near 1
        found = scale * (functional.logsigmoid(odds) + torch.log(a) - torch.log(rest))
        return torch.where(a == 1, base, found)

    def spec(self) -> dict[str, Any]:
        return super().spec() | {"entries": len(self.value)}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> "Ahead":
        Q, D = spec["Q"], spec["D"]
        nothing = Foresight(np.zeros(Q), np.zeros(Q), np.zeros(D), no_memory(Q, D, spec["entries"]), np.ones(Q))
        return cls(cls.base_from(spec), nothing, np.ones(Q))

    def strangers(self, features: pl.DataFrame | None, ids: Vocabulary) -> "Ahead":
        """A state that nobody has seen leads to what the average one does."""
        n = len(ids.query_ids)
        start, gain, scale = (np.full(n, float(x.mean())) for x in (self.start, self.gain, self.scale))
        average = Foresight.of(start, gain, self.after_item.double().numpy(), no_memory(n, self.D))
        return Ahead(self.base.strangers(features, ids), average, scale)

    def more_items(self, features: pl.DataFrame | None, ids: Vocabulary) -> "Ahead":
        """An item that nobody has seen leads to what the average one does."""
        f, D = self.foresight, len(ids.item_ids)
        after = np.append(f.after, np.full(D - self.D, f.after.mean()))
        grown = Foresight.of(f.start, f.gain, after, replace(f.pairs, D=D))
        return Ahead(self.base.more_items(features, ids), grown, self.scale.numpy())

    def joined(self, other: Scorer, ids: Vocabulary) -> "Ahead":
        assert isinstance(other, Ahead)
        start, gain, scale = (
            torch.cat([getattr(one, name) for one in (self, other)]).double().numpy()
            for name in ("start", "gain", "scale")
        )
        foresight = Foresight.of(start, gain, self.after_item.double().numpy(), self._joined_memory(other))
        return Ahead(self.base.joined(other.base, ids), foresight, scale)

    def after(self, old: Scorer, new: Scorer, ids: Vocabulary) -> Scorer:
        return new  # where there is one stage, it is the re-ranker

    def check(self) -> None:
        """Refuses numbers that are not finite, scales that are not above 0, and what the base refuses."""
        super().check()
        self.base.check()
        if not bool((self.scale > 0).all()) or not bool((self.highest > 0).all()):
            raise PolicyError("expected scales, and values of clicks, above 0; got others")
