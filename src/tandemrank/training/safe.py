"""Caution as a change of weights: safe objectives whose gradient is that of sum_d w'(d) rho_cr(d), w' held fixed.

What training maximises is  N U_hat = sum_q sum_d w[q, d] rho(d), with rho = rho_cr the exposure of the pair that is trained.
A safe objective S is another function of the exposures, so by the chain rule w'(d) = dS / d rho(d): the race needs no other
gradient, for either stage. The weights must be made anew as rho moves.

    exposure     N (U_hat - sqrt(Z/N (1 - delta)/delta d2)),   d2 = 1/N sum_q n_q sum_d rho^2 / (rho_0 Z)    (SIGIR'23)
                 w' = w - lam n_q rho / (rho_0 Z sqrt(d2)),    lam = sqrt(Z/N (1 - delta)/delta)
    prpo         sum w min(rho, rho_0 / eps) over w >= 0,  sum w max(rho, eps rho_0) over w < 0                   (CIKM'24)
                 w' = w where rho < rho_0 / eps (w >= 0), where rho > eps rho_0 (w < 0), else 0
    smoothing    sum w rho_0 L log(1 + rho / (rho_0 L)) over w >= 0, w rho over w < 0             (Sakhi et al. 2024)
                 w' = w / (1 + rho / (rho_0 L))
    bound        n_q-weighted: sum_q L log(1 + X_q / L), X_q = sum_d w rho n / N: it has the maximum of the lower bound
                 the smoothing bound;  w' = w / (1 + X_q / L)

No weight of theirs is larger than w: none of them ever counts a click for more. Zero rows of w are rows like any other:
the exposure risk has a weight, at most 0, for every document that the pair shows.
Shapes, throughout: w, rho, rho_0 [B, D] (documents last), n [B] -> value [B] of each query, weights [B, D].
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank.errors import ConfigError, InputError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Safe:
    """A safe objective of some queries and its weights. `value` sums to the objective.  Shapes: value [B], weights [B, D]."""

    value: Floats
    weights: Floats


def divergence(rho: Floats, rho_0: Floats, n: Floats, Z: float) -> float:
    """sum_q n_q sum_d rho^2 / (rho_0 Z) of some queries: over all of them it is N d2, the exposure divergence.

    On policy it is N.  Shapes: rho, rho_0 [B, D]; n [B].
    """
    _check_support(rho, rho_0)
    return float((n * (rho * _ratio(rho, rho_0)).sum(-1)).sum()) / Z


def exposure(
    w: Floats, rho: Floats, rho_0: Floats, n: Floats, *, Z: float, N: float, delta: float, total: float | None = None
) -> Safe:
    """Exposure-based risk: U_hat minus what it may be off by with chance delta (Gupta et al., SIGIR 2023).

    The root couples all queries: `total` is N d2 of the whole log (`divergence`, summed over minibatches), by default that of
    these queries, which are then taken for all. The risk is shared out in proportion to each query's part of it.
    """
    _check(w, rho, rho_0)
    if not 0 < delta < 1 or Z <= 0 or N <= 0:
        raise ConfigError(f"needed: 0 < delta < 1, Z > 0, N > 0; {delta}, {Z} and {N} came.")
    _check_support(rho, rho_0)
    x = _ratio(rho, rho_0)
    own = n * (rho * x).sum(-1) / Z
    all_own = float(own.sum()) if total is None else total
    lam = np.sqrt(Z / N * (1 - delta) / delta)
    root = np.sqrt(all_own / N) if all_own > 0 else 1.0
    value = (w * rho).sum(-1) - lam * own / root
    return Safe(value, w - lam * n[..., None] * x / (Z * root))


def prpo(w: Floats, rho: Floats, rho_0: Floats, *, eps: float) -> Safe:
    """Proximal ranking policy optimisation (Gupta et al., CIKM 2024): no reward for leaving the logger by more than eps.

    Safe whatever the clicks mean: where w rewards, exposure beyond rho_0 / eps is worth nothing; where w punishes, hiding a
    document below eps rho_0 is worth nothing. eps = 1: stay; eps = 0: no limit.
    """
    _check(w, rho, rho_0)
    if not 0 <= eps <= 1:
        raise ConfigError(f"eps must be from 0 (no limit) to 1 (stay); {eps} came.")
    most = np.where(rho_0 > 0, rho_0 / eps if eps > 0 else np.inf, 0.0)
    value = np.where(w >= 0, w * np.minimum(rho, most), w * np.maximum(rho, eps * rho_0)).sum(-1)
    counts = np.where(w >= 0, rho < most, rho > eps * rho_0)
    return Safe(value, np.where(counts, w, 0.0))


def smoothing(w: Floats, rho: Floats, rho_0: Floats, *, L: float) -> Safe:
    """Each click's weight x = rho / rho_0 becomes L log(1 + x / L): below x, and the more so the larger it is.

    Weights below 0 stay as they are: what counts against a document counts in full. L = inf: no change.
    """
    _check(w, rho, rho_0)
    _check_scale(L)
    x = _ratio(rho, rho_0)
    smooth = rho_0 * L * np.log1p(x / L) if np.isfinite(L) else rho
    value = np.where(w >= 0, w * np.where(rho_0 > 0, smooth, 0.0), w * rho).sum(-1)
    return Safe(value, np.where(w >= 0, w * (rho_0 > 0) / (1 + x / L), w))


def bound(w: Floats, rho: Floats, *, L: float, queries: float, N: float) -> Safe:
    """Trains the lower bound itself: sum_q L log(1 + X_q / L) (N / n) is largest where the bound is.

    X_q = n / N sum_d w[q, d] rho(d), the terms of the bound; n = `queries` in the log, N its impressions. Clicks only: w >= 0.
    """
    if (w < 0).any():
        raise InputError("the bound needs weights that are not negative: those of IPS, clipped or not.")
    _check_scale(L)
    X = queries / N * (w * rho).sum(-1)
    smooth = L * np.log1p(X / L) if np.isfinite(L) else X
    return Safe(N / queries * smooth, w / (1 + X / L)[..., None])


def _ratio(rho: Floats, rho_0: Floats) -> Floats:
    """rho / rho_0, 0 where both are 0."""
    return np.divide(rho, rho_0, out=np.zeros(np.broadcast_shapes(rho.shape, rho_0.shape)), where=rho_0 > 0)


def _check(w: Floats, rho: Floats, rho_0: Floats) -> None:
    if not w.shape == rho.shape == rho_0.shape:
        raise InputError(f"w, rho and rho_0 must have one shape; {w.shape}, {rho.shape}, {rho_0.shape} came.")
    for name, x in (("w", w), ("rho", rho), ("rho_0", rho_0)):
        if not np.isfinite(x).all() or (name != "w" and (x < 0).any()):
            raise InputError(f"{name} must be finite{'' if name == 'w' else ' and not negative'}; it is not.")


def _check_support(rho: Floats, rho_0: Floats) -> None:
    bad = (rho > 0) & (rho_0 <= 0)
    if bad.any():
        raise InputError(
            f"the exposure risk is infinite: {int(bad.sum())} documents are shown that the logger never shows. Raise their "
            f"propensities to a small number."
        )


def _check_scale(L: float) -> None:
    if not L > 0:
        raise ConfigError(f"L must be above 0; {L} came.")
