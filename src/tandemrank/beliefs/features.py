"""Features of queries and items as numbers: what models of f see.

Numbers are standardised; a missing one is the mean, and a column says so. Strings are categories: one column for each of the
most frequent. A column that never varies is 0.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank.errors import InputError

Floats = NDArray[np.float64]
CATEGORIES = 30  # of a column that have a column of their own, the most frequent first


@dataclass(frozen=True)
class Features:
    """Tables with a row for each query and each item, in the order of their numbers; None where nothing is known."""

    query: Floats | pl.DataFrame | None = None
    item: Floats | pl.DataFrame | None = None

    def encoded(self, Q: int, D: int) -> tuple[Floats, Floats]:
        """Numbers, no columns where nothing is known.  Shapes: -> [Q, J], [D, J]."""
        found = []
        for name, table, n in (("queries", self.query, Q), ("items", self.item, D)):
            numbers = np.zeros((n, 0)) if table is None else _numbers(table)
            if len(numbers) != n:
                raise InputError(
                    f"expected features of {n} {name}, one row each; got {len(numbers)} rows. Add what is missing."
                )
            found.append(numbers)
        return found[0], found[1]


def _numbers(table: Floats | pl.DataFrame) -> Floats:
    frame = table if isinstance(table, pl.DataFrame) else pl.DataFrame(np.asarray(table, np.float64))
    columns = [np.zeros((len(frame), 0))]
    for series in frame:
        if series.dtype.is_numeric() or series.dtype == pl.Boolean:
            columns.append(_number(series.cast(pl.Float64).to_numpy()))
        else:
            names = series.cast(pl.String).fill_null("")
            common = names.value_counts(sort=True)[names.name or series.name].head(CATEGORIES).sort()
            columns.append(standardised((names.to_numpy()[:, None] == common.to_numpy()[None, :]).astype(np.float64)))
    return np.hstack(columns)


def _number(values: Floats) -> Floats:
    missing = ~np.isfinite(values)
    known = values[~missing]
    filled = np.where(missing, known.mean() if len(known) else 0.0, values)
    found = standardised(filled[:, None])
    return np.hstack([found, standardised(missing[:, None].astype(np.float64))]) if missing.any() else found


def standardised(table: Floats) -> Floats:
    """Columns with mean 0 and variance 1, at most 6 deviations; a column that never varies is 0.  Shapes: [n, J]."""
    centred = table - table.mean(0)
    spread = centred.std(0)
    found: Floats = np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 1e-12)
    return np.clip(found, -6, 6)
