"""The HTTP interface: lists and batches, feedback in any order, health, metrics, policies that come and go, refusals."""

import gc
import json
import threading
import weakref
from http.server import BaseHTTPRequestHandler, HTTPServer

import polars as pl
import pytest

from served import TOKEN, Clock, D, K, local, policy, process, saved
from tandemrank.errors import JobError
from tandemrank.logs import reading, validation
from tandemrank.serving import replay
from tandemrank.serving.client import Client
from tandemrank.serving.live_policy import digest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("policies"), 0, 1)


def test_a_list_a_batch_and_their_clicks(folder, tmp_path) -> None:
    clock = Clock()
    with local(folder, log=tmp_path / "log", clock=clock) as server:
        one = server.post("/rank", {"query_id": 11}).json()
        assert one.keys() == {"impression_id", "items", "policy", "source", "logged", "unknown"}
        assert (len(one["items"]), one["policy"], one["source"], one["logged"]) == (K, digest(policy()), "policy", True)
        asked = [{"query_id": 10, "K": 1}, {"query_id": 999}, {}, {"query_id": "12", "items": ["i3", "i4", "nothing"]}]
        answers = server.post("/rank", {"requests": asked}).json()["answers"]
        assert [len(a["items"]) for a in answers] == [1, K, K, 2]
        assert [a["source"] for a in answers] == ["policy", "popular", "popular", "policy"]
        assert answers[3]["unknown"] == ["nothing"]
        assert "query ids" in server.post("/rank", {"query_id": "requests"}).json()["error"]  # one question, no batch
        event = {"impression_id": one["impression_id"], "events": [{"item": one["items"][0]}]}
        assert server.post("/feedback", event).json() == {
            "recorded": True, "counted": 1, "repeated": 0, "late": 0, "unmatched": 0, "unknown": 0, "other": 0,
        }  # fmt: skip
        assert server.post("/feedback", event).json()["repeated"] == 1
        late = {"item": one["items"][1], "timestamp": clock.now + 10_000}
        other = [late, {"item": "i99"}, {"item": one["items"][0], "type": "view", "value": 2.5}]
        found = server.post("/feedback", {"impression_id": one["impression_id"], "events": other}).json()
        assert (found["late"], found["unmatched"], found["counted"], found["other"]) == (1, 1, 0, 1)
        early = {"impression_id": "not-yet", "events": [{"item": "i1"}]}
        assert server.post("/feedback", early).json()["unknown"] == 1
        clock.now += 10_000
        [sealed] = server.context.service.seal()
        assert (sealed.impressions, sealed.clicks, sealed.late) == (5, 1, 1)
    assert validation.validate(tmp_path / "log").fit
    assert reading.read(tmp_path / "log").N == 5
    assert replay.replay([tmp_path / "log"], [policy()]).equal == 5


def test_health_and_readiness_and_metrics(folder, tmp_path) -> None:
    with local(folder, log=tmp_path) as server:
        assert server.get("/healthz").json() == {"status": "alive", "log": "ok"}
        assert server.get("/readyz").json() == {"status": "ready"}
        server.context.metrics.ready = False
        assert server.get("/readyz").status_code == 503
        assert server.post("/rank", {"query_id": 11}).status_code == 503
        server.context.metrics.ready = True
        server.post("/rank", {"query_id": 11, "unit": "someone-in-particular"})
        text = server.get("/metrics").text
        assert f'tandemrank_impressions_total{{policy="{digest(policy())}"}} 1.0' in text
        assert "tandemrank_ready 1.0" in text
        assert "someone-in-particular" not in text


def test_a_full_disk_is_counted_and_answers_go_on(folder, tmp_path, monkeypatch) -> None:
    with local(folder, log=tmp_path) as server:
        from tandemrank.errors import OutputError

        def full(*payloads: bytes) -> None:
            raise OutputError("No space left on device")

        monkeypatch.setattr(server.context.service.recorder._journal, "append", full)
        found = server.post("/rank", {"query_id": 11}).json()
        assert len(found["items"]) == K
        assert not found["logged"]
        assert "tandemrank_unlogged_total 1.0" in server.get("/metrics").text
        event = {"impression_id": found["impression_id"], "events": [{"item": found["items"][0]}]}
        assert not server.post("/feedback", event).json()["recorded"]


def test_a_policy_is_loaded_gets_a_share_is_promoted_and_rolled_back(folder, tmp_path) -> None:
    with local(folder, log=tmp_path) as server:
        loaded = server.post("/policies", {"folder": "policy-1"}, admin=True).json()
        assert (loaded["policy"], loaded["items"], loaded["share"]) == (digest(policy(1)), D, 0)
        nothing = server.post("/rollback", admin=True)
        assert nothing.status_code == 422
        split = server.post("/split", {"policy": loaded["policy"], "share": 0.25}, admin=True).json()
        assert split["mode"] == "split"
        assert [arm["share"] for arm in split["arms"]] == [0.75, 0.25]
        seen = [server.post("/rank", {"query_id": 11}).json()["policy"] for _ in range(60)]
        assert set(seen) == {digest(policy(0)), digest(policy(1))}
        stuck = {server.post("/rank", {"query_id": 11, "unit": "u"}).json()["policy"] for _ in range(20)}
        assert len(stuck) == 1
        back = server.post("/rollback", admin=True).json()
        assert [arm["policy"] for arm in back["arms"]] == [digest(policy(0))]
        again = server.post("/split", {"policy": loaded["policy"], "share": 0.5}, admin=True)
        assert "Load it first" in again.json()["error"]
        server.post("/policies", {"folder": "policy-1"}, admin=True)
        server.post("/split", {"policy": loaded["policy"], "share": 0.5}, admin=True)
        all_of_it = server.post("/split", {"policy": loaded["policy"], "share": 1.0}, admin=True).json()
        assert [(arm["policy"], arm["folder"], arm["share"]) for arm in all_of_it["arms"]] == [
            (digest(policy(1)), "policy-1", 1.0)
        ]
        assert server.post("/rollback", admin=True).json()["arms"][0]["policy"] == digest(policy(0))
        status = server.get("/status").json()
        assert next(c["words"].split(" (")[0] for c in status["changes"]) == "policy-0"
        assert sum("rolled back" in c["words"] for c in status["changes"]) == 2
        assert 'tandemrank_rollbacks_total{by="hand"} 2.0' in server.get("/metrics").text
        server.context.service.seal(everything=True)
    assert replay.replay([tmp_path], [policy(0), policy(1)]).equal == 80


def test_policies_that_no_longer_answer_are_let_go_but_for_what_a_rollback_needs(tmp_path) -> None:
    folder, clock = saved(tmp_path / "policies", 0, 1, 2), Clock()
    with local(folder, log=tmp_path / "log", clock=clock) as server:
        service = server.context.service
        for number in (1, 2):
            new = server.post("/policies", {"folder": f"policy-{number}"}, admin=True).json()["policy"]
            server.post("/split", {"policy": new, "share": 0.5}, admin=True)
            server.post("/rank", {"query_id": 11})
            server.post("/split", {"policy": new, "share": 1.0}, admin=True)
        first, second, third = (digest(policy(n)) for n in range(3))
        gone = weakref.ref(service.recorder.propensities._known[first])
        assert set(service.loaded) == {second, third}  # the second is the one before
        assert gone() is not None  # its impressions are not sealed yet
        service.seal(everything=True)
        gc.collect()
        assert gone() is None
        assert server.post("/rollback", admin=True).json()["arms"][0]["policy"] == second
        assert set(service.loaded) == {second}
        assert server.post("/rank", {"query_id": 11}).json()["policy"] == second


def test_while_one_change_is_under_way_another_is_refused_and_answers_go_on(folder, tmp_path) -> None:
    with local(folder, log=tmp_path) as server, server.context.service._one_change():
        for path, body in (
            ("/policies", {"folder": "policy-1"}),
            ("/split", {"policy": "x", "share": 0.5}),
            ("/rollback", {}),
        ):
            assert server.post(path, body, admin=True).status_code == 409
        assert server.post("/rank", {"query_id": 11}).status_code == 200


def test_what_fails_to_load_leaves_the_old_policy(folder, tmp_path) -> None:
    policy(3, K=2).save(tmp_path / "policies" / "short")
    damaged = policy(4).save(tmp_path / "policies" / "damaged")
    (damaged / "config.json").write_text("{")
    saved(tmp_path / "policies", 0)
    with local(tmp_path / "policies", log=tmp_path / "log") as server:
        for name in ("short", "damaged", "nowhere"):
            refused = server.post("/policies", {"folder": name}, admin=True)
            assert refused.status_code == 422, name
            assert "Traceback" not in refused.text
        assert server.post("/split", {"policy": "0" * 16, "share": 0.5}, admin=True).status_code == 422
        assert server.post("/rank", {"query_id": 11}).json()["policy"] == digest(policy(0))


def test_the_command_serves_and_survives_kill_9_and_the_log_is_sealed_and_replayed(tmp_path, capsys) -> None:
    from tandemrank.cli.serving import replay as replay_command
    from tandemrank.cli.serving import seal

    saved(tmp_path / "policies", 0)
    log = tmp_path / "log"
    with process(tmp_path / "policies", "--log", str(log), "--fsync-every-request") as (url, running):
        client = Client(url, token=TOKEN)
        answers = [client.rank(11), *client.rank_all([{"query_id": 12}, {"query_id": 13}])]
        assert client.click(answers[0]["impression_id"], answers[0]["items"][0])["counted"] == 1
        with pytest.raises(JobError, match="422"):
            client.rank("nobody")
        running.kill()
        running.wait(30)
        with pytest.raises(JobError, match="does not answer"):
            client.rank(11)
        client.close()
    seal(log, tmp_path / "policies", everything=True, as_json=True)
    [segment] = json.loads(capsys.readouterr().out)["segments"]
    assert (segment["impressions"], segment["clicks"]) == (3, 1)
    assert set(pl.read_parquet(segment["path"])["impression_key"]) == {a["impression_id"] for a in answers}
    replay_command(log, tmp_path / "policies", as_json=True)
    assert json.loads(capsys.readouterr().out)["equal"] == 3
    frame = pl.read_parquet(segment["path"])
    frame.with_columns(pl.col("key") + 1).write_parquet(segment["path"])
    with pytest.raises(SystemExit, match="1"):
        replay_command(log, tmp_path / "policies", as_json=True)
    assert json.loads(capsys.readouterr().out)["first"]["row"] == 0


def test_the_description_names_every_call(folder, tmp_path) -> None:
    with local(folder, log=tmp_path) as server:
        found = server.get("/openapi.json").json()
        routes = {route.path for route in server.app.routes}
        assert set(found["paths"]) <= routes
        assert {"/rank", "/feedback", "/policies", "/split", "/rollback", "/status"} <= set(found["paths"])
        assert "RankRequest" in found["components"]["schemas"]
        json.dumps(found)


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
