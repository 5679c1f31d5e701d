"""Fixtures that several test files share."""

import os

# Before torch is imported: small products on several threads wait for each other where a machine has other work.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "1")

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import json_schemas

# The same examples every time: what is found is found by everyone, and a test that passes does so on every machine.
settings.register_profile("fixed", derandomize=True)
settings.load_profile("fixed")


@pytest.fixture(scope="session", autouse=True)
def _json_as_published() -> Iterator[None]:
    """What a command prints with --json, in any test, is what its schema says."""
    with json_schemas.watching():
        yield


@pytest.fixture(scope="session")
def ml1m_zip() -> Path:
    """The real MovieLens-1M, which may not be redistributed: from $TANDEMRANK_ML1M or ../shared/data."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data" / "ml-1m.zip"
    path = Path(os.environ.get("TANDEMRANK_ML1M", default))
    if not path.exists():
        pytest.skip(f"needs MovieLens-1M: there is no {path} (set TANDEMRANK_ML1M to its zip or folder)")
    return path


@pytest.fixture(scope="session")
def ubi_sample() -> Path:
    """The public sample of OpenSearch's User Behavior Insights: from $TANDEMRANK_UBI or ../shared/data."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data" / "ubi_queries_events.ndjson"
    path = Path(os.environ.get("TANDEMRANK_UBI", default))
    if not path.exists():
        pytest.skip(f"needs the sample of OpenSearch: there is no {path} (set TANDEMRANK_UBI to its file)")
    return path


# Files that take longest, first: tests run on two processes, a file at a time, and none should be left with one at the end.
LONGEST = (
    "test_tutorial.py",
    "test_grid.py",
    "test_ray_train.py",
    "test_sparse_race.py",
    "test_malformed.py",
    "test_docs.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The order of files, not of tests in a file."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONGEST)))
