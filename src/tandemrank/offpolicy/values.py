"""What a policy is worth: `Value`, the typed result, with its interval and its bound, made from arrays alone.

Everything here is about clicks per impression over a log's queries, each as often as it came. An interval and a bound are by
default about these queries: what other impressions of them would have given (`uncertainty.impression_covariance`,
`bounds.ImpressionSums`); and by wish about queries as a sample, what others like them would have (`Estimate.standard_error`,
`bounds.Terms`). Intervals are normal: over queries they hold as often as the bootstrap's did (docs/explanation/bounds.md).
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.results import Result, within
from tandemrank.clicks.examination import Behaviour
from tandemrank.logs.description import drawn_anew
from tandemrank.logs.feedback import Feedback
from tandemrank.offpolicy import bounds
from tandemrank.offpolicy.bounds import Independent
from tandemrank.offpolicy.diagnostics import Diagnostics, Identified
from tandemrank.offpolicy.estimators import Estimate, by_query
from tandemrank.offpolicy.uncertainty import (
    FEW_QUERIES,
    impression_covariance,
    misfit_variance,
    normal_interval,
    unmet_variance,
)
from tandemrank.offpolicy.verdicts import Verdict

Floats = NDArray[np.float64]
Production = Literal["production"]
PRODUCTION: Production = "production"  # the policy that drew the log
# Weighted clicks and nothing else (production's, too): the noise over impressions is theirs. Other estimators take noise away.
WEIGHTED = (None, "ips", "completed")
FIGURES = ("value", "standard_error", "interval", "over_queries", "lower_bound")  # which a refusal has none of


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What an interval and a bound are about: values of one sample can be compared.

    `queries` and `impressions` of the log, the `level` of interval and bound, and what they take as `independent`.
    """

    queries: int
    impressions: float
    level: float
    independent: Independent


@dataclass(frozen=True)
class Reward:
    """What clicked items were worth, in place of clicks: the column of the log, about how much a click is worth (a power of
    ten), and the largest of the weights that a difference to this side rests on."""

    name: str
    scale: float
    largest: float


@dataclass(frozen=True)
class RankSupport:
    """Of what a system would have shown at a rank: the share that the same list showed, and that the query ever saw."""

    rank: int
    in_the_list: float
    ever_shown: float


@dataclass(frozen=True, kw_only=True)
class Unknown:
    """What a policy does not know of a log, as shares of it, and what that is worth in clicks per impression.

    `queries`: the share of the impressions, answered as the average query, or `as_production`; `value` there, beside the
    clicks of the log, and `known_value` of the others. `items`, `clicks`: shares of what was shown and clicked that it never
    shows.
    """

    queries: float
    value: float | None
    production: float | None
    known_value: float | None
    as_production: bool
    items: float
    clicks: float

    @property
    def sentences(self) -> tuple[str, ...]:
        """In words."""
        found = []
        if self.queries:
            how = "with production's list" if self.as_production else "as the average query"
            beside = "" if self.known_value is None else f"; {self.known_value:.3g} elsewhere"
            found.append(
                f"{self.queries:.1%} of the impressions are of queries that the policy does not know, valued {how}: "
                f"{self.value:.3g} clicks per impression there, {self.production:.3g} in the log{beside}"
            )
        if self.items:
            found.append(
                f"{self.items:.1%} of what the log shows, with {self.clicks:.1%} of the clicks, are items that the policy does "
                "not know and never shows; features would make them known"
            )
        return tuple(found)

    def summary(self) -> dict[str, object]:
        """As plain names and values."""
        return {f"unknown_{name}": value for name, value in vars(self).items() if name != "as_production"}


@dataclass(frozen=True, kw_only=True, repr=False)
class Value(Result):
    """Clicks per impression: of a policy if it were live, or of production as the log shows it.

    `estimate`: query by query. `verdict`: may it be believed, with `reasons`. `estimator` and `propensity`: the kinds that were
    used, and why. `diagnostics`: what the value rests on, and `identified`: the worst and the best case of what the log never
    showed; None for production, which needs neither.
    `terms` of the lower bound, those of IPS whatever the estimator; `ceiling_terms`: the same without a clip and with a
    ceiling, which is what a difference to this side rests on; None where there are none. `weights`: rho / rho_0 of the rows of
    the `log`, and `old_weights` without a clip. `exposure_variance`: of the value, by what is not known of the exposures, and
    `misfit`: how far it may be off by what is not known of a fitted logger; an interval over impressions has both.
    `excess`: how many times the value weighted clicks alone are, which a bound rests on; it is divided by it.
    `behaviour`: how the lists of the log are read, where they were looked at. `unknown`: what the policy does not know of it.
    `support`: of shadow lists, rank by rank. `reward`: what is counted in place of clicks; weights are then times its worth.

    Shapes: weights, old_weights [2, P] (`bounds.both_weights`).
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
    excess: float = 1.0
    behaviour: Behaviour | None = None
    support: tuple[RankSupport, ...] = ()
    reward: Reward | None = None
    unknown: Unknown | None = None

    @property
    def value(self) -> float:
        """Clicks per impression: not negative, as an estimate that takes noise away may be."""
        return max(self.estimate.value, 0.0)

    @cached_property
    def standard_error(self) -> float:
        """Over other impressions of these queries, or over queries, as `sample.independent` says; few queries are no sample."""
        if not over_impressions(self):
            return self.estimate.standard_error
        unknown = self.exposure_variance + misfit_variance(self.misfit)
        weighted = self.estimator in WEIGHTED
        return impression_error(self.weights, self.log, self.estimate.standard_error, unknown, weighted=weighted)

    @property
    def interval(self) -> tuple[float, float]:
        """By that error."""
        return self._within(self.standard_error)

    @property
    def over_queries(self) -> tuple[float, float]:
        """The interval that takes queries as a sample, where they are enough for one."""
        return self.interval if few_queries(self.log) else self._within(self.estimate.standard_error)

    def _within(self, error: float) -> tuple[float, float]:
        low, high = normal_interval(self.value, error, self.sample.level)
        return max(low, 0.0), high

    @cached_property
    def lower_bound(self) -> float:
        """The value exceeds it with the probability of the level, however short the log is."""
        rests_on: bounds.Terms | bounds.ImpressionSums = self.terms
        if self.sample.independent == "impressions":
            scale = 1.0 if self.reward is None else self.reward.scale
            rests_on = replace(bounds.value_sums(self.weights, self.log, most=most_clicks(self.log)), scale=scale)
        return max(0.0, min(rests_on.lower_bound(self.sample.level) / self.excess, self.value))

    @property
    def unit(self) -> str:
        """What is counted."""
        return f"{'clicks' if self.reward is None else self.reward.name} per impression"

    def _lines(self) -> list[str]:
        said = f"{self.verdict}: {'; '.join(self.reasons)}"
        if self.verdict == Verdict.REFUSE:
            return [said]
        by = "as the log shows it" if self.estimator is None else f"{self.estimator}, {self.propensity} propensities"
        return [
            f"{self.value:.3f} {self.unit} {within(*self.interval)}, {self.sample.level:.0%} ({by})",
            f"at least {self.lower_bound:.3f}",
            said,
        ]

    def _rows(self) -> list[dict[str, Any]]:
        found = self.to_dict()
        low, high = found["interval"] or (None, None)
        plain = {name: x for name, x in found.items() if not isinstance(x, list | dict) and name != "interval"}
        return [{"value": None, "low": low, "high": high} | plain]

    def summary(self) -> dict[str, object]:
        """All but the arrays, as plain names and values; of an answer that is refused no figures, but what it rests on."""
        names = (
            "value",
            "standard_error",
            "interval",
            "over_queries",
            "lower_bound",
            "verdict",
            "reasons",
            "propensity",
            "propensity_reason",
            "estimator",
        )
        found: dict[str, object] = {name: getattr(self, name) for name in names}
        if self.verdict == Verdict.REFUSE:
            found |= dict.fromkeys(FIGURES)
        found["bound_over"] = self.sample.independent
        if self.reward is not None:
            found["reward"] = self.reward.name
        if self.identified is not None:
            found |= {"worst_case": self.identified.worst, "best_case": self.identified.best}
        if self.diagnostics is not None:
            found |= self.diagnostics.summary()
        if self.support:
            found["support_by_rank"] = [vars(one) for one in self.support]
        found |= {} if self.unknown is None else self.unknown.summary()
        return found | ({} if self.behaviour is None else self.behaviour.summary())


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
    ones = bounds.both_weights(np.ones(len(log.query)), fixed=True)
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


def impression_error(weights: Floats, log: Feedback, by_query: float, exposures: float, *, weighted: bool) -> float:
    """The standard error over impressions of these queries, with what is not known of the exposures.

    An estimator that takes noise away from weighted clicks has at most theirs, and at most what it has over queries.
    """
    variance = max(float(impression_covariance([weights], log, most=most_clicks(log))[0, 0]), 0.0)
    if not weighted and not few_queries(log):
        variance = min(variance, by_query**2)
    return float(np.sqrt(variance + unmet_variance(weights, log) + exposures))
