"""`learn --engine ray` by two processes of one thread beside one process: CPU seconds of every phase, and the memory of each.

python benchmarks/cluster.py LOG LOGGING_POLICY [--nodes 2] [--json]

Of phases that are shared out the slowest process counts. Seconds are of the CPU, memory is the peak of resident pages. Each
side runs in a process of its own.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from _common import options, positive
from tandemrank._base import cluster
from tandemrank._base.processes import THREADS
from tandemrank.cli.terminal import print_json

PHASES = "fit", "propensities", "exposure", "training", "reading"
NAMES = {
    "fit_part": "fit", "_exposures": "propensities", "_exposure_on": "exposure", "_work": "training", "_sums_of": "reading",
}  # fmt: skip


def cpu() -> float:
    """Of this process."""
    return time.process_time()


def peak() -> float:
    """Gigabytes that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def with_time(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the seconds and the memory of who called it."""

    def timed(*given: Any) -> Any:
        start = time.process_time()
        found = function(*given)
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        return found, time.process_time() - start, most, os.getpid()

    return timed


def watched(nodes: int, found: dict[str, list[tuple[float, float, int]]]) -> None:
    """Whatever is shared out is timed; phases of the process that asks are in `found`, too."""
    for name in ("mapped", "together"):
        shares = getattr(cluster, name)

        def timed(function: Callable[..., Any], parts: Sequence[Any], *shared: Any, shares: Any = shares) -> list[Any]:
            results = shares(with_time(function), parts, *shared)
            key = NAMES.get(function.__name__, function.__name__)
            found[key].append([(seconds, most, pid) for _, seconds, most, pid in results])
            return [result for result, *_ in results]

        setattr(cluster, name, timed)


def run(log: str, logging_policy: str, nodes: int) -> dict[str, Any]:
    """`learn` in this process; on a cluster of so many nodes of one processor, or without one (0)."""
    import tandemrank as tr
    from tandemrank.training import data

    found: dict[str, list[Any]] = defaultdict(list)
    machine = None
    if nodes:
        from ray.cluster_utils import Cluster

        machine = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        for _ in range(nodes - 1):
            machine.add_node(num_cpus=1)
        os.environ["RAY_ADDRESS"] = machine.address
    watched(nodes, found)
    fit = data.fit

    def timed_fit(*given: Any, **more: Any) -> Any:
        start = cpu()
        result = fit(*given, **more)
        found["fit"].append([(cpu() - start, peak(), os.getpid())])
        return result

    data.fit = timed_fit
    stages = list[tuple[str, float]]()
    listener = tr.training.learning.Listener(stage=lambda words: stages.append((words[:40], cpu())))
    start = cpu()
    with tempfile.TemporaryDirectory() as folder:
        learned = tr.learn(
            log, logging_policy=tr.load(logging_policy), engine="ray" if nodes else "local", listener=listener,
            checkpoints=Path(folder) / "checkpoints",
        )  # fmt: skip
    [value] = learned.values.values()
    return {
        "value": value.value,
        "chosen": learned.beliefs.chosen.words if learned.beliefs is not None else "",
        "asking": {"cpu": cpu() - start, "peak": peak()},
        "phases": {
            name: {
                "cpu": sum(max(seconds for seconds, _, _ in call) for call in calls),
                "every": [round(seconds, 2) for call in calls for seconds, _, _ in call],
                "peak": max(most for call in calls for _, most, _ in call),
            }
            for name, calls in found.items()
        },
        "stages": [(words, round(at - start, 2)) for words, at in stages],
    }


def main() -> None:
    """Runs both sides, one after the other."""
    parser = options(__doc__)
    parser.add_argument("log")
    parser.add_argument("logging_policy")
    parser.add_argument("--nodes", type=positive, default=2)
    parser.add_argument("--side", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side is not None:
        print(json.dumps(run(asked.log, asked.logging_policy, asked.side)))
        return
    environment = {**os.environ, **dict.fromkeys(THREADS, "1"), "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    sides = {}
    for nodes in (0, asked.nodes):
        line = [sys.executable, __file__, asked.log, asked.logging_policy, "--side", str(nodes)]
        out = subprocess.run(line, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        sides[f"{nodes} nodes" if nodes else "one process"] = json.loads(out.stdout.splitlines()[-1])
    print_json(sides)


if __name__ == "__main__":
    main()
