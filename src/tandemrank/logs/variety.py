"""Whether the lists of a query vary: only then does a log say anything of items that were not shown.

    common(q) = sum_d c_d (c_d - 1) / (n (n - 1) L)      c_d of the n lists of q show d; L items in a list

is the share of its items that a list has in common with another list of the same query, in the mean over two lists, without
bias however few they are. Two random lists of D items share L / D of theirs: that much is chance and does not count.
"""

import numpy as np

from tandemrank.logs.feedback import Feedback, always_the_same

FIXED_QUERIES = 0.9  # of the queries that came twice: if so many always saw one list, the logger does not vary
NOTHING_ELSE = 0.99  # of a list's items: two lists that share so many never leave them, but for an accident
FIXED_ITEMS = 0.8  # of a list's items, beyond chance, that another list of its query has too
# Lists per query: a policy fitted to fewer knows too little of what each query is shown, or nearly nothing.
CARE_LISTS, REFUSE_LISTS = 50, 10


def fixed_queries(feedback: Feedback) -> float | None:
    """The share of queries with one and the same list, of those that came twice or more; None where none did."""
    repeated = feedback.impressions / feedback.heaviest >= 2
    return float(always_the_same(feedback)[repeated].mean()) if repeated.any() else None


def items_in_common(feedback: Feedback) -> float | None:
    """The mean of `common` over the impressions of queries that came twice or more; None where none did."""
    n = feedback.impressions / feedback.heaviest
    new = (np.diff(feedback.query, prepend=-1) != 0) | (np.diff(feedback.item, prepend=-1) != 0)
    if not len(new) or not (n >= 2).any():
        return None
    times = np.add.reduceat(feedback.shown, np.flatnonzero(new)) / feedback.heaviest
    again = np.bincount(feedback.query[new], times * np.maximum(times - 1, 0), feedback.Q)
    shown = np.bincount(feedback.query, feedback.shown / feedback.heaviest, feedback.Q)
    repeated = (n >= 2) & (shown > 0)
    if not repeated.any():
        return None
    common = again[repeated] / ((n - 1) * shown)[repeated]
    return float(min(common @ n[repeated] / n[repeated].sum(), 1.0))


def drawn_anew(feedback: Feedback) -> bool:
    """Whether each list was drawn for its impression, as far as the log tells.

    Its lists vary; or they have little to vary in, as those of a sharp policy, but every one has a random key of its own and
    not nearly all queries always saw one list.
    """
    if hardly_varies(feedback) is None:
        return True
    return feedback.anew and (fixed_queries(feedback) or 0.0) < FIXED_QUERIES


def hardly_varies(feedback: Feedback) -> str | None:
    """Why a log says nothing of items that were not shown, in words; None where its lists vary, or nobody can see it."""
    fixed, common = fixed_queries(feedback), items_in_common(feedback)
    if fixed is None or common is None:
        return None
    if fixed >= FIXED_QUERIES:
        return f"{fixed:.0%} of the queries always saw the same list"
    length = float(feedback.shown.sum() / feedback.N)
    chance = min(length / len(np.unique(feedback.item)), 1.0)
    if common - chance >= FIXED_ITEMS * (1 - chance) and chance < 1:
        return f"two lists of a query have {common:.0%} of their items in common"
    return None


def shows_nothing_else(feedback: Feedback) -> str | None:
    """Why not even known propensities say anything of items that were not shown: nearly no list ever left its items.

    Lists that hardly vary may still leave theirs now and then, and with the chance of it that is a trial. None where they do,
    or where nobody can see it.
    """
    common = items_in_common(feedback)
    if (fixed := hardly_varies(feedback)) is None or common is None:
        return None
    return fixed if common >= NOTHING_ELSE or (fixed_queries(feedback) or 0.0) >= FIXED_QUERIES else None
