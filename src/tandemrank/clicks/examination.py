"""The examination curve from the log itself: how much of a click rate is the rank's, and how much the item's.

Everything rests on the same item shown at different ranks for the same query: a *pair* p = (q, d), shown n_pk times at
rank k and clicked c_pk times there, with the position-based model

    E[c_pk] = n_pk theta_k R_p,     theta_1 = 1                                                  (paper: click-model)

Intervention harvesting (Agarwal et al., WSDM 2019), all ranks of a pair at once, compares each pair with itself, so that no
model of relevance is needed:

    sum_p ( c_pk - c_p n_pk theta_k / sum_j n_pj theta_j ) = 0  for every k,     c_p = sum_k c_pk

Every term has mean 0, whatever R_p is and however rarely a pair comes back. What a log needs: a logger that varies, and pairs
that come back. A pair shown at one rank only says nothing here and is left out. Intervals are those of the delete-a-group
jackknife over queries.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import diags_array
from scipy.special import stdtrit

from tandemrank._base.arguments import checked
from tandemrank._base.cluster import Engine
from tandemrank._base.results import Result, within
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs import reading
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.pairs import Pairs, compared, row_sums, unconnected
from tandemrank.logs.sources import Source

GROUPS = 20  # of queries, for the jackknife


@dataclass(frozen=True, repr=False)
class ExaminationCurve(Result):
    """An examination curve relative to its first rank, with its interval and what it rests on.

    `pairs_compared` is the number of (query, item) pairs seen at two ranks or more, `clicks` the number of their clicks.
    Shapes: theta, low, high [K].
    """

    theta: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    level: float
    pairs_compared: int
    clicks: float

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.float64]:
        """The curve itself: it stands wherever one is asked for."""
        return np.array(self.theta, dtype=dtype)

    def _lines(self) -> list[str]:
        curve = ", ".join(f"{theta:.3f}" for theta in self.theta[:10])
        return [
            f"examination of ranks 1 to {len(self.theta)}: {curve}{', ...' if len(self.theta) > 10 else ''}",
            f"last rank {within(self.low[-1], self.high[-1])} at {self.level:.0%}, from {self.clicks:,.0f} clicks on "
            f"{self.pairs_compared:,} pairs that were shown at several ranks",
        ]

    def _rows(self) -> list[dict[str, Any]]:
        each = zip(self.theta.tolist(), self.low.tolist(), self.high.tolist(), strict=True)
        return [{"rank": n, "theta": theta, "low": low, "high": high} for n, (theta, low, high) in enumerate(each, 1)]


def _identified(pairs: Pairs) -> Pairs:
    """The pairs, if they connect all ranks."""
    if not len(pairs.query):
        raise LogError(
            "the log cannot say how ranks are examined: no item was shown at two ranks for one query. A "
            "deterministic logger leaves no trace of position bias; let it vary, or give a curve from elsewhere."
        )
    if apart := unconnected(pairs):
        ranks = ", ".join(map(str, apart))
        raise LogError(
            f"the log cannot compare rank{'s' if len(apart) > 1 else ''} {ranks} with rank 1: no clicked item connects "
            "them by being shown here and there for the same query. Use more of the log, a smaller K, or a curve from "
            "elsewhere."
        )
    return pairs


@checked
def examine(
    log: Source | Feedback,
    K: int | None = None,
    *,
    level: float = 0.95,
    seed: int = 0,
    engine: Engine = "local",
) -> ExaminationCurve:
    """How much users look at each rank, from the log itself: the curve of the first K ranks, by default of all, with intervals.

    `log`: files, folders, patterns, a frame of polars or pandas, or its sums. Refuses a log that does not identify the
    curve, and names the ranks. Assumes the position-based click model and, for the intervals, independent queries; `seed`
    decides their groups. `engine`: what reads the log, as in `logs.reading.read`. Shapes: -> [K].
    """
    if seed < 0:
        raise ConfigError(f"seed: expected 0 or more; got {seed}.")
    if K is not None and K < 2:
        raise ConfigError(f"a curve compares two ranks or more; got K = {K}.")
    feedback = log if isinstance(log, Feedback) else reading.read(log, engine=engine)
    ranks = (int(feedback.rank.max()) + 1 if len(feedback.rank) else 0) if K is None else K
    if ranks == 1:
        raise LogError(
            "the lists of this log have one item each: there is one rank, nothing to compare, and its curve is 1, the default."
        )
    pairs = _identified(compared(feedback, ranks))
    x = _harvest(pairs)
    half = _half_width(lambda part: _harvest(part, x), pairs, level, seed)
    return ExaminationCurve(
        theta=np.exp(x),
        low=np.exp(x - half),
        high=np.exp(x + half),
        level=level,
        pairs_compared=len(pairs.query),
        clicks=float(pairs.clicks.sum()),
    )


def _harvest(pairs: Pairs, start: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """log theta of the equation in the module docstring, the gradient of a concave function, by Newton's method.

        e_k = sum_p c_p pi_pk,   pi_pk = n_pk theta_k / sum_j n_pj theta_j,   H = diag(e) - sum_p c_p pi_p pi_p^T

    Assumes that the pairs connect all ranks. Shapes: -> [K].
    """
    c = row_sums(pairs.clicks)
    shown, total, c = pairs.shown[c > 0], np.asarray(pairs.clicks.sum(axis=0)).ravel(), c[c > 0]
    x = np.zeros(shown.shape[1]) if start is None else start.copy()
    for _ in range(100):
        weighted = shown.multiply(np.exp(x)).tocsr()
        pi = diags_array(1 / row_sums(weighted)) @ weighted
        e = pi.T @ c
        H = np.diag(e) - (pi.T @ (diags_array(c) @ pi)).toarray()
        step = np.clip(np.linalg.solve(H[1:, 1:], (total - e)[1:]), -1, 1)  # far from the solution a full step may leap
        x[1:] += step
        if not np.abs(step).max(initial=0) > 1e-9:
            break
    return x


def _half_width(
    statistic: Callable[[Pairs], NDArray[np.float64]], pairs: Pairs, level: float, seed: int
) -> NDArray[np.float64]:
    """Half the width of the interval of a statistic: the delete-a-group jackknife with Student's t.

        s^2 = (G - 1) / G sum_g (statistic without group g - their mean)^2

    Groups are of queries; of pairs, where there are too few queries. Shapes: statistic -> [m]; -> [m].
    """
    if not 0 < level < 1:
        raise ConfigError(f"expected a level between 0 and 1; got {level}.")
    rng = np.random.default_rng(seed)
    _, unit = np.unique(pairs.query, return_inverse=True)
    if unit.max() + 1 < 2 * GROUPS:
        unit = np.arange(len(pairs.query))
    group = rng.permutation(np.arange(unit.max() + 1) % GROUPS)[unit]
    without = np.array([statistic(_rest(pairs, group != g)) for g in range(GROUPS)])
    s = np.sqrt((GROUPS - 1) * without.var(axis=0))
    half: NDArray[np.float64] = stdtrit(GROUPS - 1, (1 + level) / 2) * s
    return half


def _rest(pairs: Pairs, chosen: NDArray[np.bool_]) -> Pairs:
    """The chosen pairs; refuses where the curve hangs on those left out."""
    part = pairs.take(chosen)
    ranks = unconnected(part) if len(part.query) else ["all"]
    if ranks:
        raise LogError(
            f"the log cannot compare ranks with certainty: ranks {', '.join(map(str, ranks))} depend on one in {GROUPS} "
            "queries. Use more of the log or a smaller K."
        )
    return part
