"""What the context of an impression changes: a device, an hour, a language.

    log-odds of R in a context = those of R + shift[d, values]        a sum over the context's columns

The shift of an item is around what its features suggest, as far as items differ. Averaged over the contexts of the log it is 0,
so R is the relevance in the average context. Beliefs are fitted as if there were no contexts, then again with the shifts in the
likelihood of every showing. Beyond its item's shift a single pair may differ in a context, by its showings there (`_pairs`).
Each is taken where pairs are surely likelier with it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base import random
from tandemrank.beliefs.belief import Beliefs, ContextEffects
from tandemrank.beliefs.counts import TENTHS, Counts
from tandemrank.beliefs.grades import Grades, sigmoid
from tandemrank.beliefs.model_fit import surely
from tandemrank.beliefs.regression import Suggestion
from tandemrank.logs.contexts import Contexts
from tandemrank.logs.feedback import Feedback
from tandemrank.policies.contexts import codes_of, places_of
from tandemrank.policies.features import Categorical

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Whole = NDArray[np.int64]
Mask = NDArray[np.bool_]

ROUNDS = 8  # of Newton steps over all columns
FARTHEST = 3.0  # log-odds
VARIANCE = 0.25, 1e-4  # of the shifts of items around what is expected: at first, and at least
HELD_OUT = 0.2  # share of the pairs that say whether items differ by context
SPREADS = (0.4, 0.7, 1.0, 1.5)  # of a pair in a context around R and its shift
LEVELS, USUAL = 41, 0.7  # of R, for such pairs; how far pairs spread where relevance is a bit
NOTHING = 0.05  # log-odds that a pair in a context must differ by to be remembered
BLOCK = 100_000  # pairs in a context at once


@dataclass(frozen=True)
class ContextLog:
    """A log by queries in their context, its parts oldest first, and the values of every column.

    Shapes: base [Q'], the query of each; codes [Q', C].
    """

    parts: tuple[Feedback, ...]
    base: Whole
    columns: tuple[Categorical, ...]
    codes: Whole

    @classmethod
    def of(cls, parts: Sequence[Feedback], contexts: Contexts) -> "ContextLog":
        """Of the sums of a log."""
        times = np.sum([part.impressions for part in parts], axis=0)
        columns = tuple(_values(contexts.table[name], times) for name in contexts.table.columns)
        return cls(tuple(parts), contexts.base, columns, codes_of(columns, contexts.table))

    def shifted(self, theta: Floats, shift: Floats, impressions: Floats) -> Counts:
        """By queries, with the shift of every row.  Shapes: theta [K]; shift [D, V]; impressions [Q]."""
        found = Counts.of(self.parts, theta)
        query, item = found.query[found.pair], found.item[found.pair]
        total = summed(shift, item, places_of(self.columns, self.codes[query]))
        return Counts.of_rows(
            self.base[query],
            item,
            found.examined,
            found.shown,
            found.clicks,
            impressions=impressions,
            D=found.D,
            time=found.time if found.times > 1 else None,
            shift=tenths_of(total).astype(np.int8),
        )


def _values(column: pl.Series, times: Floats) -> Categorical:
    """The values of a column, the most frequent first."""
    found = pl.DataFrame({"value": column, "times": times}).drop_nulls().group_by("value").agg(pl.col("times").sum())
    return Categorical(column.name, tuple(found.sort(["times", "value"], descending=[True, False])["value"]))


def summed(shift: Floats, item: NDArray[np.integer], place: Whole) -> Floats:
    """The shifts of items, summed over columns.  Shapes: shift [D, V]; item [n]; place [n, C], V for none -> [n]."""
    padded = np.column_stack([shift, np.zeros(len(shift))])
    found: Floats = padded[item[:, None], place].sum(1)
    return found


def tenths_of(shift: Floats) -> Whole:
    """As whole tenths: few kinds of showings are enough."""
    return np.rint(np.clip(shift, -FARTHEST, FARTHEST) * TENTHS).astype(np.int64)


def in_contexts(
    beliefs: Beliefs, log: ContextLog, theta: Floats, again: Callable[[Counts], Beliefs], seed: int = 0
) -> Beliefs:
    """The beliefs with what contexts change; as they are, with a note, where nothing surely does.

    `again`: fits beliefs to other counts, nothing chosen anew.  Shapes: theta [K].
    """
    groups, grades, suggestion = _Groups.of(beliefs, log, theta), beliefs.chosen.grades, _suggestion(beliefs)
    held = random.uniforms(random.random_keys(seed, random.Stream.PAIRS, groups.pair)) < HELD_OUT
    shift, by_item = _shifts(grades, groups.at(~held), log.columns, suggestion)
    of_items = surely(_gains(grades, groups.at(held), shift))
    shift, by_item = _shifts(grades, groups, log.columns, suggestion) if of_items else (0 * shift, 0 * by_item)
    found = again(log.shifted(theta, shift, beliefs.counts.impressions)) if of_items else beliefs
    spread, value, kept = _pairs(found, groups, tenths_of(summed(shift, groups.counts.item, groups.place)))
    if not of_items and not spread:
        names = ", ".join(column.name for column in log.columns)
        said = f"The context ({names}) is not used: held-out pairs are not surely likelier with it."
        return replace(beliefs, notes=(*beliefs.notes, said))
    query = groups.counts.query[kept]
    effects = ContextEffects(
        columns=log.columns,
        shift=shift,
        by_item=by_item,
        query=log.base[query],
        item=groups.counts.item[kept],
        codes=log.codes[query],
        value=value[kept],
        spread=spread,
    )
    return replace(found, contexts=effects)


@dataclass(frozen=True)
class _Groups:
    """Pairs in a context, with s as if there were no vectors, and the likelihoods of their showings.

    Shapes: pair, s, kind [n]; table [J, kinds]; place [n, C], where the values are among all, V for none.
    """

    counts: Counts
    pair: Whole
    s: Floats
    kind: NDArray[np.int32]
    table: Floats32
    place: Whole

    @classmethod
    def of(cls, beliefs: Beliefs, log: ContextLog, theta: Floats) -> "_Groups":
        """Of a log that the beliefs were fitted to."""
        c = beliefs.counts
        counts = Counts.of(log.parts, theta).aged(beliefs.chosen.half_life)
        q, d = log.base[counts.query], counts.item
        pair = np.searchsorted(c.query * c.D + c.item, q * c.D + d)
        x = np.zeros_like(beliefs.x)
        x[:, -1] = beliefs.x[:, -1]  # vectors may have learned what is the context's: levels alone
        s = beliefs.space.s(q, d, x) + beliefs.inputs.shown(c.query, c.item, c.n, c.E)[pair]
        table, _ = counts.table(beliefs.chosen.grades.R)
        return cls(counts, pair, s, counts.kinds[0], table, places_of(log.columns, log.codes[counts.query]))

    def at(self, kept: Mask) -> "_Groups":
        """Some of them."""
        own = {name: getattr(self, name)[kept] for name in ("pair", "s", "kind", "place")}
        return replace(self, counts=self.counts.only(kept), **own)


# --- items ------------------------------------------------------------------------------------------------------------


def _suggestion(beliefs: Beliefs) -> Suggestion | None:
    """What features say of items; None where there are none."""
    side = beliefs.inputs.sides[1]
    return Suggestion(side.rows[:, -side.features :].numpy(), side.seen.numpy()) if side.features else None


def _gains(grades: Grades, groups: _Groups, shift: Floats) -> Floats:
    """How much likelier the showings are with the shifts than without.  Shapes: -> [n]."""
    moved = groups.s + summed(shift, groups.counts.item, groups.place)
    now, before = (grades.terms_of_kinds(s, groups.table, groups.kind)[0] for s in (moved, groups.s))
    return now - before


def _shifts(
    grades: Grades, groups: _Groups, columns: Sequence[Categorical], suggestion: Suggestion | None
) -> tuple[Floats, Floats]:
    """The mode of all shifts by likelihood and prior, one column after the other, and what features suggest of them.

        shift[d, v] ~ N(m_v + z_d W_v, variance_v),      sum_v share_v shift[d, v] = 0 in every column

    m, W and the variances are those of the shifts themselves (empirical Bayes).  Shapes: -> [D, V], [J + 1, V].
    """
    D, first = groups.counts.D, np.cumsum([0, *(len(column.values) for column in columns)])
    V, J = int(first[-1]), 0 if suggestion is None else suggestion.numbers.shape[1]
    shift, mean, by_item = np.zeros((D, V)), np.zeros((D, V)), np.zeros((J + 1, V))
    variance = np.full(V, VARIANCE[0])
    for _ in range(ROUNDS):
        for j in range(len(columns)):
            own = slice(first[j], first[j + 1])
            moved = groups.s + summed(shift, groups.counts.item, groups.place)
            _, slope, h = grades.terms_of_kinds(moved, groups.table, groups.kind)
            S, H, E = (_by_item(groups, j, x, V)[:, own] for x in (slope, np.maximum(h, 0), groups.counts.E))
            precision = H + 1 / variance[own]
            step = (S - (shift[:, own] - mean[:, own]) / variance[own]) / precision
            now = np.clip(shift[:, own] + np.clip(step, -1, 1), -FARTHEST, FARTHEST)
            now -= (now @ (E.sum(0) / E.sum()))[:, None]
            mean[:, own], by_item[:, own] = _expected(now, H, suggestion)
            apart, seen = np.square(now - mean[:, own]) + 1 / precision, H > 0
            variance[own] = np.maximum((apart * seen).sum(0) / np.maximum(seen.sum(0), 1), VARIANCE[1])
            shift[:, own] = now
    return shift, by_item


def _by_item(groups: _Groups, column: int, values: Floats, V: int) -> Floats:
    """Values of groups summed by item and value of a column.  Shapes: values [n] -> [D, V]."""
    at = groups.counts.item.astype(np.int64) * (V + 1) + groups.place[:, column]
    return np.bincount(at, values, groups.counts.D * (V + 1)).reshape(-1, V + 1)[:, :V].astype(np.float64)


def _expected(shift: Floats, H: Floats, suggestion: Suggestion | None) -> tuple[Floats, Floats]:
    """The shift that is expected of every item: the mean, and what features suggest; and their weights, the constant last.

    Shapes: shift, H [D, V] -> [D, V], [J + 1, V].
    """
    mean = (H * shift).sum(0) / np.maximum(H.sum(0), 1e-9)
    if suggestion is None:
        return np.broadcast_to(mean, shift.shape), mean[None]
    found = suggestion.of(shift - mean)
    return found.at(suggestion.numbers) + mean, np.vstack([found.W, found.constant + mean])


# --- single pairs -----------------------------------------------------------------------------------------------------


def _pairs(beliefs: Beliefs, groups: _Groups, tenths: Whole) -> tuple[float, Floats, Mask]:
    """How far single pairs spread in a context around R and its shift, 0 where that is not sure; their log-odds there; and
    which of them say something.  Shapes: tenths [n] -> spread, [n], [n]."""
    table = _Levels.of(beliefs, groups, tenths)
    none = table.likelihood(0.0)
    found = {spread: table.likelihood(spread) for spread in SPREADS}
    spread = max(SPREADS, key=lambda one: float(found[one].sum()))
    if not surely(found[spread] - none):
        return 0.0, np.zeros(len(tenths)), np.zeros(len(tenths), np.bool_)
    value = _odds(table.means(spread))
    usual = _odds(beliefs.remembered[0])[groups.pair] + tenths / TENTHS
    return spread, value, np.abs(value - usual) > NOTHING


def _odds(R: Floats) -> Floats:
    R = np.clip(R, 1e-6, 1 - 1e-6)
    found: Floats = np.log(R / (1 - R))
    return found


@dataclass(frozen=True)
class _Levels:
    """Pairs whose relevance is one of some levels, and one of them around it, shifted, in every context.

        P(showings of a pair) = sum_j w_j prod_c M_c(j),      M_c(j) = sum_i v_i(l_j + shift_c) L_c(i)

    with w the weights of the pair's levels l_j before its showings, v normal weights, and L_c the likelihood of the showings
    in a context.  Shapes: levels [J]; log_w [pairs, J]; table [J, kinds]; order, the groups by pair, [n].
    """

    levels: Floats
    log_w: Floats32
    groups: _Groups
    tenths: Whole
    table: Floats32
    order: Whole

    @classmethod
    def of(cls, beliefs: Beliefs, groups: _Groups, tenths: Whole) -> "_Levels":
        """Of beliefs that know the shifts."""
        low, high = _odds(Grades.graded(beliefs.rate, USUAL).R[[0, -1]])
        grades = Grades(sigmoid(np.linspace(low, high, LEVELS)), beliefs.chosen.grades.spread or USUAL)
        s, variance = beliefs.shown
        mean = _odds(beliefs.chosen.grades.prior(s, np.zeros(len(s)))) if beliefs.chosen.grades.is_bit else s
        log_w = np.log(np.maximum(grades.weights(mean, variance).T, 1e-30)).astype(np.float32)
        table, _ = groups.counts.table(grades.R)
        return cls(_odds(grades.R), log_w, groups, tenths, table, np.argsort(groups.pair, kind="stable"))

    def _blocks(self) -> Iterator[Whole]:
        """Groups, all of a pair together."""
        pair = self.groups.pair[self.order]
        cuts = np.unique(np.searchsorted(pair, pair[::BLOCK]))
        yield from np.split(self.order, cuts[1:])

    def _inside(self, some: Whole, spread: float) -> tuple[Floats, Floats]:
        """M of groups, and the mean of R there by the pair's level.  Shapes: some [m] -> [m, J], [m, J]."""
        L, tenths = self.table.T[self.groups.kind[some]].astype(np.float64), self.tenths[some]
        M, mean = np.empty(L.shape), np.empty(L.shape)
        for tenth in np.unique(tenths):
            rows, V = tenths == tenth, _around(self.levels, tenth / TENTHS, spread)
            M[rows] = np.maximum(L[rows] @ V.T, 1e-30)
            mean[rows] = (L[rows] * sigmoid(self.levels)) @ V.T / M[rows]
        return M, mean

    def _weights(self, some: Whole, M: Floats) -> tuple[Whole, Whole, Floats]:
        """The pairs of groups, the place of each group's, and the logarithms of the weights of all levels of the pairs."""
        pairs, place = np.unique(self.groups.pair[some], return_inverse=True)
        total = self.log_w[pairs].astype(np.float64)
        np.add.at(total, place, np.log(M))
        return pairs, place, total

    def likelihood(self, spread: float) -> Floats:
        """log P(showings) of every pair, up to a constant.  Shapes: -> [pairs]."""
        found = np.zeros(len(self.log_w))
        for some in self._blocks():
            pairs, _, total = self._weights(some, self._inside(some, spread)[0])
            top = total.max(1)
            found[pairs] = top + np.log(np.exp(total - top[:, None]).sum(1))
        return found

    def means(self, spread: float) -> Floats:
        """E[R] of every pair in a context.  Shapes: -> [n]."""
        found = np.empty(len(self.order))
        for some in self._blocks():
            M, mean = self._inside(some, spread)
            _, place, total = self._weights(some, M)
            weight = np.exp(total - total.max(1, keepdims=True))[place]
            found[some] = (weight * mean).sum(1) / weight.sum(1)
        return found


def _around(levels: Floats, shift: float, spread: float) -> Floats:
    """The weights of levels around each of them, shifted: normal, or of the two nearest where nothing spreads.

    Shapes: levels [J] -> [J, J].
    """
    apart = levels - np.clip(levels + shift, levels[0], levels[-1])[:, None]
    near = np.maximum(1 - np.abs(apart) / (levels[1] - levels[0]), 0)
    found = np.exp(-(apart**2) / (2 * spread**2)) if spread else near
    weights: Floats = found / found.sum(1, keepdims=True)
    return weights
