"""The command line in this process: every option takes every wrong value of its type, every file is replaced or damaged.

First one thing is wrong in each call; when all of these have been made, two or three at a time, drawn at random.
"""

import contextlib
import io
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import typer

from fuzzing import wrong
from fuzzing.calls import Call
from tandemrank.cli.main import app, main
from tandemrank.experiments import grid

SMALL = ["--set", "queries=60", "--set", "items=30", "--set", "rank=3", "--set", "list_length=3"]
# Good arguments of each command, by the names of the good files.
COMMANDS = {
    "import": ["{long.csv}", "--from", "long", "--out", "{out}"],
    "validate": ["--logs", "{log.parquet}"],
    "examine": ["--logs", "{log.parquet}"],
    "judge": ["--logs", "{log.parquet}", "--out", "{out}.qrels"],
    "estimate": ["--logs", "{log.parquet}", "--policy", "{policy}", "--propensity", "frequency"],
    "compare": ["--logs", "{log.parquet}", "--policy", "{policy}", "--propensity", "frequency"],
    "decide": ["--logs", "{log.parquet}", "--scores", "{scores.parquet}", "--propensity", "frequency"],
    "learn": ["--logs", "{log.parquet}", "--out", "{out}", "--candidates", "5"],
    "recommend": ["{policy}"],
    "export": ["{policy}", "--to", "trec", "--out", "{out}"],
    "evaluate": ["--policy", "{policy}", "--data", "{ratings.csv}", "--set", "threshold=3", "--set", "list_length=3"],
    "simulate": ["--out", "{out}", "--impressions", "50", *SMALL],
    "table": [
        *["--out", "{out}", "--candidates", "5", "--impressions", "200", "--runs", "1", "--methods", "beliefs,joint"],
        *["--set", "epochs=1", *SMALL],
    ],
    "serve": ["{policy}", "--log", "{out}", "--port", "0"],
    "doctor": [],
    "replay": ["{segment-0-000000.parquet}", "--policies", "{.}"],
}
LONG = {("table", "--runs"), ("table", "--impressions")}  # what is large there is right, and takes hours


def command_line(arguments: list[str], codes: tuple[int, ...] = (0, 1, 2, 3, 4)) -> None:
    """The command as `tandemrank ARGUMENTS`; anything but one of these exit codes is an exception."""
    sys.argv = ["tandemrank", *arguments]
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    told = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")  # as Python's own
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told):
            main()
    except SystemExit as end:
        if (end.code or 0) not in codes:
            told.seek(0)
            raise RuntimeError(f"exit code {end.code}: {told.read()[-300:]}") from end


def in_this_process() -> None:
    """A grid's jobs without processes of their own, which take seconds to start; a server that ends when it would listen."""
    import uvicorn

    class Pool:
        _processes = None

        def __init__(self, *_: Any, **__: Any) -> None: ...
        def __enter__(self) -> "Pool":
            return self

        def __exit__(self, *_: object) -> None: ...
        def shutdown(self, **_: Any) -> None: ...
        def submit(self, job: Callable[..., Any], *arguments: Any) -> "Future[Any]":
            found: Future[Any] = Future()
            try:
                found.set_result(job(*arguments))
            except Exception as error:
                found.set_exception(error)
            return found

    def run(server: uvicorn.Server, sockets: Any = None) -> None:
        server.started = True
        server.config.load()

    grid.ProcessPoolExecutor = Pool
    uvicorn.Server.run = run


def calls(name: str, good: Path, place: Path, rng: random.Random) -> Iterator[Call]:
    """Calls of a command without end."""
    out, bad = place / "out", list(wrong.files(place / "wrong"))

    def call(arguments: list[str], *codes: int) -> Call:
        def run() -> None:
            shutil.rmtree(out, ignore_errors=True)
            command_line([name, *arguments], codes or (0, 1, 2, 3, 4))

        return Call(" ".join([name, *arguments]).replace(str(place.parent), ""), run)

    base = [
        str(out) + part[5:] if part.startswith("{out}") else str(good / part[1:-1]) if part[0] == "{" else part
        for part in COMMANDS[name]
    ]
    inputs = [at for at, part in enumerate(COMMANDS[name]) if part[0] == "{" and not part.startswith("{out}")]
    options = list(_options(name, [str(path) for path in bad]))
    single = [[*base[:at], str(path), *base[at + 1 :]] for at in inputs for path in bad]
    single += [[*base, option, value] for option, values in options for value in values]
    rng.shuffle(single)
    yield call(base, 0, 3, 4)  # what is good must be taken, or nothing below says anything
    yield from (call(arguments) for arguments in single)
    number = 0
    while True:
        number += 1
        several = list(base)
        for at in inputs:
            if rng.random() < 0.5 and COMMANDS[name][at] != "{.}":
                several[at] = str(wrong.damaged(rng, Path(base[at]), place / f"damaged-{number % 20}-{at}"))
        for option, values in rng.sample(options, min(rng.randrange(3), len(options))):
            several += [option, rng.choice(values)]
        yield call(several)


def _options(name: str, paths: list[str]) -> Iterator[tuple[str, list[str]]]:
    """The options of a command that take a value, and wrong values for each."""
    for option in typer.main.get_command(app).commands[name].params:  # type: ignore[attr-defined]
        kind = str(option.type_descriptor.annotation)
        if not option.opts[0].startswith("--") or "bool" in kind:
            continue
        values = wrong.INTEGERS if "int" in kind else wrong.FLOATS if "float" in kind else [*wrong.TEXTS, *paths]
        yield option.opts[0], [v for v in values if not ((name, option.opts[0]) in LONG and v == "100000")]
