"""`Feedback`: the sums of a click log that every estimator needs.

    exposure of a row        theta_k * (impressions that showed d to q at rank k)
    propensity of a row      p = sum_i w_i / sum_i (w_i / p_i), the harmonic mean of the logged ones
    its clicks               sum_i c_i p / p_i, each by the propensity of its own showing (`by_own_propensity`)

A logger that is retrained shows the same item with another propensity. Their mean over the rows *shown* would be too large,
E[p^2] / E[p], since a high propensity is met more often. With the harmonic mean all that is a sum over what was *shown*
(balance, self-normalisation, the model's part of the doubly robust estimator) is the sum impression by impression, exactly.
Clicks as they are must not be divided by it: a logger that adapts shows an item with a high propensity while it is liked, or
just because it was clicked, and sum_i c_i / p is then not sum_i c_i / p_i. (Where neither is so the first has less noise, of
which beta*-IPS takes as much away.)

Nothing here has the size queries x items.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.ids import Vocabulary
from tandemrank.errors import LogError
from tandemrank.logs import exact
from tandemrank.logs.exact import INVERSE_LIMBS, SQUARE_LIMBS, WEIGHT_LIMBS, CountsOrLimbs, Limbs
from tandemrank.logs.impressions import By

MOST_COUNTED = 2**50  # far from the end of whole numbers in float64


# The sums of a log, and the limbs of those that are no counts.
LIMBS = {
    "shown": WEIGHT_LIMBS,
    "clicks": WEIGHT_LIMBS,
    "logged": INVERSE_LIMBS,
    "others": WEIGHT_LIMBS,
    "weighed": INVERSE_LIMBS,
    "weighed_together": INVERSE_LIMBS,
    "weighed_squares": SQUARE_LIMBS,
    "impressions": WEIGHT_LIMBS,
}


@dataclass(frozen=True)
class Feedback:
    """What a log says, one row for each distinct (query, item, rank), sorted: enough for every estimator.

    Where examination depends on more than the rank, as `by` says, a row has a `state`, too.

    `shown` and `clicks` are (weighted) numbers of impressions, `logged` the sum of weight / propensity of those that showed
    it, or None where the log has no propensities, `impressions` the (weighted) number of impressions of each query. `exact`
    has the limbs (`logs.exact`) of sums that float64 would round, so that merging is exact; where a column was changed it
    counts, as it is. A log with weights has those of `impressions`, even where its sums are whole numbers: by them it knows
    that it has weights. `others`: clicks on other items of the same lists, summed over the row's clicks; weights do not
    enter. None where nobody counted them. Of a log with propensities, sums over the row's clicks: `weighed` of weight / p_i;
    `weighed_together` of m_i / p_i and `weighed_squares` of m_i / p_i^2, with m_i the clicks of the list. `anew`: every
    impression has a random key of its own, as a server writes them: its list was drawn for it. `heaviest`: the largest weight
    of an impression; there are at least N / heaviest of them.
    Shapes: query, item, rank, shown, clicks, logged, others, weighed, ... [P]; impressions [Q].
    """

    vocabulary: Vocabulary
    query: NDArray[np.int32]
    item: NDArray[np.int32]
    rank: NDArray[np.int16]
    shown: NDArray[np.float64]
    clicks: NDArray[np.float64]
    logged: NDArray[np.float64] | None
    impressions: NDArray[np.float64]
    exact: Mapping[str, Limbs] = field(default_factory=dict)
    others: NDArray[np.float64] | None = None
    weighed: NDArray[np.float64] | None = None
    weighed_together: NDArray[np.float64] | None = None
    weighed_squares: NDArray[np.float64] | None = None
    anew: bool = False
    heaviest: float = 1.0
    state: NDArray[np.int16] | None = None
    by: By | None = None

    @property
    def N(self) -> float:
        """The (weighted) number of impressions."""
        return float(self.impressions.sum())

    @property
    def weighted(self) -> bool:
        """Whether some impression counts other than once; whole sums do not rule it out."""
        whole = all(np.array_equal(x, np.round(x)) for x in (self.impressions, self.shown))
        return "impressions" in self.exact or not whole

    @property
    def Q(self) -> int:
        """The number of queries, logged or not."""
        return len(self.vocabulary.query_ids)

    @property
    def D(self) -> int:
        """The number of items, shown or not."""
        return len(self.vocabulary.item_ids)

    @property
    def propensity(self) -> NDArray[np.float64] | None:
        """The harmonic mean of the logged propensities of each row (see above). Shapes: -> [P]."""
        return None if self.logged is None else self.shown / self.logged

    def of_rows(self, rows: NDArray[np.bool_]) -> "Feedback":
        """Some rows.  Shapes: rows [P]."""
        columns = [name for name in LIMBS if name != "impressions" and getattr(self, name) is not None]
        columns += ["query", "item", "rank", *(["state"] if self.state is not None else [])]
        return replace(self, **{name: getattr(self, name)[rows] for name in columns})

    def without_propensities(self) -> "Feedback":
        """The same where others than the logged propensities are used."""
        return replace(self, logged=None, weighed=None, weighed_together=None, weighed_squares=None)

    def by_own_propensity(self) -> "Feedback":
        """With clicks that count sum_i c_i p / p_i, so that over p they are sum_i c_i / p_i; as it is without propensities."""
        if self.weighed is None or self.propensity is None:
            return self
        return replace(self, clicks=self.weighed * self.propensity)

    def less(self, offset: NDArray[np.float64] | None) -> "Feedback":
        """Without the clicks that ranks get whatever stands there (`clicks.trust`).  Shapes: offset [K]."""
        return self if offset is None else replace(self, clicks=self.clicks - offset[self.rank] * self.shown)

    def of_queries(self, first: int, stop: int) -> "Feedback":
        """The sums of some queries, which become the first ones; not to be merged again."""
        some = self.of_rows((self.query >= first) & (self.query < stop))
        return replace(
            some,
            vocabulary=Vocabulary(self.vocabulary.query_ids[first:stop], self.vocabulary.item_ids),
            query=some.query - np.int32(first),
            impressions=self.impressions[first:stop],
        )

    def sums(self, name: str) -> CountsOrLimbs:
        """A column to add without rounding: the limbs kept, where they are the column's; else whole numbers, or limbs of it."""
        column, kept = getattr(self, name), self.exact.get(name)
        if kept is not None and kept.shape[1] == len(column) and np.array_equal(exact.value(kept), column):
            return kept
        if np.array_equal(column, np.round(column)) and column.max(initial=0.0) < MOST_COUNTED:
            return np.asarray(column, dtype=np.int64)
        return exact.split(column, LIMBS[name])


def fingerprint(parts: Sequence[Feedback]) -> str:
    """A name for a log by how often each rank was shown and clicked: the same however it is cut into parts.

    Two logs that differ have the same name only where all these numbers are equal.
    """
    K = max((int(part.rank.max()) + 1 for part in parts if len(part.rank)), default=0)
    totals = np.zeros((2, K))
    for part in parts:
        totals += [np.bincount(part.rank, column, K) for column in (part.shown, part.clicks)]
    return hashlib.sha256(np.round(totals, 3).tobytes()).hexdigest()[:32]


def examination(feedback: Feedback, theta: NDArray[np.float64]) -> NDArray[np.float64]:
    """The chance that a showing of each row is examined, by its rank, or by its rank and state.

    Shapes: theta [K] or [K, states] -> [P].
    """
    theta = np.asarray(theta)
    if len(feedback.rank) and feedback.rank.max() >= len(theta):
        raise LogError(
            f"the log shows items at rank {feedback.rank.max() + 1}, but the examination curve ends at rank "
            f"{len(theta)}. Give a longer curve, with zeros where nobody looks."
        )
    if theta.ndim == 1:
        found: NDArray[np.float64] = theta[feedback.rank]
        return found
    if feedback.state is None:
        raise LogError(
            "this examination is by more than the rank, and the sums of the log are not: give the log itself."
        )
    of_state: NDArray[np.float64] = theta[feedback.rank, feedback.state]
    return of_state


def by_rank(feedback: Feedback, theta: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean examination of every rank in a log; where nothing was shown, that of the rank before.

    Shapes: theta [K] or [K, states] -> [K].
    """
    if theta.ndim == 1:
        return theta
    shown, seen = (np.bincount(feedback.rank, x, len(theta)) for x in (feedback.shown, exposure(feedback, theta)))
    last = np.maximum.accumulate(np.where(shown > 0, np.arange(len(theta)), 0))
    found: NDArray[np.float64] = (seen / np.maximum(shown, np.finfo(float).tiny))[last]
    return found


def exposure(feedback: Feedback, theta: NDArray[np.float64]) -> NDArray[np.float64]:
    """The examination that each row collected: theta_k * shown. Shapes: theta [K] or [K, states] -> [P]."""
    return examination(feedback, theta) * feedback.shown


def click_moments(log: Feedback, most: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sums over the clicks of every row of 1, h and h^2, and of m, m h and m h^2: h_i = p / p_i, m_i the clicks of the list.

    All h are 1 without propensities; `most` clicks of a list stand for m where nobody counted them. sum h^2 as if m and h had
    nothing to do with each other, exactly where a list gets one click.  Shapes: -> [3, P], [3, P].
    """
    c = log.clicks
    m = most * c if log.others is None else np.minimum(c + log.others, most * c)
    p = log.propensity
    if p is None or log.weighed is None or log.weighed_together is None or log.weighed_squares is None:
        return np.stack([c, c, c]), np.stack([m, m, m])
    together = np.stack([m, log.weighed_together * p, log.weighed_squares * np.square(p)])
    alone = np.divide(c, m, out=np.zeros_like(c), where=m > 0)
    return np.stack([c, log.weighed * p, together[2] * alone]), together
