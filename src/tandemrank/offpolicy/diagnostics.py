"""What an off-policy value rests on, in numbers and in words: support, weights, and the verdict.

**Unsupported exposure** is the share of the new pair's exposure on (query, item) pairs that the log never shows. By stage:
the share that a re-ranker showing the K2 candidates in random order would waste too is lost at the generator (at most
all that is wasted); what the real re-ranker wastes beyond it, by preferring such candidates, is lost at the re-ranker.
**Balance** is sum(w e) / sum(rho_cr), w = rho_cr / rho_0 and e the logged examination: 1 up to noise if the propensities
are right and the log has support (rho_0 > 0 wherever rho_cr > 0), less by what has none.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank.errors import PolicyError
from tandemrank.logs import feedback
from tandemrank.logs.feedback import Feedback
from tandemrank.offpolicy.estimators import Estimate
from tandemrank.offpolicy.verdicts import Verdict

Floats = NDArray[np.float64]


# The verdict. Where exposure is missing beyond three standard errors and these shares, or so little data is left:
CARE_MISSING, REFUSE_MISSING = 0.05, 0.2
CARE_SAMPLE, REFUSE_SAMPLE = 300.0, 30.0
CARE_QUERIES, CARE_LARGEST, CARE_CLIPPED = 30, 0.1, 0.05


@dataclass(frozen=True)
class Exposure:
    """Exposures of a pair on a log.

    Shapes: rho [P], of each row; total, supported [Q], over all items and over logged pairs; random [Q], the supported
    share if candidates were shown in random order; direct [folds, Q], sum_d rho r_hat.
    """

    rho: Floats
    total: Floats
    supported: Floats
    random: Floats
    direct: Floats


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
    return Diagnostics(
        queries=int((n > 0).sum()),
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
        balance_error=balance.standard_error,
    )


def judge(found: Diagnostics, *, modelled: bool) -> tuple[Verdict, tuple[str, ...]]:
    """The verdict and its reasons: the worst that is found decides. `modelled`: the value is a reward model's alone."""
    for verdict, rules in ((Verdict.REFUSE, _refusals(found)), (Verdict.CARE, _cautions(found, modelled=modelled))):
        if reasons := tuple(reason for holds, reason in rules if holds):
            return verdict, reasons
    left = f"{found.effective_sample_size:.0f} effective of {found.examined:.0f} examined items"
    return Verdict.TRUST, (f"the log supports what the pair would show: balance {found.balance:.2f}, {left}",)


def _refusals(found: Diagnostics) -> list[tuple[bool, str]]:
    """What makes a value useless, and whether it holds."""
    return [
        *_exposure_rules(found, REFUSE_MISSING),
        (found.effective_sample_size < REFUSE_SAMPLE, _few(found)),
        (found.clicks == 0, "no item that the new pair would show was ever clicked"),
    ]


def _cautions(found: Diagnostics, *, modelled: bool) -> list[tuple[bool, str]]:
    """What makes an interval too narrow, and whether it holds."""
    largest = f"one (query, item) pair carries {found.largest_share:.0%} of all weight"
    clipped = f"{found.clipped:.0%} of the propensities are clipped, so the value is too low"
    return [
        *_exposure_rules(found, CARE_MISSING),
        (found.effective_sample_size < CARE_SAMPLE, _few(found)),
        (found.queries < CARE_QUERIES, f"an interval from {found.queries} queries is too narrow"),
        (found.largest_share > CARE_LARGEST, largest),
        (found.clipped > CARE_CLIPPED, clipped),
        (modelled, "the interval does not contain the error of the reward model"),
    ]


def _exposure_rules(found: Diagnostics, share: float) -> list[tuple[bool, str]]:
    """Whether weighted exposure is off by more than a share, surely: too little, too much, or not known well enough."""
    off = found.balance - 1
    sure = abs(off) > 3 * found.balance_error
    stages = (
        f"{found.unsupported:.0%} of its exposure goes to items that the query was never shown: {found.lost_at_generator:.0%} "
        f"lost at the generator, {found.lost_at_ranker:.0%} at the re-ranker"
    )
    return [
        (
            sure and off < -share,
            f"{-off:.0%} of what the new pair shows is outside what the log can speak about ({stages})",
        ),
        (sure and off > share, _wrong(found)),
        (
            found.balance_error > share,
            f"weighted exposure is known only to +-{1.96 * found.balance_error:.0%}, so a few items decide",
        ),
    ]


def _wrong(found: Diagnostics) -> str:
    return f"the propensities do not fit the log: weighted exposure is {found.balance:.2f} of what it should be"


def _few(found: Diagnostics) -> str:
    return f"the weights leave {found.effective_sample_size:.0f} effective of {found.examined:.0f} examined items"
