"""What people read instead of ids: a table of `item_id` or `query_id` with `title`, and of items also `url` and `image`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import polars as pl

from tandemrank._base.frames import Table, ids_of, read_table, refuse_again, refuse_rows
from tandemrank._base.ids import Id
from tandemrank.errors import DataError

TitleSource = Table
COLUMNS = ("title", "url", "image")
# Of the web, or relative to the page: a link of another kind may run a program.
ADDRESS = r"^(?i:https?://)[^\x00-\x20\\]+$|^/?[^\x00-\x20/\\:][^\x00-\x1f\\:]*$"
UNSEEN = r"[\x00-\x1f\x7f-\x9f\u{202a}-\u{202e}\u{2066}-\u{2069}]+"  # what moves a cursor, or turns the text round


class Title(NamedTuple):
    """What an item or a query is called; an address of it and of its picture, empty where there is none."""

    title: str = ""
    url: str = ""
    image: str = ""


NONE = Title()


class TitleTable:
    """Titles by id; the integer 17 and the string "17" are the same."""

    def __init__(self, ids: pl.Series | None = None, rows: pl.DataFrame | None = None) -> None:
        self.ids = pl.Series([], dtype=pl.Int64) if ids is None else ids
        self._rows = pl.DataFrame(schema=dict.fromkeys(COLUMNS, pl.String)) if rows is None else rows
        self._at = {str(name): n for n, name in enumerate(self.ids.to_list())}

    def __len__(self) -> int:
        """How many ids have a title."""
        return len(self._at)

    def of(self, name: Id | None) -> Title:
        """The title of an id; an empty one where the table has none."""
        row = self._at.get(str(name))
        return NONE if row is None else Title(*self._rows.row(row))

    def search(self, words: str, most: int) -> list[tuple[Id, str]]:
        """The first ids whose title has these words in it, in any case, with their titles."""
        found = self._rows["title"].str.to_lowercase().str.contains(words.lower(), literal=True).arg_true()[:most]
        return list(zip(self.ids[found].to_list(), self._rows["title"][found].to_list(), strict=True))


@dataclass(frozen=True)
class Titles:
    """Those of items and of queries."""

    items: TitleTable = field(default_factory=TitleTable)
    queries: TitleTable = field(default_factory=TitleTable)


def read_titles(*sources: TitleSource) -> Titles:
    """One table of items, one of queries, or both."""
    found: dict[str, TitleTable] = {}
    for source in sources:
        frame, name = read_table(source, "the table of titles")
        side, table = _table(frame, name)
        if side in found:
            raise DataError(f"{name}: expected one table of {side}; got a second one. Put both into one.")
        found[side] = table
    return Titles(**found)


def _table(frame: pl.DataFrame, name: str) -> tuple[str, TitleTable]:
    """Whose titles these are, and the table."""
    there: Sequence[str] = [c for c in ("item_id", "query_id") if c in frame.columns]
    if len(there) != 1 or "title" not in frame.columns:
        got = ", ".join(frame.columns) or "none"
        raise DataError(f"{name}: expected the columns title and either item_id or query_id; got {got}.")
    ids = ids_of(frame, there[0], name)
    refuse_again([ids], name)
    rows = frame.select(
        (pl.col(c).cast(pl.String, strict=False).fill_null("") if c in frame.columns else pl.lit("")).alias(c)
        for c in COLUMNS
    )
    rows = rows.with_columns(pl.col("title").str.replace_all(UNSEEN, " ").str.strip_chars())
    for column in COLUMNS[1:]:
        wrong = (rows[column] != "") & ~rows[column].str.contains(ADDRESS)
        expected = "an address that begins with http:// or https://, or a relative one"
        refuse_rows(wrong, rows[column], name, expected, "Leave it empty where there is none")
    return ("items" if there[0] == "item_id" else "queries"), TitleTable(ids, rows)
