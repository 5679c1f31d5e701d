"""The content of a `table.json` as an experiment writes it, and the table that it is, for the tests of the reports."""

import functools
import math
from typing import Any

from tandemrank._base.files import as_json
from tandemrank.experiments.results import Table, from_json
from tandemrank.reports import experiment

METHODS = ("baseline", "independent", "joint")


PHASES = {
    "baseline": ["ranker alone", "generator for the ranker"],
    "independent": ["generator alone", "ranker alone"],
    "joint": ["both"],
}


def example(K2s: tuple[int, ...] = (50, 100), Ns: tuple[int, ...] = (10_000, 100_000), runs: int = 3) -> dict[str, Any]:
    """A table like the experiment's own, every value by hand: joint is .02 above independent, .03 above baseline."""
    ndcg = {
        (m, K2, N): 0.30 + 0.05 * math.log10(N / 1000) + {"baseline": 0.0, "independent": 0.01, "joint": 0.03}[m]
        for m in METHODS
        for K2 in K2s
        for N in Ns
    }
    rows = [
        {
            "method": m, "K2": K2, "N": N, "runs": runs, "ndcg": {"mean": v, "low": v - 0.005, "high": v + 0.005, "n": runs},
            "seconds": 3.2, "ndcg_runs": [v] * runs,
            "ndcg_expected": {"mean": v - 0.1}, "recall_at_K2": {"mean": 0.7}, "utility": {"mean": 0.9},
            "generator_alone": {"mean": v - 0.02}, "ranker_alone": {"mean": v - 0.01},
        }
        for (m, K2, N), v in ndcg.items()
    ]  # fmt: skip
    differences = [
        {"K2": K2, "N": N, "method": "joint", "against": a, "mean": d, "low": d - 0.01, "high": d + 0.01, "runs": runs,
         "kind": "runs"}
        for K2 in K2s
        for N in Ns
        for a, d in (("independent", 0.02), ("baseline", 0.03))
    ]  # fmt: skip
    curves = [
        {"method": m, "K2": K2, "N": N, "run": run, "history": _history(m, v, run)}
        for (m, K2, N), v in ndcg.items()
        for run in range(runs)
    ]
    levels = {"random": 0.02, "popularity": 0.3, "production": 0.31, "full information": 0.8}
    measures = ("ndcg", "ndcg_expected", "recall_at_K2", "utility")
    references = [
        {"name": name} | {key: {"mean": v, "low": v - 0.01, "high": v + 0.01, "n": 1350} for key in measures}
        for name, v in levels.items()
    ]
    return {
        "title": "An example", "command": "tandemrank table --seed 1", "version": "0.1.0",
        "world": {"data": "synthetic", "queries": 1500, "items": 800, "logged_users": 1350, "positives": 12345,
                  "machine": "2 cores", "seconds": 65.1},
        "switches": {"propensity": "exact", "list_length": 10, "threshold": None, "minibatch": 256},
        "rows": rows, "references": references, "differences": differences, "curves": curves, "paper": [],
    }  # fmt: skip


def _history(method: str, end: float, run: int) -> list[dict[str, Any]]:
    return [
        {
            "phase": phase, "epoch": e, "objective": 0.3, "seconds": 0.5, "watched": {"ndcg": end - 0.1 / e},
        }
        for phase in PHASES[method]
        for e in range(1, 8 + run)
    ]  # fmt: skip


def typed(content: dict[str, Any]) -> Table:
    """The table of that content."""
    return from_json(Table, as_json(content))


def one_setting() -> dict[str, Any]:
    return example((100,), (30_000,))


page = functools.cache(lambda start: experiment.report(typed(start())).html())
