"""Rows of shown items, in any order, become a log: each item once in its list, at its position, with clicks and rewards.

Positions count from 1 in a log. Where those of the files begin with 0 all are moved by one; where there are gaps (an event was
lost, a place was an advertisement) they stay, and the log has its long form, one row per shown item.

A `Ledger` counts what an import was given, kept and left out: given = kept + left out, of each kind.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from tandemrank.logs.schema import LISTED, LONG, MOST_RANKS


@dataclass(frozen=True)
class Count:
    """So many of a kind were in the files, so many are in the log, and why the others are not.

    `repeats`: how many of those kept say what another says, as a second click on an item of a list does, and count once.
    """

    what: str
    given: int
    kept: int
    repeats: int
    left_out: dict[str, int]


@dataclass
class Ledger:
    """Counts while an import goes on, and what else a reader should know."""

    given: dict[str, int] = field(default_factory=dict)
    left_out: dict[tuple[str, str], int] = field(default_factory=dict)
    repeats: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def take(self, what: str, number: int) -> None:
        """So many of a kind are in the files."""
        self.given[what] = self.given.get(what, 0) + number

    def drop(self, what: str, why: str, number: int = 1) -> None:
        """So many of a kind are left out."""
        if number:
            self.left_out[what, why] = self.left_out.get((what, why), 0) + number

    def keep(self, what: str, rows: pl.DataFrame, right: pl.Expr, why_not: str) -> pl.DataFrame:
        """The rows of a kind that are right; the others are left out."""
        kept = rows.filter(right.fill_null(False))
        self.drop(what, why_not, len(rows) - len(kept))
        return kept

    def note(self, number: int, words: str) -> None:
        """A note that begins with a number, where it is not 0."""
        if number:
            self.notes.append(f"{number:,} {words}")

    def counts(self) -> tuple[Count, ...]:
        """Of each kind."""
        found = []
        for what in dict.fromkeys([*self.given, *(what for what, _ in self.left_out)]):
            why = {why: n for (kind, why), n in self.left_out.items() if kind == what}
            given = self.given.get(what, sum(why.values()))
            found.append(Count(what, given, given - sum(why.values()), self.repeats.get(what, 0), why))
        return tuple(found)


SHOWN, LISTS, CLICKS = "shown items", "impressions", "clicks"
PAIR = ["impression_id", "item_id"]


def ranked(rows: pl.DataFrame, ledger: Ledger, *, most: Sequence[str] = ()) -> pl.DataFrame:
    """Each item of an impression once, with its position from 1.

    `rows`: impression_id, query_id, item_id, position (a number, or null) and more. An item that is there twice, shown and then
    clicked, say, has its first place and the most of each column of `most`. The positions of an impression that has none for
    an item, or the same for two, are those of the order.
    """
    ledger.take(SHOWN, len(rows))
    rows = rows.with_row_index("row")
    for column in ("impression_id", "query_id", "item_id"):
        rows = ledger.keep(SHOWN, rows, pl.col(column).is_not_null(), f"have no {column}")
    one = pl.col("query_id").n_unique().over("impression_id") == 1
    rows = ledger.keep(SHOWN, rows, one, "are in an impression of several queries")
    rows = rows.with_columns(pl.col("position").cast(pl.Float64), *[pl.col(c).max().over(PAIR) for c in most])
    first = rows.sort("position", nulls_last=True, maintain_order=True).unique(PAIR, keep="first", maintain_order=True)
    ledger.drop(SHOWN, "show an item again in its list (a click on any of them counts)", len(rows) - len(first))
    place, within = pl.col("position"), "impression_id"
    odd = (place.is_null() | (place < 0) | (place != place.round()) | place.is_duplicated()).any().over(within)
    starts_at_0 = bool((first["position"] == 0).any())
    order = pl.int_range(1, pl.len() + 1).over(within)
    found = first.with_columns(odd=odd.fill_null(True)).with_columns(
        position=pl.when("odd").then(order).otherwise(place + starts_at_0).cast(pl.Int64)
    )
    tied = found.filter("odd")[within].n_unique()
    ledger.note(tied, "impressions have items without a position, or several at one: their order is that of the rows")
    far = f"are at a position beyond {MOST_RANKS}"
    return ledger.keep(SHOWN, found.drop("odd"), place <= MOST_RANKS, far)


def with_acts(rows: pl.DataFrame, acts: pl.DataFrame, ledger: Ledger, rewards: Sequence[str]) -> pl.DataFrame:
    """Shown items with what was done to them: `click`, and a column for each reward that some item has.

    `acts`: impression_id, item_id, name (`clicks`, or a reward) and amount.
    """
    shown = rows.select(*PAIR, known=pl.lit(True))
    lists = rows.select("impression_id", listed=pl.lit(True)).unique()
    acts = acts.join(lists, on="impression_id", how="left").join(shown, on=PAIR, how="left")
    rows = rows.with_columns(pl.lit(0.0).alias(CLICKS))
    for name in [CLICKS, *rewards]:
        some = acts.filter(pl.col("name") == name)
        if not len(some):
            continue
        ledger.take(name, len(some))
        some = ledger.keep(name, some, pl.col("impression_id").is_not_null(), "name no impression")
        some = ledger.keep(name, some, pl.col("item_id").is_not_null(), "name no item")
        some = ledger.keep(name, some, pl.col("listed"), "belong to no impression of the files")
        some = ledger.keep(name, some, pl.col("known"), "are on an item that the impression did not show")
        if not len(some):
            continue
        sums = some.group_by(PAIR).agg(pl.col("amount").sum().alias(name))
        if name == CLICKS:
            ledger.repeats[name] = len(some) - len(sums)
        rows = rows.drop(name, strict=False).join(sums, on=PAIR, how="left", maintain_order="left")
        rows = rows.with_columns(pl.col(name).fill_null(0.0))
    return with_clicks_of(rows.with_columns(click=pl.col(CLICKS) > 0).drop(CLICKS), ledger, rewards)


def with_clicks_of(rows: pl.DataFrame, ledger: Ledger, rewards: Sequence[str]) -> pl.DataFrame:
    """A reward without a click counts as clicked, too: who bought an item has looked at it."""
    rewarded = pl.any_horizontal(pl.lit(False), *[pl.col(c) > 0 for c in rewards if c in rows.columns])
    ledger.note(
        rows.filter(rewarded & (pl.col("click") == 0)).height, "items have a reward and no click, and count as clicked"
    )
    return rows.with_columns(click=((pl.col("click") > 0) | rewarded).cast(pl.UInt8))


def as_log(rows: pl.DataFrame, rewards: Sequence[str] = (), context: Sequence[str] = ()) -> pl.DataFrame:
    """The wide form, or the long one where positions have gaps. The first row of an impression says what is its own."""
    of_item = [c for c in ("item_id", "position", "click", "propensity", *rewards) if c in rows.columns]
    own = [c for c in dict.fromkeys((*LONG, *context)) if c in rows.columns and c not in (*of_item, "impression_id")]
    rows = rows.with_columns(pl.col(own).first().over("impression_id"))
    rows = rows.sort(pl.col("row").min().over("impression_id"), "position").select("impression_id", *own, *of_item)
    gaps = rows.group_by("impression_id").agg(gap=pl.col("position").max() != pl.len())["gap"].any()
    if gaps:
        return rows
    lists = [pl.col(c).alias(LISTED.get(c, c)) for c in of_item if c != "position"]
    return rows.group_by("impression_id", maintain_order=True).agg(pl.col(own).first(), *lists)
