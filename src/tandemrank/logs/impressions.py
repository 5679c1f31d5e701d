"""Shown lists and their clicks, in inside positions: as a table, and as they come by when a log is read."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.ids import Vocabulary
from tandemrank.errors import LogError
from tandemrank.logs.exact import SMALLEST_PROPENSITY


@dataclass(frozen=True)
class Impressions:
    """Shown lists and their clicks, in inside positions; -1 pads a short list.

    Shapes: query [n]; items, clicks [n, K].
    """

    query: NDArray[np.int32]
    items: NDArray[np.int32]
    clicks: NDArray[np.uint8]

    def head(self, n: int) -> "Impressions":
        """The first n."""
        return Impressions(self.query[:n], self.items[:n], self.clicks[:n])

    def in_vocabulary(self, own: Vocabulary, other: Vocabulary) -> "Impressions":
        """The same in the positions of another vocabulary, which has all ids of the own one."""
        query = other.queries(own.query_ids).astype(np.int32)[self.query]
        item = np.append(other.items(own.item_ids), -1).astype(np.int32)  # the last one is the padding
        return Impressions(query, item[self.items], self.clicks)


CLICKS = "clicks"  # by the last click above


@dataclass(frozen=True)
class By:
    """What examination depends on beside the rank: a column of the log with these values, in the order of their states.

    CLICKS: the last click above; the state is its rank, from 1, or 0 where there is none. `down`: of last clicks, whether
    readers go down the list, or look here and there (`clicks.stopping`).
    """

    column: str
    values: tuple[str, ...] = ()
    down: bool = True

    @property
    def is_clicks(self) -> bool:
        """Whether it is the last click."""
        return self.column == CLICKS


Propensities = Callable[[Impressions], NDArray[np.float64]]


def joined(parts: Sequence[Impressions]) -> Impressions:
    """Impressions one after the other, with the padding of the longest list."""
    K = max((part.items.shape[1] for part in parts), default=0)
    padded = [np.pad(part.items, ((0, 0), (0, K - part.items.shape[1])), constant_values=-1) for part in parts]
    clicks = [np.pad(part.clicks, ((0, 0), (0, K - part.clicks.shape[1]))) for part in parts]
    return Impressions(
        np.concatenate([np.zeros(0, np.int32), *(part.query for part in parts)]),
        np.concatenate([np.zeros((0, K), np.int32), *padded]),
        np.concatenate([np.zeros((0, K), np.uint8), *clicks]),
    )


PER_ITEM = (
    "item",
    "rank",
    "click",
    "propensity",
    "state",
    "value",
)  # the other columns of flat impressions have one value per impression


@dataclass(frozen=True)
class FlatImpressions:
    """Impressions in inside positions, their items in one row.

    `key`: the random numbers that decided the lists, in a served log. `state`: what examination depends on beside the rank, as
    `by` says. `value`: what clicked items were worth.
    Shapes: query, length, weight, key [n]; item, rank, click, propensity, state, value [m], where m = sum(length).
    """

    query: NDArray[np.integer]
    length: NDArray[np.integer]
    weight: NDArray[np.float64] | None
    item: NDArray[np.integer]
    rank: NDArray[np.integer]
    click: NDArray[np.uint8]
    propensity: NDArray[np.float64] | None
    key: NDArray[np.uint64] | None = None
    state: NDArray[np.int16] | None = None
    by: By | None = None
    value: NDArray[np.float64] | None = None

    def take(self, chosen: NDArray[np.bool_]) -> "FlatImpressions":
        """Only the chosen impressions. Shapes: chosen [n]."""
        return self if chosen.all() else self.in_order(np.flatnonzero(chosen))

    def in_order(self, rows: NDArray[np.int64]) -> "FlatImpressions":
        """Some of the impressions in another order.  Shapes: rows [r]."""
        first, length = np.cumsum(self.length) - self.length, self.length[rows]
        inside = np.arange(length.sum()) + np.repeat(first[rows] - (np.cumsum(length) - length), length)
        columns = {name: x for name, x in vars(self).items() if isinstance(x, np.ndarray)}
        return replace(self, **{name: x[inside if name in PER_ITEM else rows] for name, x in columns.items()})  # type: ignore[arg-type]

    def table(self, limit: int) -> Impressions:
        """The first impressions as a table, at most `limit`; an item's place in it is its rank."""
        length = self.length[:limit]
        rank = self.rank[: length.sum()]
        row = np.repeat(np.arange(len(length)), length)
        shape = len(length), int(rank.max(initial=-1)) + 1
        items, clicks = np.full(shape, -1, np.int32), np.zeros(shape, np.uint8)
        items[row, rank] = self.item[: len(row)]
        clicks[row, rank] = self.click[: len(row)]
        return Impressions(self.query[:limit].astype(np.int32), items, clicks)


def flattened(part: Impressions, vocabulary: Vocabulary, propensities: Propensities | None) -> FlatImpressions:
    """Impressions without their padding."""
    K = part.items.shape[1]
    if part.items.max(initial=-1) >= len(vocabulary.item_ids) or part.query.max(initial=-1) >= len(
        vocabulary.query_ids
    ):
        raise LogError("impressions name positions that the vocabulary does not have. Pass the data set's vocabulary.")
    listed = (part.items >= 0).ravel()
    length = listed.reshape(-1, K).sum(1)
    item, click = part.items.ravel(), part.clicks.ravel()
    rank = np.tile(np.arange(K, dtype=np.int16), len(part.query))
    propensity = None if propensities is None else np.asarray(propensities(part), dtype=np.float64).ravel()
    if not listed.all():
        item, rank, click = item[listed], rank[listed], click[listed]
        propensity = None if propensity is None else propensity[listed]
    if propensity is not None and not ((propensity >= SMALLEST_PROPENSITY) & (propensity <= 1)).all():
        raise LogError(
            "expected propensities from 1e-12 to 1 of all that is shown; got others. Is it the logging policy?"
        )
    return FlatImpressions(
        query=part.query, length=length, weight=None, item=item, rank=rank, click=click, propensity=propensity
    )


def after_clicks(lists: FlatImpressions, by: By) -> FlatImpressions:
    """The same with the last click above each item as its state."""
    row = np.repeat(np.arange(len(lists.query)), lists.length)
    order = np.lexsort((lists.rank, row))
    far = int(lists.rank.max(initial=0)) + 2
    clicked = row[order] * far + np.where(lists.click[order] > 0, lists.rank[order] + 1, 0)
    above = np.maximum.accumulate(np.append(0, clicked)[:-1])
    state = np.zeros(len(row), np.int16)
    state[order] = np.where(above // far == row[order], above % far, 0)
    return replace(lists, state=state, by=by)
