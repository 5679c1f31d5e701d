"""How two values of one log compare: the paired difference, what it is at least, and for whom.

What acts on a difference (`decisions`, the gate of training) asks what it is *surely* at least: the bound, with the new side
divided by what its weights find too much.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.results import Result, within
from tandemrank._base.sparse import sums_by
from tandemrank.errors import InputError
from tandemrank.logs.feedback import Feedback
from tandemrank.offpolicy import bounds
from tandemrank.offpolicy.bounds import ImpressionSums, Terms
from tandemrank.offpolicy.diagnostics import Z95, Diagnostics
from tandemrank.offpolicy.estimators import Estimate, ips, safe_ratio
from tandemrank.offpolicy.uncertainty import misfit_variance, normal_interval
from tandemrank.offpolicy.values import (
    FIGURES,
    WEIGHTED,
    Value,
    few_queries,
    impression_error,
    most_clicks,
    over_impressions,
)
from tandemrank.offpolicy.verdicts import Verdict, worst

Floats = NDArray[np.float64]
FREQUENCIES = ((1, 2), (3, 9), (10, None))  # impressions of a query in the whole log, from and to


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Result):
    """Two sides on one log: what they have in common cancels.

    `difference`: new less old, in clicks per impression, with its paired `interval`, and that `over_queries`. `lower_bound`:
    the true difference exceeds it with the probability of the level however short the log is, by the paired IPS terms; None
    where the old side has no terms that may be subtracted. `verdict`: the worse of the two sides', with the reasons of both.
    `sides`: the new and the old one, where they are known.
    """

    has_lists = True

    new: Value
    old: Value
    difference: float
    standard_error: float
    interval: tuple[float, float]
    over_queries: tuple[float, float]
    lower_bound: float | None
    verdict: Verdict
    reasons: tuple[str, ...]
    sides: tuple[Any, Any] = field(default=(None, None), compare=False)

    def _lines(self) -> list[str]:
        said = f"{self.verdict}: {'; '.join(self.reasons)}"
        if self.verdict == Verdict.REFUSE:
            return [said]
        bound = "no bound" if self.lower_bound is None else f"at least {self.lower_bound:+.3f}"
        return [
            f"{self.difference:+.3f} {self.new.unit} {within(*self.interval, '+')}, {self.new.sample.level:.0%}",
            f"new {self.new.value:.3f}, old {self.old.value:.3f}; {bound}",
            said,
        ]

    def _rows(self) -> list[dict[str, Any]]:
        found = self.to_dict()
        sides = (("new", found["new"], "value"), ("old", found["old"], "value"), ("difference", found, "difference"))
        return [
            {
                "side": side, "value": x[name], **dict(zip(("low", "high"), x["interval"] or (None, None), strict=True)),
                "lower_bound": x["lower_bound"], "verdict": x["verdict"],
            }
            for side, x, name in sides
        ]  # fmt: skip

    def summary(self) -> dict[str, object]:
        """All but the arrays, as plain names and values."""
        names = (
            "difference",
            "standard_error",
            "interval",
            "over_queries",
            "lower_bound",
            "verdict",
            "reasons",
        )
        found: dict[str, object] = {name: getattr(self, name) for name in names}
        if self.verdict == Verdict.REFUSE:
            found |= dict.fromkeys(("difference", *FIGURES[1:]))
        sides = {"new": self.new.summary(), "old": self.old.summary()}
        return found | {"bound_over": self.new.sample.independent} | sides


def compare_values(new: Value, old: Value) -> Comparison:
    """The difference of two values of one sample, query by query; either may be production's."""
    if new.sample != old.sample:
        raise InputError(
            f"both values must come from the same log; got {new.sample} and {old.sample}. Ask for both with the same log and "
            "level."
        )
    level, difference = new.sample.level, new.value - old.value
    error = float(np.sqrt(np.square(new.estimate.influence - old.estimate.influence).sum()))
    over_queries = normal_interval(difference, error, level)
    if over_impressions(new):
        weights = new.weights - old.weights
        # Of a policy and itself the noise of the races is the same.
        unknown = new.exposure_variance + old.exposure_variance if weights.any() else 0.0
        unknown += misfit_variance(new.misfit, old.misfit)
        weighted = new.estimator in WEIGHTED and old.estimator in WEIGHTED
        error = impression_error(weights, new.log, error, unknown, weighted=weighted)
    interval = normal_interval(difference, error, level)
    sure = rests_on(new, old)
    sides = (("new", new), ("old", old))
    return Comparison(
        new=new,
        old=old,
        difference=difference,
        standard_error=error,
        interval=interval,
        over_queries=interval if few_queries(new.log) else over_queries,
        lower_bound=None if sure is None else min(sure.lower_bound(level), difference),
        verdict=worst(new.verdict, old.verdict),
        reasons=tuple(f"{name}: {reason}" for name, side in sides if side.diagnostics for reason in side.reasons),
    )


# --- bounds of a difference -------------------------------------------------------------------------------------------


def rests_on(
    new: Value, old: Value, *, excess: float = 1.0, most: float | None = None, queries: NDArray[np.bool_] | None = None
) -> Terms | ImpressionSums | None:
    """What a bound of the difference rests on, by what the two sides take as independent; None where the old side has no terms
    that may be subtracted.

    The new side is divided by `excess`. `most` clicks that an impression can get, if it is known: of production a click is
    worth one, of another policy its weight. `queries`: those that count, by default all.  Shapes: queries [Q].
    """
    theirs, excess = old.ceiling_terms, excess * new.excess
    if theirs is None:
        return None
    if new.reward is not None and old.reward is not None:
        return None if most is None else _rests_on_reward(new, old, excess, most, queries)
    if new.sample.independent == "impressions":
        limit = min(most or np.inf, most_clicks(new.log))
        return bounds.difference_sums(new.weights / excess, old.old_weights, new.log, most=limit, queries=queries)
    inside = slice(None) if queries is None else queries[new.log.impressions > 0]
    limit = most if most is not None and old.verdict == Verdict.OBSERVED else np.inf
    ceiling = np.inf if new.ceiling_terms is None else new.ceiling_terms.ceiling
    values = new.terms.values / excess - theirs.values
    return Terms(values[inside], theirs.sizes[inside], min(theirs.ceiling, limit), ceiling)


def _rests_on_reward(
    new: Value, old: Value, excess: float, most: float, queries: NDArray[np.bool_] | None
) -> Terms | ImpressionSums:
    """The same of a reward, of which an impression gets `most`: what is not known to be limited has no bound from below."""
    assert new.reward is not None
    assert old.reward is not None
    floor = most * old.reward.largest
    if new.sample.independent == "impressions":
        found = bounds.difference_sums(
            new.weights / excess, old.old_weights, new.log, most=most_clicks(new.log), queries=queries
        )
        return replace(found, floor=floor, scale=new.reward.scale)
    inside = slice(None) if queries is None else queries[new.log.impressions > 0]
    values = new.terms.values / excess - (old.ceiling_terms or old.terms).values
    return Terms(values[inside], new.terms.sizes[inside], floor)


def difference_interval(new: Value, old: Value, queries: NDArray[np.bool_], level: float) -> tuple[float, float]:
    """Bounds of a difference on both sides together, over some queries of the log alone; infinite where there is none.

    Shapes: queries [Q].
    """
    found, half = rests_on(new, old, queries=queries), (1 + level) / 2
    if found is None:
        return -np.inf, np.inf
    if isinstance(found, Terms):
        return found.lower_bound(half), -found.mirrored().lower_bound(half)
    back = bounds.difference_sums(old.old_weights, new.weights, new.log, most=most_clicks(new.log), queries=queries)
    return found.lower_bound(half), -back.lower_bound(half)


def ceiling_terms(rho: Floats, rho_0: Floats, log: Feedback, K: int) -> Terms | None:
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
    return Terms(terms.numerator, terms.denominator, 0.0, float(ceiling))


# --- for whoever acts on it -------------------------------------------------------------------------------------------


def excess_exposure(found: Diagnostics | None) -> float:
    """Weighted exposure over what it should be where that is surely above 1; 1 elsewhere."""
    if found is None or not found.balance - 1 > 3 * found.balance_error:
        return 1.0
    return found.balance


def surely(new: Value, old: Value, most: float | None = None) -> Terms | ImpressionSums | None:
    """What a bound of the difference rests on, with the new side divided by what its weights find too much."""
    return rests_on(new, old, excess=excess_exposure(new.diagnostics), most=most)


def sure_difference(new: Value, old: Value, *, level: float) -> float | None:
    """What the difference is surely at least; None where there is no bound."""
    found = surely(new, old)
    return None if found is None else min(found.lower_bound(level), new.value - old.value)


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
