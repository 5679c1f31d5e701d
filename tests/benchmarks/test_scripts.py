"""The scripts under `benchmarks`: each explains itself, the docs name none that is missing, and a measurement prints."""

import ast
import json
import re
import runpy
from pathlib import Path

import pytest

import bound_worlds

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"
LIBRARIES = {
    "peers",
    "_common",
    "bound_worlds",
    "constant",
    "credit",
    "item_rate",
    "movielens",
    "pl_rank",
    "truth_worlds",
    "two_stage_world",
}
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in LIBRARIES)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def run(monkeypatch: pytest.MonkeyPatch, name: str, *options: str) -> int:
    """The script as `python benchmarks/NAME.py OPTIONS` runs it, in this process: its exit code."""
    monkeypatch.setattr("sys.argv", [f"{name}.py", *options])
    try:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_explains_itself(name: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    assert run(monkeypatch, name, "--help") == 0
    words = ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))) or ""
    assert f"python benchmarks/{name}.py" in words
    assert words.split("\n")[0][:40] in capsys.readouterr().out


def test_the_docs_name_no_script_that_is_missing() -> None:
    named = {
        name
        for page in PAGES
        for name in re.findall(r"(?<!tests/)benchmarks/(\w+)\.py", page.read_text(encoding="utf-8"))
    }
    assert named <= {*SCRIPTS, *LIBRARIES}
    assert {"gradient", "epoch", "scale", "bounds", "serve", "canaries", "logs"} <= named


def test_a_measurement_prints_json_or_a_table(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    assert run(monkeypatch, "bounds", "--simulations", "3", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    by_query = {(name, "queries", bound) for name in bound_worlds.BY_QUERY for bound in ("betting",)}
    by_impression = {(name, "impressions", "betting") for name in bound_worlds.USERS}
    assert {(row["distribution"], row["over"], row["bound"]) for row in printed["rows"]} == by_query | by_impression
    assert printed["example"] >= 0.87
    assert printed["example_rare_clicks"] >= 0.645
    assert printed["example_bound"] == "betting"
    assert run(monkeypatch, "bounds", "--simulations", "3") == 0
    assert "heavy tail" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("logs --impressions 0", "at least 1; got 0"),
        ("bounds --simulations many", "at least 1; got many"),
        ("canaries --share 2", "from 0.01 to 0.99; got 2"),
        ("serve --seed -1", "at least 0; got -1"),
    ],
)
def test_what_cannot_be_measured_is_said(line: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    assert run(monkeypatch, *line.split()) == 2
    assert words in capsys.readouterr().err


def test_more_candidates_than_a_tenth_of_the_items_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["scale.py", "--items", "20", "--candidates", "10"])
    with pytest.raises(SystemExit, match="at least 10 x 10 items"):
        runpy.run_path(str(FOLDER / "scale.py"), run_name="__main__")
