"""The engine that answers queries with a live pair, without any network: rank, and remember what was clicked.

    server = Server(pair, recorder=Recorder("log"))
    ranked = server.rank(17)
    server.feedback(ranked.impression_id, [Event("item-3", "click")])

A query that the pair does not know gets the answer for the average query, and the answer says so.
"""

import hashlib
import os
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandemrank._base.random import random_keys
from tandemrank.errors import InputError, OutputError
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.serving.exploration import Exploration
from tandemrank.serving.recorder import Event, Impression, Recorder

Id = int | str
KEYS = 6  # the stream of one seed that decides the lists of a server
AVERAGE = 4096  # queries that the answer for an unknown one is the average of, at most


@dataclass(frozen=True)
class Ranked:
    """An answer: its impression, the items from the top, the digest of the pair, and whose answer it is.

    `source` is "pair" for a query that it knows and "popular" for one that it does not. `logged` is False where the log could
    not take the impression; `unknown` are items that were said to be available and that the pair does not know.
    """

    impression_id: str
    items: tuple[Id, ...]
    policy: str
    source: Literal["pair", "popular"]
    logged: bool
    unknown: tuple[Id, ...] = ()


def digest(pair: TwoStagePolicy) -> str:
    """A name for exactly this pair: a hash of its numbers, sizes and ids."""
    found = hashlib.sha256(repr((pair.K2, pair.K)).encode())
    for ids in (pair.vocabulary.query_ids, pair.vocabulary.item_ids):
        found.update(repr((str(ids.dtype), len(ids))).encode())
        found.update("\0".join(map(str, ids.to_list())).encode())
    for stage in (pair.generator, pair.ranker):
        for name, tensor in sorted(stage.state_dict().items()):
            found.update(name.encode())
            found.update(np.ascontiguousarray(tensor.detach().numpy()).tobytes())
    return found.hexdigest()[:16]


class LivePair:
    """A pair that answers: its scores one query at a time, the look-up of its ids, and its digest."""

    def __init__(self, pair: TwoStagePolicy) -> None:
        self.pair, self.digest = pair, digest(pair)
        self.items: list[Id] = pair.vocabulary.item_ids.to_list()
        self.item_at = {item: place for place, item in enumerate(self.items)}
        self.query_at: dict[Id, int] = {q: place for place, q in enumerate(pair.vocabulary.query_ids.to_list())}
        self._average: tuple[Tensor, Tensor] | None = None
        self._lock = threading.Lock()

    def knows(self, query_id: Id | None) -> bool:
        """Whether the pair has an answer of its own for the query."""
        return query_id in self.query_at

    def scores(self, query_id: Id | None, available: Sequence[Id] | None = None) -> tuple[Tensor, Tensor]:
        """Both stages' scores, one query alone: the same bits whoever else is asked.  Shapes: -> [1, D], [1, D]."""
        if query_id is not None and query_id in self.query_at:
            s_c, s_r = self.pair.plain_scores([self.query_at[query_id]])
        else:
            s_c, s_r = self.average()
        if available is None:
            return s_c, s_r
        there = torch.zeros(len(self.items), dtype=torch.bool)
        there[[self.item_at[item] for item in available if item in self.item_at]] = True
        return s_c.masked_fill(~there, -torch.inf), s_r

    def average(self) -> tuple[Tensor, Tensor]:
        """The mean scores over queries that the pair knows, spread evenly over them: what it shows to a stranger."""
        with self._lock:
            if self._average is None:
                q = np.unique(np.linspace(0, len(self.query_at) - 1, min(len(self.query_at), AVERAGE)).astype(np.int64))
                totals = [torch.zeros(1, len(self.items), dtype=torch.float64) for _ in range(2)]
                for _, *scores in self.pair.batches(q):
                    for total, s in zip(totals, scores, strict=True):
                        total += s.double().sum(0, keepdim=True)
                self._average = totals[0].div(len(q)).float(), totals[1].div(len(q)).float()
            return self._average


class Server:
    """Answers queries with a pair, draws lists by a strategy, and has impressions and events recorded.

    Without a recorder nothing is remembered. With a seed the lists are the same in every run; without one they are not.
    Safe to call from several threads.
    """

    def __init__(
        self,
        pair: TwoStagePolicy,
        *,
        exploration: Exploration | None = None,
        recorder: Recorder | None = None,
        seed: int | None = None,
    ) -> None:
        self.live = LivePair(pair)
        self.exploration, self.recorder, self.seed = exploration or Exploration(), recorder, seed
        self._count, self._lock = 0, threading.Lock()
        self.unlogged = 0
        if recorder is not None:
            recorder.know(self.live)

    def rank(self, query_id: Id | None = None, *, K: int | None = None, items: Sequence[Id] | None = None) -> Ranked:
        """A list for the query; K of its places, at most the pair's; only of `items`, where those are given."""
        live, K = self.live, self.live.pair.K if K is None else K
        if not 1 <= K <= live.pair.K:
            raise InputError(f"K must be from 1 to {live.pair.K}, the places of the pair; got {K}.")
        available = None if items is None else tuple(dict.fromkeys(items))
        unknown = tuple(item for item in available or () if item not in live.item_at)
        key = self._key()
        s_c, s_r = live.scores(query_id, available)
        shown = self.exploration.draw(s_c, s_r, live.pair.K2, live.pair.K, np.array([key], np.uint64))[0][:K]
        found = Impression(
            uuid.uuid4().hex,
            time.time() if self.recorder is None else self.recorder.clock(),
            query_id,
            tuple(live.items[d] for d in shown if d >= 0),
            live.digest,
            self.exploration.name,
            key,
            K,
            None if available is None else tuple(i for i in available if i in live.item_at),
        )
        source: Literal["pair", "popular"] = "pair" if live.knows(query_id) else "popular"
        return Ranked(found.id, found.items, live.digest, source, self._record(found), unknown)

    def feedback(self, impression_id: str, events: Sequence[Event]) -> bool:
        """Records events of an impression; the same event twice counts once. Returns whether they were recorded."""
        if self.recorder is None:
            return False
        try:
            self.recorder.events(impression_id, events)
        except OutputError:
            return False
        return True

    def _record(self, impression: Impression) -> bool:
        if self.recorder is None:
            return False
        try:
            self.recorder.impression(impression)
        except OutputError:  # the journal has said so aloud; the answer goes out, and is counted as unlogged
            with self._lock:
                self.unlogged += 1
            return False
        return True

    def _key(self) -> int:
        if self.seed is None:
            return int.from_bytes(os.urandom(8), "little")
        with self._lock:
            self._count += 1
            number = self._count
        keys: NDArray[np.uint64] = random_keys(self.seed, KEYS, [number])
        return int(keys[0])
