"""What a person sees of a long job while it runs: on standard error, from the first second on, never on standard output.

On a terminal a bar. Elsewhere, in a pipe or in the log of a scheduler, a plain line after the first second and then every ten.
"""

import importlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.progress import Progress as Bar

    from tandemrank.experiments.results import GridState
    from tandemrank.training.history import Progress

FIRST, EVERY = 1.0, 10.0  # seconds


@contextmanager
def plain_lines(words: str) -> Iterator[Callable[[str], None]]:
    """What is said last goes to standard error, a line each time; the first time it is `words`."""
    start, over, said = time.monotonic(), threading.Event(), [words]

    def lines() -> None:
        pause = FIRST
        while not over.wait(pause):
            print(f"tandemrank: {said[0]}, {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)  # noqa: T201
            pause = EVERY

    thread = threading.Thread(target=lines, name="progress", daemon=True)
    thread.start()
    try:
        yield lambda text: said.__setitem__(0, text)
    finally:
        over.set()
        thread.join()


def _bar(words: str) -> "Bar":
    """A bar for the terminal, gone when the job is done; `words` stand there until there is more to say."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    # Narrow enough for eighty columns; the time left is that of all epochs, a phase may well end before.
    columns = (
        TextColumn("{task.description}", markup=False), BarColumn(bar_width=12),
        TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=True),
    )  # fmt: skip
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task(words, total=None)
    return bar


@contextmanager
def working(words: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A job in one piece, or one that counts up to a total."""
    if sys.stderr.isatty():
        with _bar(words) as bar:
            task = bar.task_ids[0]
            bar.update(task, total=total)
            yield lambda n: bar.update(task, completed=n)
    else:
        with plain_lines(words) as say:
            yield lambda n: say(f"{words}: {n:,}" + ("" if total is None else f" of {total:,}"))


def load_first(*modules: str) -> None:
    """Imports what a command needs: that alone takes seconds, on a busy machine many."""
    with working("loading"):
        for name in modules:
            importlib.import_module(f"tandemrank.{name}")


@contextmanager
def grid_progress() -> Iterator[Callable[["GridState"], None]]:
    """The trainings of a grid, on a terminal with the table filling in."""
    words = "the first trainings are under way"
    if not sys.stderr.isatty():
        with plain_lines(words) as say:
            yield lambda state: say(f"{state.done} of {state.total} trainings are finished")
        return
    from rich.live import Live

    bar = _bar(words)
    task = bar.task_ids[0]
    with Live(bar, console=bar.console, transient=True, refresh_per_second=4) as live:

        def show(state: "GridState") -> None:
            said = f"{state.done} of {state.total} trainings" if state.done else words
            bar.update(task, completed=state.done, total=state.total, description=said)
            live.update(_filling_in(state, bar))

        yield show


def _filling_in(state: "GridState", bar: "Bar") -> "RenderableType":
    from rich.console import Group

    from tandemrank.experiments.results import Table
    from tandemrank.reports import text

    return Group(text.text(Table(rows=state.rows)), bar) if state.rows else bar


@contextmanager
def training_progress() -> Iterator[tuple[Callable[[str], None], Callable[[str, "Progress"], None]]]:
    """What a training from a log is at, in words; and its method, phase, epoch, objective and judgement."""
    words = "reading the log"
    if not sys.stderr.isatty():
        with plain_lines(words) as say:
            yield say, lambda method, state: say(_words_of(method, state))
        return
    with _bar(words) as bar:
        task, current = bar.task_ids[0], ("", 0)

        def show(method: str, state: "Progress") -> None:
            nonlocal task, current
            if current != (method, state.phase):
                # Each phase has a time of its own: the one before says little about it.
                bar.remove_task(task)
                task, current = bar.add_task("", total=state.epochs), (method, state.phase)
            bar.update(task, completed=state.epoch + state.done, description=_words_of(method, state, short=True))

        yield lambda said: bar.update(task, description=said), show


def _words_of(method: str, state: "Progress", *, short: bool = False) -> str:
    """Where a training stands; in short, what fits beside a bar."""
    phase = f" {state.phase + 1}/{state.phases}" if state.phases > 1 else ""
    last = "" if state.last is None else f"  objective {state.last.objective:.4g}"
    if state.last is not None and not math.isnan(state.last.held_out):
        last += f"  held out {state.last.held_out:.4f}"
    epoch = f"epoch {min(state.epoch + 1, state.epochs)}"
    return f"{method}{phase}  {epoch}{last if short else f' of {state.epochs}{last}'}"
