"""What a pair is worth and how two compare: the typed results, made from arrays alone.

Everything here is about clicks per impression over a log's queries, each as often as it came. An interval and a bound are by
default about these queries: what other impressions of them would have given (`uncertainty.impression_covariance`,
`impression_bound`); and by wish about queries as a sample, what others like them would have (`uncertainty.bootstrap`,
`bounds`).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from tandemrank.errors import InputError
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.variety import drawn_anew
from tandemrank.offpolicy import bounds, impression_bound
from tandemrank.offpolicy.bounds import Independent
from tandemrank.offpolicy.diagnostics import Diagnostics
from tandemrank.offpolicy.estimate import Estimate
from tandemrank.offpolicy.estimators import by_query, ips, safe_ratio, sums_by
from tandemrank.offpolicy.identification import Identified
from tandemrank.offpolicy.uncertainty import (
    FEW_QUERIES,
    bootstrap,
    impression_covariance,
    misfit_variance,
    percentile_interval,
    share_of_wins,
)
from tandemrank.offpolicy.verdicts import Verdict, worst

Floats = NDArray[np.float64]
Production = Literal["production"]
PRODUCTION: Production = "production"  # the policy that drew the log
NORMAL = 1  # a stream of its own: other draws of the same seed are not these
# Weighted clicks and nothing else (production's, too): the noise over impressions is theirs. Other estimators take noise away.
WEIGHTED = (None, "ips")


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Value:
    """Clicks per impression: of a pair if it were live, or of production as the log shows it.

    `interval`: over impressions of these queries, or over queries by the bootstrap, as `sample.independent` says (fewer than
    30 queries are no sample of others: over impressions). `over_queries`: the latter in any case.
    `lower_bound`: the value exceeds it with the same probability however short the log is, by the
    IPS terms, whatever the estimator. `verdict`: may it be believed, with `reasons`.
    `estimator` and `propensity`: the kinds that were used, and why. `diagnostics`: what the value rests on; None for
    production, which needs neither. `estimate`: query by query. `terms` of the lower bound; `ceiling_terms`: of the same
    without a clip and with a ceiling, which is what a difference to this side rests on; None where there are none. `weights`:
    rho / rho_0 of the rows of the `log`, and `old_weights` without a clip. `identified`: the worst and the best case of what
    the log never showed.
    `exposure_variance`: of the value, by what is not known of the exposures, and `misfit`: how far it may be off by what is not
    known of a fitted logger; an interval over impressions has both.
    Shapes: draws [replicates], the values of other samples of impressions or queries; query_draws [replicates], of queries; weights, old_weights [P].
    """

    value: float
    standard_error: float
    interval: tuple[float, float]
    lower_bound: float
    verdict: Verdict
    reasons: tuple[str, ...]
    propensity: str | None
    propensity_reason: str
    diagnostics: Diagnostics | None
    estimate: Estimate
    terms: bounds.Terms
    ceiling_terms: bounds.Terms | None
    weights: Floats
    old_weights: Floats
    draws: Floats
    query_draws: Floats
    sample: Sample
    log: Feedback
    identified: Identified | None = None
    estimator: str | None = None
    exposure_variance: float = 0.0
    misfit: tuple[float, float] = (0.0, 0.0)

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
        )
        own = {name: getattr(self, name) for name in (*names, "propensity", "propensity_reason")}
        own |= {"estimator": self.estimator, "bound_over": self.sample.independent}
        cases = (
            {} if self.identified is None else {"worst_case": self.identified.worst, "best_case": self.identified.best}
        )
        return own | cases | ({} if self.diagnostics is None else asdict(self.diagnostics))


@dataclass(frozen=True)
class Comparison:
    """Two sides on one log, on the same draws: what they have in common cancels.

    `difference`: new less old, in clicks per impression, with its paired `interval`, and that `over_queries`;
    `share_of_wins`: of the draws, where new is ahead; `lower_bound`: the true difference exceeds it with the probability of the
    level however short the log is, by
    the paired IPS terms; None where the old side has no terms that may be subtracted. `verdict`: the worse
    of the two sides', with the reasons of both.
    """

    new: Value
    old: Value
    difference: float
    standard_error: float
    interval: tuple[float, float]
    share_of_wins: float
    lower_bound: float | None
    verdict: Verdict
    reasons: tuple[str, ...]
    over_queries: tuple[float, float]

    @property
    def bound_method(self) -> str | None:
        """Of the lower bound; None where there is none."""
        return None if self.lower_bound is None else "betting"

    def summary(self) -> dict[str, object]:
        """All but the arrays, as plain names and values."""
        names = (
            "difference",
            "standard_error",
            "interval",
            "over_queries",
            "lower_bound",
            "bound_method",
            "share_of_wins",
            "verdict",
            "reasons",
        )
        sides: dict[str, object] = {"new": self.new.summary(), "old": self.old.summary()}
        return {name: getattr(self, name) for name in names} | {"bound_over": self.new.sample.independent} | sides


@dataclass(frozen=True)
class Judged:
    """One side before its uncertainty: the estimate, its IPS terms for the lower bound, and what is said of it.

    `ceiling_terms`, the weights, `exposure_variance` and `misfit`: see `Value`.
    """

    estimate: Estimate
    terms: bounds.Terms
    verdict: Verdict
    reasons: tuple[str, ...]
    diagnostics: Diagnostics | None = None
    propensity: str | None = None
    propensity_reason: str = ""
    ceiling_terms: bounds.Terms | None = None
    weights: Floats = field(default_factory=lambda: np.zeros(0))
    old_weights: Floats = field(default_factory=lambda: np.zeros(0))
    identified: Identified | None = None
    estimator: str | None = None
    exposure_variance: float = 0.0
    misfit: tuple[float, float] = (0.0, 0.0)


def production(log: Feedback) -> Judged:
    """What the log shows of the policy that drew it: its clicks."""
    clicks = by_query(log.clicks, log)
    terms = bounds.production_terms(clicks, log.impressions, most_clicks(log))
    ones = np.ones(len(log.query))
    return Judged(
        Estimate(clicks, log.impressions), terms, Verdict.OBSERVED, (Verdict.OBSERVED.meaning,), ceiling_terms=terms,
        weights=ones, old_weights=ones,
    )  # fmt: skip


def most_clicks(log: Feedback) -> float:
    """What an impression can get at most: a click for each place of the longest list."""
    return float(log.rank.max(initial=0)) + 1


def unit(asked: Independent | None, log: Feedback, sides: Sequence[Judged]) -> Independent:
    """What a bound takes one by one: as asked, else impressions, where each counts once and its list was drawn anew.

    Propensities say that lists vary; where those of a query hardly do, one draw was shown many times, unless the log has the
    random key of each.
    """
    if asked is not None:
        return asked
    drawn = any(side.propensity in ("exact", "logged", "fitted") for side in sides)
    anew = not drawn or drawn_anew(log)
    return "impressions" if anew and not log.weighted else "queries"


def with_uncertainty(
    sides: Sequence[Judged],
    log: Feedback,
    replicates: int,
    level: float,
    seed: int,
    independent: Independent | None = None,
) -> tuple[Value, ...]:
    """The values of several sides on one log, with intervals and bounds, all by the same draws of queries."""
    logged = log.impressions > 0
    sample = Sample(int(logged.sum()), log.N, replicates, level, seed, unit(independent, log, sides))
    draws = bootstrap([side.estimate for side in sides], logged, replicates=replicates, seed=seed).T
    return tuple(_value(side, drawn, sample, log) for side, drawn in zip(sides, draws, strict=True))


def few_queries(log: Feedback) -> bool:
    """Whether queries are too few to be a sample of others, so that intervals are over impressions."""
    return 0 < int((log.impressions > 0).sum()) < FEW_QUERIES and not log.weighted


def over_impressions(sample: Sample, log: Feedback) -> bool:
    """Whether intervals are over impressions."""
    return sample.independent == "impressions" or few_queries(log)


def _value(side: Judged, drawn: Floats, sample: Sample, log: Feedback) -> Value:
    """A side with its interval and its bound.  Shapes: drawn, over queries [replicates]."""
    if sample.independent == "impressions":
        sums = impression_bound.value_sums(side.weights, log, most=most_clicks(log))
        bound = impression_bound.lower_bound(sums, sample.level)
    else:
        bound = bounds.betting(side.terms, sample.level)
    error, draws = side.estimate.standard_error, drawn
    if over_impressions(sample, log):
        unknown = side.exposure_variance + misfit_variance(side.misfit)
        error = _impression_error(side.weights, log, error, unknown, weighted=side.estimator in WEIGHTED)
        draws = side.estimate.value + error * _normal(sample)
    drawn = draws if few_queries(log) else drawn  # few are no sample
    low, high = percentile_interval(draws, sample.level)
    return Value(
        side.estimate.value, error, (max(low, 0.0), high), max(0.0, bound), side.verdict,
        side.reasons, side.propensity, side.propensity_reason, side.diagnostics, side.estimate, side.terms,
        side.ceiling_terms, side.weights, side.old_weights, draws, drawn, sample, log, side.identified,
        side.estimator, side.exposure_variance, side.misfit,
    )  # fmt: skip


def _normal(sample: Sample) -> Floats:
    """Standard normal draws, its quantiles in random order, the same for all values of a sample.  Shapes: -> [replicates]."""
    quantiles = ndtri((np.arange(sample.replicates) + 0.5) / sample.replicates)
    return np.random.default_rng((sample.seed, NORMAL)).permutation(quantiles)


def _impression_error(weights: Floats, log: Feedback, by_query: float, exposures: float, *, weighted: bool) -> float:
    """The standard error over impressions of these queries, with what is not known of the exposures.

    An estimator that takes noise away from weighted clicks has at most theirs, and at most what it has over queries.
    """
    variance = max(float(impression_covariance([weights], log, most=most_clicks(log))[0, 0]), 0.0)
    if not weighted and not few_queries(log):
        variance = min(variance, by_query**2)
    return float(np.sqrt(variance + exposures))


def compare_values(new: Value, old: Value) -> Comparison:
    """The difference of two values of one sample, query by query and draw by draw; either may be production's."""
    if new.sample != old.sample:
        raise InputError(
            f"both values must come from the same log and the same draws; {new.sample} and {old.sample} came. Ask for both "
            "with the same log, seed, replicates and level."
        )
    gap, sides = new.value - old.value, (("new", new), ("old", old))
    bound = difference_bound(new, old)
    over_queries = percentile_interval(new.query_draws - old.query_draws, new.sample.level)
    error = float(np.sqrt(np.square(new.estimate.influence - old.estimate.influence).sum()))
    draws = new.query_draws - old.query_draws
    known = {new.estimator, old.estimator}
    if over_impressions(new.sample, new.log):
        weights = new.weights - old.weights
        # Of a pair and itself the noise of the races is the same.
        race = new.exposure_variance + old.exposure_variance if weights.any() else 0.0
        race += misfit_variance(new.misfit, old.misfit)
        error = _impression_error(weights, new.log, error, race, weighted=known <= set(WEIGHTED))
        draws = gap + error * _normal(new.sample)
    interval = percentile_interval(draws, new.sample.level)
    return Comparison(
        new,
        old,
        gap,
        error,
        interval,
        share_of_wins(draws),
        bound,
        worst(new.verdict, old.verdict),
        tuple(f"{name}: {reason}" for name, side in sides if side.diagnostics for reason in side.reasons),
        interval if few_queries(new.log) else over_queries,
    )


def difference_bound(new: Value, old: Value) -> float | None:
    """The lower bound of a difference, by what the two sides take as independent; None where there is none."""
    terms = difference_terms(new, old)
    if terms is None or new.sample.independent == "queries":
        return None if terms is None else bounds.betting(terms, new.sample.level)
    sums = impression_bound.difference_sums(new.weights, old.old_weights, new.log, most=most_clicks(new.log))
    return impression_bound.lower_bound(sums, new.sample.level)


def difference_interval(new: Value, old: Value, queries: NDArray[np.bool_], level: float) -> tuple[float, float]:
    """Bounds of a difference on both sides together, over some queries of the log alone; infinite where there is none.

    Shapes: queries [Q].
    """
    half, most = (1 + level) / 2, most_clicks(new.log)
    terms = difference_terms(new, old)
    if terms is None:
        return -np.inf, np.inf
    if new.sample.independent == "impressions":
        low, high = (
            impression_bound.lower_bound(
                impression_bound.difference_sums(*sides, new.log, most=most, queries=queries), half
            )
            for sides in ((new.weights, old.old_weights), (old.old_weights, new.weights))
        )
        return low, -high
    inside, ceiling = (
        queries[new.log.impressions > 0],
        np.inf if new.ceiling_terms is None else new.ceiling_terms.ceiling,
    )
    return bounds.interval(bounds.Terms(terms.values[inside], terms.sizes[inside], terms.floor, ceiling), level)


def difference_terms(new: Value, old: Value) -> bounds.Terms | None:
    """The terms of a bound of the difference, paired by query; None where the old side has none that may be subtracted."""
    if old.ceiling_terms is None:
        return None
    ours, theirs = (Estimate(terms.values, terms.sizes) for terms in (new.terms, old.ceiling_terms))
    return bounds.difference_terms(ours, theirs, floor=old.ceiling_terms.ceiling)


def ceiling_terms(rho: Floats, rho_0: Floats, log: Feedback, K: int) -> bounds.Terms | None:
    """The IPS terms of a pair and the most that one impression can give it: the K largest weights of a query, of what it saw.

    Each item of a list is clicked once at most. None where a click has no propensity: a clip is no help for a side that is
    subtracted.  Shapes: rho, rho_0 [P].
    """
    if ((log.clicks > 0) & (rho_0 <= 0)).any():
        return None
    w = safe_ratio(rho, rho_0, log.shown)
    once = (np.diff(log.query, prepend=-1) != 0) | (np.diff(log.item, prepend=-1) != 0)
    pair = np.maximum.reduceat(w, np.flatnonzero(once)) if len(w) else w  # logged ones may differ by the rank
    query = log.query[once]
    order = np.lexsort((-pair, query))
    first = np.searchsorted(query[order], query[order])
    largest = np.arange(len(order)) - first < K
    ceiling = sums_by(query[order][largest], pair[order][largest], log.Q).max(initial=0.0)
    terms = ips(rho, rho_0, log)
    return bounds.Terms(terms.numerator, terms.denominator, 0.0, float(ceiling))
