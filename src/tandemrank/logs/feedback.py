"""`Feedback`: the sums of a click log that every estimator needs.

    exposure of a row        theta_k * (impressions that showed d to q at rank k)
    propensity of a row      sum_i w_i / sum_i (w_i / p_i), the harmonic mean of the logged ones

A logger that is retrained shows the same item with another propensity. Their mean over the rows *shown* would be too large,
E[p^2] / E[p], since a high propensity is met more often. What estimators need of a row is sum_i w_i / p_i: it estimates the
impressions without bias, sum_i theta_k w_i / p_i over the ranks of a pair, whatever the p_i are. With the harmonic mean

- all that is a sum over what was *shown* (balance, self-normalisation, the model's part of the doubly robust estimator) is
  the sum impression by impression, exactly;
- the clicks, sum_i c_i mean(1 / p), are sum_i c_i / p_i exactly where the p_i of the row are equal, else in expectation: it
  is the expectation of that sum given how many of these impressions were clicked (Rao-Blackwell), so it has never more
  variance. It assumes that the relevance of a pair did not change together with its propensity, as all sums of a log do.

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
from tandemrank.logs.exact import INVERSE_LIMBS, WEIGHT_LIMBS, CountsOrLimbs, Limbs

MOST_COUNTED = 2**50  # far from the end of whole numbers in float64


# The sums of a log, and the limbs of those that are no counts.
LIMBS = {
    "shown": WEIGHT_LIMBS,
    "clicks": WEIGHT_LIMBS,
    "logged": INVERSE_LIMBS,
    "others": WEIGHT_LIMBS,
    "impressions": WEIGHT_LIMBS,
}


@dataclass(frozen=True)
class Feedback:
    """What a log says, one row for each distinct (query, item, rank), sorted: enough for every estimator.

    `shown` and `clicks` are (weighted) numbers of impressions, `logged` the sum of weight / propensity of those that showed
    it, or None where the log has no propensities, `impressions` the (weighted) number of impressions of each query. `exact`
    has the limbs (`logs.exact`) of sums that float64 would round, so that merging is exact; where a column was changed it
    counts, as it is. A log with weights has those of `impressions`, even where its sums are whole numbers: by them it knows
    that it has weights. `others`: clicks on other items of the same lists, summed over the row's clicks; weights do not
    enter. None where nobody counted them. `anew`: every impression has a random key of its own, as a server writes them:
    its list was drawn for it. `heaviest`: the largest weight of an impression; there are at least N / heaviest of them.
    Shapes: query, item, rank, shown, clicks, logged, others [P]; impressions [Q].
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
    anew: bool = False
    heaviest: float = 1.0

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

    def of_queries(self, first: int, stop: int) -> "Feedback":
        """The sums of some queries, which become the first ones; not to be merged again."""
        rows = slice(*np.searchsorted(self.query, [first, stop]))
        columns = {name: getattr(self, name)[rows] for name in ("item", "rank", "shown", "clicks")}
        logged, others = (None if x is None else x[rows] for x in (self.logged, self.others))
        return replace(
            self,
            vocabulary=Vocabulary(self.vocabulary.query_ids[first:stop], self.vocabulary.item_ids),
            query=self.query[rows] - np.int32(first),
            **columns,
            logged=logged,
            others=others,
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


def exposure(feedback: Feedback, theta: NDArray[np.float64]) -> NDArray[np.float64]:
    """The examination that each row collected: theta_k * shown. Shapes: theta [K] -> [P]."""
    if len(feedback.rank) and feedback.rank.max() >= len(theta):
        raise LogError(
            f"the log shows items at rank {feedback.rank.max() + 1}, but the examination curve ends at rank "
            f"{len(theta)}. Give a longer curve, with zeros where nobody looks."
        )
    theta_k: NDArray[np.float64] = np.asarray(theta)[feedback.rank]
    return theta_k * feedback.shown
