"""The figures of an experiment's report: each function takes a table and gives a Figure; lines carry their names."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tandemrank.experiments.results import Curve, Mean, Point, Setting, Table
from tandemrank.reports.style import (
    THEME,
    Look,
    beside,
    interval_line,
    lines_figure,
    look_of,
    mark_phase,
    panels,
    styled,
)
from tandemrank.reports.words import closely, count, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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


class _Range(NamedTuple):
    """Limits of an NDCG axis, the references that are near enough to share it, and those that are not."""

    low: float
    high: float
    near: list[tuple[str, float]]
    far: list[tuple[str, float]]


def _range(table: Table) -> _Range:
    values = [v for row in table.rows for v in (row.ndcg_mean, row.ndcg_low, row.ndcg_high) if math.isfinite(v)]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    span = max(high - low, 0.05)
    known = [(r.name, r.ndcg.mean) for r in table.references if math.isfinite(r.ndcg.mean)]
    near = [(name, value) for name, value in known if low - 1.5 * span <= value <= high + span]
    low, high = min([low, *(v for _, v in near)]), max([high, *(v for _, v in near)])
    margin = 0.06 * max(high - low, 0.02)
    return _Range(low - margin, high + margin, near, [pair for pair in known if pair not in near])


@styled
def levels(table: Table) -> "Figure":
    """NDCG of methods and references in the one setting of a small experiment: a dot and an interval each."""
    points: list[tuple[str, Look, Mean]] = [
        (method, look_of(method, table.methods), table.ndcg(method, table.settings[0])) for method in table.methods
    ]
    points += [(r.name, {"color": THEME["muted"], "marker": "|"}, r.ndcg) for r in table.references]
    points = sorted((p for p in points if math.isfinite(p[2].mean)), key=lambda p: p[2].mean)
    names = [label(name) for name, *_ in points]
    figure, axis = lines_figure(names, 0.8 + 0.3 * len(points), "NDCG of the most likely list")
    for y, (_, look, value) in enumerate(points):
        colour, wide = look["color"], look["marker"] == "|"
        axis.plot([0, value.mean], [y, y], color=colour, lw=0.8, alpha=0.35)
        interval_line(axis, y, value.low, value.high, colour, across=True)
        axis.plot(value.mean, y, **look, ms=9 if wide else 7, mew=2 if wide else 1)
        words = f"{value.mean:.3f}"
        axis.annotate(words, (value.mean, y), (12, 0), textcoords="offset points", va="center", color=colour)
    for tick, (_, look, _) in zip(axis.get_yticklabels(), points, strict=True):
        tick.set_color(look["color"])
    axis.set_xlim(0, min(1.08 * max((p[2].mean for p in points), default=1), 1.05))
    return figure


LEAST_AXIS = 1e-4  # of differences: the last digit that is printed; below it an axis would show rounding


@styled
def differences(table: Table) -> "Figure":
    """Paired differences with 95% intervals: one panel per comparison, one line per setting; hollow where 0 is inside."""
    entries = table.differences
    pairs = list(dict.fromkeys((entry.method, entry.against) for entry in entries))
    places = sorted({entry.setting for entry in entries}, reverse=True)
    figure, axes = panels(1, len(pairs), 0.95 + 0.34 * len(places), sharex=True, sharey=True)
    for axis, (method, against) in zip(axes[0], pairs, strict=True):
        axis.axvline(0, color=THEME["ink"], lw=1)
        for entry in (d for d in entries if (d.method, d.against) == (method, against)):
            y, look = places.index(entry.setting), look_of(against, table.methods)
            interval_line(axis, y, entry.low, entry.high, look["color"], across=True)
            inside = look["color"] if entry.verdict in ("ahead", "behind") else THEME["page"]
            axis.plot(entry.mean, y, **look, ms=7, mew=1.6, mfc=inside)
            words = closely(entry.mean)
            words += "" if entry.verdict == "unknown" else f" [{closely(entry.low)}, {closely(entry.high)}]"
            beside(axis, y, words, 4)
        axis.set_title(f"{label(method)} − {label(against)}")
        axis.set(ylim=(-0.6, len(places) - 0.4), xlabel="difference in NDCG")
        axis.set_yticks(range(len(places)), [f"K2 = {K2:,}, N = {count(N)}" for K2, N in places])
        axis.grid(False, axis="y")
        axis.margins(x=0.08)
        axis.locator_params(axis="x", nbins=3)
        low, high = axis.get_xlim()
        axis.set_xlim(min(low, -LEAST_AXIS), max(high, LEAST_AXIS))
    return figure


def _against(table: Table, along: int, name: str, others: Iterable[int], title: Callable[[int], str]) -> "Figure":
    """NDCG along K2 (0) or N (1): one panel for each value of the other, one line per method, references across."""
    places, grid, shown = list(others), sorted({s[along] for s in table.settings}), _range(table)
    figure, axes = panels(1, len(places), 4.1, sharey=True)
    for axis, other in zip(axes[0], places, strict=True):
        settings: list[Setting] = [(x, other) if along == 0 else (other, x) for x in grid]
        ends = _method_lines(axis, table, settings, grid)
        for reference, value in shown.near:
            axis.axhline(value, color=THEME["muted"], lw=1.2, ls=(0, (4, 3)))
            ends.append((value, label(reference), THEME["muted"]))
        axis.set(ylim=(shown.low, shown.high), title=title(other), xlabel=name, xscale="log")
        axis.set_xticks(grid, [count(x) if along else f"{x:,}" for x in grid])
        axis.set_xticks([], minor=True)
        axis.grid(False, axis="x")
        if axis is axes[0, -1]:
            _end_labels(axis, ends)
    axes[0, 0].set_ylabel("NDCG of the most likely list")
    if shown.far:
        words = "Beyond this axis: " + ", ".join(f"{reference} {value:.3f}" for reference, value in shown.far)
        figure.supxlabel(words, color=THEME["muted"], fontsize=9, x=0.01, ha="left")
    return figure


def _method_lines(
    axis: "Axes", table: Table, settings: Sequence[Setting], grid: Sequence[int]
) -> list[tuple[float, str, str]]:
    """A line with intervals per method, the methods slightly apart; returns where each ends, its name and its colour."""
    ends = []
    for i, method in enumerate(table.methods):
        look = look_of(method, table.methods)
        values = [table.ndcg(method, setting) for setting in settings]
        x = [place * (1 + 0.02 * (i - 1)) for place in grid]
        axis.plot(x, [value.mean for value in values], **look)
        for place, value in zip(x, values, strict=True):
            interval_line(axis, place, value.low, value.high, look["color"])
        known = [value.mean for value in values if math.isfinite(value.mean)]
        ends += [(y, label(method), look["color"]) for y in known[-1:]]
    return ends


@styled
def against_N(table: Table) -> "Figure":
    """NDCG against the length of the log, one panel per K2."""
    K2s = sorted({K2 for K2, _ in table.settings})
    return _against(table, 1, "impressions in the log, N", K2s, lambda K2: f"K2 = {K2:,} candidates")


@styled
def against_K2(table: Table) -> "Figure":
    """NDCG against the number of candidates, one panel per N."""
    Ns = sorted({N for _, N in table.settings})
    return _against(table, 0, "candidates, K2", Ns, lambda N: f"N = {count(N)} impressions")


@styled
def stages(table: Table) -> "Figure":
    """The two stages: NDCG of each alone and of the policy; recall of the generator and overlap of what both would show."""
    wanted = stage_settings(table)
    shown = [row for setting in wanted for m in table.methods if (row := table.row(m, setting)) is not None][::-1]
    figure, axes = panels(1, 2, 1.1 + 0.3 * len(shown), sharey=True, gridspec_kw={"width_ratios": [1.25, 1]})
    for y, row in enumerate(shown):
        colour = look_of(row.method, table.methods)["color"]
        left = (("^", False, row.generator_alone_mean), ("s", False, row.ranker_alone_mean), ("o", True, row.ndcg_mean))
        right = (("D", True, row.recall_at_K2_mean), ("D", False, row.overlap_mean))
        for axis, marks in zip(axes[0], (left, right), strict=True):
            axis.plot([value for *_, value in marks], [y] * len(marks), color=colour, lw=1, alpha=0.4)
            for marker, filled, value in marks:
                axis.plot(value, y, marker=marker, color=colour, ms=7.5, mew=1.5, mfc=colour if filled else "none")
    several = len(table.settings) > 1
    where = [f", K2 = {row.K2:,}, N = {count(row.N)}" if several else "" for row in shown]
    axes[0, 0].set_yticks(range(len(shown)), [label(row.method) + more for row, more in zip(shown, where, strict=True)])
    for tick, row in zip(axes[0, 0].get_yticklabels(), shown, strict=True):
        tick.set_color(look_of(row.method, table.methods)["color"])
    for axis, title in zip(axes[0], STAGE_TITLES, strict=True):
        axis.set_title(title, color=THEME["muted"])
        axis.grid(False, axis="y")
        axis.margins(x=0.06)
        axis.set_ylim(-0.6, len(shown) - 0.4)
    axes[0, 0].set_xlabel("NDCG")
    axes[0, 1].set(xlabel="share", xlim=(-0.03, 1.03))
    return figure


STAGE_TITLES = ("△ generator alone\u2003□ re-ranker alone\u2003● the policy", "◆ recall@K2\u2003◇ overlap")


def stage_settings(table: Table) -> list[Setting]:
    """All settings where they are few, else those of the smallest K2, where the generator matters most."""
    found = table.settings
    return (
        found if len(found) * len(table.methods) <= 12 else [setting for setting in found if setting[0] == found[0][0]]
    )


class Judged(NamedTuple):
    """An epoch that has both: what held-out clicks said, and the truth."""

    method: str
    held_out: float
    true: float


def judged_epochs(table: Table) -> list[Judged]:
    """Every epoch that has a judgement on held-out clicks and the true NDCG."""
    found = [Judged(c.method, epoch.held_out, epoch.ndcg) for c in table.curves for epoch in c.history]
    return [point for point in found if math.isfinite(point.held_out) and math.isfinite(point.true)]


class ChosenEpoch(NamedTuple):
    """Which learning curves are shown: of the smallest K2, the shortest and the longest log."""

    K2: int
    Ns: list[int]
    methods: list[str]


def chosen_curves(table: Table) -> ChosenEpoch | None:
    """The curves to show; None where there are none."""
    curves = [curve for curve in table.curves if curve.history]
    if not curves:
        return None
    K2 = min(curve.K2 for curve in curves)
    Ns = sorted({curve.N for curve in curves if curve.K2 == K2})
    return ChosenEpoch(K2, sorted({Ns[0], Ns[-1]}), list(dict.fromkeys(c.method for c in curves if c.K2 == K2)))


@styled
def learning_curves(table: Table) -> "Figure":
    """True NDCG (solid) and the judgement on held-out clicks (dotted), if any, by epoch; phases follow one another."""
    chosen = chosen_curves(table) or ChosenEpoch(0, [], [])
    figure, axes = panels(len(chosen.Ns), len(chosen.methods), 0.5 + 2.5 * len(chosen.Ns), sharey="row")
    for row, N in zip(axes, chosen.Ns, strict=True):
        for axis, method in zip(row, chosen.methods, strict=True):
            colour = look_of(method, table.methods)["color"]
            here = [c for c in table.curves if (c.method, c.K2, c.N) == (method, chosen.K2, N)][:5]
            _runs(axis, here, colour)
            axis.set_title(f"{label(method)}, N = {count(N)}", color=colour)
            axis.set_xlabel("epoch" if chosen.Ns[-1] == N else "")
            axis.grid(False, axis="x")
            axis.xaxis.get_major_locator().set_params(integer=True)
        low, high = row[0].get_ylim()
        row[0].set(ylim=(low - 0.12 * (high - low), high), ylabel="NDCG")
    return figure


def _runs(axis: "Axes", curves: Sequence[Curve], colour: str) -> None:
    """The runs of one method, the first one strong; each phase starts at the same place in all of them."""
    start = 0
    for phase in dict.fromkeys(epoch.phase for curve in curves for epoch in curve.history):
        runs = [[epoch for epoch in curve.history if epoch.phase == phase] for curve in curves]
        for i, epochs in enumerate(runs):
            look: dict[str, Any] = {"color": colour, "lw": 1.0 if i else 1.8, "alpha": 0.4 if i else 1.0}
            _one_run(axis, epochs, start, look)
        mark_phase(axis, phase, start)
        start += max(len(epochs) for epochs in runs)
    axis.set_xlim(0.5, max(start, 1) + 0.5)  # a policy that was not trained has no epoch


def _one_run(axis: "Axes", epochs: Sequence[Point], start: int, look: dict[str, Any]) -> None:
    x = np.arange(1, len(epochs) + 1) + start
    true = np.array([epoch.ndcg for epoch in epochs])
    known = ~np.isnan(true)
    axis.plot(x[known], true[known], **look, marker="" if known.all() else ".")
    axis.plot(x, [epoch.held_out for epoch in epochs], **look, ls=(0, (1, 1.2)))


@styled
def predicted(table: Table) -> "Figure":
    """What held-out clicks predicted against the truth, every epoch a point; perfect predictions are on the diagonal."""
    found = judged_epochs(table)
    figure, axes = panels(1, 1, 5.6)
    axis = axes[0, 0]
    values = [value for point in found for value in (point.held_out, point.true)]
    low, high = min(values, default=0), max(values, default=1)
    margin = 0.04 * max(high - low, 0.01)
    low, high = low - margin, high + margin
    axis.plot([low, high], [low, high], color=THEME["ink"], lw=1)
    every = -(-len(found) // 2000)  # more points would only make the page heavy
    for i, method in enumerate(dict.fromkeys(point.method for point in found)):
        look = look_of(method, table.methods)
        own = [point for point in found if point.method == method][::every]
        axis.plot([p.held_out for p in own], [p.true for p in own], **look, ls="", ms=5, alpha=0.55, mew=0)
        axis.plot(0.03, 0.96 - 0.055 * i, **look, ls="", transform=axis.transAxes)
        axis.text(0.05, 0.96 - 0.055 * i, label(method), color=look["color"], va="center", transform=axis.transAxes)
    axis.set(
        xlim=(low, high), ylim=(low, high), xlabel="predicted from held-out clicks", ylabel="true NDCG", aspect="equal"
    )
    return figure
