"""A table with one row per impression: our own form, perhaps with names of its own."""

from collections.abc import Sequence

import polars as pl

from tandemrank.errors import LogError
from tandemrank.logs.importers.tables import Log, need
from tandemrank.logs.schema import WIDE


def wide(frames: Sequence[pl.DataFrame], click_names: frozenset[str]) -> Log:
    """One row per impression: `query_id, items, clicks`, perhaps `propensities` and more; other columns are left out."""
    rows = pl.concat([need(f, WIDE[:3], "wide") for f in frames], how="diagonal_relaxed")
    for column in WIDE[1:3]:
        if not isinstance(rows.schema[column], pl.List | pl.Array):
            raise LogError(
                f"wide: expected lists in column {column}; got {rows.schema[column]}. Is it one row per shown item? Then "
                "--from long."
            )
    notes = [] if "propensities" in rows.columns else ["no propensities: they are fitted to the lists, if these vary"]
    return Log(rows.select(c for c in WIDE if c in rows.columns), 0, tuple(notes))
