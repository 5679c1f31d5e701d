"""One tiny grid, run once for all tests of grids."""

from pathlib import Path

import pytest

from example_grid import TINY
from tandemrank._base.config import validated
from tandemrank.experiments import grid, store
from tandemrank.experiments.config import GridConfig
from tandemrank.experiments.results import Table, read_table


@pytest.fixture(scope="session")
def config() -> GridConfig:
    return validated(GridConfig, TINY)


@pytest.fixture(scope="session")
def whole_folder(config: GridConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the whole grid; tests copy it before they damage it."""
    folder = tmp_path_factory.mktemp("grid") / "whole"
    with store.opened(folder, grid.GRID, grid.as_text(config), data=config.experiment.data):
        for job in grid._missing(config, folder, {}):  # in this process: a new one takes seconds to start
            grid.run_job(config.model_dump_json(), str(folder), job, frozenset())
    grid.run(config, folder, resume=True)
    return folder


@pytest.fixture(scope="session")
def whole(whole_folder: Path) -> Table:
    return read_table(whole_folder / "table.json")
