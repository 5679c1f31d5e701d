"""What a log is, whether the lists of a query vary, and which questions it can answer, from its sums.

Only where lists vary does a log say anything of items that were not shown.

    common(q) = sum_d c_d (c_d - 1) / (n (n - 1) L)      c_d of the n lists of q show d; L items in a list

is the share of its items that a list has in common with another list of the same query, in the mean over two lists, without
bias however few they are. Two random lists of D items share L / D of theirs: that much is chance and does not count.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tandemrank.logs.feedback import Feedback
from tandemrank.logs.pairs import Dependence, compared, contradiction, unconnected

FIXED_QUERIES = 0.9  # of the queries that came twice: if so many always saw one list, the logger does not vary
NOTHING_ELSE = 0.99  # of a list's items: two lists that share so many never leave them, but for an accident
FIXED_ITEMS = 0.8  # of a list's items, beyond chance, that another list of its query has too
# Lists per query: a policy fitted to fewer knows too little of what each query is shown, or nearly nothing.
CARE_LISTS, REFUSE_LISTS = 50, 10
ENOUGH_CLICKS = 100  # to train two stages by: with fewer, chance decides which items were clicked
FREQUENT = 10  # impressions of a query from which on frequencies begin to say something about the logger


# --- do lists vary? ---------------------------------------------------------------------------------------------------


def fixed_queries(feedback: Feedback) -> float | None:
    """The share of queries with one and the same list, of those that came twice or more; None where none did.

    A list was always the same where it showed each item at each rank as often as there are impressions.
    """
    repeated = feedback.impressions / feedback.heaviest >= 2
    key = (feedback.query, feedback.item, feedback.rank)
    first = np.flatnonzero(np.any([np.diff(x, prepend=-1) != 0 for x in key], axis=0))  # rows may be split (`details`)
    shown = np.add.reduceat(feedback.shown, first) if len(first) else feedback.shown
    varied = shown < feedback.impressions[feedback.query[first]]
    always = np.bincount(feedback.query[first][varied], minlength=feedback.Q) == 0
    return float(always[repeated].mean()) if repeated.any() else None


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


# --- what a log is, and can answer ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PolicyCount:
    """How many impressions the column `policy` names a policy for; "" where a file has no such column."""

    policy: str
    impressions: int


@dataclass(frozen=True)
class Description:
    """What a log is. Shares and means are None where there is nothing to compute them from.

    A pair is a query and an item that was shown for it; `pairs_shown_once` is a share of them. Of the queries with two
    impressions or more, `repeated_queries`: `queries_with_a_single_list` is the share whose lists were all the same, and
    `items_in_common` the share of its items that a list has in common with another of its query. `deterministic`: lists
    hardly vary (`hardly_varies`). Ranges are the least and the greatest.
    """

    impressions: int
    queries: int
    items: int
    clicks: int
    shown_by_rank: tuple[int, ...]
    click_rate_by_rank: tuple[float | None, ...]
    pairs: int
    pairs_shown_once: float | None
    repeated_queries: int
    queries_with_a_single_list: float | None
    items_in_common: float | None
    deterministic: bool | None
    propensity_range: tuple[float, float] | None
    weight_range: tuple[float, float] | None
    policies: tuple[PolicyCount, ...]


@dataclass(frozen=True)
class Answer:
    """A question, whether this log can answer it, and why."""

    question: str
    possible: bool
    why: str


Ranges = Mapping[str, tuple[float, float]]  # the least and the greatest weight and propensity, where there are some


def describe_log(feedback: Feedback, ranges: Ranges, policies: tuple[PolicyCount, ...]) -> Description:
    """What the log is; each impression counts once, so `feedback` has no weights."""
    shown = np.bincount(feedback.rank, feedback.shown)
    clicks = np.bincount(feedback.rank, feedback.clicks)
    new = (np.diff(feedback.query, prepend=-1) != 0) | (np.diff(feedback.item, prepend=-1) != 0)
    pair = np.add.reduceat(feedback.shown, np.flatnonzero(new)) if len(new) else np.zeros(0)
    repeated = feedback.impressions >= 2
    return Description(
        impressions=int(feedback.N),
        queries=int((feedback.impressions > 0).sum()),
        items=len(np.unique(feedback.item)),
        clicks=int(feedback.clicks.sum()),
        shown_by_rank=tuple(int(n) for n in shown),
        click_rate_by_rank=tuple(float(c / n) if n else None for c, n in zip(clicks, shown, strict=True)),
        pairs=len(pair),
        pairs_shown_once=float((pair == 1).mean()) if len(pair) else None,
        repeated_queries=int(repeated.sum()),
        queries_with_a_single_list=fixed_queries(feedback),
        items_in_common=items_in_common(feedback),
        deterministic=hardly_varies(feedback) is not None if repeated.any() else None,
        propensity_range=ranges.get("propensity"),
        weight_range=ranges.get("weight"),
        policies=policies,
    )


def answers(feedback: Feedback, log: Description, clicks: Dependence | None = None) -> tuple[Answer, ...]:
    """Which questions the log can answer; `clicks`: whether those of a list depend on each other."""
    varied, has = log.deterministic is False, log.propensity_range is not None
    stuck = shows_nothing_else(feedback)  # why nothing is known of other items, if so
    seldom = bool(log.deterministic) and stuck is None
    lists = _lists(feedback, log, "little" if seldom else "nothing")
    logged = "the log has propensities" if has else "the log has no propensities"
    frequent = float(feedback.impressions[feedback.impressions >= FREQUENT].sum()) / max(feedback.N, 1)
    often = f"{frequent:.0%} of the impressions are of queries seen {FREQUENT} times or more"
    each = feedback.N / max(log.queries, 1)
    value = "value of another policy,"
    return (
        _training(log, bool(stuck if has else log.deterministic)),
        _curve(feedback, log),
        *([] if clicks is None else [Answer("clicks by rank alone", not clicks.stops, clicks.words)]),
        Answer(
            f"{value} logged propensities",
            has and stuck is None,
            f"{logged}, but {lists}" if has and not varied else logged,
        ),
        Answer(
            f"{value} frequencies",
            (varied or seldom) and frequent >= 0.5,
            often if varied else f"{often}; {lists}" if seldom else lists,
        ),
        Answer(
            f"{value} fitted propensities",
            varied and each >= REFUSE_LISTS,
            f"{lists}; {_enough(each)}" if varied else lists,
        ),
    )


def _lists(feedback: Feedback, log: Description, known: str) -> str:
    """Whether lists vary, in words; else how much is `known` of other items."""
    if log.deterministic:
        return f"{hardly_varies(feedback)}: {known} is known of other items"
    if log.queries_with_a_single_list is None:
        return "no query comes twice, so nobody can see whether its lists vary"
    return f"{1 - log.queries_with_a_single_list:.0%} of the queries seen twice or more had different lists"


def _training(log: Description, only_order: bool) -> Answer:
    """What there is to train on, and what it cannot teach."""
    enough = log.clicks >= ENOUGH_CLICKS
    lacks = "; only the order of what was shown can be learnt" if only_order else ""
    lacks = lacks if enough else f"; at least {ENOUGH_CLICKS} clicks are needed"
    return Answer("train both stages", enough, f"{log.clicks:,} clicks on {log.pairs:,} pairs{lacks}")


def _enough(each: float) -> str:
    """Whether a policy can be fitted to so many lists per query, in words."""
    found = f"{each:.3g} lists per query" if each < 100 else f"{each:,.0f} lists per query"
    if each < REFUSE_LISTS:
        return f"{found}, at least {REFUSE_LISTS} are needed"
    return found if each >= CARE_LISTS else f"{found}: with care, below {CARE_LISTS}"


def _curve(feedback: Feedback, log: Description) -> Answer:
    """Whether the examination curve can be had from the log."""
    K = len(log.shown_by_rank)
    pairs = compared(feedback, max(K, 1))
    apart = unconnected(pairs) if len(pairs.query) else list(range(2, K + 1))
    why = f"{len(pairs.query):,} pairs were shown at two ranks or more"
    if apart:
        more = f" and {len(apart) - 10} more" if len(apart) > 10 else ""
        why += f"; they do not connect rank 1 with {', '.join(map(str, apart[:10]))}{more}"
    if (found := contradiction(feedback, 1 / np.arange(1.0, max(K, 1) + 1))) is not None:
        why += f". They contradict 1/k, the default: {found.words}. Run `tandemrank examine`, and pass its curve"
    return Answer("examination curve", not apart and K > 1 and len(pairs.query) > 0, why)
