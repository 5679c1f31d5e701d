"""The figures of the report: each function takes the content of `table.json` and gives a Figure, `svg` its text.

A method has one colour and one marker in all figures, and lines carry their names. The colours are written as CSS
variables with a fallback, so a figure inside the page follows its light or dark theme and stands alone as well.
matplotlib is imported only when a figure is drawn.
"""

import functools
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from tandemrank.reports.words import Cell, Table, cells, closely, count, find, label, methods, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Okabe and Ito's palette, darkened where it would be too faint for words; the report has the dark theme's values.
THEME = {
    "ink": "#1d2329", "muted": "#66707b", "grid": "#dfe3e8", "page": "#fffffe",
    "method-0": "#0072b2", "method-1": "#c65300", "method-2": "#00805d",
    "method-3": "#b0568a", "method-4": "#8a6d00", "method-5": "#4b5563",
}  # fmt: skip
SLOTS = {"joint": 0, "independent": 1, "baseline": 2}
MARKERS = "osDv^P"
WIDTH = 10.0
STYLE: dict[str, Any] = {
    "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "font.size": 10, "text.parse_math": False,
    "text.color": THEME["ink"], "axes.labelcolor": THEME["muted"], "axes.titlesize": 10, "axes.titlecolor": THEME["ink"],
    "axes.edgecolor": THEME["grid"], "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "axes.axisbelow": True, "grid.color": THEME["grid"], "grid.linewidth": 0.8, "xtick.color": THEME["grid"],
    "ytick.color": THEME["grid"], "xtick.labelcolor": THEME["muted"], "ytick.labelcolor": THEME["muted"],
    "lines.linewidth": 1.8, "lines.markersize": 6, "axes.facecolor": "none", "figure.facecolor": "none",
    "axes.titlelocation": "left", "axes.unicode_minus": True, "svg.fonttype": "none", "figure.dpi": 72,
}  # fmt: skip


def slots(table: Table) -> dict[str, int]:
    """The place of each method in the palette: fixed for the paper's three, then in order."""
    others = [method for method in methods(table) if method not in SLOTS]
    return SLOTS | {method: 3 + i % 3 for i, method in enumerate(others)}


@contextmanager
def _style(**more: Any) -> Iterator[None]:
    """Our style, whatever the user's matplotlib settings are; those are as they were afterwards."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE | more)  # type: ignore[arg-type]
        yield


def styled(draw: "Callable[[Table], Figure]") -> "Callable[[Table], Figure]":
    """A figure in our style, with its function's name as its label."""

    @functools.wraps(draw)
    def drawn(table: Table) -> "Figure":
        with _style():
            figure = draw(table)
            figure.set_label(draw.__name__)
            return figure

    return drawn


def panels(rows: int, columns: int, height: float, **options: Any) -> "tuple[Figure, Any]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def svg(figure: "Figure", alt: str = "") -> str:
    """The figure as SVG for a page: the same bytes every time, no ids that another figure could have, words as words."""
    out = io.StringIO()
    with _style(**{"svg.hashsalt": f"tandemrank {figure.get_label()}"}):  # ticks are made only now
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = re.sub(r"(?s)<metadata>.*?</metadata>|<!--.*?-->", "", out.getvalue())
    width, height = (72 * inches for inches in figure.get_size_inches())
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    head = f'<svg {names} viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{escape(alt)}">'
    text = re.sub(r"(?s)^.*?<svg[^>]*>", lambda _: head, text, count=1)
    used = set(re.findall(r'(?:url\(|href=")#([^)"]+)', text))
    text = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", text)
    text = re.sub(r"font: ([\d.]+px)[^;\"]*", r"font-size: \1; font-family: inherit, sans-serif", text)
    for name, colour in THEME.items():
        text = text.replace(colour, f"var(--{name}, {colour})")
    return re.sub(r"\n\s*", "\n", text).strip()


def look_of(table: Table, method: str) -> dict[str, Any]:
    """Colour and marker of a method; grey for what is none of the methods."""
    slot = slots(table).get(method)
    return {"color": THEME["muted" if slot is None else f"method-{slot}"], "marker": MARKERS[slot or 0]}


def interval_line(axis: "Axes", at: float, low: float, high: float, colour: str, *, across: bool = False) -> None:
    """A 95% interval as a line, where there is one."""
    if math.isfinite(low) and math.isfinite(high):
        ends, place = [low, high], [at, at]
        axis.plot(
            *((ends, place) if across else (place, ends)), color=colour, lw=1.6, alpha=0.65, solid_capstyle="butt"
        )


def _spread(values: Sequence[float], gap: float) -> list[float]:
    """The nearest places, in least squares, that keep the order and are a gap apart."""
    from scipy.optimize import isotonic_regression

    if not values:
        return []
    order = np.argsort(values, kind="stable")
    steps = gap * np.arange(len(values))
    places = np.empty(len(values))
    places[order] = isotonic_regression(np.asarray(values, float)[order] - steps).x + steps
    return [float(place) for place in places]


def _end_labels(axis: "Axes", labels: list[tuple[float, str, str]]) -> None:
    """Names right of the axes, at the height of their lines and clear of each other."""
    low, high = axis.get_ylim()
    gap = 0.062 * (high - low)
    for (_, text, colour), y in zip(labels, _spread([y for y, _, _ in labels], gap), strict=True):
        axis.annotate(
            text, (1, y), (6, 0), ("axes fraction", "data"), "offset points", color=colour, va="center",
            annotation_clip=False,
        )  # fmt: skip


def _range(table: Table) -> tuple[float, float, list[tuple[str, float]], list[tuple[str, float]]]:
    """Limits of an NDCG axis for the methods, the references that are near enough to share it, and those that are not."""
    rows = table.get("rows") or []
    keys = ("ndcg_mean", "ndcg_low", "ndcg_high")
    values = [v for v in (number(row.get(key)) for row in rows for key in keys) if math.isfinite(v)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    span = max(high - low, 0.05)
    near: list[tuple[str, float]] = []
    far: list[tuple[str, float]] = []
    for reference in table.get("references") or []:
        value = number((reference.get("ndcg") or {}).get("mean"))
        if math.isfinite(value):
            (near if low - 1.5 * span <= value <= high + span else far).append((str(reference["name"]), value))
    low, high = min([low, *(v for _, v in near)]), max([high, *(v for _, v in near)])
    margin = 0.06 * max(high - low, 0.02)
    return low - margin, high + margin, near, far


@styled
def levels(table: Table) -> "Figure":
    """NDCG of methods and references in the one cell of a small experiment: a dot and an interval each."""
    cell = cells(table)[0]
    points: list[tuple[str, dict[str, Any], float, float, float]] = []
    for method in methods(table):
        row = find(table, method, cell)
        value, low, high = (number(row.get(f"ndcg_{key}")) for key in ("mean", "low", "high"))
        points.append((label(method), look_of(table, method), value, low, high))
    for reference in table.get("references") or []:
        value, low, high = (number((reference.get("ndcg") or {}).get(key)) for key in ("mean", "low", "high"))
        points.append((label(reference["name"]), {"color": THEME["muted"], "marker": "|"}, value, low, high))
    points = sorted((p for p in points if math.isfinite(p[2])), key=lambda p: p[2])
    figure, axes = panels(1, 1, 0.8 + 0.3 * len(points))
    axis = axes[0, 0]
    for y, (_, look, value, low, high) in enumerate(points):
        axis.plot([0, value], [y, y], color=look["color"], lw=0.8, alpha=0.35)
        interval_line(axis, y, low, high, look["color"], across=True)
        axis.plot(value, y, **look, ms=9 if look["marker"] == "|" else 7, mew=2 if look["marker"] == "|" else 1)
        axis.annotate(f"{value:.3f}", (value, y), (12, 0), textcoords="offset points", va="center", color=look["color"])
    axis.set_yticks(range(len(points)), [name for name, *_ in points])
    for tick, (_, look, *_) in zip(axis.get_yticklabels(), points, strict=True):
        tick.set_color(look["color"])
    axis.set(xlim=(0, min(1.08 * max((p[2] for p in points), default=1), 1.05)), ylim=(-0.6, len(points) - 0.4))
    axis.set_xlabel("NDCG of the most likely list")
    axis.grid(False, axis="y")
    return figure


@styled
def differences(table: Table) -> "Figure":
    """Paired differences with their 95% intervals: one panel a comparison, one line a cell; hollow where 0 is inside."""
    entries = table.get("differences") or []
    pairs = list(dict.fromkeys((str(d["method"]), str(d["against"])) for d in entries))
    places = sorted({(d["K2"], d["N"]) for d in entries}, reverse=True)
    figure, axes = panels(1, len(pairs), 0.95 + 0.34 * len(places), sharex=True, sharey=True)
    for axis, (method, against) in zip(axes[0], pairs, strict=True):
        axis.axvline(0, color=THEME["ink"], lw=1)
        for entry in (d for d in entries if (d["method"], d["against"]) == (method, against)):
            y = places.index((entry["K2"], entry["N"]))
            value, low, high = (number(entry.get(key)) for key in ("mean", "low", "high"))
            look = look_of(table, against)
            interval_line(axis, y, low, high, look["color"], across=True)
            axis.plot(value, y, **look, ms=7, mew=1.6, mfc=look["color"] if low > 0 or high < 0 else THEME["page"])
            words = closely(value) + (f" [{closely(low)}, {closely(high)}]" if math.isfinite(low + high) else "")
            axis.annotate(words, (1, y), (4, 0), ("axes fraction", "data"), "offset points", va="center", fontsize=9)
        axis.set_title(f"{label(method)} − {label(against)}")
        axis.set(ylim=(-0.6, len(places) - 0.4), xlabel="difference in NDCG")
        axis.set_yticks(range(len(places)), [f"K2 = {K2:,}, N = {count(N)}" for K2, N in places])
        axis.grid(False, axis="y")
        axis.margins(x=0.08)
        axis.locator_params(axis="x", nbins=3)
    return figure


def _against(table: Table, along: int, name: str, others: Iterable[int], title: Callable[[int], str]) -> "Figure":
    """NDCG along K2 (0) or N (1): one panel for each value of the other, one line a method, references across."""
    places, grid = list(others), sorted({cell[along] for cell in cells(table)})
    low, high, near, far = _range(table)
    figure, axes = panels(1, len(places), 4.1, sharey=True)
    for axis, other in zip(axes[0], places, strict=True):
        ends = []
        for i, method in enumerate(methods(table)):
            look = look_of(table, method)
            rows = [find(table, method, (x, other) if along == 0 else (other, x)) for x in grid]
            mean = [number(row.get("ndcg_mean")) for row in rows]
            x = [value * (1 + 0.02 * (i - 1)) for value in grid]
            axis.plot(x, mean, **look)
            for place, row in zip(x, rows, strict=True):
                interval_line(axis, place, number(row.get("ndcg_low")), number(row.get("ndcg_high")), look["color"])
            ends += [(y, label(method), look["color"]) for y in [v for v in mean if math.isfinite(v)][-1:]]
        for reference, value in near:
            axis.axhline(value, color=THEME["muted"], lw=1.2, ls=(0, (4, 3)))
            ends.append((value, label(reference), THEME["muted"]))
        axis.set(ylim=(low, high), title=title(other), xlabel=name, xscale="log")
        axis.set_xticks(grid, [count(x) if along else f"{x:,}" for x in grid])
        axis.set_xticks([], minor=True)
        axis.grid(False, axis="x")
        if axis is axes[0, -1]:
            _end_labels(axis, ends)
    axes[0, 0].set_ylabel("NDCG of the most likely list")
    if far:
        words = "Beyond this axis: " + ", ".join(f"{reference} {value:.3f}" for reference, value in far)
        figure.supxlabel(words, color=THEME["muted"], fontsize=9, x=0.01, ha="left")
    return figure


@styled
def against_N(table: Table) -> "Figure":
    """NDCG against the length of the log, one panel a K2."""
    K2s = sorted({K2 for K2, _ in cells(table)})
    return _against(table, 1, "impressions in the log, N", K2s, lambda K2: f"K2 = {K2:,} candidates")


@styled
def against_K2(table: Table) -> "Figure":
    """NDCG against the number of candidates, one panel an N."""
    Ns = sorted({N for _, N in cells(table)})
    return _against(table, 0, "candidates, K2", Ns, lambda N: f"N = {count(N)} impressions")


def in_ndcg(table: Table) -> bool:
    """Is the judgement on held-out clicks an estimate of NDCG, so that both share an axis?"""
    return bool(((table.get("switches") or {}).get("training") or {}).get("stopping", "dcg") == "dcg")


def points(table: Table) -> list[tuple[str, int, float, float]]:
    """(method, N, judged on held-out clicks, true) of every epoch that has both."""
    found = [
        (str(c["method"]), c["N"], number(e.get("held_out")), number((e.get("watched") or {}).get("ndcg")))
        for c in table.get("curves") or []
        for e in c.get("history") or []
    ]
    return [p for p in found if math.isfinite(p[2]) and math.isfinite(p[3])]


def shown_curves(table: Table) -> tuple[int | None, list[int], list[str]]:
    """The K2, the shortest and the longest log, and the methods whose learning curves are shown."""
    curves = [c for c in table.get("curves") or [] if c.get("history")]
    if not curves:
        return None, [], []
    K2 = min(c["K2"] for c in curves)
    Ns = sorted({c["N"] for c in curves if c["K2"] == K2})
    return K2, sorted({Ns[0], Ns[-1]}), list(dict.fromkeys(str(c["method"]) for c in curves if c["K2"] == K2))


@styled
def learning_curves(table: Table) -> "Figure":
    """True NDCG (solid) and the judgement on held-out clicks (dotted), if any, by epoch; phases follow one another."""
    K2, Ns, names = shown_curves(table)
    figure, axes = panels(len(Ns), len(names), 0.5 + 2.5 * len(Ns), sharey="row")
    one_axis = in_ndcg(table) or not points(table)
    for row, N in zip(axes, Ns, strict=True):
        for axis, method in zip(row, names, strict=True):
            colour = look_of(table, method)["color"]
            here = [c for c in table["curves"] if (c["method"], c["K2"], c["N"]) == (method, K2, N)][:5]
            _runs(axis, axis if one_axis else axis.twinx(), [_phases(c["history"]) for c in here], colour)
            axis.set_title(f"{label(method)}, N = {count(N)}", color=colour)
            axis.set_xlabel("epoch" if Ns[-1] == N else "")
            axis.grid(False, axis="x")
            axis.xaxis.get_major_locator().set_params(integer=True)
        low, high = row[0].get_ylim()
        row[0].set(ylim=(low - 0.12 * (high - low), high), ylabel="NDCG")
    return figure


def _phases(history: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The epochs of each phase, in order."""
    phases: dict[str, list[dict[str, Any]]] = {}
    for epoch in history:
        phases.setdefault(str(epoch.get("phase", "")), []).append(epoch)
    return phases


def _runs(axis: "Axes", judged: "Axes", runs: list[dict[str, list[dict[str, Any]]]], colour: str) -> None:
    """The runs of one method, the first one strong; each phase starts at the same place in all of them."""
    start = 0
    for phase in dict.fromkeys(phase for run in runs for phase in run):
        for i, run in enumerate(runs):
            epochs = run.get(phase, [])
            x = np.arange(1, len(epochs) + 1) + start
            look: dict[str, Any] = {"color": colour, "lw": 1.0 if i else 1.8, "alpha": 0.4 if i else 1.0}
            true, predicted = (
                np.array([number(value) for value in values])
                for values in (
                    [(e.get("watched") or {}).get("ndcg") for e in epochs],
                    [e.get("held_out") for e in epochs],
                )
            )
            known = ~np.isnan(true)
            axis.plot(x[known], true[known], **look, marker="" if known.all() else ".")
            judged.plot(x, predicted, **look, ls=(0, (1, 1.2)))
        axis.annotate(
            phase,
            (start + 0.5, 0),
            (4, 4),
            ("data", "axes fraction"),
            "offset points",
            fontsize=8,
            color=THEME["muted"],
        )
        axis.axvline(start + 0.5, color=THEME["grid"], lw=1)
        start += max(len(run.get(phase, [])) for run in runs)
    axis.set_xlim(0.5, start + 0.5)


@styled
def predicted(table: Table) -> "Figure":
    """What held-out clicks predicted against the truth, every epoch a point; perfect predictions are on the diagonal."""
    found = points(table)
    figure, axes = panels(1, 1, 5.6)
    axis = axes[0, 0]
    values = [v for *_, judged, true in found for v in (judged, true)]
    low, high = min(values, default=0), max(values, default=1)
    margin = 0.04 * max(high - low, 0.01)
    low, high = low - margin, high + margin
    axis.plot([low, high], [low, high], color=THEME["ink"], lw=1)
    every = -(-len(found) // 2000)  # more points would only make the page heavy
    for i, method in enumerate(dict.fromkeys(p[0] for p in found)):
        look = look_of(table, method)
        judged, true = zip(*[p[2:] for p in found if p[0] == method][::every], strict=True)
        axis.plot(judged, true, **look, ls="", ms=5, alpha=0.55, mew=0)
        axis.plot(0.03, 0.96 - 0.055 * i, **look, ls="", transform=axis.transAxes)
        axis.text(0.05, 0.96 - 0.055 * i, label(method), color=look["color"], va="center", transform=axis.transAxes)
    axis.set(
        xlim=(low, high), ylim=(low, high), xlabel="predicted from held-out clicks", ylabel="true NDCG", aspect="equal"
    )
    return figure


@styled
def stages(table: Table) -> "Figure":
    """The two stages: NDCG of each alone and of the pair; recall of the generator and overlap of what both would show."""
    shown = [(cell, method) for cell in stage_cells(table) for method in methods(table) if find(table, method, cell)]
    figure, axes = panels(1, 2, 1.1 + 0.3 * len(shown), sharey=True, gridspec_kw={"width_ratios": [1.25, 1]})
    for y, (cell, method) in enumerate(reversed(shown)):
        row, colour = find(table, method, cell), look_of(table, method)["color"]
        left = {key: number(row.get(key)) for key in ("generator_alone_mean", "ranker_alone_mean", "ndcg_mean")}
        right = {key: number(row.get(key)) for key in ("recall_at_K2_mean", "overlap_mean")}
        for axis, parts in zip(axes[0], (left, right), strict=True):
            axis.plot(list(parts.values()), [y] * len(parts), color=colour, lw=1, alpha=0.4)
            for key, value in parts.items():
                marker, filled = STAGE_MARKS[key]
                axis.plot(value, y, marker=marker, color=colour, ms=7.5, mew=1.5, mfc=colour if filled else "none")
    several = len(cells(table)) > 1
    names = [f"{label(m)}, K2 = {K2:,}, N = {count(N)}" if several else label(m) for (K2, N), m in reversed(shown)]
    axes[0, 0].set_yticks(range(len(shown)), names)
    for tick, (_, method) in zip(axes[0, 0].get_yticklabels(), reversed(shown), strict=True):
        tick.set_color(look_of(table, method)["color"])
    for axis, title in zip(
        axes[0], ("△ generator alone\u2003□ ranker alone\u2003● the pair", "◆ recall@K2\u2003◇ overlap"), strict=True
    ):
        axis.set_title(title, color=THEME["muted"])
        axis.grid(False, axis="y")
        axis.margins(x=0.06)
        axis.set_ylim(-0.6, len(shown) - 0.4)
    axes[0, 0].set_xlabel("NDCG")
    axes[0, 1].set(xlabel="share", xlim=(-0.03, 1.03))
    return figure


STAGE_MARKS = {
    "generator_alone_mean": ("^", False), "ranker_alone_mean": ("s", False), "ndcg_mean": ("o", True),
    "recall_at_K2_mean": ("D", True), "overlap_mean": ("D", False),
}  # fmt: skip


def stage_cells(table: Table) -> list[Cell]:
    """All cells where they are few, else those of the smallest K2, where the generator matters most."""
    found = cells(table)
    return found if len(found) * len(methods(table)) <= 12 else [cell for cell in found if cell[0] == found[0][0]]
