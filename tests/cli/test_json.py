"""The JSON of `estimate`, `compare` and `decide`: programs read it, so its keys stay."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from independent import simulator
from tandemrank.cli.main import main

DIAGNOSTICS = [
    "balance",
    "balance_error",
    "clicks",
    "clipped",
    "effective_sample_size",
    "examined",
    "impressions",
    "largest_share",
    "largest_weight",
    "lost_at_generator",
    "lost_at_ranker",
    "queries",
    "unsupported",
]
VALUE = [
    "bound_over",
    "estimator",
    "interval",
    "lower_bound",
    "over_queries",
    "propensity",
    "propensity_reason",
    "reasons",
    "standard_error",
    "value",
    "verdict",
]
CASES = ["best_case", "worst_case"]
READING = ["below_a_click", "below_a_click_z", "trust_bias", "trust_bias_error"]
CURVE = ["by_steepness", "curve_error", "interval_with_curve"]
COMPARISON = [
    "bound_over",
    "difference",
    "interval",
    "lower_bound",
    "new",
    "old",
    "over_queries",
    "reasons",
    "standard_error",
    "verdict",
]
DECISION = [
    "against",
    "at_least",
    "call",
    "candidates",
    "chosen",
    "exit_code",
    "independent",
    "level",
    "no_segment_below",
    "reward",
    "segment_column",
    "why",
]
CANDIDATE = [
    "bound_level",
    "call",
    "canary",
    "comparison",
    "guardrails",
    "log_needed",
    "lower_bound",
    "name",
    "reasons",
    "segments",
    "worse_segments",
]
CANARY = ["impressions", "loss_at_worst", "share"]
SEGMENT = ["difference", "impressions", "interval", "new", "old", "queries", "segment"]
WORLD = simulator.world(3, queries=40, items=12, K=3, K2=6)


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A log of plain NumPy, and the scores of a system."""
    folder = tmp_path_factory.mktemp("json")
    log = simulator.impressions(WORLD, 1200, 1)
    pl.DataFrame(
        {
            "query_id": log.query,
            "items": log.items.tolist(),
            "clicks": log.clicks.tolist(),
            "half": log.query % 2,
        }
    ).write_parquet(folder / "log.parquet")
    Q, D = WORLD.R.shape
    scores = pl.DataFrame({"query_id": np.repeat(np.arange(Q), D), "item_id": np.tile(np.arange(D), Q)})
    scores.with_columns(
        candidate_score=pl.Series(WORLD.s_c.ravel()), ranker_score=pl.Series((1.1 * WORLD.s_r).ravel())
    ).write_parquet(folder / "scores.parquet")
    curve = {"theta": [1.0, 0.6, 0.5], "low": [0.9, 0.5, 0.4], "high": [1.0, 0.7, 0.6], "level": 0.95}
    (folder / "curve.json").write_text(json.dumps(curve), encoding="utf-8")
    return ["--logs", str(folder / "log.parquet"), "--scores", str(folder / "scores.parquet"), "--candidates", "6"]


def printed(capsys: Any, monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["tandemrank", *words, "--json"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code in (None, 0, 3, 4)
    return json.loads(capsys.readouterr().out)


def test_estimate_says_what_it_said(asked: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = printed(capsys, monkeypatch, "estimate", *asked)
    assert sorted(found) == sorted([*VALUE, *CASES, *DIAGNOSTICS, *READING])
    curve = str(Path(asked[1]).with_name("curve.json"))
    found = printed(capsys, monkeypatch, "estimate", *asked, "--curve", curve, "--curve-interval")
    assert sorted(found) == sorted([*VALUE, *CASES, *DIAGNOSTICS, *READING, *CURVE])
    assert sorted(found["by_steepness"][0]) == ["above_production", "steepness", "value"]


def test_estimate_of_several_numbers_of_candidates(
    asked: list[str], tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = [*asked[:-1], "4,6", "--report", str(tmp_path / "page.html")]
    found = printed(capsys, monkeypatch, "estimate", *several)
    assert sorted(found) == ["counts", "enough", "everything", "reasons", "sentence", "verdict"]
    assert [one["candidates"] for one in found["counts"]] == [4, 6]
    assert "<svg" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_compare_says_what_it_said(asked: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = printed(capsys, monkeypatch, "compare", *asked)
    assert sorted(found) == COMPARISON
    assert sorted(found["new"]) == sorted([*VALUE, *CASES, *DIAGNOSTICS, *READING])
    assert sorted(found["old"]) == VALUE


def test_decide_says_what_it_said(asked: list[str], capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = printed(capsys, monkeypatch, "decide", *asked, "--segment", "half", "--at-least", "-2")
    assert sorted(found) == DECISION
    [candidate] = found["candidates"]
    assert sorted(candidate) == CANDIDATE
    assert sorted(candidate["canary"]) == CANARY
    assert [sorted(one) for one in candidate["segments"]] == [SEGMENT, SEGMENT]
    assert sorted(candidate["comparison"]) == COMPARISON
