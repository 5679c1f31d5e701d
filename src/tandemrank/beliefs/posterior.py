"""The posterior with memory: a reward model that uses all that a log says, clicks, non-clicks and what was seen of each pair.

    log-odds of relevance before a pair's own showings   s[q, d] = offset_d + y_d . x_q + beta_q          (`space`)
    what its own showings say                            l[q, d]                                         (`memory`)
    R[q, d] = r0 + (r1 - r0) z,   P(z = 1 | log) = E sigmoid(s + l) = sigmoid((s + l) / sqrt(1 + pi v / 8)), nearly

with v the variance of s that is left. docs/learning.md has the derivation. Every constant is chosen from the log: pairs that
are held out say how much queries differ (`Shape`), and whether the items' directions are fitted anew.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tandemrank._base import random
from tandemrank._base.sparse import sums_by
from tandemrank.beliefs import space as spaces
from tandemrank.beliefs import steps
from tandemrank.beliefs.levels import item_levels
from tandemrank.beliefs.memory import Noise, fit_noise, memory_of, pair_starts
from tandemrank.beliefs.model import Belief, RewardModel
from tandemrank.beliefs.space import FLAT, Directions, Shape, Space, sigmoid
from tandemrank.beliefs.vectors import Vectors
from tandemrank.errors import InputError, LogError
from tandemrank.logs.feedback import Feedback, exposure
from tandemrank.policies.memory import Memory

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]

HELD_OUT = 0.1  # share of the shown pairs that choose the constants
SEARCH_PAIRS = 150_000  # pairs of whole queries that are enough to choose a shape by
JUDGED_PAIRS = 300_000  # held-out pairs of whole queries that are enough to judge the items by
ITEM_STEPS, LOG_ITEM_STEPS = 1, 5  # at most, from a policy's vectors and from directions of the log alone
SURE = 2.0  # standard errors by which a choice must be better
# What is tried from the default shape on, one after the other, for as long as it helps.
MOVES: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("total", (0.5, 2.0)), ("level", (0.33, 3.0)), ("slope", (-0.2, 0.2)), ("trust", (0.5, 1.0)),
)  # fmt: skip


# How much the scores of the policy that drew the log say beyond the space that they are the prior of, that are tried: log-odds
# of relevance per unit; and the prior of it: half way between nothing and all.
OPINIONS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5)
OPINION = (0.5, 0.5)
# How much the logger's own choice says, that are tried: log-odds of relevance per log of how much more often a query was shown
# an item than others were.
CHOICES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
# The prior of it, mean and deviation: a live system was made to choose well, until its log says otherwise.
CHOICE = (1.0, 0.5)


@dataclass(frozen=True)
class Chosen:
    """What the log chose: noise, shape, how often the items' directions were fitted, where the space came from, and how much
    the logger's own choice says (`logger`, 0: nothing), and its scores (`opinion`)."""

    noise: Noise
    shape: Shape
    item_steps: int
    source: str
    logger: float = 0.0
    opinion: float = 0.0


@dataclass(frozen=True)
class Posterior(RewardModel):
    """The fitted model. `queries` are (x, beta); `query_spread` times `item_spread` is the variance of s that is left.

    Shapes: items [D, F + 1], the last column 1; offset [D]; queries [Q, F + 1]; query_spread [Q]; item_spread [D].
    """

    kind: ClassVar[str] = "posterior"

    chosen: Chosen
    memory: Memory
    items: Floats32
    offset: Floats32
    queries: Floats32
    query_spread: Floats
    item_spread: Floats

    def at(self, q: NDArray[np.integer], d: NDArray[np.integer]) -> Belief:
        """Mean and variance of R, which is r1 with the chance of relevance and else r0.  Shapes: q, d [n] -> [n]."""
        s = self.offset[d] + np.einsum("nf,nf->n", self.queries[q], self.items[d])
        variance = self.query_spread[q] * self.item_spread[d]
        p = sigmoid((s + self.memory.at(q, d)) / np.sqrt(1 + FLAT * variance))
        gap = self.chosen.noise.relevant - self.chosen.noise.irrelevant
        return Belief(self.chosen.noise.rate(p), gap**2 * p * (1 - p))

    def matrix(self, q: NDArray[np.integer]) -> Floats:
        """The mean of R of every item; one that the log does not know is as good as the mean.  Shapes: q [B] -> [B, D + 1]."""
        s = self.memory.add_to(self.log_odds(q), q)
        s /= np.sqrt(1 + FLAT * self.query_spread[q, None] * self.item_spread)
        R = self.chosen.noise.rate(sigmoid(s))
        return np.column_stack([R, R.mean(1)])

    def log_odds(self, q: NDArray[np.integer]) -> Floats:
        """s of every item, without the memory.  Shapes: q [B] -> [B, D]."""
        found: Floats = (self.queries[q] @ self.items.T + self.offset).astype(np.float64)
        return found

    def constants(self) -> dict[str, Any]:
        """Its plain numbers."""
        c = self.chosen
        return {
            "noise": vars(c.noise), "shape": vars(c.shape), "item_steps": c.item_steps, "source": c.source, "logger": c.logger,
            "opinion": c.opinion, "D": self.memory.D,
        }  # fmt: skip

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Its arrays."""
        names = ("items", "offset", "queries", "query_spread", "item_spread")
        memory = {f"memory_{name}": getattr(self.memory, name) for name in ("first", "item", "value")}
        return {name: getattr(self, name) for name in names} | memory


def fit(
    feedback: Feedback,
    theta: Floats,
    *,
    vectors: Vectors | None = None,
    noise: Noise | None = None,
    logger: Vectors | None = None,
    design: Floats | None = None,
    seed: int = 0,
) -> Posterior:
    """The posterior of a log; `vectors` of a policy in the same vocabulary are the prior, `noise` is fitted if it is not given.

    `logger`: the vectors of the policy that drew the log, whose scores are evidence of their own (`with_opinion`).
    `design`: what is known of the items' levels without a policy, by default nothing.  Shapes: theta [K]; design [D, J].
    """
    theta = np.asarray(theta, np.float64)
    if not len(feedback.query):
        raise LogError("expected a log with impressions to fit a reward model to; it has none.")
    if vectors is not None and (len(vectors.queries), len(vectors.items)) != (feedback.Q, feedback.D):
        raise InputError(
            f"vectors are of {len(vectors.queries)} queries and {len(vectors.items)} items, the log's vocabulary has "
            f"{feedback.Q} and {feedback.D}."
        )
    noise = noise or fit_noise(feedback, theta, seed=seed)
    whole = _Fit(feedback, theta, noise, memory_of(feedback, theta, noise), seed, design, logger)
    return whole.run(None if vectors is None else spaces.from_vectors(vectors))


class _Fit:
    """One fit: the pairs of the log, those that are held out, and what was chosen so far."""

    def __init__(
        self, feedback: Feedback, theta: Floats, noise: Noise, memory: Memory, seed: int, design: Floats | None = None,
        logger: Vectors | None = None,
    ) -> None:  # fmt: skip
        self.logger = logger
        self.design = spaces.constant_design(feedback.D)[0] if design is None else design
        self.feedback, self.noise, self.memory, self.seed = feedback, noise, memory, seed
        self.judged: tuple[Memory, Floats, NDArray[np.bool_]] | None = None
        self.seen = exposure(feedback, theta)
        self.rows = np.unique(feedback.query).astype(np.int64)
        pairs = memory.query * memory.D + memory.item
        held = random.uniforms(random.random_keys(seed, random.Stream.PAIRS, pairs)) < HELD_OUT
        self.held_out, self.train = memory.only(held), memory.only(~held)
        starts = pair_starts(feedback)
        self.held = held
        self.is_held = np.repeat(held, np.diff(np.append(starts, len(feedback.query))))

    def levels(self, directions: Directions | None, *, whole: bool) -> Floats:
        """The items' levels, from the pairs that train or from all.  Shapes: -> [D]."""
        used, log = np.ones(len(self.seen), np.bool_) if whole else ~self.is_held, self.feedback
        clicks, seen = (sums_by(log.item[used], x[used], log.D) for x in (log.clicks, self.seen))
        nothing = self.design, np.zeros(self.design.shape[1], np.bool_)
        design, rising = nothing if directions is None else (directions.design, directions.rising)
        return item_levels(clicks, seen, design, self.noise, rising=rising).after

    def run(self, directions: Directions | None) -> Posterior:
        source = "the vectors of a policy" if directions is not None else "the log alone"
        g = self.levels(directions, whole=False)
        if directions is None:
            directions = spaces.from_log(self.train, g, self.rows, Shape().level, seed=self.seed)
            directions = replace(directions, design=self.design, rising=np.zeros(self.design.shape[1], np.bool_))
        shape = self.choose_shape(directions, g)
        start = spaces.shaped(directions, g, shape, self.memory.Q)
        space, x, taken = self.fit_items(start, g, ITEM_STEPS if directions.queries is not None else LOG_ITEM_STEPS)
        # The last word: all pairs, with what was chosen without some of them.
        offset = spaces.with_levels(
            start.items, self.levels(directions, whole=True), start.mean, start.precision
        ).offset
        space = replace(space, offset=offset)
        x = steps.query_step(space, self.memory, self.rows, x)
        spread = steps.spread_of(space, self.memory, self.rows, x)
        found = Posterior(
            Chosen(self.noise, shape, taken, source), self.memory, space.items, space.offset, x.astype(np.float32),
            spread.query, spread.item,
        )  # fmt: skip
        much, kappa = self.choose_logger()
        found = with_choice(found, self.choices, much)
        return found if self.logger is None else with_opinion(found, self.logger, kappa)

    def choose_shape(self, directions: Directions, g: Floats) -> Shape:
        """The shape by the held-out pairs of some queries: from the default, one constant after the other, each move only
        where these pairs become surely likelier. Shapes that a short log cannot tell apart differ in the lists they give."""
        rows = self.some_queries(self.train, SEARCH_PAIRS)
        held = self.held_out.only(np.isin(self.held_out.query, rows))
        if not len(held.item):
            return Shape()

        def judged(shape: Shape, x: Floats | None) -> tuple[Floats, Floats]:
            space = spaces.shaped(directions, g, shape, self.memory.Q)
            x = steps.query_step(space, self.train, rows, x)
            return steps.held_out_log_odds(space, self.train, rows, x, held)[0], x

        best = Shape()
        log_odds, x = judged(best, None)
        weight, terms = sigmoid(log_odds), steps.held_out_terms(log_odds, held)
        for name, moves in MOVES:
            if name == "trust" and not _has_own(directions, rows):
                continue
            for move in moves:
                while (new := _moved(best, name, move)) != best:
                    log_odds, x_new = judged(new, x)
                    terms_new = steps.held_out_terms(log_odds, held)
                    if not surely_better(weight * (terms_new - terms)):
                        break
                    best, terms, x = new, terms_new, x_new
        return best

    @cached_property
    def choices(self) -> Floats:
        """log of how much more often a query was shown an item than others were, of every shown pair.  Shapes: -> [pairs]."""
        log, memory = self.feedback, self.memory
        shown = np.add.reduceat(log.shown, pair_starts(log))
        expected = (
            sums_by(memory.item, shown, log.D)[memory.item] / log.impressions.sum() * log.impressions[memory.query]
        )
        found: Floats = np.log((shown + expected) / (2 * expected))
        return found

    def choose_logger(self) -> tuple[float, float]:
        """How much the logger's choice says, and how much its scores, by held-out pairs and a prior."""
        if self.judged is None:
            return 0.0, 0.0
        held, log_odds, kept = self.judged
        chosen = self.choices[self.held][kept]
        choice = chosen - _means(held.item, chosen, self.memory.D)[held.item]
        opinion = np.zeros(len(choice)) if self.logger is None else opinions(self.logger, held)[0]
        knows = bool(opinion.std() > 1e-3) if len(opinion) else False  # else the logger knows no query from another
        best, height = (0.0, 0.0), -np.inf
        for much, kappa in product(CHOICES, OPINIONS if knows else (0.0,)):
            terms = steps.held_out_terms(log_odds + much * choice + kappa * opinion, held)
            prior = sum(
                ((x - m) / s) ** 2 / 2 for x, (m, s) in ((much, CHOICE), *([(kappa, OPINION)] if knows else []))
            )
            if (found := float(terms.sum()) - prior) > height:
                best, height = (much, kappa), found
        return best

    def some_queries(self, pairs: Memory, enough: int) -> NDArray[np.int64]:
        """Queries in random order, until they have pairs enough.  Shapes: -> [n]."""
        draw = random.uniforms(random.random_keys(self.seed, random.Stream.PAIRS, self.rows))
        order = self.rows[np.argsort(draw, kind="stable")]
        total = np.cumsum(np.diff(pairs.first)[order])
        return np.sort(order[: int(np.searchsorted(total, enough)) + 1])

    def fit_items(self, start: Space, g: Floats, most: int) -> tuple[Space, Floats, int]:
        """The items' directions by expectation-maximisation, for as long as held-out pairs become likelier, `most` steps."""
        space, x = start, steps.query_step(start, self.train, self.rows)
        judges = self.some_queries(self.held_out, JUDGED_PAIRS)
        held = self.held_out.only(np.isin(self.held_out.query, judges))
        if not len(held.item):
            return space, x, 0
        log_odds, spread = steps.held_out_log_odds(space, self.train, judges, x, held)
        weight, terms = sigmoid(log_odds), steps.held_out_terms(log_odds, held)
        self.judged = held, log_odds, np.isin(self.held_out.query, judges)
        for taken in range(most):
            new = steps.item_step(space, self.train, x, spread.mean, start, g)
            # The queries that judge come first: where they refuse, the others need not move.
            x_new = steps.query_step(new, self.train, judges, x)
            log_odds, spread = steps.held_out_log_odds(new, self.train, judges, x_new, held)
            terms_new = steps.held_out_terms(log_odds, held)
            if not surely_better(weight * (terms_new - terms)):
                return space, x, taken
            others = np.setdiff1d(self.rows, judges)
            x[judges] = x_new[judges]
            space, terms, x = new, terms_new, _merged(x, steps.query_step(new, self.train, others, x), others)
        return space, x, most


def surely_better(gain: Floats) -> bool:
    """Whether a sum of gains is above 0 by SURE of its standard errors.  Shapes: [n]."""
    return bool(gain.sum() > SURE * np.sqrt(np.square(gain).sum()))


NEVER = float(np.log(0.5))  # the choice of a pair that was never shown


def with_choice(found: Posterior, choice: Floats, much: float) -> Posterior:
    """The posterior with what the logger's own choice says: s + much (choice - its mean over those who were shown the item).

    An item's level is that of the queries that were shown it; where the logger chooses well, others like it less. The choice
    of a pair that was never shown is one number, so what is added to the others is sparse.  Shapes: choice [pairs].
    """
    if not much:
        return found
    memory, D = found.memory, found.memory.D
    mean = _means(memory.item, choice, D)
    offset = found.offset + np.float32(much) * (NEVER - mean).astype(np.float32)
    value = memory.value + np.float32(much) * (choice - NEVER).astype(np.float32)
    return replace(
        found, offset=offset, memory=replace(memory, value=value), chosen=replace(found.chosen, logger=much)
    )  # fmt: skip


def with_opinion(found: Posterior, logger: Vectors, kappa: float) -> Posterior:
    """The posterior with what the logger thinks: s + kappa (its score - its mean score over those who were shown the item).

    A query with little log of its own then keeps the order of the policy that knew it.  Shapes: vectors [Q, F], [D, F].
    """
    if not kappa:
        return found
    _, mean = opinions(logger, found.memory)
    return replace(
        found,
        items=np.column_stack([np.float32(kappa) * logger.items, found.items]),
        queries=np.column_stack([logger.queries, found.queries]),
        offset=found.offset - np.float32(kappa) * mean.astype(np.float32),
        chosen=replace(found.chosen, opinion=kappa),
    )


def opinions(logger: Vectors, shown: Memory) -> tuple[Floats, Floats]:
    """The logger's score of shown pairs less its mean of the item, and these means, over those who were shown it.

    Of an item that hardly anybody was shown it is the mean over all.  Shapes: -> [pairs], [D].
    """
    scores = np.einsum("nf,nf->n", logger.queries[shown.query], logger.items[shown.item]).astype(np.float64)
    number, of_all = np.bincount(shown.item, minlength=shown.D), logger.items @ logger.queries.mean(0)
    mean: Floats = (np.bincount(shown.item, scores, shown.D) + of_all) / (number + 1)
    return scores - mean[shown.item], mean


def _means(index: NDArray[np.integer], values: Floats, n: int) -> Floats:
    """Means by index; that of nothing is the mean of all.  Shapes: index, values [m] -> [n]."""
    number = np.bincount(index, minlength=n)
    whole = float(values.mean()) if len(values) else 0.0
    found: Floats = (np.bincount(index, values, n) + whole) / (number + 1)
    return found


def _merged(x: Floats, new: Floats, rows: NDArray[np.int64]) -> Floats:
    """x with some rows of another.  Shapes: x, new [Q, F]; rows [n]."""
    x[rows] = new[rows]
    return x


def _has_own(directions: Directions, rows: NDArray[np.int64]) -> bool:
    """Whether a policy knows a taste of some of these queries."""
    return directions.queries is not None and bool((np.square(directions.queries[rows]).sum(1) > 1e-6).any())


def _moved(shape: Shape, name: str, move: float) -> Shape:
    """The shape with one constant changed: variances by a factor, the slope by a step, the trust as it is."""
    value = getattr(shape, name)
    if name == "slope":
        return replace(shape, slope=float(np.clip(value + move, 0, 1)))
    if name == "trust":
        return replace(shape, trust=max(value, move))
    return replace(shape, **{name: float(np.clip(value * move, 0.05, 64))})
