"""A pair that answers: its scores one query at a time, the look-up of its ids, and its digest.

The scores of a query are computed alone, in an order of sums that no thread changes, so that a list can be drawn again bit
by bit; those of recent queries are kept. Over many items, and where the re-ranker is too heavy for all of them, it is asked
about the candidates alone. A query that the pair does not know is answered by its features, where both stages are two
towers, or else as the average query.
"""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandemrank._base.ids import Id, Vocabulary
from tandemrank.errors import InputError
from tandemrank.gradients import single
from tandemrank.gradients.coarse import Bounded, Coarse
from tandemrank.policies.candidates import LARGE, is_large
from tandemrank.policies.features import FeatureValues
from tandemrank.policies.scorers import MatrixFactorisation, Scorer

Source = Literal["pair", "features", "popular"]
Row = NDArray[np.float32]
# Queries that the answer for an unknown one is the average of, at most: of factors, of other models.
AVERAGE, FEW = 4096, 64
PART = 4096  # items that a heavy re-ranker is asked about at once
KEPT = 256 * 2**20  # bytes of scores of recent queries
LEAST = -(2**63)  # the integer that stands for a query that nobody named


class ServablePolicy(Protocol):
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


def digest(pair: ServablePolicy) -> str:
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


class Who(NamedTuple):
    """Whose scores are asked for: a query that the pair knows, by its place, or one known by features, or nobody's."""

    source: Source
    q: int
    features: FeatureValues | None


class _Stage:
    """The scores of one stage, a query at a time; factors are kept as such, whatever made them."""

    def __init__(self, scorer: Scorer, Q: int, D: int) -> None:
        self.scorer, self.D = scorer, D
        self.X: Row | None = None
        self.Y: Row | None = None
        with torch.no_grad():
            if isinstance(scorer, MatrixFactorisation):
                self.X, self.Y = _plain(scorer.queries), _plain(scorer.items)
        self.coarse: Coarse | None = None
        most = AVERAGE if self.X is not None else FEW
        self._typical = np.unique(np.linspace(0, Q - 1, min(Q, most)).astype(np.int64))

    def bounded(self, who: Who) -> Bounded | None:
        """The scores of all items within bounds, where the stage keeps what gives them; the vector stays the query's."""
        return None if self.coarse is None else self.coarse.bounded(self.vector(who))

    def row(self, who: Who) -> Row:
        """Of all items.  Shapes: -> [D]."""
        if self.Y is not None:
            return single.products(self.vector(who), self.Y)
        if not self.scorer.scores_everything:
            parts = [np.arange(first, min(first + PART, self.D)) for first in range(0, self.D, PART)]
            return np.concatenate([self.some(who, items) for items in parts])
        q = self._typical if who.source == "popular" else np.array([who.q])
        with torch.no_grad():
            return _mean([_plain(self.scorer(torch.from_numpy(q[n : n + 1])))[0] for n in range(len(q))])

    def some(self, who: Who, items: NDArray[np.integer]) -> Row:
        """Of some items, the same bits whoever else is asked about.  Shapes: items [n] -> [n]."""
        if self.Y is not None:
            return single.products(self.vector(who), self.Y[items])
        q = torch.from_numpy(self._typical if who.source == "popular" else np.array([who.q]))
        with torch.no_grad():
            asked = torch.from_numpy(items.astype(np.int64)).expand(len(q), -1)
            return _mean(list(_plain(self.scorer.score(q, asked))))

    def vector(self, who: Who) -> Row:
        """Of the query; that of the average query has the average scores, as products are linear.  Shapes: -> [F]."""
        assert self.X is not None
        if who.source == "popular":
            return _mean(list(self.X[self._typical]))
        if who.source == "pair":
            found: Row = self.X[who.q]
            return found
        assert isinstance(self.scorer, TwoTowers)
        with torch.no_grad():
            return _plain(self.scorer.queries.of_stranger(who.features or {})[0])


def _mean(rows: Sequence[Row]) -> Row:
    """Of rows; one row is itself.  Shapes: rows [n, D] -> [D]."""
    if len(rows) == 1:
        return rows[0]
    return np.asarray(np.mean(rows, axis=0, dtype=np.float64), np.float32)


def _plain(x: Tensor) -> Row:
    return np.ascontiguousarray(x.detach().to(torch.float32).numpy())


class Scores:
    """Both stages' scores of one query: the generator's of all items, the re-ranker's of what one asks about.

    `first` is what lists are drawn from: the generator's scores, or bounds of them. `edge` is where the last list of these
    scores was cut. Shapes: s_c, first [D]; s_r [D] where the pair keeps all of them.
    """

    __slots__ = ("_stage", "_who", "edge", "first", "s_r")

    def __init__(self, first: Row | Bounded, s_r: Row | None, stage: _Stage, who: Who) -> None:
        self.first = first
        self.s_r = s_r
        self.edge = single.Edge()
        self._stage = stage
        self._who = who

    @property
    def s_c(self) -> Row:
        """The generator's scores; computed each time where only bounds are kept."""
        return self.first.exact() if isinstance(self.first, Bounded) else self.first

    @property
    def ranker(self) -> Row | single.Ranker:
        """The re-ranker's scores: all of them, or who gives some."""
        return self._some if self.s_r is None else self.s_r

    def _some(self, items: NDArray[np.integer]) -> Row:
        return self._stage.some(self._who, items)

    def remembering(self) -> single.Ranker:
        """Who gives the re-ranker's scores, and asks it about each item once."""
        known = np.full(self.first.size, np.nan, np.float32)

        def some(places: NDArray[np.integer]) -> Row:
            missing = np.unique(places[np.isnan(known[places])])
            if len(missing):
                known[missing] = self._some(missing) if self.s_r is None else self.s_r[missing]
            found: Row = known[places]
            return found

        return some

    def rows(self) -> tuple[Row, Row]:
        """All of both; slow where the re-ranker sees candidates alone.  Shapes: -> [D], [D]."""
        return self.s_c, self._stage.row(self._who) if self.s_r is None else self.s_r

    def only(self, there: list[int]) -> "Scores":
        """Where only some items are available: the others are no candidates."""
        found = np.full(self.first.size, -np.inf, np.float32)
        if isinstance(self.first, Bounded):
            found[there] = single.products(self.first.query, self.first.coarse.items[there])
        else:
            found[there] = self.first[there]
        return Scores(found, self.s_r, self._stage, self._who)


class LivePolicy:
    """A pair and everything that answering needs of it; safe to use from several threads."""

    def __init__(self, pair: ServablePolicy, *, name: str = "") -> None:
        self.pair, self.digest, self.name = pair, digest(pair), name
        self.K, self.K2 = int(pair.K), int(pair.K2)
        self.items: list[Id] = pair.vocabulary.item_ids.to_list()
        self.item_at = {item: place for place, item in enumerate(self.items)}
        self.query_at: dict[Id, int] = {q: place for place, q in enumerate(pair.vocabulary.query_ids.to_list())}
        D, Q = len(self.items), len(self.query_at)
        self.stages = (_Stage(pair.generator, Q, D), _Stage(pair.ranker, Q, D))
        self.ranks_candidates = self.K2 < D and is_large(pair.generator, pair.ranker)
        generator = self.stages[0]
        if self.ranks_candidates and generator.Y is not None and D > LARGE:
            generator.coarse = Coarse.of(generator.Y)
        self.query_kind, self.item_kind = _kind(pair.vocabulary.query_ids), _kind(pair.vocabulary.item_ids)
        self.takes_features = all(isinstance(s, TwoTowers) and s.queries.columns for s in (pair.generator, pair.ranker))
        self._kept: OrderedDict[Id | None, Scores] = OrderedDict()
        # A query keeps its scores by each stage, or by the first alone, and limits for its clocks.
        self._room = max(16, KEPT // ((8 if self.ranks_candidates else 12) * D))
        self._crowded = False
        self._lock = threading.Lock()

    def knows(self, query_id: object) -> bool:
        """Whether the pair has an answer of its own for the query."""
        return query_id in self.query_at

    def source(self, query_id: Id | None, features: FeatureValues | None) -> Source:
        """Whose answer a query gets."""
        if query_id is not None and query_id in self.query_at:
            return "pair"
        return "features" if features and self.takes_features else "popular"

    def scores(
        self, query_id: Id | None, features: FeatureValues | None = None, available: Sequence[Id] | None = None
    ) -> Scores:
        """The scores of one query, where only some items are available of those: the same bits whoever else is asked."""
        if available is None and query_id is not None and (kept := self._kept.get(query_id)) is not None:
            if self._crowded:
                self._touch(query_id)
            return kept
        source = self.source(query_id, features)
        name = query_id if source == "pair" else None
        who = Who(source, -1 if name is None else self.query_at[name], features if source == "features" else None)
        if available is None:
            return self._kept_scores(name, who)
        there = [self.item_at[item] for item in available if item in self.item_at]
        return self._kept_scores(name, who).only(there)

    def _kept_scores(self, name: Id | None, who: Who) -> Scores:
        if who.source == "features":
            return self._scores(who)
        if (found := self._kept.get(name)) is not None:
            self._touch(name)
            return found
        found = self._scores(who)
        with self._lock:
            self._kept[name] = found
            if len(self._kept) > self._room:
                self._kept.popitem(last=False)
            self._crowded = 2 * len(self._kept) > self._room
        return found

    def _touch(self, name: Id | None) -> None:
        """The query is the last that will be forgotten; while there is much room it matters little."""
        with self._lock:
            if name in self._kept:
                self._kept.move_to_end(name)

    def forget_scores(self) -> None:
        """Frees what is kept of recent queries; they are computed again where they are asked for."""
        with self._lock:
            self._kept.clear()
            self._crowded = False

    def _scores(self, who: Who) -> Scores:
        generator, ranker = self.stages
        if self.ranks_candidates and (found := generator.bounded(who)) is not None:
            return Scores(found, None, ranker, who)
        return Scores(generator.row(who), None if self.ranks_candidates else ranker.row(who), ranker, who)

    def rows(
        self, query_id: Id | None, available: Sequence[Id] | None = None, features: FeatureValues | None = None
    ) -> tuple[Row, Row]:
        """Both stages' scores of all items.  Shapes: -> [D], [D]."""
        return self.scores(query_id, features, available).rows()

    def warm(self) -> None:
        """Has ready what the first answers would wait for: compiled code, and the answer for strangers."""
        for query_id in (None, next(iter(self.query_at), None)):
            found = self.scores(query_id)
            for key in range(3):  # the first list of a query, and the way that the later ones take
                single.draw(found.first, found.ranker, self.K2, self.K, key, edge=found.edge)


def _kind(ids: pl.Series) -> type[int] | type[str]:
    return int if ids.dtype.is_integer() else str


def as_kind(value: Id, kind: type[int] | type[str], what: str, *, least: int = LEAST + 1) -> Id:
    """An id as the pair has them: "17" is 17 where ids are integers, 17 is "17" where they are strings."""
    if isinstance(value, kind) and not isinstance(value, bool):
        if isinstance(value, int) and not least <= value < 2**63:
            raise InputError(f"expected {what} ids that are integers of 64 bits, got {value}.")
        return value
    if kind is str:
        return str(value)
    text = str(value)
    if text.removeprefix("-").isdecimal() and text.isascii() and str(int(text[:20])) == text:
        return as_kind(int(text), kind, what)
    raise InputError(f"expected {what} ids that are integers, as this pair has them; got {text[:60]!r}.")


def features_key(features: FeatureValues, secret: bytes = b"") -> str:
    """A name of features; with a secret, up to 64 bytes, nobody can find the features of a name by trying some."""
    return hashlib.blake2b(features_text(features).encode(), digest_size=8, key=secret).hexdigest()


def features_text(features: FeatureValues) -> str:
    """Features as text, the same in whatever order they are."""
    return json.dumps({name: features[name] for name in sorted(features)})


def logged_id(key: str | None, kind: type[int] | type[str]) -> Id:
    """The id in the log of a query that has none: one that the key of its features decides, or that of nobody."""
    if key is None:
        return LEAST if kind is int else "unknown"
    return LEAST + 1 + int(key, 16) % 2**62 if kind is int else f"features-{key}"
