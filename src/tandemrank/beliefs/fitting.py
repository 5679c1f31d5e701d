"""`fit`: from the sums of a log to beliefs.

1. levels of items and queries, and what production's own choice says (`started`): weights by the likelihood of all showings;
2. f over features, with these as an offset;
3. vectors of what is left: directions of the log alone, by expectation-maximisation; or production's own, if they are given;
4. what was never shown is believed less, the more so the more sharply production chooses.

The grades (how far R spreads around its mean, or the bit), how much queries differ and how, and the kind of f are chosen by the
likelihood of pairs that are held out, f by queries that are held out, too.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import nn

from tandemrank._base import random
from tandemrank.beliefs import model_fit, steps
from tandemrank.beliefs.belief import Beliefs, Chosen, Input, columns
from tandemrank.beliefs.choice import Choice
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.features import Features, KnownFeatures, leaks
from tandemrank.beliefs.grades import Floats32, Grades, sigmoid
from tandemrank.beliefs.levels import Levels, log_shown
from tandemrank.beliefs.model_fit import surely
from tandemrank.beliefs.models import FeatureModel
from tandemrank.beliefs.noise import fit_bit
from tandemrank.beliefs.regression import Regression
from tandemrank.beliefs.space import Vectors, from_production
from tandemrank.beliefs.turns import (
    FirstStep,
    FittedBelief,
    Given,
    JudgedPairs,
    Part,
    begun,
    judge_of,
    judged,
    lesson_of,
    run,
    sides_of,
    started,
    suggestion_of,
)
from tandemrank.errors import InputError, LogError

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]

HELD_OUT = 0.2  # share of the shown pairs that choose
APART = 0.1  # share of the queries, and of the items, that say whether f is for new ones
HELD_OUT_AGAIN = 0.02  # the share of all pairs that should choose and were shown again
SEARCH_PAIRS = 200_000  # pairs of whole queries that are enough to choose by
SPREADS = (0.15, 0.25, 0.4, 0.7, 1.0, 1.5, 2.5)  # of the log-odds of R around their mean, FIRST first
FIRST = 3
UNUSUAL = 2.0  # log-likelihood that another spread must gain: most pairs are shown once, and say nothing of it
# What is tried, one after the other, for as long as held-out pairs become likelier: of directions of the log, of production's.
# How much queries differ goes down, and pairs' spread goes, as far as that helps: too much of either is noise.
FIRST_MOVES: tuple[tuple[str, tuple[float, ...]], ...] = (("total", (0.4, 2.5)), ("spread", (-1, 1)))
LOG_MOVES: tuple[tuple[str, tuple[float, ...]], ...] = (*FIRST_MOVES, ("level", (0.33, 3.0)), ("rank", (2.0, 0.5)))
GIVEN_MOVES: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("total", (0.5, 2.0)), ("level", (0.33, 3.0)), ("slope", (-0.2, 0.2)), ("trust", (0.5, 1.0)),
)  # fmt: skip
LEAST = 1.0  # log-likelihood that f must gain at least: less is rounding
HALF_LIVES = (np.inf, 4.0, 1.5)  # in parts of the log
# How much more it says that a pair was never shown than the weight of production's choice of others does, in worlds that break
# our assumptions 3 to 5; far more where production is so sharp (alpha below) that it has ruled out whatever it left out.
NEVER, SHARP = 3.5, 1 / 15
# Log-odds, at least, per unit of how much less often than others an item that never was is expected to be shown.
NEVER_ITEM = 0.3


def half_life_of(search: "Search", chosen: Chosen) -> float:
    """How fast the log ages, in parts of it: the last part is the likeliest given what came before, older parts weighing less.

    Infinite where nothing ages: older parts must count surely less than all parts that weigh equally little, too, or the gain
    is that of trusting the log less. f is the same for all ages.
    """
    counts, X, given, seed = search.counts, search.X, search.given, search.seed
    model, f = search.models[chosen.f.words]
    late = counts.weighted(np.append(np.zeros(counts.times - 1), 1.0))
    pairs, of_late = (c.query * c.D + c.item for c in (counts, late))
    places = np.searchsorted(pairs, of_late)
    judge = Part.of(late, chosen.grades, X[places], f[places])
    age = np.arange(counts.times - 2, -1, -1)

    def value(weight: Floats) -> Floats:
        early = counts.weighted(np.append(weight, 0.0))
        of_early = early.query * early.D + early.item
        places = np.searchsorted(pairs, of_early)
        part = Part.of(early, chosen.grades, X[places], f[places])
        start = started(part, chosen, given)
        start = start if model is None else start.with_model(part, model)
        fitted = run(part, chosen, given, seed, start=start)
        s = fitted.space.s(late.query, late.item, fitted.x) + start.other(judge)
        place = np.minimum(np.searchsorted(of_early, of_late), len(of_early) - 1)
        before = np.where((of_early[place] == of_late)[:, None], part.L[place], np.float32(1))
        spread = steps.spread_of(fitted.space, fitted.seen, late.rows, fitted.x, late)
        both, alone = (chosen.grades.marginal(s, spread.asked, L) for L in (before * judge.L, before))
        return both - alone

    values = {half_life: value(0.5 ** (age / half_life)) for half_life in HALF_LIVES}
    best = max(HALF_LIVES, key=lambda h: search.total(values[h]))
    if np.isinf(best) or not search.surely(values[best] - values[np.inf]):
        return np.inf
    little = value(np.full(len(age), float(np.mean(0.5 ** (age / best)))))
    return best if search.surely(values[best] - little) else np.inf


def _is_farther(new: Chosen, old: Chosen) -> bool:
    """Whether a spread is farther from its usual value than another."""
    a, b = (abs(SPREADS.index(chosen.grades.spread) - FIRST) for chosen in (new, old))
    return a > b


class Search:
    """Constants by the held-out pairs of some queries: ours, all of the group search alike.

    Shapes: X [pairs, 3]; held [pairs].
    """

    def __init__(self, counts: Counts, X: Floats, held: Mask, given: Given, seed: int) -> None:
        self.counts, self.X, self.held, self.given, self.seed, self.group = counts, X, held, given, seed, counts.group
        clicks, seen = self.group.total(counts.C.sum(), counts.E.sum())
        self.rate = (clicks + 0.5) / (seen + 1)
        self.parts = [(counts.only(kept), kept) for kept in (~held, held)]
        self.starts: dict[tuple[float, float, bool, str], FirstStep] = {}  # by spread, level, features and kind of f
        # f of the first spread and level, which others need no other, and its values of all pairs, which take time.
        self.models: dict[str, tuple[FeatureModel | None, Floats]] = {
            model_fit.NO_MODEL.words: (None, np.zeros(len(X)))
        }
        self.known: dict[str, JudgedPairs] = {}
        self.tried: list[tuple[Chosen, float]] = []

    def total(self, terms: Floats) -> float:
        """The sum over everybody's pairs.  Shapes: terms [pairs]."""
        return self.group.total(terms.sum())[0]

    def surely(self, gains: Floats) -> bool:
        """Whether the sum of everybody's gains is above 0.  Shapes: gains [pairs]."""
        return surely(gains, self.group)

    def score(self, chosen: Chosen) -> JudgedPairs:
        """How likely the held-out pairs are."""
        if repr(chosen) not in self.known:
            f = self.models[chosen.f.words][1]
            train, judge = (Part.of(counts, chosen.grades, self.X[kept], f[kept]) for counts, kept in self.parts)
            fitted = run(train, chosen, self.given, self.seed, start=self._start(train, chosen))
            self.known[repr(chosen)] = judged(fitted, judge)
        found = self.known[repr(chosen)]
        self.tried.append((chosen, self.total(found.terms)))
        return found

    def _start(self, train: Part, chosen: Chosen) -> FirstStep:
        key = chosen.grades.spread, chosen.level, chosen.item_features, chosen.f.words
        if key not in self.starts:
            start, (model, _) = started(train, chosen, self.given), self.models[chosen.f.words]
            self.starts[key] = start if model is None else start.with_model(train, model)
        return self.starts[key]

    def best(self, bit: Grades) -> Chosen:
        """Of graded relevance and the bit, with directions of the log, and with production's if they are given; and f.

        Beside f queries differ less, and single pairs too: with directions of the log what comes after f is chosen after it.
        """
        first = Chosen.log(self._grades(FIRST))
        graded, as_bit = (
            [self._moved(*self._scored(first), FIRST_MOVES)],
            [self._scored(Chosen.log(bit))],
        )
        if self.given.directions is not None:
            graded.append(self._scored(Chosen.given(graded[0][0].grades)))
            as_bit.append(self._scored(Chosen.given(bit)))
        (best, score), other = (max(found, key=lambda x: self.total(x[1].terms)) for found in (graded, as_bit))
        # Where little can be told, a bit may call all that was shown equally relevant, and nothing is left of their order.
        if self.surely(other[1].terms - score.terms):
            best, score = other
        if self.given.item.numbers.shape[1]:
            with_items = self._scored(replace(best, item_features=True))
            if self.surely(with_items[1].terms - score.terms):
                best, score = with_items
        if best.source == "production":
            return self.with_model(self._moved_surely(best, score))[0]
        found, score = self.with_model(best)
        moved = not (found.f.names or found.grades.is_bit)
        return self._moved(found, score, LOG_MOVES[len(FIRST_MOVES) :] if moved else LOG_MOVES)[0]

    def _scored(self, chosen: Chosen) -> tuple[Chosen, JudgedPairs]:
        return chosen, self.score(chosen)

    def _grades(self, place: int) -> Grades:
        return Grades.graded(self.rate, SPREADS[place])

    def _moved(
        self, best: Chosen, score: JudgedPairs, moves: tuple[tuple[str, tuple[float, ...]], ...]
    ) -> tuple[Chosen, JudgedPairs]:
        """One constant after the other, in the first direction that helps."""
        for name, directions in moves:
            for step in directions:
                before = best
                while (new := self._step(best, name, step)) is not None:
                    found, least = self.score(new), 0.0
                    if name == "spread" and _is_farther(new, best):
                        least = UNUSUAL
                    if self.total(found.terms) <= self.total(score.terms) + least:
                        break
                    best, score = new, found
                    if name in ("level", "rank") or (name == "total" and step > 1):
                        break
                if best is not before:
                    break
        return best, score

    def _step(self, chosen: Chosen, name: str, step: float) -> Chosen | None:
        """One step of a constant; None where there is none."""
        if name != "spread":
            new = chosen.moved(name, step)
            return None if new == chosen else new
        if chosen.grades.is_bit:
            return None
        place = SPREADS.index(chosen.grades.spread) + int(step)
        return replace(chosen, grades=self._grades(place)) if 0 <= place < len(SPREADS) else None

    def _moved_surely(self, best: Chosen, score: JudgedPairs) -> Chosen:
        """Shapes of production's directions: a move only where held-out pairs, the relevant ones above all, become surely
        likelier. Shapes that a short log cannot tell apart differ in the lists they give."""
        weight, terms = sigmoid(score.s), score.terms
        own = None if self.given.directions is None else self.given.directions.queries
        for name, moves in GIVEN_MOVES:
            if name == "trust" and (own is None or not self.total(np.square(own[self.counts.rows]).sum(1) > 1e-6)):
                continue
            for move in moves:
                while (new := best.moved(name, move)) != best:
                    found = self.score(new).terms
                    if not self.surely(weight * (found - terms)):
                        break
                    best, terms = new, found
        return best

    def with_model(self, chosen: Chosen) -> tuple[Chosen, JudgedPairs]:
        """With the kind of f, by pairs, queries and items that are held out; without, where none helps."""
        without, f = self.score(chosen), self._kinds(chosen)
        if not f.names:
            return chosen, without
        # f was chosen without vectors: the whole belief must surely gain by it, too, of relevant pairs above all.
        found = replace(chosen, f=f)
        train, kept = self.parts[0]
        _, start = begun(Part.of(train, chosen.grades, self.X[kept]), found, self.given, self.seed)
        assert start.model is not None  # it was chosen
        self.models[f.words] = start.model, start.model.at(self.counts.query, self.counts.item)
        score = self.score(found)
        weight = sigmoid(without.s)
        gain = weight * (score.terms - without.terms)
        gained, weighed, pairs = self.group.total(gain.sum(), weight.sum(), len(weight))
        return (found, score) if self.surely(gain) and gained > LEAST * weighed / pairs else (chosen, without)

    def _kinds(self, chosen: Chosen) -> model_fit.ModelChoice:
        part = Part.of(self.counts, chosen.grades, self.X)
        c, group = part.counts, self.group
        before, queries = group.before(c.Q)
        draws = random.uniforms(random.random_keys(self.seed, random.Stream.FOLDS, np.arange(queries + c.D)))
        apart = draws[before : before + c.Q] < APART, draws[queries:] < APART
        train = part.only(~(self.held | apart[0][c.query] | apart[1][c.item]))
        if not group.before(len(train.counts.query))[1]:
            return model_fit.NO_MODEL
        start = started(train, chosen, self.given)
        lesson = lesson_of(train, start, chosen, self.given, self.seed, apart)
        judge = judge_of(part, start, lesson, self.held, apart)
        return model_fit.choose(lesson.together(group), judge.together(group), self.given.learners, self.seed, group)


@dataclass(frozen=True)
class Evidence:
    """A log, what production's choice says in it, and what is known beside.  Shapes: X [pairs, 3]."""

    counts: Counts
    choice: Choice
    given: Given
    X: Floats

    @classmethod
    def of(
        cls,
        counts: Counts,
        features: KnownFeatures,
        production: Vectors | None,
        learners: dict[str, tuple[int, model_fit.Learner]],
    ) -> "Evidence":
        """Of a log."""
        choice = Choice.of(counts)
        X = columns(choice, counts.query, counts.item, counts.n, counts.E)
        return cls(counts, choice, _given(counts, features, choice, production, learners), X)

    def aged(self, half_life: float) -> "Evidence":
        """With the older parts of the log weighing less."""
        if np.isinf(half_life):
            return self
        counts = self.counts.aged(half_life)
        choice = Choice.of(counts)
        X = columns(choice, counts.query, counts.item, counts.n, counts.E)
        return Evidence(counts, choice, replace(self.given, opinion=choice.opinion), X)


def fit(
    counts: Counts,
    features: Features | KnownFeatures | None = None,
    *,
    production: Vectors | None = None,
    model: str | nn.Module | None = None,
    chosen: Chosen | None = None,
    seed: int = 0,
    watch: Callable[[str], None] | None = None,
) -> Beliefs:
    """Beliefs of a log.

    `model`: the only kind of f that may be chosen (none, linear, towers, network, trees), or a module of one's own.
    `production`: vectors of queries and items whose products are the scores of a policy that knows them, a prior of how
    queries differ. `chosen`: constants that a part of the log chose before; then nothing is tried. `watch` hears what
    was tried. Where counts are of a part of the queries of a log, so is all else, and everybody of their group calls this.
    Shapes: production [Q, F], [D, F].
    """
    if not counts.group.before(len(counts.query))[1]:
        raise LogError("expected a log with impressions to fit beliefs to; got none. Check the log.")
    if not isinstance(features, KnownFeatures):
        features = (features or Features()).known(counts.Q, counts.D)
    evidence = Evidence.of(counts, features, production, model_fit.learners(model))
    chosen = chosen or _chosen(evidence, seed, watch)
    evidence = evidence.aged(chosen.half_life)
    counts, choice, given = evidence.counts, evidence.choice, evidence.given
    part = Part.of(counts, chosen.grades, evidence.X)
    fitted = run(part, chosen.finished(), given, seed)
    spread = steps.spread_of(fitted.space, fitted.seen, counts.rows, fitted.x)
    less, more = _unseen_items(fitted.start.levels, given)
    says = max(min(1.0, 1 / choice.alpha), (SHARP / choice.alpha) ** 2)
    s = fitted.space.s(counts.query, counts.item, fitted.x) + fitted.seen.other
    variance = spread.query[counts.query] * spread.item[counts.item]
    return Beliefs(
        chosen=replace(chosen, never=NEVER * float(fitted.start.w[0]) * says),
        counts=counts,
        inputs=_inputs(counts, choice, given, fitted),
        space=replace(fitted.space, offset=fitted.space.offset - less),
        x=fitted.x,
        query_spread=spread.query,
        item_spread=spread.item + more,
        remembered=chosen.grades.remembered(counts, s, variance, part.L),
        notes=(*leaks(features, counts), *_unused(model, chosen)),
    )


def _unseen_items(levels: Levels, given: Given) -> tuple[Floats32, Floats]:
    """By how much items that were never shown are less relevant than their level says, and its variance.  Shapes: -> [D], [D].

    Clicks on the pairs that production chose to show say too little of those it did not, hence NEVER_ITEM.
    """
    slope, p = max(NEVER_ITEM, levels.by_shown), sigmoid(levels.before)
    less = (levels.by_shown - slope) * np.minimum(given.design[:, 1], 0)
    variance = 1 / (levels.knowledge * p * (1 - p))
    return np.where(given.seen[1], 0, less).astype(np.float32), np.where(given.seen[1], 0, variance)


def _unused(model: str | nn.Module | None, chosen: Chosen) -> tuple[str, ...]:
    """That the model that was asked for is not used."""
    if model in (None, "none") or chosen.f.names:
        return ()
    name = model if isinstance(model, str) else type(model).__name__
    return (f"The model of features {name} is not used: held-out pairs are not surely likelier with it.",)


def _chosen(evidence: Evidence, seed: int, watch: Callable[[str], None] | None) -> Chosen:
    """The constants, by the held-out pairs of some queries."""
    counts, given, group = evidence.counts, evidence.given, evidence.counts.group
    rows, bit = _some_queries(counts, SEARCH_PAIRS, seed), fit_bit(counts)
    draw = random.uniforms(random.random_keys(seed, random.Stream.PAIRS, counts.keys))
    of_rows, held = np.isin(counts.query, rows), draw < _held_out(counts)
    some = counts.only(of_rows)
    if group.total(len(rows)) < group.total(len(counts.rows)):
        some, rows = some.packed()
        given = given.of_queries(rows)
    if len(items := some.items) < counts.D:  # what the search costs follows what was shown
        some, given = some.of_items(items), given.of_items(items)
    return _searched(Search(some, evidence.X[of_rows], held[of_rows], given, seed), bit, watch)


def _searched(search: Search, bit: Grades, watch: Callable[[str], None] | None) -> Chosen:
    """The constants, by what a search finds."""
    counts, held = search.counts, search.held
    chosen = Chosen.log(search._grades(FIRST))
    number, pairs = search.group.total(held.sum(), len(held))
    if 0 < number < pairs:
        chosen = search.best(bit)
        if counts.times > 1:
            chosen = replace(chosen, half_life=half_life_of(search, chosen))
    if watch is not None:
        for tried, value in search.tried:
            watch(f"{tried.words}: {value:.1f}")
    return chosen


def _inputs(counts: Counts, choice: Choice, given: Given, fitted: FittedBelief) -> Input:
    """What production's choice and f say, also of queries and items that the log has not seen, if they have features."""
    sides = sides_of(counts, given)
    a, b = (
        np.where(seen[:, None], own, side.opinions(encoded).numpy().astype(np.float64))
        for seen, side, own, encoded in zip(given.seen, sides, given.opinion, (given.query, given.item), strict=True)
    )
    return Input(
        choice=choice,
        w=fitted.start.w,
        centre=fitted.start.centre,
        opinion=(a, b),
        unseen=~given.seen[0] & (sides[0].features > 0),
        sides=sides,
        suggested=(fitted.suggested, _suggested_items(given, fitted)),
        model=fitted.start.model,
    )


def _suggested_items(given: Given, fitted: FittedBelief) -> Regression | None:
    """What features say of an item's directions, and of how far its level is from the mean; None where there are none."""
    suggestion = suggestion_of(given.item.numbers, given.seen[1])
    if suggestion is None:
        return None
    space = fitted.space
    level = space.offset - fitted.start.centre @ fitted.start.w
    return suggestion.of(np.column_stack([space.items[:, :-1], level - level[given.seen[1]].mean()]))


def _given(
    counts: Counts,
    features: KnownFeatures,
    choice: Choice,
    production: Vectors | None,
    learners: dict[str, tuple[int, model_fit.Learner]],
) -> Given:
    query, item = features.encoded
    design = np.column_stack([np.ones(counts.D), _shown(counts, item.numbers)])
    given = Given(
        query=query,
        item=item,
        pairs=features.pairs,
        opinion=choice.opinion,
        seen=(choice.places > 0, counts.by_item(np.ones(len(counts.item))) > 0),
        learners=learners,
        design=design,
    )
    if production is None:
        return given
    if (len(production.queries), len(production.items)) != (counts.Q, counts.D):
        raise InputError(
            f"expected vectors of {counts.Q} queries and {counts.D} items, as the log has; got {len(production.queries)} and "
            f"{len(production.items)}."
        )
    found = from_production(production, counts.group)
    if found is None:
        return given
    directions, score = found
    more = [score, np.log(np.maximum(score, 0.02 * score.max()))] if score.max() > 0 else [score]
    return replace(given, design=np.column_stack([design, *more]), directions=directions)


def _held_out(counts: Counts) -> Floats:
    """The chance of each pair to be held out: HELD_OUT; up to half of those that were shown again, where they are too few.

    They alone say how much a click promises the next one, hence what grades there are.  Shapes: -> [pairs].
    """
    again = counts.n >= 2
    often, pairs = counts.group.total(again.sum(), len(again))
    share = np.clip(HELD_OUT_AGAIN / max(often / pairs, 1e-9), HELD_OUT, 0.5)
    return np.where(again, share, HELD_OUT)


def _shown(counts: Counts, numbers: NDArray[np.floating]) -> Floats:
    """How often items are shown since they first were, as an item may be new (`log_shown`).  Shapes: numbers [D, J] -> [D]."""
    first = np.full((1, counts.D), counts.times)
    np.minimum.at(first[0], counts.item[counts.pair], counts.time)
    first = counts.group.gather(first).min(0) % counts.times  # one that never was might have been from the beginning
    return log_shown(counts.by_item(counts.n), (counts.times - first).astype(np.float64), numbers)


def _some_queries(counts: Counts, enough: int, seed: int) -> Whole:
    """Queries in random order, until they have pairs enough, over the whole log: ours.  Shapes: -> [n]."""
    draw = random.uniforms(random.random_keys(seed, random.Stream.PAIRS, counts.rows + counts.before))
    draws, pairs = (counts.group.gather(x) for x in (draw, np.diff(counts.first)[counts.rows]))
    order = np.argsort(draws, kind="stable")
    last = min(int(np.searchsorted(np.cumsum(pairs[order]), enough)), len(order) - 1)
    found: Whole = counts.rows[draw <= draws[order[last]]]
    return found
