"""Wrong values and wrong files for every command: none may end in a traceback, and none may hang.

    python benchmarks/fuzz.py [COMMAND ...]

Each option of each command takes every wrong value of its type, beside arguments that are good; each file among them is
replaced by every wrong file. What ends otherwise than by an exit code is printed, and at the end how many calls were made.
Commands that serve are left out: their tests have cases of their own.
"""

import argparse
import contextlib
import faulthandler
import io
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import polars as pl
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from damaged import write_good
from tandemrank.cli.main import app, main

SECONDS = 60  # the first call of a kernel compiles it
INTEGERS = ["-1", "0", "1", "2", "100000", "9999999999999999999999", "x", ""]
FLOATS = ["-1", "0", "1", "1e-320", "1e308", "nan", "inf", "0.5", "x", ""]
TEXTS = ["", "x", "[/b]", "[bold]", "\udcff", "a\0b", "-", "1", "é" * 200]

# Good arguments of each command, by the names of the good files.
COMMANDS = {
    "import": ["{long.csv}", "--from", "long", "--out", "{out}"],
    "validate": ["--logs", "{log.parquet}"],
    "examine": ["--logs", "{log.parquet}"],
    "estimate": ["--logs", "{log.parquet}", "--policy", "{policy}", "--propensity", "frequency"],
    "compare": ["--logs", "{log.parquet}", "--policy", "{policy}", "--propensity", "frequency"],
    "decide": ["--logs", "{log.parquet}", "--scores", "{scores.parquet}", "--propensity", "frequency"],
    "learn": ["--logs", "{log.parquet}", "--out", "{out}"],
    "recommend": ["{policy}"],
    "evaluate": ["{policy}", "--data", "{ratings.csv}"],
    "simulate": [
        "--out",
        "{out}",
        "--impressions",
        "50",
        "--set",
        "queries=20",
        "--set",
        "items=10",
        "--set",
        "rank=2",
    ],
}


class HangError(Exception):
    """A call took too long."""


def wrong_files(folder: Path) -> Iterator[Path]:
    """Paths that no command should be able to read."""
    folder.mkdir()
    (folder / "empty").mkdir()
    yield folder / "empty"
    yield folder / "nothing.parquet"
    os.mkfifo(folder / "fifo.parquet")
    yield folder / "fifo.parquet"
    os.mkfifo(folder / "fifo.json")
    yield folder / "fifo.json"
    (folder / "loop.parquet").symlink_to(folder / "loop.parquet")
    yield folder / "loop.parquet"
    (folder / "round").mkdir()
    (folder / "round" / "again").symlink_to(folder / "round")
    yield folder / "round"
    for name in (
        "zeros.parquet",
        "zeros.csv",
        "zeros.jsonl",
        "zeros.json",
        "zeros.toml",
        os.fsdecode(b"\xff.parquet"),
        "[/b].csv",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(bytes(100))
        yield folder / name
    (folder / "no.json").write_text('{"theta": [[[1]]]}')
    yield folder / "no.json"
    (folder / "long.json").write_text(f"[{', '.join(['0.5'] * 100_000)}]")
    yield folder / "long.json"
    odd = {
        "query_id": pl.Series([1, 2, 3], dtype=pl.Int8),
        "items": np.arange(6).reshape(3, 2),
        "clicks": np.eye(3, 2, dtype=np.int8),
    }
    pl.DataFrame(odd).write_parquet(folder / "arrays.parquet")
    yield folder / "arrays.parquet"
    pl.DataFrame({"query_id": [[1]], "item_id": [{"a": 1}], "x": [None]}).write_parquet(folder / "nested.parquet")
    yield folder / "nested.parquet"
    yield folder / "*"
    yield folder / "**" / "*"
    yield folder


def calls(name: str, good: Path, out: Path, wrong: list[Path]) -> Iterator[list[str]]:
    """Every call of a command, with one thing wrong in each."""
    base = [
        str(out) if part == "{out}" else str(good / part[1:-1]) if part[0] == "{" else part for part in COMMANDS[name]
    ]
    yield [name, *base]
    for at, part in enumerate(COMMANDS[name]):
        if part[0] == "{" and part != "{out}":
            yield from ([name, *base[:at], str(path), *base[at + 1 :]] for path in wrong)
    for option in typer.main.get_command(app).commands[name].params:  # type: ignore[attr-defined]
        kind = str(option.type_descriptor.annotation)
        if option.opts[0].startswith("--") and "bool" not in kind:
            values = INTEGERS if "int" in kind else FLOATS if "float" in kind else [*TEXTS, *map(str, wrong)]
            yield from ([name, *base, option.opts[0], value] for value in values)


def ended(arguments: list[str]) -> str | None:
    """What is wrong with how a call ends, None for nothing."""

    def late(*_: object) -> None:
        raise HangError

    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    faulthandler.dump_traceback_later(2 * SECONDS, exit=True)  # where no signal is heard, inside a library
    sys.argv = ["tandemrank", *arguments]
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    told = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")  # as Python's own
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told):
            main()
    except SystemExit as end:
        return None if end.code in (None, 0, 1, 2, 3, 4) else f"exit code {end.code}"
    except HangError:
        return f"hangs: {traceback.format_exc().splitlines()[-4:-2]}"
    except BaseException:
        lines = traceback.format_exc().splitlines()
        inside = [line.strip() for line in lines if "src/tandemrank" in line]
        return f"{lines[-1]} at {inside[-1] if inside else lines[-4]}"
    finally:
        signal.alarm(0)
        faulthandler.cancel_dump_traceback_later()
    return None


def fuzz(names: list[str]) -> int:
    """The number of calls that ended wrongly."""
    number, bad = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        good = Path(folder) / "good"
        good.mkdir()
        write_good(good)
        rows = {
            "impression_id": [1, 1, 2],
            "query_id": [1, 1, 2],
            "item_id": [1, 2, 1],
            "position": [1, 2, 1],
            "click": [0, 1, 0],
        }
        pl.DataFrame(rows).write_csv(good / "long.csv")
        wrong = list(wrong_files(Path(folder) / "wrong"))
        for name in names:
            for arguments in calls(name, good, Path(folder) / f"out-{name}", wrong):
                number += 1
                if found := ended(arguments):
                    bad += 1
                    words = " ".join(arguments).replace(folder, "").encode("utf-8", "backslashreplace").decode()
                    print(f"{words[:200]}\n    {found[:300]}", flush=True)
    print(f"{number} calls, {bad} ended in a traceback or a hang")
    return bad


def main_of_fuzz() -> None:
    """Fuzzes and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commands", nargs="*", help="by default all", choices=[*COMMANDS, []])
    sys.exit(fuzz(parser.parse_args().commands or list(COMMANDS)) > 0)


if __name__ == "__main__":
    main_of_fuzz()
