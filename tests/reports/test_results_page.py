"""The page that compares finished grids: `benchmarks/results.py`."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from example_table import example, typed
from tandemrank._base.files import as_json
from tandemrank.experiments.results import Table


@pytest.fixture(scope="module")
def results() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "results.py"
    spec = importlib.util.spec_from_file_location("results_page", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def with_peers() -> Table:
    content = example((500,), (100_000,))
    content["rows"] = [{**row, "ndcg_new_mean": 0.25} for row in content["rows"]]
    content["peers"] = [{"peer": "EASE", "N": 100_000, "runs": 3, "ndcg_mean": 0.4, "ndcg_new_mean": 0.2,
                         "seconds_mean": 2.0, "tuning_seconds": 9.0}]  # fmt: skip
    gap = {"K2": 500, "N": 100_000, "method": "joint", "against": "EASE", "mean": 0.03, "low": 0.01, "high": 0.05}
    content["peer_differences"] = [gap, {**gap, "figure": "ndcg_new", "low": -0.01}]
    return typed(content)


def test_methods_peers_the_previous_default_and_the_paper(results) -> None:
    previous = typed(example((500,), (100_000,)))
    page = results.page({"main": with_peers(), "previous": previous, "paper": previous})
    assert "| **Joint** | 0.430 [0.425, 0.435] | 0.250 | 3.2 | 3 |" in page
    assert "| **Joint, the previous default** | 0.430 [0.425, 0.435] | – | 3.2 | 3 |" in page
    assert "| EASE | 0.400 | 0.200 | 2.0 + 9.0 | 3 |" in page
    assert "Joint − EASE, all items: +0.0300 [+0.0100, +0.0500]: ahead." in page
    assert "Joint − EASE, new items: +0.0300 [−0.0100, +0.0500]: level." in page
    assert "| Joint | 500 | 100k | 0.430 [0.425, 0.435] | 0.420 | 3 | 3 |" in page  # the paper prints .420


def test_a_grid_in_a_folder_finished_or_not(results, tmp_path: Path) -> None:
    from tandemrank.experiments.cells import GridConfig

    (tmp_path / "config.json").write_text(GridConfig().model_dump_json())
    assert results.table_in(tmp_path).title == "not finished: 0 cells"
    (tmp_path / "table.json").write_text(as_json(with_peers()))
    assert results.table_in(tmp_path) == with_peers()
