"""Figures of how trainings went: learning curves, and what held-out clicks predicted against the truth."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tandemrank.experiments.results import Curve, Point, Table
from tandemrank.reports.style import THEME, look_of, mark_phase, panels, styled
from tandemrank.reports.words import count, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Judged(NamedTuple):
    """An epoch that has both: what held-out clicks said, and the truth."""

    method: str
    held_out: float
    true: float


def judged_epochs(table: Table) -> list[Judged]:
    """Every epoch that has a judgement on held-out clicks and the true NDCG."""
    found = [Judged(c.method, epoch.held_out, epoch.ndcg) for c in table.curves for epoch in c.history]
    return [point for point in found if math.isfinite(point.held_out) and math.isfinite(point.true)]


class Chosen(NamedTuple):
    """Which learning curves are shown: of the smallest K2, the shortest and the longest log."""

    K2: int
    Ns: list[int]
    methods: list[str]


def chosen_curves(table: Table) -> Chosen | None:
    """The curves to show; None where there are none."""
    curves = [curve for curve in table.curves if curve.history]
    if not curves:
        return None
    K2 = min(curve.K2 for curve in curves)
    Ns = sorted({curve.N for curve in curves if curve.K2 == K2})
    return Chosen(K2, sorted({Ns[0], Ns[-1]}), list(dict.fromkeys(c.method for c in curves if c.K2 == K2)))


@styled
def learning_curves(table: Table) -> "Figure":
    """True NDCG (solid) and the judgement on held-out clicks (dotted), if any, by epoch; phases follow one another."""
    chosen = chosen_curves(table) or Chosen(0, [], [])
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
    axis.set_xlim(0.5, max(start, 1) + 0.5)  # a pair that was not trained has no epoch


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
