"""The sums behind `Feedback`, by (query, item, rank): the same bits in any order, on one machine or on many.

Every sum is over what was shown or over what was clicked, of a column that `Tally.add` makes: a new one is a line there, its
limbs in `feedback.LIMBS` and its field in `Feedback`. Counts are integers; sums of weights and of weight / propensity are
those of `logs.exact`. (Query, item, rank, state) is one 64-bit key, by which a plain sort groups a log.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.ids import ITEM_BITS, QUERY_BITS, Vocabulary, check_number, plain_ids, same_ids
from tandemrank.errors import LogError
from tandemrank.logs import exact
from tandemrank.logs.exact import CountsOrLimbs
from tandemrank.logs.feedback import LIMBS, Feedback
from tandemrank.logs.impressions import By, FlatImpressions

Part = TypeVar("Part")
Columns = dict[str, NDArray[Any]]

RANK_BITS = 10  # of a key: a query has 27, an item 26
STATES = 32  # a rank below so many has so many states
PENDING = 2**24  # shown items that wait for one sort: 128 MB of keys


@dataclass(frozen=True)
class Sums:
    """Sums by key, sorted; the columns have the names of `Feedback`, and are counts, or numbers in limbs.

    Shapes: key [P]; each column [P] or [limbs, P].
    """

    key: NDArray[np.int64]
    columns: dict[str, CountsOrLimbs]


def pack(
    query: NDArray[np.integer],
    item: NDArray[np.integer],
    rank: NDArray[np.integer],
    state: NDArray[np.integer] | None = None,
) -> NDArray[np.int64]:
    """One sortable key of (query, item, rank, state). Shapes: [P] each -> [P]."""
    key = query.astype(np.int64) << ITEM_BITS
    key |= item
    key <<= RANK_BITS
    if state is None:
        key |= rank
        return key
    if max(rank.max(initial=0), state.max(initial=0)) >= STATES:
        raise LogError(
            f"examination by more than the rank is for lists of at most {STATES} places, and as many values."
        )
    key |= rank.astype(np.int64) * STATES + state
    return key


def push(parts: list[Part], part: Part, size: Callable[[Part], int], join: Callable[[list[Part]], Part]) -> None:
    """Keeps a part, and joins the last two while they are of similar size: log many parts, log many joins."""
    parts.append(part)
    while len(parts) > 1 and 2 * size(parts[-1]) >= size(parts[-2]):
        parts[-2:] = [join(parts[-2:])]


# --- counting ---------------------------------------------------------------------------------------------------------


class Tally:
    """Collects impressions into sums: a few large sorts, then merges of parts of similar size."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Columns, Columns]] = []  # of what was shown, and of what was clicked
        self.parts: list[Sums] = []
        self.anew: bool | None = None  # of lists that were counted: whether each has a key of its own
        self.heaviest = 0.0  # the largest weight of an impression
        self.by: By | None = None
        self.impressions: CountsOrLimbs = np.zeros(0, dtype=np.int64)

    def add(self, lists: FlatImpressions) -> None:
        """Counts more impressions; weights that are all 1 are counts, as without a column of weights."""
        weight = None if lists.weight is None or (lists.weight == 1).all() else lists.weight
        if len(lists.query):
            self.heaviest = max(self.heaviest, 1.0 if weight is None else float(weight.max()))
        own = lists.key is not None and len(np.unique(lists.key)) == len(lists.key)
        self.anew = own if self.anew is None else self.anew and own
        self._add_impressions(lists.query, weight)
        self.by = lists.by
        key = pack(np.repeat(lists.query, lists.length), lists.item, lists.rank, lists.state)
        at, beside = clicks_beside(lists)
        shown: Columns = {"key": key}
        clicked: Columns = {"key": key[at], "others": beside}
        each = None if weight is None else np.repeat(weight, lists.length)
        if each is not None:
            shown["shown"], clicked["clicks"] = each, each[at]
        if lists.propensity is not None:
            shown["logged"] = (1.0 if each is None else each) / lists.propensity
            p, together = lists.propensity[at], beside + 1.0
            clicked["weighed"] = shown["logged"][at]
            clicked["weighed_together"], clicked["weighed_squares"] = together / p, together / np.square(p)
        if self.waiting and self.waiting[0][0].keys() != shown.keys():
            self.flush()
        self.waiting.append((shown, clicked))
        if sum(len(some["key"]) for some, _ in self.waiting) >= PENDING:
            self.flush()

    def _add_impressions(self, query: NDArray[np.integer], weight: NDArray[np.float64] | None) -> None:
        """Impressions of each query: whole numbers, or weights in limbs."""
        size = max(self.impressions.shape[-1], int(query.max(initial=-1)) + 1)
        more: CountsOrLimbs = (
            np.bincount(query, minlength=size)
            if weight is None
            else exact.sums_by(query, weight, size, LIMBS["impressions"])
        )
        self.impressions = exact.plus(_padded(self.impressions, size), more)

    def flush(self) -> None:
        """Sorts and sums what is waiting."""
        if not self.waiting:
            return
        shown, clicked = (
            _grouped(*some) for some in zip(("shown", "clicks"), zip(*self.waiting, strict=True), strict=True)
        )
        self.waiting = []
        # In the order of the keys, so that each is looked up near the last one: eight times faster.
        place, size = np.searchsorted(shown.key, clicked.key), len(shown.key)
        clicks = {name: _spread(x, place, size) for name, x in clicked.columns.items()}
        push(self.parts, Sums(shown.key, shown.columns | clicks), lambda one: len(one.key), total)

    def feedback(self, vocabulary: Vocabulary) -> Feedback:
        """All that was counted, with `vocabulary` naming the positions."""
        self.flush()
        impressions = _padded(self.impressions, len(vocabulary.query_ids))
        more = {"anew": bool(self.anew), "heaviest": self.heaviest or 1.0, "by": self.by}
        return _unpacked(total(self.parts), vocabulary, impressions, more)


def clicks_beside(lists: FlatImpressions) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the clicks are, and how many others each has in its list.  Shapes: -> [n], [n]."""
    clicked = np.flatnonzero(lists.click)
    row = np.searchsorted(np.cumsum(lists.length), clicked, side="right")
    return clicked, np.bincount(row, minlength=len(lists.query))[row] - 1


def _grouped(count: str, parts: Sequence[Columns]) -> Sums:
    """The sums of columns by key; where none of them is called `count`, the number of rows is."""
    # By polars, all columns at once: numpy's own sort is four times slower on some processors with AVX-512. In one thread:
    # others read ahead.
    rows = pl.DataFrame({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    rows = rows.sort("key", multithreaded=False)
    key = rows["key"].to_numpy()
    new = np.ones(len(key), dtype=np.bool_)
    np.not_equal(key[1:], key[:-1], out=new[1:])
    starts = np.flatnonzero(new)
    columns = {name: _runs(rows[name].to_numpy(), starts, name) for name in parts[0] if name != "key"}
    return Sums(key[starts], {count: np.diff(starts, append=len(key)), **columns})


def _runs(x: NDArray[Any], starts: NDArray[np.int64], name: str) -> CountsOrLimbs:
    """Sums from each start to the next.  Shapes: x [n]; starts [P] -> [P] or [limbs, P]."""
    if x.dtype == np.float64:
        return exact.sums_of_runs(x, starts, LIMBS[name])
    return np.add.reduceat(x, starts) if len(starts) else x


def _spread(x: CountsOrLimbs, place: NDArray[Any], size: int) -> CountsOrLimbs:
    """The same sums at other places, 0 elsewhere.  Shapes: x [..., P]; place [P], or true P times [size] -> [..., size]."""
    found = np.zeros((*x.shape[:-1], size), dtype=np.int64)
    found[..., place] = x
    return found


def _padded(x: CountsOrLimbs, size: int) -> CountsOrLimbs:
    """With zeros at the end.  Shapes: x [..., n] -> [..., size]."""
    return x if x.shape[-1] == size else _spread(x, np.arange(x.shape[-1]), size)


# --- adding sums ------------------------------------------------------------------------------------------------------


def merge(feedbacks: Sequence[Feedback], vocabulary: Vocabulary | None = None) -> Feedback:
    """The feedback of several logs together, the same bits in any order.

    In the positions of `vocabulary`, which has all their ids; without one, in those of the logs where they have one in
    common, else of all their ids, sorted.
    """
    if not feedbacks:
        raise LogError("expected at least one log to merge; got none.")
    for other in feedbacks[1:]:
        check_alike(feedbacks[0], other)
    vocabulary = vocabulary or _all_ids([one.vocabulary for one in feedbacks])
    sums, impressions = zip(*(_renamed(one, vocabulary) for one in feedbacks), strict=True)
    more = {
        "anew": all(one.anew for one in feedbacks if one.N),
        "heaviest": max((one.heaviest for one in feedbacks if one.N), default=1.0),
        "by": feedbacks[0].by,
    }
    return _unpacked(total(sums), vocabulary, reduce(exact.plus, impressions), more)


def pooled_sums(feedback: Feedback, query: NDArray[np.int64], vocabulary: Vocabulary) -> Feedback:
    """The sums with several queries added up into one, exactly: `query` has the place of each in the vocabulary, which has all
    items.  Shapes: query [Q]."""
    item = vocabulary.items(feedback.vocabulary.item_ids)
    # The first of each query's own, then the second, ...: within a part every query comes once, so its keys do.
    order = np.argsort(query, kind="stable")
    first = np.searchsorted(query[order], query[order])
    number = np.empty(len(query), np.int64)
    number[order] = np.arange(len(query)) - first
    columns = {name: feedback.sums(name) for name in LIMBS if getattr(feedback, name) is not None}
    of_queries = columns.pop("impressions")
    key = pack(query[feedback.query], item[feedback.item], feedback.rank, feedback.state)
    parts, impressions = [], []
    for n in range(int(number.max(initial=0)) + 1):
        rows, some = number[feedback.query] == n, number == n
        parts.append(Sums(key[rows], {name: x[..., rows] for name, x in columns.items()}))
        impressions.append(_spread(of_queries[..., some], query[some], len(vocabulary.query_ids)))
    whole = reduce(exact.plus, impressions)
    more = {"anew": feedback.anew, "heaviest": feedback.heaviest, "by": feedback.by}
    return _unpacked(total(parts), vocabulary, whole, more)


def check_alike(first: Feedback, other: Feedback) -> None:
    """Refuses parts of a log whose ids or propensities are not of one kind."""
    for column, ids in (("query_id", "query_ids"), ("items", "item_ids")):
        expected, got = (getattr(one.vocabulary, ids) for one in (first, other))
        if len(expected) and len(got) and (expected.dtype == pl.String) != (got.dtype == pl.String):
            raise LogError(
                f"column {column}: expected ids that are {expected.dtype}, as in the parts before; got {got.dtype}. "
                "Convert them to the same type."
            )
    if (first.logged is None) != (other.logged is None):
        raise LogError(MIXED)
    if first.by != other.by:
        raise LogError(f"expected parts of a log by the same states; got {first.by} and {other.by}. Read them alike.")


MIXED = (
    "column propensities: some parts of the log have propensities and others have none. Read them separately, or add the "
    "missing ones."
)


def _all_ids(vocabularies: Sequence[Vocabulary]) -> Vocabulary:
    """The vocabulary that all are, or one of all their ids, sorted; there must be a position for each."""
    if all(same_ids(vocabularies[0], other) for other in vocabularies[1:]):
        return vocabularies[0]
    found = []
    for name, bits in (("query_ids", QUERY_BITS), ("item_ids", ITEM_BITS)):
        ids = [getattr(one, name) for one in vocabularies]
        union = pl.concat([plain_ids(some) for some in ids if len(some)] or ids[:1]).unique().sort()
        check_number(union, bits)
        found.append(union)
    return Vocabulary(*found)


def _renamed(feedback: Feedback, vocabulary: Vocabulary) -> tuple[Sums, CountsOrLimbs]:
    """The sums and impressions of `feedback` in the positions of a vocabulary that has all its ids."""
    query = vocabulary.queries(feedback.vocabulary.query_ids)
    item = vocabulary.items(feedback.vocabulary.item_ids)
    key = pack(query[feedback.query], item[feedback.item], feedback.rank, feedback.state)
    columns = {name: feedback.sums(name) for name in LIMBS if getattr(feedback, name) is not None}
    impressions = _spread(columns.pop("impressions"), query, len(vocabulary.query_ids))
    return Sums(key, {name: x for name, x in columns.items() if x.shape[-1] == len(key)}), impressions


def total(parts: Sequence[Sums]) -> Sums:
    """The sum of parts, which need not be sorted. Exact, so the order does not matter."""
    stack: list[Sums] = []
    for part in parts:
        push(stack, _in_order(part), lambda one: len(one.key), _joined)
    while len(stack) > 1:
        stack[-2:] = [_joined(stack[-2:])]
    return stack[0]


def _in_order(part: Sums) -> Sums:
    """The same sums in the order of their keys."""
    if (part.key[1:] > part.key[:-1]).all():
        return part
    order = pl.Series(part.key).arg_sort().to_numpy()
    return Sums(part.key[order], {name: x[..., order] for name, x in part.columns.items()})


def _joined(parts: Sequence[Sums]) -> Sums:
    """The sum of two parts that are in order: the keys of the second are looked up in the first, new ones put between."""
    a, b = parts
    place = np.searchsorted(a.key, b.key)
    inside = place < len(a.key)
    new = ~inside
    new[inside] = a.key[place[inside]] != b.key[inside]
    place += np.cumsum(new) - new
    kept = np.ones(len(a.key) + int(new.sum()), dtype=np.bool_)
    kept[place[new]] = False

    def total_of(x: CountsOrLimbs, y: CountsOrLimbs) -> CountsOrLimbs:
        x, y = exact.alike(x, y)
        found = _spread(x, kept, len(kept))
        found[..., place] += y
        return found if found.ndim == 1 else exact.carried(found)

    key = _spread(a.key, kept, len(kept))
    key[place] = b.key
    return Sums(key, {name: total_of(x, b.columns[name]) for name, x in a.columns.items() if name in b.columns})


def _unpacked(sums: Sums, vocabulary: Vocabulary, impressions: CountsOrLimbs, more: dict[str, Any]) -> Feedback:
    """Sums as feedback; `more`: its fields that are no sums.  Shapes: impressions [Q] or [limbs, Q]."""
    pair, cell = sums.key >> RANK_BITS, sums.key & (2**RANK_BITS - 1)
    rank, state = (cell, None) if more["by"] is None else (cell // STATES, (cell % STATES).astype(np.int16))
    columns: dict[str, CountsOrLimbs] = {**sums.columns, "impressions": impressions}
    limbs = {name: x for name, x in columns.items() if x.ndim == 2}
    values: dict[str, Any] = {n: exact.value(x) if n in limbs else x.astype(np.float64) for n, x in columns.items()}
    return Feedback(
        vocabulary=vocabulary,
        query=(pair >> ITEM_BITS).astype(np.int32),
        item=(pair & (2**ITEM_BITS - 1)).astype(np.int32),
        rank=rank.astype(np.int16),
        state=state,
        **({"logged": None} | values),
        exact=limbs,
        **more,
    )
