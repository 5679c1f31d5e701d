"""From finished cells to the table: means over runs, paired differences, the switches."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from tandemrank import __version__
from tandemrank._base.config import switch_help, switch_values
from tandemrank.experiments import table
from tandemrank.experiments.config import Cell, GridConfig
from tandemrank.experiments.evaluation import difference
from tandemrank.experiments.results import (
    FIGURES,
    UNKNOWN,
    Mean,
    NdcgDifference,
    NdcgFigure,
    PaperRow,
    Record,
    Reference,
    Row,
    Table,
    WorldFacts,
)

# Table 1 of the paper: NDCG@10, means of 25 runs.
PAPER = {
    "baseline": {500: (0.404, 0.437, 0.470), 1000: (0.401, 0.440, 0.469), 1500: (0.400, 0.441, 0.474)},
    "independent": {500: (0.410, 0.454, 0.489), 1000: (0.416, 0.465, 0.496), 1500: (0.416, 0.455, 0.496)},
    "joint": {500: (0.420, 0.470, 0.504), 1000: (0.426, 0.479, 0.504), 1500: (0.424, 0.472, 0.510)},
}
ROWS = tuple(
    PaperRow(method, K2, N, value)
    for method, by_K2 in PAPER.items()
    for K2, values in by_K2.items()
    for N, value in zip((100_000, 320_000, 1_000_000), values, strict=True)
)


Floats = NDArray[np.float64]
UsersOf = Callable[[Cell, NdcgFigure], Floats]


def rows_of(records: Iterable[Record]) -> tuple[Row, ...]:
    """One row for each (method, K2, N): means over the runs so far."""
    groups: dict[tuple[str, int, int], list[Record]] = {}
    for record in records:
        groups.setdefault((record.method, record.K2, record.N), []).append(record)
    return tuple(_row(group) for group in groups.values())


def _row(group: list[Record]) -> Row:
    first, interval, new = group[0], _over(group, "ndcg"), _over(group, "ndcg_new")
    values = np.array([record.ndcg.mean for record in group])
    means = {f"{figure}_mean": float(np.mean([record.of(figure).mean for record in group])) for figure in FIGURES}
    return Row(
        method=first.method, K2=first.K2, N=first.N, runs=len(group),
        ndcg_std=float(values.std(ddof=1)) if len(values) > 1 else UNKNOWN.mean,
        ndcg_low=interval.low, ndcg_high=interval.high, ndcg_new_low=new.low, ndcg_new_high=new.high, **means,
        seconds_mean=float(np.mean([record.seconds for record in group])),
        ndcg_runs=tuple(values.tolist()), ndcg_new_runs=tuple(record.ndcg_new.mean for record in group),
    )  # fmt: skip


def _over(group: Sequence[Record], figure: NdcgFigure) -> Mean:
    """A figure of some runs: with the interval over runs, over the users where there is one run."""
    means = [record.of(figure) for record in group]
    return over_runs(np.array([one.mean for one in means])) if len(means) > 1 else means[0]


def over_runs(values: Floats) -> Mean:
    """The mean over runs with its 95% Student interval.  Shapes: [runs]."""
    half = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return Mean(float(values.mean()), float(values.mean() - half), float(values.mean() + half), len(values))


def differences(config: GridConfig, records: Mapping[Cell, Record], users: UsersOf) -> tuple[NdcgDifference, ...]:
    """Joint less each other method in every setting: paired over the runs, over the users where there is one run."""
    found = []
    for N in config.impressions:
        for K2 in config.candidates:
            for other in (method for method in config.methods if method != "joint"):
                pairs = [(Cell("joint", K2, N, run), Cell(other, K2, N, run)) for run in range(config.runs)]
                pairs = [pair for pair in pairs if records.keys() >= set(pair)]
                if pairs:
                    found.append(_difference([(records[a], records[b]) for a, b in pairs], pairs[0], other, users))
    return tuple(found)


def _difference(
    both: Sequence[tuple[Record, Record]],
    first: tuple[Cell, Cell],
    against: str,
    users: UsersOf,
    figure: NdcgFigure = "ndcg",
) -> NdcgDifference:
    """Of the records of every run; of the users of the first, where there is one."""
    cell = first[0]
    if len(both) > 1:
        gap = over_runs(np.array([x.of(figure).mean - y.of(figure).mean for x, y in both]))
    else:
        gap = difference(users(cell, figure), users(first[1], figure))
    return NdcgDifference(
        K2=cell.K2, N=cell.N, method=cell.method, against=against, figure=figure, runs=len(both),
        mean=gap.mean, low=gap.low, high=gap.high, kind="runs" if len(both) > 1 else "users",
    )  # fmt: skip


def table_of(
    config: GridConfig,
    world: WorldFacts,
    records: Mapping[Cell, Record],
    references: tuple[Reference, ...],
    users: UsersOf,
    command: str,
) -> Table:
    """Everything that a report shows."""
    asked = {(method, K2, N) for method in config.methods for K2 in config.candidates for N in config.impressions}
    return Table(
        title=f"Two-stage counterfactual learning to rank on {world.data}",
        command=command,
        version=__version__,
        world=world,
        switches=switch_values(config),
        switch_help=switch_help(GridConfig),
        rows=rows_of(records.values()),
        references=references,
        differences=differences(config, records, users),
        curves=tuple(record.curve for record in records.values()),
        paper=tuple(row for row in table.ROWS if world.data == "ml-1m" and (row.method, row.K2, row.N) in asked),
    )
