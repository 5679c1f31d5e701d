"""Shown lists and their clicks, in inside positions: as a table, and as they come by when a log is read."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.ids import Vocabulary


@dataclass(frozen=True)
class Impressions:
    """Shown lists and their clicks, in inside positions; -1 pads a short list.

    Shapes: query [n]; items, clicks [n, K].
    """

    query: NDArray[np.int32]
    items: NDArray[np.int32]
    clicks: NDArray[np.uint8]

    def in_vocabulary(self, own: Vocabulary, other: Vocabulary) -> "Impressions":
        """The same in the positions of another vocabulary, which has all ids of the own one."""
        query = other.queries(own.query_ids).astype(np.int32)[self.query]
        item = np.append(other.items(own.item_ids), -1).astype(np.int32)  # the last one is the padding
        return Impressions(query, item[self.items], self.clicks)


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


@dataclass(frozen=True)
class Shown:
    """Impressions in inside positions, their items in one row.

    `key`: the random numbers that decided the lists, in a served log. `time`: when they were shown, as the log has it.
    Shapes: query, length, weight, key, time [n]; item, rank, click, propensity [m], where m = sum(length).
    """

    query: NDArray[np.integer]
    length: NDArray[np.integer]
    weight: NDArray[np.float64] | None
    item: NDArray[np.integer]
    rank: NDArray[np.integer]
    click: NDArray[np.uint8]
    propensity: NDArray[np.float64] | None
    key: NDArray[np.uint64] | None = None
    time: pl.Series | None = None

    def take(self, chosen: NDArray[np.bool_]) -> "Shown":
        """Only the chosen impressions. Shapes: chosen [n]."""
        if chosen.all():
            return self
        inside = np.repeat(chosen, self.length)
        return Shown(
            query=self.query[chosen],
            length=self.length[chosen],
            weight=None if self.weight is None else self.weight[chosen],
            item=self.item[inside],
            rank=self.rank[inside],
            click=self.click[inside],
            propensity=None if self.propensity is None else self.propensity[inside],
            key=None if self.key is None else self.key[chosen],
            time=None if self.time is None else self.time.filter(chosen),
        )

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
