"""Logs read on a Ray cluster of two nodes: the same bits as here, whatever dies; and the same refusals."""

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from same import assert_same
from tandemrank._base import cluster
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs import reading

ON_TWO_NODES = """
import json, os, pickle, signal, sys, threading, time
from pathlib import Path
import numpy as np
import ray
from ray.cluster_utils import Cluster
from tandemrank.logs import reading
from tandemrank.errors import LogError

read = {}
folder = Path(sys.argv[1])
nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
second = nodes.add_node(num_cpus=1)
ray.init(address=nodes.address, log_to_driver=False)
assert len([node for node in ray.nodes() if node["Alive"]]) == 2

killed = []
def kill_a_worker():
    # As soon as a file is read by some worker process, end that process.
    while not killed:
        for pid in (p for p in os.listdir("/proc") if p.isdigit()):
            try:
                name = open(f"/proc/{pid}/cmdline").read()
            except OSError:
                continue
            if name.startswith("ray::_part"):
                os.kill(int(pid), signal.SIGKILL)
                killed.append(pid)
                return
        time.sleep(0.001)

threading.Thread(target=kill_a_worker, daemon=True).start()
read["whole"] = reading.read(sorted(folder.glob("log/*"), reverse=True), engine="ray")

lost, push = [], reading.push
def lose_a_node(*file):
    # The first file is there, so the tasks of the others are under way or done; what the node held is made again.
    if not lost:
        lost.append(1)
        nodes.remove_node(second, allow_graceful=False)
    push(*file)
reading.push = lose_a_node
parts = reading.read_parts(folder / "log", (0.3,), times=3, lists=70_000, seed=7, engine="ray")
assert not parts.by_time
first = parts.first
np.savez(folder / "first.npz", query=first.query, items=first.items, clicks=first.clicks)
for name, part in zip(("used", "apart"), parts.train + parts.held_out, strict=True):
    read[name] = part

dated = reading.read_parts(folder / "dated", (0.2, 0.1), times=3, lists=70, seed=7, engine="ray")
assert dated.by_time
for number, part in enumerate(dated.train + dated.held_out):
    read[f"dated-{number}"] = part

read["words"] = reading.read(folder / "texts", engine="ray")
refused = {}
for name in ("bad", "mixed", "propensities", "empty", "linked", "ids"):
    try:
        reading.read(folder / name, engine="ray")
    except LogError as error:
        refused[name] = str(error)
result = {"killed": len(killed), "lost": len(lost), "refused": refused}
(folder / "read.pickle").write_bytes(pickle.dumps(read))
(folder / "result.json").write_text(json.dumps(result))
ray.shutdown()
nodes.shutdown()
"""


def impressions(N: int, seed: int) -> pl.DataFrame:
    """A wide log; which ids it has depends on the seed."""
    rng = np.random.default_rng(seed)
    items = 1000 * seed + rng.integers(1, 40, size=(N, 5)).cumsum(axis=1)
    columns = {"items": items, "clicks": rng.integers(0, 2, size=(N, 5))}
    lists = [pl.Series(name, values).arr.to_list() for name, values in columns.items()]
    return pl.DataFrame([pl.Series("query_id", rng.integers(100 * seed, 100 * seed + 300, N)), *lists])


def write_log(folder: Path) -> None:
    """Files of every form, an empty one between them."""
    folder.mkdir()
    for number, N in enumerate([60_000, 60_000, 0, 60_000]):
        impressions(N, number).write_parquet(folder / f"{number}.parquet")
    impressions(500, 4).write_ndjson(folder / "4.jsonl")
    long = impressions(500, 5).with_row_index("impression_id").explode("items", "clicks")
    long = long.rename({"items": "item_id", "clicks": "click"})
    long.with_columns(position=pl.int_range(pl.len()) % 5 + 1).write_csv(folder / "5.csv")


def write_texts(folder: Path) -> None:
    """Ids that are texts; the lists of the first file are empty and say nothing of them."""
    folder.mkdir()
    (folder / "1.jsonl").write_text('{"query_id": "a", "items": [], "clicks": []}\n')
    (folder / "2.jsonl").write_text('{"query_id": "b", "items": ["y", "x"], "clicks": [1, 0]}\n')


def write_dated(folder: Path) -> None:
    """Files of which the first is the latest and the last has no times; days, so that many times are equal."""
    folder.mkdir()
    for number, day in enumerate([20, 10]):
        days = (pl.int_range(300) % 5 + day) * 86_400
        impressions(300, number).with_columns(timestamp=days).write_parquet(folder / f"{number}.parquet")
    impressions(50, 2).write_ndjson(folder / "2.jsonl")


def write_broken_logs(folder: Path) -> None:
    """Logs of two files, the second of which is wrong, alone or beside the first; and one of empty files."""
    right = impressions(50, 0)
    seconds = {
        "bad": right.with_columns(clicks=pl.col("clicks").list.eval(pl.element() + 1)),
        "mixed": right.with_columns(query_id=pl.col("query_id").cast(pl.String)),
        "propensities": right.with_columns(propensities=pl.col("clicks").list.eval(pl.element() * 0 + 0.5)),
        "empty": right.clear(),
    }
    for name, second in seconds.items():
        (folder / name).mkdir()
        (right.clear() if name == "empty" else right).write_parquet(folder / name / "1.parquet")
        second.write_parquet(folder / name / "2.parquet")
    (folder / "linked").mkdir()
    right.write_parquet(folder / "linked" / "1.parquet")
    (folder / "linked" / "2.parquet").symlink_to(folder / "linked" / "1.parquet")
    (folder / "ids").mkdir()
    for number in (0, 1):  # impressions 0 to 49, and 10 to 59
        right.with_row_index("impression_id", 10 * number).write_parquet(folder / "ids" / f"{number}.parquet")


def test_on_two_nodes_with_a_worker_and_a_node_lost(tmp_path) -> None:
    pytest.importorskip("ray", reason="the extra `cluster` is not installed")
    write_log(tmp_path / "log")
    write_texts(tmp_path / "texts")
    write_dated(tmp_path / "dated")
    write_broken_logs(tmp_path)
    environment = {**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    out = subprocess.run(
        [sys.executable, "-c", ON_TWO_NODES, str(tmp_path)],
        capture_output=True, text=True, timeout=300, env=environment,
    )  # fmt: skip
    assert out.returncode == 0, out.stderr[-2000:]
    result = json.loads((tmp_path / "result.json").read_text())
    read = pickle.loads((tmp_path / "read.pickle").read_bytes())
    assert (result["killed"], result["lost"]) == (1, 1)
    assert_same(read["whole"], reading.read(tmp_path / "log"))
    assert_same(read["words"], reading.read(tmp_path / "texts"))
    parts = reading.read_parts(tmp_path / "log", (0.3,), lists=70_000, seed=7)
    lists = parts.first
    for name, part in zip(("used", "apart"), parts.train + parts.held_out, strict=True):
        assert_same(read[name], part)
    with np.load(tmp_path / "first.npz") as first:
        assert all(np.array_equal(first[name], getattr(lists, name)) for name in ("query", "items", "clicks"))
    dated = reading.read_parts(tmp_path / "dated", (0.2, 0.1), times=3, lists=70, seed=7)
    for number, part in enumerate(dated.train + dated.held_out):
        assert_same(read[f"dated-{number}"], part)
    for name in ("bad", "propensities", "empty", "linked"):
        with pytest.raises(LogError) as here:
            reading.read(tmp_path / name)
        assert result["refused"][name] == str(here.value)
    assert re.search(
        r"ids/1.parquet, column impression_id: expected each impression once; this one was there before",
        result["refused"]["ids"],
    )
    assert (
        "2.parquet, column query_id: expected ids that are Int64, as in the parts before; got String"
        in (result["refused"]["mixed"])
    )


def test_what_ray_cannot_read_is_refused(monkeypatch) -> None:
    with pytest.raises(ConfigError, match="expected a log of files; got a frame"):
        reading.read(impressions(3, 0), engine="ray")
    with pytest.raises(ConfigError, match="--engine takes local or ray; got 'other'"):
        reading.read(impressions(3, 0), engine="other")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"needs the extra `cluster`: pip install 'tandemrank\[cluster\]'"):
        cluster.connect()
