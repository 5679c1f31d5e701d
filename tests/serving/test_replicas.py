"""Replicas on a Ray cluster of two nodes: one is killed under load; every question is answered, and nothing is lost."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import polars as pl
import pytest

from served import TOKEN, local, policy, saved
from tandemrank.errors import JobError
from tandemrank.logs import reading
from tandemrank.serving import replay, run
from tandemrank.serving.client import Client
from tandemrank.serving.run import Address

UNDER_LOAD = """
import json, os, signal, socket, sys, threading
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from tandemrank.cli.serving import serve
from tandemrank.errors import JobError
from tandemrank.serving.client import Client

folder = Path(sys.argv[1])
nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
nodes.add_node(num_cpus=1)
os.environ["RAY_ADDRESS"] = nodes.address
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
serve(folder / "policies" / "policy-0", log=folder / "log", port=port, engine="ray", replicas=2)
alive = len([node for node in ray.nodes() if node["Alive"]])

answers, clicks, failed, done = [], [], [], threading.Event()

def use(number):
    client = Client(f"http://127.0.0.1:{port}")
    while not done.is_set():
        try:
            found = client.rank(10 + len(answers) % 6)
            answers.append(found["impression_id"])
            if client.click(found["impression_id"], found["items"][0])["recorded"]:
                clicks.append(found["impression_id"])
        except JobError as error:
            failed.append(str(error))
        if killed and len(answers) > killed[1] + 250:
            done.set()
    client.close()

def replicas():
    for pid in (p for p in os.listdir("/proc") if p.isdigit()):
        try:
            if open(f"/proc/{pid}/cmdline").read().startswith("ray::ServeReplica:tandemrank"):
                yield int(pid)
        except OSError:
            continue

killed = []
users = [threading.Thread(target=use, args=(n,)) for n in range(4)]
for user in users:
    user.start()
while len(answers) < 250:
    done.wait(0.01)
victim = min(replicas())
os.kill(victim, signal.SIGKILL)
killed += [victim, len(answers)]
for user in users:
    user.join()
try:
    Client(f"http://127.0.0.1:{port}", token="x" * 16).call("POST", "/rollback", {})
except JobError as error:
    refused = str(error)
result = {"answers": answers, "clicks": clicks, "failed": failed, "alive": alive, "refused": refused}
(folder / "result.json").write_text(json.dumps(result))
from ray import serve as library
library.shutdown()
ray.shutdown()
nodes.shutdown()
"""


def test_on_two_nodes_with_a_replica_killed_under_load(tmp_path) -> None:
    pytest.importorskip("ray.serve", reason="the extra `cluster` is not installed")
    from tandemrank.cli.serving import seal

    saved(tmp_path / "policies", 0)
    # Where others want the processor, Ray takes a proxy that is slow for a dead one, and its workers wait for everybody else.
    patient = {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60", "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60"}
    patient |= {"RAY_worker_niceness": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    environment = {**os.environ, **patient, "TANDEMRANK_TOKEN": "x" * 16}
    line = [sys.executable, "-c", UNDER_LOAD, str(tmp_path)]
    out = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=300)
    assert out.returncode == 0, out.stderr[-3000:]
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["alive"] == 2
    assert found["failed"] == []
    assert "several replicas answer here" in found["refused"]
    log = tmp_path / "log"
    names = {path.name.rpartition("-")[0] for path in log.glob("journal-*.bin")}
    assert len(names) >= 2
    seal(log, tmp_path / "policies", everything=True, as_json=True)
    assert not list(log.glob("*.bin"))
    frame = pl.read_parquet(log / "*.parquet")
    kept = frame["impression_key"].to_list()
    assert len(kept) == len(set(kept))
    assert set(found["answers"]) <= set(kept)
    clicked = frame.filter(pl.col("clicks").list.first() == 1)["impression_key"].to_list()
    assert set(found["clicks"]) <= set(clicked)
    assert len(kept) == reading.read(log / "*.parquet").N
    assert replay.replay([log], [policy(0)]).equal == len(kept)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_replicas_answer_when_every_proxy_knows_the_way(host) -> None:
    with HTTPServer(("127.0.0.1", 0), NotThereYet) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        at = Address(host, server.server_port, TOKEN)
        NotThereYet.left = 0
        both = {"a": "HEALTHY", "b": "HEALTHY"}
        assert not run.proxies_answer({}, at)
        assert not run.proxies_answer(both | {"b": "STARTING"}, at)
        assert run.proxies_answer(both, at)
        NotThereYet.left = 1
        assert not run.proxies_answer(both, at)
        assert run.proxies_answer(both, at)
        server.shutdown()
    assert run.proxies_answer(both, at)  # out of reach: Ray's word


def test_what_would_reach_one_of_several_is_refused_to_those_who_have_the_token(tmp_path) -> None:
    with local(saved(tmp_path / "policies", 0, 1), log=tmp_path / "log", alone=False) as server:
        for path, body in (("/policies", {"folder": "policy-1"}), ("/split", {"policy": "x"}), ("/rollback", {})):
            assert server.post(path, body).status_code == 401
            refused = server.post(path, body, admin=True)
            assert refused.status_code == 409
            assert "--engine ray" in refused.json()["error"]
        assert server.post("/rank", {"query_id": 11}).status_code == 200
        assert len(server.get("/status").json()["policies"]) == 1


class Dying(BaseHTTPRequestHandler):
    """Fails as a proxy does whose replica has died, every other time, in words that are no JSON."""

    asked: list[str]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append(self.path)
        status, words = (200, b"{}") if self.path != "/split" and len(self.asked) % 2 == 0 else (500, b"it died")
        self.send_response(status)
        self.send_header("Content-Length", str(len(words)))
        self.end_headers()
        self.wfile.write(words)

    def log_message(self, *args: object) -> None:
        """Nothing."""


class NotThereYet(BaseHTTPRequestHandler):
    """Answers as Ray's proxy does that has not heard of any application yet, so many times."""

    left = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def do_GET(self) -> None:
        NotThereYet.left, there = NotThereYet.left - 1, NotThereYet.left <= 0
        words = (
            b"{}" if there else f"Path '{self.path}' not found. Ping http://.../-/routes for available routes.".encode()
        )
        self.send_response(200 if there else 404)
        self.send_header("Content-Length", str(len(words)))
        self.end_headers()
        self.wfile.write(words)

    def log_message(self, *args: object) -> None:
        """Nothing."""


def test_the_client_waits_for_a_proxy_that_does_not_know_the_way_yet(monkeypatch) -> None:
    with HTTPServer(("127.0.0.1", 0), NotThereYet) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        client = Client(f"http://127.0.0.1:{server.server_port}", token=TOKEN)
        NotThereYet.left = 3
        assert client.rank(11) == {}
        NotThereYet.left = 2
        assert client.click("x", 1) == {}
        NotThereYet.left = 1
        with pytest.raises(JobError, match="404, Path '/split' not found"):  # not to be done twice, nor asked twice
            client.call("POST", "/split", {"policy": "x"})
        monkeypatch.setattr("tandemrank.serving.client.PATIENCE", 0.1)
        NotThereYet.left = 1000
        with pytest.raises(JobError, match="404, Path '/rank' not found"):
            client.rank(11)
        assert NotThereYet.left > 990
        client.close()
        server.shutdown()


def test_the_client_asks_again_where_that_does_no_harm() -> None:
    Dying.asked = []
    with HTTPServer(("127.0.0.1", 0), Dying) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        client = Client(f"http://127.0.0.1:{server.server_port}", token=TOKEN)
        assert client.rank(11) == {}
        assert client.feedback("x", []) == {}
        with pytest.raises(JobError, match="500, it died"):
            client.call("POST", "/split", {"policy": "x"})
        assert Dying.asked == ["/rank"] * 2 + ["/feedback"] * 2 + ["/split"]
        client.close()
        server.shutdown()
