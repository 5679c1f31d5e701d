"""The result of an experiment in words and figures: sentences, Markdown, a table for the terminal.

All are made from the content of `table.json` alone, and do without any part of it that is missing.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table as RichTable


Table = dict[str, Any]
Cell = tuple[int, int]

ABOUT = {
    "joint": "both stages learn together, each from what the other does",
    "independent": "each stage learns alone, as if it showed its lists itself; then they are stacked",
    "baseline": "the ranker learns first and alone, then the generator learns to serve the frozen ranker (Ma et al. 2020)",
}
MEASURES = {
    "ndcg": ("NDCG@{K}", "of the most likely list"),
    "ndcg_expected": ("expected NDCG@{K}", "over lists drawn from the policy"),
    "recall_at_K2": ("recall@K2", "relevant items among the candidates"),
    "utility": ("clicks", "expected, a list"),
    "overlap": ("overlap", "of what both stages alone would show"),
}


# Reading a table.


def number(value: object) -> float:
    """A float; NaN for what is missing or is not a number."""
    return float(value) if isinstance(value, int | float) else math.nan


def count(n: float) -> str:
    """30000 as 30k, 316228 as 316k, 1000000 as 1M."""
    for unit, name in ((1_000_000, "M"), (1_000, "k")):
        if n >= unit:
            return f"{n / unit:.3g}{name}"
    return f"{n:g}"


def label(name: object) -> str:
    """A name as a reader sees it: 'joint' as 'Joint'."""
    text = str(name)
    return text[:1].upper() + text[1:]


def signed(value: float, digits: int = 3) -> str:
    """A difference with its sign and a true minus."""
    return f"{value:+.{digits}f}".replace("-", "−") if math.isfinite(value) else "–"


def closely(value: float) -> str:
    """A difference of NDCG: methods may be closer than a thousandth."""
    return signed(value, 4)


def methods(table: Table) -> list[str]:
    """The methods of a table in the order of its rows."""
    return list(dict.fromkeys(str(row["method"]) for row in table.get("rows") or []))


def cells(table: Table) -> list[Cell]:
    """The (K2, N) of a table, in order."""
    return sorted({(row["K2"], row["N"]) for row in table.get("rows") or []})


def find(table: Table, method: str, cell: Cell) -> dict[str, Any]:
    """The row of a method in a cell, or an empty one."""
    return next((r for r in table.get("rows") or [] if (r["method"], r["K2"], r["N"]) == (method, *cell)), {})


# What the numbers say, in words and values that every form of the report shares.


def places(table: Table) -> int:
    """K, the places of a shown list."""
    return int((table.get("switches") or {}).get("shown") or 10)


def decimal(value: object, digits: int = 3) -> str:
    """A value to some digits, a dash where there is none."""
    x = number(value)
    return f"{x:.{digits}f}" if math.isfinite(x) else "–"


def bracket(low: object, high: object, write: Callable[[float], str] = decimal) -> str:
    """An interval in brackets, nothing where there is none."""
    a, b = number(low), number(high)
    return f"[{write(a)}, {write(b)}]" if math.isfinite(a) and math.isfinite(b) else ""


def leader(table: Table, cell: Cell) -> str | None:
    """The method with the highest NDCG in a cell."""
    known = [(number(find(table, m, cell).get("ndcg_mean")), m) for m in methods(table)]
    return max((pair for pair in known if math.isfinite(pair[0])), default=(0.0, None))[1]


def paper_value(table: Table, method: str, cell: Cell) -> float:
    """The paper's figure for a cell; its N (0.32M) and ours (316,228) may be rounded differently."""
    for row in table.get("paper") or []:
        if (row["method"], row["K2"]) == (method, cell[0]) and math.isclose(row["N"], cell[1], rel_tol=0.05):
            return number(row.get("ndcg_mean"))
    return math.nan


def duration(value: object) -> str:
    """A time in the unit that a person would use."""
    s = number(value)
    if not math.isfinite(s):
        return "–"
    return f"{s:.1f} s" if s < 100 else f"{s / 60:.0f} minutes" if s < 5400 else f"{s / 3600:.1f} hours"


def _list(words: Sequence[str], last: str = "and") -> str:
    """One, two and three."""
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else words[0] if words else ""


def what_was_run(table: Table) -> str:
    """The experiment in plain words, with its sizes."""
    world, K = table.get("world") or {}, places(table)
    data = {"synthetic": "the embedded synthetic world"}.get(str(world.get("data")), str(world.get("data", "its data")))
    kinds = (("queries", "users"), ("items", "items"), ("positives", "relevant pairs"))
    sizes = _list([f"{world[key]:,} {word}" for key, word in kinds if isinstance(world.get(key), int)])
    logged = f"{world['logged_users']:,} users" if isinstance(world.get("logged_users"), int) else "users"
    K2s, Ns = (_list([f"{x:,}" for x in sorted({cell[i] for cell in cells(table)})], "or") for i in (0, 1))
    runs = sorted({int(row["runs"]) for row in table.get("rows") or [] if row.get("runs")})
    times = "once" if runs in ([], [1]) else f"{_list([str(n) for n in runs], 'or')} times"
    ways = {1: "one way", 2: "two ways", 3: "three ways"}.get(len(methods(table)), f"{len(methods(table))} ways")
    took = f" All of it took {duration(world['seconds'])}" if number(world.get("seconds")) > 0 else ""
    took += (f" on {world['machine']}." if world.get("machine") else ".") if took else ""
    return (
        f"On {data}{f' ({sizes})' if sizes else ''}, a production ranker showed lists of {K} items to {logged}, and its clicks "
        f"were logged: {Ns} lists. From these clicks alone a two-stage system was trained, a generator that picks {K2s} "
        f"candidates and a ranker that chooses the {K} to show. It was trained in {ways}, {times} each, and judged on "
        f"the true relevance, which no training saw.{took}"
    )


def _verdict(entry: dict[str, Any]) -> str:
    """ahead, behind, level (0 is inside the interval) or unknown (no interval)."""
    low, high = number(entry.get("low")), number(entry.get("high"))
    if not (math.isfinite(low) and math.isfinite(high)):
        return "unknown"
    return "ahead" if low > 0 else "behind" if high < 0 else "level"


def headline(table: Table) -> list[str]:
    """Who is ahead, by how much and how surely: a sentence for each comparison."""
    entries = table.get("differences") or []
    pairs = list(dict.fromkeys((str(d["method"]), str(d["against"])) for d in entries))
    sentences = []
    for pair in pairs:
        own = [d for d in entries if (d["method"], d["against"]) == pair and math.isfinite(number(d.get("mean")))]
        if own:
            sentences.append(_one_cell(*pair, own[0]) if len(own) == 1 else _many_cells(*pair, own))
    if not sentences and cells(table) and (first := leader(table, cells(table)[-1])):
        sentences = [
            f"{label(first)} has the highest NDCG; without paired differences nothing is said about how surely it is ahead."
        ]
    return sentences


def _one_cell(method: str, against: str, entry: dict[str, Any]) -> str:
    a, b, mean = label(method), label(against), number(entry["mean"])
    bounds = bracket(entry.get("low"), entry.get("high"), closely)
    return {
        "ahead": f"{a} is ahead of {b} by {abs(mean):.4f} NDCG {bounds}.",
        "behind": f"{a} is behind {b} by {abs(mean):.4f} NDCG {bounds}.",
        "level": f"{a} and {b} cannot be told apart: the difference {closely(mean)} {bounds} includes 0.",
        "unknown": f"{a} differs from {b} by {closely(mean)}, without an interval: it may be chance.",
    }[_verdict(entry)]


def _many_cells(method: str, against: str, entries: list[dict[str, Any]]) -> str:
    verdicts, values = [_verdict(d) for d in entries], [number(d["mean"]) for d in entries]
    others = {"behind": "behind in", "level": "not to be told apart in", "unknown": "without an interval in"}
    rest = "".join(f", {words} {verdicts.count(name)}" for name, words in others.items() if name in verdicts)
    return (
        f"{label(method)} is ahead of {label(against)} in {verdicts.count('ahead')} of {len(entries)} settings{rest}; "
        f"the differences go from {closely(min(values))} to {closely(max(values))}."
    )


def interval_note(table: Table) -> str:
    """What the intervals of the differences are over."""
    kinds = {d.get("kind") for d in table.get("differences") or []}
    over_runs = "Intervals are over runs: other logs, other starts."
    over_users = "Intervals are over the users of one run: the chance of another log or another start is not in them."
    return " ".join(text for kind, text in (("runs", over_runs), ("users", over_users)) if kind in kinds)


def switches(table: Table) -> list[tuple[str, str, str]]:
    """(name, value, explanation) of every switch, nested ones by their dotted names."""
    explained = table.get("switch_help") or {}

    def walk(part: dict[str, Any], prefix: str) -> list[tuple[str, str, str]]:
        found = []
        for name, value in part.items():
            if isinstance(value, dict):
                found += walk(value, f"{prefix}{name}.")
            else:
                text = "–" if value is None else str(value)
                found.append((prefix + name, text, str(explained.get(prefix + name) or explained.get(name, ""))))
        return found

    return walk(table.get("switches") or {}, "")


# Markdown and the terminal.


def _grid(table: Table) -> tuple[list[str], list[list[str]]]:
    """The table of methods, the paper's and the references: heads and lines of text, one column a (K2, N)."""
    heads = ["method", *(f"K2={K2}, N={count(N)}" for K2, N in cells(table))]
    lines = []
    for method in methods(table):
        rows = [find(table, method, cell) for cell in cells(table)]
        values = [
            f"{decimal(r.get('ndcg_mean'))} {bracket(r.get('ndcg_low'), r.get('ndcg_high'))}".strip() for r in rows
        ]
        lines.append([label(method), *values])
        paper = [paper_value(table, method, cell) for cell in cells(table)]
        if any(map(math.isfinite, paper)):
            lines.append([f"{label(method)}, the paper", *map(decimal, paper)])
    for reference in table.get("references") or []:
        found = reference.get("ndcg") or {}
        value = f"{decimal(found.get('mean'))} {bracket(found.get('low'), found.get('high'))}".strip()
        lines.append([label(reference["name"]), *([value] * len(cells(table)))])
    return heads, lines


def _difference_lines(table: Table) -> list[list[str]]:
    return [
        [
            f"{label(d['method'])} − {label(d['against'])}", f"{d['K2']}", count(d["N"]), closely(number(d.get("mean"))),
            bracket(d.get("low"), d.get("high"), closely) or "–", f"{d.get('runs', '–')}",
        ]
        for d in table.get("differences") or []
    ]  # fmt: skip


def markdown(table: Table) -> str:
    """The result as Markdown: methods, the paper's figures, references, differences, switches, command."""

    def text(value: str) -> str:
        return value.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")

    def block(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
        rows = [heads, ["---"] * len(heads), *lines]
        return "\n".join("| " + " | ".join(map(text, row)) + " |" for row in rows)

    parts = [f"# {text(str(table.get('title', 'Results')))}", text(what_was_run(table))]
    parts += ["\n".join(f"- {text(sentence)}" for sentence in headline(table))]
    parts += [f"## NDCG@{places(table)} with 95% intervals", block(*_grid(table))]
    if table.get("differences"):
        heads = ["difference", "K2", "N", "mean", "95% interval", "runs"]
        parts += ["## Paired differences", block(heads, _difference_lines(table)), interval_note(table)]
    lines = [
        [label(r["method"]), f"{r['K2']}", count(r["N"]), f"{r.get('runs', '–')}",
         *(decimal(r.get(f"{key}_mean")) for key in (*list(MEASURES)[1:], "generator_alone", "ranker_alone")),
         decimal(r.get("seconds_mean"), 1)]
        for r in table.get("rows") or []
    ]  # fmt: skip
    names = ["expected NDCG", "recall@K2", "clicks", "overlap", "generator alone", "ranker alone", "seconds"]
    parts += ["## All figures", block(["method", "K2", "N", "runs", *names], lines)]
    parts += ["## Switches", block(["switch", "value", "what it is"], switches(table))]
    if table.get("command"):
        parts += ["## To reproduce", f"```\n{table['command']}\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"


def text(table: Table) -> "RichTable":
    """The result for a terminal: the measures of one setting, or a line for each of several settings."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable

    title = f"NDCG@{places(table)} with 95% intervals"
    narrow: dict[str, Any] = {"box": SIMPLE_HEAD, "show_edge": False, "pad_edge": False, "collapse_padding": True}
    out = RichTable(title=title, title_justify="left", caption_justify="left", **narrow)
    fill = _one_setting if len(cells(table)) == 1 else _settings
    fill(table, out)
    return out


def _one_setting(table: Table, out: "RichTable") -> None:
    """A line for each method and reference, a column for each measure."""
    from rich.text import Text

    cell, names = cells(table)[0], methods(table)
    for head in ("", f"NDCG@{places(table)}", "95% interval", "expected", "recall@K2", "clicks", "seconds"):
        out.add_column(head, justify="right" if head else "left")
    for method in names:
        row = find(table, method, cell)
        values = [decimal(row.get(f"{key}_mean")) for key in list(MEASURES)[1:4]]
        ndcg = Text(decimal(row.get("ndcg_mean")), "bold" if method == leader(table, cell) else "")
        bounds = Text(bracket(row.get("ndcg_low"), row.get("ndcg_high")))
        last = decimal(row.get("seconds_mean"), 1)
        out.add_row(Text(label(method)), ndcg, bounds, *values, last, end_section=method == names[-1])
    for reference in table.get("references") or []:
        first, *rest = (reference.get(key) or {} for key in list(MEASURES)[:4])
        bounds = Text(bracket(first.get("low"), first.get("high")))
        values = [decimal(part.get("mean")) for part in rest]
        out.add_row(Text(label(reference["name"])), decimal(first.get("mean")), bounds, *values, style="dim")


def _settings(table: Table, out: "RichTable") -> None:
    """A line for each (K2, N), a column for each method, the paper's figures under ours; references below."""
    from rich.text import Text

    out.add_column("K2", justify="right")
    out.add_column("N", justify="right")
    for method in methods(table):
        out.add_column(Text(label(method)))
    for cell in cells(table):
        line = []
        for method in methods(table):
            row, paper = find(table, method, cell), paper_value(table, method, cell)
            figure = Text(decimal(row.get("ndcg_mean")), "bold" if method == leader(table, cell) else "")
            figure.append(f" {bracket(row.get('ndcg_low'), row.get('ndcg_high'))}", "not bold")
            line.append(figure.append(f"\npaper {decimal(paper)}", "dim not bold") if math.isfinite(paper) else figure)
        out.add_row(f"{cell[0]:,}", count(cell[1]), *line)
    found = [(label(r["name"]), decimal((r.get("ndcg") or {}).get("mean"))) for r in table.get("references") or []]
    out.caption = Text("  ".join(f"{name} {figure}" for name, figure in found))
