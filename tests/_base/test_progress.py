"""Progress: plain lines in a pipe, a bar on a terminal, always on standard error."""

import io
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tandemrank._base import progress
from tandemrank.training.checkpoint import Epoch, Progress

LAST = Epoch("both", 3, 0.25, 1.0, {})
STATE = Progress(phase=1, phases=3, epoch=3, epochs=16, done=0.5, last=LAST)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def until(said: Callable[[], str], words: str) -> str:
    """Waits for the words: an event, whatever the load."""
    text = said()
    while words not in text:
        time.sleep(0.005)
        text += said()
    return text


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "FIRST", 0.01)
    monkeypatch.setattr(progress, "EVERY", 0.01)


def test_the_first_line_comes_after_a_second_and_the_next_every_ten() -> None:
    assert (progress.FIRST, progress.EVERY) == (1.0, 10.0)


@pytest.mark.usefixtures("often")
def test_a_job_in_a_pipe_says_what_it_does_in_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    out = []

    def said() -> str:
        found = capsys.readouterr()
        out.append(found.out)
        return found.err

    with progress.working("impressions drawn", 2000) as count:
        assert until(said, "tandemrank: impressions drawn, 0 s\n").startswith("tandemrank: ")
        count(1500)
        until(said, "tandemrank: impressions drawn: 1,500 of 2,000, ")
    with progress.working("trainings finished") as tell:
        until(said, "trainings finished, ")
        tell(3, 12)
        until(said, "trainings finished: 3 of 12, ")
    with progress.training_progress() as (stage, train):
        until(said, "reading the log, ")
        stage("valuing what was trained")
        until(said, "valuing what was trained, ")
        train("joint", STATE)
        until(said, "joint 2/3  epoch 4 of 16  objective 0.25, ")
    assert "".join(out) == ""


def test_a_quick_job_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.working("reading the log"):
        pass
    assert capsys.readouterr() == ("", "")


def test_the_lines_end_with_the_job_even_if_it_fails() -> None:
    import threading

    with pytest.raises(ZeroDivisionError), progress.working("reading the log"):
        raise ZeroDivisionError
    assert "progress" not in [thread.name for thread in threading.enumerate()]


def test_on_a_terminal_it_is_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with progress.working("impressions drawn", 2000) as count:
        count(1500)
    with progress.working("trainings finished") as tell:
        tell(3, 12)
    with progress.training_progress() as (stage, _):
        stage("what the log says")
    with progress.training_progress() as (_, train):
        train("joint", STATE)
        train("joint", STATE._replace(phase=2, last=LAST))
    for words in ("impressions drawn", "trainings finished", "what the log says", "joint 3/3"):
        assert words in screen.getvalue(), words
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("often")
def test_what_a_command_imports_is_under_way_from_the_first_second_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def slow(name: str) -> None:
        asked.append(name)
        until(lambda: capsys.readouterr().err, "tandemrank: loading, 0 s\n")

    monkeypatch.setattr(progress.importlib, "import_module", slow)
    progress.load_first("offpolicy.valuation")
    assert asked == ["tandemrank.offpolicy.valuation"]


def test_python_says_nothing_in_a_pipe_and_shows_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress.python_progress() as (stage, epoch):
        stage("reading the log")
        epoch("joint", STATE)
    assert sys.stderr.getvalue() == ""  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "stderr", Terminal())
    with progress.python_progress() as (stage, epoch):
        stage("what the log says")
        epoch("joint", STATE)
    assert "objective 0.25" in sys.stderr.getvalue()  # type: ignore[attr-defined]


def test_in_a_notebook_a_line_of_the_page_is_replaced_and_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    line = SimpleNamespace(update=said.append)
    fake = SimpleNamespace(Pretty=str, display=lambda words, display_id: said.append(words) or line)
    monkeypatch.setitem(sys.modules, "ipykernel", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "IPython.display", fake)
    with progress.python_progress() as (stage, epoch):
        stage("what the log says")
        stage("too soon after the last")
        time.sleep(0.11)
        epoch("joint", STATE)
    assert said == ["", "what the log says", "joint 2/3  epoch 4 of 16  objective 0.25", ""]
