"""What beliefs are made of: the sums of a log by pair, rank and time.

    clicks C, showings n, examinations E = sum theta_k        of every pair (query, item) that was shown

A row is one (pair, theta_k, time); all that is known of relevance is the likelihood of its showings,

    log P(showings | R) = sum over rows [ clicks log(theta_k R) + (showings - clicks) log(1 - theta_k R) ].

Where the context of an impression matters, a row is of one context too, and R is there sigmoid(logit R + shift).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.cluster import ALONE, Group
from tandemrank._base.random import mix
from tandemrank._base.sparse import sums_by
from tandemrank.errors import LogError
from tandemrank.logs.feedback import Feedback, examination

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

TENTHS = 10.0  # of log-odds in a unit of `shift`


@dataclass(frozen=True)
class Counts:
    """Pairs sorted by query and item, and their rows, sorted by pair.

    `time` is the part of the log that a row is of, of `times` parts, 0 the oldest; all 0 where the log has no order.
    `impressions`: lists that each query was shown. `shift`: how much more relevant the pair is in the context of a row, in
    tenths of log-odds. `group`: who has the other queries of the log, if these are not all; `before`: how many of the others
    come before ours. What is told of items is of the whole log.
    Shapes: query, item [pairs]; pair, examined, shown, clicks, time, shift [rows]; impressions [Q].
    """

    query: Whole
    item: NDArray[np.int32]
    pair: Whole
    examined: Floats
    shown: Floats
    clicks: Floats
    time: NDArray[np.int8]
    impressions: Floats
    D: int
    times: int
    group: Group = ALONE
    before: int = 0
    shift: NDArray[np.int8] | None = None

    @classmethod
    def of(cls, parts: Sequence[Feedback], theta: Floats) -> "Counts":
        """Of the sums of a log; several parts of one vocabulary are in the order of time.  Shapes: theta [K] or [K, states].

        An impression is evidence once at most, whatever its weight: weights count in shares of the heaviest one.
        """
        heaviest = max(part.heaviest for part in parts)
        examined = np.concatenate([examination(part, theta) for part in parts])
        time = np.repeat(np.arange(len(parts)), [len(part.query) for part in parts])
        query, item, shown, clicks = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("query", "item", "shown", "clicks")
        )
        shown, clicks = shown / heaviest, clicks / heaviest
        clicks = np.clip(clicks, 0.0, shown)  # without those of trust bias there may be a little more
        impressions = np.sum([part.impressions for part in parts], axis=0) / heaviest
        return cls.of_rows(
            query,
            item,
            examined,
            shown,
            clicks,
            impressions=impressions,
            D=parts[0].D,
            time=time if len(parts) > 1 else None,
        )

    @classmethod
    def of_rows(
        cls,
        query: NDArray[np.integer],
        item: NDArray[np.integer],
        examined: Floats,
        shown: Floats,
        clicks: Floats,
        *,
        impressions: Floats,
        D: int,
        time: NDArray[np.integer] | None = None,
        shift: NDArray[np.int8] | None = None,
    ) -> "Counts":
        """Of rows in any order, `examined` their theta_k; rows of one pair, rank, time and shift are added up.

        Shapes: [n] each.

        A showing that nobody examines says nothing of relevance, and yet production chose it.
        """
        if len(query) and (clicks > shown * (1 + 1e-9)).any():
            raise LogError("expected at most one click for each showing; got more clicks than showings. Check the log.")
        when = np.zeros(len(query), np.int8) if time is None else np.asarray(time, np.int8)
        times = int(when.max(initial=0)) + 1
        examined = np.asarray(examined, np.float64)
        levels = np.unique(-examined)
        pair = np.asarray(query, np.int64) * D + item
        order = (pair * len(levels) + np.searchsorted(levels, -examined)) * times + when
        if shift is not None:
            order = order * 256 + shift.astype(np.int64) + 128
        if not (np.diff(order) > 0).all():  # sums that were made by rank are in this order already
            _, some, at = np.unique(order, return_index=True, return_inverse=True)
            shown, clicks = (sums_by(at, x, len(some)) for x in (shown, clicks))
            query, item, pair, examined, when = query[some], item[some], pair[some], examined[some], when[some]
            shift = None if shift is None else shift[some]
        new = np.diff(pair, prepend=-1) != 0
        return cls(
            query=query[new].astype(np.int64),
            item=item[new].astype(np.int32),
            pair=np.cumsum(new) - 1,
            examined=examined,
            shown=np.asarray(shown, np.float64),
            clicks=np.asarray(clicks, np.float64),
            time=when,
            impressions=np.asarray(impressions, np.float64),
            D=D,
            times=times,
            shift=shift,
        )

    def by_query(self, values: Floats) -> Floats:
        """Values of pairs summed by query.  Shapes: values [pairs] -> [Q]."""
        return sums_by(self.query, values, self.Q)

    def by_item(self, values: Floats) -> Floats:
        """Values of pairs summed by item, over the whole log.  Shapes: values [pairs] -> [D]."""
        return self.group.sum(sums_by(self.item, values, self.D))

    def some(self, enough: int) -> slice:
        """Which of our pairs are among so many or more of the whole log, at equal distances."""
        before, total = self.group.before(len(self.query))
        step = max(1, total // enough)
        return slice(-before % step, None, step)

    @property
    def items(self) -> Whole:
        """The items that were shown, in the whole log.  Shapes: -> [n]."""
        return np.flatnonzero(self.by_item(np.ones(len(self.item))))

    @property
    def keys(self) -> NDArray[np.uint64]:
        """A number of every pair, the same whoever has it.  Shapes: -> [pairs]."""
        return ((self.query + self.before) * self.D + self.item).astype(np.uint64)

    def packed(self) -> tuple["Counts", Whole]:
        """The queries with a log alone, and which these are.  Shapes: -> [n]."""
        rows = self.rows
        before = self.group.before(len(rows))[0]
        found = replace(
            self, query=np.searchsorted(rows, self.query), impressions=self.impressions[rows], before=before
        )
        return found, rows

    def of_items(self, items: Whole) -> "Counts":
        """With some of the items, in order, which become the first ones: those of all pairs are among them."""
        place = np.zeros(self.D, np.int32)
        place[items] = np.arange(len(items))
        return replace(self, item=place[self.item], D=len(items))

    def together(self) -> "Counts":
        """Everybody's pairs, as if there were no group."""
        return (
            self
            if self.group.size == 1
            else joined(self.group.exchange([replace(self, group=ALONE)] * self.group.size))
        )

    def of_queries(self, first: int, stop: int, group: Group = ALONE) -> "Counts":
        """The part of some queries, which become the first ones."""
        pairs = slice(*self.first[[first, stop]])
        rows = slice(*np.searchsorted(self.pair, [pairs.start, pairs.stop]))
        columns = {name: getattr(self, name)[rows] for name in ("examined", "shown", "clicks", "time")}
        return replace(
            self,
            query=self.query[pairs] - first,
            item=self.item[pairs],
            pair=self.pair[rows] - pairs.start,
            **columns,
            shift=None if self.shift is None else self.shift[rows],
            impressions=self.impressions[first:stop],
            group=group,
            before=self.before + first,
        )

    @property
    def Q(self) -> int:
        """The number of queries, shown something or not."""
        return len(self.impressions)

    @cached_property
    def first(self) -> Whole:
        """Where the pairs of a query begin.  Shapes: -> [Q + 1]."""
        return np.searchsorted(self.query, np.arange(self.Q + 1)).astype(np.int64)

    @cached_property
    def rows(self) -> Whole:
        """The queries with a log."""
        return np.flatnonzero(np.diff(self.first))

    def by_pair(self, values: Floats) -> Floats:
        """Values of rows summed by pair.  Shapes: [rows] -> [pairs]."""
        return sums_by(self.pair, values, len(self.query))

    @cached_property
    def C(self) -> Floats:
        """Clicks of every pair."""
        return self.by_pair(self.clicks)

    @cached_property
    def n(self) -> Floats:
        """Showings of every pair."""
        return self.by_pair(self.shown)

    @cached_property
    def E(self) -> Floats:
        """Examinations of every pair."""
        return self.by_pair(self.shown * self.examined)

    @cached_property
    def kinds(self) -> tuple[NDArray[np.int32], "Counts"]:
        """Which pairs have the same evidence, and an example of every kind: most pairs of a log were shown once or twice.

        Rows are told apart by 64 random bits.  Shapes: -> [pairs], the number of its kind among the examples.
        """
        row = mix(self.examined.view(np.uint64))
        for values in (self.shown, self.clicks):
            row = mix(row ^ values.view(np.uint64))
        row = row if self.shift is None else mix(row ^ (self.shift.astype(np.int64) + 128).view(np.uint64))
        evidence = np.add.reduceat(row, np.flatnonzero(np.diff(self.pair, prepend=-1))) if len(row) else row
        distinct = np.unique(evidence)
        kind = np.searchsorted(distinct, evidence)
        example = np.zeros(len(distinct), np.int64)
        example[kind] = np.arange(len(kind))
        order = np.argsort(example)
        chosen = np.zeros(len(kind), np.bool_)
        chosen[example] = True
        return np.argsort(order)[kind].astype(np.int32), self.only(chosen)

    def log_likelihood(self, R: Floats) -> Floats:
        """log P(showings | level) of every kind.  Shapes: R [J] -> [J, kinds]."""
        some, (theta, odds, rank) = self.kinds[1], self._thetas
        found, skips = np.empty((len(R), len(some.query))), some.shown - some.clicks
        for j, r in enumerate(np.clip(R, 1e-9, 1)):
            there = r if odds is None else r * odds / (1 - r + r * odds)
            click = np.clip(theta * there, 1e-300, 1 - 1e-9)
            found[j] = some.by_pair(some.clicks * np.log(click)[rank] + skips * np.log1p(-click)[rank])
        return found

    @cached_property
    def _thetas(self) -> tuple[Floats, Floats | None, Whole]:
        """The distinct theta_k, with their odds by shift, and which of them the rows of the kinds have: logarithms are taken
        once."""
        some = self.kinds[1]
        theta, rank = np.unique(some.examined, return_inverse=True)
        if some.shift is None:
            return theta, None, rank
        both, row = np.unique(rank * 256 + some.shift + 128, return_inverse=True)
        return theta[both // 256], np.exp((both % 256 - 128) / TENTHS), row

    def table(self, R: Floats) -> tuple[NDArray[np.float32], Floats]:
        """P(showings | level) of every kind, the best level of each 1, and the log of what that is.

        Shapes: R [J] -> [J, kinds], [kinds].
        """
        found = self.log_likelihood(R)
        best = found.max(0)
        return np.exp(np.maximum(found - best, -40)).astype(np.float32), best

    def likelihood(self, R: Floats) -> tuple[NDArray[np.float32], Floats]:
        """`table` of each pair.  Shapes: R [J] -> [pairs, J], [pairs]."""
        kind, (table, best) = self.kinds[0], self.table(R)
        return np.take(table.T, kind, axis=0), best[kind]

    def only(self, kept: NDArray[np.bool_]) -> "Counts":
        """Some of the pairs, with all that was seen of them.  Shapes: kept [pairs]."""
        rows = kept[self.pair]
        place = np.cumsum(kept) - 1
        return replace(
            self,
            query=self.query[kept],
            item=self.item[kept],
            pair=place[self.pair[rows]],
            **{name: getattr(self, name)[rows] for name in ("examined", "shown", "clicks", "time")},
            shift=None if self.shift is None else self.shift[rows],
        )

    def aged(self, half_life: float) -> "Counts":
        """Older parts of the log with less weight: half of it after so many parts."""
        return self if np.isinf(half_life) else self.weighted(0.5 ** (np.arange(self.times - 1, -1, -1) / half_life))

    def weighted(self, weight: Floats) -> "Counts":
        """Every time with a weight of its own; pairs without any are gone.  Shapes: weight [times]."""
        w = weight[self.time]
        some = replace(self, shown=self.shown * w, clicks=self.clicks * w)
        kept = np.bincount(self.pair, w, len(self.query)) > 0
        return some if kept.all() else some.only(kept)


def joined(parts: Sequence[Counts]) -> Counts:
    """Parts of one log by queries, as one."""
    queries, pairs = (np.cumsum([0, *n]) for n in ([p.Q for p in parts], [len(p.query) for p in parts]))
    names = "item", "examined", "shown", "clicks", "time", "impressions"
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    columns["query"] = np.concatenate([part.query + n for part, n in zip(parts, queries, strict=False)])
    columns["pair"] = np.concatenate([part.pair + n for part, n in zip(parts, pairs, strict=False)])
    if parts[0].shift is not None:
        columns["shift"] = np.concatenate([part.shift for part in parts])
    return replace(parts[0], **columns, group=ALONE, before=0)
