"""(query, item) pairs of a log: those shown at two ranks or more, which compare ranks, and those clicked or shown, which a
recommender that must not repeat leaves out.

E[ c_pk | c_p ] = c_p n_pk theta_k / sum_j n_pj theta_j        of a pair p, whatever its relevance (`contradiction`)

Is the click model true? Under the position-based model, given the list, clicks at different ranks are independent.

    r_ik = c_ik - theta_k R_ik,      E[ r_ij r_ik ] = 0   for two ranks j < k of one impression i

R_ik is the click rate of the pair in *other* impressions, so that it owes nothing to this one; weighed down where they are few,
by what was shown alone. Readers who stop after a click make the products negative; users in moods, who click more or less on
everything, make them positive. The second do no harm to an estimate: clicks of all ranks rise and fall together.
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
from tandemrank.logs.impressions import Impressions
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


Floats = NDArray[np.float64]
TESTED = 200_000  # lists that are looked at, the first of a log
STOPPING = 0.8  # the share of the clicks below another that is left at most, where readers stop
FEW = 2.0  # examinations elsewhere for which a pair's rate counts half
ROUNDS = 30  # of scaling the curve


@dataclass(frozen=True)
class Dependence:
    """How the clicks of a list depend on each other.

    `ratio`: clicks below another click over what they would be if they had nothing to do with each other; `z`: how surely that
    is not 1, in standard errors, of all products and by rank pair.  Shapes: by_ranks [K, K], above the diagonal.
    """

    ratio: float
    z: float
    by_ranks: tuple[tuple[float, ...], ...]
    lists: int

    @property
    def stops(self) -> bool:
        """Whether readers surely click less below a click, and by much."""
        return self.z < -SURELY and self.ratio < STOPPING

    @property
    def words(self) -> str:
        """As a sentence."""
        said = f"below a click there are {self.ratio:.2f} of the clicks that a position-based model expects (z = {self.z:+.1f})"
        if self.stops:
            return f"{said}: readers stop after a click"
        if self.z > SURELY:
            return f"{said}: who clicks once clicks more, which does no harm to estimates"
        return f"{said}: nothing speaks against it"


def dependence(lists: Impressions, theta: Floats | None = None) -> Dependence | None:
    """By lists and their clicks; None where no pair of two ranks came back.

    `theta` by which they were examined; without it how often the ranks are clicked, each pair compared with itself, has to do.
    Shapes: theta [K].
    """
    n, K = lists.items.shape
    if n == 0 or K < 2:
        return None
    row, rank = np.nonzero(lists.items >= 0)
    pair = np.unique(
        lists.query[row] * np.int64(lists.items.max(initial=0) + 1) + lists.items[row, rank], return_inverse=True
    )[1]
    click = lists.clicks[row, rank].astype(np.float64)
    theta = _curve(pair, rank, click, K) if theta is None else theta
    seen = theta[rank]
    rest = np.bincount(pair, seen)[pair] - seen
    R = np.divide(np.bincount(pair, click)[pair] - click, rest, out=np.zeros_like(rest), where=rest > 1e-9)
    weight, expected = np.zeros((n, K)), np.zeros((n, K))
    weight[row, rank], expected[row, rank] = rest / (rest + FEW) * (rest > 1e-9), np.minimum(seen * R, 1.0)
    clicks = np.where(weight > 0, lists.clicks, 0)
    products = np.zeros(n)
    z, observed, hoped = np.zeros((K, K)), 0.0, 0.0
    for j in range(K):
        for k in range(j + 1, K):
            w = weight[:, j] * weight[:, k]
            own = w * (clicks[:, j] - expected[:, j]) * (clicks[:, k] - expected[:, k])
            error = float(np.sqrt(np.square(own).sum()))
            z[j, k] = own.sum() / error if error > 0 else 0.0
            products += own
            observed += float(w @ (clicks[:, j] * clicks[:, k]))
            hoped += float(w @ (clicks[:, j] * expected[:, k]))
    error = float(np.sqrt(np.square(products).sum()))
    if not hoped > 0 or not error > 0:
        return None
    return Dependence(observed / hoped, float(products.sum()) / error, tuple(map(tuple, z.tolist())), n)


def _curve(pair: NDArray[np.int64], rank: NDArray[np.int64], click: Floats, K: int) -> Floats:
    """theta_k that makes the clicks of every rank what the pairs' own rates expect:  c_k = sum_p c_p n_pk theta_k / sum_j n_pj
    theta_j, by repeated scaling.  Shapes: pair, rank, click [m] -> [K]."""
    theta, total = np.ones(K), np.bincount(rank, click, K)
    of_pair = np.bincount(pair, click)[pair]
    for _ in range(ROUNDS):
        share = theta[rank] / np.bincount(pair, theta[rank])[pair]
        hoped = np.bincount(rank, of_pair * share, K)
        theta = theta * np.divide(total + 1, hoped + 1)
        theta /= theta[0]
    return np.maximum(theta, 1e-6)
