"""One belief of some pairs, with constants that were chosen: levels, production's choice, f and vectors, one after another."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tandemrank.beliefs import models, steps
from tandemrank.beliefs.belief import Chosen
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.grades import Floats32, Grades, sigmoid
from tandemrank.beliefs.levels import Levels, item_levels
from tandemrank.beliefs.models import Lesson, Model
from tandemrank.beliefs.space import Directions, Shape, Space, shaped
from tandemrank.beliefs.steps import ItemPrior, Seen

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

KNOWLEDGE = 300.0  # queries that a given direction of an item counts for
# Prior of the weights of choice, opinion and place, mean and precision: a live system was made to choose.
WEIGHTS = np.array([0.5, 0.0, 0.0]), np.array([4.0, 4.0, 1.0])
STEPS = 20  # of the weights
WEIGHT_PAIRS = 300_000  # pairs that are enough for three weights


@dataclass(frozen=True)
class Given:
    """What is known before the log: features, production's directions and its mean scores.

    Shapes: u [Q, J]; z [D, J]; design [D, J], what is known of items' levels; rising [J].
    """

    u: Floats
    z: Floats
    design: Floats
    rising: Mask
    directions: Directions | None = None


@dataclass(frozen=True)
class Part:
    """Pairs with their evidence, as the likelihoods of its kinds, and the columns of production's choice.

    The last kind is that of pairs of which nothing was seen.
    Shapes: kind [pairs]; table [J, kinds]; best [kinds]; X [pairs, 3].
    """

    counts: Counts
    grades: Grades
    kind: NDArray[np.int32]
    table: Floats32
    best: Floats
    X: Floats

    @classmethod
    def of(cls, counts: Counts, grades: Grades, X: Floats) -> "Part":
        """The pairs of counts."""
        table, best = counts.table(grades.R)
        nothing = np.ones((len(table), 1), np.float32)
        return cls(counts, grades, counts.kinds[0], np.hstack([table, nothing]), np.append(best, 0.0), X)

    def only(self, kept: Mask) -> "Part":
        """Some of the pairs."""
        return replace(self, counts=self.counts.only(kept), kind=self.kind[kept], X=self.X[kept])

    def without(self, held: Mask) -> "Part":
        """The same pairs, of some of which nothing was seen."""
        return replace(self, kind=np.where(held, np.int32(len(self.best) - 1), self.kind))

    @property
    def L(self) -> Floats32:
        """The likelihoods of each pair.  Shapes: -> [pairs, J]."""
        return np.take(self.table.T, self.kind, axis=0)

    def seen(self, other: Floats | None = None) -> Seen:
        """For the steps of vectors."""
        c = self.counts
        still = np.zeros(len(c.item), np.float32) if other is None else other.astype(np.float32)
        return Seen(c.first, c.item, self.kind, self.table, still, self.grades)


@dataclass(frozen=True)
class Start:
    """Levels and production's choice: all that comes before f and the vectors.

    `flat` and `beta`: the levels as a space without directions.  Shapes: beta [Q, 1]; w [3]; centre [D, 3].
    """

    levels: Levels
    flat: Space
    beta: Floats
    w: Floats
    centre: Floats

    def choice(self, part: Part) -> Floats:
        """What production's choice says of pairs.  Shapes: -> [pairs]."""
        found: Floats = part.X @ self.w - (self.centre @ self.w)[part.counts.item]
        return found


def started(part: Part, level: float, given: Given) -> Start:
    """Levels of items and queries, and the weights of production's choice."""
    c, D = part.counts, part.counts.D
    clicks, seen = c.sums(c.item, c.C, D), c.sums(c.item, c.E, D)
    levels = item_levels(clicks, seen, given.design, part.grades, rising=given.rising)
    # An item's level is that of its examinations, so production's choice counts from their mean.
    sums = np.column_stack([np.bincount(c.item, c.E * column, D) for column in part.X.T])
    centre = (sums + c.E @ part.X / c.E.sum()) / (seen[:, None] + 1)
    flat = Space(
        np.ones((D, 1), np.float32), levels.after.astype(np.float32), np.zeros((c.Q, 1)), np.array([1 / level])
    )
    beta = steps.query_step(flat, part.seen(), c.rows)
    w = weights(part, flat, beta, centre)
    return Start(levels, flat, beta, w, centre)


def weights(part: Part, flat: Space, beta: Floats, centre: Floats) -> Floats:
    """Weights of the columns by the likelihood of the showings, beside the levels: Newton steps.  Shapes: -> [3].

    What production chose is never held against it: the first weight is not below 0.
    """
    mean, precision = WEIGHTS
    w, c = mean.copy(), part.counts
    some = slice(None, None, max(1, len(c.item) // WEIGHT_PAIRS))
    q, d, kind = c.query[some], c.item[some], np.ascontiguousarray(part.kind[some])
    s, X = flat.s(q, d, beta), part.X[some] - centre[d]
    for _ in range(STEPS):
        _, slope, h = part.grades.terms_of_kinds(s + X @ w, part.table, kind)
        h = np.maximum(h, 1e-3 * h.mean())
        step = np.linalg.solve((X * h[:, None]).T @ X + np.diag(precision), X.T @ slope - precision * (w - mean))
        w = w + np.clip(step, -0.5, 0.5)
        if np.abs(step).max() < 1e-3:
            break
    w[0] = max(w[0], 0.0)
    return w


def lesson_of(part: Part, start: Start, given: Given) -> Lesson:
    """The pairs as a model of features sees them, with counts of queries and items."""
    c = part.counts
    shown_q, shown_d = (np.bincount(index, c.n, n) for index, n in ((c.query, c.Q), (c.item, c.D)))
    return Lesson(
        grades=part.grades, q=c.query, d=c.item, s=start.flat.s(c.query, c.item, start.beta) + start.choice(part), L=part.L,
        u=given.u, z=given.z, known_q=np.log1p(shown_q)[:, None],
        known_d=np.column_stack([np.log1p(shown_d), start.levels.after]),
    )  # fmt: skip


@dataclass(frozen=True)
class Fitted:
    """All of a belief but its memory; `seen` is what it was fitted to.  Shapes: x [Q, F + 1]."""

    start: Start
    model: Model | None
    space: Space
    x: Floats
    seen: Seen

    def other(self, part: Part) -> Floats:
        """What does not move of pairs: choice and f.  Shapes: -> [pairs]."""
        found, c = self.start.choice(part), part.counts
        return found if self.model is None else found + self.model.at(c.query, c.item)


def run(
    part: Part, chosen: Chosen, given: Given, seed: int, *, start: Start | None = None, near: Fitted | None = None
) -> Fitted:
    """The belief of some pairs, with the constants that were chosen.

    `start`: levels and choice, if they are known. `near`: a belief of nearly the same pairs, where the vectors begin; the
    directions of its items are taken as they are.
    """
    start = start or started(part, chosen.level, given)
    model = None
    if chosen.model != "none":
        model = models.train(chosen.model, chosen.epochs, lesson_of(part, start, given), seed)
    c, other = part.counts, start.choice(part)
    seen = part.seen(other if model is None else other + model.at(c.query, c.item))
    space, prior = directions_of(seen, c, start, chosen, given, seed)
    if near is not None:
        space = replace(space, items=near.space.items)
        return Fitted(start, model, space, steps.query_step(space, seen, c.rows, near.x), seen)
    x = steps.query_step(space, seen, c.rows)
    for _ in range(chosen.steps):
        mean = steps.spread_of(space, seen, c.rows, x).mean
        space = steps.item_step(space, seen, x, mean, prior)
        x = steps.query_step(space, seen, c.rows, x)
    return Fitted(start, model, space, x, seen)


def directions_of(
    seen: Seen, c: Counts, start: Start, chosen: Chosen, given: Given, seed: int
) -> tuple[Space, ItemPrior]:
    """Where the directions begin, and what is known of them: production's, which are trusted; or those of the log."""
    g, before = start.levels.after, start.levels.before
    if chosen.source == "production" and given.directions is not None:
        shape = Shape(total=chosen.total, slope=chosen.slope, level=chosen.level, trust=chosen.trust)
        space = shaped(given.directions, g, shape, c.Q)
        F, p = space.items.shape[1] - 1, sigmoid(g)
        known = np.repeat((KNOWLEDGE * p * (1 - p))[:, None], F, 1)
        centre = np.column_stack([space.items[:, :F], space.offset]).astype(np.float64)
        return space, ItemPrior(centre, np.column_stack([known, np.full(c.D, 1e9)]))
    found = steps.from_log(seen, g, c.rows, chosen.level, most=chosen.rank, seed=seed)
    space = shaped(found, g, Shape(total=0.5 * chosen.total, slope=0.0, level=chosen.level), c.Q)
    F, p = space.items.shape[1] - 1, sigmoid(before)
    precision = np.column_stack([np.full((c.D, F), F / chosen.total), start.levels.knowledge * p * (1 - p)])
    return space, ItemPrior(np.column_stack([np.zeros((c.D, F)), before]), precision)


@dataclass(frozen=True)
class Judged:
    """Log-likelihood of each held-out pair, its s, and the mean covariance of the vectors.  Shapes: terms, s [pairs]."""

    terms: Floats
    s: Floats
    covariance: Floats


def judged(fitted: Fitted, held: Part) -> Judged:
    """How likely held-out pairs are."""
    c = held.counts
    s = fitted.space.s(c.query, c.item, fitted.x) + fitted.other(held)
    # A query of which all pairs are held out is as unknown as any.
    spread = steps.spread_of(fitted.space, fitted.seen, c.rows, fitted.x, c)
    return Judged(held.grades.marginal(s, spread.asked, held.L) + held.best[held.kind], s, spread.mean)
