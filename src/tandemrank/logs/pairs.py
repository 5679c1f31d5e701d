"""(query, item) pairs of a log: those shown at two ranks or more, which compare ranks, and those clicked or shown, which a
recommender that must not repeat leaves out.

E[ c_pk | c_p ] = c_p n_pk theta_k / sum_j n_pj theta_j        of a pair p, whatever its relevance (`contradiction`)
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from tandemrank._base.ids import Vocabulary, positions_of, same_ids
from tandemrank.errors import ConfigError
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.schema import MOST_RANKS

SURELY, FAR = 5.0, 1.25  # standard errors, and the factor, from which on a curve is contradicted


@dataclass(frozen=True)
class Pairs:
    """(query, item) pairs shown at two ranks or more. Shapes: query [n]; shown, clicks [n, K], sparse alike.

    Of a log whose rows have states it is [n, K states], a rank's states together.
    """

    query: NDArray[np.int32]
    shown: csr_matrix
    clicks: csr_matrix

    def take(self, chosen: NDArray[np.bool_]) -> "Pairs":
        """Only the chosen pairs. Shapes: chosen [n]."""
        return Pairs(self.query[chosen], self.shown[chosen], self.clicks[chosen])


def compared(feedback: Feedback, K: int, states: int = 1) -> Pairs:
    """The pairs of a log that compare ranks, or ranks in so many states; ranks after K are ignored."""
    if not 1 <= K <= MOST_RANKS:
        raise ConfigError(f"expected K from 1 to {MOST_RANKS} ranks, the most that a log may have; got {K}.")
    near = feedback.rank < K
    query, item, cell = feedback.query[near], feedback.item[near], feedback.rank[near].astype(np.int32)
    if states > 1 and feedback.state is not None:
        cell = cell * states + feedback.state[near]
    starts = np.flatnonzero((np.diff(query, prepend=-1) != 0) | (np.diff(item, prepend=-1) != 0))
    ends = np.append(starts, len(query))
    shape = (len(starts), K * states)
    shown = csr_matrix((feedback.shown[near], cell, ends), shape=shape)
    clicks = csr_matrix((feedback.clicks[near], cell, ends), shape=shape)
    if states == 1 and feedback.state is not None:
        shown.sum_duplicates()
        clicks.sum_duplicates()
    return Pairs(query[starts], shown, clicks).take(np.diff(shown.indptr) > 1)


def unconnected(pairs: Pairs) -> list[int]:
    """The ranks, from 1, whose examination the pairs cannot compare with that of rank 1.

    A click on a pair at rank j is a vote for j against every other rank the pair was shown at. The curve is identified
    if and only if votes lead from rank 1 to every rank and back (Ford, 1957, on paired comparisons).
    """
    ones = csr_matrix((np.ones(pairs.shown.nnz), pairs.shown.indices, pairs.shown.indptr), shape=pairs.shown.shape)
    _, part = connected_components(pairs.clicks.T @ ones, directed=True, connection="strong")
    return [int(k) + 1 for k in np.flatnonzero(part != part[0])]


def row_sums(matrix: csr_matrix) -> NDArray[np.float64]:
    return np.asarray(matrix.sum(axis=1), dtype=np.float64).ravel()


@dataclass(frozen=True)
class Contradiction:
    """The rank, from 1, at which clicks are farthest from what an examination curve expects of them."""

    rank: int
    clicks: float
    expected: float

    @property
    def words(self) -> str:
        """What the log says against the curve."""
        return (
            f"at rank {self.rank} there are {self.clicks:,.0f} clicks where the curve expects {self.expected:,.0f}, by items "
            "that a query was shown at several ranks"
        )


def contradiction(feedback: Feedback, theta: NDArray[np.float64]) -> Contradiction | None:
    """Where the clicks of a log surely contradict a curve, and by much; None where they do not.

    A pair's clicks are spread over its ranks by how often it was shown there and by the curve alone:

        z_k = sum_p (c_pk - c_p s_pk) / sqrt(sum_p c_p s_pk (1 - s_pk)),     s_pk = n_pk theta_k / sum_j n_pj theta_j

    Shapes: theta [K].
    """
    pairs = compared(feedback, len(theta))
    if not len(pairs.query):
        return None
    rank, rows = pairs.shown.indices, np.repeat(np.arange(len(pairs.query)), np.diff(pairs.shown.indptr))
    seen = pairs.shown.data * theta[rank]
    of_pair = np.bincount(rows, seen)[rows]
    s = np.divide(seen, of_pair, out=np.zeros(len(rows)), where=of_pair > 0)
    c = row_sums(pairs.clicks)[rows]
    clicks, expected, variance = (np.bincount(rank, x, len(theta)) for x in (pairs.clicks.data, c * s, c * s * (1 - s)))
    z = np.divide(np.abs(clicks - expected), np.sqrt(variance), out=np.zeros(len(theta)), where=variance > 0)
    far = np.maximum(clicks, expected) > FAR * np.minimum(clicks, expected)
    k = int(np.argmax(np.where(far, z, 0.0)))
    return Contradiction(k + 1, float(clicks[k]), float(expected[k])) if far[k] and z[k] > SURELY else None


Exclude = Literal["clicked", "shown"]


def check_exclude(asked: str) -> Exclude:
    """The name of what is left out; refuses any other."""
    if asked not in get_args(Exclude):
        raise ConfigError(f"exclude takes {' or '.join(get_args(Exclude))}; got {asked!r}.")
    return asked  # type: ignore[return-value]


def pairs_of(log: Feedback, what: Exclude, vocabulary: Vocabulary | None = None) -> csr_matrix:
    """1 at every pair that was clicked, or shown: positions of the log, or of another vocabulary.

    Queries and items that the other vocabulary does not have are left out.  Shapes: -> sparse [Q, D].
    """
    chosen = log.clicks > 0 if check_exclude(what) == "clicked" else log.shown > 0
    query, item = log.query[chosen].astype(np.int64), log.item[chosen].astype(np.int64)
    ids = log.vocabulary if vocabulary is None else vocabulary
    if not same_ids(ids, log.vocabulary):
        query = positions_of(ids.query_ids, log.vocabulary.query_ids, "query", missing="mark")[query]
        item = positions_of(ids.item_ids, log.vocabulary.item_ids, "item", missing="mark")[item]
        known = (query >= 0) & (item >= 0)
        query, item = query[known], item[known]
    shape = len(ids.query_ids), len(ids.item_ids)
    found = csr_matrix((np.ones(len(query), np.float32), (query, item)), shape=shape)
    found.data[:] = 1  # a pair at several ranks came several times
    return found
