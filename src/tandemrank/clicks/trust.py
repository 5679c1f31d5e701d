"""Trust bias: do users click what stands high because it stands high?

    P(C = 1 | q, d, k) = theta_k (R + tau (1 - R) / k)                                    (`clicks.models.noisy`)

Position bias alone makes all items lose the same share of their clicks by standing lower; with trust those of little relevance
lose more. In terms of what a pair is clicked with at rank 1, R' = R + tau (1 - R), it is affine (Vardasbi et al. 2020),

    P = slope_k R' + offset_k,     slope_k = theta_k (1 - tau / k) / (1 - tau),     offset_k = theta_k (tau / k) - slope_k tau

and tau is found by groups of pairs whose relevance differs, told by other queries of the same item and other items of the same
query, not by the pair's own clicks: in each group g and at each rank k the clicks Y must be theta_k times what the same pairs
were clicked with at their other ranks. The tau with the least squares over groups and ranks; its error by the jackknife.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from tandemrank._base.sparse import sums_by
from tandemrank.clicks.models import SMALLEST, CellCurve
from tandemrank.logs.feedback import Feedback

Floats = NDArray[np.float64]
GROUPS, FOLDS = 10, 20  # of pairs, and of queries for the jackknife
MOST_RANKS = 32
RANGE = -0.2, 0.6  # of tau
SURELY = 5.0  # standard errors from which on it is used
FEW, LEAST = 2.0, 0.2  # examinations at other ranks for which a pair counts half, and not at all
ROUNDS = 4  # of theta for each tau
ENOUGH = 300.0  # clicks, of pairs that were shown at several ranks
END = 0.02  # of RANGE: a tau so near to it was not found
PAIRS = 20_000  # that are enough
STEP = 0.03  # of tau, for the parabola


@dataclass(frozen=True)
class Trust:
    """tau with its standard error, and the examination curve beside it.  Shapes: theta [K]."""

    tau: float
    error: float
    theta: tuple[float, ...]

    @property
    def surely(self) -> bool:
        """Whether there is trust bias."""
        return self.tau > SURELY * self.error

    @property
    def curve(self) -> CellCurve:
        """Examination by rank, and what is clicked beside it."""
        slope, offset = _affine(self.tau, np.array(self.theta))
        slope = np.maximum(slope / max(float(slope.max()), 1.0), SMALLEST)
        return CellCurve(tuple((float(x),) for x in slope), offset=tuple(offset.tolist()))

    @property
    def words(self) -> str:
        """As a sentence."""
        found = f"trust bias {self.tau:z.2f} ± {1.96 * self.error:.2f}"
        said = "what stands high is clicked because it stands high" if self.surely else "none that is sure"
        return f"{found} (of an examined irrelevant item at rank 1, over k below): {said}"


@dataclass(frozen=True)
class _Table:
    """Pairs at the ranks that they were shown at, one pair after the other.

    Shapes: query, group, rank, shown, clicks [m]; first [pairs], where each pair begins.
    """

    K: int
    query: NDArray[np.int64]
    group: NDArray[np.int64]
    rank: NDArray[np.int64]
    shown: Floats
    clicks: Floats
    first: NDArray[np.int64]

    @classmethod
    def of(cls, query: NDArray[np.int64], group: NDArray[np.int64], shown: Floats, clicks: Floats) -> "_Table":
        """Shapes: query, group [pairs]; shown, clicks [pairs, K]."""
        pair, rank = np.nonzero(shown)
        return cls(
            K=shown.shape[1],
            query=query[pair],
            group=group[pair],
            rank=rank,
            shown=shown[pair, rank],
            clicks=clicks[pair, rank],
            first=np.searchsorted(pair, np.arange(len(query))),
        )

    def of_queries(self, kept: NDArray[np.bool_]) -> "_Table":
        """Without the pairs of some queries.  Shapes: kept [m]."""
        parts = {name: getattr(self, name)[kept] for name in ("query", "group", "rank", "shown", "clicks")}
        first: NDArray[np.int64] = (np.cumsum(kept) - kept)[self.first][kept[self.first]]
        return replace(self, first=first, **parts)

    def elsewhere(self, x: Floats) -> Floats:
        """The sum over the pair's other ranks.  Shapes: x [m] -> [m]."""
        total = np.add.reduceat(x, self.first)
        found: Floats = np.repeat(total, np.diff(self.first, append=len(x))) - x
        return found

    def by_rank(self, x: Floats) -> Floats:
        """Shapes: x [m] -> [K]."""
        return sums_by(self.rank, x, self.K)

    def by_group(self, x: Floats) -> Floats:
        """Shapes: x [m] -> [GROUPS, K]."""
        return sums_by(self.group * self.K + self.rank, x, GROUPS * self.K).reshape(GROUPS, self.K)


def trust_of(log: Feedback) -> Trust | None:
    """By the sums of a log; None where it has too few clicks, no ranks to compare, or no least loss inside the range of tau."""
    K = int(log.rank.max(initial=0)) + 1
    if not 2 <= K <= MOST_RANKS or log.clicks.sum() < ENOUGH or log.weighted:
        return None
    table = _table(log, K)
    if len(table.first) < FOLDS or table.clicks.sum() < ENOUGH:
        return None
    with np.errstate(invalid="ignore"):  # a tau that explains nothing has an infinite loss
        tau = float(
            minimize_scalar(lambda x: _loss(x, table)[0], bounds=RANGE, method="bounded", options={"xatol": 3e-3}).x
        )
        if min(tau - RANGE[0], RANGE[1] - tau) < END:
            return None
        theta = _loss(tau, table)[1]
        fold = np.random.default_rng(0).integers(0, FOLDS, log.Q)[table.query]
        without = np.array([_lowest(tau, table.of_queries(fold != one)) for one in range(FOLDS)])
        error = float(np.sqrt((FOLDS - 1) * without.var()))
    return Trust(tau, error, tuple(theta.tolist())) if error > 0 and np.isfinite(theta).all() else None


def _lowest(tau: float, table: _Table) -> float:
    """Where the loss is least, by a parabola around tau."""
    low, at, high = (_loss(tau + step, table)[0] for step in (-STEP, 0.0, STEP))
    curved = low - 2 * at + high
    return tau + STEP * (low - high) / (2 * curved) if curved > 0 else tau + np.sign(low - high)


def _table(log: Feedback, K: int) -> _Table:
    """Pairs that were shown at several ranks, those that were shown most, with the group of each: by what other pairs of its
    item and of its query are clicked with."""
    pairs, place = np.unique(log.query * np.int64(log.D) + log.item, return_inverse=True)
    shown, clicks = (
        sums_by(place * K + log.rank, x, len(pairs) * K).reshape(len(pairs), K) for x in (log.shown, log.clicks)
    )
    seen = shown @ ((clicks.sum(0) + 1) / (shown.sum(0) + 1))
    C, mean = clicks.sum(1), clicks.sum() / max(float(seen.sum()), 1e-9)

    def elsewhere(of: NDArray[np.int64]) -> Floats:
        found: Floats = (np.bincount(of, C)[of] - C + FEW * mean) / (np.bincount(of, seen)[of] - seen + FEW)
        return found

    level = elsewhere(pairs % log.D) * elsewhere(pairs // log.D)
    edges = np.quantile(level, np.arange(1, GROUPS) / GROUPS)
    several = np.flatnonzero((shown > 0).sum(1) > 1)
    kept = several[np.argsort(-seen[several], kind="stable")[:PAIRS]]
    return _Table.of(pairs[kept] // log.D, np.searchsorted(edges, level[kept]), shown[kept], clicks[kept])


def _affine(tau: float, theta: Floats) -> tuple[Floats, Floats]:
    """Slope and offset of every rank.  Shapes: theta [K] -> [K], [K]."""
    k = np.arange(1, len(theta) + 1)
    slope = theta * (1 - tau / k) / (1 - tau)
    return slope, theta * tau / k - slope * tau


def _loss(tau: float, table: _Table) -> tuple[float, Floats]:
    """Squares over groups and ranks, and the theta that makes them least.  Shapes: -> [K]."""
    n, c = table.shown, table.clicks
    theta = (table.by_rank(c) + 1) / (table.by_rank(n) + 1)
    theta, loss = theta / theta[0], 0.0
    unit_slope, unit_offset = _affine(tau, np.ones(table.K))
    for _ in range(ROUNDS):
        slope, offset = _affine(tau, theta)
        left, seen = c - n * offset[table.rank], n * slope[table.rank]
        rest = table.elsewhere(seen)
        used = rest > LEAST
        share = np.where(used, rest / (rest + FEW), 0.0)
        R = np.divide(table.elsewhere(left), rest, out=np.zeros_like(rest), where=used)
        N, X, Y = (table.by_group(x) for x in (share * n, share * n * R, share * c))
        N = np.maximum(N, 1e-9)
        x, y = unit_slope * X / N + unit_offset, Y / N
        W = N / np.maximum(y.mean(0), 1e-6)
        new = (W * x * y).sum(0) / np.maximum((W * x * x).sum(0), 1e-12)
        loss = float((W * np.square(y - new * x)).sum())
        if not new[0] > 1e-6:  # the offset leaves no click: its loss is 0 because there is nothing to explain
            return np.inf, np.full(table.K, np.nan)
        theta = np.clip(new / new[0], 1e-6, 10.0)
    return loss, theta
