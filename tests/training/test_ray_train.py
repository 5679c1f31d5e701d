"""`learn` on a Ray cluster of two nodes, a worker of which is killed in mid-epoch: it ends where one process does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors.torch import load_file

import tandemrank as tr
from tandemrank.errors import ConfigError
from tandemrank.experiments.world import build_world, impressions, load_task
from tandemrank.logs import reading, writing
from tandemrank.training import learning
from tandemrank.training.ray_train import check_ready

# One phase: Ray is started once for each.
SWITCHES = {
    "objective": "ips",
    "candidates": 20,
    "training": {"schedule": "paper", "epochs": 12, "minibatch": 16},
}

ON_TWO_NODES = """
import json, os, signal, sys, threading, time
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
import tandemrank as tr
from tandemrank.training.checkpoint import history_of
from tandemrank.training.learning import Listener
from tandemrank.training.start import Start

folder, switches = Path(sys.argv[1]), json.loads(sys.argv[2])
nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
nodes.add_node(num_cpus=1)
os.environ["RAY_ADDRESS"] = nodes.address

def workers():
    for pid in (p for p in os.listdir("/proc") if p.isdigit()):
        try:
            name = open(f"/proc/{pid}/cmdline").read()
            if name.startswith("ray::") and "RayTrainWorker" in name:
                yield int(pid)
        except OSError:
            continue

killed, seen = [], []
def kill_a_worker():
    # As soon as there is an epoch to go back to, and so in the middle of the next one.
    while not killed:
        done = [len(history_of(path)) for path in (folder / "checkpoints").glob("*.safetensors")]
        if done and done[0]:
            os.kill(min(workers()), signal.SIGKILL)
            killed.append(done[0])
        time.sleep(0.001)

threading.Thread(target=kill_a_worker, daemon=True).start()
production = tr.load(folder / "production")
learned = tr.learn(
    folder / "log", tr.LearningConfig.model_validate(switches), methods=["joint"], start=Start(policy=production),
    logging_policy=production, checkpoints=folder / "checkpoints", engine="ray",
    listener=Listener(epoch=lambda method, state: seen.append(state.last.epoch)),
)
learned.policy.save(folder / "pair")
left = sorted(path.name for path in (folder / "checkpoints").iterdir())
value, epochs = learned.values["joint"].value, len(learned.trained["joint"].history)
alive = len([node for node in ray.nodes() if node["Alive"]])
result = {"killed": killed, "seen": seen, "left": left, "value": value, "epochs": epochs, "alive": alive}
(folder / "result.json").write_text(json.dumps(result))
ray.shutdown()
nodes.shutdown()
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    """A log of a production policy, and the policy."""
    config = tr.ExperimentConfig(queries=120, items=60, rank=6, learning=tr.LearningConfig(list_length=5))
    built = build_world(load_task(config), config, seed=0)
    writing.write(impressions(built, 4_000, 0), tmp_path / "log", built.task.vocabulary)
    built.production.save(tmp_path / "production")
    return tmp_path


def test_on_two_nodes_with_a_worker_killed_in_the_middle_of_an_epoch(folder) -> None:
    pytest.importorskip("pyarrow", reason="the extra `cluster` is not installed")
    pytest.importorskip("ray", reason="the extra `cluster` is not installed")
    quickly = {
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2"
    }  # it looks every two seconds otherwise who has died or is ready
    environment = {**os.environ, **quickly, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    line = [sys.executable, "-c", ON_TWO_NODES, str(folder), json.dumps(SWITCHES)]
    out = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=1200)
    assert out.returncode == 0, out.stderr[-3000:]
    found = json.loads((folder / "result.json").read_text())
    assert found["alive"] == 2
    assert 1 <= found["killed"][0] < 12
    assert found["epochs"] == 12
    assert found["seen"] == sorted(set(found["seen"]))
    assert found["left"] == ["both-K2-20.safetensors"]
    live = tr.load(folder / "production")
    alone = tr.learn(
        folder / "log",
        tr.LearningConfig.model_validate(SWITCHES),
        methods=["joint"],
        start=tr.Start(policy=live),
        logging_policy=live,
    )
    assert found["value"] == pytest.approx(alone.values["joint"].value, rel=1e-3)
    alone.policy.save(folder / "alone")
    ours, theirs = (load_file(folder / name / "weights.safetensors") for name in ("pair", "alone"))
    assert ours.keys() == theirs.keys()
    for name, t in theirs.items():
        assert np.allclose(ours[name], t, rtol=1e-3, atol=1e-3), name


def test_where_nothing_is_trained_it_says_so(folder, monkeypatch) -> None:
    monkeypatch.setattr(learning, "check_ready", lambda **_: None)
    monkeypatch.setattr(reading, "_on_ray", reading._here)
    said: list[str] = []
    hear = learning.Listener(note=said.append)
    tr.learn(folder / "log", methods=["beliefs"], engine="ray", listener=hear)
    assert "nothing is trained, so the engine ray shares out the reading of the log alone." in said
    said.clear()
    tr.learn(folder / "log", methods=["beliefs"], listener=hear)
    assert not any("engine ray" in words for words in said)


def test_what_a_team_cannot_train_is_refused() -> None:
    frame = pl.DataFrame({"query_id": [1], "items": [[1]], "clicks": [[1]]})
    with pytest.raises(ConfigError, match="needs a folder for checkpoints that every node sees"):
        tr.learn(frame, methods=["joint"], engine="ray")
    with pytest.raises(ConfigError, match="--engine takes local or ray; got 'spark'"):
        tr.learn(frame, engine="spark", checkpoints="x")


@pytest.mark.parametrize("missing", ["ray", "ray.train"])
def test_without_ray_train_the_extra_is_named(monkeypatch, missing) -> None:
    if missing == "ray.train":
        pytest.importorskip("ray", reason="the extra `cluster` is not installed")
        monkeypatch.setattr("tandemrank.training.ray_train.connect", lambda: None)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=r"needs the extra `cluster`: pip install 'tandemrank\[cluster\]'"):
        check_ready(checkpoints="x")
