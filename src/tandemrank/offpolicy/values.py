"""What a pair is worth and how two compare: the typed results, made from arrays alone.

Everything here is about clicks per impression over a log's queries, each as often as it came. An interval takes queries as a
sample: it covers what other queries of the same kind would have given; where they are few, what other impressions would
have. A bound is by default about the log's own impressions (`impression_bound`), and by wish about queries as a sample, too
(`bounds`).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tandemrank.errors import InputError
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.variety import drawn_anew
from tandemrank.offpolicy import bounds, impression_bound
from tandemrank.offpolicy.bounds import Bound, Independent
from tandemrank.offpolicy.diagnostics import Diagnostics
from tandemrank.offpolicy.estimate import Estimate
from tandemrank.offpolicy.estimators import by_query, ips, safe_ratio, sums_by
from tandemrank.offpolicy.identification import Identified
from tandemrank.offpolicy.uncertainty import FEW_QUERIES, bootstrap, hull, impression_noise, share_of_wins
from tandemrank.offpolicy.verdicts import Verdict, worst

Floats = NDArray[np.float64]
Production = Literal["production"]
PRODUCTION: Production = "production"  # the policy that drew the log


@dataclass(frozen=True)
class Sample:
    """Which queries the bootstrap draws: values of one sample can be compared, draw by draw.

    `queries` and `impressions` of the log, `replicates` and `seed` of the draws, the `level` of interval and bound, and what a
    bound takes as `independent`.
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

    `interval`: by the bootstrap over queries; where they are fewer than 30 it is over impressions of these queries
    (`uncertainty.impression_noise`). `lower_bound`: the value exceeds it with the same probability however short the
    log is, by the `bound_method` on the IPS terms, whatever the estimator. `verdict`: may it be believed, with `reasons`.
    `estimator` and `propensity`: the kinds that were used, and why. `diagnostics`: what the value rests on; None for
    production, which needs neither. `estimate`: query by query. `terms` of the lower bound; `ceiling_terms`: of the same
    without a clip and with a ceiling, which is what a difference to this side rests on; None where there are none. `weights`:
    rho / rho_0 of the rows of the `log`, and `old_weights` without a clip. `identified`: the worst and the best case of what
    the log never showed.
    `model_draws`: the same draws for the reward model's answer alone, where the propensities are in doubt: the interval then
    holds both, since either may be right. None elsewhere.
    Shapes: draws, model_draws [replicates], the values of other samples of queries; weights, old_weights [P].
    """

    value: float
    standard_error: float
    interval: tuple[float, float]
    lower_bound: float
    bound_method: bounds.Name
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
    sample: Sample
    log: Feedback
    identified: Identified | None = None
    model_draws: Floats | None = None
    estimator: str | None = None

    @property
    def all_draws(self) -> tuple[Floats, ...]:
        """The draws of every answer that may be right.  Shapes: [replicates] each."""
        return (self.draws,) if self.model_draws is None else (self.draws, self.model_draws)

    def summary(self) -> dict[str, object]:
        """All but the arrays, as plain names and values."""
        names = ("value", "standard_error", "interval", "lower_bound", "bound_method", "verdict", "reasons")
        own = {name: getattr(self, name) for name in (*names, "propensity", "propensity_reason")}
        own |= {"estimator": self.estimator, "bound_over": self.sample.independent}
        cases = (
            {} if self.identified is None else {"worst_case": self.identified.worst, "best_case": self.identified.best}
        )
        return own | cases | ({} if self.diagnostics is None else asdict(self.diagnostics))


@dataclass(frozen=True)
class Comparison:
    """Two sides on one log, on the same draws of queries: what they have in common cancels.

    `difference`: new less old, in clicks per impression, with its paired `interval`; `share_of_wins`: of the draws, where new
    is ahead; `lower_bound`: the true difference exceeds it with the probability of the level however short the log is, by the
    `bound_method` on the paired IPS terms; None where the old side has no terms that may be subtracted. `verdict`: the worse
    of the two sides', with the reasons of both.
    """

    new: Value
    old: Value
    difference: float
    standard_error: float
    interval: tuple[float, float]
    share_of_wins: float
    lower_bound: float | None
    bound_method: bounds.Name | None
    verdict: Verdict
    reasons: tuple[str, ...]

    def summary(self) -> dict[str, object]:
        """All but the arrays, as plain names and values."""
        names = (
            "difference",
            "standard_error",
            "interval",
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

    `ceiling_terms` and the weights: see `Value`. `model`: the reward model's answer, where the propensities are in doubt.
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
    model: Estimate | None = None
    estimator: str | None = None


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
    return "impressions" if anew and impression_bound.counts_impressions(log) else "queries"


def with_uncertainty(
    sides: Sequence[Judged],
    log: Feedback,
    *,
    replicates: int,
    level: float,
    seed: int,
    independent: Independent | None = None,
) -> tuple[Value, ...]:
    """The values of several sides on one log, with intervals and bounds, all by the same draws of queries."""
    logged = log.impressions > 0
    sample = Sample(int(logged.sum()), log.N, replicates, level, seed, unit(independent, log, sides))
    models = [side.model for side in sides if side.model is not None]
    draws = bootstrap([*(side.estimate for side in sides), *models], logged, replicates=replicates, seed=seed).T
    few = few_queries(log)
    if few:
        weights = [side.weights for side in sides]
        noise = impression_noise(weights, log, most=most_clicks(log), replicates=replicates, seed=seed)
        draws[: len(sides)] = (np.array([side.estimate.value for side in sides]) + noise).T
    of_models = iter(draws[len(sides) :])
    return tuple(
        _value(side, drawn, None if side.model is None else next(of_models), sample, log, few=few)
        for side, drawn in zip(sides, draws[: len(sides)], strict=True)
    )


def few_queries(log: Feedback) -> bool:
    """Whether queries are too few to be a sample of others, so that intervals are over impressions."""
    return 0 < int((log.impressions > 0).sum()) < FEW_QUERIES and impression_bound.counts_impressions(log)


def _value(
    side: Judged, draws: Floats, model_draws: Floats | None, sample: Sample, log: Feedback, *, few: bool
) -> Value:
    """A side with its interval and its bound.  Shapes: draws, model_draws [replicates]."""
    if sample.independent == "impressions":
        sums = impression_bound.value_sums(side.weights, log, most=most_clicks(log))
        bound = Bound(impression_bound.lower_bound(sums, sample.level), "betting", sample.level, over="impressions")
    else:
        bound = bounds.best(side.terms, sample.level)
    every = [draws] if model_draws is None else [draws, model_draws]
    return Value(
        side.estimate.value, float(draws.std()) if few else side.estimate.standard_error, hull(every, sample.level),
        max(0.0, bound.value), bound.name, side.verdict, side.reasons, side.propensity, side.propensity_reason,
        side.diagnostics, side.estimate, side.terms, side.ceiling_terms, side.weights, side.old_weights, draws, sample,
        log, side.identified, model_draws, side.estimator,
    )  # fmt: skip


def compare_values(new: Value, old: Value) -> Comparison:
    """The difference of two values of one sample, query by query and draw by draw; either may be production's."""
    if new.sample != old.sample:
        raise InputError(
            f"both values must come from the same log and the same draws; {new.sample} and {old.sample} came. Ask for both "
            "with the same log, seed, replicates and level."
        )
    draws = new.draws - old.draws
    sides = (("new", new), ("old", old))
    bound = difference_bound(new, old)
    return Comparison(
        new,
        old,
        new.value - old.value,
        float(draws.std())
        if few_queries(new.log)
        else float(np.sqrt(np.square(new.estimate.influence - old.estimate.influence).sum())),
        hull([a - b for a in new.all_draws for b in old.all_draws], new.sample.level),
        share_of_wins(draws),
        None if bound is None else bound.value,
        None if bound is None else bound.name,
        worst(new.verdict, old.verdict),
        tuple(f"{name}: {reason}" for name, side in sides if side.diagnostics for reason in side.reasons),
    )


def difference_bound(new: Value, old: Value) -> Bound | None:
    """The lower bound of a difference, by what the two sides take as independent; None where there is none."""
    terms = difference_terms(new, old)
    if terms is None or new.sample.independent == "queries":
        return None if terms is None else bounds.best(terms, new.sample.level)
    sums = impression_bound.difference_sums(new.weights, old.old_weights, new.log, most=most_clicks(new.log))
    return Bound(impression_bound.lower_bound(sums, new.sample.level), "betting", new.sample.level, over="impressions")


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
    found = bounds.interval(bounds.Terms(terms.values[inside], terms.sizes[inside], terms.floor, ceiling), level)
    return found[0].value, found[1].value


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
