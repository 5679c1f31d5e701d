"""What is promised against the truth of a simulator that shares no code with the package: `benchmarks/truth.py`, small."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from independent import simulator

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
truth, truth_worlds = (importlib.import_module(name) for name in ("truth", "truth_worlds"))


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
    found = truth.summary(truth.run(tmp_path / "truth.jsonl", ["tiny", "changing"], 1))
    assert found["tiny"]["coverage"] == found["changing"]["coverage"] == found["tiny"]["gain"]["coverage"] == 1
    assert abs(found["tiny"]["bias"]["mean"]) < 0.3
    assert abs(found["changing"]["bias"]["mean"]) < 0.15
    assert "tiny" in truth.line("tiny", found["tiny"])


def test_intervals_of_few_queries_are_over_impressions_and_hold(tmp_path: Path) -> None:
    """One to five queries: over queries the interval of one would be a point."""
    results = truth.run(tmp_path / "truth.jsonl", ["few logged", "few alone"], 3)
    found = truth.summary(results)
    assert found["few logged"]["logs"] == 3
    assert found["few logged"]["coverage"] == 1
    assert all(one["high"] - one["low"] > 0.02 * one["truth"] for one in results)
    assert abs(found["few alone"]["bias"]["mean"]) < 0.1


def test_a_pair_of_a_deterministic_log_stays_by_what_was_shown_and_is_not_worse() -> None:
    """It was 17% worse than production: a model thought highly of items that the logger had left out."""
    results = [truth_worlds.deterministic(seed, queries=20, items=60, n=666) for seed in (301, 302, 303)]
    for found in results:
        assert found["more"]["stays"] == 1
        assert found["more"]["gain_of_production"] > -0.01
        assert found["low"] < found["truth"] < found["high"]
    beyond = [(one["gain"]["value"] - one["gain"]["truth"]) / one["truth"] for one in results]
    assert np.mean(beyond) < 0.15  # of 130 impressions each


def test_a_result_that_is_there_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, asked = tmp_path / "truth.jsonl", []

    def measured(seed: int) -> dict[str, object]:
        asked.append(seed)
        value = {"value": 1.1, "truth": 1.0, "low": 0.9, "high": 1.2 if seed == 1 else 0.95, "error": 0.1}
        gain = {"value": 0.2, "truth": -0.1, "low": -0.2, "high": 0.3, "bound": 0.0}
        return {**value, "verdict": "trust it", "gain": gain, "call": "ship"}

    monkeypatch.setitem(truth_worlds.WORLDS, "changing", measured)
    truth.run(file, ["changing"], 1)
    results = truth.run(file, ["changing"], 2)
    assert asked == [1, 2]
    assert len(file.read_text(encoding="utf-8").splitlines()) == 2
    found = json.loads(json.dumps(truth.summary(results)))["changing"]
    assert found["bias"] == pytest.approx({"mean": 0.1, "error": 0.0})
    assert (found["coverage"], found["gain"]["coverage"], found["gain"]["bound_holds"]) == (0.5, 1.0, 0.0)
    assert (found["verdicts"], found["worse_shipped"]) == ({"trust it": 1.0}, 1.0)
    assert found["error"] == pytest.approx({"stated": 0.1, "found": 0.1})
