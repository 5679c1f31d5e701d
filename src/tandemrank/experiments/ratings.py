"""Ratings become a `Task`: who asks (queries, here users), what there is (documents), and what is relevant to whom.

The relevance `R` of the paper's click model (label click-model) is 1 where the rating is above a threshold and 0 elsewhere,
also where nobody rated.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from tandemrank._base.files import regular
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError, DataError

LARGEST = float(np.finfo(np.float32).max)  # of a rating, in size


@dataclass(frozen=True, eq=False)
class Task:
    """A ranking task: what was rated, what is relevant, and the outside ids.

    `item_features`: what is known of the items beside, with `item_id`; None where nothing is.
    Shapes: ratings [Q, D] sparse, 0 = not rated; relevance [Q, D] sparse in [0, 1].
    """

    name: str
    ratings: csr_matrix
    relevance: csr_matrix
    vocabulary: Vocabulary
    item_features: pl.DataFrame | None = None

    @property
    def Q(self) -> int:
        """Number of queries."""
        return int(self.relevance.shape[0])

    @property
    def D(self) -> int:
        """Number of documents."""
        return int(self.relevance.shape[1])


def from_ratings(
    source: str | Path | pl.DataFrame,
    *,
    query: str = "user",
    item: str = "item",
    rating: str = "rating",
    threshold: float,
    graded: bool = False,
) -> Task:
    """A task from one's own ratings: a .csv file, a .parquet file or a frame, one row for each rated (query, item).

    Ids are integers or strings. Positions follow the sorted ids. A rating above `threshold` is relevant.
    """
    columns = {"user": query, "item": item, "rating": rating}
    if len(set(columns.values())) < 3:
        raise ConfigError(
            f"query, item and rating must be three different columns, but they are {query!r}, {item!r}, {rating!r}."
        )
    where = "the frame" if isinstance(source, pl.DataFrame) else str(source)
    table = _read(source, columns, where)
    clean = pl.DataFrame(
        {
            "user": _ids(table["user"], query, where),
            "item": _ids(table["item"], item, where),
            "rating": _numbers(table["rating"], rating, where),
        }
    )
    name = "ratings" if isinstance(source, pl.DataFrame) else Path(source).stem
    return assemble(name, clean, threshold, graded, where=where)


def _read(source: str | Path | pl.DataFrame, columns: dict[str, str], where: str) -> pl.DataFrame:
    """The wanted columns of `source`, as user, item, rating; values are not checked yet."""
    try:
        lazy = source.lazy() if isinstance(source, pl.DataFrame) else _scan(Path(source))
        came = lazy.collect_schema().names()
        if missing := [column for column in columns.values() if column not in came]:
            raise DataError(
                f"{where} has no column {', '.join(map(repr, missing))}; it has {', '.join(map(repr, came))[:500]}. "
                "Name the columns of query, item and rating."
            )
        table = lazy.select(pl.col(column).alias(name) for name, column in columns.items()).collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"cannot read ratings from {where}: {reason}. Expected a CSV or Parquet table.") from error
    if table.is_empty():
        raise DataError(f"{where} holds no ratings. Expected one row for each rated (query, item).")
    return table


def _scan(path: Path) -> pl.LazyFrame:
    """A CSV or Parquet file as a lazy frame. CSV columns stay text, so that a bad value can be named with its row."""
    try:
        regular(path)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}. Expected a .csv or .parquet file.") from error
    if path.suffix.lower() == ".csv":
        return pl.scan_csv(path, infer_schema=False, glob=False)
    if path.suffix.lower() == ".parquet":
        return pl.scan_parquet(path, glob=False)
    raise DataError(f"{path} ends in {path.suffix!r}. Expected a .csv or .parquet file.")


def _refuse(bad: pl.Series, values: pl.Series, column: str, where: str, expected: str) -> None:
    """Raises if any of `bad` is true, and names the first row, counted from 0 without the header, as in logs."""
    if bad.any():
        row = int(bad.to_numpy().argmax())
        raise DataError(
            f"{where}, row {row}, column {column}: expected {expected}; {repr(values[row])[:60]} came. "
            f"{bad.sum()} rows have the problem. Correct or drop them."
        )


def _ids(values: pl.Series, column: str, where: str) -> pl.Series:
    """Ids as Int64 or String. Text that is all plain integers, as in a CSV, becomes integers ("007" stays text)."""
    if not (values.dtype.is_integer() or values.dtype == pl.String):
        raise DataError(
            f"{where}, column {column}: expected ids that are integers or strings; {values.dtype} came. Convert them."
        )
    _refuse(values.is_null(), values, column, where, "an id")
    integers = values.cast(pl.Int64, strict=False)
    if values.dtype == pl.String:
        return integers if (integers.cast(pl.String) == values).fill_null(False).all() else values
    _refuse(integers.is_null(), values, column, where, "an integer of at most 64 bits with a sign")
    return integers


def _numbers(values: pl.Series, column: str, where: str) -> pl.Series:
    """Ratings as Float64, every one of them finite also in single precision."""
    if not (values.dtype.is_numeric() or values.dtype in (pl.Boolean, pl.String)):
        raise DataError(
            f"{where}, column {column}: expected ratings that are numbers; {values.dtype} came. Convert them."
        )
    numbers = values.cast(pl.Float64, strict=False)
    _refuse(~(numbers.abs() <= LARGEST).fill_null(False), values, column, where, "a finite number")
    return numbers


def assemble(name: str, table: pl.DataFrame, threshold: float, graded: bool, *, where: str) -> Task:
    """Clean columns user, item, rating -> Task. Positions follow the sorted ids; refuses a pair that is rated twice.

    `where` is what messages call the ratings.
    """
    ids = Vocabulary(table["user"].unique().sort().rename("query_id"), table["item"].unique().sort().rename("item_id"))
    q, d = ids.queries(table["user"]), ids.items(table["item"])
    shape = (len(ids.query_ids), len(ids.item_ids))
    if (twice := _first_repeat(q * shape[1] + d)) is not None:
        first, again = twice
        user, item, _ = table.row(again)
        raise DataError(
            f"{where}: user {user!r} rated item {item!r} twice, in rows {first} and {again}. "
            "Expected one rating per pair; keep one of them, for example the last."
        )
    ratings = csr_matrix((table["rating"].to_numpy(), (q, d)), shape=shape)
    return task_of(name, ratings, ids, threshold, graded, where=where)


def _first_repeat(pairs: NDArray[np.int64]) -> tuple[int, int] | None:
    """The earliest position that repeats an earlier value, as (earlier, repeat)."""
    order = np.argsort(pairs, kind="stable")
    repeats = np.flatnonzero(np.diff(pairs[order]) == 0)
    if not len(repeats):
        return None
    k = repeats[np.argmin(order[repeats + 1])]
    return int(order[k]), int(order[k + 1])


def task_of(
    name: str, ratings: csr_matrix, vocabulary: Vocabulary, threshold: float, graded: bool, *, where: str | None = None
) -> Task:
    """R[q, d] = 1 where rating > threshold, else 0 (label click-model); refuses a world where nothing is relevant.

    Graded: R = (rating - threshold) / (highest rating - threshold) where it is above.

    Shapes: ratings [Q, D].
    """
    if not abs(threshold) <= LARGEST:
        raise ConfigError(
            f"threshold: expected a number of single precision, at most {LARGEST:g} in size; {threshold} came. "
            "Ratings above it are relevant."
        )
    if not (ratings.data > threshold).any():
        raise DataError(
            f"{where or name}: no rating is above the threshold {threshold:g}; the highest is {ratings.data.max():g}. "
            "Lower the threshold, so that something is relevant."
        )
    above = (ratings.data > threshold).astype(np.float32)
    if graded:
        above *= ((ratings.data - threshold) / (ratings.data.max() - threshold)).astype(np.float32)
    relevance = csr_matrix((above, ratings.indices, ratings.indptr), ratings.shape)
    relevance = relevance.copy()  # own indices: eliminating zeros works in place
    relevance.eliminate_zeros()
    return Task(name, ratings.astype(np.float32), relevance, vocabulary)
