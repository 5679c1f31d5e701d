"""The commands over sessions: drawn, validated, learned, valued, evaluated; options without effect are refused."""

import json
import sys

import pytest

from tandemrank.cli.main import main

SMALL = [
    word
    for switch in ("queries=2", "items=16", "topics=4", "list_length=3", "candidates=6", "steps=4", "sharpness=1")
    for word in ("--set", switch)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("sessions")


def call(capsys, monkeypatch, *arguments: str) -> tuple[int, str, str]:
    """Runs the command in this process: (exit code, standard output, standard error)."""
    monkeypatch.setattr(sys, "argv", ["tandemrank", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0), *capsys.readouterr()


def run(capsys, monkeypatch, *arguments: str) -> str:
    code, out, err = call(capsys, monkeypatch, *arguments)
    assert code == 0, err
    return out


def test_from_a_world_to_a_policy_and_its_value(folder, capsys, monkeypatch) -> None:
    sim, out = folder / "sim", folder / "out"
    drawn = ["simulate", "--sessions", "2000", "--propensities", "--out", str(sim), *SMALL, "--json"]
    found = json.loads(run(capsys, monkeypatch, *drawn))
    assert found["sessions"] == 2000
    words = run(capsys, monkeypatch, "validate", str(sim / "log"))
    assert f"2,000 of {found['steps'] / 2000:.3g} steps in the mean, the longest of 4" in words
    assert "value over sessions" in words
    logs = ["--logs", str(sim / "log")]
    learned = run(
        capsys, monkeypatch, "learn", "--sessions", *logs, "--candidates", "6", "--method", "beliefs", "--out", str(out)
    )
    assert "asked by" in learned
    assert "effective" in learned
    summary = json.loads((out / "summary.json").read_text())
    assert summary["methods"][0]["policy"] == str(out / "beliefs" / "policy")
    policy = ["--policy", str(sim / "production")]
    valued = json.loads(run(capsys, monkeypatch, "estimate", "--sessions", *policy, *logs, "--horizon", "3", "--json"))
    assert (valued["horizon"], valued["estimator"], valued["asked_by"]) == (3, "doubly_robust", "query_id")
    assert [step["step"] for step in valued["steps"]] == [1, 2, 3]
    by = ["--estimator", "ips", "--discount", "0", "--state", "query_id,last_click"]
    first = json.loads(run(capsys, monkeypatch, "estimate", "--sessions", *policy, *logs, *by, "--json"))
    assert (first["horizon"], first["estimator"]) == (1, "ips")
    both = [*policy, "--policy", str(out / "beliefs" / "policy"), "--sessions", "1000", *SMALL]
    rows = json.loads(run(capsys, monkeypatch, "evaluate", *both, "--json"))["policies"]
    assert rows[0]["difference"] == 0
    assert rows[1]["difference"] > 0
    assert "clicks per session" in run(capsys, monkeypatch, "evaluate", *both)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["estimate", "--policy", "p", "--logs", "l", "--horizon", "3"], "--horizon is for sessions"),
        (["estimate", "--policy", "p", "--logs", "l", "--sessions", "--lists", "most-likely"], "--lists has no effect"),
        (["estimate", "--policy", "p", "--logs", "l", "--sessions", "--engine", "ray"], "--engine has no effect"),
        (["learn", "--logs", "l", "--state", "x"], "--state is for sessions"),
        (["learn", "--logs", "l", "--sessions", "--engine", "ray"], "--engine has no effect"),
        (["simulate", "--sessions", "10", "--impressions", "5"], "--impressions has no effect"),
        (["simulate", "--sessions", "10", "--data", "ml-1m"], "--data has no effect"),
        (["simulate", "--sessions", "10", "--set", "colour=3"], "colour"),
        (["evaluate", "--sessions", "10", "--policy", "p", "--sample-queries", "5"], "--sample-queries has no effect"),
    ],
)
def test_options_without_effect_are_refused(arguments, words, capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, monkeypatch, *arguments)
    assert code == 2
    assert words in err
    assert not list(tmp_path.iterdir())
