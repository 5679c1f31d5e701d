"""Results on standard output: tables for a person, JSON for a program."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from tandemrank.experiments.results import Evaluated, Figure


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


def print_validation(answer: dict[str, Any]) -> None:
    from rich.table import Table

    problems = Table("file", "column", "rows", "count", "problem", title="problems", title_justify="left")
    for p in answer["problems"]:
        problems.add_row(p["file"], p["column"], ", ".join(map(str, p["rows"])) or "-", str(p["count"]), p["message"])
    if answer["problems"]:
        show(problems)
    log = answer["log"]
    if log is not None:
        plain = {k: v for k, v in log.items() if not isinstance(v, list | tuple)}
        print_summary({"fit": answer["fit"], "usable_impressions": answer["usable"], **plain}, as_json=False)
        rates = Table("position", "shown", "click rate", "", title="clicks by position", title_justify="left")
        top = max((r for r in log["click_rate"] if r is not None), default=0) or 1
        for k, (n, rate) in enumerate(zip(log["shown"], log["click_rate"], strict=True), 1):
            rates.add_row(str(k), str(n), "-" if rate is None else f"{rate:.4f}", "█" * round(30 * (rate or 0) / top))
        show(rates)
    questions = Table("question", "", "why", title="what this log can answer", title_justify="left")
    for a in answer["answers"]:
        questions.add_row(a["question"], "yes" if a["possible"] else "no", a["why"])
    show(questions)
    if "fixed" in answer:
        mended = answer["fixed"]
        show(f"cleaned copy: {mended['path']}, {mended['kept']} of {mended['impressions']} impressions")
        print_summary({"dropped": mended["dropped"]}, as_json=False)


def print_summary(result: Any, as_json: bool) -> None:
    """A result for a person: names and values in two columns, lists of rows as tables."""
    if as_json:
        print_json(result)
        return
    from dataclasses import asdict, is_dataclass

    from rich.table import Table

    summary: dict[str, Any] = asdict(result) if is_dataclass(result) else result  # type: ignore[arg-type]

    plain = Table(show_header=False, box=None)
    for name, value in summary.items():
        if not isinstance(value, list) or not value or not isinstance(value[0], dict):
            plain.add_row(name.replace("_", " "), _cell(value))
    show(plain)
    for name, value in summary.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = Table(*value[0].keys(), title=name.replace("_", " "), title_justify="left")
            for row in value:
                rows.add_row(*(_cell(x) for x in row.values()))
            show(rows)


def _cell(value: Any) -> str:
    if isinstance(value, list | tuple):
        return (
            "\n".join(_cell(x) for x in value) if value and isinstance(value[0], str) else ", ".join(map(_cell, value))
        )
    if isinstance(value, float):
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
