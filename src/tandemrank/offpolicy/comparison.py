"""How two values of one log compare: the paired difference, what it is at least, and for whom.

What acts on a difference (`decisions`, the gate of training) asks what it is *surely* at least: the bound, with the new side
divided by what its weights find too much.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.sparse import sums_by
from tandemrank.errors import InputError
from tandemrank.logs.feedback import Feedback
from tandemrank.offpolicy import bounds, impression_bound
from tandemrank.offpolicy.diagnostics import Z95, Diagnostics
from tandemrank.offpolicy.estimators import Estimate, ips, safe_ratio
from tandemrank.offpolicy.impression_bound import ImpressionSums
from tandemrank.offpolicy.uncertainty import misfit_variance, percentile_interval, share_of_wins
from tandemrank.offpolicy.values import (
    WEIGHTED,
    Value,
    few_queries,
    impression_error,
    most_clicks,
    normal_draws,
    over_impressions,
)
from tandemrank.offpolicy.verdicts import Verdict, worst

Floats = NDArray[np.float64]
FREQUENCIES = ((1, 2), (3, 9), (10, None))  # impressions of a query in the whole log, from and to


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two sides on one log, on the same draws: what they have in common cancels.

    `difference`: new less old, in clicks per impression, with its paired `interval`, and that `over_queries`;
    `share_of_wins`: of the draws, where new is ahead; `lower_bound`: the true difference exceeds it with the probability of the
    level however short the log is, by the paired IPS terms; None where the old side has no terms that may be subtracted.
    `verdict`: the worse of the two sides', with the reasons of both.
    """

    new: Value
    old: Value
    difference: float
    standard_error: float
    interval: tuple[float, float]
    over_queries: tuple[float, float]
    share_of_wins: float
    lower_bound: float | None
    verdict: Verdict
    reasons: tuple[str, ...]

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
        found: dict[str, object] = {name: getattr(self, name) for name in names}
        sides = {"new": self.new.summary(), "old": self.old.summary()}
        return found | {"bound_over": self.new.sample.independent} | sides


def compare_values(new: Value, old: Value) -> Comparison:
    """The difference of two values of one sample, query by query and draw by draw; either may be production's."""
    if new.sample != old.sample:
        raise InputError(
            f"both values must come from the same log and the same draws; got {new.sample} and {old.sample}. Ask for both "
            "with the same log, seed, replicates and level."
        )
    level = new.sample.level
    error = float(np.sqrt(np.square(new.estimate.influence - old.estimate.influence).sum()))
    draws = new.query_draws - old.query_draws
    over_queries = percentile_interval(draws, level)
    if over_impressions(new):
        weights = new.weights - old.weights
        # Of a policy and itself the noise of the races is the same.
        unknown = new.exposure_variance + old.exposure_variance if weights.any() else 0.0
        unknown += misfit_variance(new.misfit, old.misfit)
        weighted = new.estimator in WEIGHTED and old.estimator in WEIGHTED
        error = impression_error(weights, new.log, error, unknown, weighted=weighted)
        draws = new.value - old.value + error * normal_draws(new.sample)
    interval = percentile_interval(draws, level)
    sides = (("new", new), ("old", old))
    return Comparison(
        new=new,
        old=old,
        difference=new.value - old.value,
        standard_error=error,
        interval=interval,
        over_queries=interval if few_queries(new.log) else over_queries,
        share_of_wins=share_of_wins(draws),
        lower_bound=difference_bound(new, old),
        verdict=worst(new.verdict, old.verdict),
        reasons=tuple(f"{name}: {reason}" for name, side in sides if side.diagnostics for reason in side.reasons),
    )


# --- bounds of a difference -------------------------------------------------------------------------------------------


def difference_bound(new: Value, old: Value) -> float | None:
    """The lower bound of a difference, by what the two sides take as independent; None where there is none."""
    terms = difference_terms(new, old)
    if terms is None:
        return None
    if new.sample.independent == "queries":
        return bounds.betting(terms, new.sample.level)
    sums = impression_bound.difference_sums(new.weights, old.old_weights, new.log, most=most_clicks(new.log))
    return impression_bound.lower_bound(sums, new.sample.level)


def difference_interval(new: Value, old: Value, queries: NDArray[np.bool_], level: float) -> tuple[float, float]:
    """Bounds of a difference on both sides together, over some queries of the log alone; infinite where there is none.

    Shapes: queries [Q].
    """
    terms = difference_terms(new, old)
    if terms is None:
        return -np.inf, np.inf
    if new.sample.independent == "impressions":
        half = (1 + level) / 2
        return _lower(new.weights, old.old_weights, new.log, queries, half), -_lower(
            old.old_weights, new.weights, new.log, queries, half
        )
    inside = queries[new.log.impressions > 0]
    ceiling = np.inf if new.ceiling_terms is None else new.ceiling_terms.ceiling
    return bounds.interval(bounds.Terms(terms.values[inside], terms.sizes[inside], terms.floor, ceiling), level)


def _lower(ahead: Floats, behind: Floats, log: Feedback, queries: NDArray[np.bool_], level: float) -> float:
    sums = impression_bound.difference_sums(ahead, behind, log, most=most_clicks(log), queries=queries)
    return impression_bound.lower_bound(sums, level)


def difference_terms(new: Value, old: Value) -> bounds.Terms | None:
    """The terms of a bound of the difference, paired by query; None where the old side has none that may be subtracted."""
    if old.ceiling_terms is None:
        return None
    ours, theirs = (Estimate(terms.values, terms.sizes) for terms in (new.terms, old.ceiling_terms))
    return bounds.difference_terms(ours, theirs, floor=old.ceiling_terms.ceiling)


def ceiling_terms(rho: Floats, rho_0: Floats, log: Feedback, K: int) -> bounds.Terms | None:
    """The IPS terms of a policy and the most that one impression can give it: the K largest weights of a query, of what it saw.

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


# --- for whoever acts on it -------------------------------------------------------------------------------------------


def excess_exposure(found: Diagnostics | None) -> float:
    """Weighted exposure over what it should be where that is surely above 1; 1 elsewhere."""
    if found is None or not found.balance - 1 > 3 * found.balance_error:
        return 1.0
    return found.balance


def sure_terms(new: Value, old: Value, most: float | None = None) -> bounds.Terms | None:
    """The paired terms of a difference, query by query; None where the old side has none that may be subtracted.

    `most` clicks that an impression can get, if it is known. Of production a click is worth one, of another policy its weight.
    """
    terms = difference_terms(new, old)
    if terms is None:
        return None
    is_production = old.verdict == Verdict.OBSERVED
    limit = most if is_production and most is not None else np.inf
    corrected = terms.values - new.terms.values * (1 - 1 / excess_exposure(new.diagnostics))
    return bounds.Terms(corrected, terms.sizes, min(terms.floor, limit))


def sure_sums(new: Value, old: Value, most: float | None = None) -> ImpressionSums | None:
    """The same over single impressions."""
    if old.ceiling_terms is None:
        return None
    weights = new.weights / excess_exposure(new.diagnostics)
    limit = min(most or np.inf, most_clicks(new.log))
    return impression_bound.difference_sums(weights, old.old_weights, new.log, most=limit)


def sure_difference(new: Value, old: Value, *, level: float) -> float | None:
    """The lower bound of a difference by what the two sides take as independent; None where there is none."""
    if new.sample.independent == "impressions":
        sums = sure_sums(new, old)
        return None if sums is None else impression_bound.lower_bound(sums, level)
    terms = sure_terms(new, old)
    return None if terms is None else bounds.betting(terms, level)


# --- by how often a query came ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FrequencyGroup:
    """Queries that came `least` to `most` times: both sides in clicks per impression, their difference with a 95% interval.

    A policy that knows much of frequent queries may harm those that came once or twice, and the mean over all impressions
    hides it. `queries` and `impressions` are those of the part that values it. An interval from fewer than 30 queries is too
    narrow.
    """

    least: int
    most: int | None
    queries: int
    impressions: float
    new: float
    old: float
    difference: float
    interval: tuple[float, float]


def by_frequency(new: Estimate, old: Estimate, times: Floats) -> tuple[FrequencyGroup, ...]:
    """The groups that have queries: (sum new - sum old) / sum n, queries independent (delta method).

    Shapes: estimates [Q], both per impression of the same part; times [Q], impressions of each query in the whole log.
    """
    found = []
    for least, most in FREQUENCIES:
        inside = (times >= least) & (times <= (np.inf if most is None else most)) & (old.denominator > 0)
        n = old.denominator[inside]
        if not n.sum() > 0:
            continue
        gap = Estimate(new.numerator[inside] - old.numerator[inside], n)
        group = FrequencyGroup(
            least=least,
            most=most,
            queries=len(n),
            impressions=float(n.sum()),
            new=Estimate(new.numerator[inside], n).value,
            old=Estimate(old.numerator[inside], n).value,
            difference=gap.value,
            interval=gap.interval(Z95),
        )
        found.append(group)
    return tuple(found)
