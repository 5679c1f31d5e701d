"""Worker processes: one thread each, none that outlives the process that started it; one process at a time in a folder.

And a thread that works ahead of the one that uses what it makes.
"""

import os
import threading
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection, parent_process
from pathlib import Path
from typing import TypeVar, cast

from tandemrank._base.files import held
from tandemrank.errors import JobError

THREADS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "POLARS_MAX_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


Item = TypeVar("Item")


def ahead(items: Generator[Item], ready: int = 2) -> Iterator[Item]:
    """The same items in the same order, made by a thread while the one before is in use; so many lie ready at most."""
    end = object()
    maker = ThreadPoolExecutor(1)
    try:
        waiting = deque(maker.submit(next, items, end) for _ in range(ready))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(maker.submit(next, items, end))
            yield cast("Item", item)
    finally:
        maker.shutdown(cancel_futures=True)
        items.close()


@contextmanager
def one_thread_each() -> Iterator[None]:
    """The environment for worker processes: one thread each, so that jobs do not fight for cores."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def end_with_parent() -> None:
    """In a worker process: from now on it ends when its parent does, however that ends (kill -9 too).

    The parent holds one end of a pipe, and the system closes it whatever happens; a thread here waits for that.
    """
    parent = parent_process()
    if parent is None:
        return

    def follow() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, name="end with the parent", daemon=True).start()


@contextmanager
def alone_in(folder: Path, mark: str) -> Iterator[None]:
    """Keeps other processes out of a folder while this one works there: a lock on the file `mark` in it.

    The system takes the lock back when the process ends, however it ends.
    """
    with held(folder / mark) as alone:
        if not alone:
            raise JobError(
                f"another process is at work in {folder}. Wait until it has finished, or give another folder."
            )
        yield
