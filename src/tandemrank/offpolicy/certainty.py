"""What a log says at least of a difference, for whoever acts on it: the bound, with the new side divided by what its weights
find too much. The gate of `decisions` and that of careful training are this one."""

import numpy as np

from tandemrank.offpolicy import bounds, impression_bound, values
from tandemrank.offpolicy.diagnostics import Diagnostics
from tandemrank.offpolicy.values import Value
from tandemrank.offpolicy.verdicts import Verdict


def excess_exposure(found: Diagnostics | None) -> float:
    """Weighted exposure over what it should be where that is surely above 1; 1 elsewhere."""
    if found is None or not found.balance - 1 > 3 * found.balance_error:
        return 1.0
    return found.balance


def certain_terms(new: Value, old: Value, most_clicks: float | None = None) -> bounds.Terms | None:
    """The paired terms of a difference, query by query; None where the old side has none that may be subtracted.

    `most_clicks` that an impression can get, if it is known. Of production a click is worth one, of another pair its weight.
    """
    terms = values.difference_terms(new, old)
    if terms is None:
        return None
    is_production = old.verdict == Verdict.OBSERVED
    limit = most_clicks if is_production and most_clicks is not None else np.inf
    corrected = terms.values - new.terms.values * (1 - 1 / excess_exposure(new.diagnostics))
    return bounds.Terms(corrected, terms.sizes, min(terms.floor, limit))


def certain_sums(new: Value, old: Value, most_clicks: float | None = None) -> impression_bound.Sums | None:
    """The same over single impressions."""
    if old.ceiling_terms is None:
        return None
    most = min(most_clicks or np.inf, values.most_clicks(new.log))
    weights = new.weights / excess_exposure(new.diagnostics)
    return impression_bound.difference_sums(weights, old.old_weights, new.log, most=most)


def certain_difference(new: Value, old: Value, *, level: float) -> float | None:
    """The lower bound of a difference by what the two sides take as independent; None where there is none."""
    if new.sample.independent == "impressions":
        sums = certain_sums(new, old)
        return None if sums is None else impression_bound.lower_bound(sums, level)
    terms = certain_terms(new, old)
    return None if terms is None else bounds.betting(terms, level)
