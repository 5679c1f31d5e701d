"""Grids: the same table whatever the order, the engine or the interruptions."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import json_schemas
from example_grid import TINY, figures
from tandemrank._base.files import as_json
from tandemrank.errors import ConfigError
from tandemrank.experiments import grid
from tandemrank.experiments.config import GridConfig
from tandemrank.experiments.grid import Job
from tandemrank.experiments.results import FIGURES, Table, from_json


def read_table(folder: Path) -> Table:
    return from_json(Table, (folder / "table.json").read_bytes())


def test_the_table_has_a_row_for_every_cell(whole: Table) -> None:
    assert {(row.method, row.K2, row.N) for row in whole.rows} == {
        (m, K2, N) for m in ("baseline", "independent", "joint") for K2 in (10, 20) for N in (2000, 4000)
    }
    row = whole.rows[0]
    assert all(row.of(figure).mean > 0 for figure in FIGURES)
    assert row.seconds > 0
    assert (row.runs, row.ndcg_runs) == (1, (row.ndcg.mean,))
    assert row.ndcg_new.low < row.ndcg_new.mean < row.ndcg_new.high
    assert [reference.name for reference in whole.references] == [
        "random", "popularity", "production", "full information"
    ]  # fmt: skip
    assert {(d.against, d.kind) for d in whole.differences} == {("baseline", "users"), ("independent", "users")}
    assert (whole.world.queries, whole.world.items, whole.world.logged_users) == (60, 40, 54)
    assert whole.K == 5
    for command in ("table", "demo"):
        json_schemas.check(command, "", whole, as_json(whole))


def test_every_run_has_a_log_of_its_own(config) -> None:
    """Runs differ by their seeds alone, and so by all that is drawn: otherwise an interval over runs would say nothing."""
    one = config.model_copy(
        update={"methods": ("independent",), "candidates": (10,), "impressions": (2000,), "runs": 2}
    )
    found = [grid.run_job(one.model_dump_json(), Job(2000, run), frozenset()) for run in (0, 1, 0)]
    records = [record for ((_, record),) in found]
    assert [record.run for record in records] == [0, 1, 0]
    assert records[0].ndcg == records[2].ndcg != records[1].ndcg
    assert records[0].ndcg_users == ()  # kept where there is one run


def test_more_candidates_than_items_are_refused_before_anything_is_run(config, tmp_path) -> None:
    with pytest.raises(ConfigError, match="K2 = 41 candidates, but there are only 40 items"):
        grid.run(config.model_copy(update={"candidates": (10, 41)}), tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_is_none_is_refused(config, tmp_path) -> None:
    with pytest.raises(ConfigError, match="--engine takes local or ray; got 'Ray'"):
        grid.run(config, tmp_path / "new", engine="Ray")
    assert list(tmp_path.iterdir()) == []


def command(folder: Path, *more: str) -> list[str]:
    sizes = ["--set", "queries=60", "--set", "items=40", "--set", "rank=5", "--set", "list_length=5"]
    grid_of = ["--candidates", "10,20", "--impressions", "2000,4000", "--runs", "1"]
    run = [
        sys.executable,
        "-m",
        "tandemrank",
        "table",
        "--out",
        str(folder),
        "--methods",
        "baseline,independent,joint",
        "--set",
        "epochs=4",
        "--set",
        "objective=ips",
    ]
    return [*run, *sizes, *grid_of, *more]


def started(arguments: list[str]) -> subprocess.Popen:
    """A command in a session of its own, so that it can be killed with all its processes."""
    return subprocess.Popen(arguments, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def finished(folder: Path) -> int:
    return len(list(folder.glob("cells/*.json")))


def test_killed_and_resumed_on_two_processes_it_is_the_same_table(whole, tmp_path) -> None:
    """Killed as soon as a cell is there, in the middle of the next: an event, so any load will do."""
    folder = tmp_path / "killed"
    process = started(command(folder, "--jobs", "1"))
    while process.poll() is None and finished(folder) == 0:
        time.sleep(0.02)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() in (0, -signal.SIGKILL)
    assert finished(folder) > 0
    final = subprocess.run(
        command(folder, "--jobs", "2", "--resume", "--json"), capture_output=True, text=True, check=True
    )
    table = from_json(Table, final.stdout)
    assert figures(table) == figures(whole)
    assert table == read_table(folder)
    assert (folder / "report.html").exists()
    assert (folder / "table.md").exists()


def workers_of(pid: int) -> set[int]:
    """The worker processes of a process that are running."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words = (folder / "cmdline").read_text()
        except OSError:
            continue
        if parent == pid and "spawn_main" in words:
            found.add(int(folder.name))
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_workers_end_when_the_parent_is_killed(tmp_path) -> None:
    """Their work would take hours: what ends them is the end of the parent."""
    process = started(command(tmp_path / "killed", "--jobs", "2", "--set", "epochs=1000000"))
    while process.poll() is None and len(workers_of(process.pid)) < 2:
        time.sleep(0.02)
    workers = workers_of(process.pid)
    assert len(workers) == 2
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    try:
        patience = time.monotonic() + 120
        while any(map(is_running, workers)) and time.monotonic() < patience:
            time.sleep(0.02)
        assert not any(map(is_running, workers))
    finally:
        for worker in filter(is_running, workers):
            os.kill(worker, signal.SIGKILL)


KILL_ONE = """
import json, os, signal, sys, threading, time
import ray
from ray.cluster_utils import Cluster
from tandemrank._base.config import validated
from tandemrank._base.files import as_json
from tandemrank.experiments import grid
from tandemrank.experiments.config import GridConfig

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
ray.init(address=cluster.address, log_to_driver=False)
assert len([n for n in ray.nodes() if n["Alive"]]) == 2

def is_ours(pid):
    # The nodes are children of this process, their workers children of the nodes.
    for _ in range(2):
        pid = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1]
    return int(pid) == os.getpid()

killed = []
def kill_a_worker():
    # As soon as a job runs on some worker process, end that process.
    while not killed:
        for pid in (p for p in os.listdir("/proc") if p.isdigit()):
            try:
                if open(f"/proc/{pid}/cmdline").read().startswith("ray::run_job") and is_ours(pid):
                    os.kill(int(pid), signal.SIGKILL)
                    killed.append(pid)
                    return
            except OSError:
                continue
        time.sleep(0.02)

threading.Thread(target=kill_a_worker, daemon=True).start()
table = grid.run(validated(GridConfig, json.loads(sys.argv[1])), sys.argv[2], engine="ray")
print(len(killed))
ray.shutdown()
cluster.shutdown()
"""


def test_on_a_ray_cluster_of_two_nodes_with_a_worker_killed(whole, tmp_path) -> None:
    pytest.importorskip("ray", reason="the extra `cluster` is not installed")
    environment = {**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    out = subprocess.run(
        [sys.executable, "-c", KILL_ONE, json.dumps(TINY), str(tmp_path / "ray")],
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert out.returncode == 0, out.stderr[-2000:]
    assert out.stdout.split()[-1] == "1"
    assert figures(read_table(tmp_path / "ray")) == figures(whole)


def test_a_cell_of_a_corrected_command_is_that_of_the_whole_grid(config, whole, tmp_path) -> None:
    """Embeddings of too many dimensions, found out by the workers; then, in the same folder, one cell of the whole grid."""
    right = config.model_copy(
        update={"methods": ("joint",), "candidates": (20,), "impressions": (2000,), "references": False}
    )
    wrong = right.model_copy(update={"experiment": config.experiment.model_copy(update={"rank": 5000})})
    folder, states = tmp_path / "grid", []
    with pytest.raises(ConfigError, match="5000"):
        grid.run(wrong, folder, jobs=1)
    assert (folder / "config.json").exists()
    table = grid.run(right, folder, jobs=1, progress=lambda *state: states.append(state))
    assert (states[0], states[-1]) == ((0, 1), (1, 1))
    assert read_table(folder) == table
    [wanted] = [row for row in whole.rows if (row.method, row.setting) == ("joint", (20, 2000))]
    assert (table.rows[0].ndcg, table.rows[0].utility) == (wanted.ndcg, wanted.utility)
    assert (table.references, (folder / "references.json").exists()) == ((), False)
    assert GridConfig.model_validate_json((folder / "config.json").read_text()) == right
    with pytest.raises(ConfigError, match=r"holds this grid already\. Go on with --resume"):
        grid.run(right, folder)
    with pytest.raises(ConfigError, match="with other switches"):
        grid.run(wrong, folder, resume=True)
    again = grid.run(right, folder, resume=True)
    assert again.rows == table.rows
    assert table.world.seconds > 0  # known where all cells were trained by one call
    assert math.isnan(again.world.seconds)
