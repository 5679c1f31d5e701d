"""beta*-IPS: inverse propensity scoring with an additive control variate (Jeunen and Gupta 2026, arXiv 2602.14914).

What is known beforehand about a log is how much of the new pair's exposure the weights should find in it: an impression's

    Y_i = sum_{d shown} theta_{k(d)} rho_cr(d) / rho_0(d)     has the expectation     sum_d rho_cr(d) = sum(theta) = Z

where the log has support. When Y comes out high by chance, so, usually, do the weighted clicks X; so take it out:

    U_hat = 1/N sum_i [ X_i + beta (Z - Y_i) ],       beta* = Cov(X, Y) / Var(Y)

Unbiased for every beta that does not know the impressions it is used on. The self-normalised estimator is, to first order,
beta = U / Z; the best beta is never worse. Where the log has no support, Z - Y stands for exposure that nobody saw: it is
counted as worth beta per unit, as the self-normalised estimator counts it; clipped propensities have the same effect.
"""

import numpy as np
from numpy.typing import NDArray

from tandemrank import objectives, plackett_luce
from tandemrank.feedback import Feedback, exposure
from tandemrank.objectives import Estimate, Floats


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
    """IPS plus beta times the exposure that the weights failed to find (module docstring).

    Without `beta`, beta* is cross-fitted: each fold of queries gets the one of the other folds, so the estimate stays
    unbiased if queries are independent. `total`: the pair's exposure where it is not sum(theta), as with short lists.
    Shapes: rho_cr, rho_0 [P]; theta [K]; total [Q].
    """
    clicks = objectives.ips(rho_cr, rho_0, feedback)
    n = clicks.denominator
    seen = np.divide(rho_cr, rho_0, out=np.zeros(len(rho_0)), where=rho_0 > 0) * exposure(feedback, theta)
    found = np.bincount(feedback.query, weights=seen, minlength=feedback.Q)
    surplus = found - n * (float(theta.sum()) if total is None else total)
    if beta is not None:
        return Estimate(clicks.numerator - beta * surplus, n)
    fold = fold_of_queries(feedback.Q, seed)
    betas = np.array([best_beta(clicks.numerator, surplus, n, fold != f) for f in range(objectives.QUERY_FOLDS)])
    return Estimate(clicks.numerator - betas[fold] * surplus, n)


def best_beta(clicks: Floats, surplus: Floats, n: Floats, use: NDArray[np.bool_]) -> float:
    """The beta with the least variance over the chosen queries; 0 where nothing varies: on policy it is IPS itself.

        sum_q (X_q - U n_q) S_q / sum_q S_q^2,     S_q = Y_q - Z n_q,   U = sum X / sum n

    Shapes: clicks, surplus, n, use [Q].
    """
    x, s, n = clicks[use], surplus[use], n[use]
    spread, N = float(np.square(s).sum()), float(n.sum())
    if N <= 0 or spread <= 1e-18 * N:
        return 0.0
    return float(((x - x.sum() / N * n) * s).sum()) / spread


def fold_of_queries(Q: int, seed: int) -> NDArray[np.int64]:
    """The fold of each query, by its position and the seed alone.  Shapes: -> [Q]."""
    keys = plackett_luce.random_keys(seed, objectives.FOLD_STREAM, np.arange(Q))
    return (plackett_luce.uniforms(keys) * objectives.QUERY_FOLDS).astype(np.int64)
