"""What a log is, and which questions it can answer, from its sums."""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank.logs.checks import impressions_of
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import Shown
from tandemrank.logs.pairs import compared, contradiction, unconnected
from tandemrank.logs.variety import (
    CARE_LISTS,
    REFUSE_LISTS,
    fixed_queries,
    hardly_varies,
    items_in_common,
    shows_nothing_else,
)

ENOUGH_CLICKS = 100  # to train two stages by: with fewer, chance decides which items were clicked
FREQUENT = 10  # impressions of a query from which on frequencies begin to say something about the logger


@dataclass(frozen=True)
class PolicyCount:
    """How many impressions the column `policy` names a policy for; "" where a file has no such column."""

    policy: str
    impressions: int


@dataclass(frozen=True)
class Description:
    """What a log is. Shares and means are None where there is nothing to compute them from.

    A pair is a query and an item that was shown for it; `pairs_shown_once` is a share of them. Of the queries with two
    impressions or more, `repeated_queries`: `queries_with_a_single_list` is the share whose lists were all the same,
    `items_in_common` the share of its items that a list has in common with another of its query, and
    `effective_items_at_rank_1` the mean of the exponential of the entropy of what was shown first. `deterministic`: lists
    hardly vary (`variety`). Ranges are the least and the greatest.
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
    effective_items_at_rank_1: float | None
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


@dataclass
class Columns:
    """What sums do not keep, counted while a log goes by: ranges of weights and propensities, impressions per policy."""

    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    policies: Counter[str] = field(default_factory=Counter)

    def add(self, frame: pl.DataFrame, shown: Shown) -> None:
        """Counts the rows of a batch; `shown` are the same impressions."""
        for name, values in (("weight", shown.weight), ("propensity", shown.propensity)):
            if values is not None and len(values):
                low, high = self.ranges.get(name, (np.inf, -np.inf))
                self.ranges[name] = min(low, float(values.min())), max(high, float(values.max()))
        if "policy" in frame.columns:
            first = np.flatnonzero(np.diff(impressions_of(frame), prepend=-1))
            names = frame["policy"].gather(first).cast(pl.String)
            self.policies.update(dict(names.value_counts().iter_rows()))
        else:
            self.policies[""] += len(shown.query)


def describe_log(feedback: Feedback, columns: Columns) -> Description:
    """What the log is; each impression counts once, so `feedback` has no weights."""
    shown = np.bincount(feedback.rank, feedback.shown)
    clicks = np.bincount(feedback.rank, feedback.clicks)
    new = (np.diff(feedback.query, prepend=-1) != 0) | (np.diff(feedback.item, prepend=-1) != 0)
    pair = np.add.reduceat(feedback.shown, np.flatnonzero(new)) if len(new) else np.zeros(0)
    repeated = feedback.impressions >= 2
    numbers = _effective_items(feedback)[repeated]
    policies = tuple(
        PolicyCount(name, n) for name, n in columns.policies.most_common() if set(columns.policies) != {""}
    )
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
        effective_items_at_rank_1=float(numbers[numbers > 0].mean()) if (numbers > 0).any() else None,
        deterministic=hardly_varies(feedback) is not None if repeated.any() else None,
        propensity_range=columns.ranges.get("propensity"),
        weight_range=columns.ranges.get("weight"),
        policies=policies,
    )


def _effective_items(feedback: Feedback) -> NDArray[np.float64]:
    """The effective number of items at rank 1, exp(-sum p log p); 0 for a query without one. Shapes: -> [Q]."""
    top = feedback.rank == 0
    query, n = feedback.query[top], feedback.shown[top]
    total = np.bincount(query, n, minlength=feedback.Q)
    p = n / total[query]
    return np.where(total > 0, np.exp(np.bincount(query, -p * np.log(p), minlength=feedback.Q)), 0.0)


def answers(feedback: Feedback, log: Description) -> tuple[Answer, ...]:
    """Which questions the log can answer."""
    frequent = float(feedback.impressions[feedback.impressions >= FREQUENT].sum()) / max(feedback.N, 1)
    often_seen = f"{frequent:.0%} of the impressions are of queries seen {FREQUENT} times or more"
    varied, each = log.deterministic is False, feedback.N / max(log.queries, 1)
    stuck, has = shows_nothing_else(feedback), log.propensity_range is not None
    here = "the log has propensities" if has else "the log has no propensities"
    lists = _lists(feedback, log, stuck)
    seldom = log.deterministic and stuck is None
    return (
        Answer(
            "train both stages", log.clicks >= ENOUGH_CLICKS, _training(log, bool(stuck if has else log.deterministic))
        ),
        _curve(feedback, log),
        Answer(
            "value of another policy, logged propensities",
            has and stuck is None,
            here if not has or varied else f"{here}, but {lists}",
        ),
        Answer(
            "value of another policy, frequencies",
            (varied or bool(seldom)) and frequent >= 0.5,
            often_seen if varied else f"{often_seen}; {lists}" if seldom else lists,
        ),
        Answer(
            "value of another policy, fitted propensities",
            varied and each >= REFUSE_LISTS,
            f"{lists}; {_enough(each)}" if varied else lists,
        ),
    )


def _lists(feedback: Feedback, log: Description, stuck: str | None) -> str:
    """Whether lists vary, in words; `stuck`: why nothing is known of other items, if so."""
    if log.deterministic:
        return f"{hardly_varies(feedback)}: {'little' if stuck is None else 'nothing'} is known of other items"
    if log.queries_with_a_single_list is None:
        return "no query comes twice, so nobody can see whether its lists vary"
    return f"{1 - log.queries_with_a_single_list:.0%} of the queries seen twice or more had different lists"


def _training(log: Description, only_order: bool) -> str:
    """What there is to train on, and what it cannot teach."""
    found = f"{log.clicks:,} clicks on {log.pairs:,} pairs"
    if log.clicks < ENOUGH_CLICKS:
        return f"{found}; at least {ENOUGH_CLICKS} clicks are needed"
    return f"{found}; only the order of what was shown can be learnt" if only_order else found


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
        why += f"; they do not connect rank 1 with {_listed(apart)}"
    if (found := contradiction(feedback, 1 / np.arange(1.0, max(K, 1) + 1))) is not None:
        why += f". They contradict 1/k, the default: {found.words}. Run `tandemrank examine`, and pass its curve"
    return Answer("examination curve", not apart and K > 1 and len(pairs.query) > 0, why)


def _listed(ranks: list[int]) -> str:
    """Ranks in words, at most ten of them."""
    more = f" and {len(ranks) - 10} more" if len(ranks) > 10 else ""
    return ", ".join(map(str, ranks[:10])) + more
