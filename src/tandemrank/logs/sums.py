"""The sums behind `Feedback`, by (query, item, rank): the same bits in any order, on one machine or on many.

Counts are integers; sums of weights and of weight / propensity are those of `logs.exact`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.ids import Vocabulary, plain_ids, same_ids
from tandemrank.errors import LogError
from tandemrank.logs import exact
from tandemrank.logs.exact import INVERSE_LIMBS, WEIGHT_LIMBS, Limbs
from tandemrank.logs.feedback import Exact, Feedback
from tandemrank.logs.impressions import Shown
from tandemrank.logs.keys import ITEM_BITS, QUERY_BITS, RANK_BITS, check_number, pack, push

CountsOrLimbs = NDArray[Any]  # int64 [n], where they are counts; else int64 [limbs, n]
Clicked = tuple[NDArray[np.int64], NDArray[np.int64]]  # keys of clicks, and the other clicks of their lists

PENDING = 2**24  # shown items that wait for one sort: 128 MB of keys


@dataclass(frozen=True)
class Sums:
    """Sums by (query, item, rank), packed in one key, sorted; shown and clicks are counts, or weights in limbs.

    Shapes: key, others [P]; shown, clicks [P] or [3, P]; logged [4, P].
    """

    key: NDArray[np.int64]
    shown: CountsOrLimbs
    clicks: CountsOrLimbs
    logged: Limbs | None
    others: NDArray[Any] | None = None


@dataclass(frozen=True)
class Rows:
    """Shown items that wait to be summed, of a log with weights or propensities.  Shapes: all [m]."""

    key: NDArray[np.int64]
    click: NDArray[np.uint8]
    weight: NDArray[np.float64] | None
    inverse: NDArray[np.float64] | None
    others: NDArray[np.int64]


def _starts(key: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where a new value begins in sorted keys. Shapes: key [m] -> [P]."""
    new = np.ones(len(key), dtype=np.bool_)
    np.not_equal(key[1:], key[:-1], out=new[1:])
    return np.flatnonzero(new)


def clicks_beside(shown: Shown) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the clicks are, and how many others each has in its list.  Shapes: -> [n], [n]."""
    clicked = np.flatnonzero(shown.click)
    row = np.searchsorted(np.cumsum(shown.length), clicked, side="right")
    return clicked, np.bincount(row, minlength=len(shown.query))[row] - 1


def count_items(key: NDArray[np.int64], clicked: Clicked) -> Sums:
    """Sums of items with weight 1: those shown, and those clicked with the other clicks of their lists. Shapes: key [m]."""
    # Numpy's own sort is four times slower on some processors with AVX-512. In one thread: others read ahead.
    key = pl.Series(key).sort(multithreaded=False).to_numpy()
    starts = _starts(key)
    found = key[starts]
    rows = _sorted({"key": clicked[0], "others": clicked[1]})
    first = _starts(rows["key"])
    # In the order of the keys, so that each is looked up near the last one: eight times faster.
    place = np.searchsorted(found, rows["key"][first])
    clicks = np.zeros(len(found), dtype=np.int64)
    clicks[place] = np.diff(first, append=len(rows["key"]))
    others = np.zeros(len(found), dtype=np.int64)
    others[place] = _runs(rows["others"], first)
    return Sums(found, np.diff(starts, append=len(key)), clicks, None, others)


def sum_rows(parts: Sequence[Rows]) -> Sums:
    """The sums of items with weights or propensities, or both."""
    _check_propensities([part.inverse is not None for part in parts])
    weighted, logged = any(part.weight is not None for part in parts), parts[0].inverse is not None
    columns: dict[str, list[NDArray[Any]]] = {"key": [part.key for part in parts]}
    columns["click"] = [part.click for part in parts]
    columns["others"] = [part.others for part in parts]
    if weighted:
        columns["weight"] = [np.ones(len(p.key)) if p.weight is None else p.weight for p in parts]
    if logged:
        columns["inverse"] = [part.inverse for part in parts if part.inverse is not None]
    rows = _sorted({name: np.concatenate(values) for name, values in columns.items()})
    key, click = rows["key"], rows["click"]
    starts = _starts(key)
    inverse = exact.sums_of_runs(rows["inverse"], starts, INVERSE_LIMBS) if logged else None
    others = _runs(rows["others"], starts)
    if weighted:
        weight = rows["weight"]
        shown, clicks = (exact.sums_of_runs(x, starts, WEIGHT_LIMBS) for x in (weight, weight * click))
        return Sums(key[starts], shown, clicks, inverse, others)
    counts = np.diff(starts, append=len(key))
    return Sums(key[starts], counts, _runs(click.astype(np.int64), starts), inverse, others)


def total(parts: Sequence[Sums]) -> Sums:
    """The sum of parts, which need not be sorted. Exact, so the order does not matter."""
    _check_propensities([part.logged is not None for part in parts])
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
    return replace(part, **{name: x[..., order] for name, x in vars(part).items() if x is not None})


def _joined(parts: Sequence[Sums]) -> Sums:
    """The sum of two parts that are in order: the keys of the second are looked up in the first, new ones put between."""
    a, b = parts
    place = np.searchsorted(a.key, b.key)
    inside = place < len(a.key)
    new = ~inside
    new[inside] = a.key[place[inside]] != b.key[inside]
    place += np.cumsum(new) - new
    kept = np.ones(len(a.key) + np.count_nonzero(new), dtype=np.bool_)
    kept[place[new]] = False
    key = np.empty(len(kept), dtype=np.int64)
    key[kept] = a.key
    key[place] = b.key

    def row(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
        found = np.zeros(len(kept), dtype=np.result_type(x, y))
        found[kept] = x
        found[place] += y
        return found

    def both(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
        if x.ndim == y.ndim == 1:
            return row(x, y)
        limbs = [exact.split(one, WEIGHT_LIMBS) if one.ndim == 1 else one for one in (x, y)]
        return exact.carried(np.stack([row(u, v) for u, v in zip(*limbs, strict=True)]))

    logged = None if a.logged is None or b.logged is None else both(a.logged, b.logged)
    others = None if a.others is None or b.others is None else both(a.others, b.others)
    return Sums(key, both(a.shown, b.shown), both(a.clicks, b.clicks), logged, others)


def _check_propensities(has: Sequence[bool]) -> None:
    if any(has) != all(has):
        raise LogError(
            "some parts of the log have propensities and others have none. Read them separately, or add the missing ones."
        )


def _sorted(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The columns in the order of the key. Polars sorts all at once: half the time of numpy's argsort."""
    rows = pl.DataFrame(columns).sort("key", multithreaded=False)
    return {name: rows[name].to_numpy() for name in columns}


def _runs(x: NDArray[Any], starts: NDArray[np.int64]) -> NDArray[Any]:
    """Sums from each start to the next.  Shapes: x [n]; starts [P] -> [P]."""
    return np.add.reduceat(x, starts) if len(starts) else x


class Tally:
    """Collects impressions into sums: a few large sorts, then merges of parts of similar size."""

    def __init__(self) -> None:
        self.keys: list[NDArray[np.int64]] = []  # waiting, those of weight 1 without propensities: a sort counts them
        self.clicked: list[Clicked] = []  # of the clicks among them
        self.rows: list[Rows] = []  # waiting, those with weights or propensities
        self.parts: list[Sums] = []
        self.anew: bool | None = None  # of lists that were counted: whether each has a key of its own
        self.heaviest = 0.0  # the largest weight of an impression
        self.impressions = np.zeros(0, dtype=np.int64)
        self.weights = np.zeros((WEIGHT_LIMBS, 0), dtype=np.int64)

    def add(self, shown: Shown) -> None:
        """Counts more impressions."""
        if shown.weight is not None and (shown.weight == 1).all():
            shown = replace(shown, weight=None)  # counts, as without a column of weights
        self._add_impressions(shown.query, shown.weight)
        own = shown.key is not None and len(np.unique(shown.key)) == len(shown.key)
        self.anew = own if self.anew is None else self.anew and own
        heaviest = 1.0 if shown.weight is None else float(shown.weight.max(initial=0.0))
        self.heaviest = max(self.heaviest, heaviest if len(shown.query) else 0.0)
        key = pack(np.repeat(shown.query, shown.length), shown.item, shown.rank)
        at, beside = clicks_beside(shown)
        if shown.weight is None and shown.propensity is None:
            self.clicked.append((key[at], beside))
            self.keys.append(key)
        else:
            weight = None if shown.weight is None else np.repeat(shown.weight, shown.length)
            inverse = None
            if shown.propensity is not None:
                inverse = (1.0 if weight is None else weight) / shown.propensity
            others = np.zeros(len(key), dtype=np.int64)
            others[at] = beside
            self.rows.append(Rows(key, shown.click, weight, inverse, others))
        if sum(map(len, self.keys)) + sum(len(part.key) for part in self.rows) >= PENDING:
            self.flush()

    def _add_impressions(self, query: NDArray[np.integer], weight: NDArray[np.float64] | None) -> None:
        """Impressions of each query: whole numbers, weights in limbs."""
        if weight is None:
            counted = np.bincount(query, minlength=len(self.impressions))
            counted[: len(self.impressions)] += self.impressions
            self.impressions = counted
        else:
            size = max(self.weights.shape[1], int(query.max(initial=-1)) + 1)
            weighed = exact.sums_by(query, weight, size, WEIGHT_LIMBS)
            weighed[:, : self.weights.shape[1]] += self.weights
            self.weights = exact.carried(weighed)

    def flush(self) -> None:
        """Sorts and sums what is waiting."""
        sums = []
        if self.keys:
            at, others = (np.concatenate(column) for column in zip(*self.clicked, strict=True))
            sums.append(count_items(np.concatenate(self.keys), (at, others)))
        if self.rows:
            sums.append(sum_rows(self.rows))
        self.keys, self.clicked, self.rows = [], [], []
        for part in sums:
            push(self.parts, part, lambda one: len(one.key), total)

    def feedback(self, vocabulary: Vocabulary) -> Feedback:
        """All that was counted, with `vocabulary` naming the positions."""
        self.flush()
        nothing = np.zeros(0, dtype=np.int64)
        sums = total(self.parts or [count_items(nothing, (nothing, nothing))])
        Q = len(vocabulary.query_ids)
        impressions: CountsOrLimbs = np.pad(self.impressions, (0, Q - len(self.impressions)))
        if self.weights.shape[1]:
            weights = np.pad(self.weights, ((0, 0), (0, Q - self.weights.shape[1])))
            impressions = exact.carried(weights + exact.split(impressions, WEIGHT_LIMBS))
        return replace(unpacked(sums, vocabulary, impressions), anew=bool(self.anew), heaviest=self.heaviest or 1.0)


def unpacked(sums: Sums, vocabulary: Vocabulary, impressions: CountsOrLimbs) -> Feedback:
    """Sums as feedback.  Shapes: impressions [Q] or [3, Q]."""
    pair = sums.key >> RANK_BITS
    columns = {"shown": sums.shown, "clicks": sums.clicks, "logged": sums.logged, "impressions": impressions}
    limbs = {name: x for name, x in columns.items() if x is not None and x.ndim == 2}
    values: dict[str, Any] = {
        name: exact.value(limbs[name]) if name in limbs else None if x is None else x.astype(np.float64)
        for name, x in columns.items()
    }
    return Feedback(
        vocabulary,
        (pair >> ITEM_BITS).astype(np.int32),
        (pair & (2**ITEM_BITS - 1)).astype(np.int32),
        (sums.key & (2**RANK_BITS - 1)).astype(np.int16),
        **values,
        exact=Exact(**limbs),
        others=None if sums.others is None else sums.others.astype(np.float64),
    )


def renamed(feedback: Feedback, vocabulary: Vocabulary) -> tuple[Sums, CountsOrLimbs]:
    """The sums and impressions of `feedback` in the positions of a vocabulary that has all its ids."""
    query = vocabulary.queries(feedback.vocabulary.query_ids)
    item = vocabulary.items(feedback.vocabulary.item_ids)
    key = pack(query[feedback.query], item[feedback.item], feedback.rank)
    weighted = feedback.weighted or not all(_counts(x) for x in (feedback.shown, feedback.clicks, feedback.impressions))
    shown, clicks, before = (
        feedback.limbs(name, WEIGHT_LIMBS) if weighted else getattr(feedback, name).astype(np.int64)
        for name in ("shown", "clicks", "impressions")
    )
    logged = None if feedback.logged is None else feedback.limbs("logged", INVERSE_LIMBS)
    impressions = np.zeros((*before.shape[:-1], len(vocabulary.query_ids)), dtype=before.dtype)
    impressions[..., query] = before
    others = feedback.others if feedback.others is not None and len(feedback.others) == len(key) else None
    return Sums(key, shown, clicks, logged, others), impressions


def in_vocabulary(feedback: Feedback, vocabulary: Vocabulary) -> Feedback:
    """The same feedback in the positions of a vocabulary that has all its ids."""
    sums, impressions = renamed(feedback, vocabulary)
    return replace(unpacked(total([sums]), vocabulary, impressions), anew=feedback.anew, heaviest=feedback.heaviest)


def _counts(x: NDArray[np.float64]) -> bool:
    """Whether sums of these numbers are exact in float64: they are integers far from its end."""
    return bool((x == np.rint(x)).all() and x.max(initial=0.0) < 2**50)


def merge(feedbacks: Sequence[Feedback]) -> Feedback:
    """The feedback of several logs together, the same bits in any order.

    With one vocabulary throughout it stays; otherwise the result's holds all ids, sorted.
    """
    if not feedbacks:
        raise LogError("expected at least one log to merge; got none.")
    first = feedbacks[0].vocabulary
    if all(same_ids(first, f.vocabulary) for f in feedbacks[1:]):
        vocabulary = first
    else:
        vocabulary = Vocabulary(
            _union([f.vocabulary.query_ids for f in feedbacks], "query_id", QUERY_BITS),
            _union([f.vocabulary.item_ids for f in feedbacks], "item_id", ITEM_BITS),
        )
    sums, impressions = zip(*(renamed(f, vocabulary) for f in feedbacks), strict=True)
    if any(x.ndim == 2 for x in impressions):
        impressions = tuple(exact.split(x, WEIGHT_LIMBS) if x.ndim == 1 else x for x in impressions)
        together: CountsOrLimbs = exact.carried(np.sum(impressions, axis=0))
    else:
        together = np.sum(impressions, axis=0)
    anew, heaviest = all(f.anew for f in feedbacks if f.N), max((f.heaviest for f in feedbacks if f.N), default=1.0)
    return replace(unpacked(total(sums), vocabulary, together), anew=anew, heaviest=heaviest)


def _union(ids: Sequence[pl.Series], column: str, bits: int) -> pl.Series:
    """All ids, sorted; there must be a position for each."""
    if len({series.dtype == pl.String for series in ids if len(series)}) > 1:
        raise LogError(f"column {column}: integers in one log and strings in another. Convert them to the same type.")
    union = pl.concat([plain_ids(series).rename(column) for series in ids if len(series)] or [ids[0]]).unique().sort()
    check_number(union, bits)
    return union
