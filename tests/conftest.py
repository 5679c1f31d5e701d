"""Fixtures that several test files share."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def ml1m_zip() -> Path:
    """The real MovieLens-1M, which may not be redistributed: from $TANDEMRANK_ML1M or ../shared/data."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data" / "ml-1m.zip"
    path = Path(os.environ.get("TANDEMRANK_ML1M", default))
    if not path.exists():
        pytest.skip(f"needs MovieLens-1M: there is no {path} (set TANDEMRANK_ML1M to its zip or folder)")
    return path
