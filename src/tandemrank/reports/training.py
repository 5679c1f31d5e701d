"""What came of training on a log of one's own: sentences, a table for the terminal, and one self-contained HTML page.

All are made from the content of `summary.json` alone, in the look of the experiments' report.
"""

import math
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tandemrank._base import files
from tandemrank.offpolicy.values import PRODUCTION
from tandemrank.offpolicy.verdicts import Verdict
from tandemrank.reports import style
from tandemrank.reports.curves import mark_phase
from tandemrank.reports.page import REPORT, chip, figure_of, line, page, reproduce, section, switches_of, table_of
from tandemrank.reports.words import ABOUT, bracket, decimal, label, signed, switches

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.table import Table as RichTable


Summary = dict[str, Any]


def number(value: object) -> float:
    """A float; NaN for what is missing or is not a number."""
    return float(value) if isinstance(value, int | float) else math.nan


def sentences(summary: Summary) -> list[str]:
    """What the log says of each pair against production, and of the pairs against each other."""
    return [_sentence(summary, difference) for difference in summary["differences"]]


def _sentence(summary: Summary, difference: dict[str, Any]) -> str:
    a, b = difference["method"], difference["against"]
    low, high = difference["interval"]
    gap = f"{signed(difference['value'])} {_bounds(difference, signed)}"
    if difference["verdict"] == Verdict.REFUSE:
        which = next(m for m in summary["methods"] if m["method"] in (a, b) and m["verdict"] == difference["verdict"])
        return f"{label(a)} against {b} {Verdict.REFUSE}: {which['reasons'][0]}."
    if low <= 0 <= high:
        words = f"{label(a)} and {b} cannot be told apart: {gap} clicks per impression includes 0"
    else:
        words = f"{label(a)} would get {'more' if low > 0 else 'fewer'} clicks than {b}: {gap} per impression"
    careful = f"; use it with care, {Verdict.CARE.meaning}" if difference["verdict"] == Verdict.CARE else ""
    return f"{words}{careful}."


def _rows(summary: Summary) -> list[dict[str, Any]]:
    """Production, then every method, with what each lies above production."""
    gaps = {d["method"]: d for d in summary["differences"] if d["against"] == PRODUCTION}
    live = {"method": PRODUCTION, **summary["production"], "gap": None}
    return [live, *({**method, "gap": gaps.get(method["method"])} for method in summary["methods"])]


def _bounds(entry: dict[str, Any] | None, write: Callable[[float], str] = decimal) -> str:
    low, high = map(number, entry["interval"] if entry else (None, None))
    return bracket(low, high, write)


def text(summary: Summary) -> "RichTable":
    """The values for a terminal."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    narrow: dict[str, Any] = {"box": SIMPLE_HEAD, "show_edge": False, "pad_edge": False, "collapse_padding": True}
    out = Table(title="clicks per impression, on impressions that no training saw", title_justify="left", **narrow)
    for head in ("", "clicks", "95% interval", "above production", "95% interval", "verdict"):
        out.add_column(head, justify="left" if head in ("", "verdict") else "right")
    for row in _rows(summary):
        gap = row["gap"]
        cells = (
            label(row["method"]), decimal(number(row['value'])), _bounds(row),
            signed(number(gap and gap["value"])), _bounds(gap, signed), row["verdict"],
        )  # fmt: skip
        out.add_row(*(Text(cell) for cell in cells))
    return out


def write(summary: Summary, path: str | Path) -> Path:
    """Writes the page in one piece and returns its path."""
    return files.write_text(path, html(summary), REPORT)


def html(summary: Summary) -> str:
    """One self-contained page: what the log is, what each pair is worth, how training went, every switch."""
    found = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences(summary))
    methods = "".join(
        f"<li>{_chip(m['method'])}: {escape(ABOUT[m['method']])}.</li>" for m in summary["methods"]
    )  # fmt: skip
    title = "Both stages, trained from a click log"
    judged = f"{summary['log']['evaluation']:,.0f}"
    sections = [
        f'<header><h1>{title}</h1><p>{escape(what_was_run(summary))}</p><ul class="methods">{methods}</ul></header>',
        section("What it is worth", f'{_tiles(summary)}<ul class="headline">{found}</ul>'),
        figure_of(
            "Clicks per impression", values_figure(summary),
            f"Doubly robust estimates with 95% intervals on {judged} impressions that neither training nor stopping saw; "
            "production's is what these impressions show. Hollow: this log cannot answer for it.",
        ),
        section("What the numbers rest on", _diagnostics(summary)),
        figure_of(
            "Learning curves", curves_figure(summary),
            "The judgement on held-out clicks by epoch. The ring is the epoch whose weights were kept: the last of those five "
            "whose mean was best." if summary["log"]["held_out"] else
            "The objective of training by epoch, as a share of the highest. Nothing was held out to stop it: the last weights "
            "of a phase were kept.",
        ),
        section("The log", _log(summary)),
        switches_of(switches(summary["switches"], summary["switch_help"])),
        reproduce(summary["command"]),
    ]  # fmt: skip
    return page(title, sections, summary["version"])


def what_was_run(summary: Summary) -> str:
    """The training in plain words, with its sizes."""
    log, asked = summary["log"], summary["switches"]
    stopping = f", {log['held_out']:,.0f} said when to stop," if log["held_out"] else ""
    return (
        f"A live system showed lists of up to {log['list_length']} of {log['items']:,} items to {log['queries']:,} queries, "
        f"{log['impressions']:,.0f} times, and {log['clicks']:,.0f} clicks were logged. From these clicks alone a two-stage "
        f"system was trained: a generator that picks {asked['candidates']} candidates and a re-ranker that shows "
        f"{asked['list_length']} of them. Training saw {log['train']:,.0f} impressions{stopping} "
        f"and {log['evaluation']:,.0f} valued what came out."
    )


def _chip(method: str) -> str:
    return chip(method, style.SLOTS.get(method))


def _tiles(summary: Summary) -> str:
    boxes = []
    for row in _rows(summary):
        gap = row["gap"]
        more = f"{signed(gap['value'])} {_bounds(gap, signed)}" if gap else "clicks per impression"
        boxes.append(
            f"<div><dt>{escape(label(row['method']))}</dt><dd>{decimal(number(row['value']))}<small>{more}</small></dd></div>"
        )
    note = "Clicks per impression; under each its distance from production with the 95% interval."
    return f'<dl class="tiles">{"".join(boxes)}</dl><p class="note">{note}</p>'


RESTS_ON = {
    "value": ("clicks", "per impression"),
    "lower_bound": ("at least", "95% sure, by IPS"),
    "effective_sample_size": ("effective", "examined items"),
    "largest_weight": ("largest weight", "of one pair"),
    "unsupported": ("unsupported", "share not in that part"),
    "lost_at_generator": ("at the generator", "of that"),
    "lost_at_ranker": ("at the re-ranker", "of that"),
    "balance": ("balance", "1 is right"),
}


def _diagnostics(summary: Summary) -> str:
    """What every value rests on, and the verdict with its reasons."""
    heads = (f'<th scope="col">{name}<small>{words}</small></th>' for name, words in RESTS_ON.values())
    lines = []
    for method in summary["methods"]:
        cells = (f"<td>{_figure(method[key], key)}</td>" for key in RESTS_ON)
        lines.append(line(_chip(method["method"]), cells))
    verdicts = "".join(
        f"<li>{_chip(m['method'])}: <strong>{escape(m['verdict'])}</strong>: {escape('; '.join(m['reasons']))}.</li>"
        for m in summary["methods"]
    )
    table = table_of([f'<tr><th scope="col">method</th>{"".join(heads)}</tr>'], lines, "Diagnostics")
    return f'{table}<ul class="methods">{verdicts}</ul>'


def _figure(value: object, key: str) -> str:
    x = number(value)
    if key in ("unsupported", "lost_at_generator", "lost_at_ranker"):
        return f"{x:.1%}" if math.isfinite(x) else "–"
    return f"{x:,.0f}" if key == "effective_sample_size" and math.isfinite(x) else decimal(x)


def _log(summary: Summary) -> str:
    """What the log is, which propensities were used and why, and what training started from."""
    log = summary["log"]
    facts = [
        ("impressions", f"{log['impressions']:,.0f}"),
        ("queries", f"{log['queries']:,}"),
        ("items shown", f"{log['items']:,}"),
        ("(query, item) pairs shown", f"{log['pairs']:,}"),
        ("clicks", f"{log['clicks']:,.0f}"),
        ("propensities", f"{summary['propensity']}: {summary['propensity_reason']}"),
        ("training started from", summary["start"]),
    ]
    lines = [line(escape(name), [f"<td>{escape(value)}</td>"]) for name, value in facts]
    return f'<div class="words">{table_of([], lines, "The log")}</div>'


# --- figures ----------------------------------------------------------------------------------------------------------


@style.styled
def values_figure(summary: Summary) -> "Figure":
    """The value of production and of every method: a dot and an interval each."""
    rows = _rows(summary)[::-1]
    figure, axes = style.panels(1, 1, 0.8 + 0.36 * len(rows))
    axis = axes[0, 0]
    for y, row in enumerate(rows):
        look = style.look_of(row["method"])
        low, high = map(number, row["interval"])
        style.interval_line(axis, y, low, high, look["color"], across=True)
        inside = style.THEME["page"] if row["verdict"] == Verdict.REFUSE else look["color"]
        axis.plot(row["value"], y, **look, ms=7, mew=1.6, mfc=inside)
        words = f"{decimal(number(row['value']))} {_bounds(row)}"
        axis.annotate(words, (1, y), (6, 0), ("axes fraction", "data"), "offset points", va="center", fontsize=9)
    axis.set_yticks(range(len(rows)), [label(row["method"]) for row in rows])
    axis.set(ylim=(-0.6, len(rows) - 0.4), xlabel="clicks per impression")
    axis.grid(False, axis="y")
    axis.margins(x=0.08)
    return figure


@style.styled
def curves_figure(summary: Summary) -> "Figure":
    """The judgement on held-out clicks by epoch, one panel per method, its phases one after another; a ring at the choice.

    Where nothing was held out, the objective of training.
    """
    methods = summary["methods"]
    figure, axes = style.panels(1, len(methods), 3.0, sharey=True)
    for axis, method in zip(axes[0], methods, strict=True):
        look = style.look_of(method["method"])
        _phases(axis, method, look["color"])
        axis.set_title(label(method["method"]), color=look["color"])
        axis.set_xlabel("epoch")
        axis.grid(False, axis="x")
        axis.xaxis.get_major_locator().set_params(integer=True)
    axes[0, 0].set_ylabel(
        "judged on held-out clicks" if summary["log"]["held_out"] else "objective, share of the highest"
    )
    return figure


def _phases(axis: "Axes", method: dict[str, Any], colour: str) -> None:
    start = 0
    for phase, chosen in method["chosen"].items():
        epochs = [e for e in method["history"] if e["phase"] == phase]
        judged = np.array([number(e["held_out"]) for e in epochs])
        if np.isnan(judged).all():
            judged = np.array([e["objective"] for e in epochs])
            judged /= np.abs(judged).max() or 1.0
        axis.plot(np.arange(1, len(judged) + 1) + start, judged, color=colour, marker=".", ms=4)
        at = [e["epoch"] for e in epochs].index(chosen)
        axis.plot(start + at + 1, judged[at], color=colour, marker="o", ms=10, mew=1.6, mfc="none")
        mark_phase(axis, phase, start)
        start += len(judged)
    axis.set_xlim(0.5, start + 0.5)
    axis.margins(y=0.15)
