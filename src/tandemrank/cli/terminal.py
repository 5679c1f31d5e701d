"""Results on standard output: tables for a person, JSON for a program."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


def show(value: Any) -> None:
    """To standard output: text as it is, a rich renderable as a table."""
    if isinstance(value, str):
        print(printable(value))  # noqa: T201
        return
    from rich.console import Console

    # Without markup: what is printed has paths and ids in it, and `[/b]` may be a part of one.
    console = Console(markup=False)
    console = Console(markup=False, width=max(console.width, 100)) if not console.is_terminal else console
    with console.capture() as captured:
        console.print(value)
    print(printable(captured.get()), end="")  # noqa: T201


def printable(text: str) -> str:
    """Text that every terminal takes: what is not Unicode, as in names of files that are not UTF-8, as its number."""
    return text.encode("utf-8", "backslashreplace").decode()


def note(words: str) -> None:
    """A line to standard error: for a person, and in nobody's way."""
    print(f"tandemrank: {words}", file=sys.stderr, flush=True)  # noqa: T201


def print_json(value: Any) -> None:
    from tandemrank._base.files import as_json

    print(as_json(value), end="")  # noqa: T201


def print_summary(result: Any, as_json: bool) -> None:
    """A result for a person: names and values in two columns, lists of rows as tables."""
    if as_json:
        print_json(result)
        return
    from dataclasses import asdict, is_dataclass

    summary: dict[str, Any] = asdict(result) if is_dataclass(result) else result  # type: ignore[arg-type]

    show(two_columns({name: value for name, value in summary.items() if not _is_rows(value)}))
    for name, value in summary.items():
        if _is_rows(value):
            show(rows_table(name, value))


def _is_rows(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], dict)


def two_columns(values: dict[str, Any]) -> "Table":
    """Names and values."""
    from rich.table import Table

    plain = Table(show_header=False, box=None)
    plain.add_column()
    plain.add_column(overflow="fold")  # a path is never cut
    for name, value in values.items():
        plain.add_row(name.replace("_", " "), _cell(value))
    return plain


def rows_table(title: str, rows: Sequence[dict[str, Any]]) -> "Table":
    """Rows with the same names, under their names."""
    from rich.table import Table

    table = Table(title=title.replace("_", " "), title_justify="left")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), overflow="fold")  # a name is never cut
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    return table


def _cell(value: Any) -> str:
    """A value as a person reads it."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ("\n" if value and isinstance(value[0], str) else ", ").join(map(_cell, value))
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
