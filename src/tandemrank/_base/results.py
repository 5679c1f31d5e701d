"""What every public result can do: print itself in a few lines, show itself in a notebook, become a table, plain values, a
figure or a page.

A result says in `_lines` what it is and in `_rows` its numbers; the rest is here. Its figure and its page are made by a module
of `reports` that has `plot` and `report`: it is found by its name, since results are made in rooms above it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tandemrank._base.files import as_json
from tandemrank.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

MOST_LINES, MOST_CHARACTERS = 10, 1500  # of a printed result
MOST_ROWS = 20  # in a notebook


class Result:
    """The base of what public functions return; a dataclass with `repr=False`."""

    drawn_by: ClassVar[str] = "results"  # the module of `reports`
    has_lists: ClassVar[bool] = False  # whether its page shows lists of items, which titles are for

    def _lines(self) -> Sequence[str]:
        """What it is, the answer first."""
        return [
            f"{name}: {_cell(value)}" for name, value in self.to_dict().items() if not isinstance(value, list | dict)
        ]

    def _rows(self) -> Sequence[Mapping[str, Any]]:
        """Its numbers as a table; by default one row of its plain values."""
        return [{name: value for name, value in self.to_dict().items() if not isinstance(value, list | dict)}]

    def summary(self) -> dict[str, Any]:
        """All but large arrays, as names and values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """The same as the JSON of the command, in plain values: what is not finite is None."""
        found: dict[str, Any] = json.loads(as_json(self.summary()))
        return found

    def to_frame(self) -> "pl.DataFrame":
        """Its numbers as a frame of polars."""
        import polars as pl

        return pl.DataFrame(json.loads(as_json(list(self._rows()))), infer_schema_length=None)

    def plot(self) -> "Figure":
        """Its figure, which a notebook shows and `savefig` writes."""
        found: Figure = self._drawn().plot(self)
        return found

    def report(self, path: str | Path, *, titles: Any = None, images: bool = False) -> Path:
        """Writes one self-contained HTML page, and returns its path.

        `titles`: a table, or one of items and one of queries, with `item_id` or `query_id`, `title`, and perhaps `url` and
        `image` (Parquet, CSV or frames); `images`: whether the page shows the pictures, which it then fetches.
        """
        if titles is None:
            if images:
                raise ConfigError("images: expected titles, the table that has them; got none. Give titles, too.")
            found: Path = self._drawn().report(self).write(path)
            return found
        if not self.has_lists:
            raise ConfigError(
                f"titles would have no effect: the page of {type(self).__name__} shows no lists. Leave them out."
            )
        named = import_module("tandemrank.reports.sections").named(titles, images=images)
        found = self._drawn().report(self, named=named).write(path)
        return found

    def _drawn(self) -> Any:
        return import_module(f"tandemrank.reports.{self.drawn_by}")

    def __repr__(self) -> str:
        lines = [line for text in self._lines() for line in str(text).splitlines()]
        if len(lines) > MOST_LINES:
            lines = [*lines[: MOST_LINES - 1], f"and {len(lines) - MOST_LINES + 1} lines more"]
        each = MOST_CHARACTERS // MOST_LINES - 2
        return "\n".join(line if len(line) <= each else f"{line[:each]}…" for line in lines)

    def _repr_html_(self) -> str:
        words = "".join(f"<div>{escape(line)}</div>" for line in repr(self).splitlines())
        frame = self.to_frame()
        head = "".join(f"<th>{escape(name)}</th>" for name in frame.columns)
        cells = ["".join(f"<td>{escape(_cell(x))}</td>" for x in row) for row in frame.head(MOST_ROWS).iter_rows()]
        body = "".join(f"<tr>{row}</tr>" for row in cells)
        more = f"<div>and {len(frame) - MOST_ROWS} rows more</div>" if len(frame) > MOST_ROWS else ""
        return f"{words}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def within(low: float, high: float, sign: str = "") -> str:
    """An interval in brackets."""
    return f"[{low:{sign}.3f}, {high:{sign}.3f}]"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:80]
