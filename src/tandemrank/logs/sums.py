"""The exact sums behind `Feedback`: the same bits in any order, on one machine or on many.

Weights are multiples of 2^-20 and propensities of 2^-36.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.ids import Vocabulary, plain_ids, same_ids
from tandemrank.errors import LogError
from tandemrank.logs.feedback import PROPENSITY_UNIT, Feedback

Part = TypeVar("Part")

# One 64-bit key holds (query, item, rank) and the click, so that a plain sort groups a log.
QUERY_BITS, ITEM_BITS, RANK_BITS = 27, 26, 9
WEIGHT_UNIT = 2.0**-20


PENDING = 2**24  # shown items that wait for one sort: 128 MB of keys


@dataclass(frozen=True)
class Shown:
    """Impressions in inside positions, their items in one row.

    Shapes: query, length, weight [n]; item, rank, click, propensity [m], where m = sum(length).
    """

    query: NDArray[np.integer]
    length: NDArray[np.integer]
    weight: NDArray[np.float64] | None
    item: NDArray[np.integer]
    rank: NDArray[np.integer]
    click: NDArray[np.uint8]
    propensity: NDArray[np.float64] | None

    def take(self, chosen: NDArray[np.bool_]) -> "Shown":
        """Only the chosen impressions. Shapes: chosen [n]."""
        inside = np.repeat(chosen, self.length)
        return Shown(
            self.query[chosen],
            self.length[chosen],
            None if self.weight is None else self.weight[chosen],
            self.item[inside],
            self.rank[inside],
            self.click[inside],
            None if self.propensity is None else self.propensity[inside],
        )


@dataclass(frozen=True)
class Sums:
    """Sums by (query, item, rank), packed in one key, sorted. Shapes: all [P]."""

    key: NDArray[np.int64]
    shown: NDArray[np.float64]
    clicks: NDArray[np.float64]
    logged: NDArray[np.int64] | None


def pack(query: NDArray[np.integer], item: NDArray[np.integer], rank: NDArray[np.integer]) -> NDArray[np.int64]:
    """One sortable key of (query, item, rank). Shapes: [P] each -> [P]."""
    key = query.astype(np.int64) << ITEM_BITS
    key |= item
    key <<= RANK_BITS
    key |= rank
    return key


def _starts(key: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where a new value begins in sorted keys. Shapes: key [m] -> [P]."""
    new = np.ones(len(key), dtype=np.bool_)
    np.not_equal(key[1:], key[:-1], out=new[1:])
    return np.flatnonzero(new)


def count_items(key: NDArray[np.int64]) -> Sums:
    """Sums of items with weight 1, from keys whose last bit is the click; overwrites them. Shapes: key [m]."""
    key.sort()
    group = key >> 1
    starts = _starts(group)
    shown = np.diff(starts, append=len(key)).astype(np.float64)
    key &= 1
    clicks = np.add.reduceat(key, starts).astype(np.float64) if len(key) else np.zeros(0)
    return Sums(group[starts], shown, clicks, None)


def total(parts: Sequence[Sums]) -> Sums:
    """The sum of parts that need not be sorted or distinct themselves. Exact, so the order does not matter."""
    logged = sum(part.logged is not None for part in parts)
    if logged not in (0, len(parts)):
        raise LogError("some parts of the log have propensities and others have none. Read them apart, or add them.")
    names = ["key", "shown", "clicks", "logged"][: 4 if logged else 3]
    # Polars sorts all columns at once, with threads: less than half the time of an argsort of numpy.
    rows = pl.concat([pl.DataFrame({name: getattr(part, name) for name in names}) for part in parts]).sort("key")
    key = rows["key"].to_numpy()
    starts = _starts(key)

    def summed(name: str) -> NDArray[Any]:
        column = rows[name].to_numpy()
        return np.add.reduceat(column, starts) if len(starts) else column

    return Sums(key[starts], summed("shown"), summed("clicks"), summed("logged") if logged else None)


def push(parts: list[Part], part: Part, size: Callable[[Part], int], join: Callable[[list[Part]], Part]) -> None:
    """Keeps a part, and joins the last two while they are of similar size: log many parts, log many joins."""
    parts.append(part)
    while len(parts) > 1 and 2 * size(parts[-1]) >= size(parts[-2]):
        parts[-2:] = [join(parts[-2:])]


class Tally:
    """Collects impressions into sums: a few large sorts, then merges of parts of similar size."""

    def __init__(self) -> None:
        self.keys: list[NDArray[np.int64]] = []  # waiting, those of weight 1 without propensities: a sort counts them
        self.rows: list[Sums] = []  # waiting, the others
        self.parts: list[Sums] = []
        self.impressions = np.zeros(0)

    def add(self, shown: Shown) -> None:
        """Counts more impressions."""
        counted = np.bincount(shown.query, weights=shown.weight, minlength=len(self.impressions)).astype(np.float64)
        counted[: len(self.impressions)] += self.impressions
        self.impressions = counted
        key = pack(np.repeat(shown.query, shown.length), shown.item, shown.rank)
        if shown.weight is None and shown.propensity is None:
            key <<= 1
            key |= shown.click
            self.keys.append(key)
        else:
            weight = np.ones(len(key)) if shown.weight is None else np.repeat(shown.weight, shown.length)
            logged = None
            if shown.propensity is not None:
                logged = np.rint(weight * shown.propensity / PROPENSITY_UNIT).astype(np.int64)
            self.rows.append(Sums(key, weight, weight * shown.click, logged))
        if sum(map(len, self.keys)) + sum(len(part.key) for part in self.rows) >= PENDING:
            self.flush()

    def flush(self) -> None:
        """Sorts and sums what is waiting."""
        sums = [count_items(np.concatenate(self.keys))] if self.keys else []
        sums += [total(self.rows)] if self.rows else []
        self.keys, self.rows = [], []
        for part in sums:
            push(self.parts, part, lambda one: len(one.key), total)

    def feedback(self, vocabulary: Vocabulary) -> Feedback:
        """All that was counted, with `vocabulary` naming the positions."""
        self.flush()
        sums = (
            self.parts[0] if len(self.parts) == 1 else total(self.parts or [count_items(np.zeros(0, dtype=np.int64))])
        )
        missing = len(vocabulary.query_ids) - len(self.impressions)
        return unpacked(sums, vocabulary, np.pad(self.impressions, (0, missing)))


def unpacked(sums: Sums, vocabulary: Vocabulary, impressions: NDArray[np.float64]) -> Feedback:
    """Unpacks sums."""
    pair = sums.key >> RANK_BITS
    return Feedback(
        vocabulary,
        (pair >> ITEM_BITS).astype(np.int32),
        (pair & (2**ITEM_BITS - 1)).astype(np.int32),
        (sums.key & (2**RANK_BITS - 1)).astype(np.int16),
        sums.shown,
        sums.clicks,
        sums.logged,
        impressions,
    )


def renamed(feedback: Feedback, vocabulary: Vocabulary) -> tuple[Sums, NDArray[np.float64]]:
    """The sums and impressions of `feedback` in the positions of a vocabulary that has all its ids."""
    query = vocabulary.queries(feedback.vocabulary.query_ids)
    item = vocabulary.items(feedback.vocabulary.item_ids)
    impressions = np.zeros(len(vocabulary.query_ids))
    impressions[query] = feedback.impressions
    key = pack(query[feedback.query], item[feedback.item], feedback.rank)
    return Sums(key, feedback.shown, feedback.clicks, feedback.logged), impressions


def merge(feedbacks: Sequence[Feedback]) -> Feedback:
    """The feedback of several logs together, the same bits in any order.

    With one vocabulary throughout it stays; otherwise the result's holds all ids, sorted.
    """
    if not feedbacks:
        raise LogError("expected at least one log to merge; none came.")
    first = feedbacks[0].vocabulary
    if all(same_ids(first, f.vocabulary) for f in feedbacks[1:]):
        vocabulary = first
    else:
        vocabulary = Vocabulary(
            _union([f.vocabulary.query_ids for f in feedbacks], "query_id", QUERY_BITS),
            _union([f.vocabulary.item_ids for f in feedbacks], "item_id", ITEM_BITS),
        )
    sums, impressions = zip(*(renamed(f, vocabulary) for f in feedbacks), strict=True)
    return unpacked(total(sums), vocabulary, np.sum(impressions, axis=0))


def _union(ids: Sequence[pl.Series], column: str, bits: int) -> pl.Series:
    """All ids, sorted; there must be a position for each."""
    if len({series.dtype == pl.String for series in ids if len(series)}) > 1:
        raise LogError(f"column {column}: integers in one log and strings in another. Convert them to the same type.")
    union = pl.concat([plain_ids(series).rename(column) for series in ids if len(series)] or [ids[0]]).unique().sort()
    check_number(union, bits)
    return union


def check_number(ids: pl.Series, bits: int) -> None:
    """Refuses more ids than positions fit into the bits of a key."""
    if len(ids) > 2**bits:
        raise LogError(f"the log has more than {2**bits} different ids in one column, the most it may have.")
