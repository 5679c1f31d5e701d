"""A pair that answers: its scores one query at a time, the look-up of its ids, and its digest.

The scores of a query are computed alone, in an order of sums that no thread changes, so that a list can be drawn again bit
by bit; those of recent queries are kept. A query that the pair does not know is answered by its features, where both stages
are two towers, or else as the average query.
"""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandemrank._base.ids import Id, Vocabulary
from tandemrank.errors import InputError, PolicyError
from tandemrank.gradients import single
from tandemrank.policies.features import FeatureValues
from tandemrank.policies.scorers import MatrixFactorisation, Scorer
from tandemrank.policies.towers import TwoTowers

Source = Literal["pair", "features", "popular"]
Row = NDArray[np.float32]
AVERAGE = 4096  # queries that the answer for an unknown one is the average of, at most
KEPT = 256 * 2**20  # bytes of scores of recent queries
LEAST = -(2**63)  # the integer that stands for a query that nobody named


class Pair(Protocol):
    """What answering needs of a `TwoStagePolicy`."""

    @property
    def generator(self) -> Scorer:
        """Chooses the candidates."""

    @property
    def ranker(self) -> Scorer:
        """Orders them."""

    @property
    def K2(self) -> int:
        """How many candidates there are."""

    @property
    def K(self) -> int:
        """How many items are shown."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The ids of queries and items."""


def digest(pair: Pair) -> str:
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


class _Stage:
    """The scores of one stage, a row at a time; factors are kept as such, whatever made them."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer
        self.X: Row | None = None
        self.Y: Row | None = None
        with torch.no_grad():
            if isinstance(scorer, TwoTowers):
                self.X, self.Y = _plain(scorer.queries()), _plain(scorer.items())
            elif isinstance(scorer, MatrixFactorisation):
                self.X, self.Y = _plain(scorer.queries), _plain(scorer.items)

    def row(self, q: int) -> Row:
        """Shapes: -> [D]."""
        if self.X is not None and self.Y is not None:
            return single.products(self.X[q], self.Y)
        with torch.no_grad():
            return _plain(self.scorer(torch.tensor([q]))).reshape(-1)

    def of_stranger(self, features: FeatureValues) -> Row:
        """Shapes: -> [D]."""
        if not isinstance(self.scorer, TwoTowers) or self.Y is None:
            raise PolicyError("a stage that is not two towers cannot score a query by its features.")
        with torch.no_grad():
            return single.products(_plain(self.scorer.queries.of_stranger(features))[0], self.Y)


def _plain(x: Tensor) -> Row:
    return np.ascontiguousarray(x.detach().to(torch.float32).numpy())


class LivePair:
    """A pair and everything that answering needs of it; safe to use from several threads."""

    def __init__(self, pair: Pair, *, name: str = "") -> None:
        self.pair, self.digest, self.name = pair, digest(pair), name
        self.K, self.K2 = int(pair.K), int(pair.K2)
        self.stages = (_Stage(pair.generator), _Stage(pair.ranker))
        self.items: list[Id] = pair.vocabulary.item_ids.to_list()
        self.item_at = {item: place for place, item in enumerate(self.items)}
        self.query_at: dict[Id, int] = {q: place for place, q in enumerate(pair.vocabulary.query_ids.to_list())}
        self.query_kind, self.item_kind = _kind(pair.vocabulary.query_ids), _kind(pair.vocabulary.item_ids)
        self.takes_features = all(isinstance(s, TwoTowers) and s.queries.columns for s in (pair.generator, pair.ranker))
        self._kept: OrderedDict[Id, tuple[Row, Row]] = OrderedDict()
        self._room = max(16, KEPT // (8 * len(self.items)))
        self._average: tuple[Row, Row] | None = None
        self._lock = threading.Lock()

    def knows(self, query_id: object) -> bool:
        """Whether the pair has an answer of its own for the query."""
        return query_id in self.query_at

    def source(self, query_id: Id | None, features: FeatureValues | None) -> Source:
        """Whose answer a query gets."""
        if query_id is not None and query_id in self.query_at:
            return "pair"
        return "features" if features and self.takes_features else "popular"

    def rows(self, query_id: Id | None, features: FeatureValues | None = None) -> tuple[Row, Row]:
        """Both stages' scores of one query: the same bits whoever else is asked.  Shapes: -> [D], [D]."""
        source = self.source(query_id, features)
        if source == "popular":
            return self.average()
        if source == "features":
            return self.stages[0].of_stranger(features or {}), self.stages[1].of_stranger(features or {})
        assert query_id is not None
        with self._lock:
            if query_id in self._kept:
                self._kept.move_to_end(query_id)
                return self._kept[query_id]
        q = self.query_at[query_id]
        found = self.stages[0].row(q), self.stages[1].row(q)
        with self._lock:
            self._kept[query_id] = found
            if len(self._kept) > self._room:
                self._kept.popitem(last=False)
        return found

    def masked(self, rows: tuple[Row, Row], available: Sequence[Id] | None) -> tuple[Row, Row]:
        """The scores where only some items are available; the others are never candidates."""
        if available is None:
            return rows
        s_c = np.full_like(rows[0], -np.inf)
        there = [self.item_at[item] for item in available if item in self.item_at]
        s_c[there] = rows[0][there]
        return s_c, rows[1]

    def scores(
        self, query_id: Id | None, available: Sequence[Id] | None = None, features: FeatureValues | None = None
    ) -> tuple[Tensor, Tensor]:
        """The same for the race.  Shapes: -> [1, D], [1, D]."""
        s_c, s_r = self.masked(self.rows(query_id, features), available)
        return torch.from_numpy(s_c)[None], torch.from_numpy(s_r)[None]

    def average(self) -> tuple[Row, Row]:
        """The mean scores over queries that the pair knows, spread evenly over them: what it shows to a stranger."""
        with self._lock:
            if self._average is None:
                Q = len(self.query_at)
                places = np.unique(np.linspace(0, Q - 1, min(Q, AVERAGE)).astype(np.int64))
                self._average = self._mean(self.stages[0], places), self._mean(self.stages[1], places)
            return self._average

    def _mean(self, stage: _Stage, places: NDArray[np.int64]) -> Row:
        if stage.X is not None and stage.Y is not None:  # the mean of products is the product of the mean
            return single.products(stage.X[places].mean(0, dtype=np.float64).astype(np.float32), stage.Y)
        total = np.zeros(len(self.items))
        for q in places:
            total += stage.row(int(q))
        return (total / len(places)).astype(np.float32)

    def warm(self) -> None:
        """Has ready what the first answers would wait for: compiled code, and the answer for strangers."""
        for rows in (self.average(), self.rows(next(iter(self.query_at), None))):
            single.draw(*rows, self.K2, self.K, 0)


def _kind(ids: pl.Series) -> type[int] | type[str]:
    return int if ids.dtype.is_integer() else str


def as_kind(value: Id, kind: type[int] | type[str], what: str) -> Id:
    """An id as the pair has them: "17" is 17 where ids are integers, 17 is "17" where they are strings."""
    if isinstance(value, kind) and not isinstance(value, bool):
        if isinstance(value, int) and not LEAST < value < 2**63:
            raise InputError(f"{what} ids are integers of 64 bits; {value} came.")
        return value
    if kind is str:
        return str(value)
    text = str(value)
    if text.removeprefix("-").isdecimal() and text.isascii() and str(int(text[:20])) == text:
        return as_kind(int(text), kind, what)
    raise InputError(f"{what} ids of this pair are integers; {text[:60]!r} came.")


def logged_id(
    query_id: Id | None, features: FeatureValues | None, kind: type[int] | type[str], secret: bytes = b""
) -> Id:
    """The id that a query has in the log: its own, or one that its features decide, or that of nobody.

    With a secret, up to 64 bytes, nobody can find the features of an id by trying some.
    """
    if query_id is not None:
        return query_id
    if not features:
        return LEAST if kind is int else "unknown"
    text = json.dumps({name: features[name] for name in sorted(features)})
    number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, key=secret).digest(), "little")
    return LEAST + 1 + number % 2**62 if kind is int else f"features-{number:016x}"
