"""What a model of features sees: rows of numbers of queries and of items, and numbers of pairs.

A row of a query or an item has, in this order,

    known      how often it was shown, its click rate, and that of each of its categories
    opinion    its vector in production's opinion (`choice`): by what directions production tells queries and items apart
    features   the user's own columns, encoded (`policies.features`)

all standardised. One that the log has not seen has the mean of what is known, and the opinion that its features suggest: a
ridge regression, as strong as leaving one out says.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tandemrank._base.cluster import ALONE, Group
from tandemrank._base.frames import LARGEST
from tandemrank._base.ids import Vocabulary, positions_of
from tandemrank.beliefs.counts import Counts
from tandemrank.beliefs.regression import Ridge
from tandemrank.errors import DataError, InputError
from tandemrank.policies import features as tables
from tandemrank.policies.features import Encoder, FeatureSource

Floats = NDArray[np.float64]
Floats32 = NDArray[np.float32]
Items = NDArray[np.integer]

CONSTANT = 1e12  # the scale of a column that never varies: it is 0
FARTHEST = 6.0  # deviations at which a column is cut
SHRINK = 10.0  # examinations at the mean rate that are added to every rate
# How well a column alone tells clicks from non-clicks before we say so: clicks are noisy, and a table that was made of the
# whole log also has the clicks of what is held out. Pairs to tell by.
LEAK, LEAK_PAIRS = 0.95, 50_000


ROW = "of having a row in the table of pairs"


@dataclass(frozen=True)
class Encoded:
    """Features of one side as numbers, and the codes of categories.  Shapes: numbers [n, J]; codes [n, C]."""

    encoder: Encoder
    numbers: Floats32
    codes: NDArray[np.int64]


@dataclass(frozen=True)
class PairTable:
    """Numbers of some pairs, each pair once.  Shapes: query, item [n]; values [n, J]."""

    query: NDArray[np.int64]
    item: NDArray[np.int64]
    values: Floats
    names: tuple[str, ...]


@dataclass(frozen=True)
class Features:
    """Tables with a row for each query and each item, in the order of their numbers, and of pairs.

    None where nothing is known.
    """

    query: Floats | pl.DataFrame | None = None
    item: Floats | pl.DataFrame | None = None
    pair: PairTable | None = None

    @classmethod
    def of(
        cls,
        vocabulary: Vocabulary,
        *,
        query: FeatureSource | None = None,
        item: FeatureSource | None = None,
        pair: FeatureSource | None = None,
    ) -> "Features":
        """Of tables with ids; a query or an item without a row has its features missing, a pair as well."""
        sides = {}
        for name, source, ids in (("query", query, vocabulary.query_ids), ("item", item, vocabulary.item_ids)):
            if source is not None:
                frame = tables.read(source, f"{name}_id")
                place = tables.places(frame, f"{name}_id", ids)
                every = pl.concat([frame, frame.clear(1)])[np.where(place < 0, len(frame), place)]
                sides[name] = every.drop(f"{name}_id")
        return cls(**sides, pair=None if pair is None else pair_table(pair, vocabulary))

    def encoded(self, Q: int, D: int) -> tuple[Encoded, Encoded]:
        """Numbers, no columns where nothing is known."""
        return _encoded(self.query, Q, "query", "queries"), _encoded(self.item, D, "item", "items")

    def known(self, Q: int, D: int) -> "KnownFeatures":
        """All as numbers."""
        pair = self.pair
        given = None if pair is None else replace(pair, values=np.isfinite(pair.values).astype(np.float64))
        return KnownFeatures(self.encoded(Q, D), PairNumbers.of(pair, D), PairNumbers.of(given, D))


@dataclass(frozen=True)
class KnownFeatures:
    """Features of queries and items as numbers, and of pairs; `given`: which numbers of pairs are not missing."""

    encoded: tuple[Encoded, Encoded]
    pairs: "PairNumbers"
    given: "PairNumbers"

    def of_queries(self, first: int, stop: int) -> "KnownFeatures":
        """For some of the queries, which become the first ones."""
        query, item = self.encoded
        own = replace(query, numbers=query.numbers[first:stop], codes=query.codes[first:stop])
        pairs, given = (x.of_queries(torch.arange(first, stop)) for x in (self.pairs, self.given))
        return KnownFeatures((own, item), pairs, given)


def pair_table(source: FeatureSource, vocabulary: Vocabulary) -> PairTable:
    """A table of `query_id`, `item_id` and numbers; rows of ids that are not known are left out."""
    frame = tables.read_pairs(source)
    q, d = (
        positions_of(ids, frame[f"{side}_id"], side, missing="mark")
        for side, ids in (("query", vocabulary.query_ids), ("item", vocabulary.item_ids))
    )
    known, names = (q >= 0) & (d >= 0), frame.columns[2:]
    if not known.any():
        raise DataError(
            f"the table of pairs: expected pairs of known queries and items; got none (first: query {frame['query_id'][0]!r}, "
            f"item {frame['item_id'][0]!r}). Check that both come from the same data."
        )
    return PairTable(q[known], d[known], frame[:, 2:].to_numpy()[known], tuple(names))


def _encoded(table: Floats | pl.DataFrame | None, n: int, side: str, plural: str) -> Encoded:
    if table is None:
        return Encoded(Encoder(f"{side}_id"), np.zeros((n, 0), np.float32), np.zeros((n, 0), np.int64))
    frame = table if isinstance(table, pl.DataFrame) else pl.DataFrame(np.asarray(table, np.float64))
    if len(frame) != n:
        raise InputError(
            f"expected features of {n} {plural}, one row each; got {len(frame)} rows. Add what is missing."
        )
    ids = pl.Series(f"{side}_id", np.arange(n))
    frame = tables.read(
        frame.insert_column(0, ids) if isinstance(table, np.ndarray) else frame.with_columns(ids), ids.name
    )
    encoder = tables.fit(frame, ids.name)
    found = tables.encode(encoder, frame, ids)
    return Encoded(encoder, tables.one_hot(encoder, found), found.categorical)


# --- rows -------------------------------------------------------------------------------------------------------------


class Side(nn.Module):
    """The rows of all queries, or of all items, and how a new one gets its own.

    Buffers: rows [n, J], what models see; seen [n], whether the log knows them; centre, scale [J]; rates, of all categories
    one after the other, each column's unknown first; opinion [features, F], the ridge regression.
    """

    rows: Tensor
    seen: Tensor
    centre: Tensor
    scale: Tensor
    rates: Tensor
    opinion: Tensor

    def __init__(self, encoder: dict[str, Any], n: int, F: int) -> None:
        super().__init__()
        self.encoder = tables.encoder_from(encoder)
        categories = self.encoder.categorical
        self.first = np.cumsum([0, *(len(c.values) + 1 for c in categories)])
        self.features = self.encoder.width + sum(min(len(c.values), tables.CATEGORIES) for c in categories)
        self.known, self.F = 2 + len(categories), F
        J = self.known + F + self.features
        self.register_buffer("rows", torch.zeros(n, J))
        self.register_buffer("seen", torch.zeros(n, dtype=torch.bool))
        self.register_buffer("centre", torch.zeros(J))
        self.register_buffer("scale", torch.ones(J))
        self.register_buffer("rates", torch.zeros(int(self.first[-1])))
        self.register_buffer("opinion", torch.zeros(self.features, F))

    def spec(self) -> dict[str, Any]:
        """The arguments of its constructor, plain JSON."""
        return {"encoder": self.encoder.as_json(), "n": len(self.rows), "F": self.F}

    @property
    def width(self) -> int:
        """The columns of a row."""
        return self.rows.shape[1]

    def table(self, values: Mapping[str, object]) -> pl.DataFrame:
        """A row of features by their names; what is not given is missing."""
        if strange := [name for name in values if name not in self.encoder.names]:
            raise DataError(
                f"expected features among {', '.join(self.encoder.names) or 'none'}; got {strange[0]!r}. Leave it out."
            )
        frame = pl.DataFrame({self.encoder.id_column: [0]})
        for number in self.encoder.numeric:
            value = values.get(number.name)
            if isinstance(value, str) or (isinstance(value, float | int) and not abs(value) < LARGEST):
                raise DataError(
                    f"the feature {number.name} must be a number below {LARGEST:g} in size, or null; got {value!r:.60}."
                )
            frame = frame.with_columns(pl.Series(number.name, [value], pl.Float64, strict=False))
        for category in self.encoder.categorical:
            value = values.get(category.name)
            frame = frame.with_columns(pl.Series(category.name, [None if value is None else str(value)], pl.String))
        return frame

    def encoded(self, values: Mapping[str, object]) -> Encoded:
        """The features of one that the log has not seen, by their names; what is not given is missing."""
        return self.of_table(self.table(values), 1)

    def of_table(self, frame: pl.DataFrame | None, n: int) -> Encoded:
        """The features of n that the log has not seen, by a table of them in this order; None: all is missing."""
        if frame is None:
            frame = pl.concat([self.table({})] * n).with_columns(pl.Series(self.encoder.id_column, range(n)))
        found = tables.encode(self.encoder, frame, frame[self.encoder.id_column])
        return Encoded(self.encoder, tables.one_hot(self.encoder, found), found.categorical)

    def opinions(self, encoded: Encoded) -> Tensor:
        """The vectors in production's opinion that features suggest.  Shapes: -> [n, F]."""
        return torch.from_numpy(encoded.numbers) @ self.opinion

    def with_rows(self, rows: Tensor, seen: Tensor) -> "Side":
        """The same side with other rows.  Shapes: rows [n, J]; seen [n]."""
        found = copy.copy(self)
        found._buffers = {**self._buffers, "rows": rows, "seen": seen}
        return found

    def unseen(self, encoded: Encoded) -> Tensor:
        """Rows as of queries or items that the log has not seen.  Shapes: -> [n, J]."""
        # Never shown is far from all that models were fitted to: the mean of how often, and how often clicked, instead.
        known = self.centre[:2].expand(len(encoded.numbers), 2)
        rates = self.rates[torch.from_numpy(encoded.codes + self.first[:-1])]
        return self.standardised(
            torch.cat([known, rates, self.opinions(encoded), torch.from_numpy(encoded.numbers)], 1)
        )

    def standardised(self, rows: Tensor) -> Tensor:
        """Rows, or their first columns, in deviations from the mean.  Shapes: [n, J] -> [n, J]."""
        J = rows.shape[1]
        return ((rows - self.centre[:J]) / self.scale[:J]).clamp(-FARTHEST, FARTHEST)


@dataclass(frozen=True)
class Clicks:
    """Known columns before they are standardised: of rows, and of categories.  Shapes: rows [n, 2 + C]."""

    rows: Floats32
    of_codes: tuple[Floats32, ...]

    @classmethod
    def of(cls, encoded: Encoded, side: str, counts: Counts, share: float = 1.0) -> "Clicks":
        """Of the pairs of counts, which are a share of all; `side`: of queries ("query"), or of items."""
        by, group = (counts.by_query, counts.group) if side == "query" else (counts.by_item, ALONE)
        sums = np.column_stack([by(x) for x in (counts.n, counts.E, counts.C)]) / share
        total = group.sum(sums.sum(0))
        rate = (total[2] + 0.5) / (total[1] + 1)

        def log_rate(sums: Floats) -> Floats32:
            """Over the mean rate, shrunk to it."""
            found: Floats = np.log((sums[:, 2] / rate + SHRINK) / (sums[:, 1] + SHRINK))
            return found.astype(np.float32)

        of_codes = tuple(
            log_rate(group.sum(np.column_stack([np.bincount(code, x, len(category.values) + 1) for x in sums.T])))
            for code, category in zip(encoded.codes.T, encoded.encoder.categorical, strict=True)
        )
        columns = [np.log1p(sums[:, 0]), log_rate(sums)]
        columns += [of[code] for of, code in zip(of_codes, encoded.codes.T, strict=True)]
        return cls(np.column_stack(columns).astype(np.float32), of_codes)


def side_of(encoded: Encoded, clicks: Clicks, vectors: Floats, seen: NDArray[np.bool_], group: Group = ALONE) -> Side:
    """A side of a log.

    `vectors`: production's opinion; `seen`: rows that have one, the others get what their features suggest; `group`: who has
    the other rows.  Shapes: vectors [n, F]; seen [n].
    """
    side = Side(encoded.encoder.as_json(), len(seen), vectors.shape[1])
    for j, rates in enumerate(clicks.of_codes):
        side.rates[side.first[j] : side.first[j] + len(rates)] = torch.from_numpy(rates)
    if side.features:
        numbers, own = group.gather(encoded.numbers[seen]), group.gather(vectors[seen])
        side.opinion[:] = torch.from_numpy(Ridge.of(numbers).weights(own).astype(np.float32))
    rows = torch.from_numpy(np.hstack([clicks.rows, vectors.astype(np.float32), encoded.numbers]))
    side.seen[:] = there = torch.from_numpy(seen)
    known = rows.double().numpy()
    known = known[seen] if group.total(seen.sum())[0] else known
    n = group.total(len(known))[0]
    centre = group.sum(known.sum(0)) / n
    spread = torch.from_numpy(np.sqrt(group.sum(np.square(known - centre).sum(0)) / n)).float()
    side.centre[:] = torch.from_numpy(centre)
    side.scale[:] = torch.where(spread > 1e-6, spread, torch.full_like(spread, CONSTANT))  # what never varies is 0
    side.rows[:] = torch.where(there[:, None], side.standardised(rows), side.unseen(encoded))
    return side


class PairNumbers(nn.Module):
    """Numbers of pairs: standardised, then a 1; of a pair without a row all 0.

    Buffers: key [n], sorted, query D + item; values [n, J + 1]; centre, scale [J].
    """

    key: Tensor
    values: Tensor
    centre: Tensor
    scale: Tensor

    def __init__(self, n: int, names: Sequence[str], D: int) -> None:
        super().__init__()
        self.names, self.D = tuple(names), D
        self.register_buffer("key", torch.zeros(n, dtype=torch.int64))
        self.register_buffer("values", torch.zeros(n, self.width))
        self.register_buffer("centre", torch.zeros(len(names), dtype=torch.float64))
        self.register_buffer("scale", torch.ones(len(names), dtype=torch.float64))

    @classmethod
    def of(cls, table: PairTable | None, D: int) -> "PairNumbers":
        """Of a table; a missing number is the mean, and what never varies is 0."""
        if table is None or not len(table.query):
            return cls(0, (), D)
        found = cls(0, table.names, D)
        known = np.isfinite(table.values)
        number = np.maximum(known.sum(0), 1)
        mean = np.where(known, table.values, 0).sum(0) / number
        spread = np.sqrt(np.square(np.where(known, table.values - mean, 0)).sum(0) / number)
        found.centre[:] = torch.from_numpy(mean)
        found.scale[:] = torch.from_numpy(np.where(spread > 1e-12, spread, CONSTANT))
        return found.plus(table)

    def together(self, group: Group, before: int) -> "PairNumbers":
        """Of the queries of all; so many of the others' come before ours."""
        return self.of_rows(group.gather(self.key.numpy() + before * self.D), group.gather(self.values.numpy()))

    def of_rows(self, key: NDArray[np.int64], values: Floats32) -> "PairNumbers":
        """Of other pairs.  Shapes: key [n], in order; values [n, J + 1]."""
        return self._with(torch.from_numpy(key), torch.from_numpy(values), self.D)

    def spec(self) -> dict[str, Any]:
        """The arguments of its constructor, plain JSON."""
        return {"n": len(self.key), "names": list(self.names), "D": self.D}

    @property
    def width(self) -> int:
        """The columns of a pair: none where there was no table."""
        return len(self.names) + 1 if self.names else 0

    def at(self, q: Tensor, d: Tensor) -> Tensor:
        """The numbers of pairs.  Shapes: [n] each -> [n, J + 1]."""
        if not len(self.key):
            return torch.zeros(len(q), self.width)
        key = q * self.D + d
        place = torch.searchsorted(self.key, key).clamp_max(len(self.key) - 1)
        return self.values[place] * (self.key[place] == key)[:, None]

    def plus(self, table: PairTable) -> "PairNumbers":
        """With more pairs, in the scale of the first; a pair that is known keeps its numbers."""
        if absent := [name for name in self.names if name not in table.names]:
            raise DataError(
                f"expected the columns {', '.join(self.names)} of pairs, as the policy has; got no {absent[0]}. Add it."
            )
        x = table.values[:, [table.names.index(name) for name in self.names]]
        numbers = (torch.from_numpy(x) - self.centre) / self.scale
        more = torch.cat([numbers.nan_to_num(0.0).clamp(-FARTHEST, FARTHEST).float(), torch.ones(len(x), 1)], 1)
        key = torch.from_numpy(table.query * self.D + table.item)
        new = ~torch.isin(key, self.key)
        key, order = torch.cat([self.key, key[new]]).sort()
        return self._with(key, torch.cat([self.values, more[new]])[order], self.D)

    def of_queries(self, q: Tensor) -> "PairNumbers":
        """The pairs of some queries, each as often as it is asked for.  Shapes: q [n]."""
        first, last = torch.searchsorted(self.key, torch.stack([q, q + 1]) * self.D)
        row = torch.repeat_interleave(torch.arange(len(q)), last - first)
        before = torch.cumsum(last - first, 0) - (last - first)
        place = torch.arange(len(row)) - before[row] + first[row]
        return self._with(row * self.D + self.key[place] % self.D, self.values[place], self.D)

    def of_items(self, items: NDArray[np.int64]) -> "PairNumbers":
        """The pairs of some items, in order, which become the first ones.  Shapes: items [n]."""
        place = torch.full((self.D,), -1)
        place[torch.from_numpy(items)] = torch.arange(len(items))
        item = place[self.key % self.D]
        key, kept = self.key // self.D * len(items) + item, item >= 0
        return self._with(key[kept], self.values[kept], len(items))

    def of_no_query(self) -> "PairNumbers":
        """Without any pair."""
        return self._with(self.key[:0], self.values[:0], self.D)

    def with_items(self, D: int) -> "PairNumbers":
        """The same pairs among more items."""
        return self._with(self.key // self.D * D + self.key % self.D, self.values, D)

    def _with(self, key: Tensor, values: Tensor, D: int) -> "PairNumbers":
        found = copy.copy(self)
        found.D, found._buffers = D, {**self._buffers, "key": key, "values": values}
        return found


# --- leaks ------------------------------------------------------------------------------------------------------------


def leaks(features: KnownFeatures, counts: Counts) -> tuple[str, ...]:
    """Columns that tell clicked pairs from others all by themselves, in words: such a column is probably the click itself.

    Of pairs also where a column, or the row, is missing: what is measured after a click is there for clicked pairs alone.
    """
    some, gather = counts.some(LEAK_PAIRS), counts.group.gather
    q, d, clicked = counts.query[some], counts.item[some].astype(np.int64), gather(counts.C[some] > 0)
    columns = [(name, gather(side.numbers[at, j])) for side, at in zip(features.encoded, (q, d), strict=True)
               for j, name in enumerate(c.name for c in side.encoder.numeric)]  # fmt: skip
    for pairs in (features.pairs, features.given) if features.pairs.names else ():
        values = pairs.at(torch.from_numpy(q), torch.from_numpy(d)).numpy()
        columns += [(name, gather(values[:, j])) for j, name in enumerate((*pairs.names, ROW))]
    found = dict.fromkeys(
        name
        for name, values in columns
        if clicked.any() and not clicked.all() and abs(_auc(values, clicked) - 0.5) > LEAK - 0.5
    )
    return tuple(
        f"The feature {name} alone tells clicked pairs from the others. Check that it is known before the click."
        for name in found
    )


def _auc(values: Floats32, clicked: NDArray[np.bool_]) -> float:
    """The chance that a clicked pair has the larger value.  Shapes: [n] each."""
    n, (_, place, ties) = int(clicked.sum()), np.unique(values, return_inverse=True, return_counts=True)
    rank = (np.cumsum(ties) - (ties - 1) / 2)[place]
    return float((rank[clicked].sum() - n * (n + 1) / 2) / (n * (len(clicked) - n)))
