"""`Beliefs`: what a log says of relevance, a mean and a variance of R for any pairs, and the product part for a generator."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank._base.sparse import entries_of_rows
from tandemrank.beliefs.choice import Choice, products_of
from tandemrank.beliefs.counts import Counts, joined
from tandemrank.beliefs.features import Side
from tandemrank.beliefs.grades import Floats32, Grades
from tandemrank.beliefs.model import Belief, RewardModel
from tandemrank.beliefs.model_fit import NO_MODEL, ModelChoice
from tandemrank.beliefs.models import FeatureModel, ProductModel
from tandemrank.beliefs.regression import Regression
from tandemrank.beliefs.space import Space
from tandemrank.gradients import lazy_race
from tandemrank.gradients.products import Products
from tandemrank.policies.features import Categorical

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Items = NDArray[np.integer]


@dataclass(frozen=True)
class Chosen:
    """What held-out pairs chose.

    `source` of the directions: the log, of so many dimensions (`rank`), or production. `total`: how much queries differ;
    `level`: variance of their levels; `slope`, `trust`: of production's directions (`Shape`); `steps` of the items;
    `item_features`: whether they say something of the items' levels; `f`: its kinds; `never`: how far the log-odds of a
    pair that was never shown are below those of one that was shown once, all else alike; `half_life` of what was seen, in parts
    of the log.
    """

    grades: Grades
    source: str
    rank: int
    total: float
    level: float
    steps: int
    slope: float = 0.0
    trust: float = 0.0
    item_features: bool = False
    f: ModelChoice = NO_MODEL
    never: float = 0.0
    half_life: float = np.inf

    @classmethod
    def log(cls, grades: Grades) -> "Chosen":
        """Where the search begins, with directions of the log."""
        return cls(grades=grades, source="log", rank=16, total=4.0 if grades.is_bit else 1.0, level=0.3, steps=3)

    @classmethod
    def given(cls, grades: Grades) -> "Chosen":
        """Where the search begins, with production's directions."""
        total = 4.0 if grades.is_bit else 1.0
        return cls(grades=grades, source="production", rank=0, total=total, level=0.3, steps=0, slope=0.3)

    def moved(self, name: str, move: float) -> "Chosen":
        """One constant changed: variances and ranks by a factor, the slope by a step, trust as it is."""
        value = getattr(self, name)
        if name == "slope":
            return replace(self, slope=float(np.clip(value + move, 0, 1)))
        if name == "trust":
            return replace(self, trust=max(value, move))
        if name == "rank":
            return replace(self, rank=max(1, int(value * move)))
        found = float(np.clip(value * move, 0.02, 64))
        return replace(self, total=found) if name == "total" else replace(self, level=found)

    def finished(self) -> "Chosen":
        """For the last fit: production's directions move once. In a short log what is known of them hardly lets them."""
        return self if self.source == "log" else replace(self, steps=1)

    @property
    def words(self) -> str:
        """What it is, for a reader."""
        grades = "bit" if self.grades.is_bit else f"spread {self.grades.spread}"
        shape = f"total {self.total:.2g}, level {self.level:.2g}"
        if self.source == "log":
            return f"{grades}, {self.rank} directions of the log, {shape}"
        return f"{grades}, production's directions, {shape}, slope {self.slope:.1f}, trust {self.trust}, {self.steps} steps"


@dataclass(frozen=True)
class Input:
    """What production's choice and f add to s: w . (choice, opinion, place), each without its mean over the shown pairs of
    the item, and f.

    `opinion`: vectors of queries and items, by features where the log has not seen them; of queries that are `unseen`, but have
    features, it stands for the choice, too. `sides` make rows and vectors of new queries and items, `suggested` are regressions
    of the vectors on features, of queries and of items.
    Shapes: w [3]; centre [D, 3]; opinion [Q, F], [D, F]; unseen [Q].
    """

    choice: Choice
    w: Floats
    centre: Floats
    opinion: tuple[Floats, Floats]
    unseen: NDArray[np.bool_]
    sides: tuple[Side, Side]
    suggested: tuple[Regression | None, Regression | None] = (None, None)
    model: FeatureModel | None = None

    @property
    def weight(self) -> float:
        """Of production's opinion of pairs that were never shown: there it stands for the choice, too."""
        return float(self.w[1] + self.w[0]) if self.w[1] >= 0 else float(self.w[1])

    @cached_property
    def opinions(self) -> Floats:
        """The vectors of queries in production's opinion, times its weight.  Shapes: -> [Q, F]."""
        weight = np.where(self.unseen, self.w[1] + self.w[0], self.weight)
        return self.opinion[0] * weight[:, None]

    @cached_property
    def level(self) -> Floats:
        """What is taken off every pair of an item.  Shapes: -> [D]."""
        found: Floats = self.centre @ self.w
        return found

    def shown(self, q: Items, d: Items, n: Floats, E: Floats) -> Floats:
        """Of pairs that were shown n times with E examinations.  Shapes: [n] each -> [n]."""
        total: Floats = (columns(self.choice, q, d, n, E) - self.centre[d]) @ self.w
        return total if self.model is None else total + self.model.at(q, d)

    def never(self, q: Items, d: Items) -> Floats:
        """Of pairs that were never shown.  Shapes: q, d of any shapes that go together."""
        a, b = self.opinions, self.opinion[1]
        q, d = np.broadcast_arrays(q, d)
        opinion = np.einsum("...f,...f->...", a[q], b[d])
        total: Floats = self.w[0] * self.choice.at(q, d, 1.0) + opinion - self.level[d]
        return total if self.model is None else total + self.model.at(q.ravel(), d.ravel()).reshape(q.shape)

    def never_matrix(self, q: Items) -> Floats:
        """Of all items, as if none had been shown.  Shapes: q [B] -> [B, D]."""
        a, b = self.opinions, self.opinion[1]
        d = np.arange(len(b))
        total: Floats = self.w[0] * self.choice.at(q[:, None], d[None, :], 1.0) + a[q] @ b.T - self.level
        return total if self.model is None else total + self.model.matrix(q)


def columns(choice: Choice, q: Items, d: Items, n: Floats, E: Floats) -> Floats:
    """Choice, opinion, and how high up pairs were shown, shrunk where they were shown little.  Shapes: [n] each -> [n, 3]."""
    place = (E / n - choice.place) * n / (n + 2)
    return np.column_stack([choice.at(q, d, n), products_of(choice.opinion, q, d), place])


@dataclass(frozen=True)
class ContextEffects:
    """The shifts of items by the values of all columns one after the other, those that features suggest of new items, and the
    log-odds of single pairs in a context.

    Shapes: shift [D, V]; by_item [J + 1, V], its constant last, [1, V] without features; query, item, value [n]; codes [n, C].
    """

    columns: tuple[Categorical, ...]
    shift: Floats
    by_item: Floats
    query: Whole
    item: NDArray[np.int32]
    codes: Whole
    value: Floats
    spread: float

    def constants(self) -> dict[str, Any]:
        """In plain numbers and words: the columns, how far items are shifted in the mean square, and how far pairs spread."""
        shift = float(np.sqrt(np.square(self.shift).mean()))
        return {"columns": [column.name for column in self.columns], "shift": shift, "spread": self.spread}


@dataclass(frozen=True)
class Beliefs(RewardModel):
    """The fitted beliefs; `notes` are what a reader should be told.

    `remembered`: mean and variance of R of the pairs that were shown.
    Shapes: x [Q, F + 1]; query_spread [Q]; item_spread [D]; remembered [pairs], [pairs].
    """

    kind: ClassVar[str] = "beliefs"

    chosen: Chosen
    counts: Counts
    inputs: Input
    space: Space
    x: Floats
    query_spread: Floats
    item_spread: Floats
    remembered: tuple[Floats, Floats]
    notes: tuple[str, ...] = ()
    contexts: ContextEffects | None = None

    @property
    def shown(self) -> tuple[Floats, Floats]:
        """s of the pairs that were shown, as if nothing had come of it, and its variance.  Shapes: -> [pairs], [pairs]."""
        c = self.counts
        s = self.space.s(c.query, c.item, self.x) + self.inputs.shown(c.query, c.item, c.n, c.E)
        return s, self.query_spread[c.query] * self.item_spread[c.item]

    @property
    def rate(self) -> float:
        """Clicks per examination."""
        return float(self.counts.C.sum() + 0.5) / float(self.counts.E.sum() + 1)

    def before(self, q: Items, d: Items) -> tuple[Floats, Floats]:
        """s of pairs as if they had never been shown, and its variance.  Shapes: [n] each."""
        s = self.space.s(q, d, self.x) + self.inputs.never(q, d) - self.chosen.never
        return s, self.query_spread[q] * self.item_spread[d]

    def matrix(self, q: Items) -> Floats:
        """The mean of R of every item for some queries; the last column is for items that the log does not know.

        Shapes: q [B] -> [B, D + 1].
        """
        s = (self.x[q].astype(np.float32) @ self.space.items.T + self.space.offset).astype(np.float64)
        s += self.inputs.never_matrix(q) - self.chosen.never
        R = self.chosen.grades.prior(s, self.query_spread[q, None] * self.item_spread)
        rows, entries = entries_of_rows(self.counts.first, np.asarray(q, np.int64))
        R[rows, self.counts.item[entries]] = self.remembered[0][entries]
        return np.column_stack([R, self.unknown(q)])

    def unknown(self, q: Items) -> Floats:
        """The mean rate of the log.  Shapes: q [B] -> [B]."""
        return np.full(len(q), float(self.counts.C.sum()) / max(float(self.counts.E.sum()), 1e-9))

    def top(self, q: Items, n: int) -> csr_matrix:
        """The n items are those of the product (`product`), which has f where it is one.  Shapes: q [B] -> CSR [B, D]."""
        c, q = self.counts, np.asarray(q, np.int64)
        if n >= c.D:
            return super().top(q, n)
        x, y = self._vectors
        best, _ = lazy_race.top(Products(torch.from_numpy(x[q]), y), n)
        row, entry = entries_of_rows(c.first, q)
        own = (np.arange(len(q))[:, None] * c.D + best).ravel()
        pair = np.union1d(own, row * c.D + c.item[entry])
        row, d = np.divmod(pair, c.D)
        s, v = self.before(q[row], d)
        R, (place, known) = self.chosen.grades.prior(s, v), self._places(q[row], d)
        R[known] = self.remembered[0][place[known]]
        return csr_matrix((R, d.astype(np.int32), np.searchsorted(row, np.arange(len(q) + 1))), shape=(len(q), c.D))

    @cached_property
    def _vectors(self) -> tuple[Floats32, Tensor]:
        """The product with the levels as a column of its own.  Shapes: -> [Q, F + 1], [D, F + 1]."""
        x, y, level = self.product()
        return np.column_stack([x, np.ones(len(x), np.float32)]), torch.from_numpy(np.column_stack([y, level]))

    @cached_property
    def _keys(self) -> NDArray[np.int64]:
        """The shown pairs as numbers, in order.  Shapes: -> [pairs]."""
        return self.counts.query * self.counts.D + self.counts.item

    def _places(self, q: Items, d: Items) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Where pairs are among those that were shown, and whether they are.  Shapes: q, d [n] -> [n], [n]."""
        key, wanted = self._keys, q * np.int64(self.counts.D) + d
        place = np.minimum(np.searchsorted(key, wanted), max(len(key) - 1, 0))
        return place, key[place] == wanted if len(key) else np.zeros(len(q), np.bool_)

    def product(self) -> tuple[Floats32, Floats32, Floats32]:
        """s of pairs before they are shown as a product for a generator: vectors of queries and items, and levels of items.

        s = <x_q, y_d> + level_d, up to what interpolation of production's choice leaves; f only where it is a product itself:
        trees are for the re-ranker.  Shapes: -> [Q, F], [D, F], [D].
        """
        (A, B), w = self.inputs.choice.never, self.inputs.w
        x: list[Floats] = [self.x, self.inputs.opinions, w[0] * A]
        y: list[Floats] = [self.space.items.astype(np.float64), self.inputs.opinion[1], B]
        f = self.inputs.model
        if f is not None and isinstance(f.model, ProductModel) and not f.model.sizes[2]:
            for side, vectors in zip((x, y), f.vectors, strict=True):
                side.append(vectors.numpy().astype(np.float64))
        level = self.space.offset - self.inputs.level - self.chosen.never
        return np.hstack(x).astype(np.float32), np.hstack(y).astype(np.float32), level.astype(np.float32)

    def at(self, q: Items, d: Items) -> Belief:
        """Mean and variance of R of pairs.  Shapes: q, d [n] -> [n]."""
        q, d = np.asarray(q, np.int64), np.asarray(d, np.int64)
        s, v = self.before(q, d)
        mean, variance = self.chosen.grades.posterior(s, v, np.ones((len(d), len(self.chosen.grades.R)), np.float32))
        place, known = self._places(q, d)
        mean[known], variance[known] = (values[place[known]] for values in self.remembered)
        return Belief(mean, variance)

    def unseen(self, q: Items, d: Items) -> Floats:
        """The mean of R of pairs as if they had never been shown.  Shapes: q, d [n] -> [n]."""
        return self.chosen.grades.prior(*self.before(np.asarray(q, np.int64), np.asarray(d, np.int64)))

    def part(self, first: int, stop: int) -> "Beliefs":
        """Of some queries, which become the first ones: `merged` puts parts together again."""
        own, pairs, inputs = slice(first, stop), slice(*self.counts.first[[first, stop]]), self.inputs
        side, model = inputs.sides[0], inputs.model
        choice = replace(
            inputs.choice,
            places=inputs.choice.places[own],
            never=(inputs.choice.never[0][own], inputs.choice.never[1]),
            opinion=(inputs.choice.opinion[0][own], inputs.choice.opinion[1]),
        )
        return replace(
            self,
            counts=self.counts.of_queries(first, stop),
            inputs=replace(
                inputs,
                choice=choice,
                opinion=(inputs.opinion[0][own], inputs.opinion[1]),
                unseen=inputs.unseen[own],
                sides=(side.with_rows(side.rows[own], side.seen[own]), inputs.sides[1]),
                model=None if model is None else model.of_queries(torch.arange(first, stop)),
            ),
            space=replace(self.space, mean=self.space.mean[own]),
            x=self.x[own],
            query_spread=self.query_spread[own],
            remembered=(self.remembered[0][pairs], self.remembered[1][pairs]),
            contexts=None,  # they are told to stages, of all queries
        )

    def constants(self) -> dict[str, Any]:
        """What was chosen, in plain numbers and words."""
        c = self.chosen
        return {
            "relevance": "a bit" if c.grades.is_bit else "graded",
            "levels": [float(r) for r in c.grades.R],
            "spread": c.grades.spread,
            "directions": c.source,
            "rank": self.space.items.shape[1] - 1,
            "difference_of_queries": c.total,
            "features": c.f.words,
            "weights_of_production": [float(w) for w in self.inputs.w],
            "never_shown": c.never,
            "half_life": None if np.isinf(c.half_life) else c.half_life,
            "context": None if self.contexts is None else self.contexts.constants(),
        }

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its arrays."""
        mean, variance = self.remembered
        x, y, level = self.product()
        return {
            "query": self.counts.query,
            "item": self.counts.item,
            "mean": mean,
            "variance": variance,
            "x": x,
            "y": y,
            "level": level,
            "query_spread": self.query_spread,
            "item_spread": self.item_spread,
        }


def merged(parts: Sequence[Beliefs]) -> Beliefs:
    """The beliefs of one log that was fitted in parts by queries, which agree on all else."""
    one, counts = parts[0], joined([part.counts for part in parts])

    def side(of: Callable[[Beliefs], Side]) -> Side:
        """Of queries."""
        sides = [of(part) for part in parts]
        return sides[0].with_rows(*(torch.cat([getattr(x, name) for x in sides]) for name in ("rows", "seen")))

    def rows(of: Callable[[Beliefs], NDArray[Any]]) -> NDArray[Any]:
        return np.concatenate([of(part) for part in parts])

    model, first = one.inputs.model, np.cumsum([0, *(part.counts.Q for part in parts)])
    if model is not None:
        numbers = [f.pairs for part in parts if (f := part.inputs.model) is not None]
        key = np.concatenate([x.key.numpy() + n * x.D for x, n in zip(numbers, first, strict=False)])
        pairs = numbers[0].of_rows(key, np.concatenate([x.values.numpy() for x in numbers]))
        model = model.of_sides(side(lambda part: part.inputs.model.query), pairs)  # type: ignore[union-attr]
    inputs = replace(
        one.inputs,
        choice=replace(
            one.inputs.choice,
            places=rows(lambda part: part.inputs.choice.places),
            never=(rows(lambda part: part.inputs.choice.never[0]), one.inputs.choice.never[1]),
            opinion=(rows(lambda part: part.inputs.choice.opinion[0]), one.inputs.choice.opinion[1]),
        ),
        opinion=(rows(lambda part: part.inputs.opinion[0]), one.inputs.opinion[1]),
        unseen=rows(lambda part: part.inputs.unseen),
        sides=(side(lambda part: part.inputs.sides[0]), one.inputs.sides[1]),
        model=model,
    )
    return replace(
        one,
        counts=counts,
        inputs=inputs,
        space=replace(one.space, mean=rows(lambda part: part.space.mean)),
        x=rows(lambda part: part.x),
        query_spread=rows(lambda part: part.query_spread),
        remembered=(rows(lambda part: part.remembered[0]), rows(lambda part: part.remembered[1])),
    )
