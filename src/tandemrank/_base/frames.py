"""Tables: of files and frames of polars and pandas as one kind, their ids, the values of a context as texts, and Parquet files
with a checksum."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeGuard

import numpy as np
import polars as pl

from tandemrank._base.files import regular
from tandemrank._base.ids import are_ids, plain_ids
from tandemrank.errors import ConfigError, DataError, InputError

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


# --- tables of one's own ----------------------------------------------------------------------------------------------

Table: TypeAlias = str | Path | pl.DataFrame | pl.LazyFrame | PandasFrame
LARGEST = 1e100  # the square of a number, summed over all rows, must be a number


def read_table(source: Table, called: str) -> tuple[pl.DataFrame, str]:
    """The table of a file, CSV or JSON lines by its ending and else Parquet, or of a frame; and its name: `called` where it has
    no path."""
    name = str(source) if isinstance(source, str | Path) else called
    try:
        if isinstance(source, str | Path):
            return _of_file(regular(source)), name
        if isinstance(source, pl.DataFrame | pl.LazyFrame):
            return source.lazy().collect(), name
    except UNREADABLE as error:
        why = str(error).splitlines()[0]
        raise DataError(
            f"{name} cannot be read as a table: {why}. Expected Parquet, CSV, JSON lines or a frame."
        ) from error
    if not is_pandas(source):
        raise DataError(f"{name}: expected a path or a frame of polars or pandas; got {type(source).__name__}.")

    def column_of(column: str, values: list[Any]) -> pl.Series:
        try:
            return pl.Series(column, values)
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError) as error:
            raise DataError(
                f"{name}, column {column}: values of mixed types ({error}). Convert them to one type."
            ) from error

    return from_pandas(source, column_of), name


def _of_file(path: Path) -> pl.DataFrame:
    ending = path.suffix.lower()
    if ending == ".csv":
        return pl.read_csv(path, glob=False)
    return pl.read_ndjson(path) if ending in (".jsonl", ".ndjson") else pl.read_parquet(path, glob=False)


def ids_of(frame: pl.DataFrame, column: str, name: str) -> pl.Series:
    """The ids in a column of a table, 64-bit integers or strings; refused where they are missing, of another type or null."""
    if column not in frame.columns:
        raise DataError(f"{name}: expected a column {column}; the columns are {', '.join(frame.columns) or 'none'}.")
    if not len(frame):
        raise DataError(f"{name} has no rows. Check the path and the filters that made it.")
    if not are_ids(frame[column]):
        raise DataError(
            f"{name}, column {column}: expected integers or strings; got {frame[column].dtype}. Convert them."
        )
    ids = plain_ids(frame[column])
    refuse_rows(ids.is_null(), frame[column], name, "an id", "Drop such rows")
    return ids


def refuse_again(ids: Sequence[pl.Series], name: str) -> None:
    """Refuses rows of the same id, or of the same ids."""
    again = ~pl.DataFrame(ids).select(pl.struct(pl.all()).is_first_distinct()).to_series()
    if again.any():
        row = int(again.arg_max() or 0)
        which = " and ".join(f"{one.name.removesuffix('_id')} {one[row]!r}" for one in ids)
        where = f"{name}, row {row}, column {ids[-1].name}"
        raise DataError(f"{where}: expected one row for each; got {which} again. Keep one of them.")


def refuse_large(values: pl.Series, name: str) -> None:
    """Refuses infinite numbers; NaN is missing."""
    large = (values.cast(pl.Float64).fill_nan(None).abs() >= LARGEST).fill_null(False)
    refuse_rows(large, values, name, f"a number below {LARGEST:g} in size, or null", "Make them null where unknown")


def refuse_rows(
    wrong: pl.Series, values: pl.Series, name: str, expected: str, todo: str = "Correct or drop them"
) -> None:
    """Refuses the rows of a column that are wrong, the first by its value."""
    if wrong.any():
        row, count = int(wrong.arg_max() or 0), int(wrong.sum())
        more = f" {count} rows have the problem." if count > 1 else ""
        got = repr(values[row])[:60]
        raise DataError(f"{name}, row {row}, column {values.name}: expected {expected}; got {got}.{more} {todo}.")


# --- Parquet with a checksum ------------------------------------------------------------------------------------------

# Over every byte of the file: what a disk or a copy has changed is not read as if it were whole. The file's own metadata have
# the checksum of the file with zeros in its place. A bit that is flipped in the key leaves the mark of the value, and the other
# way round, so that no single one makes a file look as if it never had a checksum.
KEY = "tandemrank.checksum"
VALUE = b"sha256 of this file with zeros here: "
LENGTH = 64  # hexadecimal digits
TAIL = 2**16  # bytes at the end in which the mark is, where the footer is not longer


def write_parquet(frame: pl.DataFrame, path: Path) -> None:
    """Writes a frame with its checksum; for a temporary path, as it is not there in one piece."""
    mark = VALUE + b"0" * LENGTH
    frame.write_parquet(path, compression="zstd", metadata={KEY: mark.decode()})
    at = _mark(path)[1]
    digest = _digest(path, at)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(digest)


def damage_of(path: Path) -> str | None:
    """What is wrong with a file that has a checksum, in words; None where it is right, or where there is none."""
    has_key, at = _mark(path)
    if not has_key and at < 0:
        return None
    if has_key and at >= 0:
        with path.open("rb") as file:
            file.seek(at)
            if file.read(LENGTH) == _digest(path, at):
                return None
    return "is damaged: its bytes do not have its checksum. Restore it from a copy, or leave it out."


def _mark(path: Path) -> tuple[bool, int]:
    """Whether the key is there, and where the digits of the checksum begin, -1 where they are not."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, size - 8))
        footer = int.from_bytes(file.read(4), "little") + 8
        first = max(0, size - max(TAIL, footer if footer < size else 0))
        file.seek(first)
        tail = file.read()
    at = tail.rfind(VALUE)
    return KEY.encode() in tail, -1 if at < 0 else first + at + len(VALUE)


def _digest(path: Path, at: int) -> bytes:
    """Of all bytes, with zeros for the digits at a place."""
    with path.open("rb") as file:
        found = hashlib.sha256(file.read(at) + b"0" * LENGTH)
        file.seek(at + LENGTH)
        found.update(file.read())
    return found.hexdigest().encode()


Value = str | float | bool | None


def texts(values: pl.Series) -> pl.Series:
    """Values of a context as texts: 20 and 20.0 are the same.  Shapes: [n] -> [n]."""
    if values.dtype.is_float():
        whole = values.cast(pl.Int64, strict=False)
        same = (whole.cast(pl.Float64) == values).fill_null(False)
        return whole.cast(pl.String).zip_with(same, values.fill_nan(None).cast(pl.String))
    if values.dtype.is_nested() or values.dtype.is_temporal() or values.dtype == pl.Binary:
        raise InputError(
            f"column {values.name}: expected numbers, texts or categories as a context; got {values.dtype}. Make texts of it, "
            "such as the hour of a time."
        )
    return values.cast(pl.String)


def text_of(value: Value) -> str | None:
    """One value as `texts` has it."""
    found: str | None = texts(pl.Series("context", [value], strict=False))[0]
    return found


def named(context: Mapping[str, Value], columns: Sequence[str]) -> dict[str, str | None]:
    """A context by the columns that are known, in their order; one that is not given is unknown. Refuses other names."""
    if not isinstance(context, Mapping):
        raise ConfigError(
            f'context: expected values by the names of columns, such as {{"device": "phone"}}; got {context!r:.60}.'
        )
    if strange := [name for name in context if name not in columns]:
        known = f"columns among {', '.join(columns)}, which" if columns else "nothing:"
        was = "was learned with" if columns else "was learned without one"
        raise ConfigError(f"context: expected {known} the policy {was}; got {str(strange[0])[:60]!r}.")
    return {name: text_of(context.get(name)) for name in columns}
