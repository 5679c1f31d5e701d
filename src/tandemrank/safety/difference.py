"""What a log says at least of a difference, for a gate: the bound, corrected where the weights find too much, and how much
longer a log would be needed for a yes."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tandemrank.logs.feedback import Feedback
from tandemrank.offpolicy import bounds, impression_bound, values
from tandemrank.offpolicy.diagnostics import Diagnostics
from tandemrank.offpolicy.values import PRODUCTION, Value

Independent = Literal["queries", "impressions"]
LONGER = 2.0 ** np.arange(0, 31, 0.25)  # logs that are tried, as multiples of this one


@dataclass(frozen=True)
class Rules:
    """What is asked: the threshold, the level of all pairs together, how many they are, what is assumed, and against whom.

    `varies`: the log shows different lists to a query. `most_clicks` of an impression, if it is known.
    """

    at_least: float
    level: float
    pairs: int
    independent: Independent
    most_clicks: float | None
    risk: float
    against: str
    varies: bool

    @property
    def each(self) -> float:
        """The level of each pair's bound: all of them then hold together."""
        return 1 - (1 - self.level) / self.pairs


@dataclass(frozen=True)
class AtLeast:
    """The bound of a difference, None where there is none, and about how many impressions would lift it over the threshold."""

    bound: float | None
    log_needed: float


def at_least(new: Value, old: Value, log: Feedback, rules: Rules) -> AtLeast:
    """The bound by what is independent, with the new side divided by what its weights find too much."""
    terms = values.difference_terms(new, old)
    if terms is None:
        return AtLeast(None, float("inf"))
    excess = excess_exposure(new.diagnostics)
    if rules.independent == "impressions":
        most = min(rules.most_clicks or np.inf, float(log.rank.max(initial=0)) + 1)
        return _by_impressions(
            impression_bound.difference_sums(new.weights / excess, old.old_weights, log, most=most), rules
        )
    # Of production a click is worth one; of another pair as much as its weight.
    limit = rules.most_clicks if rules.against == PRODUCTION and rules.most_clicks is not None else np.inf
    corrected = terms.values - new.terms.values * (1 - 1 / excess)
    found = bounds.Terms(corrected, terms.sizes, min(terms.floor, limit))
    return AtLeast(bounds.best(found, rules.each).value, log_needed(found, rules.at_least, rules.each))


def excess_exposure(found: Diagnostics | None) -> float:
    """Weighted exposure over what it should be where that is surely above 1; 1 elsewhere."""
    if found is None or not found.balance - 1 > 3 * found.balance_error:
        return 1.0
    return found.balance


def log_needed(terms: bounds.Terms, threshold: float, level: float) -> float:
    """About how many impressions, of as many more queries, until the bound exceeds the threshold, if the terms stay like this.

    By terms (X_q - a n_q) / max n, which is what betting multiplies.
    """
    if not len(terms) or not np.isfinite(terms.floor):
        return float("inf")
    own = (terms.values - threshold * terms.sizes) / terms.sizes.max()
    found = bounds.terms_needed(
        threshold + float(own.mean()), float(own.std()), null=threshold, floor=terms.floor, level=level
    )  # fmt: skip
    return found / len(terms) * float(terms.sizes.sum())


def _by_impressions(sums: impression_bound.Sums, rules: Rules) -> AtLeast:
    bound, needed = impression_bound.lower_bound(sums, rules.each), float("inf")
    if sums.mean > rules.at_least:
        for more in LONGER:
            longer = impression_bound.Sums(more * sums.total, more * sums.squares, more * sums.N, sums.floor)
            if impression_bound.lower_bound(longer, rules.each) > rules.at_least:
                needed = longer.N
                break
    return AtLeast(bound, needed)
