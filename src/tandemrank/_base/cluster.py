"""Ray, the extra `cluster`: functions as tasks of a cluster, of one that runs already or of one started here; and groups of
processes, of which each has some queries of a log: what is about all queries is added up, or put together.

`mapped` calls a function on parts that have nothing to do with each other; `together` on parts whose processes talk to each
other (a `Group`). What dies is done again from its part. All of a group call the same functions in the same order, each with
its own queries; a group of one is a process with all of them.
"""

import os
import socket
from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, Literal, TypeVar, cast, get_args

import numpy as np
from numpy.typing import NDArray

from tandemrank._base.processes import THREADS
from tandemrank.errors import ConfigError, JobError, TandemRankError

Engine = Literal["local", "ray"]
Numbers = TypeVar("Numbers", bound=np.generic)
Anything = TypeVar("Anything")
MISSING = "the engine ray needs the extra `cluster`: pip install 'tandemrank[cluster]'."
# Of glibc: memory is given back as soon as it is free, else a tenth more stays.
FREED = {"MALLOC_MMAP_THRESHOLD_": "1000000"}
ONE_THREAD = {**dict.fromkeys(THREADS, "1"), **FREED}  # of a worker
FAILURES = 8  # of a group of processes, before it is given up
SECONDS = 5.0  # that the others of a group have to say why, after one has failed


def check_engine(engine: str) -> Engine:
    """The engine of that name; refuses one that there is not."""
    if engine not in get_args(Engine):
        raise ConfigError(f"--engine takes local or ray; got {engine!r}.")
    return cast("Engine", engine)


def connect(jobs: int | None = None) -> Any:
    """The module `ray`, connected to the cluster at RAY_ADDRESS or else to one of this machine, with `jobs` processors."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError(MISSING) from error
    if not ray.is_initialized():
        address = os.environ.get("RAY_ADDRESS")
        # How many tasks run at once is the cluster's business; `jobs` sizes a cluster that is started here.
        local: dict[str, Any] = {} if address else {"num_cpus": jobs, "include_dashboard": False}
        ray.init(address=address, log_to_driver=False, **local)
    return ray


def task(ray: Any, function: Callable[..., Any]) -> Any:
    """The function as a task of one thread; it is run again if its worker or its node dies."""
    return ray.remote(num_cpus=1, max_retries=5, runtime_env={"env_vars": ONE_THREAD})(function)


def nodes(ray: Any) -> list[int]:
    """The processors of every node that has some."""
    found = (int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"])
    return [n for n in found if n]


def cut(batches: int, engine: Engine) -> list[tuple[int, int]]:
    """The first batch and the one after the last of every part: one for each processor of a cluster, or a single one."""
    n = max(1, min(sum(nodes(connect())), batches)) if engine == "ray" else 1
    bounds = [batches * k // n for k in range(n + 1)]
    return list(pairwise(bounds))


def mapped(function: Callable[..., Any], parts: Sequence[tuple[Any, ...]], *shared: Any) -> list[Any]:
    """function(*part, *shared) of every part, each by a task, as many at once as there is room for; a single one here."""
    if len(parts) < 2:
        return [function(*part, *shared) for part in parts]
    return list(in_order(function, parts, *shared))


def in_order(function: Callable[..., Any], parts: Iterable[tuple[Any, ...]], *shared: Any) -> Generator[Any]:
    """The same one after the other, as they are asked for; what is left when nobody goes on is cancelled."""
    ray = connect()
    work, everybodys = task(ray, function), [ray.put(one) for one in shared]
    waiting = [work.remote(*part, *everybodys) for part in parts]
    try:
        while waiting:
            yield ray.get(waiting.pop(0))
    except ray.exceptions.RayError as error:
        raise _reason(ray, error)[1] from error
    finally:
        for reference in waiting:
            ray.cancel(reference)


def together(function: Callable[..., Any], parts: Sequence[Any], *shared: Any) -> list[Any]:
    """function(group, part, *shared) by a process for each part, all of them a group; if one dies all begin again.

    No more parts than `nodes`: a process has a node to itself.
    """
    ray = connect()
    threads = min(nodes(ray), default=1)
    how = {"num_cpus": threads, "max_restarts": 0, "scheduling_strategy": "SPREAD", "runtime_env": {"env_vars": FREED}}
    member = ray.remote(**how)(_Member)
    held, everybodys = [ray.put(part) for part in parts], [ray.put(one) for one in shared]
    for attempt in range(1, FAILURES + 1):
        members, waiting = [member.remote() for _ in parts], list[Any]()
        try:
            address = ray.get(members[0].address.remote())
            waiting = [
                one.work.remote(function, rank, len(parts), address, threads, part, *everybodys)
                for rank, (one, part) in enumerate(zip(members, held, strict=True))
            ]
            left = waiting
            while left:  # the first that fails is heard at once: the others may wait for it for ever
                done, left = ray.wait(left)
                ray.get(done)
            return cast("list[Any]", ray.get(waiting))
        except ray.exceptions.RayError as error:
            has_died, why = _reason(ray, error, waiting)
            if not has_died or attempt == FAILURES:
                raise why from error
        finally:
            for one in members:
                ray.kill(one)
    raise AssertionError  # every attempt returns, raises, or is followed by another


class _Member:
    """A process of a group, as an actor."""

    def address(self) -> str:
        """Where the others find it."""
        import ray

        here = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        with socket.socket() as free:
            free.bind(("", 0))
            return f"{here}:{free.getsockname()[1]}"

    def work(
        self, function: Callable[..., Any], rank: int, size: int, address: str, threads: int, part: Any, *shared: Any
    ) -> Any:
        """Our share."""
        import numba
        import torch

        numba.set_num_threads(min(threads, numba.get_num_threads()))
        torch.set_num_threads(threads)
        return function(Processes(rank, size, address), part, *shared)


def _reason(ray: Any, error: Exception, others: Sequence[Any] = ()) -> tuple[bool, TandemRankError]:
    """Whether a process has died, and why something failed: what one of them refused, or else what Ray says."""
    found: list[Any] = [error]
    for one in ray.wait(list(others), num_returns=len(others), timeout=SECONDS)[0] if others else ():
        try:
            ray.get(one)
        except ray.exceptions.RayError as other:
            found.append(other)
    has_died = any(isinstance(one, ray.exceptions.RayActorError) for one in found)
    refused = [cause for one in found if isinstance(cause := getattr(one, "cause", None), TandemRankError)]
    words = str(error).strip().splitlines()[-1]
    failed = JobError(f"a process of the cluster failed: {words}. Check that every node has memory for its part.")
    return has_died and not refused, refused[0] if refused else failed


# --- groups of processes ----------------------------------------------------------------------------------------------

PATIENCE = timedelta(days=1)  # with others, who may have much more to do; who has died is noticed at once


class Group:
    """A process that has all queries."""

    rank, size = 0, 1

    def sum(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum over the group.  Shapes: x any -> the same."""
        return x

    def gather(self, x: NDArray[Numbers]) -> NDArray[Numbers]:
        """Everybody's rows, one after the other.  Shapes: x [n, ...] -> [n of all, ...]."""
        return x

    def exchange(self, parts: Sequence[Anything]) -> list[Anything]:
        """Gives a part to each; returns what everybody gave to us."""
        return list(parts)

    def shared(self, works: Sequence[Callable[[], Anything]]) -> list[Anything]:
        """What comes of some works that everybody could do: each does some of them, and everybody gets all."""
        parts = self.exchange([[work() for work in works[self.rank :: self.size]]] * self.size)
        return [parts[k % self.size][k // self.size] for k in range(len(works))]

    def total(self, *values: float) -> tuple[float, ...]:
        """Sums of single numbers."""
        return tuple(self.sum(np.array(values, np.float64)).tolist())

    def before(self, n: int) -> tuple[int, int]:
        """Of things that everybody has some of, n of them ours: how many come before ours, and how many there are."""
        each = self.gather(np.array([n]))
        return int(each[: self.rank].sum()), int(each.sum())


ALONE = Group()


class Processes(Group):
    """The processes of `torch.distributed` (gloo), by their addresses."""

    def __init__(self, rank: int, size: int, address: str) -> None:
        from torch import distributed

        self.rank, self.size, self.group = rank, size, distributed
        distributed.init_process_group(
            "gloo", init_method=f"tcp://{address}", rank=rank, world_size=size, timeout=PATIENCE
        )

    def sum(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum over the group."""
        import torch

        found = torch.from_numpy(np.array(x, np.float64))
        self.group.all_reduce(found)
        return found.numpy()

    def gather(self, x: NDArray[Numbers]) -> NDArray[Numbers]:
        """Everybody's rows, one after the other."""
        found: list[Any] = [None] * self.size
        self.group.all_gather_object(found, np.ascontiguousarray(x))
        return np.concatenate(found)

    def exchange(self, parts: Sequence[Anything]) -> list[Anything]:
        """Gives a part to each, one receiver after the other."""
        ours: list[Any] = []
        for rank, part in enumerate(parts):
            found: list[Any] | None = [None] * self.size if rank == self.rank else None
            self.group.gather_object(part, found, dst=rank)
            ours = ours if found is None else found
        return ours
