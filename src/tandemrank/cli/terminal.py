"""Results on standard output: tables for a person, JSON for a program."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from tandemrank.clicks.examination import ExaminationCurve, TrustCurve
    from tandemrank.experiments.results import Evaluated, Figure
    from tandemrank.logs.validation import Fixed, Validation


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


MOST_PROBLEMS, MOST_RANKS, MOST_POLICIES = 8, 10, 5  # so that what is said of a log fits on a screen


def print_validation(found: "Validation", mended: "Fixed | None") -> None:
    """What is wrong with a log, what it is and can answer, on a screen."""
    from rich.markup import escape
    from rich.table import Table

    if found.problems:
        problems = Table("file", "column", "rows", "count", "problem", title="problems", title_justify="left")
        for p in found.problems[:MOST_PROBLEMS]:
            rows = ", ".join(map(str, p.rows)) or "all"
            problems.add_row(escape(p.file), p.column, rows, f"{p.count:,}" if p.count else "", escape(p.message))
        show(problems)
        if (more := len(found.problems) - MOST_PROBLEMS) > 0:
            show(f"and {more} more: --json lists all")
    plain = Table(show_header=False, box=None)
    for name, text in _described(found):
        plain.add_row(name, escape(text))
    show(plain)
    questions = Table("question", "", "why", title="what this log can answer", title_justify="left")
    for answer in found.answers:
        questions.add_row(answer.question, "yes" if answer.possible else "no", answer.why)
    if found.answers:
        show(questions)
    if mended is not None:
        show(f"cleaned copy: {mended.path}, {mended.kept:,} of {mended.impressions:,} impressions")
        for reason in mended.dropped:
            show(f"left out: {reason.impressions:,} impressions, column {reason.column or 'any'}: {reason.reason}")


def _described(found: "Validation") -> Iterator[tuple[str, str]]:
    """What a log is, in words and numbers."""
    yield "fit", "yes" if found.fit else "no"
    files = "one file" if found.files == 1 else f"{found.files:,} files"
    yield "impressions", f"{found.impressions:,} in {files}, {found.usable:,} of them without a problem"
    log = found.log
    if log is None:
        return
    yield "queries", f"{log.queries:,}, of which {log.repeated_queries:,} were seen twice or more"
    yield "items", f"{log.items:,}"
    yield "clicks", f"{log.clicks:,}, {log.clicks / log.impressions:.3g} per impression"
    yield "pairs of query and item", f"{log.pairs:,}, of which {_share(log.pairs_shown_once)} were shown once"
    yield "queries with a single list", f"{_share(log.queries_with_a_single_list)} of those seen twice or more"
    if log.effective_items_at_rank_1 is not None:
        yield "effective items at rank 1", f"{log.effective_items_at_rank_1:.3g} per query"
    for name, limits in (("propensities", log.propensity_range), ("weights", log.weight_range)):
        yield name, "none" if limits is None else f"from {limits[0]:.3g} to {limits[1]:.3g}"
    if log.policies:
        names = [f"{p.policy or '(not named)'}: {p.impressions:,}" for p in log.policies[:MOST_POLICIES]]
        more = len(log.policies) - MOST_POLICIES
        yield "policies", ", ".join([*names, *([f"and {more} more"] if more > 0 else [])])
    rates = ["-" if rate is None else f"{rate:.3f}" for rate in log.click_rate_by_rank]
    last = min(len(rates), MOST_RANKS)
    yield f"click rates at ranks 1 to {last}" if last > 1 else "click rate", "  ".join(rates[:last])


def _share(share: float | None) -> str:
    return "none" if share is None else f"{share:.1%}"


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
