"""What a policy is worth: `Value`, the typed result, with its interval and its bound, made from arrays alone.

Everything here is about clicks per impression over a log's queries, each as often as it came. An interval and a bound are by
default about these queries: what other impressions of them would have given (`uncertainty.impression_covariance`,
`impression_bound`); and by wish about queries as a sample, what others like them would have (`uncertainty.bootstrap`,
`bounds`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from tandemrank.logs.feedback import Feedback
from tandemrank.logs.variety import drawn_anew
from tandemrank.offpolicy import bounds, impression_bound
from tandemrank.offpolicy.bounds import Independent
from tandemrank.offpolicy.diagnostics import Diagnostics, Identified
from tandemrank.offpolicy.estimators import Estimate, by_query
from tandemrank.offpolicy.uncertainty import (
    FEW_QUERIES,
    bootstrap,
    impression_covariance,
    misfit_variance,
    percentile_interval,
)
from tandemrank.offpolicy.verdicts import Verdict

Floats = NDArray[np.float64]
Production = Literal["production"]
PRODUCTION: Production = "production"  # the policy that drew the log
NORMAL = 1  # a stream of its own: other draws of the same seed are not these
# Weighted clicks and nothing else (production's, too): the noise over impressions is theirs. Other estimators take noise away.
WEIGHTED = (None, "ips")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Which queries the bootstrap draws: values of one sample can be compared, draw by draw.

    `queries` and `impressions` of the log, `replicates` and `seed` of the draws, the `level` of interval and bound, and what
    they take as `independent`.
    """

    queries: int
    impressions: float
    replicates: int
    level: float
    seed: int
    independent: Independent


@dataclass(frozen=True, kw_only=True)
class Value:
    """Clicks per impression: of a policy if it were live, or of production as the log shows it.

    `estimate`: query by query. `verdict`: may it be believed, with `reasons`. `estimator` and `propensity`: the kinds that were
    used, and why. `diagnostics`: what the value rests on, and `identified`: the worst and the best case of what the log never
    showed; None for production, which needs neither.
    `terms` of the lower bound, those of IPS whatever the estimator; `ceiling_terms`: the same without a clip and with a
    ceiling, which is what a difference to this side rests on; None where there are none. `weights`: rho / rho_0 of the rows of
    the `log`, and `old_weights` without a clip. `exposure_variance`: of the value, by what is not known of the exposures, and
    `misfit`: how far it may be off by what is not known of a fitted logger; an interval over impressions has both.

    The rest is `with_uncertainty`'s. `interval`: over impressions of these queries, or over queries by the bootstrap, as
    `sample.independent` says (fewer than 30 queries are no sample of others: over impressions); `over_queries`: the latter in
    any case. `lower_bound`: the value exceeds it with the same probability however short the log is.
    Shapes: weights, old_weights [P]; draws [replicates], the values of other samples of impressions or queries; query_draws
    [replicates], of queries.
    """

    log: Feedback
    estimate: Estimate
    terms: bounds.Terms
    verdict: Verdict
    reasons: tuple[str, ...]
    sample: Sample
    estimator: str | None = None
    propensity: str | None = None
    propensity_reason: str = ""
    diagnostics: Diagnostics | None = None
    identified: Identified | None = None
    ceiling_terms: bounds.Terms | None = None
    weights: Floats = field(default_factory=lambda: np.zeros(0))
    old_weights: Floats = field(default_factory=lambda: np.zeros(0))
    exposure_variance: float = 0.0
    misfit: tuple[float, float] = (0.0, 0.0)
    standard_error: float = float("nan")
    interval: tuple[float, float] = (float("nan"), float("nan"))
    lower_bound: float = float("nan")
    draws: Floats = field(default_factory=lambda: np.zeros(0))
    query_draws: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def value(self) -> float:
        """Clicks per impression."""
        return self.estimate.value

    @property
    def bound_method(self) -> str:
        """Of the lower bound, over impressions as over queries."""
        return "betting"

    @property
    def over_queries(self) -> tuple[float, float]:
        """The interval that takes queries as a sample."""
        return percentile_interval(self.query_draws, self.sample.level)

    def summary(self) -> dict[str, object]:
        """All but the arrays, as plain names and values."""
        names = (
            "value",
            "standard_error",
            "interval",
            "over_queries",
            "lower_bound",
            "bound_method",
            "verdict",
            "reasons",
            "propensity",
            "propensity_reason",
            "estimator",
        )
        found: dict[str, object] = {name: getattr(self, name) for name in names}
        found["bound_over"] = self.sample.independent
        if self.identified is not None:
            found |= {"worst_case": self.identified.worst, "best_case": self.identified.best}
        if self.diagnostics is not None:
            found |= self.diagnostics.summary()
        return found


def unit_of(log: Feedback, propensity: str | None) -> Independent:
    """What a bound takes one by one where nobody says it: impressions, where each counts once and its list was drawn anew.

    Propensities say that lists vary; where those of a query hardly do, one draw was shown many times, unless the log has the
    random key of each.
    """
    anew = propensity not in ("exact", "logged", "fitted") or drawn_anew(log)
    return "impressions" if anew and not log.weighted else "queries"


def production(log: Feedback, sample: Sample) -> Value:
    """What the log shows of the policy that drew it: its clicks."""
    clicks = by_query(log.clicks, log)
    terms = bounds.production_terms(clicks, log.impressions, most_clicks(log))
    ones = np.ones(len(log.query))
    return Value(
        log=log,
        sample=sample,
        estimate=Estimate(clicks, log.impressions),
        terms=terms,
        ceiling_terms=terms,
        verdict=Verdict.OBSERVED,
        reasons=(Verdict.OBSERVED.meaning,),
        weights=ones,
        old_weights=ones,
    )


def most_clicks(log: Feedback) -> float:
    """What an impression can get at most: a click for each place of the longest list."""
    return float(log.rank.max(initial=0)) + 1


def few_queries(log: Feedback) -> bool:
    """Whether queries are too few to be a sample of others, so that intervals are over impressions."""
    return 0 < int((log.impressions > 0).sum()) < FEW_QUERIES and not log.weighted


def over_impressions(value: Value) -> bool:
    """Whether intervals are over impressions."""
    return value.sample.independent == "impressions" or few_queries(value.log)


def with_uncertainty(values: Sequence[Value]) -> tuple[Value, ...]:
    """Values of one sample with their intervals and bounds, all by the same draws of queries."""
    log, sample = values[0].log, values[0].sample
    estimates = [value.estimate for value in values]
    draws = bootstrap(estimates, log.impressions > 0, replicates=sample.replicates, seed=sample.seed).T
    return tuple(_with_interval(value, drawn) for value, drawn in zip(values, draws, strict=True))


def _with_interval(value: Value, drawn: Floats) -> Value:
    """Shapes: drawn [replicates], over queries."""
    error, draws = value.estimate.standard_error, drawn
    if over_impressions(value):
        unknown = value.exposure_variance + misfit_variance(value.misfit)
        error = impression_error(value.weights, value.log, error, unknown, weighted=value.estimator in WEIGHTED)
        draws = value.value + error * normal_draws(value.sample)
    low, high = percentile_interval(draws, value.sample.level)
    return replace(
        value,
        standard_error=error,
        interval=(max(low, 0.0), high),
        lower_bound=max(0.0, _lower_bound(value)),
        draws=draws,
        query_draws=draws if few_queries(value.log) else drawn,  # few are no sample
    )


def _lower_bound(value: Value) -> float:
    if value.sample.independent == "queries":
        return bounds.betting(value.terms, value.sample.level)
    sums = impression_bound.value_sums(value.weights, value.log, most=most_clicks(value.log))
    return impression_bound.lower_bound(sums, value.sample.level)


def normal_draws(sample: Sample) -> Floats:
    """Standard normal draws, its quantiles in random order, the same for all values of a sample.  Shapes: -> [replicates]."""
    quantiles = ndtri((np.arange(sample.replicates) + 0.5) / sample.replicates)
    return np.random.default_rng((sample.seed, NORMAL)).permutation(quantiles)


def impression_error(weights: Floats, log: Feedback, by_query: float, exposures: float, *, weighted: bool) -> float:
    """The standard error over impressions of these queries, with what is not known of the exposures.

    An estimator that takes noise away from weighted clicks has at most theirs, and at most what it has over queries.
    """
    variance = max(float(impression_covariance([weights], log, most=most_clicks(log))[0, 0]), 0.0)
    if not weighted and not few_queries(log):
        variance = min(variance, by_query**2)
    return float(np.sqrt(variance + exposures))
