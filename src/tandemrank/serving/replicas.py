"""Replicas of one application on a Ray cluster, with Ray Serve: one address on every node, and a replica that dies is replaced.

A proxy on each node takes a request and gives it to any replica, so nothing that a replica remembers may decide an answer: each
has its own name in the log, and the log joins what several heard. What is asked of one replica alone is refused (`app`).
"""

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from tandemrank._base import cluster
from tandemrank.errors import ConfigError, JobError
from tandemrank.serving.run import Address

NAME = "tandemrank"  # of the application in the cluster; another of this name replaces it, one replica after the other
AT_ONCE = 100  # requests that a replica has at a time; the others wait in the proxy


def serve_library() -> Any:
    """`ray.serve`, or one line that says how to get it."""
    try:
        from ray import serve
    except ImportError as error:
        raise ConfigError(
            f"--engine ray needs the extra `cluster`: pip install 'tandemrank[cluster,serve]' ({error.name})."
        ) from error
    return serve


def deploy(build: Callable[[str], Any], address: Address, replicas: int) -> None:
    """Has an ASGI application answer on a cluster, the one at RAY_ADDRESS or one of this machine; returns when it does.

    `build` makes the application in each replica, given the replica's name; it may be used on every node.
    """
    serve, ray = serve_library(), cluster.connect(replicas)

    def built() -> Any:
        from ray import serve

        return build("ray-" + serve.get_replica_context().replica_id.unique_id)

    made = serve.deployment(
        serve.ingress(built)(), name=NAME, num_replicas=replicas, max_ongoing_requests=AT_ONCE,
        ray_actor_options={"num_cpus": 1, "runtime_env": {"env_vars": cluster.ONE_THREAD}}, max_constructor_retry_count=1,
        logging_config={"log_level": "WARNING", "enable_access_log": False},
    )  # fmt: skip
    options = {"host": address.host, "port": address.port, "request_timeout_s": address.limits.seconds}
    try:
        serve.start(proxy_location="EveryNode", http_options=options)
        serve.run(made.bind(), name=NAME)
    except (ray.exceptions.RayError, RuntimeError) as error:
        raise JobError(f"the replicas did not start: {' '.join(str(error).split())[-500:]}") from error


def stay() -> None:
    """Until this process is told to end, where the cluster is its own; one at RAY_ADDRESS goes on without it."""
    if os.environ.get("RAY_ADDRESS"):
        return
    end = threading.Event()
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, lambda *_: end.set())
    end.wait()
    serve_library().shutdown()
