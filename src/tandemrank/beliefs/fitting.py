"""`fit`: from the sums of a log to beliefs.

1. levels of items and queries, and what production's own choice says (`started`): weights by the likelihood of all showings;
2. f over features, with these as an offset;
3. vectors of what is left: directions of the log alone, by expectation-maximisation; or production's own, if they are given;
4. what was never shown is believed less, the more so the more sharply production chooses.

The grades (how far R spreads around its mean, or the bit), how much queries differ and how, and the kind of f are chosen by the
likelihood of pairs that are held out, f by queries that are held out, too.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tandemrank._base import random
from tandemrank.beliefs import models, steps
from tandemrank.beliefs.belief import Beliefs, Chosen, Input, columns
from tandemrank.beliefs.choice import Choice
from tandemrank.beliefs.counts import TIMES, Counts
from tandemrank.beliefs.features import Features
from tandemrank.beliefs.grades import Grades, sigmoid
from tandemrank.beliefs.noise import fit_bit
from tandemrank.beliefs.space import from_production
from tandemrank.beliefs.turns import Fitted, Given, Judged, Part, Start, directions_of, judged, lesson_of, run, started
from tandemrank.beliefs.vectors import Vectors
from tandemrank.errors import InputError, LogError

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]

HELD_OUT = 0.1  # share of the shown pairs that choose
HELD_OUT_AGAIN = 0.02  # the share of all pairs that should choose and were shown again
SEARCH_PAIRS = 150_000  # pairs of whole queries that are enough to choose by
JUDGED_PAIRS = 3_000_000  # the same to judge production's directions by, of which HELD_OUT judge
SPREADS = (0.25, 0.4, 0.7, 1.0, 1.5, 2.5)  # of the log-odds of R around their mean, the third first
# What is tried, one after the other, for as long as held-out pairs become likelier: of directions of the log, of production's.
LOG_MOVES: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("total", (0.4, 2.5)),
    ("level", (0.33, 3.0)),
    ("rank", (2.0, 0.5)),
)
GIVEN_MOVES: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("total", (0.5, 2.0)), ("level", (0.33, 3.0)), ("slope", (-0.2, 0.2)), ("trust", (0.5, 1.0)),
)  # fmt: skip
SURE = 2.0  # standard errors by which a choice must be better, where it is not made by the sum alone
HALF_LIVES = (np.inf, 4.0, 1.5)  # in parts of the log
NEVER = 0.3  # log-odds per unit of choice by which a pair that was never shown is less relevant, at least


def surely_better(gain: Floats) -> bool:
    """Whether a sum of gains is above 0 by SURE of its standard errors.  Shapes: [n]."""
    return bool(gain.sum() > SURE * np.sqrt(np.square(gain).sum()))


def with_item_step(
    chosen: Chosen, part: Part, start: Start, held: Mask, given: Given, seed: int
) -> tuple[Chosen, Fitted]:
    """Whether production's directions are fitted anew: all pairs must say so, of which some are held out.  Shapes: [pairs].

    Also the belief of the others, with or without the step.
    """
    judges = _some_queries(part.counts, JUDGED_PAIRS, seed)
    judge = part.only(held & np.isin(part.counts.query, judges))
    fitted = run(part.without(held), chosen, given, seed, start=start)
    before = judged(fitted, judge)
    prior = directions_of(fitted.seen, part.counts, start, chosen, given, seed)[1]
    space = steps.item_step(fitted.space, fitted.seen, fitted.x, before.covariance, prior)
    x = fitted.x.copy()
    x[judges] = steps.query_step(space, fitted.seen, judges, x)[judges]
    new = replace(fitted, space=space, x=x)
    if surely_better(sigmoid(before.s) * (judged(new, judge).terms - before.terms)):
        return replace(chosen, steps=1), new
    return chosen, fitted


def half_life_of(counts: Counts, X: Floats, chosen: Chosen, given: Given, seed: int) -> float:
    """How fast the log ages, in parts of it: the last part is the likeliest given what came before, older parts weighing less.

    Infinite where nothing ages.  Shapes: X [pairs, 3].
    """
    late = counts.weighted(np.append(np.zeros(TIMES - 1), 1.0))
    pairs, of_late = (c.query * c.D + c.item for c in (counts, late))
    judge = Part.of(late, chosen.grades, X[np.searchsorted(pairs, of_late)])
    values = {}
    for half_life in HALF_LIVES:
        age = np.arange(TIMES - 2, -1, -1)
        early = counts.weighted(np.append(0.5 ** (age / half_life), 0.0))
        of_early = early.query * early.D + early.item
        part = Part.of(early, chosen.grades, X[np.searchsorted(pairs, of_early)])
        fitted = run(part, replace(chosen, model="none"), given, seed)
        s = fitted.space.s(late.query, late.item, fitted.x) + fitted.other(judge)
        place = np.minimum(np.searchsorted(of_early, of_late), len(of_early) - 1)
        before = np.where((of_early[place] == of_late)[:, None], part.L[place], np.float32(1))
        spread = steps.spread_of(fitted.space, fitted.seen, late.rows, fitted.x, late)
        both, alone = (chosen.grades.marginal(s, spread.asked, L) for L in (before * judge.L, before))
        values[half_life] = both - alone
    best = max(HALF_LIVES, key=lambda h: float(values[h].sum()))
    return best if surely_better(values[best] - values[np.inf]) else np.inf


class Search:
    """Constants by the held-out pairs of some queries.  Shapes: X [pairs, 3]; held [pairs]."""

    def __init__(self, counts: Counts, X: Floats, held: Mask, given: Given, seed: int) -> None:
        self.counts, self.X, self.held, self.given, self.seed = counts, X, held, given, seed
        self.rate = float(counts.C.sum() + 0.5) / float(counts.E.sum() + 1)
        self.parts = [(counts.only(kept), X[kept]) for kept in (~held, held)]
        self.starts: dict[tuple[float, float], Start] = {}  # by spread and level
        self.tried: list[tuple[Chosen, float]] = []

    def score(self, chosen: Chosen) -> Judged:
        """How likely the held-out pairs are."""
        train, judge = (Part.of(counts, chosen.grades, X) for counts, X in self.parts)
        key = chosen.grades.spread, chosen.level
        if key not in self.starts:
            self.starts[key] = started(train, chosen.level, self.given)
        found = judged(run(train, chosen, self.given, self.seed, start=self.starts[key]), judge)
        self.tried.append((chosen, float(found.terms.sum())))
        return found

    def best(self, bit: Grades) -> Chosen:
        """Of graded relevance and the bit, with directions of the log, and with production's if they are given."""
        found = [self._graded(), self._scored(Chosen.log(bit))]
        if self.given.directions is not None:
            found += [self._scored(Chosen.given(bit)), self._scored(Chosen.given(found[0][0].grades))]
        best, score = max(found, key=lambda x: float(x[1].terms.sum()))
        return self._moved(best, score.terms) if best.source == "log" else self._moved_surely(best, score)

    def _scored(self, chosen: Chosen) -> tuple[Chosen, Judged]:
        return chosen, self.score(chosen)

    def _graded(self) -> tuple[Chosen, Judged]:
        """The spread, from its usual value on, in the direction that helps."""
        start = best = self._scored(Chosen.log(Grades.graded(self.rate, SPREADS[2])))
        for others in (SPREADS[1::-1], SPREADS[3:]):
            for spread in others:
                new = self._scored(replace(best[0], grades=Grades.graded(self.rate, spread)))
                if new[1].terms.sum() <= best[1].terms.sum():
                    break
                best = new
            if best is not start:
                break
        return best

    def _moved(self, best: Chosen, terms: Floats) -> Chosen:
        for name, factors in LOG_MOVES:
            for factor in factors:
                new, found = self._scored(best.moved(name, factor))
                if found.terms.sum() > terms.sum():
                    best, terms = new, found.terms
                    break
        return best

    def _moved_surely(self, best: Chosen, score: Judged) -> Chosen:
        """Shapes of production's directions: a move only where held-out pairs, the relevant ones above all, become surely
        likelier. Shapes that a short log cannot tell apart differ in the lists they give."""
        weight, terms = sigmoid(score.s), score.terms
        own = None if self.given.directions is None else self.given.directions.queries
        for name, moves in GIVEN_MOVES:
            if name == "trust" and (own is None or not (np.square(own[self.counts.rows]).sum(1) > 1e-6).any()):
                continue
            for move in moves:
                while (new := best.moved(name, move)) != best:
                    found = self.score(new).terms
                    if not surely_better(weight * (found - terms)):
                        break
                    best, terms = new, found
        return best

    def with_model(self, chosen: Chosen) -> Chosen:
        """The kind of f, by held-out pairs and by queries that are held out altogether; none, where none helps."""
        part = Part.of(self.counts, chosen.grades, self.X)
        c = part.counts
        apart = random.uniforms(random.random_keys(self.seed, random.Stream.FOLDS, c.query)) < HELD_OUT
        train = part.only(~self.held & ~apart)
        start = started(train, chosen.level, self.given)
        # What is known without f: of a query that is held out altogether no more than the levels of the items.
        choice = (part.X - start.centre[c.item]) @ start.w
        s = start.flat.s(c.query, c.item, start.beta) + np.where(apart, 0.0, choice)
        lesson = lesson_of(train, start, self.given)
        every = replace(lesson, q=c.query, d=c.item, s=s, L=part.L)
        name, epochs = models.choose(lesson, every.part(self.held | apart), self.seed)
        return replace(chosen, model=name, epochs=epochs)


def fit(
    counts: Counts,
    features: Features | None = None,
    *,
    production: Vectors | None = None,
    seed: int = 0,
    watch: Callable[[str], None] | None = None,
) -> Beliefs:
    """Beliefs of a log.

    `production`: vectors of queries and items whose products are the scores of a policy that knows them, a prior of how queries
    differ. `watch` hears what was tried.  Shapes: production [Q, F], [D, F].
    """
    if not len(counts.query):
        raise LogError("expected a log with impressions to fit beliefs to; got none. Check the log.")
    given = _given(counts, features or Features(), production)
    choice = Choice.of(counts)
    X = columns(choice, counts.query, counts.item, counts.n, counts.E)
    rows = _some_queries(counts, SEARCH_PAIRS, seed)
    of_rows = np.isin(counts.query, rows)
    draw = random.uniforms(random.random_keys(seed, random.Stream.PAIRS, counts.query * counts.D + counts.item))
    some, held = counts.only(of_rows), (draw < _held_out(counts))[of_rows]
    search = Search(some, X[of_rows], held, given, seed)
    chosen = Chosen.log(Grades.graded(search.rate, SPREADS[2]))
    if held.any() and not held.all():
        chosen = search.best(fit_bit(counts))
        if given.u.shape[1] + given.z.shape[1]:
            chosen = search.with_model(chosen)
        if counts.time.any() and chosen.source == "log":
            chosen = replace(chosen, half_life=half_life_of(some, X[of_rows], chosen, given, seed))
    if watch is not None:
        for tried, value in search.tried:
            watch(f"{tried.words}: {value:.1f}")
    if np.isfinite(chosen.half_life):
        counts = counts.weighted(0.5 ** (np.arange(TIMES - 1, -1, -1) / chosen.half_life))
        choice = Choice.of(counts)
        X = columns(choice, counts.query, counts.item, counts.n, counts.E)
    part = Part.of(counts, chosen.grades, X)
    start, near = started(part, chosen.level, given), None
    if chosen.source == "production":
        chosen, near = with_item_step(chosen, part, start, draw < HELD_OUT, given, seed)
    fitted = run(part, chosen, given, seed, start=start, near=near)
    spread = steps.spread_of(fitted.space, fitted.seen, counts.rows, fitted.x)
    never = max(0.0, NEVER - float(fitted.start.w[0])) / choice.alpha
    return Beliefs(
        chosen=replace(chosen, never=never),
        counts=counts,
        inputs=Input(choice, fitted.start.w, fitted.start.centre, fitted.model),
        space=fitted.space,
        x=fitted.x,
        query_spread=spread.query,
        item_spread=spread.item,
        L=part.L,
    )


def _given(counts: Counts, features: Features, production: Vectors | None) -> Given:
    u, z = features.encoded(counts.Q, counts.D)
    design = np.column_stack([np.ones(counts.D), z])
    rising = np.zeros(design.shape[1], np.bool_)
    if production is None:
        return Given(u, z, design, rising)
    if (len(production.queries), len(production.items)) != (counts.Q, counts.D):
        raise InputError(
            f"expected vectors of {counts.Q} queries and {counts.D} items, as the log has; got {len(production.queries)} and "
            f"{len(production.items)}."
        )
    found = from_production(production)
    if found is None:
        return Given(u, z, design, rising)
    directions, score = found
    more = [score, np.log(np.maximum(score, 0.02 * score.max()))] if score.max() > 0 else [score]
    design = np.column_stack([design, *more])
    return Given(u, z, design, np.append(rising, np.ones(len(more), np.bool_)), directions)


def _held_out(counts: Counts) -> Floats:
    """The chance of each pair to be held out: HELD_OUT; up to half of those that were shown again, where they are too few.

    They alone say how much a click promises the next one, hence what grades there are.  Shapes: -> [pairs].
    """
    again = counts.n >= 2
    share = np.clip(HELD_OUT_AGAIN / max(float(again.mean()), 1e-9), HELD_OUT, 0.5)
    return np.where(again, share, HELD_OUT)


def _some_queries(counts: Counts, enough: int, seed: int) -> Whole:
    """Queries in random order, until they have pairs enough.  Shapes: -> [n]."""
    draw = random.uniforms(random.random_keys(seed, random.Stream.PAIRS, counts.rows))
    order = counts.rows[np.argsort(draw, kind="stable")]
    total = np.cumsum(np.diff(counts.first)[order])
    return np.sort(order[: int(np.searchsorted(total, enough)) + 1])
