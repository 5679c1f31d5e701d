"""What training costs against items, candidates and samples: measured at a few sizes, fitted, and carried on to clusters.

    python benchmarks/cost_model.py [folder]          default: docs/figures

Prints the tables of docs/how-to/scale.md and draws cost-model.png. Two minutes; CPU times of one thread.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.optimize import nnls

import scale
from _common import figures_folder, seconds, threads
from tandemrank._base.files import replacing
from tandemrank.gradients._bridge import keys_for
from tandemrank.policies.scorers import Scorer
from tandemrank.training.objective import Objective
from tandemrank.training.schedules import Stage, View

BLUE, ORANGE, GREY = "#0b63a5", "#d9660b", "#8a8f98"
QUERIES, TURNS, F, MINIBATCH = 32, 5, 50, 256
ALONE, PAIR = 32, 8  # epochs of the stages alone and for each other, as `learn` makes them
CORES = 32  # of a node
NETWORK = 1.25e9  # bytes per second that a node sends and gets: 10 Gbit/s
# (items, K2, samples) that are measured.
SIZES = [(50_000, 500, 2), (100_000, 500, 2), (200_000, 500, 2), (400_000, 500, 2), (100_000, 250, 2),
         (100_000, 1000, 2), (100_000, 500, 4), (200_000, 1000, 4)]  # fmt: skip
# (items, queries, impressions) that are only calculated.
CLUSTERS = [(10**6, 10**5, 2 * 10**6), (10**7, 10**7, 10**9), (10**8, 10**8, 10**10)]


@dataclass(frozen=True)
class Law:
    """Milliseconds per query of a step: fixed + per_item D + per_candidate S K2."""

    fixed: float
    per_item: float
    per_candidate: float

    def at(self, D: int, K2: int = 500, samples: int = 2) -> float:
        return self.fixed + self.per_item * D + self.per_candidate * samples * K2


def step(D: int, K2: int, samples: int, view: View) -> tuple[Callable[[], object], list[Scorer]]:
    """Value and gradients of a minibatch, down to the parameters; and the models."""
    world = scale._world(D, K2, QUERIES, 0)
    models: dict[Stage, Scorer] = {"generator": world.pair.generator, "ranker": world.pair.ranker}
    moving: tuple[Stage, ...] = ("generator", "ranker") if view == "pair" else ("generator",)
    objective = Objective(models, K2, "race", samples, is_sparse=True)
    generator = torch.Generator().manual_seed(0)

    def run() -> None:
        value = objective.utility(view, moving, world.q, world.w, torch.ones(20), keys_for(len(world.q), generator))
        for model in models.values():
            model.zero_grad()
        (-value.mean()).backward()  # type: ignore[no-untyped-call]

    return run, list(models.values())


def measured(view: View) -> NDArray[np.float64]:
    """Milliseconds per query at each of the sizes."""
    found = []
    for D, K2, samples in SIZES:
        [taken] = seconds([step(D, K2, samples, view)[0]], TURNS, time.process_time)
        found.append(1e3 * taken / QUERIES)
    return np.array(found)


def adam_per_item() -> float:
    """Milliseconds of Adam's step per item and stage."""
    x = torch.nn.Parameter(torch.randn(200_000, F))
    optimiser = torch.optim.Adam([x], 1e-3, fused=True)
    x.grad = torch.randn(200_000, F)
    [taken] = seconds([optimiser.step], TURNS, time.process_time)
    return 1e3 * taken / 200_000


def fitted(times: NDArray[np.float64]) -> Law:
    """Least squares of relative errors, no term negative."""
    sizes = np.array([(1.0, D, samples * K2) for D, K2, samples in SIZES])
    found, _ = nnls(sizes / times[:, None], np.ones(len(times)))
    return Law(*(float(x) for x in found))


def hours(D: int, queries: int, alone: Law, pair: Law, adam: float) -> tuple[float, float]:
    """CPU hours of training all queries, and what of them is Adam."""
    steps = queries * (ALONE * alone.at(D) + PAIR * pair.at(D))
    moments = queries / MINIBATCH * (ALONE + 2 * PAIR) * adam * D
    return (steps + moments) / 3.6e6, moments / 3.6e6


def touched_per_query(view: View) -> float:
    """Rows of the items' gradient that a query touches, in the mean over the stages that move."""
    run, models = step(200_000, 500, 2, view)
    run()
    moved = [
        x.grad for model in models for name, x in model.named_parameters() if name == "items" and x.grad is not None
    ]
    return float(np.mean([g.coalesce().indices().shape[1] for g in moved])) / QUERIES


def exchange(D: int, queries: int, nodes: int, rows: dict[View, float]) -> float:
    """Hours in which nodes exchange the items' gradients, as `training.team` does, on a network of 10 Gbit/s.

    A worker gets the rows of all others, 8 + 4 F bytes each, or where these are fewer bytes twice the dense gradient. The rows
    of a minibatch are taken for different ones, so this is the most.
    """
    sent = 0.0
    for view, epochs, stages in (("generator", ALONE, 1), ("pair", PAIR, 2)):
        others = rows[view] * MINIBATCH * (nodes - 1) / nodes
        sent += epochs * stages * min(others * (8 + 4 * F), 2 * D * F * 4 * (nodes > 1))
    return queries / MINIBATCH * sent / NETWORK / 3600


def gigabytes(D: int, queries: int, impressions: int) -> tuple[float, float]:
    """Of the items' vectors of both stages (with gradient and two moments), and of queries and the log's sums.

    The sums keep a pair once, 30 bytes; at most ten pairs per impression, a third of them new.
    """
    return 2 * 4 * D * F * 4 / 1e9, (2 * queries * F * 4 + impressions * 10 / 3 * 30) / 1e9


def drawn(times: dict[str, NDArray[np.float64]], laws: dict[str, Law]) -> Figure:
    figure = Figure(figsize=(8.4, 3.2), layout="constrained")
    axes = figure.subplots(1, 1)
    grid = np.geomspace(3e4, 1e8, 60)
    at = [i for i, (_, K2, samples) in enumerate(SIZES) if (K2, samples) == (500, 2)]
    for (name, found), colour in zip(times.items(), (BLUE, ORANGE), strict=True):
        axes.loglog(grid, [laws[name].at(int(D)) for D in grid], color=colour, linestyle="--", label=f"{name}, fitted")
        axes.loglog([SIZES[i][0] for i in at], found[at], "o", color=colour, label=f"{name}, measured")
    axes.axvspan(max(D for D, *_ in SIZES), 1e8, color=GREY, alpha=0.12, label="extrapolated")
    axes.set_xlabel("items")
    axes.set_ylabel("ms of CPU per query and step")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return figure


def main(folder: Path) -> None:
    with threads(1):
        times = {"a stage alone": measured("generator"), "both stages": measured("pair")}
        adam = adam_per_item()
        rows: dict[View, float] = {view: touched_per_query(view) for view in ("generator", "pair")}
    laws = {name: fitted(found) for name, found in times.items()}
    print(
        "| items | K2 | samples | a stage alone, ms | fitted | both stages, ms | fitted |\n"
        "| --- | --- | --- | --- | --- | --- | --- |"
    )
    for i, (D, K2, samples) in enumerate(SIZES):
        cells = [f"{found[i]:.2f} | {laws[name].at(D, K2, samples):.2f}" for name, found in times.items()]
        print(f"| {D:,} | {K2:,} | {samples} | {cells[0]} | {cells[1]} |")
    for name, law in laws.items():
        print(
            f"\n{name}: {law.fixed:.2f} + {1e6 * law.per_item:.2f} D/1e6 + {1e3 * law.per_candidate:.2f} S K2/1e3 ms per query"
        )
    print(f"Adam: {1e6 * adam:.0f} ms per million items and stage, once per minibatch of {MINIBATCH}")
    print(
        f"Exchange: {8 + 4 * F} bytes per touched item; a query touches {rows['generator']:.0f} items in a step of a stage "
        f"alone, {rows['pair']:.0f} per stage in one of both\n"
    )
    print(
        "| items | queries | impressions | CPU hours | of them Adam | items' memory, GB | queries and log, GB | nodes | "
        "hours | exchange, hours |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for D, queries, impressions in CLUSTERS:
        total, moments = hours(D, queries, laws["a stage alone"], laws["both stages"], adam)
        nodes = max(1, round(total / CORES / 24))
        own, log = gigabytes(D, queries, impressions)
        print(
            f"| {D:.0e} | {queries:.0e} | {impressions:.0e} | {total:,.0f} | {moments:,.0f} | {own:,.1f} | {log:,.0f} | "
            f"{nodes:,} | {total / CORES / nodes:,.1f} | {exchange(D, queries, nodes, rows):,.1f} |"
        )
    with replacing(folder / "cost-model.png") as path:
        drawn(times, laws).savefig(path, format="png", dpi=110)


if __name__ == "__main__":
    main(figures_folder(__doc__))
