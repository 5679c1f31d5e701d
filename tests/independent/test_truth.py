"""What is promised against the truth of a simulator that shares no code with the package: `benchmarks/truth.py`, small."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from independent import simulator

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("truth", ROOT / "benchmarks" / "truth.py")
assert spec is not None
assert spec.loader is not None
truth = importlib.util.module_from_spec(spec)
spec.loader.exec_module(truth)


def test_the_simulator_knows_the_package_by_no_import() -> None:
    source = Path(simulator.__file__).read_text(encoding="utf-8")
    assert "tandemrank" not in source


def test_lists_of_the_simulator_are_plackett_luce_in_two_stages() -> None:
    s_c, s_r = np.log([[4.0, 3.0, 2.0, 1.0]]), np.log([[1.0, 2.0, 3.0, 4.0]])
    n = 40_000
    lists = simulator.draw(s_c, s_r, np.zeros(n, np.int64), 2, 1, np.random.default_rng(0))
    p, expected = np.array([4, 3, 2, 1]) / 10, np.zeros(4)
    for a in range(4):
        for b in range(4):
            if a != b:  # a, then b become candidates; the ranker's scores are 1 to 4
                both = p[a] * p[b] / (1 - p[a])
                expected[a] += both * (a + 1) / (a + b + 2)
                expected[b] += both * (b + 1) / (a + b + 2)
    found = np.bincount(lists[:, 0], minlength=4) / n
    assert np.abs(found - expected).max() < 5 * np.sqrt(0.25 / n)


def test_promises_hold_on_a_small_log(tmp_path: Path) -> None:
    measures = ["trained", "changing"]
    found = truth.summary(truth.run(tmp_path / "truth.jsonl", ["tiny"], measures, 1))
    assert found["coverage"]["tiny"] == found["changing_coverage"] == 1
    assert abs(found["bias"]["tiny"]["mean"]) < 0.3
    assert abs(found["changing_bias"]["mean"]) < 0.15


def test_intervals_of_few_queries_are_over_impressions_and_hold(tmp_path: Path) -> None:
    """One to five queries: over queries the interval of one would be a point."""
    results = truth.run(tmp_path / "truth.jsonl", ["tiny"], ["few"], 3)
    found = truth.summary(results)
    assert found["few_logs"] == 3
    assert found["few_coverage"]["logged"] == 1
    assert all(one["logged"]["high"] - one["logged"]["low"] > 0.02 * one["truth"] for one in results)
    assert abs(found["few_bias"]["alone"]["mean"]) < 0.1


def test_a_pair_of_a_deterministic_log_stays_by_what_was_shown_and_is_not_worse() -> None:
    """It was 17% worse than production: a model thought highly of items that the logger had left out."""
    results = [truth.deterministic("tiny", seed) for seed in (301, 302, 303)]
    for found in results:
        assert found["stays"]
        assert found["gain"] > -0.01 * found["production"]
        assert found["low"] < found["truth"] < found["high"]
    beyond = [(one["promised"] - one["gain"]) / one["production"] for one in results if one["promised"] is not None]
    assert np.mean(beyond) < 0.15  # of 130 impressions each


def test_a_result_that_is_there_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, asked = tmp_path / "truth.jsonl", []

    def measured(size: str, seed: int) -> dict[str, float]:
        asked.append((size, seed))
        return {"value": 1.1, "truth": 1.0, "low": 0.9, "high": 1.2 if seed == 1 else 0.95}

    monkeypatch.setitem(truth.MEASURES, "changing", measured)
    truth.run(file, ["medium"], ["changing"], 1)
    results = truth.run(file, ["medium"], ["changing"], 2)
    assert asked == [("medium", 1), ("medium", 2)]
    assert len(file.read_text(encoding="utf-8").splitlines()) == 2
    found = json.loads(json.dumps(truth.summary(results)))
    assert found["changing_bias"] == pytest.approx({"mean": 0.1, "error": 0.0})
    assert found["changing_coverage"] == 0.5
