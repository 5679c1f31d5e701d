"""A log in more detail than its sums: what depends on the impression itself, and not on query, item and rank alone.

Rows of (query, item, rank) are split by the place of the item in the list that another system *would* have shown (its shadow
list), by what the item was worth, and, where it was clicked, by its own propensity. So each of these is one number per row,
every estimator takes such rows as it takes sums, and their sums are exact: counts times that number.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.frames import read_table, refuse_again
from tandemrank._base.ids import IdRegistry, Vocabulary, plain_ids
from tandemrank.errors import ConfigError, DataError, LogError
from tandemrank.logs.feedback import Feedback
from tandemrank.logs.impressions import FlatImpressions
from tandemrank.logs.schema import LISTED, LONG, MOST_RANKS, WIDE, is_long
from tandemrank.logs.sources import Batch, Source, impressions_in, sound_batches
from tandemrank.logs.sums import MIXED, Tally, clicks_beside, pack

Floats = NDArray[np.float64]
AGAIN = 4_000_000  # rows that wait before they are added up again
NOWHERE = -1  # place of an item that is not in a shadow list


@dataclass(frozen=True)
class Shadow:
    """The lists that another system would have shown: a column of the log, or a table with `impression_id` and `items`."""

    name: str
    source: str | Path | pl.DataFrame = "shadow_items"

    def table(self) -> pl.DataFrame | None:
        """The lists by impression; None where they are a column of the log."""
        if isinstance(self.source, str):
            return None
        frame, name = read_table(self.source, f"the lists of {self.name}")
        if missing := [c for c in ("impression_id", "items") if c not in frame.columns]:
            raise DataError(f"{name}: expected the columns impression_id and items; {missing[0]} is not there.")
        ids = frame["impression_id"].cast(pl.String)
        refuse_again([ids], name)
        return pl.DataFrame([ids, frame["items"].alias(self.name)])


@dataclass(frozen=True)
class Details:
    """A log whose rows are split, and the same log as sums.

    `of`: the row of `whole` that each row is a part of. `places`: of the item in each shadow list, from 0. `reward`: what the
    items of a row were worth, None where nobody asked. `propensity`: the logged one of each row's impressions, pooled where
    nothing was clicked. `lists`: the shadow lists as if they had been shown. `listed`: how many items they have at each
    rank, and `beside`: how many of these were in the shown list, too. `left_out`: impressions without all shadow lists.
    Shapes: of, reward, propensity [P]; places [S, P]; listed, beside [S, ranks].
    """

    whole: Feedback
    rows: Feedback
    of: NDArray[np.int64]
    places: NDArray[np.int16]
    reward: Floats | None
    propensity: Floats | None
    lists: tuple[Feedback, ...]
    listed: Floats
    beside: Floats
    left_out: int = 0


def read_details(
    source: Source,
    *,
    shadows: Sequence[Shadow] = (),
    reward: str | None = None,
    vocabulary: Vocabulary | None = None,
    chosen: Callable[[NDArray[np.int64]], NDArray[np.bool_]] | None = None,
) -> Details:
    """Reads a log in detail. `reward`: the column of what clicked items were worth, of each shown item as `clicks` are.

    Impressions that have no list of some shadow are left out, so that all systems are asked about the same. `chosen`: which
    impressions count, by their numbers in the log. With a `vocabulary` every id must be in it.
    """
    names = [one.name for one in shadows]
    if len(set(names)) < len(names):
        raise ConfigError(f"expected every shadow list once; got {max(names, key=names.count)!r} twice.")
    if reward in (*WIDE, *LONG) and reward not in ("value", "values"):
        raise ConfigError(
            f"a reward is a column of its own, what clicked items were worth; got {reward!r}. Name another."
        )
    made = _Maker(tuple(shadows), reward, vocabulary, chosen)
    for piece, frame in sound_batches(source, also=made.also):
        made.add(piece, frame)
    return made.details()


class _Maker:
    """Collects the rows of a log, batch by batch."""

    def __init__(
        self,
        shadows: tuple[Shadow, ...],
        reward: str | None,
        vocabulary: Vocabulary | None,
        chosen: Callable[[NDArray[np.int64]], NDArray[np.bool_]] | None,
    ) -> None:
        self.shadows, self.reward, self.chosen, self.number = shadows, reward, chosen, 0
        self.tables = tuple(one.table() for one in shadows)
        self.names, self.tally, self.lists = IdRegistry(vocabulary), Tally(), [Tally() for _ in shadows]
        self.parts: list[pl.DataFrame] = []
        self.listed, self.beside = (np.zeros((len(shadows), MOST_RANKS)) for _ in range(2))
        self.left_out = 0
        self.has_propensities: bool | None = None

    @property
    def also(self) -> dict[str, str]:
        """The columns that are needed beside those of every log."""
        lists = {
            str(one.source): "items" for one, table in zip(self.shadows, self.tables, strict=True) if table is None
        }
        return lists | ({} if self.reward is None else {self.reward: "values"})

    def add(self, piece: Batch, frame: pl.DataFrame) -> None:
        """Another batch."""
        frame, lists = self._lists_of(frame, piece.name)
        if not len(frame):
            return
        shown = self._of_chosen(impressions_in(piece, self._rewarded(frame, piece.name), self.names))
        places = np.stack([np.zeros(len(shown.item), np.int16), *self._places(shown, lists, piece.name)])[1:]
        if self.has_propensities not in (None, has := shown.propensity is not None):
            raise LogError(f"{piece.name}, {MIXED}")
        self.has_propensities = has
        self.tally.add(shown)
        self.parts.append(_split(shown, places))
        if sum(map(len, self.parts)) > AGAIN:
            self.parts = [_added(pl.concat(self.parts))]

    def _of_chosen(self, shown: FlatImpressions) -> FlatImpressions:
        """Those that count."""
        numbers = np.arange(self.number, self.number + len(shown.query))
        self.number += len(numbers)
        return shown if self.chosen is None else shown.take(self.chosen(numbers))

    def _lists_of(self, frame: pl.DataFrame, name: str) -> tuple[pl.DataFrame, list[pl.Series]]:
        """The impressions that have all shadow lists, and these."""
        if self.shadows and is_long(frame.columns):
            raise LogError(f"{name}: shadow lists are asked of a wide log, one row per impression; this one is long.")
        wanted = []
        for shadow, table in zip(self.shadows, self.tables, strict=True):
            if table is None:
                wanted.append(frame[str(shadow.source)])
            elif "impression_id" not in frame.columns:
                raise LogError(f"{name}: expected the column impression_id, by which {shadow.name!r} is joined.")
            else:
                ids = frame.select(pl.col("impression_id").cast(pl.String))
                wanted.append(ids.join(table, on="impression_id", how="left", maintain_order="left")[shadow.name])
        there = np.all([one.is_not_null().to_numpy() for one in wanted] or [np.ones(len(frame), np.bool_)], axis=0)
        self.left_out += int((~there).sum())
        return frame.filter(there), [one.filter(pl.Series(there)) for one in wanted]

    def _rewarded(self, frame: pl.DataFrame, name: str) -> pl.DataFrame:
        """The frame with the reward as the values of its items."""
        if self.reward is None:
            return frame
        ours, dtype = "value" if is_long(frame.columns) else "values", frame.schema[self.reward]
        inner = dtype.inner if isinstance(dtype, pl.List | pl.Array) else dtype
        if isinstance(dtype, pl.List | pl.Array) != (ours in LISTED.values()) or not inner.is_numeric():
            raise LogError(f"{name}, column {self.reward}: expected numbers, one of each shown item; got {dtype}.")
        kept = [c for c in frame.columns if c == self.reward or c not in ("value", "values")]
        return frame.select(kept).rename({self.reward: ours})

    def _places(self, shown: FlatImpressions, lists: list[pl.Series], name: str) -> Iterator[NDArray[np.int16]]:
        """The place of every shown item in each shadow list, which are counted on the way."""
        for number, (shadow, own) in enumerate(zip(self.shadows, lists, strict=True)):
            where = f"{name}, shadow list {shadow.name!r}"
            inner = own.dtype.inner if isinstance(own.dtype, pl.List | pl.Array) else None
            if inner is None or not (inner.is_integer() or inner in (pl.String, pl.Categorical, pl.Enum)):
                raise LogError(f"{where}: expected lists of ids; got {own.dtype}.")
            listed = _listed(own, shown, self.names)
            if (listed.item < 0).any() or listed.length.max(initial=0) > MOST_RANKS:
                raise LogError(f"{where}: expected up to {MOST_RANKS} ids, of the type that `items` has; got others.")
            found = _place_of(shown, listed, where)
            self.listed[number] += np.bincount(listed.rank, minlength=MOST_RANKS)
            self.beside[number] += np.bincount(found[found >= 0], minlength=MOST_RANKS)
            self.lists[number].add(listed)
            yield found

    def details(self) -> Details:
        """All that was read."""
        if not self.parts:
            raise LogError("expected a log with impressions that have every list that is asked about; got none.")
        names = self.names.vocabulary()
        whole = self.tally.feedback(names)
        rows = _added(pl.concat(self.parts)).sort("query", "item", "rank", *self._split_by)
        split = Feedback(
            vocabulary=names,
            query=rows["query"].to_numpy(),
            item=rows["item"].to_numpy(),
            rank=rows["rank"].to_numpy(),
            shown=rows["shown"].to_numpy(),
            clicks=np.where(rows["click"].to_numpy(), rows["shown"].to_numpy(), 0.0),
            logged=rows["logged"].to_numpy() if self.has_propensities else None,
            impressions=whole.impressions,
            exact={name: limbs for name, limbs in whole.exact.items() if name == "impressions"},
            others=rows["others"].to_numpy().astype(np.float64),
            anew=whole.anew,
            heaviest=whole.heaviest,
        )
        sums, own = (pack(x.query, x.item, x.rank) for x in (whole, split))
        return Details(
            whole=whole,
            rows=split,
            of=np.searchsorted(sums, own),
            places=np.array([rows[f"place{n}"].to_numpy() for n in range(len(self.shadows))], np.int16).reshape(
                len(self.shadows), len(rows)
            ),
            reward=None if self.reward is None else rows["value"].to_numpy(),
            propensity=split.propensity,
            lists=tuple(tally.feedback(names) for tally in self.lists),
            listed=self.listed,
            beside=self.beside,
            left_out=self.left_out,
        )

    @property
    def _split_by(self) -> list[str]:
        return [c for c in self.parts[0].columns if c not in ("query", "item", "rank", *SUMS)]


def _listed(lists: pl.Series, shown: FlatImpressions, names: IdRegistry) -> FlatImpressions:
    """Shadow lists as if they had been shown."""
    length = lists.list.len().cast(pl.Int64).to_numpy()
    item, _ = names.items(plain_ids(lists.explode(empty_as_null=False)))
    rank = (np.arange(len(item)) - np.repeat(np.cumsum(length) - length, length)).astype(np.int16)
    click = np.zeros(len(item), np.uint8)
    return FlatImpressions(
        query=shown.query, length=length, weight=shown.weight, item=item, rank=rank, click=click, propensity=None
    )


def _place_of(shown: FlatImpressions, listed: FlatImpressions, where: str) -> NDArray[np.int16]:
    """The rank of every shown item in the other list of its impression, NOWHERE where it is not in it.  Shapes: -> [m]."""
    size = np.int64(max(int(x.item.max(initial=0)) for x in (shown, listed)) + 1)
    wanted, key = (np.repeat(np.arange(len(x.length)), x.length) * size + x.item for x in (shown, listed))
    if not len(key):
        return np.full(len(wanted), NOWHERE, np.int16)
    order = np.argsort(key, kind="stable")
    key = key[order]
    if (twice := np.diff(key) == 0).any():
        row = int(key[1:][twice][0] // size)
        raise LogError(f"{where}: expected each item once; impression {row} of this batch has one twice.")
    place = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    return np.where(key[place] == wanted, listed.rank[order][place], NOWHERE).astype(np.int16)


SUMS = ("shown", "logged", "others")


def _split(shown: FlatImpressions, places: NDArray[np.int16]) -> pl.DataFrame:
    """The shown items of a batch, added up where nothing tells them apart.  Shapes: places [S, m]."""
    m, (at, others) = len(shown.item), clicks_beside(shown)
    weight = np.ones(m) if shown.weight is None else np.repeat(shown.weight, shown.length)
    beside = np.zeros(m, np.int64)
    beside[at] = others
    clicked = shown.click.astype(np.bool_)
    p = np.ones(m) if shown.propensity is None else shown.propensity
    columns = {
        "query": np.repeat(shown.query, shown.length).astype(np.int32),
        "item": shown.item.astype(np.int32),
        "rank": shown.rank.astype(np.int16),
        **{f"place{n}": place for n, place in enumerate(places)},
        "click": clicked,
        "value": np.zeros(m) if shown.value is None else shown.value,
        "p": np.where(clicked, p, 0.0),
        "shown": weight,
        "logged": weight / p,
        "others": beside,
    }
    return _added(pl.DataFrame(columns))


def _added(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.group_by([c for c in rows.columns if c not in SUMS]).agg(pl.col(SUMS).sum())
