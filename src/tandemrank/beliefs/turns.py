"""One belief of some pairs, with constants that were chosen: levels, production's choice, f and vectors, one after another."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray

from tandemrank._base import random
from tandemrank._base.cluster import ALONE, Group
from tandemrank.beliefs import model_fit, steps
from tandemrank.beliefs.belief import Chosen
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.features import Clicks, Encoded, PairNumbers, Side, side_of
from tandemrank.beliefs.grades import Floats32, Grades, sigmoid
from tandemrank.beliefs.levels import Levels, item_levels
from tandemrank.beliefs.model_fit import Learner, Lesson
from tandemrank.beliefs.models import FeatureModel
from tandemrank.beliefs.regression import Regression, Suggestion
from tandemrank.beliefs.space import Directions, Shape, Space, shaped
from tandemrank.beliefs.steps import ItemPrior, Seen

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

KNOWLEDGE = 300.0  # queries that a given direction of an item counts for
# Prior of the weights of choice, opinion and place, mean and precision: a live system was made to choose.
WEIGHTS = np.array([0.5, 0.0, 0.0]), np.array([4.0, 4.0, 1.0])
STEPS = 20  # of the weights
WEIGHT_PAIRS = 300_000  # pairs that are enough for three weights
FOLDS = 4  # of the pairs that f learns from
ROUNDS = 3  # of vectors and their regression on features


@dataclass(frozen=True)
class Given:
    """What is known before the clicks: features, production's opinion, its directions and its mean scores.

    `learners`: the kinds of f to choose from. Shapes: opinion [Q, F], [D, F]; seen [Q], [D]; design [D, J], what
    production says of items' levels: a constant, how often it shows them, and perhaps its scores.
    """

    query: Encoded
    item: Encoded
    pairs: PairNumbers
    opinion: tuple[Floats, Floats]
    seen: tuple[Mask, Mask]
    learners: dict[str, tuple[int, Learner]]
    design: Floats
    directions: Directions | None = None

    @property
    def encoded(self) -> dict[str, Encoded]:
        """Features of both sides by name."""
        return {"query": self.query, "item": self.item}

    def of_queries(self, q: NDArray[np.int64]) -> "Given":
        """For some of the queries, in order, which become the first ones."""
        known = self.directions
        own = None if known is None or known.queries is None else known.queries[q]
        return replace(
            self,
            query=replace(self.query, numbers=self.query.numbers[q], codes=self.query.codes[q]),
            pairs=self.pairs.of_queries(torch.from_numpy(q)),
            opinion=(self.opinion[0][q], self.opinion[1]),
            seen=(self.seen[0][q], self.seen[1]),
            directions=None if known is None else replace(known, queries=own),
        )

    def of_items(self, d: NDArray[np.int64]) -> "Given":
        """For some of the items, in order, which become the first ones."""
        known = self.directions
        return replace(
            self,
            item=replace(self.item, numbers=self.item.numbers[d], codes=self.item.codes[d]),
            pairs=self.pairs.of_items(d),
            opinion=(self.opinion[0], self.opinion[1][d]),
            seen=(self.seen[0], self.seen[1][d]),
            design=self.design[d],
            directions=None if known is None else replace(known, items=known.items[d]),
        )


@dataclass(frozen=True)
class Part:
    """Pairs with their evidence, as the likelihoods of its kinds, the columns of production's choice, and f.

    The last kind is that of pairs of which nothing was seen.
    Shapes: kind, f [pairs]; table [J, kinds]; best [kinds]; X [pairs, 3].
    """

    counts: Counts
    grades: Grades
    kind: NDArray[np.int32]
    table: Floats32
    best: Floats
    X: Floats
    f: Floats

    @classmethod
    def of(cls, counts: Counts, grades: Grades, X: Floats, f: Floats | None = None) -> "Part":
        """The pairs of counts; without f it is 0."""
        table, best = counts.table(grades.R)
        nothing = np.ones((len(table), 1), np.float32)
        return cls(
            counts=counts,
            grades=grades,
            kind=counts.kinds[0],
            table=np.hstack([table, nothing]),
            best=np.append(best, 0.0),
            X=X,
            f=np.zeros(len(X)) if f is None else f,
        )

    def only(self, kept: Mask) -> "Part":
        """Some of the pairs."""
        counts = self.counts.only(kept)
        return replace(self, counts=counts, kind=self.kind[kept], X=self.X[kept], f=self.f[kept])

    @property
    def L(self) -> Floats32:
        """The likelihoods of each pair.  Shapes: -> [pairs, J]."""
        return np.take(self.table.T, self.kind, axis=0)

    def seen(self, other: Floats | None = None) -> Seen:
        """For the steps of vectors."""
        c = self.counts
        still = np.zeros(len(c.item), np.float32) if other is None else other.astype(np.float32)
        return Seen(
            first=c.first, item=c.item, kind=self.kind, table=self.table, other=still, grades=self.grades, group=c.group
        )


@dataclass(frozen=True)
class FirstStep:
    """Levels, production's choice and f: all that comes before the vectors.

    `flat` and `beta`: the levels as a space without directions; `directions`: those of the log beside them, by their number,
    as far as they were asked for.  Shapes: beta [Q, 1]; w [3]; centre [D, 3].
    """

    levels: Levels
    flat: Space
    beta: Floats
    w: Floats
    centre: Floats
    model: FeatureModel | None = None
    directions: dict[int, Directions] = field(default_factory=dict)

    def choice(self, part: Part) -> Floats:
        """What production's choice says of pairs.  Shapes: -> [pairs]."""
        found: Floats = part.X @ self.w - (self.centre @ self.w)[part.counts.item]
        return found

    def other(self, part: Part) -> Floats:
        """What does not move with the vectors: choice and f.  Shapes: -> [pairs]."""
        return self.choice(part) + part.f

    def with_model(self, part: Part, model: FeatureModel) -> "FirstStep":
        """With f, and the weights of production's choice anew, given f: what features say production often knows."""
        return replace(self, model=model, w=weights(part, self.flat, self.beta, self.centre), directions={})


def started(part: Part, chosen: Chosen, given: Given) -> FirstStep:
    """Levels of items and queries, and the weights of production's choice."""
    c = part.counts
    # An item's level is that of its examinations, so production's choice counts from their mean.
    sums, seen = np.column_stack([c.by_item(c.E * column) for column in part.X.T]), c.by_item(c.E)
    centre = (sums + c.group.sum(c.E @ part.X) / seen.sum()) / (seen[:, None] + 1)
    levels, flat, beta = levelled(part, chosen, given)
    without = replace(part, f=np.zeros(len(part.f)))
    return FirstStep(levels, flat, beta, weights(without, flat, beta, centre), centre)


def begun(part: Part, chosen: Chosen, given: Given, seed: int) -> tuple[Part, FirstStep]:
    """All that comes before the vectors, and the pairs with the kind of f that was chosen."""
    start = started(part, chosen, given)
    if not chosen.f.names:
        return part, start
    lesson = lesson_of(part, start, chosen, given, seed, enough=model_fit.ENOUGH)
    own = part.counts.group
    model = model_fit.train(chosen.f, lesson.together(own), given.learners, seed, own)
    model = model.of_sides(lesson.query, lesson.pairs)
    part = replace(part, f=model.at(part.counts.query, part.counts.item))
    return part, start.with_model(part, model)


def levelled(part: Part, chosen: Chosen, given: Given) -> tuple[Levels, Space, Floats]:
    """The levels of items, as a space without directions, and those of queries.  Shapes: -> levels, space, [Q, 1]."""
    c, D = part.counts, part.counts.D
    clicks, seen = c.by_item(c.C), c.by_item(c.E)
    features = given.item.numbers if chosen.item_features else None
    levels = item_levels(clicks, seen, given.design, part.grades, features, group=c.group)
    flat = Space(
        np.ones((D, 1), np.float32), levels.after.astype(np.float32), np.zeros((c.Q, 1)), np.array([1 / chosen.level])
    )
    return levels, flat, steps.query_step(flat, part.seen(), c.rows)


def weights(part: Part, flat: Space, beta: Floats, centre: Floats) -> Floats:
    """Weights of the columns by the likelihood of the showings, beside the levels and f: Newton steps.  Shapes: -> [3].

    What production chose is never held against it: the first weight is not below 0.
    """
    mean, precision = WEIGHTS
    w, c = mean.copy(), part.counts
    some = c.some(WEIGHT_PAIRS)
    q, d, kind = c.query[some], c.item[some], np.ascontiguousarray(part.kind[some])
    s, X = flat.s(q, d, beta) + part.f[some], part.X[some] - centre[d]
    for _ in range(STEPS):
        _, slope, h = part.grades.terms_of_kinds(s + X @ w, part.table, kind)
        all_h, n = c.group.total(h.sum(), len(h))
        h = np.maximum(h, 1e-3 * all_h / n)
        H, g = (c.group.sum(x) for x in ((X * h[:, None]).T @ X, X.T @ slope))
        step = np.linalg.solve(H + np.diag(precision), g - precision * (w - mean))
        w = w + np.clip(step, -0.5, 0.5)
        if np.abs(step).max() < 1e-3:
            break
    w[0] = max(w[0], 0.0)
    return w


def sides_of(c: Counts, given: Given, apart: tuple[Mask, Mask] | None = None) -> tuple[Side, Side]:
    """The rows of queries and items; those that are `apart` count as not seen.  Shapes: apart [Q], [D]."""
    found = []
    for place, (name, encoded) in enumerate(given.encoded.items()):
        seen = given.seen[place] if apart is None else given.seen[place] & ~apart[place]
        group = c.group if name == "query" else ALONE  # of items everybody has all
        found.append(side_of(encoded, Clicks.of(encoded, name, c), given.opinion[place], seen, group))
    return found[0], found[1]


def lesson_of(
    part: Part,
    start: FirstStep,
    chosen: Chosen,
    given: Given,
    seed: int,
    apart: tuple[Mask, Mask] | None = None,
    *,
    enough: int | None = None,
) -> Lesson:
    """The pairs as a model of features sees them, about so many if that is `enough`; queries and items that are `apart` count
    as not seen.

    Levels and known columns of a pair are those of the other folds: what its own clicks did to them is not for f to learn.
    Shapes: apart [Q], [D].
    """
    c, sides = part.counts, sides_of(part.counts, given, apart)
    draws = random.uniforms(random.random_keys(random.derive(seed, "folds"), random.Stream.FOLDS, c.keys))
    fold = (draws * FOLDS).astype(np.int64)
    share = 1.0 if enough is None else enough / max(c.group.before(len(c.query))[1], 1)
    kept = draws * FOLDS - fold < share
    few = part.only(kept)
    q, d, s = few.counts.query, few.counts.item, start.choice(few)
    known = [np.zeros((len(s), side.known), np.float32) for side in sides]
    for k in range(FOLDS):
        mine, rest = fold[kept] == k, part.only(fold != k)
        _, flat, beta = levelled(rest, chosen, given)
        s[mine] += flat.s(q[mine], d[mine], beta)
        for place, (name, encoded) in enumerate(given.encoded.items()):
            clicks = Clicks.of(encoded, name, rest.counts, 1 - 1 / FOLDS)
            rows = torch.from_numpy(clicks.rows[(q, d)[place][mine]])
            known[place][mine] = sides[place].standardised(rows).numpy()
    return Lesson(
        grades=part.grades,
        query=sides[0],
        item=sides[1],
        pairs=given.pairs,
        q=q,
        d=d,
        s=s,
        L=few.L,
        known_q=known[0],
        known_d=known[1],
        group=np.zeros(len(s), np.int8),
    )


def judge_of(part: Part, start: FirstStep, lesson: Lesson, held: Mask, apart: tuple[Mask, Mask]) -> Lesson:
    """The pairs that judge f: some of known queries and items, those of queries that are apart, and of items.

    Of the latter f sees no more than of a query or an item that the log has not seen. All were shown, so production's choice
    stays in the offset: without it what was shown in spite of its features would count against them.
    Shapes: held [pairs]; apart [Q], [D].
    """
    group = np.where(held, model_fit.KNOWN, 0)
    group[apart[0][part.counts.query]] = model_fit.NEW_QUERY
    group[apart[1][part.counts.item]] = model_fit.NEW_ITEM
    part, group = part.only(group > 0), group[group > 0].astype(np.int8)
    q, d = part.counts.query, part.counts.item
    choice = start.choice(part)
    return replace(
        lesson,
        q=q,
        d=d,
        s=start.flat.s(q, d, start.beta) + choice,
        L=part.L,
        known_q=lesson.query.rows[torch.from_numpy(q), : lesson.query.known].numpy(),
        known_d=lesson.item.rows[torch.from_numpy(d.astype(np.int64)), : lesson.item.known].numpy(),
        group=group,
    )


@dataclass(frozen=True)
class FittedBelief:
    """All of a belief but its memory.

    `seen`: what it was fitted to; `suggested`: the vectors of queries by their features.  Shapes: x [Q, F + 1].
    """

    start: FirstStep
    space: Space
    x: Floats
    seen: Seen
    suggested: Regression | None


def run(part: Part, chosen: Chosen, given: Given, seed: int, *, start: FirstStep | None = None) -> FittedBelief:
    """The belief of some pairs, with the constants that were chosen; `start`: what comes before the vectors, if it is known."""
    if start is None:
        part, start = begun(part, chosen, given, seed)
    c, seen = part.counts, part.seen(start.other(part))
    space, prior = directions_of(seen, c, start, chosen, given, seed)
    queries = suggestion_of(given.query.numbers, c.rows, c.group)
    items = suggestion_of(given.item.numbers, given.seen[1])
    space, x, suggested = _queries(space, seen, c.rows, None, queries, rounds=ROUNDS)
    for _ in range(chosen.steps):
        if items is not None and chosen.source == "log":
            prior = _suggested_items(prior, space, items)
        mean = steps.spread_of(space, seen, c.rows, x).mean
        space = steps.item_step(space, seen, x, mean, prior)
        space, x, suggested = _queries(space, seen, c.rows, x, queries, rounds=1)
    return FittedBelief(start, space, x, seen, suggested)


def suggestion_of(numbers: Floats32, rows: NDArray[np.integer] | Mask, group: Group = ALONE) -> Suggestion | None:
    """None where there are no features.  Shapes: numbers [n, J]."""
    return Suggestion(numbers, rows, group) if numbers.shape[1] else None


def _queries(
    space: Space, seen: Seen, rows: NDArray[np.int64], x: Floats | None, by: Suggestion | None, *, rounds: int
) -> tuple[Space, Floats, Regression | None]:
    """The vectors of queries; before their clicks they are where their features suggest, in so many rounds.

    More rounds would fit the regression to its own suggestions.  Shapes: x [Q, F + 1].
    """
    x = steps.query_step(space, seen, rows, x)
    if by is None:
        return space, x, None
    for _ in range(rounds):
        suggested = by.of(x)
        space = replace(space, mean=suggested.at(by.numbers))
        x = steps.query_step(space, seen, rows, x)
    return space, x, suggested


def _suggested_items(prior: ItemPrior, space: Space, by: Suggestion) -> ItemPrior:
    """The directions of items, before their showings, where their features suggest."""
    F = space.items.shape[1] - 1
    centre = prior.centre.copy()
    centre[:, :F] = by.of(space.items[:, :F].astype(np.float64)).at(by.numbers)
    return replace(prior, centre=centre)


def directions_of(
    seen: Seen, c: Counts, start: FirstStep, chosen: Chosen, given: Given, seed: int
) -> tuple[Space, ItemPrior]:
    """Where the directions begin, and what is known of them: production's, which are trusted; or those of the log."""
    g, before = start.levels.after, start.levels.before
    if chosen.source == "production" and given.directions is not None:
        shape = Shape(total=chosen.total, slope=chosen.slope, level=chosen.level, trust=chosen.trust)
        space = shaped(given.directions, g, shape, c.Q, c.items)
        F, p = space.items.shape[1] - 1, sigmoid(g)
        known = np.repeat((KNOWLEDGE * p * (1 - p))[:, None], F, 1)
        centre = np.column_stack([space.items[:, :F], space.offset]).astype(np.float64)
        return space, ItemPrior(centre, np.column_stack([known, np.full(c.D, 1e9)]))
    if chosen.rank not in start.directions:
        start.directions[chosen.rank] = steps.from_log(seen, g, c.rows, chosen.level, most=chosen.rank, seed=seed)
    space = shaped(
        start.directions[chosen.rank], g, Shape(total=0.5 * chosen.total, slope=0.0, level=chosen.level), c.Q, c.items
    )
    F, p = space.items.shape[1] - 1, sigmoid(before)
    precision = np.column_stack([np.full((c.D, F), F / chosen.total), start.levels.knowledge * p * (1 - p)])
    return space, ItemPrior(np.column_stack([np.zeros((c.D, F)), before]), precision)


@dataclass(frozen=True)
class JudgedPairs:
    """Log-likelihood of each held-out pair, its s, and the mean covariance of the vectors.  Shapes: terms, s [pairs]."""

    terms: Floats
    s: Floats
    covariance: Floats


def judged(fitted: FittedBelief, held: Part) -> JudgedPairs:
    """How likely held-out pairs are."""
    c = held.counts
    s = fitted.space.s(c.query, c.item, fitted.x) + fitted.start.other(held)
    # A query of which all pairs are held out is as unknown as any.
    spread = steps.spread_of(fitted.space, fitted.seen, c.rows, fitted.x, c)
    return JudgedPairs(held.grades.marginal(s, spread.asked, held.L) + held.best[held.kind], s, spread.mean)
