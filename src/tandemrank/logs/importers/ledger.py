"""What an import was given, what it kept and what it left out, in counts: given = kept + left out, of each kind."""

from dataclasses import dataclass, field

import polars as pl


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
