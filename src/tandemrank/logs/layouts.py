"""Positions that are no ranks: names, as "top left" or "carousel 2/3", or the cells of a grid, in columns `row` and `column`.

A *layout* is their order, a cell being called "row,column". By it a log is read, and all else sees ranks. An examination curve
has its layout, from the position that is looked at most to the one looked at least: so the first item of a list belongs there.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.ids import positions_of
from tandemrank.logs.schema import GRID, Problem, is_grid, is_long, problem, problem_unless

Layout = tuple[str, ...]
FITTING = (
    "expected positions that are numbers, or a curve that has their names: run tandemrank examine LOG --json > curve.json, and "
    "give it by --curve curve.json (in Python, what `examine` returns)"
)
CELL = r"^\d+,\d+$"


def label_of(columns: Sequence[str]) -> pl.Expr | None:
    """The position of every row of a long log as text."""
    if is_grid(columns):
        return pl.concat_str([pl.col(c).cast(pl.String) for c in GRID], separator=",").alias("position")
    return pl.col("position").cast(pl.String) if "position" in columns else None


def are_numbers(labels: pl.Series) -> bool:
    """Whether some are, so that all should be."""
    numbers = labels.str.strip_chars().cast(pl.Float64, strict=False)
    return labels.null_count() == len(labels) or numbers.is_not_null().any()


def in_order(rows: Sequence[pl.DataFrame]) -> Layout:
    """The positions of rows with `impression_id` and `position`: cells by row, then column; names by their mean place among the
    rows of an impression."""
    if not rows:
        return ()
    places = [one.with_columns(place=pl.int_range(pl.len()).over("impression_id")) for one in rows]
    sums = [one.group_by("position").agg(pl.col("place").sum(), n=pl.len()) for one in places]
    each = pl.concat(sums).drop_nulls().group_by("position").sum()
    found = each.sort(pl.col("place") / pl.col("n"), "position")["position"].to_list()
    cells = cells_of(found)
    return tuple(found) if cells is None else tuple(f"{row},{column}" for row, column in sorted(cells))


def cells_of(layout: Sequence[str]) -> list[tuple[int, int]] | None:
    """Rows and columns; None where the positions are names."""
    if not pl.Series(layout, dtype=pl.String).str.contains(CELL).all():
        return None
    return [(int(row), int(column)) for row, column in (one.split(",") for one in layout)]


def in_ranks(frame: pl.DataFrame, layout: Layout) -> tuple[pl.DataFrame, list[Problem]]:
    """A batch with positions from 1 in the order of the layout, and what is wrong with them."""
    label = label_of(frame.columns) if is_long(frame.columns) else None
    if label is None:
        return frame, []
    every, named = np.arange(len(frame)), is_grid(frame.columns) or not frame.schema["position"].is_integer()
    if not named:
        said = f"expected positions by name, such as {layout[0]}; got numbers." if layout else ""
        return frame, problem("position", every, said) if layout else []
    labels = frame.select(label).to_series()
    column = "position" if "position" in frame.columns else GRID[0]
    if not layout:
        return frame, problem(column, every, f"{FITTING}; got {labels[0]!r}.")
    found = [p for c in GRID if column == GRID[0] for p in problem_unless(frame[c] >= 0, frame[c], c, "0 or more")]
    rank = positions_of(pl.Series(layout), labels, "position", missing="mark")
    known = f"one of the {len(layout)} positions of the curve, such as {layout[0]}"
    if not found:
        found = problem_unless(pl.Series(rank >= 0), labels, column, known)
    return frame.with_columns(position=pl.Series(rank) + 1), found


def unlike(layout: Layout) -> NDArray[np.float64]:
    """x^T P x, the squares by which x differs between neighbours of a grid, or of names from their mean.

    Cells are neighbours where no other of the layout is between them in their row, or in their column.  Shapes: -> P [K, K].
    """
    K, cells = len(layout), cells_of(layout)
    if cells is None:
        return np.eye(K) - 1 / K
    place = {cell: k for k, cell in enumerate(cells)}
    lines = [sorted(cells), sorted(cells, key=lambda cell: cell[::-1])]
    edges = [(place[a], place[b]) for axis, line in enumerate(lines) for a, b in pairwise(line) if a[axis] == b[axis]]
    return edges_between(edges, K)


def edges_between(edges: Sequence[tuple[int, int]], K: int) -> NDArray[np.float64]:
    """x^T P x = sum over edges (x_a - x_b)^2.  Shapes: -> P [K, K]."""
    found = np.zeros((K, K))
    for a, b in edges:
        found[[a, b], [a, b]] += 1
        found[[a, b], [b, a]] -= 1
    return found
