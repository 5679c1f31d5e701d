"""What an off-policy value rests on, in numbers and in words: support and weights. `verdicts` judges it.

**Unsupported exposure** is the share of the new policy's exposure on (query, item) pairs that the log never shows. By stage:
the share that a re-ranker showing the K2 candidates in random order would waste too is lost at the generator (at most
all that is wasted); what the real re-ranker wastes beyond it, by preferring such candidates, is lost at the re-ranker, as is
all of it in one stage, whose generator passes every item on.
**Balance** is sum(w e) / sum(rho_cr), w = rho_cr / rho_0 and e the logged examination: 1 up to noise if the propensities
are right and the log has support (rho_0 > 0 wherever rho_cr > 0), less by what has none. Its error is over queries; few queries
are no sample, and of one it would be 0, so theirs is over what was shown. Sums do not know which items stood together, so it is
the most that it can be over the K places of a list, K sum(w^2 e theta) - (sum w e)^2 / N in the numerator.

**Identified** is what can be said where the log has no support: the worst and the best case of what was never shown.

    worst = U_hat                                               every item that a query was never shown is worth nothing
    best  = U_hat + 1/N sum_q n_q sum_{d never shown} rho(d)    an examination of it is always a click

A deterministic log identifies a policy's value only on what it showed: the value is in between, whatever the other items are
(partial identification, Manski 2003). Where the logger varies, IPS counts what it could have shown but did not, too, so the
range is wider than it need be, and still right. Clicks are at most one per examination; nothing else is assumed of relevance.
Another estimator than IPS may find a value beyond an end: the range is then as wide as both.
"""

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank.errors import PolicyError
from tandemrank.logs import feedback
from tandemrank.logs.feedback import Feedback
from tandemrank.offpolicy.estimators import Estimate, Exposure
from tandemrank.offpolicy.uncertainty import FEW_QUERIES

Floats = NDArray[np.float64]
Z95 = 1.96
WEIGHTS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)  # the edges of a histogram
BY_CHANCE = 2.0  # times what was shown once: hardly more is never shown by chance


@dataclass(frozen=True)
class ByWeight:
    """Shares by the weight w = rho_cr / rho_0, between the edges `WEIGHTS`: of the log's examinations, and of the new policy's
    exposure, which is w of each; what the log never shows is in none of these.  Shapes: logged, exposed [len(WEIGHTS) + 1]."""

    logged: tuple[float, ...]
    exposed: tuple[float, ...]


@dataclass(frozen=True)
class Diagnostics:
    """What the number rests on.

    `effective_sample_size` (sum(w e))^2 / sum(w^2 e), in examined items; on policy it is `examined`, all of them.
    Of impressions with weights both are at least so many: sums over `heaviest`, the largest weight of an impression.
    `largest_weight` of a logged pair, `largest_share` of one pair in sum(w e), `clipped` the share of what was shown whose
    propensity was raised. `unsupported` = `lost_at_generator` + `lost_at_ranker`, shares of the new policy's exposure; without
    `by_stage` no stages are known. `shown_once`: the share on pairs that were shown once.
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
    heaviest: float = 1.0
    by_stage: bool = True
    logged: bool = False
    shown_once: float = 0.0
    by_weight: ByWeight | None = None

    @property
    def by_chance(self) -> float:
        """The share of what was never shown that chance alone may have left out."""
        return min(BY_CHANCE * self.shown_once / self.unsupported, 1.0) if self.unsupported > 0 else 0.0

    def summary(self) -> dict[str, object]:
        """As plain names and values; of the log, not of the value, are the weight and whether it has propensities."""
        without = (
            "heaviest",
            "by_stage",
            "logged",
            "shown_once",
            "by_weight",
            *(() if self.by_stage else ("lost_at_generator", "lost_at_ranker")),
        )
        return {name: value for name, value in asdict(self).items() if name not in without}

    def stages(self, digits: int = 0) -> str:
        """Where exposure was lost, in words; nothing where no stages are known."""
        generator, ranker = (f"{lost:.{digits}%}" for lost in (self.lost_at_generator, self.lost_at_ranker))
        return f": {generator} lost at the generator, {ranker} at the re-ranker" if self.by_stage else ""


def diagnose(log: Feedback, rho_0: Floats, raised: NDArray[np.bool_], exposure: Exposure, theta: Floats) -> Diagnostics:
    """All diagnostics of a policy on a log.  Shapes: rho_0, raised [P], whether the propensity was raised; theta [K]."""
    n = log.impressions
    e = feedback.exposure(log, theta)
    w = np.divide(exposure.rho, rho_0, out=np.zeros(len(e)), where=rho_0 > 0)
    we = w * e
    pair = np.cumsum((np.diff(log.query, prepend=-1) != 0) | (np.diff(log.item, prepend=-1) != 0)) - 1
    all_weight, all_exposure = float(we.sum()), float((n * exposure.total).sum())
    if all_exposure <= 0:
        raise PolicyError(
            "the policy shows nothing to any query of the log. Check that its scores are of these queries."
        )
    balance = Estimate(np.bincount(log.query, we, log.Q).astype(np.float64), n * exposure.total)
    unsupported = max(0.0, 1 - float((n * exposure.supported).sum()) / all_exposure)
    once = np.bincount(pair, log.shown)[pair] <= log.heaviest
    by_stage = exposure.random is not None
    random = 1.0 if exposure.random is None else exposure.random
    shuffled = max(0.0, 1 - float((n * exposure.total * random).sum()) / all_exposure)
    generator = min(unsupported, shuffled)
    queries = int((n > 0).sum())
    squares = len(theta) * float((w * we * feedback.examination(log, theta)).sum()) * _changing(w, log)
    # Of a log with weights there are fewer impressions than they add up to.
    over_shown = float(np.sqrt(log.heaviest * max(squares - all_weight**2 / log.N, 0.0))) / all_exposure
    effective = all_weight**2 / float((w * we).sum()) if all_weight > 0 else 0.0
    return Diagnostics(
        queries=queries,
        impressions=log.N,
        clicks=float(log.clicks[w > 0].sum()),
        examined=float(e.sum()) / log.heaviest,
        effective_sample_size=effective / log.heaviest,
        largest_weight=float(w.max(initial=0.0)),
        largest_share=float(np.bincount(pair, we).max()) / all_weight if all_weight > 0 else 0.0,
        clipped=float(log.shown[raised].sum() / max(log.shown.sum(), 1.0)),
        unsupported=unsupported,
        lost_at_generator=generator,
        lost_at_ranker=unsupported - generator,
        balance=balance.value,
        balance_error=balance.standard_error if queries >= FEW_QUERIES else over_shown,
        heaviest=log.heaviest,
        by_stage=by_stage,
        logged=log.logged is not None,
        shown_once=float(we[once].sum()) / all_exposure,
        by_weight=_by_weight(w, e, 1 - unsupported),
    )


def _by_weight(w: Floats, e: Floats, supported: float) -> ByWeight:
    """The histogram; exposure adds up to what is `supported`.  Shapes: w, e [P]."""
    place, n = np.searchsorted(WEIGHTS, w, side="right"), len(WEIGHTS) + 1
    shares = (np.bincount(place, values, n) / max(float(values.sum()), np.finfo(float).tiny) for values in (e, w * e))
    logged, exposed = shares
    return ByWeight(tuple(logged.tolist()), tuple((supported * exposed).tolist()))


def _changing(w: Floats, log: Feedback) -> float:
    """How many times the square of a row's weight the mean square of those of its showings is, by the clicked ones."""
    each, _ = feedback.click_moments(log, 1.0)
    count, squares = np.square(w) @ each[0], np.square(w) @ each[2]
    return max(float(squares / count), 1.0) if count > 0 else 1.0


@dataclass(frozen=True)
class Identified:
    """The value in the worst and in the best case, and an interval that holds all that is between, with both cases' noise.

    `missing`: the exposure per impression that nothing is known about.
    """

    worst: float
    best: float
    interval: tuple[float, float]
    missing: float

    @property
    def words(self) -> str:
        """As a sentence for the reasons of a verdict."""
        low, high = self.interval
        return (
            f"whatever the items that were never shown are worth, its value is from {self.worst:.3g} to {self.best:.3g} clicks "
            f"per impression (95%: {low:.3g} to {high:.3g})"
        )


def identified(ips: Estimate, exposure: Exposure, log: Feedback, *, value: float) -> Identified:
    """The range of a policy's value, by its IPS estimate, the exposure that the log never showed, and the given value."""
    n = log.impressions.astype(np.float64)
    missing = n * np.maximum(exposure.total - exposure.supported, 0.0)
    best = Estimate(ips.numerator + missing, ips.denominator)
    low, high = ips.interval(Z95)[0], best.interval(Z95)[1]
    total = float(n.sum())
    return Identified(
        worst=min(ips.value, value),
        best=max(best.value, value),
        interval=(max(min(low, value), 0.0), max(high, value)),
        missing=float(missing.sum()) / total if total > 0 else 0.0,
    )
