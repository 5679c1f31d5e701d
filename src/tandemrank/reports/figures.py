"""The figures of all reports: dots with their intervals, learning curves, and NDCG against N or K2."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tandemrank.experiments.results import Setting, Table
from tandemrank.reports.style import NARROW, THEME, WIDE, interval_line, look_of, panels, styled
from tandemrank.reports.words import count, decimal, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONG_NAME = 32  # characters
LEAST_AXIS = 1e-4  # beside the line that is asked for: below it an axis would show rounding


class Dot(NamedTuple):
    """A named value with its interval, hollow where it is not sure; `bound`: what it is at least, if that is known."""

    name: str
    value: float
    interval: tuple[float, float]
    colour: str
    hollow: bool = False
    bound: float = math.nan


@styled
def dots(found: Sequence[Dot], xlabel: str, *, asked: float | None = 0.0) -> "Figure":
    """One line for each, the first on top; a dashed line at what is asked."""
    longest = max(len(one.name) for one in found)
    figure, axes = panels(1, 1, 0.9 + 0.34 * len(found), width=None if longest <= LONG_NAME else WIDE)
    axis = axes[0, 0]
    for y, one in enumerate(found):
        interval_line(axis, y, *one.interval, one.colour, across=True)
        axis.plot(one.value, y, "o", color=one.colour, ms=7, mew=1.6, mfc=THEME["page"] if one.hollow else one.colour)
        axis.plot(one.bound, y, "|", color=one.colour, ms=15, mew=2.4)
    axis.set_yticks(range(len(found)), [one.name for one in found])
    axis.set(ylim=(len(found) - 0.4, -0.6), xlabel=xlabel)
    axis.grid(False, axis="y")
    axis.margins(x=0.08)
    if asked is not None:
        axis.axvline(asked, color=THEME["ink"], lw=1.2, ls="--")
        low, high = axis.get_xlim()
        axis.set_xlim(min(low, asked - LEAST_AXIS), max(high, asked + LEAST_AXIS))
    return figure


@styled
def against(table: Table, along: int) -> "Figure":
    """NDCG along K2 (0) or N (1): one panel for each value of the other, one line per method, references across."""
    others, grid = (sorted({setting[i] for setting in table.settings}) for i in (1 - along, along))
    figure, axes = panels(1, len(others), 4.1, width=WIDE, sharey=True)
    for axis, other in zip(axes[0], others, strict=True):
        settings: list[Setting] = [(other, x) if along else (x, other) for x in grid]
        for i, method in enumerate(table.methods):
            look = look_of(method)
            values = [table.ndcg(method, setting) for setting in settings]
            x = [place * (1 + 0.02 * (i - 1)) for place in grid]  # slightly apart
            axis.plot(x, [value.mean for value in values], **look, label=label(method))
            for place, value in zip(x, values, strict=True):
                interval_line(axis, place, value.low, value.high, look["color"])
        title = f"K2 = {other:,} candidates" if along else f"N = {count(other)} impressions"
        axis.set(title=title, xlabel="impressions in the log, N" if along else "candidates, K2", xscale="log")
        axis.set_xticks(grid, [count(x) if along else f"{x:,}" for x in grid])
        axis.set_xticks([], minor=True)
        axis.grid(False, axis="x")
    _references(axes[0], table)
    axes[0, 0].set_ylabel("NDCG of the most likely list")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside right upper")
    return figure


def _references(axes: "Sequence[Axes]", table: Table) -> None:
    """A dashed line across for each reference; one that is far from the methods is beyond the axis, and its value is named."""
    low, high = axes[0].get_ylim()
    near = [one.ndcg.mean for one in table.references if 2 * low - high <= one.ndcg.mean <= 2 * high - low]
    for one in table.references:
        words = f"{label(one.name)} {decimal(one.ndcg.mean)}"
        for axis in axes:
            axis.axhline(one.ndcg.mean, color=THEME["muted"], lw=1.2, ls=(0, (4, 3)), label=words)
    margin = 0.04 * (high - low)
    axes[0].set_ylim(min([low, *near]) - margin, max([high, *near]) + margin)


@styled
def by_rank(
    values: Sequence[float],
    ylabel: str,
    *,
    intervals: Sequence[tuple[float, float]] = (),
    used: Sequence[float] = (),
) -> "Figure":
    """A number for each rank, perhaps with its interval; dashed: the curve that was `used`."""
    figure, axes = panels(1, 1, 2.8)
    axis, ranks = axes[0, 0], range(1, len(values) + 1)
    axis.plot(ranks, values, marker="o", color=THEME["method-0"], label="of the log")
    for rank, interval in zip(ranks, intervals, strict=False):
        interval_line(axis, rank, *interval, THEME["method-0"])
    if used:
        axis.plot(range(1, len(used) + 1), used, color=THEME["ink"], lw=1.2, ls="--", label="used")
        axis.legend(frameon=False)
    axis.set(xlabel="rank", ylabel=ylabel, ylim=(0, None))
    axis.xaxis.get_major_locator().set_params(integer=True)
    return figure


@styled
def weights(names: Sequence[str], logged: Sequence[float], exposed: Sequence[float]) -> "Figure":
    """By weight: the share of the log's examinations, and that of the new policy's exposure."""
    figure, axes = panels(1, 1, 3.0)
    axis, x = axes[0, 0], np.arange(len(names))
    axis.bar(x - 0.2, logged, 0.38, color=THEME["muted"], alpha=0.6, label="of what the log shows")
    axis.bar(x + 0.2, exposed, 0.38, color=THEME["method-0"], label="of what the policy would show")
    axis.set_xticks(x, names)
    axis.set(xlabel="weight", ylabel="share")
    axis.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    axis.grid(False, axis="x")
    axis.legend(frameon=False)
    return figure


@styled
def by_candidates(
    candidates: Sequence[int], values: Sequence[float], everything: float | None, *, ylabel: str, least: float = 0.0
) -> "Figure":
    """Clicks against the number of candidates, on an axis of `least` so much; dashed: of the re-ranker over all items."""
    figure, axes = panels(1, 1, 3.2)
    axis = axes[0, 0]
    axis.plot(candidates, values, marker="o", color=THEME["method-0"])
    if everything is not None:
        axis.axhline(everything, ls="--", lw=1, color=THEME["method-2"])
    axis.set(xlabel="candidates, K2", ylabel=ylabel, xscale="log")
    axis.set_xticks(candidates, [f"{n:,}" for n in candidates])
    axis.minorticks_off()
    low, high = axis.get_ylim()
    axis.set_ylim(min(low, high - least), high)
    return figure


@styled
def rank_pairs(z: Sequence[Sequence[float]]) -> "Figure":
    """A number for each pair of ranks, above the diagonal."""
    figure, axes = panels(1, 1, 3.2, width=NARROW - 2)
    axis, K = axes[0, 0], len(z)
    shown = np.ma.masked_array(np.array(z), np.tril(np.ones((K, K), np.bool_)))
    most = max(float(np.abs(shown).max()), 5.0)
    image = axis.imshow(shown, cmap="PuOr", vmin=-most, vmax=most)
    axis.set_xticks(range(K), range(1, K + 1))
    axis.set_yticks(range(K), range(1, K + 1))
    axis.set(xlabel="rank", ylabel="rank above it")
    axis.grid(False)
    figure.colorbar(image, ax=axis, label="z")
    return figure


class Step(NamedTuple):
    """One epoch of a learning curve."""

    phase: str
    value: float


class Panel(NamedTuple):
    """The learning curves of some runs of one method."""

    title: str
    colour: str
    runs: list[list[Step]]


@styled
def learning_curves(rows: Sequence[Sequence[Panel]], ylabel: str) -> "Figure":
    """By epoch, a panel for each method; the phases of a training follow one another."""
    figure, axes = panels(len(rows), len(rows[0]), 0.5 + 2.5 * len(rows), sharey="row")
    for line, row in zip(axes, rows, strict=True):
        for axis, panel in zip(line, row, strict=True):
            _runs(axis, panel)
            axis.set_title(panel.title, color=panel.colour)
            axis.set_xlabel("epoch")
            axis.grid(False, axis="x")
            axis.xaxis.get_major_locator().set_params(integer=True)
        low, high = line[0].get_ylim()
        line[0].set(ylim=(low - 0.12 * (high - low), high), ylabel=ylabel)
    return figure


def _runs(axis: "Axes", panel: Panel) -> None:
    """The runs of one method, the first one strong; each phase starts at the same place in all of them."""
    start = 0
    for phase in dict.fromkeys(step.phase for run in panel.runs for step in run):
        runs = [[step for step in run if step.phase == phase] for run in panel.runs]
        for i, steps in enumerate(runs):
            look: dict[str, Any] = {"color": panel.colour, "lw": 1.0 if i else 1.8, "alpha": 0.4 if i else 1.0}
            x, values = np.arange(1, len(steps) + 1) + start, np.array([step.value for step in steps])
            known = ~np.isnan(values)
            axis.plot(x[known], values[known], **look, marker="" if known.all() else ".")
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
        start += max(len(steps) for steps in runs)
    axis.set_xlim(0.5, max(start, 1) + 0.5)
