"""How kernels are compiled: once for each machine and each state of their sources, and kept on disk.

numba keeps a compiled function until its own file changes, but it holds what it imported from other files too. So the
kernels are kept in a folder that is named by the digest of all their sources: when any of them changes, none is reused.
"""

import atexit
import hashlib
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import event

PACKAGE = Path(__file__).resolve().parents[2]
PASSING = "tandemrank-kernels-"  # how a folder is called that is gone with its process
PATIENCE = 1.0  # seconds of compiling after which it is said

_config: Any = numba.config

# No reassociation: every sum is in the order it is written, so a result is the same on every call.
MATHS = {"contract", "nsz"}
# But for these sums, eight at a time, whose order is decided when they are compiled, by their length alone.
SUMS = MATHS | {"reassoc"}


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """As `numba.njit`, without the interpreter's lock, and kept on disk. It compiles at the first call.

    Once for each list of types: a constant argument is a type of its own, so kernels pass np.int64(0), not 0. What a kernel
    calls is compiled by itself, and again in it. A part of one or two kernels is therefore `njit(inline="always")`, compiled
    there alone.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        folder, before = cache_folder(), _config.CACHE_DIR
        if folder is not None:
            _config.CACHE_DIR = str(folder)  # is looked at here and now, not at the call
        try:
            return numba.njit(nogil=True, cache=folder is not None, **options)(function)
        finally:
            _config.CACHE_DIR = before

    return decorate


def sources_digest() -> str:
    """The digest of everything that ends up in a compiled kernel: all kernels, and the constants of the random numbers."""
    digest = hashlib.sha256()
    kernels = {*Path(__file__).resolve().parent.glob("*.py"), *PACKAGE.rglob("*_kernel.py")}
    for path in [*sorted(kernels), PACKAGE / "_base" / "random.py"]:
        digest.update(f"{path.relative_to(PACKAGE)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


@cache
def cache_folder() -> Path | None:
    """Where compiled kernels are kept: $NUMBA_CACHE_DIR, beside the sources, or the user's cache; None if nowhere.

    numba writes where it reads. What lies in an earlier place that may only be read is therefore copied: once, or where
    nothing can be kept for this process alone.
    """
    readable: Path | None = None
    for base in _places():
        folder = base / f"kernels-{sources_digest()}"
        try:
            if readable is not None and not folder.exists():
                _copy(readable, folder)
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:  # read-only, as site-packages may be
            readable = readable or (folder if folder.is_dir() else None)
            continue
        return folder
    if readable is not None:
        with suppress(OSError):
            passing = tempfile.mkdtemp(prefix=PASSING)
            atexit.register(shutil.rmtree, passing, ignore_errors=True)
            return Path(shutil.copytree(readable, Path(passing) / readable.name))
    return None


def _copy(kept: Path, folder: Path) -> None:
    """A whole folder or none, whoever else does it at the same time."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place, suppress(OSError):
        shutil.copytree(kept, Path(place) / folder.name)
        (Path(place) / folder.name).rename(folder)


def _places() -> Iterator[Path]:
    if _config.CACHE_DIR:
        yield Path(_config.CACHE_DIR)
    yield Path(__file__).resolve().parent / "__pycache__"
    import pooch

    yield Path(pooch.os_cache("tandemrank"))


def note() -> str:
    """What is said while compiling."""
    folder = cache_folder()
    kept = (
        "at every start, since no folder can be written; give one by NUMBA_CACHE_DIR"
        if folder is None or folder.parent.name.startswith(PASSING)
        else f"once, then kept in {folder.parent}"
    )
    return f"tandemrank: compiling for this machine, ten seconds or so ({kept}) ..."


_said = threading.Event()


class _Note(event.Listener):
    """Says what is going on when compiling, not loading what is kept on disk, takes more than a second."""

    def __init__(self) -> None:
        self.timer = threading.Timer(PATIENCE, self.say)
        self.timer.daemon = True
        self.started = False

    def on_start(self, event: Any) -> None:
        if not self.started:
            self.started = True
            self.timer.start()

    def on_end(self, event: Any) -> None:
        pass

    def say(self) -> None:
        _said.set()
        print(note(), file=sys.stderr)  # noqa: T201


@contextmanager
def announcing() -> Iterator[None]:
    """Around a call of compiled code: says so if it must be compiled first and that takes more than a second."""
    if _said.is_set():
        yield
        return
    note = _Note()
    try:
        with event.install_listener("numba:compile", note):
            yield
    finally:
        note.timer.cancel()
