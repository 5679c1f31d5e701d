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

**Cells.** Where examination depends on more than the rank, on the last click above or on a column of the log, k is a *cell*: a
rank in a state. Given its cell, a showing is clicked with chance theta_cell R_p, so the equation is the same. Cells are many:
the logarithms of neighbours are drawn to each other, as if their difference had been seen with a standard deviation of 1. So
are those of the cells of a grid of positions; names of positions, and values of a column, are drawn to their mean.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, diags_array
from scipy.special import ndtri, stdtrit

from tandemrank._base.arguments import checked
from tandemrank._base.cluster import Engine
from tandemrank._base.results import Result, within
from tandemrank.clicks.models import SMALLEST, CellCurve
from tandemrank.clicks.stopping import reads_down
from tandemrank.clicks.trust import Trust, trust_of
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs import reading
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import CLICKS, By
from tandemrank.logs.layouts import Layout, edges_between, unlike
from tandemrank.logs.pairs import TESTED, Dependence, Pairs, compared, dependence, row_sums, unconnected
from tandemrank.logs.reading import LogParts
from tandemrank.logs.sources import Source, layout_of, placed
from tandemrank.logs.sums import merge

GROUPS = 20  # of queries, for the jackknife
FAINT = 1e-6  # clicks, against the log of an examination that no click speaks of


@dataclass(frozen=True, repr=False)
class ExaminationCurve(Result):
    """An examination curve relative to its first rank, with its interval and what it rests on.

    `pairs_compared` is the number of (query, item) pairs seen at two ranks or more, `clicks` the number of their clicks.
    `dependence`: whether the clicks of a list depend on each other, where its lists were looked at; `trust`: whether what
    stands high is clicked because of that. `cells`: examination by more than the rank, where that was asked for, where readers
    stop after a click, with trust bias, or of positions with names, which are then in the order of theta; `cells_low` and
    `cells_high` their interval, of a column.
    Shapes: theta, low, high [K]; cells_low, cells_high [K, states].
    """

    theta: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    level: float
    pairs_compared: int
    clicks: float
    dependence: Dependence | None = None
    trust: Trust | None = None
    cells: CellCurve | None = None
    cells_low: NDArray[np.float64] | None = None
    cells_high: NDArray[np.float64] | None = None

    @property
    def positions(self) -> tuple[str, ...]:
        """The names of the ranks, where they have some."""
        return () if self.cells is None else self.cells.positions

    @property
    def curve(self) -> tuple[float, ...] | CellCurve:
        """What functions take as the examination."""
        return tuple(self.theta.tolist()) if self.cells is None else self.cells

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.float64]:
        """The curve itself: it stands wherever one is asked for."""
        return np.array(self.theta, dtype=dtype)

    def _lines(self) -> list[str]:
        names = [f"{name}: " for name in self.positions] or [""] * len(self.theta)
        curve = ", ".join(f"{name}{theta:.3f}" for name, theta in list(zip(names, self.theta, strict=True))[:10])
        return [
            f"examination of {'positions' if self.positions else 'ranks'} 1 to {len(self.theta)}: {curve}"
            f"{', ...' if len(self.theta) > 10 else ''}",
            f"last rank {within(self.low[-1], self.high[-1])} at {self.level:.0%}, from {self.clicks:,.0f} clicks on "
            f"{self.pairs_compared:,} pairs that were shown at several ranks",
        ]

    def _rows(self) -> list[dict[str, Any]]:
        each = zip(self.theta.tolist(), self.low.tolist(), self.high.tolist(), strict=True)
        rows = [{"rank": n, "theta": theta, "low": low, "high": high} for n, (theta, low, high) in enumerate(each, 1)]
        return (
            [{"position": name} | row for name, row in zip(self.positions, rows, strict=True)]
            if self.positions
            else rows
        )


def _identified(pairs: Pairs, layout: Layout = ()) -> Pairs:
    """The pairs, if they connect all ranks."""
    if not len(pairs.query):
        raise LogError(
            "the log cannot say how ranks are examined: no item was shown at two ranks for one query. A "
            "deterministic logger leaves no trace of position bias; let it vary, or give a curve from elsewhere."
        )
    if apart := unconnected(pairs):
        ranks = ", ".join(layout[k - 1] if layout else str(k) for k in apart)
        kind, first = ("position", layout[0]) if layout else ("rank", "1")
        raise LogError(
            f"the log cannot compare {kind}{'s' if len(apart) > 1 else ''} {ranks} with {kind} {first}: no clicked item "
            "connects them by being shown here and there for the same query. Use more of the log, a smaller K, or a curve from "
            "elsewhere."
        )
    return pairs


@checked
def examine(
    log: Source | Feedback,
    K: int | None = None,
    *,
    by: str | None = None,
    level: float = 0.95,
    seed: int = 0,
    engine: Engine = "local",
) -> ExaminationCurve:
    """How much users look at each rank, from the log itself: the curve of the first K ranks, by default of all, with intervals.

    `log`: files, folders, patterns, a frame of polars or pandas, or its sums. Refuses a log that does not identify the
    curve, and names the ranks. Assumes the position-based click model and, for the intervals, independent queries; `seed`
    decides their groups. `engine`: what reads the log, as in `logs.reading.read`. Lists are looked at, too: where readers stop
    after a click, examination by rank and last click is found as well. `by`: a column of the log on which it depends. Of
    positions that are no ranks (`logs.layouts`) it is by position, with neighbours drawn to each other, from the best one on.
    Shapes: -> [K].
    """
    if seed < 0:
        raise ConfigError(f"seed: expected 0 or more; got {seed}.")
    if K is not None and K < 2:
        raise ConfigError(f"a curve compares two ranks or more; got K = {K}.")
    if isinstance(log, Feedback):
        if by is not None:
            raise ConfigError("sums of a log have no columns: give the log itself.")
        return _curve(log, K, level, seed)
    layout = layout_of(log)
    if layout and K is not None:
        raise ConfigError(
            f"K: the {len(layout)} positions of this log have names, and each is in the curve; leave it out."
        )
    log = placed(log, layout)
    read = reading.read_parts(log, lists=TESTED, engine=engine)
    [feedback] = read.train
    found = _curve(feedback, K, level, seed, layout)
    if by is None and layout:
        return replace(found, dependence=dependence(read.first.head(TESTED)))
    if by is None:
        return replace(found, **vars(behaviour(log, read, engine=engine)))
    assert by is not None
    of_values = reading.read(log, engine=engine, by=By(by, reading.values_of(log, by)))
    trust = None if layout else trust_of(feedback)
    found = replace(found, dependence=dependence(read.first.head(TESTED)), trust=trust)
    return _by_column(found, of_values, level, seed, layout)


def as_read(log: Source, examination: object) -> Source:
    """A log whose positions are the ranks of the curve, where it has names for them."""
    return placed(log, examination.positions) if isinstance(examination, CellCurve) else log


@dataclass(frozen=True)
class Behaviour:
    """What a log says of how its lists are read: `cells` where examination by rank is not all."""

    dependence: Dependence | None
    trust: Trust | None
    cells: CellCurve | None

    @property
    def sentences(self) -> list[str]:
        """What was found, in words."""
        return [found.words for found in (self.dependence, self.trust) if found is not None]

    def summary(self) -> dict[str, object]:
        """Its numbers, by name."""
        clicks, trust = self.dependence, self.trust
        found: dict[str, object] = {}
        if clicks is not None:
            found |= {"below_a_click": clicks.ratio, "below_a_click_z": clicks.z}
        if trust is not None:
            found |= {"trust_bias": trust.tau, "trust_bias_error": trust.error}
        return found


def behaviour(log: Source, read: LogParts, *, engine: Engine = "local", context: Sequence[str] = ()) -> Behaviour:
    """Whether readers stop after a click, and whether they trust what stands high."""
    whole = read.train[0] if len(read.train) == 1 and not read.held_out else merge([*read.train, *read.held_out])
    found, trust = dependence(read.first.head(TESTED)), trust_of(whole)
    if found is None or not found.stops:
        return Behaviour(found, trust, trust.curve if trust is not None and trust.surely else None)
    try:
        clicks = reading.read(log, vocabulary=whole.vocabulary, engine=engine, by=By(CLICKS), context=context)
        cells = cells_of(clicks)
        return Behaviour(found, trust, replace(cells, down=reads_down(clicks, read.first.head(TESTED), cells.array)))
    except LogError:  # lists are too long, or do not compare their ranks
        return Behaviour(found, trust, None)


def cells_of(feedback: Feedback) -> CellCurve:
    """Examination by rank and last click above, of a log that was read so.  Refuses a log that does not compare its ranks."""
    K, by = int(feedback.rank.max(initial=0)) + 1, feedback.by
    assert by is not None
    _identified(compared(feedback, K))
    x = _harvest(compared(feedback, K, K), penalty=drawn_together(K, K, clicks=True))
    return _cells(np.exp(x - max(float(x.max()), 0.0)), K, by)


def _cells(theta: NDArray[np.float64], K: int, by: By, layout: Layout = ()) -> CellCurve:
    rows = np.maximum(theta, SMALLEST).reshape(K, -1).tolist()
    return CellCurve(tuple(map(tuple, rows)), by.column, by.values, positions=layout)


def _by_column(
    found: ExaminationCurve, feedback: Feedback, level: float, seed: int, layout: Layout
) -> ExaminationCurve:
    """The curve with that of each value of a column, of a log that was read by it; `layout` as the log was read."""
    K, by = len(found.theta), feedback.by
    assert by is not None
    S = len(by.values)
    order = [layout.index(name) for name in found.positions] if layout else range(K)
    cells = (np.array(order)[:, None] * S + np.arange(S)).ravel()
    x, half = _drawn(compared(feedback, K, S), drawn_together(K, S, clicks=False, layout=layout), level, seed)
    theta, low, high = (np.exp(y)[cells].reshape(K, S) for y in (x, x - half, x + half))
    return replace(found, cells=_cells(theta, K, by, found.positions), cells_low=low, cells_high=high)


def _curve(feedback: Feedback, K: int | None, level: float, seed: int, layout: Layout = ()) -> ExaminationCurve:
    """By rank; by the positions of a layout from the best one on."""
    ranks = (int(feedback.rank.max()) + 1 if len(feedback.rank) else 0) if K is None else K
    if ranks == 1:
        raise LogError(
            "the lists of this log have one item each: there is one rank, nothing to compare, and its curve is 1, the default."
        )
    pairs = _identified(compared(feedback, len(layout) or ranks), layout)
    if layout:
        x, half = _drawn(pairs, unlike(layout), level, seed)
        order = np.argsort(-x, kind="stable")
        x, half, layout = x[order], half[order], tuple(layout[k] for k in order)
    else:
        x = _harvest(pairs)
        half = _half_width(lambda part: _harvest(part, x), pairs, level, seed)
    theta = np.exp(x)
    cells = CellCurve(tuple((float(one),) for one in np.maximum(theta, SMALLEST)), positions=layout) if layout else None
    return ExaminationCurve(
        theta=theta,
        low=np.exp(x - half),
        high=np.exp(x + half),
        level=level,
        pairs_compared=len(pairs.query),
        clicks=float(pairs.clicks.sum()),
        cells=cells,
    )


def _drawn(
    pairs: Pairs, penalty: NDArray[np.float64], level: float, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """log theta less that of the best cell, drawn together by the `penalty`, and half the width of its interval.

    The interval is the wider of the jackknife's and of that by the curvature, which knows cells that were hardly seen.
    Shapes: penalty [K, K] -> [K], [K].
    """
    x = _harvest(pairs, penalty=penalty)
    best = int(np.argmax(x))

    def less_the_best(part: Pairs) -> NDArray[np.float64]:
        found = _harvest(part, x, penalty)
        return np.asarray(found - found[best])

    _, H = _slope(pairs.shown, row_sums(pairs.clicks), x)
    V = np.linalg.pinv(H + penalty, hermitian=True)
    spread = np.sqrt(np.maximum(np.diag(V) + V[best, best] - 2 * V[best], 0.0))
    half = _half_width(less_the_best, pairs, level, seed, hangs=True)
    return x - x[best], np.maximum(half, ndtri((1 + level) / 2) * spread)


def _harvest(
    pairs: Pairs, start: NDArray[np.float64] | None = None, penalty: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """log theta of the equation in the module docstring, the gradient of a concave function, by Newton's method.

        e_k = sum_p c_p pi_pk,   pi_pk = n_pk theta_k / sum_j n_pj theta_j,   H = diag(e) - sum_p c_p pi_p pi_p^T

    Assumes that the pairs, or the `penalty` of differences, connect all cells. Shapes: penalty [K, K] -> [K].
    """
    c = row_sums(pairs.clicks)
    shown, total, c = pairs.shown[c > 0], np.asarray(pairs.clicks.sum(axis=0)).ravel(), c[c > 0]
    x = np.zeros(shown.shape[1]) if start is None else start.copy()
    P = np.zeros((len(x), len(x))) if penalty is None else penalty
    for _ in range(100):
        e, H = _slope(shown, c, x)
        # Far from the solution a full step may leap.
        step = np.clip(np.linalg.solve((H + P)[1:, 1:], (total - e - P @ x)[1:]), -1, 1)
        x[1:] += step
        if not np.abs(step).max(initial=0) > 1e-9:
            break
    return x


def _slope(
    shown: csr_matrix, c: NDArray[np.float64], x: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """e and H of `_harvest`.  Shapes: shown [n, K]; c [n]; x [K] -> [K], [K, K]."""
    weighted = shown.multiply(np.exp(x)).tocsr()
    pi = diags_array(1 / row_sums(weighted)) @ weighted
    e = pi.T @ c
    H: NDArray[np.float64] = np.diag(e) - (pi.T @ (diags_array(c) @ pi)).toarray()
    return e, H


def drawn_together(K: int, S: int, *, clicks: bool, layout: Layout = ()) -> NDArray[np.float64]:
    """x^T P x = sum of squares by which ranks differ from the next, or positions from their neighbours (`layouts.unlike`), in
    the same state, and states from their mean at the same rank; from the next state where these are `clicks`, of which no
    click above has no neighbour. Where nobody ever clicks below a click, FAINT alone ends the way down.
    Shapes: -> P [K S, K S]."""
    ranks = unlike(layout) if layout else edges_between([*pairwise(range(K))], K)
    states = edges_between([*pairwise(range(1, S))], S) + FAINT * np.eye(S) if clicks else np.eye(S) - 1 / S
    return np.kron(ranks, np.eye(S)) + np.kron(np.eye(K), states)


def _half_width(
    statistic: Callable[[Pairs], NDArray[np.float64]], pairs: Pairs, level: float, seed: int, *, hangs: bool = False
) -> NDArray[np.float64]:
    """Half the width of the interval of a statistic: the delete-a-group jackknife with Student's t.

        s^2 = (G - 1) / G sum_g (statistic without group g - their mean)^2

    Groups are of queries; of pairs, where there are too few queries. `hangs`: whether it may hang on those of one group.
    Shapes: statistic -> [m]; -> [m].
    """
    if not 0 < level < 1:
        raise ConfigError(f"expected a level between 0 and 1; got {level}.")
    rng = np.random.default_rng(seed)
    _, unit = np.unique(pairs.query, return_inverse=True)
    if unit.max() + 1 < 2 * GROUPS:
        unit = np.arange(len(pairs.query))
    group = rng.permutation(np.arange(unit.max() + 1) % GROUPS)[unit]
    without = np.array(
        [statistic(pairs.take(group != g) if hangs else _rest(pairs, group != g)) for g in range(GROUPS)]
    )
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
