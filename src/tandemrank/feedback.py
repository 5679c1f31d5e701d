"""`Feedback`: the sums of a click log that every estimator needs, and the propensities that come from them.

    exposure of a row        theta_k * (impressions that showed d to q at rank k)
    rho_0(d | q)             the exposure of (q, d) over all ranks / impressions of q          (paper: propensity_def)

Every sum is exact: weights are multiples of 2^-20 and propensities of 2^-36, so sums of parts are the same bits in any
order, on one machine or on many. Nothing here has the size queries x items.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank import files, plackett_luce
from tandemrank.clicks import Impressions
from tandemrank.errors import ConfigError, LogError
from tandemrank.vocabulary import Vocabulary

Propensities = Callable[[Impressions], NDArray[np.float64]]
Part = TypeVar("Part")

# One 64-bit key holds (query, item, rank) and the click, so that a plain sort groups a log.
QUERY_BITS, ITEM_BITS, RANK_BITS = 27, 26, 9
WEIGHT_UNIT, PROPENSITY_UNIT = 2.0**-20, 2.0**-36
HELD_OUT = 3  # the stream of random keys that splits a log (clicks.py has the streams before it)
PENDING = 2**24  # shown items that wait for one sort: 128 MB of keys


@dataclass(frozen=True)
class Feedback:
    """What a log says, one row for each distinct (query, item, rank), sorted: enough for every estimator.

    `shown` and `clicks` are (weighted) numbers of impressions, `logged` the sum of the logged propensities in units of
    2^-36 or None where the log has none, `impressions` the (weighted) number of impressions of each query.
    Shapes: query, item, rank, shown, clicks, logged [P]; impressions [Q].
    """

    vocabulary: Vocabulary
    query: NDArray[np.int32]
    item: NDArray[np.int32]
    rank: NDArray[np.int16]
    shown: NDArray[np.float64]
    clicks: NDArray[np.float64]
    logged: NDArray[np.int64] | None
    impressions: NDArray[np.float64]

    @property
    def N(self) -> float:
        """The (weighted) number of impressions."""
        return float(self.impressions.sum())

    @property
    def Q(self) -> int:
        """The number of queries, logged or not."""
        return len(self.vocabulary.query_ids)

    @property
    def D(self) -> int:
        """The number of items, shown or not."""
        return len(self.vocabulary.item_ids)

    @property
    def propensity(self) -> NDArray[np.float64] | None:
        """The mean logged propensity of each row. Shapes: -> [P]."""
        return None if self.logged is None else self.logged * PROPENSITY_UNIT / self.shown


# --- propensities -----------------------------------------------------------------------------------------------------


def exposure(feedback: Feedback, theta: NDArray[np.float64]) -> NDArray[np.float64]:
    """The examination that each row collected: theta_k * shown. Shapes: theta [K] -> [P]."""
    if len(feedback.rank) and feedback.rank.max() >= len(theta):
        raise LogError(
            f"the log shows items at rank {feedback.rank.max() + 1}, but the examination curve ends at rank "
            f"{len(theta)}. Give a longer curve, with zeros where nobody looks."
        )
    theta_k: NDArray[np.float64] = np.asarray(theta)[feedback.rank]
    return theta_k * feedback.shown


def frequency_propensity(feedback: Feedback, theta: NDArray[np.float64]) -> NDArray[np.float64]:
    """rho_0(d | q) by its frequency in the log (paper: propensity_def), the same for all ranks of a pair.

    Shapes: theta [K] -> [P].
    """
    if not len(feedback.query):
        return np.zeros(0)
    new = (np.diff(feedback.query, prepend=-1) != 0) | (np.diff(feedback.item, prepend=-1) != 0)
    pair = np.add.reduceat(exposure(feedback, theta), np.flatnonzero(new))
    rho_0: NDArray[np.float64] = pair[np.cumsum(new) - 1] / feedback.impressions[feedback.query]
    return rho_0


def clip(rho_0: NDArray[np.float64], minimum: float) -> NDArray[np.float64]:
    """Propensities clipped from below: max(rho_0, minimum). Shapes: rho_0 [P] -> [P]."""
    return np.maximum(rho_0, minimum)


def paper_clip(N: float) -> float:
    """The authors' clipping of propensities from below: min(10 / sqrt(N), 1)."""
    return min(10 / float(np.sqrt(N)), 1.0)


def quantile_clip(rho_0: NDArray[np.float64], share: float) -> float:
    """The clip that touches the given share of the propensities above 0. Shapes: rho_0 [P]."""
    if not 0 <= share <= 1:
        raise ConfigError(f"expected a share from 0 to 1 of the propensities to clip; {share} came.")
    positive = rho_0[rho_0 > 0]
    return float(np.quantile(positive, share)) if len(positive) else 0.0


# --- sums -------------------------------------------------------------------------------------------------------------


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
class _Sums:
    """Sums by (query, item, rank), packed in one key, sorted. Shapes: all [P]."""

    key: NDArray[np.int64]
    shown: NDArray[np.float64]
    clicks: NDArray[np.float64]
    logged: NDArray[np.int64] | None


def _pack(query: NDArray[np.integer], item: NDArray[np.integer], rank: NDArray[np.integer]) -> NDArray[np.int64]:
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


def _count(key: NDArray[np.int64]) -> _Sums:
    """Sums of items with weight 1, from keys whose last bit is the click; overwrites them. Shapes: key [m]."""
    key.sort()
    group = key >> 1
    starts = _starts(group)
    shown = np.diff(starts, append=len(key)).astype(np.float64)
    key &= 1
    clicks = np.add.reduceat(key, starts).astype(np.float64) if len(key) else np.zeros(0)
    return _Sums(group[starts], shown, clicks, None)


def total(parts: Sequence[_Sums]) -> _Sums:
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

    return _Sums(key[starts], summed("shown"), summed("clicks"), summed("logged") if logged else None)


def push(parts: list[Part], part: Part, size: Callable[[Part], int], join: Callable[[list[Part]], Part]) -> None:
    """Keeps a part, and joins the last two while they are of similar size: log many parts, log many joins."""
    parts.append(part)
    while len(parts) > 1 and 2 * size(parts[-1]) >= size(parts[-2]):
        parts[-2:] = [join(parts[-2:])]


class _Tally:
    """Collects impressions into sums: a few large sorts, then merges of parts of similar size."""

    def __init__(self) -> None:
        self.keys: list[NDArray[np.int64]] = []  # waiting, those of weight 1 without propensities: a sort counts them
        self.rows: list[_Sums] = []  # waiting, the others
        self.parts: list[_Sums] = []
        self.impressions = np.zeros(0)

    def add(self, shown: Shown) -> None:
        """Counts more impressions."""
        counted = np.bincount(shown.query, weights=shown.weight, minlength=len(self.impressions)).astype(np.float64)
        counted[: len(self.impressions)] += self.impressions
        self.impressions = counted
        key = _pack(np.repeat(shown.query, shown.length), shown.item, shown.rank)
        if shown.weight is None and shown.propensity is None:
            key <<= 1
            key |= shown.click
            self.keys.append(key)
        else:
            weight = np.ones(len(key)) if shown.weight is None else np.repeat(shown.weight, shown.length)
            logged = None
            if shown.propensity is not None:
                logged = np.rint(weight * shown.propensity / PROPENSITY_UNIT).astype(np.int64)
            self.rows.append(_Sums(key, weight, weight * shown.click, logged))
        if sum(map(len, self.keys)) + sum(len(part.key) for part in self.rows) >= PENDING:
            self.flush()

    def flush(self) -> None:
        """Sorts and sums what is waiting."""
        sums = [_count(np.concatenate(self.keys))] if self.keys else []
        sums += [total(self.rows)] if self.rows else []
        self.keys, self.rows = [], []
        for part in sums:
            push(self.parts, part, lambda one: len(one.key), total)

    def feedback(self, vocabulary: Vocabulary) -> Feedback:
        """All that was counted, with `vocabulary` naming the positions."""
        self.flush()
        sums = self.parts[0] if len(self.parts) == 1 else total(self.parts or [_count(np.zeros(0, dtype=np.int64))])
        missing = len(vocabulary.query_ids) - len(self.impressions)
        return unpacked(sums, vocabulary, np.pad(self.impressions, (0, missing)))


def unpacked(sums: _Sums, vocabulary: Vocabulary, impressions: NDArray[np.float64]) -> Feedback:
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


def renamed(feedback: Feedback, vocabulary: Vocabulary) -> tuple[_Sums, NDArray[np.float64]]:
    """The sums and impressions of `feedback` in the positions of a vocabulary that has all its ids."""
    query = vocabulary.queries(feedback.vocabulary.query_ids)
    item = vocabulary.items(feedback.vocabulary.item_ids)
    impressions = np.zeros(len(vocabulary.query_ids))
    impressions[query] = feedback.impressions
    key = _pack(query[feedback.query], item[feedback.item], feedback.rank)
    return _Sums(key, feedback.shown, feedback.clicks, feedback.logged), impressions


def merge(feedbacks: Sequence[Feedback]) -> Feedback:
    """The feedback of several logs together, the same bits in any order.

    With one vocabulary throughout it stays; otherwise the result's holds all ids, sorted.
    """
    if not feedbacks:
        raise LogError("expected at least one log to merge; none came.")
    first = feedbacks[0].vocabulary
    if all(same(first, f.vocabulary) for f in feedbacks[1:]):
        vocabulary = first
    else:
        vocabulary = Vocabulary(
            _union([f.vocabulary.query_ids for f in feedbacks], "query_id", QUERY_BITS),
            _union([f.vocabulary.item_ids for f in feedbacks], "item_id", ITEM_BITS),
        )
    sums, impressions = zip(*(renamed(f, vocabulary) for f in feedbacks), strict=True)
    return unpacked(total(sums), vocabulary, np.sum(impressions, axis=0))


def same(a: Vocabulary, b: Vocabulary) -> bool:
    return a is b or (a.query_ids.equals(b.query_ids) and a.item_ids.equals(b.item_ids))


def _union(ids: Sequence[pl.Series], column: str, bits: int) -> pl.Series:
    """All ids, sorted; there must be a position for each."""
    if len({series.dtype == pl.String for series in ids if len(series)}) > 1:
        raise LogError(f"column {column}: integers in one log and strings in another. Convert them to the same type.")
    union = pl.concat([plain(series).rename(column) for series in ids if len(series)] or [ids[0]]).unique().sort()
    check_number(union, bits)
    return union


def check_number(ids: pl.Series, bits: int) -> None:
    """Refuses more ids than positions fit into the bits of a key."""
    if len(ids) > 2**bits:
        raise LogError(f"the log has more than {2**bits} different ids in one column, the most it may have.")


def plain(ids: pl.Series) -> pl.Series:
    """Ids as 64-bit integers or strings; null where an integer is too large."""
    return ids.cast(pl.Int64, strict=False) if ids.dtype.is_integer() else ids.cast(pl.String)


# --- without files ----------------------------------------------------------------------------------------------------


def from_impressions(
    parts: Iterable[Impressions], vocabulary: Vocabulary, *, propensities: Propensities | None = None
) -> Feedback:
    """Simulated impressions become feedback without a file."""
    shown = (shown_items(part, vocabulary, propensities) for part in parts)
    return tally(shown, lambda: vocabulary, (), 0)[0]


def split_impressions(
    parts: Iterable[Impressions],
    vocabulary: Vocabulary,
    held_out: float = 0.15,
    *,
    seed: int = 0,
    propensities: Propensities | None = None,
) -> tuple[Feedback, Feedback]:
    """As `from_impressions`, with the given share of the impressions held out: (for training, held out)."""
    check_shares(held_out)
    shown = (shown_items(part, vocabulary, propensities) for part in parts)
    used, apart = tally(shown, lambda: vocabulary, (held_out,), seed)
    return used, apart


def shown_items(part: Impressions, vocabulary: Vocabulary, propensities: Propensities | None) -> Shown:
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
    return Shown(part.query, length, None, item, rank, click, propensity)


def tally(
    parts: Iterable[Shown], vocabulary: Callable[[], Vocabulary], shares: Sequence[float], seed: int, first: int = 0
) -> tuple[Feedback, ...]:
    """Counts impressions: the rest first, then each held-out share apart.

    Which impressions are held out depends on the seed and on the number of the impression alone; `first` is that of the
    first one here.
    """
    tallies = [_Tally() for _ in range(1 + len(shares))]
    bounds = np.cumsum([*shares, 1.0])
    number = first
    for shown in parts:
        if shares:
            numbers = np.arange(number, number + len(shown.query))
            drawn = plackett_luce.uniforms(plackett_luce.random_keys(seed, HELD_OUT, numbers))
            part = (1 + np.searchsorted(bounds, drawn, side="right")) % len(tallies)
            for place, one in enumerate(tallies):
                one.add(shown.take(part == place))
        else:
            tallies[0].add(shown)
        number += len(shown.query)
    if number == first:
        raise LogError("expected a log with impressions; it is empty. Check the path and the filters that made it.")
    names = vocabulary()
    return tuple(one.feedback(names) for one in tallies)


def check_shares(*shares: float) -> None:
    if not (min(shares) >= 0 and sum(shares) < 1):
        came = " and ".join(map(str, shares))
        raise ConfigError(f"expected a share of impressions to hold out, 0 or more and below 1; {came} came.")


# --- files ------------------------------------------------------------------------------------------------------------


def save(feedback: Feedback, path: str | Path) -> Path:
    """Writes feedback as a folder of three small Parquet files: the sums, the queries, the items."""
    columns = {name: getattr(feedback, name) for name in ("query", "item", "rank", "shown", "clicks", "logged")}
    with files.replacing(path) as folder:
        folder.mkdir()
        sums = pl.DataFrame({name: values for name, values in columns.items() if values is not None})
        sums.write_parquet(folder / "sums.parquet", compression="zstd", compression_level=1)
        queries = {"query_id": feedback.vocabulary.query_ids, "impressions": feedback.impressions}
        pl.DataFrame(queries).write_parquet(folder / "queries.parquet")
        pl.DataFrame({"item_id": feedback.vocabulary.item_ids}).write_parquet(folder / "items.parquet")
    return Path(path)


def load(path: str | Path) -> Feedback:
    """Reads feedback that `save` wrote; refuses a folder that is not one."""
    try:
        sums, queries, items = (pl.read_parquet(Path(path) / f"{n}.parquet") for n in ("sums", "queries", "items"))
        query, item, rank, shown, clicks = (sums[n].to_numpy() for n in ("query", "item", "rank", "shown", "clicks"))
        logged = sums["logged"].to_numpy() if "logged" in sums.columns else None
        vocabulary = Vocabulary(queries["query_id"], items["item_id"])
        feedback = Feedback(vocabulary, query, item, rank, shown, clicks, logged, queries["impressions"].to_numpy())
    except (pl.exceptions.PolarsError, OSError) as error:
        raise LogError(
            f"{path} is not saved feedback, or it is damaged: {error}. Build it from the log again."
        ) from error
    if len(query) and (query.max() >= feedback.Q or item.max() >= feedback.D):
        raise LogError(f"{path} is damaged: its sums name positions without an id. Build it from the log again.")
    return feedback
