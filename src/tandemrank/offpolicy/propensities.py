"""Propensities of a log, of every kind, and their clipping: the only place that chooses either.

rho_0(d | q)             the exposure of (q, d) over all ranks / impressions of q          (paper: propensity_def)
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.ids import positions_or_missing
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs.feedback import Feedback, exposure
from tandemrank.logs.validation import always_the_same
from tandemrank.policies.two_stage import TwoStagePolicy


def frequency_propensity(feedback: Feedback, theta: NDArray[np.float64]) -> NDArray[np.float64]:
    """rho_0(d | q) by its frequency in the log (paper: propensity_def), the same for all ranks of a pair.

    Shapes: theta [K] -> [P].
    """
    if not len(feedback.query):
        return np.zeros(0)
    new = (np.diff(feedback.query, prepend=-1) != 0) | (np.diff(feedback.item, prepend=-1) != 0)
    pair = np.add.reduceat(exposure(feedback, theta), np.flatnonzero(new))
    rho_0: NDArray[np.float64] = pair[np.cumsum(new) - 1] / feedback.impressions[feedback.query]
    return rho_0


def clip(rho_0: NDArray[np.float64], minimum: float) -> NDArray[np.float64]:
    """Propensities clipped from below: max(rho_0, minimum). Shapes: rho_0 [P] -> [P]."""
    return np.maximum(rho_0, minimum)


def paper_clip(N: float) -> float:
    """The authors' clipping of propensities from below: min(10 / sqrt(N), 1)."""
    return min(10 / float(np.sqrt(N)), 1.0)


def quantile_clip(rho_0: NDArray[np.float64], share: float) -> float:
    """The clip that touches the given share of the propensities above 0. Shapes: rho_0 [P]."""
    if not 0 <= share <= 1:
        raise ConfigError(f"expected a share from 0 to 1 of the propensities to clip; {share} came.")
    positive = rho_0[rho_0 > 0]
    return float(np.quantile(positive, share)) if len(positive) else 0.0


Kind = Literal["logged", "exact", "frequency", "fitted"]


def row_propensities(
    rows: Feedback,
    theta: NDArray[np.float64],
    kind: Kind,
    logger: TwoStagePolicy | None = None,
    *,
    samples: int = 50,
    seed: int = 0,
) -> NDArray[np.float64]:
    """rho_0 of every row of a log (paper: propensity_def), whoever asks.

    As logged; the frequency in the log; or by the race over `logger`, the policy that drew the log (exact) or the one
    that `fit` found (fitted), which may know other ids too. Of an item that the logger does not know it is 0.
    Shapes: theta [K] -> [P].
    """
    if kind == "frequency":
        return frequency_propensity(rows, theta)
    if kind == "logged":
        if rows.propensity is None:
            raise LogError(
                "the log has no column `propensities`. Use exact (with the logging policy), fitted, or frequency."
            )
        return rows.propensity
    if logger is None and kind == "exact":
        raise ConfigError("exact propensities need the policy that drew the log: give logging_policy, or use fitted.")
    if logger is None:
        raise ConfigError(
            "fitted propensities need the lists of the log, which Feedback has not. Give the log itself, or the "
            "policy of `propensities.fit` as logging_policy with propensity = exact."
        )
    logged = np.flatnonzero(rows.impressions)
    q = np.zeros(rows.Q, np.int64)
    q[logged] = logger.vocabulary.queries(rows.vocabulary.query_ids.gather(logged))
    item = positions_or_missing(logger.vocabulary.item_ids, rows.vocabulary.item_ids)[rows.item]
    rho_0, known = np.zeros(len(item)), item >= 0
    rho_0[known], _ = logger.exposure(q[rows.query[known]], item[known], theta[: logger.K], samples=samples, seed=seed)
    return rho_0


DETERMINISTIC_SHARE = (
    0.9  # share of the queries that always saw the same list from which on a logger counts as deterministic
)


def choose_propensity(
    wanted: Literal["auto"] | Kind, log: Feedback, logging_policy: TwoStagePolicy | None
) -> tuple[Kind, str]:
    """Which propensities to use, and why: for `auto` the best that there is a source for."""
    if wanted != "auto":
        return wanted, "as asked"
    if logging_policy is not None:
        return "exact", "the policy that drew the log is given"
    if log.logged is not None:
        return "logged", "the log has a column of them"
    repeated = log.impressions >= 2
    fixed = float(always_the_same(log)[repeated].mean()) if repeated.any() else 0.0
    if fixed >= DETERMINISTIC_SHARE:
        return (
            "frequency",
            f"{fixed:.0%} of the queries always saw the same list, so what was shown is all that is known",
        )
    return "fitted", "the log has none, nor is the policy given that drew it; its lists vary, so a policy can be fitted"
