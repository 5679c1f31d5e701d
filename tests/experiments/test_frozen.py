"""What must not change by accident: the figures of a small grid, the bits of a simulated log, the bytes of a saved policy."""

import hashlib
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_matrix

from tandemrank._base.config import validated
from tandemrank._base.ids import Vocabulary
from tandemrank.clicks import models, simulation
from tandemrank.experiments import grid
from tandemrank.experiments.config import GridConfig
from tandemrank.logs import writing
from tandemrank.policies import two_stage
from tandemrank.policies.scorers import GivenScores, MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy

# tandemrank table --set queries=150 --set items=120 --set rank=8 --candidates 20,40 --impressions 3000 --runs 2
# --methods baseline,independent,joint --set objective=ips, the cells of K2 = 20 and the first run: NDCG, and clicks per list.
PUBLISHED = {"baseline": (0.717, 1.89), "independent": (0.684, 1.766), "joint": (0.718, 1.854)}


def test_the_figures_of_a_small_grid() -> None:
    """Another CPU, or another number of threads, rounds otherwise, and training carries that on: hence the tolerance."""
    values = {
        "experiment": {
            "queries": 150,
            "items": 120,
            "rank": 8,
            "learning": {"objective": "ips"},
        },
        "candidates": [20],
        "impressions": [3000],
        "runs": 1,
        "methods": list(PUBLISHED),
    }
    config = validated(GridConfig, values).model_dump_json()
    records = [record for _, record in grid.run_job(config, grid.Job(3000, 0), frozenset())]
    assert {record.method for record in records} == set(PUBLISHED)
    for record in records:
        ndcg, clicks = PUBLISHED[record.method]
        assert record.ndcg.mean == pytest.approx(ndcg, abs=0.01)
        assert record.utility.mean == pytest.approx(clicks, abs=0.02)


def small_numbers(Q: int, D: int) -> np.ndarray:
    """Eighths from -2 to 2: every CPU computes with them alike."""
    return ((np.arange(Q * D).reshape(Q, D) * 37 % 33 - 16) / 8).astype(np.float32)


def vocabulary(Q: int, D: int) -> Vocabulary:
    return Vocabulary(pl.Series("query_id", range(100, 100 + Q)), pl.Series("item_id", [f"item {d}" for d in range(D)]))


def test_the_bits_of_a_simulated_log(tmp_path: Path) -> None:
    """From given scores it is the same on every CPU. (An SVD rounds otherwise elsewhere.)"""
    scores = small_numbers(20, 30)
    relevance = csr_matrix((small_numbers(20, 30) > 0.5).astype(np.float32))
    draw = simulation.one_stage(lambda q: scores[q], 5)
    model = models.position_based(1 / np.arange(1.0, 6))
    parts = simulation.simulate(draw, relevance, np.arange(20), 2000, model, seed=7, part=900)
    log = pl.read_parquet(writing.write(parts, tmp_path / "log", vocabulary(20, 30)))
    values = json.dumps([log[name].to_list() for name in ("query_id", "items", "clicks")])
    assert hashlib.sha256(values.encode()).hexdigest()[:16] == "555ef849d1a76ae4"


def test_a_saved_policy_loads_and_saves_to_the_same_bytes(tmp_path: Path) -> None:
    users, items = small_numbers(20, 4), small_numbers(30, 4)
    pair = TwoStagePolicy(MatrixFactorisation(users, items), GivenScores(users @ items.T), 10, 5, vocabulary(20, 30))
    pair.save(tmp_path / "one")
    two_stage.load(tmp_path / "one").save(tmp_path / "two")
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["README.md", "config.json", "vocabulary.parquet", "weights.safetensors"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
