"""What is asked of a difference, what the log says at least of it, and how much longer a log would be needed for a yes."""

from dataclasses import dataclass

import numpy as np

from tandemrank.offpolicy import bounds, impression_bound
from tandemrank.offpolicy.comparison import sure_sums, sure_terms
from tandemrank.offpolicy.values import Value

LONGER = 2.0 ** np.arange(0, 31, 0.25)  # logs that are tried, as multiples of this one


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What is asked: the threshold, the level of all policies together, how many they are, and against whom.

    `varies`: the log shows different lists to a query. `most_clicks` of an impression, if it is known.
    """

    at_least: float
    level: float
    policies: int
    most_clicks: float | None
    risk: float
    against: str
    varies: bool

    @property
    def each(self) -> float:
        """The level of each policy's bound: all of them then hold together."""
        return 1 - (1 - self.level) / self.policies


@dataclass(frozen=True)
class AtLeast:
    """The bound of a difference, None where there is none, and about how many impressions would lift it over the threshold."""

    bound: float | None
    log_needed: float


def at_least(new: Value, old: Value, rules: Rules) -> AtLeast:
    """The bound by what the two sides take as independent."""
    if new.sample.independent == "impressions":
        sums = sure_sums(new, old, rules.most_clicks)
        return AtLeast(None, float("inf")) if sums is None else _by_impressions(sums, rules)
    terms = sure_terms(new, old, rules.most_clicks)
    if terms is None:
        return AtLeast(None, float("inf"))
    return AtLeast(bounds.betting(terms, rules.each), log_needed(terms, rules.at_least, rules.each))


def log_needed(terms: bounds.Terms, threshold: float, level: float) -> float:
    """About how many impressions, of as many more queries, until the bound exceeds the threshold, if the terms stay like this.

    By terms (X_q - a n_q) / max n, which is what betting multiplies.
    """
    if not len(terms) or not np.isfinite(terms.floor):
        return float("inf")
    own = (terms.values - threshold * terms.sizes) / terms.sizes.max()
    mean, sd = threshold + float(own.mean()), float(own.std())
    found = bounds.terms_needed(mean, sd, null=threshold, floor=terms.floor, level=level)
    return found / len(terms) * float(terms.sizes.sum())


def _by_impressions(sums: impression_bound.ImpressionSums, rules: Rules) -> AtLeast:
    bound, needed = impression_bound.lower_bound(sums, rules.each), float("inf")
    if sums.mean > rules.at_least:
        for more in LONGER:
            if impression_bound.lower_bound(sums.times(more), rules.each) > rules.at_least:
                needed = more * sums.N
                break
    return AtLeast(bound, needed)
