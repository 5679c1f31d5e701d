"""A policy that answers: its scores one query at a time, the look-up of its ids, and its digest.

The scores of a query are computed alone, in an order of sums that no thread changes, so that a list can be drawn again bit
by bit; those of recent queries are kept. Over many items, and where the re-ranker is too heavy for all of them, it is asked
about the candidates alone. A query that the policy does not know is answered by its features, where the policy was learned
with some, or else as the average query.
"""

import hashlib
import json
import math
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

from tandemrank._base.ids import Id
from tandemrank.beliefs.exploring import exploring
from tandemrank.beliefs.scorer import Believed
from tandemrank.errors import InputError, PolicyError
from tandemrank.gradients import single
from tandemrank.gradients.single import Bounded, Coarse
from tandemrank.policies.candidates import LARGE, is_large
from tandemrank.policies.features import FeatureValues
from tandemrank.policies.memory import base_of
from tandemrank.policies.scorers import Scorer
from tandemrank.policies.two_stage import TwoStagePolicy

Source = Literal["policy", "features", "popular"]
Row = NDArray[np.float32]
Inside = tuple[str | None, ...]  # the values of a context, by the columns that a policy knows
# Queries that the answer for an unknown one is the average of, at most: of factors, of other models.
AVERAGE, FEW = 4096, 64
PART = 4096  # items that a heavy re-ranker is asked about at once
KEPT = 256 * 2**20  # bytes of scores of recent queries
RAISED = 4.0, 2.0, 1.0, 0.5, 0.25, 0.1  # standard deviations that may be chosen
COST = 0.05  # the share of the expected clicks that exploration may take
ASKED, DRAWN = 100, 4  # queries, and lists of each, that tell what it takes
LEAST = -(2**63)  # the integer that stands for a query that nobody named


def digest(policy: TwoStagePolicy) -> str:
    """A name for exactly this policy: a hash of its numbers, sizes and ids."""
    found = hashlib.sha256(repr((policy.K2, policy.K)).encode())
    for ids in (policy.vocabulary.query_ids, policy.vocabulary.item_ids):
        found.update(repr((str(ids.dtype), len(ids))).encode())
        found.update("\0".join(map(str, ids.to_list())).encode())
    for stage in (policy.generator, policy.ranker):
        found.update(json.dumps([stage.kind, stage.spec()]).encode())  # the arguments of an own model are no tensors
        for name, tensor in sorted(stage.state_dict().items()):
            found.update(name.encode())
            found.update(np.ascontiguousarray(tensor.detach().numpy()).tobytes())
    return found.hexdigest()[:16]


class _Stage:
    """The scores of one stage, a query at a time, by its place; of None as of the average query.

    Factors are kept as such, whatever made them.
    """

    def __init__(self, scorer: Scorer, Q: int, D: int) -> None:
        self.scorer, self.D = scorer, D
        with torch.no_grad():
            found = scorer.factors(torch.arange(Q))
        is_product = found is not None and found.listed is None
        self.X = _plain(found.queries) if found is not None and is_product else None
        self.Y = _plain(found.items) if found is not None and is_product else None
        self.coarse: Coarse | None = None
        most = AVERAGE if self.X is not None else FEW
        self._typical = np.unique(np.linspace(0, Q - 1, min(Q, most)).astype(np.int64))

    def bounded(self, q: int | None) -> Bounded | None:
        """The scores of all items within bounds, where the stage keeps what gives them; the vector stays the query's."""
        return None if self.coarse is None else self.coarse.bounded(self.vector(q))

    def row(self, q: int | None) -> Row:
        """Of all items.  Shapes: -> [D]."""
        if self.Y is not None:
            return single.products(self.vector(q), self.Y)
        if not self.scorer.scores_everything:
            parts = [np.arange(first, min(first + PART, self.D)) for first in range(0, self.D, PART)]
            return np.concatenate([self.some(q, items) for items in parts])
        with torch.no_grad():
            return _mean([_plain(self.scorer(one[None]))[0] for one in self._queries(q)])

    def some(self, q: int | None, items: NDArray[np.integer]) -> Row:
        """Of some items, the same bits whoever else is asked about.  Shapes: items [n] -> [n]."""
        if self.Y is not None:
            return single.products(self.vector(q), self.Y[items])
        queries = self._queries(q)
        with torch.no_grad():
            asked = torch.from_numpy(items.astype(np.int64)).expand(len(queries), -1)
            return _mean(list(_plain(self.scorer.score(queries, asked))))

    def _queries(self, q: int | None) -> Tensor:
        """The query, or those that the average one is the average of.  Shapes: -> [n]."""
        return torch.from_numpy(self._typical if q is None else np.array([q]))

    def vector(self, q: int | None) -> Row:
        """Of the query; that of the average query has the average scores, as products are linear.  Shapes: -> [F]."""
        assert self.X is not None
        return _mean(list(self.X[self._typical if q is None else [q]]))


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
    scores was cut. Shapes: s_c, first [D]; s_r [D] where the policy keeps all of them.
    """

    __slots__ = ("_q", "_stage", "edge", "first", "s_r")

    def __init__(self, first: Row | Bounded, s_r: Row | None, stage: _Stage, q: int | None) -> None:
        self.first = first
        self.s_r = s_r
        self.edge = single.Edge()
        self._stage = stage
        self._q = q

    @property
    def s_c(self) -> Row:
        """The generator's scores; computed each time where only bounds are kept."""
        return self.first.exact() if isinstance(self.first, Bounded) else self.first

    @property
    def ranker(self) -> Row | single.Ranker:
        """The re-ranker's scores: all of them, or who gives some."""
        return self._some if self.s_r is None else self.s_r

    def _some(self, items: NDArray[np.integer]) -> Row:
        return self._stage.some(self._q, items)

    def only(self, there: list[int]) -> "Scores":
        """Where only some items are available: the others are no candidates."""
        found = np.full(self.first.size, -np.inf, np.float32)
        if isinstance(self.first, Bounded):
            found[there] = single.products(self.first.query, self.first.coarse.items[there])
        else:
            found[there] = self.first[there]
        return Scores(found, self.s_r, self._stage, self._q)


class LivePolicy:
    """A policy and everything that answering needs of it; safe to use from several threads. `name` is that of its folder."""

    def __init__(self, policy: TwoStagePolicy, *, name: str = "", named: str | None = None) -> None:
        self.digest, self.name = named or digest(policy), name
        self._raised: dict[float, LivePolicy] = {}
        self._affordable: dict[Sequence[float], float] = {}
        self.K, self.K2 = int(policy.K), int(policy.K2)
        query_ids, item_ids = policy.vocabulary.query_ids, policy.vocabulary.item_ids
        self.items: list[Id] = item_ids.to_list()
        self.item_at = {item: place for place, item in enumerate(self.items)}
        self.query_at: dict[Id, int] = {q: place for place, q in enumerate(query_ids.to_list())}
        self.query_kind, self.item_kind = _kind(query_ids), _kind(item_ids)
        D, Q, stages = len(self.items), len(self.query_at), (policy.generator, policy.ranker)
        self._generator, self._ranker = (_Stage(stage, Q, D) for stage in stages)
        self.ranks_candidates = self.K2 < D and is_large(*stages)
        if self.ranks_candidates and self._generator.Y is not None and D > LARGE:
            self._generator.coarse = Coarse.of(self._generator.Y)
        self._policy, self.takes_features = policy, bool(policy.ranker.query_columns)
        self._recent: OrderedDict[tuple[Id | None, Inside], Scores] = OrderedDict()
        # A query keeps its scores by each stage, or by the first alone, and limits for its clocks.
        self._room = max(16, KEPT // ((8 if self.ranks_candidates else 12) * D))
        self._lock = threading.Lock()

    def raised(self, c: float) -> "LivePolicy":
        """The same policy with its belief raised by c standard deviations, for lists that explore; under the same digest."""
        if not c:
            return self
        with self._lock:
            if c not in self._raised:
                self._raised[c] = self._raised_by(c)
            return self._raised[c]

    def _raised_by(self, c: float) -> "LivePolicy":
        found = exploring(self._policy, c)
        return self if found is self._policy else LivePolicy(found, name=self.name, named=self.digest)

    def affordable(self, theta: Sequence[float]) -> float:
        """By how many standard deviations the belief may be raised: the most that costs little of the clicks it expects itself.

            sum_k theta_k E[R of the item at k] >= (1 - COST) of the same of lists that are drawn as the policy was trained

        A thin log leaves most items unknown, and lists of nothing else would be a bad service. Without a belief nothing is
        raised, so by any number.
        """
        belief = base_of(self._policy.ranker)
        if not isinstance(belief, Believed):
            return math.inf
        if theta not in self._affordable:
            curve = np.asarray(theta)
            wanted = (1 - COST) * self._expected(self, belief, curve)
            costs_little = (c for c in RAISED if self._expected(self._raised_by(c), belief, curve) >= wanted)
            self._affordable[theta] = next(costs_little, 0.0)
        return self._affordable[theta]

    def _expected(self, drawn_by: "LivePolicy", belief: Believed, theta: NDArray[np.float64]) -> float:
        """The clicks that the belief expects of lists that a version of the policy draws, summed over them."""
        total, every = 0.0, max(1, len(self.query_at) // ASKED)
        for query, q in list(self.query_at.items())[::every]:
            found, trained = drawn_by.scores(query), self.scores(query).ranker
            sharpness = belief.sharpness * float(belief.scale(torch.tensor([q])))
            for key in range(DRAWN):
                shown = single.draw(found.first, found.ranker, self.K2, self.K, key, edge=found.edge)
                shown = shown[shown >= 0]
                scores = trained[shown] if isinstance(trained, np.ndarray) else trained(shown)
                total += float(theta[: len(shown)] @ expit(scores.astype(np.float64) / sharpness))
        return total

    def source(self, query_id: Id | None, features: FeatureValues | None) -> Source:
        """Whose answer a query gets."""
        if query_id is not None and query_id in self.query_at:
            return "policy"
        return "features" if features and self.takes_features else "popular"

    def scores(
        self,
        query_id: Id | None,
        features: FeatureValues | None = None,
        available: Sequence[Id] | None = None,
        context: Mapping[str, str | None] | None = None,
    ) -> Scores:
        """The scores of one query, where only some items are available of those: the same bits whoever else is asked.

        Of a context the columns count that the policy knows."""
        source, inside = self.source(query_id, features), self._known(context)
        if source == "features":
            found = self._of_stranger(features, inside)
        else:
            found = self._remembered(query_id if source == "policy" else None, inside)
        if available is None:
            return found
        return found.only([self.item_at[item] for item in available if item in self.item_at])

    def _known(self, context: Mapping[str, str | None] | None) -> Inside:
        """The values of a context that the policy knows; nothing where it knows none."""
        found = tuple((context or {}).get(name) for name in self._policy.context_columns)
        return found if any(value is not None for value in found) else ()

    def _of_stranger(self, features: FeatureValues | None, inside: Inside = ()) -> Scores:
        """Of a query that the policy has not seen, by its features, or as the average one."""
        table = None if features is None else self._policy.ranker.query_table(features)
        ids = self._policy.vocabulary.query_ids
        policy = self._policy.strangers(pl.Series([logged_id(None, self.query_kind)], dtype=ids.dtype), table)
        return self._inside(policy, 0, inside)

    def _inside(self, policy: TwoStagePolicy, q: int, inside: Inside) -> Scores:
        """Of a query of a policy, in a context if there is one."""
        stages: tuple[Scorer, ...] = policy.generator, policy.ranker
        if inside:
            names = policy.context_columns
            table = pl.DataFrame([inside], schema=dict.fromkeys(names, pl.String), orient="row")
            stages, q = tuple(stage.in_contexts(np.array([q]), table) for stage in stages), 0
        return self._computed(q, *(_Stage(stage, 1, len(self.items)) for stage in stages))

    def _nobodys(self, inside: Inside) -> Scores:
        """Of nobody's query: as the policy answers a stranger, or the average of what it knows, where it answers none."""
        try:
            return self._of_stranger(None, inside)
        except PolicyError:
            return self._computed(None)

    def _remembered(self, query_id: Id | None, inside: Inside) -> Scores:
        """Of a query that the policy knows, or of the average one; those asked for most recently are kept."""
        name = query_id, inside
        with self._lock:
            if (found := self._recent.get(name)) is not None:
                self._recent.move_to_end(name)
                return found
        if query_id is None:
            found = self._nobodys(inside)
        else:
            q = self.query_at[query_id]
            found = self._inside(self._policy, q, inside) if inside else self._computed(q)
        with self._lock:
            self._recent[name] = found
            if len(self._recent) > self._room:
                self._recent.popitem(last=False)
        return found

    def _computed(self, q: int | None, generator: _Stage | None = None, ranker: _Stage | None = None) -> Scores:
        """By our own stages, or by those of a stranger."""
        generator, ranker = generator or self._generator, ranker or self._ranker
        if self.ranks_candidates and (found := generator.bounded(q)) is not None:
            return Scores(found, None, ranker, q)
        return Scores(generator.row(q), None if self.ranks_candidates else ranker.row(q), ranker, q)

    def warm(self) -> None:
        """Has ready what the first answers would wait for: compiled code, and the answer for strangers."""
        for query_id in (None, next(iter(self.query_at), None)):
            found = self.scores(query_id)
            for key in range(3):  # the first list of a query, and the way that the later ones take
                single.draw(found.first, found.ranker, self.K2, self.K, key, edge=found.edge)


def _kind(ids: pl.Series) -> type[int] | type[str]:
    return int if ids.dtype.is_integer() else str


def as_kind(value: Id, kind: type[int] | type[str], what: str, *, least: int = LEAST + 1) -> Id:
    """An id as the policy has them: "17" is 17 where ids are integers, 17 is "17" where they are strings."""
    if isinstance(value, kind) and not isinstance(value, bool):
        if isinstance(value, int) and not least <= value < 2**63:
            raise InputError(f"expected {what} ids that are integers of 64 bits, got {value}.")
        return value
    if kind is str:
        return str(value)
    text = str(value)
    if text.removeprefix("-").isdecimal() and text.isascii() and str(int(text[:20])) == text:
        return as_kind(int(text), kind, what)
    raise InputError(f"expected {what} ids that are integers, as this policy has them; got {text[:60]!r}.")


def features_text(features: FeatureValues) -> str:
    """Features as text, the same in whatever order they are."""
    return json.dumps({name: features[name] for name in sorted(features)})


def logged_id(features: FeatureValues | None, kind: type[int] | type[str]) -> Id:
    """The id in the log of a query that has none: one that its features decide, or that of nobody."""
    if not features:
        return LEAST if kind is int else "unknown"
    key = hashlib.blake2b(features_text(features).encode(), digest_size=8).hexdigest()
    return LEAST + 1 + int(key, 16) % 2**62 if kind is int else f"features-{key}"
