"""What an off-policy value rests on, in numbers and in words: support and weights. `verdicts` judges it.

**Unsupported exposure** is the share of the new pair's exposure on (query, item) pairs that the log never shows. By stage:
the share that a re-ranker showing the K2 candidates in random order would waste too is lost at the generator (at most
all that is wasted); what the real re-ranker wastes beyond it, by preferring such candidates, is lost at the re-ranker.
**Balance** is sum(w e) / sum(rho_cr), w = rho_cr / rho_0 and e the logged examination: 1 up to noise if the propensities
are right and the log has support (rho_0 > 0 wherever rho_cr > 0), less by what has none. Its error is over queries; few queries
are no sample, and of one it would be 0, so theirs is over what was shown, sum(w^2 e theta) in the numerator.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank.errors import PolicyError
from tandemrank.logs import feedback
from tandemrank.logs.feedback import Feedback
from tandemrank.offpolicy.estimate import Estimate
from tandemrank.offpolicy.uncertainty import FEW_QUERIES

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Exposure:
    """Exposures of a pair on a log.

    Shapes: rho [P], of each row; total, supported [Q], over all items and over logged pairs; random [Q], the supported
    share if candidates were shown in random order; direct [folds, Q], sum_d rho r_hat; error [P], the standard error of rho
    by its races, None where it has none.
    """

    rho: Floats
    total: Floats
    supported: Floats
    random: Floats
    direct: Floats
    error: Floats | None = None


@dataclass(frozen=True)
class Diagnostics:
    """What the number rests on.

    `effective_sample_size` (sum(w e))^2 / sum(w^2 e), in examined items; on policy it is `examined`, all of them.
    `largest_weight` of a logged pair, `largest_share` of one pair in sum(w e), `clipped` the share of what was shown whose
    propensity was raised. `unsupported` = `lost_at_generator` + `lost_at_ranker`, shares of the new pair's exposure.
    """

    queries: int
    impressions: float
    clicks: float
    examined: float
    effective_sample_size: float
    largest_weight: float
    largest_share: float
    clipped: float
    unsupported: float
    lost_at_generator: float
    lost_at_ranker: float
    balance: float
    balance_error: float


def diagnose(log: Feedback, rho_0: Floats, raised: NDArray[np.bool_], exposure: Exposure, theta: Floats) -> Diagnostics:
    """All diagnostics of a pair on a log.  Shapes: rho_0, raised [P], whether the propensity was raised; theta [K]."""
    n = log.impressions
    e = feedback.exposure(log, theta)
    w = np.divide(exposure.rho, rho_0, out=np.zeros(len(e)), where=rho_0 > 0)
    we = w * e
    pair = np.cumsum((np.diff(log.query, prepend=-1) != 0) | (np.diff(log.item, prepend=-1) != 0)) - 1
    all_weight, all_exposure = float(we.sum()), float((n * exposure.total).sum())
    if all_exposure <= 0:
        raise PolicyError("the pair shows nothing to any query of the log. Check that its scores are of these queries.")
    balance = Estimate(np.bincount(log.query, we, log.Q).astype(np.float64), n * exposure.total)
    unsupported, shuffled = (
        max(0.0, 1 - float((n * x).sum()) / all_exposure)
        for x in (exposure.supported, exposure.total * exposure.random)
    )
    generator = min(unsupported, shuffled)
    queries = int((n > 0).sum())
    over_shown = float(np.sqrt((w * we * theta[log.rank]).sum())) / all_exposure
    return Diagnostics(
        queries=queries,
        impressions=log.N,
        clicks=float(log.clicks[w > 0].sum()),
        examined=float(e.sum()),
        effective_sample_size=all_weight**2 / float((w * we).sum()) if all_weight > 0 else 0.0,
        largest_weight=float(w.max(initial=0.0)),
        largest_share=float(np.bincount(pair, we).max()) / all_weight if all_weight > 0 else 0.0,
        clipped=float(log.shown[raised].sum() / max(log.shown.sum(), 1.0)),
        unsupported=unsupported,
        lost_at_generator=generator,
        lost_at_ranker=unsupported - generator,
        balance=balance.value,
        balance_error=balance.standard_error if queries >= FEW_QUERIES else over_shown,
    )
