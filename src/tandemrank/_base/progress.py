"""What a person sees of a long job while it runs: on standard error, from the first second on, never on standard output.

On a terminal a bar, in a notebook a line of its page. Elsewhere, in a pipe or in the log of a scheduler, a command says a plain
line after the first second and then every ten, and Python says nothing.
"""

import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

Say = Callable[[str], None]
State = Any  # `training.checkpoint.Progress`, of a room above

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


class Tell(Protocol):
    """Hears how much is done, and of how much, where that was not known before."""

    def __call__(self, n: int, of: int | None = None) -> None: ...


@contextmanager
def working(words: str, total: int | None = None) -> Iterator[Tell]:
    """A job in one piece, or one that counts up to a total."""
    if sys.stderr.isatty():
        with _bar(words) as bar:
            task = bar.task_ids[0]

            def move(n: int, of: int | None = None) -> None:
                bar.update(task, completed=n, total=of or total)

            bar.update(task, total=total)
            yield move
        return
    with plain_lines(words) as say:

        def tell(n: int, of: int | None = None) -> None:
            most = of or total
            say(f"{words}: {n:,}" + ("" if most is None else f" of {most:,}"))

        yield tell


def load_first(*modules: str) -> None:
    """Imports what a command needs: that alone takes seconds, on a busy machine many."""
    with working("loading"):
        for name in modules:
            importlib.import_module(f"tandemrank.{name}")


@contextmanager
def training_progress() -> Iterator[tuple[Say, Callable[[str, State], None]]]:
    """What a training from a log is at, in words; and its method, phase, epoch, objective and judgement."""
    words = "reading the log"
    if not sys.stderr.isatty():
        with plain_lines(words) as say:
            yield say, lambda method, state: say(_words_of(method, state))
        return
    with _bar(words) as bar:
        task, current = bar.task_ids[0], ("", 0)

        def show(method: str, state: State) -> None:
            nonlocal task, current
            if current != (method, state.phase):
                # Each phase has a time of its own: the one before says little about it.
                bar.remove_task(task)
                task, current = bar.add_task("", total=state.epochs), (method, state.phase)
            bar.update(task, completed=state.epoch + state.done, description=_words_of(method, state, short=True))

        yield lambda said: bar.update(task, description=said), show


@contextmanager
def python_progress() -> Iterator[tuple[Say, Callable[[str, State], None]]]:
    """The same for who calls from Python: on a terminal, and in a notebook."""
    if "ipykernel" in sys.modules:
        with _cell() as say:
            yield say, lambda method, state: say(_words_of(method, state))
    elif sys.stderr.isatty():
        with training_progress() as found:
            yield found
    else:
        yield lambda said: None, lambda method, state: None


@contextmanager
def _cell() -> Iterator[Say]:
    """A line below the cell of a notebook that is replaced, ten times in a second at most, and gone at the end."""
    display = importlib.import_module("IPython.display")
    line, shown = display.display(display.Pretty(""), display_id=True), -1.0

    def say(words: str) -> None:
        nonlocal shown
        if time.monotonic() > shown + 0.1:
            shown = time.monotonic()
            line.update(display.Pretty(words))

    try:
        yield say
    finally:
        line.update(display.Pretty(""))


def _words_of(method: str, state: State, *, short: bool = False) -> str:
    """Where a training stands; in short, what fits beside a bar."""
    phase = f" {state.phase + 1}/{state.phases}" if state.phases > 1 else ""
    last = "" if state.last is None else f"  objective {state.last.objective:.4g}"
    epoch = f"epoch {min(state.epoch + 1, state.epochs)}"
    return f"{method}{phase}  {epoch}{last if short else f' of {state.epochs}{last}'}"
