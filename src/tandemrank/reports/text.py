"""The table of an experiment in words: sentences, Markdown, and a table for a terminal."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tandemrank.experiments.results import Figure, Mean, NdcgDifference, Table
from tandemrank.reports.words import bracket, closely, count, decimal, duration, label, listed, switches

if TYPE_CHECKING:
    from rich.table import Table as RichTable


MEASURES: dict[Figure, tuple[str, str]] = {
    "ndcg": ("NDCG@{K}", "of the most likely list"),
    "ndcg_new": ("NDCG@{K}, new items", "of those the user has not clicked"),
    "ndcg_expected": ("expected NDCG@{K}", "over lists drawn from the policy"),
    "recall_at_K2": ("recall@K2", "relevant items among the candidates"),
    "utility": ("clicks", "expected per list"),
    "overlap": ("overlap", "of what both stages alone would show"),
}


def what_was_run(table: Table) -> str:
    """The experiment in plain words, with its sizes."""
    world, K = table.world, table.K
    data = "the embedded synthetic world" if world.data == "synthetic" else world.data
    kinds = ((world.queries, "users"), (world.items, "items"), (world.positives, "relevant pairs"))
    sizes = listed([f"{size:,} {word}" for size, word in kinds if size is not None])
    logged = "users" if world.logged_users is None else f"{world.logged_users:,} users"
    K2s, Ns = (listed([f"{x:,}" for x in sorted({s[i] for s in table.settings})], "or") for i in (0, 1))
    runs = sorted({row.runs for row in table.rows if row.runs})
    times = "once" if runs in ([], [1]) else f"{listed([str(n) for n in runs], 'or')} times"
    ways = {1: "one way", 2: "two ways", 3: "three ways"}.get(len(table.methods), f"{len(table.methods)} ways")
    took = f" All of it took {duration(world.seconds)}" if world.seconds > 0 else ""
    took += (f" on {world.machine}." if world.machine else ".") if took else ""
    return (
        f"On {data}{f' ({sizes})' if sizes else ''}, a production ranker showed lists of {K} items to {logged}, and its clicks "
        f"were logged: {Ns} lists. From these clicks alone a two-stage system was trained, a generator that picks {K2s} "
        f"candidates and a re-ranker that chooses the {K} to show. It was trained in {ways}, {times} each, and judged on "
        f"the true relevance, which no training saw.{took}"
    )


SAME = 1e-9  # of NDCG: below it two methods gave the same lists, and what is left is rounding


def headline(table: Table) -> list[str]:
    """Who is ahead, by how much and how surely: a sentence for each comparison."""
    if len(table.methods) > 1 and table.differences and all(abs(d.mean) < SAME for d in table.differences):
        return [
            f"{listed([label(method) for method in table.methods])} are one and the same policy here: both stages are one "
            "model, start from all that the log says, and nothing was trained on top."
        ]
    pairs = dict.fromkeys((entry.method, entry.against) for entry in table.differences)
    sentences = []
    for method, against in pairs:
        entries = [d for d in table.differences if (d.method, d.against) == (method, against) and math.isfinite(d.mean)]
        if entries:
            sentences.append(_gap(entries[0]) if len(entries) == 1 else _gaps(entries))
    if not sentences and table.settings and (first := table.leader(table.settings[-1])):
        sentences = [
            f"{label(first)} has the highest NDCG; without paired differences nothing is said about how surely it is ahead."
        ]
    return sentences


def _gap(entry: NdcgDifference) -> str:
    a, b, bounds = label(entry.method), label(entry.against), bracket(entry.low, entry.high, closely)
    return {
        "ahead": f"{a} is ahead of {b} by {abs(entry.mean):.4f} NDCG {bounds}.",
        "behind": f"{a} is behind {b} by {abs(entry.mean):.4f} NDCG {bounds}.",
        "level": f"{a} and {b} cannot be told apart: the difference {closely(entry.mean)} {bounds} includes 0.",
        "unknown": f"{a} differs from {b} by {closely(entry.mean)}, without an interval: it may be chance.",
    }[entry.verdict]


def _gaps(entries: list[NdcgDifference]) -> str:
    verdicts, values = [entry.verdict for entry in entries], [entry.mean for entry in entries]
    others = {"behind": "behind in", "level": "not to be told apart in", "unknown": "without an interval in"}
    rest = "".join(f", {words} {verdicts.count(name)}" for name, words in others.items() if name in verdicts)
    against = entries[0].against if " " in entries[0].against else label(entries[0].against)
    return (
        f"{label(entries[0].method)} is ahead of {against} in {verdicts.count('ahead')} of {len(entries)} "
        f"settings{rest}; the differences go from {closely(min(values))} to {closely(max(values))}."
    )


def interval_note(table: Table) -> str:
    """What the intervals of the differences are over."""
    kinds = {entry.kind for entry in table.differences}
    over_runs = "Intervals are over runs: other logs, other starts."
    over_users = "Intervals are over the users of one run: the chance of another log or another start is not in them."
    return " ".join(text for kind, text in (("runs", over_runs), ("users", over_users)) if kind in kinds)


def _with_interval(value: Mean) -> str:
    return f"{decimal(value.mean)} {bracket(value.low, value.high)}".strip()


def markdown(table: Table) -> str:
    """The result as Markdown: methods, the paper's figures, references, differences, switches, command."""
    parts = [f"# {_text(table.title)}", _text(what_was_run(table))]
    parts += ["\n".join(f"- {_text(sentence)}" for sentence in headline(table))]
    parts += [f"## NDCG@{table.K} with 95% intervals", _block(*_grid(table))]
    if table.differences:
        heads = ["difference", "K2", "N", "mean", "95% interval", "runs"]
        parts += [
            "## Paired differences",
            _block(heads, map(_difference_line, table.differences)),
            interval_note(table),
        ]
    if any(math.isfinite(row.ndcg_new_mean) for row in table.rows):
        parts += [
            f"## NDCG@{table.K} of new items, those the user has not clicked",
            _block(_grid(table)[0], _new_lines(table)),
        ]
    names = ["expected NDCG", "recall@K2", "clicks", "overlap", "generator alone", "re-ranker alone", "seconds"]
    parts += ["## All figures", _block(["method", "K2", "N", "runs", *names], _figure_lines(table))]
    explained = switches(table.switches, table.switch_help)
    parts += ["## Switches", _block(["switch", "value", "what it is"], explained)]
    if table.command:
        parts += ["## To reproduce", f"```\n{table.command}\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"


def _text(value: str) -> str:
    return value.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def _block(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(map(_text, row)) + " |" for row in rows)


def _grid(table: Table) -> tuple[list[str], list[list[str]]]:
    """The table of methods, the paper's and the references: heads and lines of text, one column per (K2, N)."""
    heads = ["method", *(f"K2={K2}, N={count(N)}" for K2, N in table.settings)]
    lines = []
    for method in table.methods:
        lines.append([label(method), *(_with_interval(table.ndcg(method, setting)) for setting in table.settings)])
        paper = [table.paper_ndcg(method, setting) for setting in table.settings]
        if any(map(math.isfinite, paper)):
            lines.append([f"{label(method)}, the paper", *map(decimal, paper)])
    for reference in table.references:
        lines.append([label(reference.name), *([_with_interval(reference.ndcg)] * len(table.settings))])
    return heads, lines


def _new_lines(table: Table) -> list[list[str]]:
    """The methods of the same table by their NDCG of new items."""
    lines = []
    for method in table.methods:
        rows = (table.row(method, setting) for setting in table.settings)
        lines.append([label(method), *("–" if row is None else _with_interval(row.ndcg_new) for row in rows)])
    return lines


def _difference_line(d: NdcgDifference) -> list[str]:
    interval = bracket(d.low, d.high, closely) or "–"
    return [
        f"{label(d.method)} − {label(d.against)}",
        f"{d.K2}",
        count(d.N),
        closely(d.mean),
        interval,
        f"{d.runs or '–'}",
    ]


def _figure_lines(table: Table) -> list[list[str]]:
    figures = (*list(MEASURES)[2:], "generator_alone", "ranker_alone")
    lines = []
    for row in table.rows:
        found = [decimal(row.mean(figure)) for figure in figures]
        runs = f"{row.runs or '–'}"
        lines.append([label(row.method), f"{row.K2}", count(row.N), runs, *found, decimal(row.seconds_mean, 1)])
    return lines


def text(table: Table) -> "RichTable":
    """The result for a terminal: the measures of one setting, or a line for each of several settings."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as RichTable

    out = RichTable(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, title_justify="left")
    out.title = f"NDCG@{table.K} with 95% intervals"
    out.caption_justify = "left"
    fill = _one_setting if len(table.settings) == 1 else _settings
    fill(table, out)
    return out


def _one_setting(table: Table, out: "RichTable") -> None:
    """A line for each method and reference, a column for each measure."""
    from rich.text import Text

    setting, known = table.settings[0], any(math.isfinite(row.ndcg_new_mean) for row in table.rows)
    # Eighty columns have no room for both; all measures are in the report.
    measures: list[Figure] = ["ndcg_new" if known else "ndcg_expected", "recall_at_K2", "utility"]
    names = ("new items" if known else "expected", "recall@K2", "clicks")
    for head in ("", f"NDCG@{table.K}", "95% interval", *names, "seconds"):
        out.add_column(head, justify="right" if head else "left")
    for row in (row for row in table.rows if row.setting == setting):
        ndcg = Text(decimal(row.ndcg_mean), "bold" if row.method == table.leader(setting) else "")
        values = [decimal(row.mean(figure)) for figure in measures]
        bounds, last = Text(bracket(row.ndcg_low, row.ndcg_high)), decimal(row.seconds_mean, 1)
        out.add_row(Text(label(row.method)), ndcg, bounds, *values, last, end_section=row.method == table.methods[-1])
    for reference in table.references:
        bounds = Text(bracket(reference.ndcg.low, reference.ndcg.high))
        values = [decimal(reference.of(figure).mean) for figure in measures]
        out.add_row(Text(label(reference.name)), decimal(reference.ndcg.mean), bounds, *values, style="dim")


def _settings(table: Table, out: "RichTable") -> None:
    """A line for each (K2, N), a column for each method, the paper's figures under ours; references below."""
    from rich.text import Text

    out.add_column("K2", justify="right")
    out.add_column("N", justify="right")
    for method in table.methods:
        out.add_column(Text(label(method)))
    for setting in table.settings:
        line = []
        for method in table.methods:
            ndcg, paper = table.ndcg(method, setting), table.paper_ndcg(method, setting)
            figure = Text(decimal(ndcg.mean), "bold" if method == table.leader(setting) else "")
            figure.append(f" {bracket(ndcg.low, ndcg.high)}", "not bold")
            line.append(figure.append(f"\npaper {decimal(paper)}", "dim not bold") if math.isfinite(paper) else figure)
        out.add_row(f"{setting[0]:,}", count(setting[1]), *line)
    out.caption = Text("  ".join(f"{label(r.name)} {decimal(r.ndcg.mean)}" for r in table.references))
