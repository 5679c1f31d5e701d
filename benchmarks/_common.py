"""What the measurements share: options, a table or JSON on standard output, and timing side by side."""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from tandemrank._base.progress import working
from tandemrank.cli.terminal import print_summary
from tandemrank.errors import TandemRankError


def options(words: str | None) -> argparse.ArgumentParser:
    """The options that every measurement has; `words`, its docstring, are the help."""
    found = argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return found


def figures_folder(words: str | None) -> Path:
    """The only argument of a script that draws: where to. By default the figures of the docs."""
    found = argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(__file__).resolve().parents[1] / "docs" / "figures"
    found.add_argument("folder", nargs="?", type=Path, default=default, help="default: docs/figures")
    folder: Path = found.parse_args().folder
    return folder


def positive(text: str) -> int:
    """A number of things, at least one."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number, at least 1; got {text}")
    return int(text)


def not_negative(text: str) -> int:
    """Of the random numbers: a whole number, at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected a whole number, at least 0; got {text}")
    return int(text)


def report(
    measure: Callable[[Callable[[int], None]], object], words: str, *, as_json: bool, total: int | None = None
) -> None:
    """Measures, and prints what was found. `measure` may say how far it is of a total; `words` say what goes on meanwhile."""
    try:
        with working(words, total) as progress:
            found = measure(progress)
    except TandemRankError as error:
        raise SystemExit(f"tandemrank: {error}") from error
    print_summary(found, as_json)


@contextmanager
def threads(n: int) -> Iterator[None]:
    """Inside, compiled code and torch use n threads."""
    import numba

    before = numba.get_num_threads(), torch.get_num_threads()
    numba.set_num_threads(n)
    torch.set_num_threads(n)
    try:
        yield
    finally:
        numba.set_num_threads(before[0])
        torch.set_num_threads(before[1])


def seconds(
    jobs: Sequence[Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """The median time of each job. They take turns, so that a busy moment of the machine hits all of them.

    With `time.process_time` as the clock it is the time of the CPU, which other processes hardly change.
    """
    for job in jobs:
        job()
    taken = np.empty((repeats, len(jobs)))
    for i in range(repeats):
        for j, job in enumerate(jobs):
            start = clock()
            job()
            taken[i, j] = clock() - start
    return [float(x) for x in np.median(taken, 0)]
