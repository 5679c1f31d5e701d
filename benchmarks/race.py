"""Draws the figures of docs/explanation/race.md: how the race works, and how its time grows.

    python benchmarks/race.py [folder]          default: docs/figures

About a minute on one core.
"""

from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import gradient
from _common import figures_folder, seconds, threads
from tandemrank._base.files import replacing
from tandemrank.gradients import race

BLUE, ORANGE, GREY = "#0b63a5", "#d9660b", "#8a8f98"


def milliseconds(D: int = 3706, K2: int = 1000, samples: int = 1, queries: int = 16, turns: int = 9) -> float:
    """The time of one call of `race.utility` with both gradients on one thread, on peaked scores."""
    of = gradient.world("peaked", D, K=10, weighted=20, seed=0).times(queries)
    generator = torch.Generator().manual_seed(0)
    with threads(1):
        (taken,) = seconds(
            [lambda: race.utility(of.s, of.r, of.w, of.theta, K2, samples=samples, generator=generator)], turns
        )
    return 1e3 * taken


def growth() -> Figure:
    """Time against documents, samples and queries, each with the line through the last point that a linear law would be."""
    panels = {
        "documents D": ([2**n for n in range(11, 21)], lambda n: milliseconds(D=n, K2=n // 4, queries=1)),
        "samples": ([2**n for n in range(9)], lambda n: milliseconds(samples=n)),
        "queries": ([2**n for n in range(11)], lambda n: milliseconds(queries=n)),
    }
    figure = Figure(figsize=(9.6, 3.0), layout="constrained")
    for axes, (name, (sizes, measure)) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        times = np.array([measure(n) for n in sizes])
        axes.loglog(sizes, times[-1] * np.array(sizes) / sizes[-1], color=GREY, linestyle="--", label="linear")
        axes.loglog(sizes, times, color=BLUE, marker="o", markersize=4, label="measured")
        axes.set_xlabel(name)
        axes.set_ylabel("ms a call")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(frameon=False)
    return figure


def derivation() -> Figure:
    """Both races of a small example, with the document d taken out and its two clocks as densities."""
    figure = Figure(figsize=(9.6, 4.4), layout="constrained")
    first, second = figure.subplots(2, 1)
    first_times = {"a": 0.25, "b": 0.55, "c": 0.8, "e": 1.25, "f": 1.9, "g": 2.4}
    runners(first, first_times, "first race (generator): T", inside=3)
    clock(first, rate=0.75, label=r"$T_d$: density $\lambda_d e^{-\lambda_d t}$", until=1.25)
    first.axvline(1.25, color=ORANGE, linewidth=1)
    first.text(1.28, 0.93, r"$\tau_d$: the $K_2$-th of the others", color=ORANGE, va="top")
    first.text(0.42, 0.24, r"$p_d = 1 - e^{-\lambda_d \tau_d}$", color=BLUE)
    runners(
        second, {"c": 0.5, "a": 1.1, "b": 1.75}, r"second race (re-ranker) among the $K_2 - 1$ who stay: Q", inside=3
    )
    clock(second, rate=0.6, label=r"$Q_d$: density $\mu_d e^{-\mu_d t}$", until=0.5)
    for k, t in enumerate((0.5, 1.1, 1.75)):
        second.axvline(t, color=GREY, linewidth=0.6, linestyle=":")
        second.text(t + 0.03, 0.93, f"$t_{k + 1}$", color=GREY, va="top")
    second.text(0.06, 0.2, r"$d$ first", color=BLUE)
    second.text(0.68, 0.2, r"second", color=BLUE)
    second.text(1.3, 0.2, r"third", color=BLUE)
    return figure


def runners(axes: Axes, times: dict[str, float], title: str, inside: int) -> None:
    """The arrivals of the others: those who stay filled, the rest hollow."""
    for n, (name, t) in enumerate(times.items()):
        axes.plot([t], [0], "o", color=BLUE, markerfacecolor=BLUE if n < inside else "white", clip_on=False, zorder=3)
        axes.annotate(name, (t, 0), xytext=(0, 6), textcoords="offset points", ha="center")
    axes.set(xlim=(0, 2.8), ylim=(0, 1), yticks=[])
    axes.set_title(title, loc="left", fontsize=10)
    axes.spines[["top", "right", "left"]].set_visible(False)


def clock(axes: Axes, rate: float, label: str, until: float) -> None:
    """The exponential density of d's own clock, shaded up to `until`."""
    t = np.linspace(0, 2.8, 300)
    axes.plot(t, rate * np.exp(-rate * t), color=BLUE, linewidth=1.2, label=label)
    shaded = t[t <= until]
    axes.fill_between(shaded, rate * np.exp(-rate * shaded), color=BLUE, alpha=0.15, linewidth=0)
    axes.legend(frameon=False, loc="upper right")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in (("race-derivation", derivation()), ("race-growth", growth())):
        with replacing(folder / f"{name}.png") as path:
            figure.savefig(path, format="png", dpi=110)
        print(folder / f"{name}.png")


if __name__ == "__main__":
    main(figures_folder(__doc__))
