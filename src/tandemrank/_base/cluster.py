"""Ray, the extra `cluster`: functions as tasks of a cluster, of one that runs already or of one started here."""

import os
from collections.abc import Callable
from typing import Any, Literal, cast, get_args

from tandemrank._base.processes import THREADS
from tandemrank.errors import ConfigError

Engine = Literal["local", "ray"]
MISSING = "the engine ray needs the extra `cluster`: pip install 'tandemrank[cluster]'."
ONE_THREAD = dict.fromkeys(THREADS, "1")  # of a worker


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
