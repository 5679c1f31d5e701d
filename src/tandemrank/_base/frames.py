"""Frames of polars and pandas as one kind of table."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import numpy as np
import polars as pl

UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)  # what reading a file of rows may raise


def columns_of(path: Path) -> list[str]:
    """The names of the columns of a Parquet file, none where it is not one."""
    try:
        return list(pl.read_parquet_schema(path))
    except UNREADABLE:
        return []


class PandasFrame(Protocol):
    """What is needed of a pandas frame, which is no dependency."""

    def to_dict(self, orient: Any) -> Any:
        """The columns by name; the orientation is "list"."""


def is_pandas(source: object) -> TypeGuard[PandasFrame]:
    """Whether this is a pandas frame, which is known by what it can do."""
    return all(hasattr(source, name) for name in ("to_dict", "notna", "astype"))


def from_pandas(frame: PandasFrame, column: Callable[[str, list[Any]], pl.Series]) -> pl.DataFrame:
    """A pandas frame through plain Python values, since pandas has no lists of its own; what is missing is None.

    `column(name, values)` makes a column of them, or refuses.
    """
    source: Any = frame
    values = source.astype(object).where(source.notna(), None).to_dict(orient="list")
    return pl.DataFrame([column(str(name), [_plain(v) for v in some]) for name, some in values.items()])


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
