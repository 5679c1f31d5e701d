"""The result of an experiment: what was run, who is ahead, every figure; as a page, as Markdown, and for a terminal."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tandemrank._base.config import switch_help
from tandemrank.experiments.config import GridConfig
from tandemrank.experiments.results import Figure, Figures, Mean, NdcgDifference, Table
from tandemrank.experiments.study import Gain, SettingResult
from tandemrank.reports import figures, page
from tandemrank.reports.figures import Dot, Panel, Step
from tandemrank.reports.page import Report, Section
from tandemrank.reports.style import look_of
from tandemrank.reports.words import (
    Best,
    Sheet,
    bracket,
    closely,
    count,
    decimal,
    duration,
    label,
    listed,
    switch_sheet,
)
from tandemrank.training.schedules import UNTRAINED

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing
    from rich.table import Table as RichTable

MEASURES: dict[Figure, str] = {
    "ndcg": "NDCG@{K}",
    "ndcg_new": "new items",
    "ndcg_expected": "expected",
    "recall_at_K2": "recall@K2",
    "utility": "clicks",
    "generator_alone": "generator alone",
    "ranker_alone": "re-ranker alone",
}
BRIEF: tuple[Figure, ...] = (
    "ndcg",
    "ndcg_new",
    "recall_at_K2",
    "utility",
)  # what a terminal of eighty columns has room for
ABOUT_MEASURES = (
    "NDCG is that of the most likely list; new items: of those the user has not clicked; expected: over lists drawn from the "
    "policy. Recall@K2: the relevant items among the candidates. Clicks: expected per list. Alone: NDCG of what a stage would "
    "show without the other. Seconds: of one training; the first on a machine also compiles its kernels, which are kept "
    "on disk. In brackets the 95% interval."
)
FULL_INFORMATION = (
    " Full information: a plain factorisation trained on the true relevance. It remembers no single pair, so that a policy "
    "with a memory may be ahead."
)


def plot(table: Table) -> "Drawing":
    """NDCG of every method against the length of the log, a panel for each number of candidates."""
    return figures.against(table, 1)


def report(table: Table) -> Report:
    """Everything that the table says."""
    K = table.K
    is_full = any(reference.name == "full information" for reference in table.references)
    paper = " Below ours, what the paper prints." if table.paper else ""
    sections = [
        page.methods_of(table.methods),
        Section(title="Who is ahead", sentences=headline(table)),
        Section(
            title=f"NDCG@{K} with 95% intervals",
            sheet=by_setting(table),
            caption=f"The highest of each line is bold.{paper} {references(table)}",
        ),
        *_figures(table),
        Section(
            title="All measures",
            sheet=measures(table),
            caption=ABOUT_MEASURES + (FULL_INFORMATION if is_full else ""),
        ),
        Section(title="Every switch", sheet=switch_sheet(table.switches, switch_help(GridConfig))),
        page.reproduce(table.command),
    ]
    return Report(table.title, [what_was_run(table)], sections, page.COLOURS, table.version)


def text(table: Table) -> "RichTable":
    """The result for a terminal: the measures of one setting, or a line for each of several settings."""
    title = f"NDCG@{table.K} with 95% intervals"
    if len(table.settings) == 1:
        return measures(table, brief=True).terminal(title)
    return by_setting(table).terminal(title, references(table))


# --- tables -----------------------------------------------------------------------------------------------------------


def with_interval(value: Mean) -> str:
    """A mean, and its interval if it has one."""
    return f"{decimal(value.mean)} {bracket(value.low, value.high)}".strip()


def by_setting(table: Table) -> Sheet:
    """A line for each (K2, N), a column for each method, the paper's figures under ours."""
    rows = []
    for K2, N in table.settings:
        line = [f"{K2:,}", count(N)]
        for method in table.methods:
            paper = table.paper_ndcg(method, (K2, N))
            words = with_interval(table.ndcg(method, (K2, N))) + (f"\npaper {decimal(paper)}" if paper > 0 else "")
            line.append(Best(words) if method == table.leader((K2, N)) else words)
        rows.append(line)
    methods = [label(method) for method in table.methods]
    return Sheet(["K2", "N", *methods], rows, methods)


def references(table: Table) -> str:
    """NDCG of what to compare with, in a line."""
    return "  ".join(f"{label(one.name)} {decimal(one.ndcg.mean)}" for one in table.references)


def measures(table: Table, *, brief: bool = False) -> Sheet:
    """A line for each method in a setting and each reference, a column for each measure that is known."""
    every: list[Figures] = [*table.rows, *table.references]
    shown = [f for f in (BRIEF if brief else MEASURES) if any(math.isfinite(one.of(f).mean) for one in every)]
    wide = ("ndcg",) if brief else ("ndcg", "ndcg_new")  # with their intervals
    places = ("K2", "N") if len(table.settings) > 1 else ()

    def cells(one: Figures) -> list[str]:
        return [with_interval(one.of(f)) if f in wide else decimal(one.of(f).mean) for f in shown]

    rows = []
    for row in table.rows:
        where = (f"{row.K2:,}", count(row.N)) if places else ()
        rows.append([label(row.method), *where, *cells(row), decimal(row.seconds, 1)])
    rows += [[label(one.name), *("" for _ in places), *cells(one), ""] for one in table.references]
    heads = ["", *places, *(MEASURES[figure].format(K=table.K) for figure in shown), "seconds"]
    return Sheet(heads, rows, [""])


def differences(table: Table) -> Sheet:
    """Every paired difference."""
    rows = [
        (
            f"{label(d.method)} − {label(d.against)}",
            f"{d.K2:,}",
            count(d.N),
            closely(d.mean),
            bracket(d.low, d.high, closely),
            str(d.runs),
        )
        for d in table.differences
    ]
    return Sheet(("difference", "K2", "N", "mean", "95% interval", "runs"), rows, ("difference",))


def _figures(table: Table) -> list[Section]:
    """The figures that the table has something for."""
    found = []
    if table.differences:
        words = (
            "A dot is the mean of the paired differences, its line the 95% interval. A hollow dot: 0 is inside the interval, "
            "so neither is shown to be ahead."
        )
        found.append(
            Section(
                title="Paired differences",
                sentences=[interval_note(table)],
                sheet=differences(table),
                draw=lambda: figures.dots(_dots(table), "difference in NDCG"),
                caption=words,
            )
        )
    for along, title, words in (
        (1, "More clicks", "length of the log"),
        (0, "More candidates", "number of candidates"),
    ):
        if len({setting[along] for setting in table.settings}) > 1:
            caption = f"NDCG@{table.K} against the {words}, with 95% intervals; dashed: references."
            found.append(page.figure(title, figures.against, table, along, caption=caption))
    if curves := _curves(table):
        caption = f"The fewest candidates, up to five runs, the first one strong: true NDCG@{table.K}, which no training sees."
        found.append(page.figure("Learning curves", figures.learning_curves, curves, "NDCG", caption=caption))
    return found


def _dots(table: Table) -> list[Dot]:
    return [
        Dot(
            name=f"{label(d.method)} − {label(d.against)}, K2 = {d.K2:,}, N = {count(d.N)}",
            value=d.mean,
            interval=(d.low, d.high),
            colour=look_of(d.against)["color"],
            hollow=d.verdict == "level",
        )
        for d in table.differences
    ]


def _curves(table: Table) -> list[list[Panel]]:
    """The learning curves of the smallest K2: a row for the shortest and one for the longest log."""
    known = [curve for curve in table.curves if curve.history]
    here = [curve for curve in known if min(one.K2 for one in known) == curve.K2]
    lengths = sorted({curve.N for curve in here})
    return [
        [
            Panel(
                f"{label(method)}, N = {count(N)}",
                look_of(method)["color"],
                [
                    [Step(epoch.phase, epoch.watched.get("ndcg", math.nan)) for epoch in curve.history]
                    for curve in here
                    if (curve.method, curve.N) == (method, N)
                ][:5],
            )
            for method in dict.fromkeys(curve.method for curve in here)
        ]
        for N in dict.fromkeys([*lengths[:1], *lengths[-1:]])
    ]


# --- in words ---------------------------------------------------------------------------------------------------------


def what_was_run(table: Table) -> str:
    """The experiment in plain words, with its sizes."""
    world, K = table.world, table.K
    data = "the embedded synthetic world" if world.data == "synthetic" else world.data
    K2s, Ns = (listed([f"{x:,}" for x in sorted({s[i] for s in table.settings})], "or") for i in (0, 1))
    runs = sorted({row.runs for row in table.rows})
    times = {"1": "once", "2": "twice"}.get(",".join(map(str, runs)), f"{listed([str(n) for n in runs], 'or')} times")
    made = "made" if UNTRAINED in table.methods else "trained"
    ways = {1: "one way", 2: "two ways", 3: "three ways"}.get(len(table.methods), f"{len(table.methods)} ways")
    took = (
        f" All of it, compiling included, took {duration(world.seconds)} on {world.machine}."
        if world.seconds > 0
        else ""
    )
    return (
        f"On {data} ({world.queries:,} users, {world.items:,} items and {world.positives:,} relevant pairs), a production "
        f"ranker showed lists of {K} items to {world.logged_users:,} users, and its clicks were logged: {Ns} lists. From these "
        f"clicks alone a two-stage system was {made}, a generator that picks {K2s} candidates and a re-ranker that chooses "
        f"the {K} to show. It was {made} in {ways}, {times} each, and judged on the true relevance, which no training saw."
        f"{took}"
    )


def headline(table: Table) -> list[str]:
    """Who is ahead, by how much and how surely: a sentence for each comparison."""
    pairs = dict.fromkeys((entry.method, entry.against) for entry in table.differences)
    sentences = []
    for method, against in pairs:
        entries = [d for d in table.differences if (d.method, d.against) == (method, against)]
        sentences.append(_gap(entries[0]) if len(entries) == 1 else _gaps(entries))
    if not sentences and len(table.methods) > 1 and (first := table.leader(table.settings[-1])):
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
    }[entry.verdict]


def _gaps(entries: list[NdcgDifference]) -> str:
    verdicts, values = [entry.verdict for entry in entries], [entry.mean for entry in entries]
    others = {"behind": "behind in", "level": "not to be told apart in"}
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


# --- the study of two models ------------------------------------------------------------------------------------------


def study(found: Sequence[SettingResult]) -> Sheet:
    """A line per setting: NDCG of every method, on all items and on new ones, and what Joint gains over its best rival."""
    names = list(dict.fromkeys(name for one in found for name in one.ndcg))
    heads = ["generator, then re-ranker", "K2", "N", *map(label, names), "Single stage", "Joint less the best other"]
    rows = [
        [
            one.name,
            f"{one.K2}",
            count(one.N),
            *(
                f"{decimal(one.ndcg[name].mean)} / {decimal(one.ndcg_new[name].mean)}" if name in one.ndcg else "–"
                for name in names
            ),
            decimal(one.single_stage),
            "\n".join(map(_gain, one.gains)),
        ]
        for one in found
    ]
    return Sheet(heads, rows, (heads[0], heads[-1]))


def _gain(gain: Gain) -> str:
    d = gain.difference
    words = (
        gain.method.removeprefix("joint").strip(),
        closely(d.mean),
        bracket(d.low, d.high, closely),
        "over",
        gain.rival,
    )
    return " ".join(filter(None, words)) + f", n = {d.n}"
