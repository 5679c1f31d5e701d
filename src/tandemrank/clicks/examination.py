"""The examination curve from the log itself: how much of a click rate is the rank's, and how much the item's.

Everything rests on the same item shown at different ranks for the same query: a *pair* p = (q, d), shown n_pk times at
rank k and clicked c_pk times there. Two methods for the position-based model, and one with trust bias,

    E[c_pk] = n_pk theta_k R_p,     theta_1 = 1                                                  (paper: click-model)

- "harvest": intervention harvesting (Agarwal et al., WSDM 2019), all ranks of a pair at once. Each pair is compared
  with itself, so no model of relevance is needed:

      sum_p ( c_pk - c_p n_pk theta_k / sum_j n_pj theta_j ) = 0  for every k,     c_p = sum_k c_pk

  Every term has mean 0, whatever R_p is and however rarely a pair comes back.
- "em": expectation-maximisation (Wang et al., WSDM 2018). A free relevance for each pair would overfit the pairs that
  come back rarely; here it is one of a few levels, each with a share in its group of pairs. Groups are pairs of a
  similar mean rank, shown similarly often, because a good logger shows better items higher and more often; levels,
  shares and theta are found together.

- "trust": the click model with trust bias, alpha_k R + beta_k, as far as a log identifies it.

`examine` asks a log by any of them; `estimate` and `estimate_trust` ask its sums.

What a log needs: a logger that varies, and pairs that come back. A pair shown at one rank only says nothing here and
is left out. Intervals are those of the delete-a-group jackknife over queries.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args, overload

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix, diags_array
from scipy.special import softmax, stdtrit

from tandemrank._base.arguments import checked
from tandemrank._base.cluster import Engine
from tandemrank.clicks.models import ClickModel
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs import reading
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.pairs import Pairs, compared, often, row_sums, unconnected
from tandemrank.logs.sources import Source

ExaminationMethod = Literal["harvest", "em", "trust"]

GROUPS = 20  # of queries, for the jackknife
LEVELS = 12  # of relevance, for expectation-maximisation
TOLERANCE, ITERATIONS = 1e-5, 1000  # the largest change of the curve that ends it, and the most steps
OFTEN = 5  # classes of how often a pair was shown: less than 4, 16, 64, 256 times, and more
EDGE = 1e-6  # click rates stay this far from 0 and 1


@dataclass(frozen=True)
class ExaminationCurve:
    """An examination curve relative to its first rank, with its interval and what it rests on.

    `pairs_compared` is the number of (query, item) pairs seen at two ranks or more, `clicks` the number of their clicks.
    Shapes: theta, low, high [K].
    """

    theta: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    level: float
    method: str
    pairs_compared: int
    clicks: float


@dataclass(frozen=True)
class TrustCurve:
    """The click rate at each rank as a line of the click rate x at rank 1: slope_k x + offset_k, with intervals.

    `rates` are the click rates at rank 1 of the levels of relevance, in order, `shares` their shares of the pairs.
    Shapes: slope, offset and their bounds [K]; rates, shares [levels].
    """

    slope: NDArray[np.float64]
    slope_low: NDArray[np.float64]
    slope_high: NDArray[np.float64]
    offset: NDArray[np.float64]
    offset_low: NDArray[np.float64]
    offset_high: NDArray[np.float64]
    rates: NDArray[np.float64]
    shares: NDArray[np.float64]
    level: float
    pairs_compared: int
    clicks: float


@dataclass(frozen=True)
class _Fit:
    """P(C = 1) = slope_k rate_m + offset_k at rank k for a pair of level m, and the shares of levels in each group.

    Shapes: slope, offset [K]; rates [M]; shares [G, M].
    """

    slope: NDArray[np.float64]
    offset: NDArray[np.float64]
    rates: NDArray[np.float64]
    shares: NDArray[np.float64]


def _identified(pairs: Pairs) -> Pairs:
    """The pairs, if they connect all ranks."""
    if not len(pairs.query):
        raise LogError(
            "the log cannot say how ranks are examined: no item was shown (often enough) at two ranks for one query. A "
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


@overload
def examine(
    log: Source | Feedback,
    K: int | None = None,
    *,
    method: Literal["harvest", "em"] = "harvest",
    level: float = 0.95,
    seed: int = 0,
    engine: Engine = "local",
) -> ExaminationCurve: ...


@overload
def examine(
    log: Source | Feedback,
    K: int | None = None,
    *,
    method: Literal["trust"],
    level: float = 0.95,
    seed: int = 0,
    engine: Engine = "local",
) -> TrustCurve: ...


@checked
def examine(
    log: Source | Feedback,
    K: int | None = None,
    *,
    method: ExaminationMethod = "harvest",
    level: float = 0.95,
    seed: int = 0,
    engine: Engine = "local",
) -> ExaminationCurve | TrustCurve:
    """How much users look at each rank, from the log itself: the curve of the first K ranks, by default of all, with intervals.

    `log`: files, folders, patterns, a frame of polars or pandas, or its sums. Refuses a log that does not identify the
    curve, and names the ranks. `engine`: what reads the log, as in `logs.reading.read`. Shapes: -> [K].
    """
    if method not in get_args(ExaminationMethod):
        raise ConfigError(f"method must be one of {', '.join(get_args(ExaminationMethod))}; got {method!r}.")
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
    if method == "trust":
        return estimate_trust(feedback, ranks, level=level, seed=seed)
    return estimate(feedback, ranks, method=method, level=level, seed=seed)


def estimate(
    feedback: Feedback, K: int, *, method: str = "harvest", level: float = 0.95, seed: int = 0
) -> ExaminationCurve:
    """The examination curve of the first K ranks by "harvest" or "em" (module docstring), theta_1 = 1.

    Refuses a log that does not identify it, and names the ranks. Assumes the position-based click model and, for the
    intervals, independent queries; `seed` decides their groups. Shapes: -> [K].
    """
    if method not in ("harvest", "em"):
        raise ConfigError(f'expected the method "harvest" or "em"; got {method!r}.')
    pairs = _identified(compared(feedback, K))
    if method == "harvest":
        x = _harvest(pairs)
        half = _half_width(lambda part: _harvest(part, x), pairs, level, seed)
    else:
        fit = _levels(pairs, LEVELS, trust=False)
        x = np.log(fit.slope)
        half = _half_width(lambda part: np.log(_levels(part, LEVELS, trust=False, start=fit).slope), pairs, level, seed)
    low, high = np.exp(x - half), np.exp(x + half)
    return ExaminationCurve(np.exp(x), low, high, level, method, len(pairs.query), float(pairs.clicks.sum()))


def estimate_trust(
    feedback: Feedback, K: int, *, levels: int = LEVELS, level: float = 0.95, seed: int = 0
) -> TrustCurve:
    """Clicks with trust bias, E[c_pk] = n_pk (alpha_k R_p + beta_k), as far as they can be known from a log.

    What no log can tell: for any a > 0 and b, relevance a R + b with alpha / a and beta - b alpha / a gives the same
    clicks. What stays the same under all of these is the line from the click rate at rank 1 to that at rank k:

        slope_k = alpha_k / alpha_1,     offset_k = beta_k - beta_1 slope_k

    and (c - offset_k) / slope_k is an unbiased estimate of the pair's click rate at rank 1, alpha_1 R + beta_1, which
    orders items as R does (the affine correction of Vardasbi et al., CIKM 2020). To have alpha and beta themselves
    one must say what R = 0 and R = 1 are: `click_model`. Where relevance is 0 or 1, `levels=2` finds them.

    By expectation-maximisation (Agarwal et al., WWW 2019) over levels of relevance, from pairs shown at least ten
    times: a level can only be told from a mixture of levels where pairs come back often.
    """
    if levels < 2:
        raise ConfigError(f"expected at least 2 levels of relevance; got {levels}.")
    pairs = _identified(often(compared(feedback, K)))
    fit = _levels(pairs, levels, trust=True)

    def lines(part: Pairs) -> NDArray[np.float64]:
        again = _levels(part, levels, trust=True, start=fit)
        return np.concatenate([again.slope, again.offset])

    half = _half_width(lines, pairs, level, seed)
    groups = np.bincount(_groups(pairs.shown), minlength=K * OFTEN)
    order = np.argsort(fit.rates)
    return TrustCurve(
        fit.slope,
        fit.slope - half[:K],
        fit.slope + half[:K],
        fit.offset,
        fit.offset - half[K:],
        fit.offset + half[K:],
        fit.rates[order],
        (groups @ fit.shares / groups.sum())[order],
        level,
        len(pairs.query),
        float(pairs.clicks.sum()),
    )


def click_model(curve: TrustCurve, irrelevant: float | None = None, relevant: float | None = None) -> ClickModel:
    """alpha and beta, given the click rates at rank 1 of R = 0 and of R = 1 (by default the lowest and highest level).

    alpha_k = slope_k (relevant - irrelevant),     beta_k = slope_k irrelevant + offset_k
    """
    low = float(curve.rates[0]) if irrelevant is None else irrelevant
    high = float(curve.rates[-1]) if relevant is None else relevant
    if not 0 <= low < high <= 1:
        raise ConfigError(f"expected click rates 0 <= irrelevant < relevant <= 1; got {low} and {high}.")
    beta = np.clip(curve.slope * low + curve.offset, 0, 1)
    return ClickModel(np.clip(curve.slope * (high - low), 0, 1 - beta), beta)


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


def _groups(shown: csr_matrix) -> NDArray[np.int64]:
    """Pairs of a similar mean rank, shown similarly often: what the logger thinks of them. Shapes: shown [n, K] -> [n]."""
    n, K = row_sums(shown), shown.shape[1]
    mean = np.rint(shown @ np.arange(K) / n).astype(np.int64)
    often = np.minimum(np.log2(np.maximum(n, 1)) / 2, OFTEN - 1).astype(np.int64)
    return np.asarray(mean * OFTEN + often, dtype=np.int64)


def _levels(pairs: Pairs, levels: int, *, trust: bool, start: _Fit | None = None) -> _Fit:
    """Expectation-maximisation of P(C = 1) = slope_k rate_m + offset_k, where a pair's level m is hidden.

    The clicks enter the second step only as sums by rank and level, so its cost does not depend on the log.
    """
    clicks, rest = pairs.clicks, pairs.shown - pairs.clicks
    group = _groups(pairs.shown)
    K = pairs.shown.shape[1]
    members = csr_matrix((np.ones(len(group)), (group, np.arange(len(group)))), shape=(K * OFTEN, len(group)))
    fit = start or _Fit(
        np.exp(_harvest(pairs)),
        np.zeros(K),
        np.clip(_spread(pairs, levels), 10 * EDGE, 1 - 10 * EDGE),
        np.full((K * OFTEN, levels), 1 / levels),
    )
    for _ in range(ITERATIONS):
        P = _table(fit)
        w = softmax(clicks @ np.log(P) + rest @ np.log1p(-P) + np.log(fit.shares)[group], axis=1)
        shares = members @ w + EDGE
        before, fit = fit, _maximised(fit, clicks.T @ w, rest.T @ w, shares / shares.sum(1, keepdims=True), trust)
        if max(np.abs(fit.slope - before.slope).max(), np.abs(fit.offset - before.offset).max()) < TOLERANCE:
            break
    return fit


def _spread(pairs: Pairs, levels: int) -> NDArray[np.float64]:
    """Rates to begin with, denser where most pairs are: between 0 and about the largest in the log. Shapes: -> [M]."""
    rate = row_sums(pairs.clicks) / (pairs.shown @ np.exp(_harvest(pairs)))
    top = min(float(np.quantile(rate, 0.999)), 1.0)
    spread: NDArray[np.float64] = top * ((np.arange(levels) + 0.5) / levels) ** 2
    return spread


def _table(fit: _Fit) -> NDArray[np.float64]:
    """The click rate of each level at each rank. Shapes: -> [K, M]."""
    return np.clip(np.outer(fit.slope, fit.rates) + fit.offset[:, None], EDGE, 1 - EDGE)


def _maximised(
    fit: _Fit, clicks: NDArray[np.float64], rest: NDArray[np.float64], shares: NDArray[np.float64], trust: bool
) -> _Fit:
    """One scoring step for the lines, then one for the rates: least squares with weights n / (P (1 - P)).

    Only the lines relative to rank 1 are identified, so rates become those at rank 1. Shapes: clicks, rest [K, M].
    """
    n = clicks + rest + EDGE
    y = clicks / n
    P = _table(fit)
    slope, offset = _lines(n / (P * (1 - P)), fit.rates, y, trust)
    P = _table(_Fit(slope, offset, fit.rates, shares))
    v = n / (P * (1 - P)) * slope[:, None]
    rates = (v * (y - offset[:, None])).sum(0) / (v * slope[:, None]).sum(0)
    rates = np.clip(slope[0] * rates + offset[0], EDGE, 1 - EDGE)
    slope = slope / slope[0]
    return _Fit(slope, offset - offset[0] * slope, rates, shares)


def _lines(
    v: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.float64], trust: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """For each rank the line through (x, y) with weights v; through the origin without trust bias.

    Its ends are kept between 0 and 1, so that every level has a click rate. Shapes: v, y [K, M]; x [M] -> [K], [K].
    """
    if not trust:
        slope = np.clip((v * x * y).sum(1) / (v * x * x).sum(1), EDGE, 1 / x.max())
        return slope, np.zeros_like(slope)
    mean_x, mean_y = (v * x).sum(1) / v.sum(1), (v * y).sum(1) / v.sum(1)
    apart = x - mean_x[:, None]
    slope = (v * apart * y).sum(1) / (v * apart**2).sum(1)
    first, last = (np.clip(mean_y + slope * (end - mean_x), EDGE, 1 - EDGE) for end in (x.min(), x.max()))
    slope = (last - first) / (x.max() - x.min())
    return slope, first - slope * x.min()


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
    if not len(part.query) or (apart := unconnected(part)):
        ranks = ", ".join(map(str, apart)) if len(part.query) else "all"
        raise LogError(
            f"the log cannot compare ranks with certainty: ranks {ranks} hang on one in {GROUPS} queries. Use more of the "
            "log or a smaller K."
        )
    return part
