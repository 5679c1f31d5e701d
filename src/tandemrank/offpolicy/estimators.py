"""The estimators: what clicks of the past say about a policy that was not live. Arrays in, numbers out; no policies here.

    U_hat = 1/N sum_i sum_d rho_cr(d) / rho_0(d) c_i(d)          (paper: cltr-obj-2s; one stage: cltr-obj; K = 1: opl-obj)

Every estimator takes `(rho_cr, rho_0, feedback)`, exposures aligned with the rows of the feedback, and returns an
`Estimate`. Clicks enter only through sums, so the cost does not depend on the length of the log. `evidence.ESTIMATORS` gives
them their names for users; `training.weights` has the same estimators as weights of the documents.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tandemrank._base import random
from tandemrank._base.sparse import sums_by
from tandemrank.errors import InputError, LogError
from tandemrank.logs.feedback import Feedback, examination, exposure

Floats = NDArray[np.float64]
Estimator = Literal["auto", "completed", "doubly_robust", "ips", "beta_ips"]
QUERY_FOLDS = 5


@dataclass(frozen=True)
class Estimate:
    """A ratio of sums over queries, sum_q numerator[q] / sum_q denominator[q]: every estimator here is one.

    Shapes: numerator, denominator [Q].
    """

    numerator: Floats
    denominator: Floats

    @property
    def value(self) -> float:
        """The estimate itself; NaN where the log says nothing at all."""
        total = float(self.denominator.sum())
        return float(self.numerator.sum()) / total if total > 0 else float("nan")

    @property
    def standard_error(self) -> float:
        """By the residuals of the ratio (delta method), queries independent."""
        return float(np.sqrt(np.square(self.influence).sum()))

    @property
    def influence(self) -> Floats:
        """What each query adds to the error of the ratio, to first order.  Shapes: -> [Q]."""
        residual: Floats = self.numerator - self.value * self.denominator
        total = float(self.denominator.sum())
        return residual / total if total > 0 else np.full_like(residual, np.nan)

    def interval(self, z: float = 1.96) -> tuple[float, float]:
        """The normal interval value +- z standard errors."""
        return self.value - z * self.standard_error, self.value + z * self.standard_error


@dataclass(frozen=True)
class Exposure:
    """Exposures of a policy on a log.

    Shapes: rho [P], of each row; total, supported [Q], over all items and over logged pairs; random [Q], the supported
    share if candidates were shown in random order, 1 of one stage, None of lists whose stages nobody knows; direct [Q],
    sum_d rho r_hat, 0 without a reward model; error [P], the standard error of rho by its races, None where it has none.
    """

    rho: Floats
    total: Floats
    supported: Floats
    random: Floats | None
    direct: Floats
    error: Floats | None = None


def ips(rho_cr: Floats, rho_0: Floats, feedback: Feedback) -> Estimate:
    """Inverse propensity scoring: U_hat = 1/N sum_i sum_d rho_cr(d) / rho_0(d) c_i(d)   (paper: cltr-obj-2s).

    Unbiased where rho_0 > 0 wherever rho_cr R > 0 (theorem 2s-unbiased); with a clipped rho_0 it is clipped IPS.
    Shapes: rho_cr, rho_0 [P], one for each row of the feedback.
    """
    check_exposures(rho_cr, rho_0, feedback)
    clicks = feedback.clicks * safe_ratio(rho_cr, rho_0, feedback.clicks)
    return Estimate(by_query(clicks, feedback), feedback.impressions.astype(np.float64))


def beta_ips(
    rho_cr: Floats,
    rho_0: Floats,
    feedback: Feedback,
    *,
    theta: Floats,
    beta: float | None = None,
    total: Floats | None = None,
    seed: int = 0,
) -> Estimate:
    """IPS with an additive control variate (Jeunen and Gupta 2026): U_hat = 1/N sum_i [ X_i + beta (Z - Y_i) ].

    X_i is the IPS term of an impression, and Y_i = sum_{d shown} theta_{k(d)} rho_cr(d) / rho_0(d) the exposure that the
    weights find in it, whose expectation is known: sum_d rho_cr(d) = sum(theta) = Z. Where Y came out high by chance, so,
    usually, did the clicks. Unbiased, where IPS is, for every beta that does not know the impressions it is used on. The
    self-normalised estimator is beta = U / Z to first order; beta* = Cov(X, Y) / Var(Y), the default, is never worse in the
    long run. It is cross-fitted: each fold of queries gets that of the others, so the estimate stays unbiased if queries are
    independent. Exposure without support, and what a clip takes, count as worth beta per unit.
    `total`: the policy's exposure where it is not sum(theta).  Shapes: rho_cr, rho_0 [P]; theta [K]; total [Q].
    """
    check_exposures(rho_cr, rho_0, feedback)
    found = _moments(safe_ratio(rho_cr, rho_0, feedback.shown), feedback, theta, total)
    if beta is not None:
        return Estimate(found.clicks - beta * found.surplus, found.n)
    fold = fold_of_queries(feedback.Q, seed)
    betas = np.array([best_beta(found, fold != f) for f in range(QUERY_FOLDS)])
    return Estimate(found.clicks - betas[fold] * found.surplus, found.n)


@dataclass(frozen=True)
class Moments:
    """What beta* is made of, of each query: X, S = Y - Z n, n, Z, and of impressions within it Cov(X, Y) and Var(Y), times n.

    Sums do not say which documents were shown together, so covariances are those within a rank, added up: another beta,
    and a good one. `weight`: the largest of an impression.  Shapes: [Q] each.
    """

    clicks: Floats
    surplus: Floats
    n: Floats
    total: Floats
    covariance: Floats
    variance: Floats
    weight: float = 1.0


def best_beta(found: Moments, use: NDArray[np.bool_]) -> float:
    """beta* by the chosen queries; 0 where nothing varies: on policy it is IPS itself.

    Cov / Var from what varies within the queries that came twice or more (values that differ between queries are only
    noise to it), and between those that came once; pulled to U / Z, the self-normalised estimator, as far as its own
    noise would explain the distance:  beta = U/Z + max(0, 1 - error^2 / (Cov/Var - U/Z)^2) (Cov/Var - U/Z).
    Shapes: use [Q].
    """
    N, exposed = float(found.n[use].sum()), float((found.n * found.total)[use].sum())
    if N <= 0 or exposed <= 0:
        return 0.0
    U = float(found.clicks[use].sum()) / N
    once = found.n / found.weight < 2
    top = np.where(once, (found.clicks - U * found.n) * found.surplus / found.weight, found.covariance)[use]
    bottom = np.where(once, np.square(found.surplus) / found.weight, found.variance)[use]
    spread = float(bottom.sum())
    if spread <= 1e-12 * exposed:
        return 0.0
    slope, plain = float(top.sum()) / spread, U * N / exposed
    error = float(np.sqrt(np.square(top - slope * bottom).sum())) / spread
    away = slope - plain
    return plain + max(0.0, 1 - (error / away) ** 2) * away if away else plain


def _moments(w: Floats, log: Feedback, theta: Floats, total: Floats | None) -> Moments:
    """Shapes: w [P], rho_cr / rho_0; theta [K]; total [Q] -> [Q] each."""
    K = len(theta)
    n = log.impressions.astype(np.float64)
    seen = exposure(log, theta)
    ranks = log.query.astype(np.int64) * K + log.rank
    X, Y = (sums_by(ranks, w * x, log.Q * K).reshape(log.Q, K) for x in (log.clicks, seen))
    squares = w * w * examination(log, theta)
    times = n / log.heaviest
    factor = np.where(times >= 2, times / np.maximum(times - 1, 1), 0.0)  # as in a sample variance
    several = np.maximum(n, log.heaviest)
    Z = np.full(log.Q, float(theta.sum())) if total is None else total
    return Moments(
        clicks=X.sum(1),
        surplus=Y.sum(1) - n * Z,
        n=n,
        total=Z,
        covariance=factor * (by_query(squares * log.clicks, log) - (X * Y).sum(1) / several),
        variance=factor * (by_query(squares * seen, log) - np.square(Y).sum(1) / several),
        weight=log.heaviest,
    )


def doubly_robust(
    rho_cr: Floats, rho_0: Floats, feedback: Feedback, *, theta: Floats, r_hat: Floats, direct: Floats
) -> Estimate:
    """What a reward model promises, corrected by IPS on what it gets wrong.

        U_hat = 1/N sum_i [ sum_d rho_cr(d) r_hat(q_i, d)
                            + sum_{d shown} rho_cr(d) / rho_0(d) (c_i(d) - theta_{k(d)} r_hat(q_i, d)) ]

    Unbiased for *any* r_hat that was not fitted to these impressions, where IPS is; less noise the better r_hat is.
    Shapes: rho_cr, rho_0, r_hat [P]; theta [K]; direct [Q], sum_d rho_cr(d) r_hat(q, d) of each query.
    """
    check_exposures(rho_cr, rho_0, feedback)
    if direct.shape != feedback.impressions.shape or not np.isfinite(direct).all():
        raise InputError(f"direct must have one finite value per query, {feedback.Q}; got the shape {direct.shape}.")
    w = safe_ratio(rho_cr, rho_0, feedback.shown)
    residual = by_query(w * (feedback.clicks - exposure(feedback, theta) * r_hat), feedback)
    return Estimate(direct * feedback.impressions + residual, feedback.impressions.astype(np.float64))


@dataclass(frozen=True)
class Completed:
    """What was shown by its own clicks, what was not by beliefs: the estimate, its ratio to the first part alone, and how much
    less the second part is than the beliefs promised."""

    estimate: Estimate
    factor: float
    off: float


def completed(
    rho_cr: Floats,
    rho_0: Floats,
    feedback: Feedback,
    *,
    theta: Floats,
    r_hat: Floats,
    direct: Floats,
    unseen: Floats | None = None,
    by_chance: float = 0.0,
) -> Completed:
    """Own click rates of what each query was shown, and beliefs of what it was not, as far as they hold where it was.

        U_hat = 1/N sum_q n_q [ sum_{d shown} rho_cr(d) c(d) / e(d)  +  lambda sum_{d not shown} rho_cr(d) r_hat(d) ]
        lambda = sum_q n_q sum_{d shown} rho_cr(d) c(d) / e(d)  /  sum_q n_q sum_{d shown} rho_cr(d) r_hat(d)

    `rho_0` is counted: e(d) / n_q, e the examination that a pair got. Given what was shown the first part is unbiased, however
    the lists were chosen; of the second only the beliefs beside each other count: lambda takes out what they promise too much
    of what a policy picks by them. What they are not asked about has r_hat = 0.

    Beliefs of this very log know the clicks of what was shown, and a policy of another log knows more than they do of what was
    not. Of the share `by_chance` of what was not shown, which chance alone left out, lambda is the ratio to what they would say
    of the same pairs without a showing (`unseen`).
    Shapes: rho_cr, rho_0, r_hat, unseen [P]; theta [K]; direct [Q], sum_d rho_cr(d) r_hat(d) of each query.
    """
    check_exposures(rho_cr, rho_0, feedback)
    w, n = safe_ratio(rho_cr, rho_0, feedback.shown), feedback.impressions.astype(np.float64)
    clicks, asked, e = w * feedback.clicks, r_hat > 0, exposure(feedback, theta)
    there = by_query(w * e * r_hat, feedback)
    rest = n * direct - there
    believed, known = float(there.sum()), float(clicks[asked].sum())
    missing = max(float(rest.sum()), 0.0)
    if min(believed, missing, known, float(clicks.sum())) <= 0:
        return Completed(Estimate(by_query(clicks, feedback), n), 1.0, 0.0)
    share = known / believed
    if unseen is not None and (before := float((w * e * unseen)[asked].sum())) > 0:
        share = (1 - by_chance) * share + by_chance * known / before
    found = Estimate(by_query(clicks, feedback) + share * rest, n)
    off = (1 - share) * share * missing / max(float(n.sum()), 1.0)
    return Completed(found, float(found.numerator.sum()) / max(float(clicks.sum()), np.finfo(float).tiny), off)


def by_query(values: Floats, feedback: Feedback) -> Floats:
    """Sums over the rows of each query.  Shapes: [P] -> [Q]."""
    return sums_by(feedback.query, values, feedback.Q)


def safe_ratio(rho_cr: Floats, rho_0: Floats, matters: Floats) -> Floats:
    """rho_cr / rho_0 where a row matters, 0 elsewhere: a propensity of 0 is no harm where nothing was clicked."""
    return np.divide(rho_cr, rho_0, out=np.zeros(len(rho_0)), where=(matters > 0) & (rho_0 > 0))


def check_exposures(rho_cr: Floats, rho_0: Floats, feedback: Feedback) -> None:
    for name, rho in (("rho_cr", rho_cr), ("rho_0", rho_0)):
        if rho.shape != feedback.query.shape:
            raise InputError(
                f"{name} must have one value per row of the feedback, {len(feedback.query)}; got {rho.shape}."
            )
        if not np.isfinite(rho).all() or (rho < 0).any():
            raise InputError(
                f"{name} must be finite and not negative; {int((~np.isfinite(rho) | (rho < 0)).sum())} are not."
            )
    bad = (feedback.clicks > 0) & (rho_0 <= 0)
    if bad.any():
        row = int(np.argmax(bad))
        query = feedback.vocabulary.query_ids[int(feedback.query[row])]
        item = feedback.vocabulary.item_ids[int(feedback.item[row])]
        raise LogError(
            f"{int(bad.sum())} clicked items have propensity 0 (first: query {query}, item {item}). "
            f"The log was not drawn from this policy; use frequency propensities or check the ids."
        )


# --- some queries -----------------------------------------------------------------------------------------------------


def fold_of_queries(Q: int, seed: int) -> NDArray[np.int64]:
    """The fold of each query, by its position and the seed alone.  Shapes: -> [Q]."""
    keys = random.random_keys(seed, random.Stream.FOLDS, np.arange(Q))
    return (random.uniforms(keys) * QUERY_FOLDS).astype(np.int64)


def of_queries(log: Feedback, chosen: NDArray[np.bool_]) -> Feedback:
    """The sums of some queries alone.  Shapes: chosen [Q]."""
    return replace(log.of_rows(chosen[log.query]), impressions=np.where(chosen, log.impressions, 0.0))
