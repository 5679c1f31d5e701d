"""Features of queries and items: a table with an id and any other columns becomes numbers that a model can take.

    numeric      (integers, floats, booleans)    (x - mean) / scale, within +-10;  missing: 0, which is the mean
    missing      (of a numeric column)           1 where it is missing, if any was when the encoder was fitted
    categorical  (strings, categories)           1, 2, ... the most frequent first;   missing, rare or never seen: 0

Who has no row in the table has all of it missing. What was fitted, the `Encoder`, is plain data and goes through JSON, so new
rows are encoded as the old ones were.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tandemrank._base.frames import Table, ids_of, read_table, refuse_again, refuse_large
from tandemrank._base.ids import plain_ids, positions_of
from tandemrank.errors import DataError

FeatureValues = Mapping[str, float | str | None]  # of one query or item, by the names of the columns
FeatureSource = Table
PAIR = ["query_id", "item_id"]

CATEGORIES = 50  # of one column, where each becomes a column of numbers
CODES = 10_000  # categories of one column that are told apart, the most frequent
OUTLIER = 10.0  # scales from the mean at which a value is cut: one wild row must not rule the scores


@dataclass(frozen=True)
class Numeric:
    """A column of numbers: its mean and scale (standard deviation) in the rows that were fitted.

    `flagged`: another column says where it is missing.
    """

    name: str
    mean: float
    scale: float
    flagged: bool = False


@dataclass(frozen=True)
class Categorical:
    """A column of categories: the code of `values[i]` is i + 1, that of anything else 0."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Encoder:
    """How rows become numbers. Without columns it stands for a side that has no features."""

    id_column: str
    numeric: tuple[Numeric, ...] = ()
    categorical: tuple[Categorical, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain data; `encoder_from` makes the encoder of it again."""
        return asdict(self)

    @property
    def width(self) -> int:
        """Columns of numbers: the numeric ones, then those that say what is missing."""
        return len(self.numeric) + sum(column.flagged for column in self.numeric)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that become numbers and codes."""
        return (*(c.name for c in self.numeric), *(c.name for c in self.categorical))


@dataclass(frozen=True)
class EncodedRows:
    """Encoded rows.  Shapes: numeric [n, F], F the encoder's width; categorical [n, C]."""

    numeric: NDArray[np.float32]
    categorical: NDArray[np.int64]


def encoder_from(data: dict[str, Any]) -> Encoder:
    """The encoder of which this is the JSON; refuses what is none."""
    found = Encoder(
        data["id_column"],
        tuple(Numeric(**column) for column in data["numeric"]),
        tuple(Categorical(column["name"], tuple(column["values"])) for column in data["categorical"]),
    )
    names = [found.id_column, *(n.name for n in found.numeric), *(c.name for c in found.categorical)]
    texts = [*names, *(value for column in found.categorical for value in column.values)]
    if not all(isinstance(text, str) for text in texts) or len(set(names)) < len(names):
        raise DataError("an encoder has distinct names of columns, and categories that are strings; got others.")
    if any(len(set(column.values)) < len(column.values) for column in found.categorical):
        raise DataError("an encoder has every category of a column once; got one twice.")
    for column in found.numeric:
        if (
            not all(isinstance(x, int | float) and math.isfinite(x) for x in (column.mean, column.scale))
            or column.scale <= 0
            or not isinstance(column.flagged, bool)
        ):
            raise DataError(f"expected finite means, scales above 0 and flags of an encoder; got {column}.")
    return found


# --- reading ----------------------------------------------------------------------------------------------------------


def table(source: FeatureSource, id_column: str) -> tuple[pl.DataFrame, str]:
    """The table of a file or of a frame, its ids checked, each once, and 64-bit integers or strings; and its name."""
    frame, name = read_table(source, f"the {id_column.removesuffix('_id')} frame")
    ids = ids_of(frame, id_column, name)
    refuse_again([ids], name)
    return frame.with_columns(ids), name


def read(source: FeatureSource, id_column: str) -> pl.DataFrame:
    """The features of a file or of a frame, every column checked; `id_column` is `query_id` or `item_id`."""
    frame, name = table(source, id_column)
    columns = [c for c, dtype in frame.schema.items() if c != id_column and dtype != pl.Null]
    if not columns:
        raise DataError(f"{name} has {id_column} and no other column with values. Add at least one feature.")
    for column in columns:
        values = frame[column]
        if is_number(values.dtype):
            refuse_large(values, name)
        elif not _is_category(values.dtype):
            raise DataError(
                f"{name}, column {column}: features are numbers, booleans or strings; got {values.dtype}. "
                f"Turn it into such columns (a date into days, a list into one column per value), or drop it."
            )
    return frame


def read_pairs(source: FeatureSource) -> pl.DataFrame:
    """Numbers of pairs: `query_id`, `item_id`, each pair once, and columns of floats, NaN where one is missing."""
    frame, name = table_of_pairs(source, "the table of pairs")
    numbers = [column for column in frame.drop(PAIR).get_columns() if column.dtype != pl.Null]
    if not numbers:
        raise DataError(f"{name}: expected numbers beside query_id and item_id; got no other column. Add one.")
    for column in numbers:
        if not is_number(column.dtype):
            raise DataError(f"{name}, column {column.name}: expected numbers for pairs; got {column.dtype}. Drop it.")
        refuse_large(column, name)
    return pl.DataFrame([*frame[PAIR], *(column.cast(pl.Float64).fill_null(math.nan) for column in numbers)])


def table_of_pairs(source: FeatureSource, called: str) -> tuple[pl.DataFrame, str]:
    """A table with `query_id` and `item_id`, each pair once; and its name."""
    frame, name = read_table(source, called)
    ids = [ids_of(frame, column, name) for column in PAIR]
    refuse_again(ids, name)
    return frame.with_columns(ids), name


def _some(ids: pl.Series) -> str:
    """The first few ids in words, with how many there are."""
    first = ", ".join(repr(x) for x in ids.head(3))
    return f"{len(ids)} ids (first: {first}) are" if len(ids) > 1 else f"id {first} is"


def is_number(dtype: pl.DataType) -> bool:
    return dtype.is_numeric() or dtype == pl.Boolean


def _is_category(dtype: pl.DataType) -> bool:
    return dtype == pl.String or isinstance(dtype, pl.Categorical | pl.Enum)


# --- encoding ---------------------------------------------------------------------------------------------------------


def fit(frame: pl.DataFrame, id_column: str, ids: pl.Series | None = None) -> Encoder:
    """Means, scales and categories of all rows of a frame that `read` gave. A constant column has scale 1.

    `ids`: who will be encoded; where some have no row, every number has a column that says so.  Shapes: ids [n].
    """
    columns = [frame[column] for column in frame.columns if column != id_column]
    absent = ids is not None and bool((places(frame, id_column, ids) < 0).any())
    numeric = tuple(scale_of(c, absent=absent) for c in columns if is_number(c.dtype))
    return Encoder(id_column, numeric, tuple(_categories(c) for c in columns if _is_category(c.dtype)))


def scale_of(column: pl.Series, *, absent: bool = False) -> Numeric:
    """The mean and scale of a column; `absent`: whether there are rows that it does not have."""
    known = column.cast(pl.Float64).fill_nan(None)
    values = known.drop_nulls().to_numpy()
    mean = float(values.mean()) if len(values) else 0.0
    scale = float(values.std()) if len(values) else 0.0
    # Rounding alone gives equal numbers a tiny deviation, and noise must not be blown up to scale 1.
    return Numeric(column.name, mean, scale if scale > 1e-9 * abs(mean) else 1.0, absent or known.null_count() > 0)


def _categories(column: pl.Series) -> Categorical:
    """The values of a column, the most frequent first, of equally many the first in the alphabet."""
    number = pl.DataFrame({"value": column.cast(pl.String)}).drop_nulls().group_by("value").len()
    return Categorical(column.name, tuple(number.sort(["len", "value"], descending=[True, False])["value"].head(CODES)))


def encode(encoder: Encoder, frame: pl.DataFrame, ids: pl.Series) -> EncodedRows:
    """The encoded features of `ids`, in their order, from a frame that `read` gave; of one without a row all is missing.

    Shapes: ids [n] -> numeric [n, F], categorical [n, C].
    """
    for number in encoder.numeric:
        _check_column(frame, number.name, "numbers", is_number)
    for category in encoder.categorical:
        _check_column(frame, category.name, "strings", _is_category)
    place = places(frame, encoder.id_column, ids)
    # A row of nulls at the end: that of whoever has none.
    chosen = pl.concat([frame, frame.clear(1)])[np.where(place < 0, len(frame), place)]
    numeric, flags = np.zeros((len(ids), encoder.width), np.float32), len(encoder.numeric)
    for f, number in enumerate(encoder.numeric):
        known = chosen[number.name].cast(pl.Float64).fill_nan(None)
        values = known.fill_null(number.mean).to_numpy()
        numeric[:, f] = np.clip((values - number.mean) / number.scale, -OUTLIER, OUTLIER)
        if number.flagged:
            numeric[:, flags] = known.is_null().to_numpy()
            flags += 1
    categorical = np.zeros((len(ids), len(encoder.categorical)), np.int64)
    for c, category in enumerate(encoder.categorical):
        codes = pl.DataFrame({"value": category.values, "code": np.arange(1, len(category.values) + 1)})
        texts = chosen.select(value=pl.col(category.name).cast(pl.String))
        found = texts.join(codes.cast({"value": pl.String}), on="value", how="left", maintain_order="left")
        categorical[:, c] = found["code"].fill_null(0).to_numpy()
    return EncodedRows(numeric, categorical)


def one_hot(encoder: Encoder, found: EncodedRows) -> NDArray[np.float32]:
    """Encoded rows as numbers alone: a column of 0 and 1 for each of the commonest categories.  Shapes: [n] rows -> [n, J]."""
    columns = [found.numeric]
    for codes, category in zip(found.categorical.T, encoder.categorical, strict=True):
        columns.append((codes[:, None] == np.arange(1, min(len(category.values), CATEGORIES) + 1)).astype(np.float32))
    return np.column_stack(columns)


def numbers(source: FeatureSource, id_column: str, ids: pl.Series) -> NDArray[np.float64]:
    """Features as plain numbers (`one_hot`), with an encoder fitted to them.  Shapes: ids [n] -> [n, J]."""
    frame = read(source, id_column)
    encoder = fit(frame, id_column, ids)
    return one_hot(encoder, encode(encoder, frame, ids)).astype(np.float64)


def _check_column(frame: pl.DataFrame, column: str, words: str, fits: Callable[[pl.DataType], bool]) -> None:
    """Refuses rows without a column that was fitted, or with another kind of values in it."""
    if column not in frame.columns:
        raise DataError(
            f"the model was trained with the column {column} ({words}), which is not among "
            f"{', '.join(frame.columns)}. Add it; null where it is unknown."
        )
    dtype = frame[column].dtype
    if not (fits(dtype) or dtype == pl.Null):
        raise DataError(f"column {column}: the model was trained with {words}; got {dtype}. Convert them.")


def rows(frame: pl.DataFrame, id_column: str, ids: pl.Series, name: str | None = None) -> NDArray[np.int64]:
    """The row of each id; refuses ids that have none. `name` is the table's, for messages.  Shapes: ids [n] -> [n]."""
    found = places(frame, id_column, ids, name)
    if len(missing := plain_ids(ids).filter(found < 0)):
        raise DataError(
            f"{name or _called(id_column)}, column {id_column}: {_some(missing)} in the log but not there, among its "
            f"{len(frame)} rows. Add a row for each; features may be null."
        )
    return found


def places(frame: pl.DataFrame, id_column: str, ids: pl.Series, name: str | None = None) -> NDArray[np.int64]:
    """The row of each id, -1 where it has none; refuses a table that has a row for nobody.  Shapes: ids [n] -> [n]."""
    wanted, there = plain_ids(ids), frame[id_column]
    what, name = id_column.removesuffix("_id"), name or _called(id_column)
    if wanted.dtype != there.dtype:
        raise DataError(
            f"{what} ids are {wanted.dtype} in the log and {there.dtype} in {name}. Convert them to the same type."
        )
    found = positions_of(there, wanted, what, missing="mark")
    if len(found) and (found < 0).all():
        raise DataError(
            f"{name}, column {id_column}: expected rows for ids of the log (first: {wanted[0]!r}); got rows for none of them "
            f"(first: {there[0]!r}). Check that both come from the same data."
        )
    return found


def _called(id_column: str) -> str:
    return "the table of queries" if id_column == "query_id" else "the table of items"
