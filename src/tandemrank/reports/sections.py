"""Sections that several pages have: old lists and new ones with titles, weights and support, how lists are read."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from tandemrank._base.ids import Id
from tandemrank.clicks.examination import Behaviour, examine
from tandemrank.clicks.models import CellCurve
from tandemrank.errors import LogError
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.titles import Titles, TitleSource, TitleTable, read_titles
from tandemrank.offpolicy.diagnostics import WEIGHTS
from tandemrank.offpolicy.exposure import MostLikely
from tandemrank.offpolicy.values import PRODUCTION, Value
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.reports import figures
from tandemrank.reports.page import Entry, Section, SideBySide

QUERIES = 10


@dataclass(frozen=True)
class Named:
    """How queries and items are shown: by their titles, and with pictures where these are asked for."""

    titles: Titles
    images: bool = False

    def query(self, name: Id, note: str = "") -> Entry:
        return self._entry(self.titles.queries, name, note)

    def item(self, name: Id, note: str = "") -> Entry:
        return self._entry(self.titles.items, name, note)

    def _entry(self, table: TitleTable, name: Id, note: str) -> Entry:
        found = table.of(name)
        return Entry(found.title or str(name), found.url, found.image if self.images else "", note)


BY_ID = Named(Titles())


def named(titles: TitleSource | Sequence[TitleSource] | None, *, images: bool = False) -> Named:
    """By a table of titles, or by several."""
    sources: Sequence[Any] = titles if isinstance(titles, list | tuple) else [] if titles is None else [titles]
    return Named(read_titles(*sources), images)


def changes(
    log: Feedback, new: TwoStagePolicy, named: Named, *, old: TwoStagePolicy | None = None, sides: tuple[str, str]
) -> Section:
    """The lists of the ten queries that came most often: the most likely ones of both policies, and of production, which has
    none here, what it showed most at each rank. Nothing of a policy whose lists depend on a context."""
    if new.context_columns:
        return Section(title="What changes")
    most = np.argsort(-log.impressions, kind="stable")[:QUERIES]
    ids = log.vocabulary.query_ids.gather(most[log.impressions[most] > 0])
    now = _shown(log, most, new.K) if old is None else _lists(old, ids)
    lists = []
    for query, times, before, after in zip(ids, log.impressions[most], now, _lists(new, ids), strict=False):
        if not after:  # not a query that the policy knows
            continue
        place = {item: rank for rank, item in enumerate(before)}
        lists.append(
            SideBySide(
                named.query(query, f"{times:,.0f} times"),
                [named.item(item, "" if item in after else "gone") for item in before],
                [named.item(item, _move(place.get(item), rank)) for rank, item in enumerate(after)],
            )
        )
    production = "" if old is not None else " Of production it is what stood at each rank most often."
    return Section(
        title=f"What changes for {len(lists)} queries" if len(lists) != 1 else "What changes for one query",
        caption=f"The most frequent ones, with their most likely lists.{production}",
        lists=lists,
        sides=sides,
    )


def of_sides(log: Feedback, new: object, old: object, named: Named, *, sides: tuple[str, str]) -> Section:
    """The same of two sides of an estimate; nothing where one is neither a policy nor production."""
    after, before = (side.policy if isinstance(side, MostLikely) else side for side in (new, old))
    if not isinstance(after, TwoStagePolicy) or not (isinstance(before, TwoStagePolicy) or before == PRODUCTION):
        return Section(title="What changes")
    policy = before if isinstance(before, TwoStagePolicy) else None
    return changes(log, after, named, old=policy, sides=sides)


def _lists(policy: TwoStagePolicy, ids: pl.Series) -> list[list[Id]]:
    found: list[list[Id]] = policy.recommend(ids, unknown="empty")["items"].to_list()
    return found


def _shown(log: Feedback, queries: NDArray[np.int64], K: int) -> list[list[Id]]:
    """What a log showed most at each rank, every item once.  Shapes: queries [n]."""
    found = []
    for query in queries:
        rows = slice(*np.searchsorted(log.query, [query, query + 1]))
        most = np.lexsort((-log.shown[rows], log.rank[rows]))
        here: dict[int, int] = {}  # the item of each rank
        for rank, item in zip(log.rank[rows][most].tolist(), log.item[rows][most].tolist(), strict=True):
            if rank < K and rank not in here and item not in here.values():
                here[rank] = item
        found.append(log.vocabulary.item_ids.gather(list(here.values())).to_list())
    return found


def _move(before: int | None, rank: int) -> str:
    if before is None:
        return "new"
    return "" if before == rank else f"{'↑' if before > rank else '↓'} from {before + 1}"


def weights(value: Value) -> Section:
    """Where an estimate comes from: weights, and what the log never shows."""
    title, found = "Weights and support", value.diagnostics
    if found is None or found.by_weight is None:
        return Section(title=title)
    edges = [f"{edge:g}" for edge in WEIGHTS]
    between = [f"{a}–{b}" for a, b in pairwise(edges)]
    names = [f"< {edges[0]}", *between, f"> {edges[-1]}", "never\nshown"]
    logged, exposed = [*found.by_weight.logged, 0.0], [*found.by_weight.exposed, found.unsupported]
    return Section(
        title=title,
        draw=lambda: figures.weights(names, logged, exposed),
        caption="A weight is how often the policy would have an item looked at over how often production had. On the left is "
        "what the log shows in plenty; an estimate that stands on large weights rests on few clicks, and of what was never "
        "shown nothing is known.",
    )


def examination(log: Feedback, used: ArrayLike | CellCurve) -> Section:
    """How much is looked at each rank: what the impressions of an estimate say, with intervals, and what was used."""
    title = "How much is looked at each rank"
    try:
        found = examine(log) if log.state is None else None
    except LogError:
        found = None
    if found is None:
        return Section(title=title)
    curve = [row[0] for row in used.theta] if isinstance(used, CellCurve) else np.asarray(used, np.float64).tolist()
    above = ", where nothing above was clicked." if isinstance(used, CellCurve) else "."
    ends = list(zip(found.low.tolist(), found.high.tolist(), strict=True))
    return Section(
        title=title,
        draw=lambda: figures.by_rank(found.theta.tolist(), "examination", intervals=ends, used=curve),
        caption=f"Dots: of the impressions that value, by items shown at several ranks, 95% intervals. Dashed: used{above}",
    )


def reading(found: Behaviour | None) -> Section:
    """Whether clicks are those of a position-based model: in words, and by pairs of ranks."""
    if found is None:
        return Section(title="How lists are read")
    clicks = found.dependence
    return Section(
        title="How lists are read",
        sentences=[f"{words[0].upper()}{words[1:]}." for words in found.sentences],
        draw=None if clicks is None else lambda: figures.rank_pairs(clicks.by_ranks),
        caption="Clicks at two ranks of one list, in standard errors from what they would be if they had nothing to do with "
        "each other: white is 0. Readers who stop make it negative.",
    )
