"""What docs/how-to/serving.md says: the unit for systemd is one, and its command runs; options, metrics and limits are real."""

import configparser
import re
import shlex
from pathlib import Path

import pytest

from served import local, saved
from tandemrank.serving import messages
from tandemrank.serving.run import Limits

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "serving.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    [text] = blocks("ini")
    parser.read_string(text)
    return parser


def test_the_unit_is_one_that_systemd_takes() -> None:
    found = unit()
    assert set(found.sections()) == {"Unit", "Service", "Install"}
    service = found["Service"]
    assert service["Type"] == "exec"
    assert service["KillSignal"] == "SIGTERM"
    command = shlex.split(service["ExecStart"])
    assert Path(command[0]).is_absolute()
    log = command[command.index("--log") + 1]
    assert service["ReadWritePaths"] == log
    for word in shlex.split(service["Environment"]):
        assert re.fullmatch(r"[A-Z_]+=\S+", word)


def test_its_command_runs_and_ends_in_order(tmp_path, monkeypatch) -> None:
    """With the unit's folders below a temporary one: it becomes ready, and SIGTERM ends it with 0."""
    import subprocess
    import sys

    saved(tmp_path / "srv/tandemrank/policies", 0)
    (tmp_path / "srv/tandemrank/policies/current").symlink_to("policy-0")
    command = unit()["Service"]["ExecStart"].replace("/srv/", f"{tmp_path}/srv/").replace("--port 8080", "--port 0")
    words = [sys.executable, "-m", "tandemrank", *shlex.split(command)[1:]]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        said = next(line for line in running.stderr if "answers with" in line or "error" in line.lower())
        assert "http://127.0.0.1:" in said
        running.terminate()
        assert running.wait(60) == 0
        running.stderr.close()
    assert list((tmp_path / "srv/tandemrank/log").glob("journal-*.bin"))


def test_every_metric_is_explained_and_no_other(tmp_path) -> None:
    explained = set(re.findall(r"^\| `(tandemrank_\w+)` \|", PAGE, re.MULTILINE))
    with local(saved(tmp_path, 0)) as server:
        found = list(server.context.metrics.registry.collect())
    real = {metric.name + ("_total" if metric.type == "counter" else "") for metric in found}
    assert explained == real


@pytest.mark.parametrize(
    ("words", "limit"),
    [
        ("1 MiB", Limits().body == 2**20), ("32 KiB", Limits().head == 2**15), ("10 s", Limits().seconds == 10),
        ("1,000", Limits().connections == 1000 and messages.EVENTS == 1000), ("256", messages.BATCH == 256),
        ("10,000", messages.ITEMS == 10_000),
    ],
)  # fmt: skip
def test_limits_are_those_of_the_code(words, limit) -> None:
    assert f"| {words} |" in PAGE
    assert limit
