"""`learn` on a Ray cluster of two nodes, where a process is killed in every phase: it ends where one process does."""

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
from tandemrank.logs import writing
from tandemrank.offpolicy import exposure
from tandemrank.policies import two_stage
from tandemrank.training.ray_train import check_ready

SWITCHES = {"candidates": 20, "training": {"epochs": 6, "minibatch": 16}}

ON_TWO_NODES = """
import json, os, signal, sys, threading, time
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
import tandemrank as tr
from tandemrank.offpolicy import exposure
from tandemrank.policies import two_stage
from tandemrank.training.checkpoint import history_of
from tandemrank.training.learning import Listener

folder, switches = Path(sys.argv[1]), json.loads(sys.argv[2])
nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
nodes.add_node(num_cpus=1)
os.environ["RAY_ADDRESS"] = nodes.address
exposure.CELLS, two_stage.BATCH = 60 * 40, 40  # batches of forty queries

def processes(name):
    for pid in (p for p in os.listdir("/proc") if p.isdigit()):
        try:
            words = open(f"/proc/{pid}/cmdline").read()
            if words.startswith("ray::") and name in words:
                yield int(pid)
        except OSError:
            continue

def epochs():
    return [len(history_of(path)) for path in (folder / "checkpoints").glob("*.safetensors")]

killed, seen = [], []
def kill_one_of_each_phase():
    # The fit, production's exposures, an epoch after the first, and what the result is worth.
    for name, trains in (("_Member.work", False), ("_exposures", False), ("_Member.work", True), ("_exposure_on", False)):
        while (trains and not any(epochs())) or not (found := sorted(processes(name))):
            time.sleep(0.001)
        os.kill(found[0], signal.SIGKILL)
        killed.append([name, *epochs()])

threading.Thread(target=kill_one_of_each_phase, daemon=True).start()
listener = Listener(epoch=lambda method, state: seen.append(state.last.epoch))
learned = tr.learn(
    folder / "log", tr.LearningConfig.model_validate(switches), methods=["baseline"], engine="ray", listener=listener,
    logging_policy=tr.load(folder / "production"), checkpoints=folder / "checkpoints",
)
learned.policy.save(folder / "pair")
left = sorted(path.name for path in (folder / "checkpoints").iterdir())
value, epochs_ = learned.values["baseline"], len(learned.trained["baseline"].history)
alive = len([node for node in ray.nodes() if node["Alive"]])
result = {
    "killed": killed, "seen": seen, "left": left, "value": [value.value, *value.interval], "epochs": epochs_, "alive": alive,
    "production": learned.production.value, "beliefs": learned.beliefs.constants(),
}
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


def test_on_two_nodes_with_a_process_killed_in_every_phase(folder, monkeypatch) -> None:
    """The fit of the beliefs, training and valuing: all end where one process does."""
    pytest.importorskip("ray", reason="the extra `cluster` is not installed")
    environment = {**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    line = [sys.executable, "-c", ON_TWO_NODES, str(folder), json.dumps(SWITCHES)]
    out = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=1200)
    assert out.returncode == 0, out.stderr[-3000:]
    found = json.loads((folder / "result.json").read_text())
    assert found["alive"] == 2
    assert [name for name, *_ in found["killed"]] == ["_Member.work", "_exposures", "_Member.work", "_exposure_on"]
    assert 1 <= found["killed"][2][1] < 6
    assert found["epochs"] == 6
    assert found["seen"] == sorted(set(found["seen"]))
    assert found["left"] == ["generator-for-the-ranker-K2-20.safetensors"]
    monkeypatch.setattr(exposure, "CELLS", 60 * 40)
    monkeypatch.setattr(two_stage, "BATCH", 40)
    alone = tr.learn(
        folder / "log", tr.LearningConfig.model_validate(SWITCHES), methods=["baseline"],
        logging_policy=tr.load(folder / "production"),
    )  # fmt: skip
    value = alone.values["baseline"]
    for name, constant in alone.beliefs.constants().items():
        is_number = isinstance(constant, float | list)
        assert found["beliefs"][name] == (pytest.approx(constant, rel=1e-5) if is_number else constant), name
    assert found["production"] == alone.production.value
    assert found["value"] == pytest.approx([value.value, *value.interval], rel=1e-3)
    alone.policy.save(folder / "alone")
    ours, theirs = (load_file(folder / name / "weights.safetensors") for name in ("pair", "alone"))
    assert ours.keys() == theirs.keys()
    for name, t in theirs.items():
        if name in ("generator.queries", "generator.items"):
            # Steps have the length that is wanted, however short the gradient: rounding of a short one is seen.
            assert np.corrcoef(ours[name].ravel(), t.ravel())[0, 1] > 0.999, name
        else:
            assert np.allclose(ours[name], t, rtol=1e-5, atol=1e-5), name


def test_what_a_team_cannot_train_is_refused() -> None:
    frame = pl.DataFrame({"query_id": [1], "items": [[1]], "clicks": [[1]]})
    with pytest.raises(ConfigError, match="needs a folder for checkpoints that every node sees"):
        tr.learn(frame, methods=["joint"], engine="ray")
    with pytest.raises(ConfigError, match="--engine takes local or ray; got 'spark'"):
        tr.learn(frame, engine="spark", checkpoints="x")


def test_without_ray_the_extra_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"needs the extra `cluster`: pip install 'tandemrank\[cluster\]'"):
        check_ready(checkpoints="x")
