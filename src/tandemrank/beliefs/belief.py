"""`Beliefs`: what a log says of relevance, a mean and a variance of R for any pairs, and the product part for a generator."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.sparse import entries_of_rows
from tandemrank.beliefs.choice import Choice
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.features import Side
from tandemrank.beliefs.grades import Floats32, Grades
from tandemrank.beliefs.model import Belief, RewardModel
from tandemrank.beliefs.model_fit import NO_MODEL, ModelChoice
from tandemrank.beliefs.models import FeatureModel, ProductModel
from tandemrank.beliefs.regression import Regression
from tandemrank.beliefs.space import Space
from tandemrank.policies.features import Categorical

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Items = NDArray[np.integer]


@dataclass(frozen=True)
class Chosen:
    """What held-out pairs chose.

    `source` of the directions: the log, of so many dimensions (`rank`), or production. `total`: how much queries differ;
    `level`: variance of their levels; `slope`, `trust`: of production's directions (`Shape`); `steps` of the items;
    `item_features`: whether they say something of the items' levels; `f`: its kinds; `never`: what is taken off the log-odds
    of a pair that was never shown; `half_life` of what was seen, in parts of the log.
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

    @property
    def opinions(self) -> Floats:
        """The vectors of queries in production's opinion, times its weight.  Shapes: -> [Q, F]."""
        weight = np.where(self.unseen, self.w[1] + self.w[0], self.weight)
        return self.opinion[0] * weight[:, None]

    def shown(self, q: Items, d: Items, n: Floats, E: Floats) -> Floats:
        """Of pairs that were shown n times with E examinations.  Shapes: [n] each -> [n]."""
        total: Floats = (columns(self.choice, q, d, n, E) - self.centre[d]) @ self.w
        return total if self.model is None else total + self.model.at(q, d)

    def never(self, q: Items, d: Items) -> Floats:
        """Of pairs that were never shown.  Shapes: q, d of any shapes that go together."""
        a, b = self.opinions, self.opinion[1]
        q, d = np.broadcast_arrays(q, d)
        opinion = np.einsum("...f,...f->...", a[q], b[d])
        total: Floats = self.w[0] * self.choice.at(q, d, 0.0) + opinion - (self.centre @ self.w)[d]
        return total if self.model is None else total + self.model.at(q.ravel(), d.ravel()).reshape(q.shape)

    def never_matrix(self, q: Items) -> Floats:
        """Of all items, as if none had been shown.  Shapes: q [B] -> [B, D]."""
        a, b = self.opinions, self.opinion[1]
        d = np.arange(len(b))
        total: Floats = self.w[0] * self.choice.at(q[:, None], d[None, :], 0.0) + a[q] @ b.T - self.centre @ self.w
        return total if self.model is None else total + self.model.matrix(q)


def columns(choice: Choice, q: Items, d: Items, n: Floats, E: Floats) -> Floats:
    """Choice, opinion, and how high up pairs were shown, shrunk where they were shown little.  Shapes: [n] each -> [n, 3]."""
    a, b = choice.opinion
    mean = choice.counts.E.sum() / choice.counts.n.sum()
    place = (E / n - mean) * n / (n + 2)
    return np.column_stack([choice.at(q, d, n), np.einsum("nf,nf->n", a[q], b[d]), place])


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

    Shapes: x [Q, F + 1]; query_spread [Q]; item_spread [D]; L [pairs, J].
    """

    kind: ClassVar[str] = "beliefs"

    chosen: Chosen
    counts: Counts
    inputs: Input
    space: Space
    x: Floats
    query_spread: Floats
    item_spread: Floats
    L: Floats32
    notes: tuple[str, ...] = ()
    contexts: ContextEffects | None = None

    @cached_property
    def remembered(self) -> tuple[Floats, Floats]:
        """Mean and variance of R of the pairs that were shown.  Shapes: -> [pairs], [pairs]."""
        return self.chosen.grades.remembered(self.counts, *self.shown, self.L)

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
        c = self.counts
        return np.column_stack([R, np.full(len(q), c.C.sum() / max(float(c.E.sum()), 1e-9))])

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
        level = self.space.offset - self.inputs.centre @ w - self.chosen.never
        return np.hstack(x).astype(np.float32), np.hstack(y).astype(np.float32), level.astype(np.float32)

    def at(self, q: Items, d: Items) -> Belief:
        """Mean and variance of R of pairs.  Shapes: q, d [n] -> [n]."""
        q, d = np.asarray(q, np.int64), np.asarray(d, np.int64)
        s, v = self.before(q, d)
        mean, variance = self.chosen.grades.posterior(s, v, np.ones((len(d), self.L.shape[1]), np.float32))
        c = self.counts
        key, wanted = c.query * c.D + c.item, q * c.D + d
        place = np.minimum(np.searchsorted(key, wanted), max(len(key) - 1, 0))
        known = key[place] == wanted if len(key) else np.zeros(len(q), np.bool_)
        mean[known], variance[known] = (values[place[known]] for values in self.remembered)
        return Belief(mean, variance)

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
