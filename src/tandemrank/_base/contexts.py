"""The values of a context, such as a device, as texts, whatever they come as; and a context by the names of its columns."""

from collections.abc import Mapping, Sequence

import polars as pl

from tandemrank.errors import ConfigError, InputError

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
