"""The beliefs of a log as the stages of a policy: the belief re-ranks, the product nearest to it generates.

    s[q, d]     = <x_q, y_d> + f(q, d)                          before the pair's own showings, f where it is not a product
    l[q, d]     = s / sqrt(1 + pi / 8 (spread^2 + v_q v_d))     the log-odds of E[R | s], s known up to a variance v_q v_d
    score(q, d) = sharpness l[q, d]                             of a remembered pair l is the log-odds of what its showings say

A query that the log has not seen has the vector of nobody, and what its features say: by f, and by the opinion that production
would have of it. An item likewise.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from scipy.special import digamma
from torch import Tensor, nn

from tandemrank._base.ids import Vocabulary
from tandemrank.beliefs.belief import Beliefs
from tandemrank.beliefs.features import Side, pair_table
from tandemrank.beliefs.models import FeatureModel, ProductModel
from tandemrank.beliefs.regression import Regression
from tandemrank.errors import PolicyError
from tandemrank.gradients import products
from tandemrank.policies.contexts import QUERIES, ContextShift, numbers_of
from tandemrank.policies.features import FeatureSource, FeatureValues
from tandemrank.policies.memory import (
    Listing,
    Memory,
    Retrieval,
    contexts_from,
    matters,
    memory_from,
    nearest,
    no_memory,
    some,
)
from tandemrank.policies.scorers import Scorer

Floats = NDArray[np.float64]

# The best lists do not depend on it. Drawn by the log-odds alone, an item would be shown as often as it is relevant; the first
# of these is taken by which drawn lists lose little of what the beliefs expect of the best ones.
SHARPNESS = (4.0, 8.0, 16.0, 32.0, 64.0)
LITTLE = 0.01
DRAWN = 200, 100, 10, 8  # queries, items of each, places and draws that tell what drawn lists lose
FLAT = np.pi / 8  # E sigmoid(N(mu, v)) = sigmoid(mu / sqrt(1 + pi v / 8)), nearly
REMEMBERED = 20_000_000  # shown pairs that a stage remembers at most, those that say most; one takes 8 bytes
SOME = 500  # queries that tell which items matter
SCORED, FOLDED = 1_000_000, 1000  # pairs that f is asked about for the directions of a generator, and queries at once
AVERAGE, BLOCK = 256, 16  # queries that the average is taken over, and how many at once
MANY, CELLS = 2**25, 2**22  # pairs of them in all, and at once, at most: where items are very many, queries are fewer
SEVERAL = 10  # items that are looked at for each of those with the highest relevance that are wanted
LEAST = 1e-9  # of a chance, whose log-odds are taken
NEARLY = 1e-6  # the same in single precision


@dataclass(frozen=True)
class BeliefSpread:
    """How far relevance spreads around its mean, how well the means are known, v_q v_d, and how sharp drawn lists are.

    `upper`: how many standard deviations scores are raised by, to explore what is not known (`beliefs.exploring`).
    Shapes: query [Q]; item [D].
    """

    around: float
    query: NDArray[np.float32]
    item: NDArray[np.float32]
    sharpness: float = SHARPNESS[0]
    upper: float = 0.0


@dataclass(frozen=True)
class Nobody:
    """The vectors of a query and of an item of which nothing is known, their spreads, and where what features say belongs.

    `opinion` and `f`: the columns of production's opinion and of f; `weight`: of the opinion. `by_query`, `by_item`: what the
    numbers of features add to the vectors, the last row a constant; no rows where there are none.
    Shapes: query, item [F]; by_query, by_item [J + 1, F] or [0, F].
    """

    query: NDArray[np.float32]
    item: NDArray[np.float32]
    spread: tuple[float, float]
    opinion: tuple[int, int]
    f: tuple[int, int]
    weight: float
    by_query: NDArray[np.float32]
    by_item: NDArray[np.float32]


class Believed(Listing):
    """The belief as the scores of the re-ranker: nothing of it is trained.  Shapes: queries [Q, F], items [D, F]."""

    kind = "belief"
    queries: Tensor
    items: Tensor
    query_spread: Tensor
    item_spread: Tensor
    nobody_query: Tensor
    nobody_item: Tensor
    by_query: Tensor
    by_item: Tensor
    doubt: Tensor

    def __init__(
        self,
        queries: NDArray[Any],
        items: NDArray[Any],
        spread: BeliefSpread,
        memory: Memory,
        nobody: Nobody,
        f: FeatureModel | None = None,
        sides: tuple[Side, Side] | None = None,
        contexts: ContextShift | None = None,
    ) -> None:
        """`memory`: the log-odds of the expected relevance of pairs that were shown, and their doubts. `sides`: how features
        become numbers, where there is no f that has them; None where there are no features."""
        super().__init__(memory, contexts)
        self.around, self.sharpness, self.nobody = float(spread.around), float(spread.sharpness), nobody
        self.upper = spread.upper
        self.f = None if f is None else f.requires_grad_(False)
        self.sides = nn.ModuleList(sides if f is None and sides is not None else ())
        doubt = memory.doubt if len(memory.doubt) else np.zeros(len(memory.value), np.float32)
        named = {
            "queries": queries, "items": items, "query_spread": spread.query, "item_spread": spread.item,
            "nobody_query": nobody.query, "nobody_item": nobody.item,
            "by_query": nobody.by_query, "by_item": nobody.by_item, "doubt": doubt,
        }  # fmt: skip
        for name, values in named.items():
            self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(values, np.float32)))

    @property
    def is_product(self) -> bool:
        """Whether f, if there is one, is among the vectors."""
        return self.f is None or (isinstance(self.f.model, ProductModel) and not self.f.model.sizes[2])

    def _side(self, place: int) -> Side | None:
        """How features of queries (0) or items (1) become numbers; None where there are none."""
        if self.f is not None:
            return (self.f.query, self.f.item)[place]
        return self.sides[place] if len(self.sides) else None  # type: ignore[return-value]

    def _both(self) -> tuple[Side, Side] | None:
        return (self.sides[0], self.sides[1]) if len(self.sides) else None  # type: ignore[return-value]

    def forward(self, q: Tensor) -> Tensor:
        return self.sharpness * self._with_list(self.before(q), q)

    def before(self, q: Tensor) -> Tensor:
        """The log-odds of all items, as if none had been shown.  Shapes: q [B] -> [B, D]."""
        s = self.queries[q] @ self.items.T
        if self.f is not None and not self.is_product:
            s = s + torch.from_numpy(self.f.matrix(q.numpy()).astype(np.float32))
        return self._log_odds(s + self._shift(q), q, self.item_spread)

    def score(self, q: Tensor, items: Tensor) -> Tensor:
        return self.sharpness * self._with_listed(self.before_at(q, items), q, items)

    def before_at(self, q: Tensor, items: Tensor) -> Tensor:
        """The same of some items.  Shapes: q [B]; items [B, M] -> [B, M]."""
        s = products.at(self.queries[q], self.items, items)
        if self.f is not None and not self.is_product:
            of_pairs = self.f.at(q[:, None].expand(items.shape).ravel().numpy(), items.ravel().numpy())
            s = s + torch.from_numpy(of_pairs.astype(np.float32)).view(items.shape)
        return self._log_odds(s + self._shift_at(q, items), q, self.item_spread[items])

    def _flat(self, q: Tensor, v: Tensor) -> Tensor:
        """1 / sqrt(1 + pi / 8 (spread^2 + v_q v_d)), over that of the mean item: what is not known of items in general is no
        reason to draw at random, and changes no order.  Shapes: q [B]; v [D] or [B, M] -> [B, D] or [B, M]."""
        flat: Tensor = 1 / torch.sqrt(1 + FLAT * (self.around**2 + self.query_spread[q][:, None] * v))
        return flat * self.scale(q)[:, None]

    def _log_odds(self, s: Tensor, q: Tensor, v: Tensor) -> Tensor:
        """The log-odds of E[R | s], or of its upper end, where one is asked for.  Shapes: s [B, M]; q [B]; v [M] or [B, M]."""
        if not self.upper:
            return s * self._flat(q, v)
        return raised(s, self.around, self.query_spread[q][:, None] * v, self.upper) * self.scale(q)[:, None]

    def scale(self, q: Tensor) -> Tensor:
        """The scale of a query's scores, that of its mean item.  Shapes: q [B] -> [B]."""
        return torch.sqrt(1 + FLAT * (self.around**2 + self.query_spread[q] * self.item_spread.mean()))

    def _listed(self, q: Tensor, entries: Tensor) -> Tensor:
        value = self.value[entries]
        if self.upper:
            value = _raised(torch.sigmoid(value), self.upper * self.doubt[entries])
        return value * self.scale(q.ravel()).view(q.shape)

    @property
    def memory(self) -> Memory:
        """What is remembered, doubts included."""
        return replace(super().memory, doubt=self.doubt.numpy())

    def spec(self) -> dict[str, Any]:
        (Q, F), D, n = self.queries.shape, self.D, self.nobody
        return {
            "Q": Q, "D": D, "F": F, "entries": len(self.value), "spread": self.around, "sharpness": self.sharpness,
            "nobody": {"spread": list(n.spread), "opinion": list(n.opinion), "f": list(n.f), "weight": n.weight},
            "suggested": [len(self.by_query), len(self.by_item)],
            "features": None if self.f is None else self.f.spec(), "sides": [side.spec() for side in self._both() or ()],
            **self._contexts_spec(),
        }  # fmt: skip

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> "Believed":
        Q, D, F = spec["Q"], spec["D"], spec["F"]
        spread = BeliefSpread(
            float(spec["spread"]), np.zeros(Q, np.float32), np.zeros(D, np.float32), float(spec["sharpness"])
        )
        n = {name: tuple(x) if isinstance(x, list) else float(x) for name, x in spec["nobody"].items()}
        shapes = (F,), (F,), *((rows, F) for rows in spec["suggested"])
        query, item, by_query, by_item = (np.zeros(shape, np.float32) for shape in shapes)
        f = None if spec["features"] is None else FeatureModel.from_spec(spec["features"])
        sides = [Side(**side) for side in spec["sides"]]
        return cls(
            np.zeros((Q, F)), np.zeros((D, F)), spread, no_memory(Q, D, spec["entries"]),
            Nobody(query, item, **n, by_query=by_query, by_item=by_item), f,  # type: ignore[arg-type]
            (sides[0], sides[1]) if sides else None, contexts_from(spec),
        )  # fmt: skip

    def per_query_parameters(self) -> Sequence[nn.Parameter]:
        return []

    @property
    def query_columns(self) -> tuple[str, ...]:
        side = self._side(0)
        return () if side is None else side.encoder.names

    def query_table(self, values: FeatureValues) -> pl.DataFrame:
        side = self._side(0)
        return super().query_table(values) if side is None else side.table(values)

    def strangers(self, features: pl.DataFrame | None, ids: Vocabulary) -> "Believed":
        n, side = len(ids.query_ids), self._side(0)
        x, f = self.nobody_query.expand(n, -1).clone(), self.f
        _refuse_unknown(features, side, "queries")
        if side is not None:
            encoded = side.of_table(features, n)
            if side.features and features is not None:
                x[:, -2:] = torch.tensor([1.0, 0.0])
            x += _suggested(encoded.numbers, self.by_query)
            x[:, slice(*self.nobody.opinion)] = self.nobody.weight * side.opinions(encoded)
            if f is not None:
                rows = side.unseen(encoded)
                f = f.with_queries(rows)
                if self.is_product and f.of_new[0]:
                    x[:, slice(*self.nobody.f)] = f.model.queries(rows[:, : f.model.sizes[0]])  # type: ignore[operator]
        spread = BeliefSpread(
            self.around,
            np.full(n, self.nobody.spread[0], np.float32),
            self.item_spread.numpy(),
            self.sharpness,
            self.upper,
        )
        none = Memory(np.zeros(n + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), self.D)
        contexts = None if self.contexts is None else self.contexts.without_lists()
        return Believed(x.numpy(), self.items.numpy(), spread, none, self._nobody(), f, self._both(), contexts)

    def more_items(self, features: pl.DataFrame | None, ids: Vocabulary) -> "Believed":
        n, side = len(ids.item_ids) - self.D, self._side(1)
        y, f, contexts = self.nobody_item.expand(n, -1).clone(), self.f, self.contexts
        _refuse_unknown(features, side, "items")
        if side is not None:
            encoded = side.of_table(features, n)
            if contexts is not None and len(contexts.by_item) > 1:
                numbers = side.unseen(encoded)[:, -side.features :].numpy()
                contexts = contexts.with_items(n, _suggested(numbers, contexts.by_item))
            y += _suggested(encoded.numbers, self.by_item)
            y[:, slice(*self.nobody.opinion)] = side.opinions(encoded)
            if f is not None:
                rows = side.unseen(encoded)
                f = f.with_items(rows)
                if self.is_product and f.of_new[1]:
                    y[:, slice(*self.nobody.f)] = f.model.items(rows[:, : f.model.sizes[1]])  # type: ignore[operator]
        item = np.append(self.item_spread.numpy(), np.full(n, self.nobody.spread[1], np.float32))
        spread = BeliefSpread(self.around, self.query_spread.numpy(), item, self.sharpness, self.upper)
        memory, items = replace(self.memory, D=self.D + n), torch.cat([self.items, y]).numpy()
        if contexts is not None and len(contexts.shift) == self.D:
            contexts = contexts.with_items(n, contexts.by_item[-1].expand(n, -1))
        return Believed(self.queries.numpy(), items, spread, memory, self._nobody(), f, self._both(), contexts)

    def more_pairs(self, features: FeatureSource, ids: Vocabulary) -> "Believed":
        if self.f is None:
            return self  # what features say of pairs is not used
        if not self.f.pairs.width:
            return super().more_pairs(features, ids)  # type: ignore[return-value]  # refuses them
        found = copy.copy(self)
        found._modules = {**self._modules, "f": self.f.with_pairs(pair_table(features, ids))}
        return found

    def after(self, old: Scorer, new: Scorer, ids: Vocabulary) -> Scorer:
        return new  # where there is one stage, it is the belief

    def joined(self, other: Scorer, ids: Vocabulary) -> "Believed":
        assert isinstance(other, Believed)
        queries = torch.cat([self.queries, other.queries]).numpy()
        query = torch.cat([self.query_spread, other.query_spread]).numpy()
        f = None if self.f is None or other.f is None else self.f.joined(other.f)
        spread = BeliefSpread(self.around, query, other.item_spread.numpy(), self.sharpness, self.upper)
        memory = replace(self._joined_memory(other), doubt=torch.cat([self.doubt, other.doubt]).numpy())
        return Believed(queries, other.items.numpy(), spread, memory, self._nobody(), f, self._both(), self.contexts)

    def _of_queries(self, q: NDArray[np.int64], memory: Memory, contexts: ContextShift | None) -> "Believed":
        rows = torch.from_numpy(q)
        f = None if self.f is None else self.f.of_queries(rows)
        spread = BeliefSpread(
            self.around, self.query_spread[rows].numpy(), self.item_spread.numpy(), self.sharpness, self.upper
        )
        queries = self.queries[rows].numpy()
        return Believed(queries, self.items.numpy(), spread, memory, self._nobody(), f, self._both(), contexts)

    def check(self) -> None:
        """Refuses numbers that are not finite, and columns of nobody's vector that are not there."""
        super().check()
        if self.f is not None:
            self.f.model.check()
        F = self.queries.shape[1]
        for columns in (self.nobody.opinion, self.nobody.f):
            if (
                len(columns) != 2
                or not all(isinstance(n, int) for n in columns)
                or not 0 <= columns[0] <= columns[1] <= F
            ):
                raise PolicyError(f"expected columns from 0 to {F} of what is not known; got {columns}")
        numbers = (self.around, self.sharpness, *self.nobody.spread, self.nobody.weight)
        if not all(math.isfinite(x) and x >= 0 for x in numbers[:-1]) or not math.isfinite(numbers[-1]):
            raise PolicyError("expected spreads of 0 or more, and a finite weight; got others")

    def _nobody(self) -> Nobody:
        return replace(
            self.nobody,
            query=self.nobody_query.numpy(),
            item=self.nobody_item.numpy(),
            by_query=self.by_query.numpy(),
            by_item=self.by_item.numpy(),
        )


def raised(s: Tensor, around: float, v: Tensor, c: float) -> Tensor:
    """The log-odds of E[R] + c sd[R], of a relevance whose log-odds are normal around s with variance around^2 + v.

        E[R] = sigmoid(s / sqrt(1 + pi / 8 (around^2 + v)));     Var[R] by three nodes;  of a bit (around = 0) p (1 - p)

    Shapes: s, v of shapes that go together -> the same.
    """
    V = around**2 + v
    mean = torch.sigmoid(s / torch.sqrt(1 + FLAT * V))
    if around == 0:
        variance = mean * (1 - mean)
    else:
        far = torch.sqrt(3 * V)
        low, middle, high = (torch.sigmoid(s + z * far) for z in (-1, 0, 1))
        first = (low + 4 * middle + high) / 6
        variance = (low.square() + 4 * middle.square() + high.square()) / 6 - first.square()
    return _raised(mean, c * variance.clamp(min=0).sqrt())


def _raised(mean: Tensor, by: Tensor) -> Tensor:
    return torch.logit((mean + by).clamp(NEARLY, 1 - NEARLY))


def _refuse_unknown(features: pl.DataFrame | None, side: Side | None, what: str) -> None:
    """Refuses features where there were none to learn from."""
    if features is not None and (side is None or not side.encoder.names):
        raise PolicyError(f"this policy was learned without features of {what}: leave them out.")


def _suggested(numbers: NDArray[np.float32], weights: Tensor) -> Tensor:
    """What features add to vectors.  Shapes: numbers [n, J]; weights [J + 1, F] or [0, F] -> [n, F]."""
    if not len(weights):
        return torch.zeros(len(numbers), weights.shape[1])
    return torch.from_numpy(numbers) @ weights[:-1] + weights[-1]


def ranker_of(beliefs: Beliefs) -> Believed:
    """The re-ranker: the log-odds of the expected relevance.  Shapes: queries [Q, F], items [D, F]."""
    x, y, level = beliefs.product()
    spread = BeliefSpread(
        around=beliefs.chosen.grades.spread,
        query=beliefs.query_spread.astype(np.float32),
        item=beliefs.item_spread.astype(np.float32),
        sharpness=sharpness_of(beliefs),
    )
    # The last two columns are levels of items: for queries of the log and those with features, and for those of which nothing
    # is known.
    seen = beliefs.counts.impressions > 0
    known = (seen | (beliefs.inputs.sides[0].features > 0)).astype(np.float32)
    queries = np.column_stack([x, known, 1 - known])
    items = np.column_stack([y, level, average_levels(beliefs)])
    inputs, nobody = beliefs.inputs, nobody_of(beliefs, items)
    queries[~seen, nobody.opinion[1] : nobody.f[0]] = 0  # what production left out, who had no chance to be shown it
    sides = inputs.sides if any(side.features for side in inputs.sides) else None
    return Believed(queries, items, spread, memory_of(beliefs), nobody, inputs.model, sides, contexts_of(beliefs))


def contexts_of(beliefs: Beliefs) -> ContextShift | None:
    """What contexts change of the log-odds, if they do."""
    found = beliefs.contexts
    if found is None:
        return None
    columns = [{"name": column.name, "values": column.values} for column in found.columns]
    key = numbers_of(found.columns, found.query, found.codes)
    order = np.lexsort((found.item, key))
    distinct, first = np.unique(key[order], return_index=True)
    shift = ContextShift(columns, len(found.shift), len(found.by_item) - 1, len(distinct), len(order))
    low, high = beliefs.chosen.grades.range
    value = log_odds((1 / (1 + np.exp(-found.value)) - low) / (high - low))
    tensors = {
        "shift": found.shift, "by_item": found.by_item, "key": distinct, "first": np.append(first, len(order)),
        "item": found.item[order], "value": value[order],
    }  # fmt: skip
    for name, values in tensors.items():
        getattr(shift, name)[:] = torch.from_numpy(np.ascontiguousarray(values))
    return shift


def sharpness_of(beliefs: Beliefs) -> float:
    """How sharp scores must be for drawn lists to lose little: where relevances are close, more so."""
    queries, items, K, draws = DRAWN
    rng = np.random.default_rng(1)
    some = np.sort(rng.permutation(beliefs.counts.rows)[:queries])
    rows = []
    for first in range(0, len(some), BLOCK):
        found = beliefs.top(some[first : first + BLOCK], SEVERAL * items)
        rows += [-np.sort(-own)[:items] for own in np.split(found.data, found.indptr[1:-1])]
    R = np.vstack(rows)
    theta = 1 / np.arange(1, min(K, R.shape[1]) + 1)
    best = float((R[:, : len(theta)] @ theta).sum())
    clocks = rng.gumbel(size=(draws, *R.shape))
    for sharpness in SHARPNESS:
        order = np.argsort(-(sharpness * log_odds(R) + clocks), axis=-1)[..., : len(theta)]
        drawn = float((np.take_along_axis(R[None].repeat(draws, 0), order, -1) @ theta).sum()) / draws
        if drawn >= (1 - LITTLE) * best:
            break
    return sharpness


def average_levels(beliefs: Beliefs) -> NDArray[np.float32]:
    """What an item is to a query of which nothing is known: the log-odds of its mean relevance over the queries of the log.

    The level of an item is that of the queries it was shown to: what few were shown, and those liked, is not for everybody.
    Where features say what a query likes, the level beside them is the item's own.
    Shapes: -> [D].
    """
    rows, grades = beliefs.counts.rows, beliefs.chosen.grades
    D = beliefs.counts.D
    some = np.sort(np.random.default_rng(0).permutation(rows)[: max(1, min(AVERAGE, MANY // D))])
    total, block = np.zeros(D), max(1, min(BLOCK, CELLS // D))
    for first in range(0, len(some), block):
        total += beliefs.matrix(some[first : first + block])[:, :-1].sum(0)
    low, high = grades.range
    return log_odds((total / len(some) - low) / (high - low))


def log_odds(p: NDArray[np.floating]) -> NDArray[np.float32]:
    """log(p / (1 - p)), of chances that are not quite 0 or 1."""
    p = np.clip(p, LEAST, 1 - LEAST)
    found: NDArray[np.float32] = np.log(p / (1 - p)).astype(np.float32)
    return found


def nobody_of(beliefs: Beliefs, items: NDArray[np.floating]) -> Nobody:
    """Who is not known: the prior's mean, and an item of the middle level."""
    F, inputs = beliefs.x.shape[1], beliefs.inputs
    opinion = (F, F + inputs.opinion[1].shape[1])
    never = (opinion[1], opinion[1] + inputs.choice.never[0].shape[1])
    query, item = (np.zeros(items.shape[1], np.float32) for _ in range(2))
    # Who had no chance to be chosen was not left out: production's choice is what it is without any list.
    alpha = inputs.choice.alpha
    unchosen = inputs.w[0] * (digamma(alpha + 1) - np.log(alpha))
    query[-1] = 1
    item[F - 1], item[-2:] = 1, np.median(items[:, -2:], axis=0)
    item[-2] += unchosen
    of_f = (never[1], items.shape[1] - 2)
    by_query, by_item = (_in_columns(one, items.shape[1]) for one in inputs.suggested)
    by_item[:, -2:] = by_item[:, [F - 1]]  # the level of an item, to known queries and to others
    by_item[:, F - 1] = 0
    return Nobody(
        query=query,
        item=item,
        spread=(float(beliefs.query_spread.max()), float(np.quantile(beliefs.item_spread, 0.9))),
        opinion=opinion,
        f=of_f,
        weight=float(inputs.w[0] + inputs.w[1]),
        by_query=by_query,
        by_item=by_item,
    )


def _in_columns(found: Regression | None, F: int) -> NDArray[np.float32]:
    """A regression of the first columns of the vectors, its constant last.  Shapes: -> [J + 1, F], or [0, F] without one."""
    if found is None:
        return np.zeros((0, F), np.float32)
    weights = np.zeros((len(found.W) + 1, F), np.float32)
    weights[:, : found.W.shape[1]] = np.vstack([found.W, found.constant])
    return weights


def memory_of(beliefs: Beliefs) -> Memory:
    """The log-odds of what the showings of each pair say, of a bit those of its being relevant, and its standard deviation."""
    counts, (low, high) = beliefs.counts, beliefs.chosen.grades.range
    mean, variance = beliefs.remembered
    wide = high - low
    found = memory_from(counts.query, counts.item, log_odds((mean - low) / wide), counts.Q, counts.D)
    return replace(found, doubt=(np.sqrt(variance) / wide).astype(np.float32)).limited(REMEMBERED)


def generator_of(ranker: Believed, rank: int) -> Retrieval:
    """The generator nearest to a re-ranker, of so many dimensions, with what the re-ranker remembers as its lists.

    A constant of each query changes no list of a product, so it is left out, of the lists too.
    Shapes: queries [Q, rank], items [D, rank].
    """
    queries, items, constant = (_nearest_product if ranker.is_product else _nearest_to_scores)(ranker, rank)
    memory = ranker.memory
    scale = ranker.scale(torch.from_numpy(memory.query)).numpy()
    value = ranker.sharpness * memory.value * scale - constant[memory.query]
    contexts = ranker.contexts
    if contexts is not None:
        of = np.repeat(contexts.key.numpy() % QUERIES, np.diff(contexts.first.numpy()))
        listed = ranker.sharpness * contexts.value.numpy() * ranker.scale(torch.from_numpy(of)).numpy() - constant[of]
        contexts = contexts.scaled(ranker.sharpness, listed.astype(np.float32))
    return Retrieval(queries, items, replace(memory, value=value.astype(np.float32)), contexts)


def _nearest_product(ranker: Believed, rank: int) -> tuple[Floats, Floats, Floats]:
    """Of a re-ranker that is a product, its nearest one of few dimensions, and the constants of queries.

        X (Y - m)' C^(1/2) = U S V'   ->   queries U S^(1/2), items C^(-1/2) V S^(1/2), their first `rank` columns

    with C how much an item matters: near the top of a list, where relevant items are.
    Shapes: -> [Q, rank], [D, rank], [Q].
    """
    X = ranker.queries.double().numpy()
    v = ranker.item_spread.double().numpy()
    flat = 1 / np.sqrt(1 + FLAT * (ranker.around**2 + v))
    Y = ranker.items.double().numpy() * (ranker.sharpness * flat / flat.mean())[:, None]
    some, matters = X[:: max(1, len(X) // SOME)], np.full(len(Y), 0.1)
    for part in np.array_split(some, min(len(some), -(-len(some) * len(Y) // CELLS))):
        scores = part @ Y.T
        top = np.exp(scores - scores.max(1, keepdims=True))
        matters += (top / top.sum(1, keepdims=True)).sum(0) * len(Y) / len(some)
    middle = matters @ Y / matters.sum()
    root = np.sqrt(matters)[:, None]
    (Qx, Rx), (Qy, Ry) = np.linalg.qr(X), np.linalg.qr((Y - middle) * root)
    U, S, Vt = np.linalg.svd(Rx @ Ry.T)
    n = min(rank, len(S))
    half = np.sqrt(S[:n])
    return Qx @ U[:, :n] * half, (Qy @ Vt[:n].T) * half / root, X @ middle


def _nearest_to_scores(ranker: Believed, rank: int) -> tuple[Floats, Floats, Floats]:
    """The same where f is no product: directions of the items by the scores of some queries, then vectors of all queries by the
    scores of some items (`memory.nearest`)."""
    Q, D = len(ranker.queries), ranker.D
    q = some(Q, max(SCORED // D, rank))
    scores = ranker.sharpness * torch.cat([ranker.before(part) for part in torch.split(q, BLOCK)]).double()
    matter = matters(scores).mean(0)
    root = matter.sqrt()
    _, S, Vt = torch.linalg.svd((scores - (scores @ matter / matter.sum())[:, None]) * root, full_matrices=False)
    items = Vt[:rank].T * S[:rank].sqrt() / root[:, None]
    at = some(D)
    found = [
        nearest(ranker.sharpness * ranker.before_at(part, at.expand(len(part), -1)), items[at])
        for part in torch.split(torch.arange(Q), FOLDED)
    ]
    queries, constant = (torch.cat(parts).double() for parts in zip(*found, strict=True))
    balance = torch.sqrt(items.norm() / queries.norm().clamp_min(LEAST))
    return (queries * balance).numpy(), (items / balance).numpy(), constant.numpy()
