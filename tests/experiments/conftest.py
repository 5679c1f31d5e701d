"""One tiny grid, run once for all tests of grids."""

from pathlib import Path

import pytest

from example_grid import TINY, run_here
from tandemrank._base.config import validated
from tandemrank.experiments.config import GridConfig
from tandemrank.experiments.results import Table, from_json


@pytest.fixture(scope="session")
def config() -> GridConfig:
    return validated(GridConfig, TINY)


@pytest.fixture(scope="session")
def whole_folder(config: GridConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the whole grid; tests copy it before they damage it."""
    folder = tmp_path_factory.mktemp("grid") / "whole"
    run_here(config, folder)
    return folder


@pytest.fixture(scope="session")
def whole(whole_folder: Path) -> Table:
    return from_json(Table, (whole_folder / "table.json").read_bytes())
