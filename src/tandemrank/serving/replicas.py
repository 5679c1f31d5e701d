"""Replicas of one application on a Ray cluster, with Ray Serve: one address on every node, and a replica that dies is replaced.

A proxy on each node takes a request and gives it to any replica, so nothing that a replica remembers may decide an answer: each
has its own name in the log, and the log joins what several heard. What is asked of one replica alone is refused (`app`).

Ray says that an application runs when its replicas do. The proxy of a node starts after the first replica there, listens
before it knows any path, and answers 404 meanwhile: so we wait until every proxy knows ours.
"""

import http.client
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tandemrank._base import cluster
from tandemrank.errors import ConfigError, JobError
from tandemrank.serving.journal import shout
from tandemrank.serving.run import Address

NAME = "tandemrank"  # of the application in the cluster; another of this name replaces it, one replica after the other
AT_ONCE = 100  # requests that a replica has at a time; the others wait in the proxy
PROXY_SECONDS, LOOKS = 60.0, 8  # in which all proxies must answer; connections, as several nodes may share an address


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
        _wait_for_proxies(address)
    except (ray.exceptions.RayError, RuntimeError) as error:
        raise JobError(f"the replicas did not start: {' '.join(str(error).split())[-500:]}") from error


def _wait_for_proxies(address: Address) -> None:
    from ray.serve.context import _get_global_client

    client: Any = _get_global_client()
    until = time.monotonic() + PROXY_SECONDS
    while not proxies_answer(client.get_serve_details(), address):
        if time.monotonic() > until:
            shout(
                f"the replicas run, but after {PROXY_SECONDS:.0f} s not every node with one answers at port {address.port}: "
                "its machine is too busy for Ray, or another server is there."
            )
            return
        time.sleep(0.1)


def proxies_answer(details: Mapping[str, Any], address: Address) -> bool:
    """Whether every node with a replica has a proxy that knows the application, by what Ray says and by asking it.

    `details`: Ray's `ServeInstanceDetails` as a dictionary. A proxy that cannot be reached from here is taken at Ray's word.
    """
    proxies = details["proxies"]
    parts = details["applications"].get(NAME, {"deployments": {}})["deployments"].values()
    nodes = {replica["node_id"] for part in parts for replica in part["replicas"]}
    if not nodes or any(proxies.get(node, {}).get("status") != "HEALTHY" for node in nodes):
        return False
    everywhere = address.host in ("0.0.0.0", "::")
    hosts = {proxies[node]["node_ip"] for node in nodes} if everywhere else {address.host}
    return all(_knows_the_way(host, address.port) for host in sorted(hosts) for _ in range(LOOKS))


def _knows_the_way(host: str, port: int) -> bool:
    """Whether who answers there has a path of ours; also where nobody can be reached."""
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return True
    finally:
        connection.close()


def stay() -> None:
    """Until this process is told to end, where the cluster is its own; one at RAY_ADDRESS goes on without it."""
    if os.environ.get("RAY_ADDRESS"):
        return
    end = threading.Event()
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, lambda *_: end.set())
    end.wait()
    serve_library().shutdown()
