"""Grids: the same table whatever the order, the engine or the interruptions."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tandemrank._base.config import validated
from tandemrank._base.files import claim
from tandemrank.errors import ConfigError
from tandemrank.experiments import grid
from tandemrank.experiments.cells import GridConfig

TINY = {
    "experiment": {"queries": 60, "items": 40, "rank": 5, "learning": {"shown": 5, "training": {"epochs": 4}}},
    "candidates": [10, 20],
    "impressions": [2000, 4000],
    "runs": 1,
}


def figures(table: dict) -> list:
    """All that must not depend on how the table was made."""
    rows = [{k: v for k, v in row.items() if "seconds" not in k} for row in table["rows"]]
    curves = [[(e["held_out"], e["watched"]) for e in curve["history"]] for curve in table["curves"]]
    return [rows, curves, table["references"], table["differences"]]


@pytest.fixture(scope="module")
def config() -> GridConfig:
    return validated(GridConfig, TINY)


@pytest.fixture(scope="module")
def whole(config, tmp_path_factory) -> dict:
    return grid.run(config, tmp_path_factory.mktemp("grid") / "whole", jobs=1)


def test_the_table_has_a_row_for_every_cell(whole) -> None:
    assert {(r["method"], r["K2"], r["N"]) for r in whole["rows"]} == {
        (m, K2, N) for m in ("baseline", "independent", "joint") for K2 in (10, 20) for N in (2000, 4000)
    }
    for name in (
        "ndcg_mean",
        "ndcg_expected_mean",
        "recall_at_K2_mean",
        "utility_mean",
        "seconds_mean",
        "runs",
        "ndcg_std",
    ):
        assert name in whole["rows"][0]
    assert [r["name"] for r in whole["references"]] == ["random", "popularity", "production", "full information"]
    assert {(d["against"], d["kind"]) for d in whole["differences"]} == {
        ("baseline", "users"),
        ("independent", "users"),
    }
    assert whole["switches"]["shown"] == 5
    assert set(whole["switches"]) <= set(whole["switch_help"])


def test_two_processes_give_the_same_table(config, whole, tmp_path) -> None:
    states: list[grid.State] = []
    table = grid.run(config, tmp_path / "two", jobs=2, progress=states.append)
    assert figures(table) == figures(whole)
    assert (states[-1].done, states[-1].total) == (12, 12)


def test_a_finished_grid_needs_resume_and_another_grid_another_folder(config, whole, tmp_path) -> None:
    folder = tmp_path / "grid"
    claim(folder, grid.GRID)
    (folder / "config.json").write_text(config.model_dump_json(indent=2) + "\n")
    with pytest.raises(ConfigError, match=r"holds this grid already\. Go on with --resume"):
        grid.run(config, folder)
    with pytest.raises(ConfigError, match="other switches"):
        grid.run(config.model_copy(update={"seed": 5}), folder, resume=True)


def test_a_cell_does_not_depend_on_the_others(config, whole, tmp_path) -> None:
    """One method at one K2 in a grid of its own: the same figures."""
    part = config.model_copy(update={"methods": ("joint",), "candidates": (20,), "impressions": (2000,)})
    table = grid.run(part, tmp_path / "part", jobs=1)
    wanted = next(r for r in whole["rows"] if (r["method"], r["K2"], r["N"]) == ("joint", 20, 2000))
    assert table["rows"][0]["ndcg_mean"] == wanted["ndcg_mean"]
    assert table["rows"][0]["utility_mean"] == wanted["utility_mean"]


def command(folder) -> list[str]:
    sizes = ["--set", "queries=60", "--set", "items=40", "--set", "rank=5", "--set", "learning.shown=5"]
    grid_of = ["--candidates", "10,20", "--impressions", "2000,4000", "--runs", "1", "--jobs", "2"]
    run = [sys.executable, "-m", "tandemrank", "table", "--out", str(folder), "--set", "learning.training.epochs=4"]
    return [*run, *sizes, *grid_of]


def test_without_references_there_are_none(config, tmp_path) -> None:
    one = config.model_copy(update={"references": False, "methods": ("joint",), "runs": 1, "impressions": (2000,)})
    table = grid.run(one, tmp_path / "one", jobs=1)
    assert table["references"] == []
    assert not (tmp_path / "one" / "references.json").exists()
    again = grid.run(one, tmp_path / "one", resume=True)
    assert again["world"]["seconds"] > table["world"]["seconds"] > 0  # the time of all parts
    assert [row["method"] for row in table["rows"]] == ["joint", "joint"]


def test_killed_several_times_and_resumed_it_is_the_same_table(whole, tmp_path) -> None:
    folder = tmp_path / "killed"
    done: list[int] = []
    for attempt in range(4):
        arguments = command(folder) + (["--resume"] if attempt else [])
        process = subprocess.Popen(
            arguments, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline, before = time.monotonic() + 60, len(list(folder.glob("cells/[!.]*")))
        # Killed as soon as one more cell is there: in the middle of the next.
        while (
            process.poll() is None and time.monotonic() < deadline and len(list(folder.glob("cells/[!.]*"))) <= before
        ):
            time.sleep(0.02)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        done.append(len(list(folder.glob("cells/[!.]*"))))
    assert done == sorted(done)
    assert done[0] >= 1
    final = subprocess.run([*command(folder), "--resume", "--json"], capture_output=True, text=True, check=True)
    table = json.loads(final.stdout)
    assert figures(table) == figures(json.loads(json.dumps(whole)))
    assert table == json.loads((folder / "table.json").read_text())
    assert (folder / "report.html").exists()
    assert (folder / "table.md").exists()


KILL_ONE = """
import json, os, signal, sys, threading, time
import ray
from ray.cluster_utils import Cluster
from tandemrank.experiments import grid
from tandemrank._base.config import validated
from tandemrank.experiments.cells import GridConfig

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
ray.init(address=cluster.address, log_to_driver=False)
assert len([n for n in ray.nodes() if n["Alive"]]) == 2

killed = []
def kill_a_worker():
    # As soon as a job runs on some worker process, end that process.
    while not killed:
        for pid in (p for p in os.listdir("/proc") if p.isdigit()):
            try:
                name = open(f"/proc/{pid}/cmdline").read()
            except OSError:
                continue
            if name.startswith("ray::run_job"):
                time.sleep(1.0)
                os.kill(int(pid), signal.SIGKILL)
                killed.append(pid)
                return
        time.sleep(0.02)

threading.Thread(target=kill_a_worker, daemon=True).start()
table = grid.run(validated(GridConfig, json.loads(sys.argv[1])), sys.argv[2], engine="ray")
print(json.dumps({"killed": len(killed), "table": table}))
ray.shutdown()
cluster.shutdown()
"""


def test_on_a_ray_cluster_of_two_nodes_with_a_worker_killed(whole, tmp_path) -> None:
    pytest.importorskip("ray", reason="the extra `cluster` is not installed")
    environment = {**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    out = subprocess.run(
        [sys.executable, "-c", KILL_ONE, json.dumps(TINY), str(tmp_path / "ray")],
        capture_output=True, text=True, timeout=300, env=environment,
    )  # fmt: skip
    assert out.returncode == 0, out.stderr[-2000:]
    result = json.loads(out.stdout.splitlines()[-1])
    assert result["killed"] == 1
    assert figures(result["table"]) == figures(json.loads(json.dumps(whole)))
