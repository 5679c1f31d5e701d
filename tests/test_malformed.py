"""Malformed inputs and damaged files, over all commands: one message, exit code 2 (or 1), no traceback, nothing left behind."""

import re
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import damaged
import malformed
from tandemrank.cli.main import app, main

PROGRESS = re.compile(r"tandemrank: .*(, \d+ s|\.\.\.)$")  # a slow machine says what it is at


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> damaged.Good:
    return damaged.write_good(tmp_path_factory.mktemp("good"))


def everything(folder: Path) -> dict[str, bytes | None]:
    """All that is in a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def called(capsys, monkeypatch, folder: Path, arguments: list[str]) -> tuple[int, str, str]:
    """The command in this process: its exit code, what it printed, what it said. Any other exception is a failure."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["tandemrank", *arguments])
    code = 0
    try:
        main()
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    return code, *capsys.readouterr()


def run(capsys, monkeypatch, folder: Path, arguments: list[str]) -> tuple[int, str, list[str]]:
    """The same, with the messages one by one; it leaves no traces in the folder."""
    before = everything(folder)
    code, out, err = called(capsys, monkeypatch, folder, arguments)
    assert everything(folder) == before
    assert "Traceback" not in err
    return code, out, [line for line in err.splitlines() if not PROGRESS.match(line)]


def assert_refused(code: int, out: str, messages: list[str]) -> None:
    assert code in (1, 2), (out, messages)
    assert out == ""
    usage = any("Usage:" in line for line in messages)
    assert usage or [line.startswith("tandemrank: ") for line in messages].index(True) == 0
    assert sum(line.startswith("tandemrank: ") for line in messages) == (not usage)
    assert max(map(len, messages)) < 1500


def test_the_corpus_is_large_and_has_every_command() -> None:
    assert len(malformed.CORPUS) >= 100
    assert len(damaged.ENTRIES) >= 250
    given = {damaged.usage_case(arguments)(damaged.Good(Path()), Path())[0] for arguments in damaged.USAGE.values()}
    assert given >= set(get_command(app).commands)


@pytest.mark.parametrize("name", damaged.ENTRIES)
def test_a_damaged_file_is_refused(name, good, tmp_path, capsys, monkeypatch) -> None:
    entry = damaged.ENTRIES[name]
    arguments, before = entry.case(good, tmp_path), everything(good.folder)
    code, out, messages = run(capsys, monkeypatch, tmp_path, arguments)
    assert_refused(code, out, messages)
    assert everything(good.folder) == before
    for words in entry.told:
        assert words in "\n".join(messages)


@pytest.mark.parametrize("name", malformed.CORPUS)
def test_a_malformed_log_is_told_by_every_command(name, good, tmp_path, capsys, monkeypatch) -> None:
    (tmp_path / "log").mkdir()
    malformed.CORPUS[name].write(tmp_path / "log")
    places = ["--list-length", str(malformed.K)]
    code, out, messages = run(capsys, monkeypatch, tmp_path, ["validate", "log", *places])
    assert (code, messages) == (1, [])
    assert "problems" in out
    others = [
        ["examine", "log", *places],
        ["estimate", "--logs", "log", "--policy", good.path("policy")],
        ["learn", "--logs", "log", *places, "--candidates", "5"],
        ["compare", "--logs", "log", "--policy", good.path("policy"), "--against", "production"],
    ]
    command = others[list(malformed.CORPUS).index(name) % len(others)]
    code, out, messages = run(capsys, monkeypatch, tmp_path, command)
    assert code == 2
    assert_refused(code, out, messages)


def test_the_good_files_are_good(good, tmp_path, capsys, monkeypatch) -> None:
    """So that it is the damage that is refused."""
    log, pair = ["--logs", good.path("log.parquet")], ["--policy", good.path("policy")]
    for arguments in (
        ["validate", good.path("log.parquet")],
        damaged.with_curve(good, good.path("curve.json")),
        damaged.with_scores(good, good.path("scores.parquet")),
        damaged.against_scores(good, good.path("scores.parquet")),
        ["compare", *log, *pair, "--against", good.path("policy"), "--propensity", "frequency"],
        ["evaluate", *pair, "--data", good.path("ratings.csv"), "--set", "threshold=3"],
        [*damaged.with_features(good, good.path("item_features.parquet")), "--out", "towers"],
        [*damaged.with_embeddings(good, good.path("item_embeddings.parquet")), "--out", "pair"],
        damaged.with_ratings(good, good.path("ratings.csv")),
        ["simulate", "--config", good.path("switches.toml"), "--out", "small", "--impressions", "10"],
    ):
        code, err = called(capsys, monkeypatch, tmp_path, arguments)[::2]
        assert code == 0, (arguments, err)
