"""Results on standard output: tables for a person, JSON for a program."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.table import Table

    from tandemrank.clicks.examination import ExaminationCurve, TrustCurve
    from tandemrank.experiments.results import Evaluated, Figure
    from tandemrank.logs.validation import Description, Fixed, Validation


def judge_table(found: "Evaluated") -> "Table":
    """The evaluation as a table for a terminal."""
    from rich.table import Table

    names: dict[Figure, str] = {
        "ndcg": "NDCG@K", "ndcg_expected": "expected NDCG@K", "recall_at_K2": "recall@K2", "utility": "clicks per list",
    }  # fmt: skip
    table = Table("policy", *names.values())
    for row in found.policies:
        means = (row.of(figure) for figure in names)
        table.add_row(row.policy, *(f"{m.mean:.4f} [{m.low:.4f}, {m.high:.4f}]" for m in means))
    for other in dict.fromkeys(gap.against for gap in found.differences):
        gaps = {gap.figure: gap for gap in found.differences if gap.against == other}
        cells = (f"{gaps[f].mean:+.4f} [{gaps[f].low:+.4f}, {gaps[f].high:+.4f}]" for f in names)
        table.add_row(f"the first less {other}", *cells)
    return table


def show(value: Any) -> None:
    """To standard output: text as it is, a rich renderable as a table."""
    if isinstance(value, str):
        print(value)  # noqa: T201
        return
    from rich.console import Console

    console = Console()
    console = Console(width=max(console.width, 100)) if not console.is_terminal else console
    console.print(value)


def print_json(value: Any) -> None:
    from tandemrank._base.files import as_json

    print(as_json(value), end="")  # noqa: T201


def validation_tables(found: "Validation", fixed: "Fixed | None") -> "Iterator[Table | str]":
    """What is wrong with a log, what it is, its clicks by position, what it can answer; and the cleaned copy, if any."""
    from rich.table import Table

    if found.problems:
        problems = Table("file", "column", "rows", "count", "problem", title="problems", title_justify="left")
        for p in found.problems:
            problems.add_row(p.file, p.column, ", ".join(map(str, p.rows)) or "-", str(p.count), p.message)
        yield problems
    if found.log is not None:
        facts = {"fit": found.fit, "usable impressions": found.usable}
        facts |= {words: getattr(found.log, name) for name, words in LOG_FACTS.items()}
        yield _two_columns(facts)
        yield _clicks_by_position(found.log)
    questions = Table("question", "", "why", title="what this log can answer", title_justify="left")
    for answer in found.answers:
        questions.add_row(answer.question, "yes" if answer.possible else "no", answer.why)
    yield questions
    if fixed is not None:
        yield f"cleaned copy: {fixed.path}, {fixed.kept} of {fixed.impressions} impressions"
        if fixed.dropped:
            yield _rows_table("dropped", [vars(dropped) for dropped in fixed.dropped])


# The facts of a log that are one number each, in words; the others have tables of their own.
LOG_FACTS = {
    "impressions": "impressions", "queries": "queries", "items": "items", "clicks": "clicks",
    "pairs": "(query, item) pairs shown", "once": "share of the pairs shown once",
    "repeated": "queries with two impressions or more", "fixed": "share of those with a single list",
    "first_items": "effective items at rank 1", "deterministic": "deterministic logger",
    "propensities": "propensities, from and to", "weights": "weights, from and to",
}  # fmt: skip


def _clicks_by_position(log: "Description") -> "Table":
    from rich.table import Table

    rates = Table("position", "shown", "click rate", "", title="clicks by position", title_justify="left")
    top = max((rate for rate in log.click_rate if rate is not None), default=0) or 1
    for k, (n, rate) in enumerate(zip(log.shown, log.click_rate, strict=True), 1):
        rates.add_row(str(k), str(n), "-" if rate is None else f"{rate:.4f}", "█" * round(30 * (rate or 0) / top))
    return rates


def curve_tables(found: "ExaminationCurve | TrustCurve") -> "Iterator[Table]":
    """What an examination curve rests on, and the curve with its intervals, rank by rank."""
    values = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in vars(found).items()}
    K = next(len(value) for value in values.values() if isinstance(value, list))
    columns = [name for name, value in values.items() if isinstance(value, list) and len(value) == K]
    yield _two_columns({name: value for name, value in values.items() if name not in columns})
    yield _rows_table("curve", [{"rank": k + 1, **{name: values[name][k] for name in columns}} for k in range(K)])


def print_summary(result: Any, as_json: bool) -> None:
    """A result for a person: names and values in two columns, lists of rows as tables."""
    if as_json:
        print_json(result)
        return
    from dataclasses import asdict, is_dataclass

    summary: dict[str, Any] = asdict(result) if is_dataclass(result) else result  # type: ignore[arg-type]

    show(_two_columns({name: value for name, value in summary.items() if not _is_rows(value)}))
    for name, value in summary.items():
        if _is_rows(value):
            show(_rows_table(name, value))


def _is_rows(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], dict)


def _two_columns(values: dict[str, Any]) -> "Table":
    """Names and values."""
    from rich.table import Table

    plain = Table(show_header=False, box=None)
    for name, value in values.items():
        plain.add_row(name.replace("_", " "), _cell(value))
    return plain


def _rows_table(title: str, rows: "Sequence[dict[str, Any]]") -> "Table":
    """Rows with the same names, under their names."""
    from rich.table import Table

    table = Table(*(name.replace("_", " ") for name in rows[0]), title=title.replace("_", " "), title_justify="left")
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
