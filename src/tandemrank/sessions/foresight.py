"""What a click leads to: from the end of the session to its start, the best list of every state and what it is worth.

    A_t(x, d) = 1 + g E[V_{t+1}(x') | x, click on d] - g E[V_{t+1}(x') | x, none]
    V_t(x)    = max over lists of sum_k theta_k R(x, d_k) A_t(x, d_k) + g E[V_{t+1}(x') | x, none],        V_T = 0

A click on d is worth A: the weight of a document is its immediate one plus what it leads to beyond
no click, and all else stays, the race and the trainer. Where a click leads to is counted in the log, by state and item; with
few clicks near the mean of the item for the query of the state, and of the item. A session that ended is worth nothing more.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.sparse import entries_of_rows, means_by, sums_by
from tandemrank.policies.ahead import Foresight
from tandemrank.policies.memory import Memory, memory_from

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
PRIOR = 1.0  # clicks for which the coarser mean counts: where a click leads to is mostly the same every time
NONE_PRIOR = 10.0  # the same of steps without a click, after which some leave and others do not
VISITS = 100.0  # of a state, for which the mean value of all states of its query counts
CELLS = 2**22  # of states and items at once
MOST_PAIRS = 2**24  # of states and items that are remembered


@dataclass(frozen=True, kw_only=True)
class Transitions:
    """Where the steps of a log led to: from a state, by a click on an item or by none (-1), to a state, or X: the end.

    `query_of`: the query of every state, or one and the same.  Shapes: state, item, after [n]; query_of [X].
    """

    state: Whole
    item: Whole
    after: Whole
    query_of: Whole
    D: int

    @property
    def X(self) -> int:
        """The number of states."""
        return len(self.query_of)


class Means:
    """E[V(x') | x, event] for any V, by the transitions of a log.

    Clicked pairs are kept sparse: those of each state, and those of its query.
    """

    def __init__(self, found: Transitions) -> None:
        X, D, clicked = found.X, found.D, found.item >= 0
        self.X, self.D, self.query_of = X, D, found.query_of
        self.visits = np.bincount(found.state, minlength=X).astype(np.float64)
        self.none_state, self.none_after = found.state[~clicked], found.after[~clicked]
        self.item, self.after = found.item[clicked], found.after[clicked]
        self.of_query, self.query_pair = np.unique(
            found.query_of[found.state[clicked]] * D + self.item, return_inverse=True
        )
        self.of_state, self.state_pair = np.unique(found.state[clicked] * D + self.item, return_inverse=True)
        # The pairs of a state are those that its query has clicked in any state, or where these are too many, in this one.
        first = np.searchsorted(self.of_query, np.arange(int(found.query_of.max()) + 2) * D)
        if np.diff(first)[found.query_of].sum() <= MOST_PAIRS:
            state, self.place = entries_of_rows(first, found.query_of)
        else:
            state = self.of_state // D
            self.place = np.searchsorted(self.of_query, found.query_of[state] * D + self.of_state % D)
        self.pairs = state * D + self.of_query[self.place] % D
        self.own = np.searchsorted(self.pairs, self.of_state)

    def pooled(self, V: Floats) -> Floats:
        """Values of states with few visits near the mean of their query's: less is known there, which is no reason to avoid
        them.  Shapes: [X] -> [X]."""
        n, Q = self.visits, int(self.query_of.max()) + 1
        mean = sums_by(self.query_of, n * V, Q) / np.maximum(sums_by(self.query_of, n, Q), 1e-12)
        found: Floats = (n * V + VISITS * mean[self.query_of]) / (n + VISITS)
        return found

    def none(self, V: Floats) -> Floats:
        """After a step without a click.  Shapes: V [X + 1], the last 0 -> [X]."""
        value = V[self.none_after]
        whole = float(value.mean()) if len(value) else 0.0
        return means_by(self.none_state, value, np.full(self.X, whole), NONE_PRIOR)

    def click(self, V: Floats) -> tuple[Floats, Memory]:
        """After a click: of every item, and of the pairs of states with items.  Shapes: V [X + 1] -> [D], pairs of [X, D]."""
        value = V[self.after]
        whole = np.full(self.D, float(value.mean()) if len(value) else 0.0)
        by_item = means_by(self.item, value, whole, PRIOR)
        by_query = means_by(self.query_pair, value, by_item[self.of_query % self.D], PRIOR)
        found = by_query[self.place]
        found[self.own] = means_by(self.state_pair, value, found[self.own], PRIOR)
        state, item = np.divmod(self.pairs, self.D)
        return by_item, memory_from(state, item.astype(np.int32), found.astype(np.float32), self.X, self.D)


def foresight_of(means: Means, V: Floats, discount: float) -> tuple[Foresight, Floats]:
    """What clicks lead to where the next states are worth V, and g E[V | none].  Shapes: V [X + 1] -> [X]."""
    none = discount * means.none(V)
    after, pairs = means.click(V)
    return Foresight.of(1 - none, np.full(means.X, discount), after, pairs), none


def backward(
    means: Means,
    relevance: Callable[[Whole], Floats],
    lists: Callable[[Whole, Floats], Floats],
    horizon: int,
    discount: float,
) -> Floats:
    """V_t of every state, from the last step to the first.  Shapes: -> [T + 1, X + 1]; V_T, and the end, are 0.

    `relevance` of some states, [B, D]; `lists`: what their list is worth by the weights R A of the items, [B, D] -> [B].
    """
    V = np.zeros((horizon + 1, means.X + 1))
    size = max(1, CELLS // means.D)
    for t in range(horizon - 1, -1, -1):
        foresight, none = foresight_of(means, V[t + 1], discount)
        for first in range(0, means.X, size):
            x = np.arange(first, min(first + size, means.X))
            V[t, x] = lists(x, relevance(x) * foresight.matrix(x)) + none[x]
        V[t, :-1] = means.pooled(V[t, :-1])
    return V


def best_lists(theta: Floats) -> Callable[[Whole, Floats], Floats]:
    """What the best list of every state is worth: the highest weights on top.  Shapes: theta [K]."""

    def worth(x: Whole, weights: Floats) -> Floats:
        K = min(len(theta), weights.shape[1])
        top = -np.partition(-weights, K - 1, axis=1)[:, :K]
        found: Floats = -np.sort(-top, axis=1) @ theta[:K]
        return found

    return worth
