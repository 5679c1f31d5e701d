"""Wrong values and damaged files for every command, a server, a journal and the Python API: no traceback, no hang.

    python benchmarks/fuzz.py [--calls 5900] [--seed 0] [--json] [TARGET ...]

The calls are shared out over the targets. Of each: how many calls were made, how many ended in a traceback or a hang, and the
first example. Calls are made in this process, but for the server's, which is asked over HTTP on the loopback. A command's calls
have one thing wrong each until there are no more of these, then several at once, drawn by the seed.
"""

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from damaged import write_good
from fuzzing import api, commands, served
from fuzzing.calls import FIRST_SECONDS, SECONDS, Call, Problem, problem_of

HTTP, SEGMENTS, PYTHON = "serve over HTTP", "replay of segments", "Python"
TARGETS = [*commands.COMMANDS, "seal", SEGMENTS, HTTP, PYTHON]
# How many calls a target gets, relative to the others: a training takes a second, a request a millisecond.
SHARES = {"table": 0.5, "learn": 0.7, "serve": 0.7, "replay": 0.5, SEGMENTS: 0.5, HTTP: 2.5, PYTHON: 3.0}


@dataclass
class Result:
    """What came of a target."""

    calls: int = 0
    tracebacks: int = 0
    hangs: int = 0
    seconds: float = 0.0
    examples: list[Problem] = field(default_factory=list)  # one of each place

    def add(self, problem: Problem) -> None:
        """Counts a problem, and keeps the first of its place."""
        self.tracebacks += problem.kind == "traceback"
        self.hangs += problem.kind == "hang"
        if problem.where not in {known.where for known in self.examples}:
            self.examples.append(problem)


def supply(target: str, good: Path, place: Path, rng: random.Random) -> AbstractContextManager[Iterator[Call]]:
    """The calls of a target, without end."""
    place.mkdir()
    if target == HTTP:
        return served.http_calls(good, place, rng)
    if target == PYTHON:
        return nullcontext(api.calls(good, place, rng))
    if target == "seal":
        return nullcontext(served.seal_calls(good, place, rng))
    if target == SEGMENTS:
        return nullcontext(served.replay_calls(good, place, rng))
    return nullcontext(commands.calls(target, good, place, rng))


def fuzz(targets: list[str], calls: int, seed: int) -> dict[str, Result]:
    """So many calls in all, shared out over the targets."""
    found = {}
    whole = sum(SHARES.get(target, 1.0) for target in targets)
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        good = Path(name) / "good"
        good.mkdir()
        write_good(good)
        rows = {"impression_id": [1, 1, 2], "query_id": [1, 1, 2], "item_id": [1, 2, 1], "position": [1, 2, 1]}
        pl.DataFrame({**rows, "click": [0, 1, 0]}).write_csv(good / "long.csv")
        commands.in_this_process()
        for number, target in enumerate(targets):
            share = max(round(calls * SHARES.get(target, 1.0) / whole), 1)
            rng = random.Random(f"{seed} {target}")
            with supply(target, good, Path(name) / f"target-{number}", rng) as source:
                found[target] = _of_target(islice(source, share))
            _say(f"{target}: {_words(found[target])}")
    return found


def _of_target(calls: Iterator[Call]) -> Result:
    result, since = Result(), time.perf_counter()
    for call in calls:
        result.calls += 1
        if problem := problem_of(call, FIRST_SECONDS if result.calls == 1 else SECONDS):
            result.add(problem)
    result.seconds = time.perf_counter() - since
    return result


def _words(result: Result) -> str:
    return f"{result.calls} calls, {result.tracebacks} tracebacks, {result.hangs} hangs, {result.seconds:.0f} s"


def _say(words: str) -> None:
    print(words.encode("utf-8", "backslashreplace").decode(), file=sys.stderr, flush=True)


def main() -> None:
    """Fuzzes and prints; the exit code is 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="by default all", choices=[*TARGETS, []], metavar="TARGET")
    parser.add_argument("--calls", type=int, default=1000, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = fuzz(arguments.targets or TARGETS, arguments.calls, arguments.seed)
    total = {name: sum(getattr(one, name) for one in found.values()) for name in ("calls", "tracebacks", "hangs")}
    if arguments.json:
        print(json.dumps({**total, "targets": {name: asdict(one) for name, one in found.items()}}, indent=1))
    else:
        for name, one in found.items():
            print(f"{name}: {_words(one)}".encode("utf-8", "backslashreplace").decode())
            for problem in one.examples:
                words = f"  {problem.kind}: {problem.call[:300]}\n    {problem.why}"
                print(words.encode("utf-8", "backslashreplace").decode())
        print(f"{total['calls']} calls, {total['tracebacks']} tracebacks, {total['hangs']} hangs")
    sys.exit(total["tracebacks"] + total["hangs"] > 0)


if __name__ == "__main__":
    main()
