"""The tutorial, docs/how-to/sessions.md, part of docs/how-to/decisions.md: everything runs and prints what is said.

`python tests/test_tutorial.py` writes the outputs anew.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from tandemrank.cli.main import main

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {  # the first and the last heading of what is run, and how many outputs it has
    "tutorial/own-logs.md": ("# From your own log to a decision", None, 8),
    "how-to/decisions.md": ("## From two saved policies to a decision", "## The gate", 1),
    "how-to/sessions.md": ("# How to value", "`--state query_id", 4),
}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Two methods that are nearly equal: on another CPU the other one may be ahead, and the words change.
CLOSE = re.compile(r"^Beliefs (?:and|would get \w+ clicks than) joint.*\n", re.MULTILINE)
NUMBER = re.compile(r"[+\-−]?\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")


ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "COLUMNS": "100", "PYTHONWARNINGS": "error"}


def run(kind: str, code: str, folder: Path) -> str:
    """What a block prints; a command that fails is an error. In this process where no shell is needed: a new one takes
    seconds to load what it needs."""
    lines = [] if kind == "python" else code.splitlines()
    if any(re.search(r"&&|\||\\$", line) or not line.startswith("tandemrank ") for line in lines):
        return _by_the_shell(code, folder)
    out = io.StringIO()
    with contextlib.chdir(folder), mock.patch.dict(os.environ, ONE_THREAD), contextlib.redirect_stdout(out):
        if kind == "python":
            exec(compile(code, "tutorial", "exec"), {"__name__": "__main__"})
        for line in lines:
            _command(line)
    return out.getvalue()


def _command(line: str) -> None:
    """`tandemrank ...`, with what it prints in a file where the line says so."""
    words, _, path = line.partition(" > ")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), mock.patch.object(sys, "argv", shlex.split(words)):
        assert _exit_code() == 0, line
    if path:
        Path(path).write_text(printed.getvalue(), encoding="utf-8")
    else:
        sys.stdout.write(printed.getvalue())


def _exit_code() -> object:
    try:
        main()
    except SystemExit as end:
        return end.code or 0
    return 0


def _by_the_shell(code: str, folder: Path) -> str:
    bin_of = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **ONE_THREAD, "PATH": bin_of}
    out = subprocess.run(["sh", "-e", "-c", code], capture_output=True, text=True, cwd=folder, env=environment)
    assert out.returncode == 0, f"{code}\n{out.stderr}"
    return out.stdout


def printed(page: str, folder: Path) -> Iterator[tuple[str, str, str]]:
    """(code, what the page says it prints, what it prints) of every block that is followed by its output."""
    text, (first, last, _) = (DOCS / page).read_text(encoding="utf-8"), PAGES[page]
    found = BLOCK.findall(text[text.index(first) : text.index(last) if last else None])
    for number, (kind, code) in enumerate(found):
        if kind == "text":
            continue
        out = run(kind, code, folder)
        following = found[number + 1] if number + 1 < len(found) else ("", "")
        if following[0] == "text":
            yield code, following[1], out


def words(text: str) -> list[str]:
    """Without numbers, and without what depends on them: lines, bars and the width of columns."""
    return re.sub(r"[█▌━─┏┳┓┡╇┩│┃└┴┘\s]+", " ", NUMBER.sub("#", text)).split()


def numbers(text: str) -> list[float]:
    return [float(x.replace("−", "-").replace(",", "")) for x in NUMBER.findall(text)]


@pytest.mark.parametrize("page", PAGES)
def test_every_command_runs_and_prints_what_the_page_says(page: str, tmp_path: Path) -> None:
    seen = 0
    for code, said, out in printed(page, tmp_path):
        seen += 1
        said, out = (CLOSE.sub("", text) for text in (said, out))
        assert words(out) == words(said), code
        # Another CPU rounds otherwise, and training carries that on.
        assert numbers(out) == pytest.approx(numbers(said), rel=0.1, abs=0.05), code
    assert seen == PAGES[page][2]


def write_anew() -> None:
    """Puts the real outputs into the pages, or into those that are named."""
    for page in sys.argv[1:] or PAGES:
        text = (DOCS / page).read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            for code, said, out in printed(page, Path(folder)):
                lines = "\n".join(line.rstrip() for line in out.rstrip("\n").split("\n"))
                text = text.replace(f"{code}```\n\n```text\n{said}```", f"{code}```\n\n```text\n{lines}\n```")
        (DOCS / page).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_anew()
