"""What strangers may not: the token, other hosts, sizes, paths outside, traces, features in the open."""

import asyncio
import json
import os
import shutil
import socket
from contextlib import nullcontext

import pytest
from httpx import Headers

from served import TOKEN, K, local, saved
from tandemrank.errors import ConfigError
from tandemrank.serving import run
from tandemrank.serving.run import Address, Limits, is_loopback, read_token
from tandemrank.serving.service import Settings

ADMIN = [("/policies", {"folder": "policy-1"}), ("/split", {"policy": "x", "share": 0.5}), ("/rollback", {})]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("policies"), 0, 1)


def test_other_addresses_need_a_token(tmp_path, monkeypatch) -> None:
    monkeypatch.delenv("TANDEMRANK_TOKEN", raising=False)
    assert [is_loopback(h) for h in ("127.0.0.1", "127.9.9.9", "::1", "localhost")] == [True] * 4
    assert [is_loopback(h) for h in ("0.0.0.0", "::", "192.168.1.1", "example.org", "")] == [False] * 5
    for token in ("", "short"):
        with pytest.raises(ConfigError, match="can be reached from other machines"):
            Address("0.0.0.0", token=token)
    for strange in ("tökentökentökentöken", "two words two words"):
        with pytest.raises(ConfigError, match="printable ASCII"):
            Address("0.0.0.0", token=strange)
    assert read_token(None, "0.0.0.0") == ""
    assert len(read_token(None, "127.0.0.1")) >= 16
    assert read_token(None, "127.0.0.1") != read_token(None, "127.0.0.1")
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert read_token(tmp_path / "token", "0.0.0.0") == TOKEN
    (tmp_path / "token").write_text("short")
    for path in (tmp_path / "token", tmp_path / "nowhere"):
        with pytest.raises(ConfigError):
            read_token(path, "0.0.0.0")


def test_the_command_refuses_to_listen_elsewhere_without_a_token(folder, monkeypatch) -> None:
    from tandemrank.cli.serving import serve

    monkeypatch.delenv("TANDEMRANK_TOKEN", raising=False)
    with pytest.raises(ConfigError, match="token"):
        serve(folder / "policy-0", host="0.0.0.0", port=0)


@pytest.mark.parametrize(
    "wrong", [None, "Bearer ", "Bearer wrong", f"Basic {TOKEN}", f"bearer {TOKEN}", f"Bearer {TOKEN}x"]
)
def test_admin_calls_need_the_token_always(folder, tmp_path, wrong) -> None:
    with local(folder, log=tmp_path) as server:
        for path, body in ADMIN:
            headers = {} if wrong is None else {"Authorization": wrong}
            assert server.call("POST", path, body, headers=headers).status_code == 401


def test_tokens_are_compared_in_constant_time(monkeypatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    real = run.hmac.compare_digest
    monkeypatch.setattr(run.hmac, "compare_digest", lambda a, b: (compared.append((a, b)), real(a, b))[1])
    address = Address(token=TOKEN)
    for given, refused in ((f"Bearer {TOKEN}", False), ("Bearer x", True)):
        with pytest.raises(run.Refused) if refused else nullcontext():
            address.check({b"authorization": given.encode()}, admin=True)
        assert compared.pop() == (given.encode(), f"Bearer {TOKEN}".encode())


def test_elsewhere_everything_needs_the_token_but_health(folder, tmp_path) -> None:
    with local(folder, host="0.0.0.0", log=tmp_path) as server:
        assert server.post("/rank", {"query_id": 11}).status_code == 401
        for path in ("/status", "/metrics", "/openapi.json"):
            assert server.get(path).status_code == 401
        assert server.post("/rank", {"query_id": 11}, admin=True).status_code == 200
        assert [server.get(path).status_code for path in ("/healthz", "/readyz")] == [200, 200]


def test_a_page_of_another_site_gets_nothing(folder, tmp_path) -> None:
    with local(folder, log=tmp_path) as server:
        rebound = server.call("POST", "/rank", {"query_id": 11}, headers={"Host": "evil.example:8080"})
        assert rebound.status_code == 421
        for good in ("localhost:8080", "127.0.0.1", "[::1]:8080", "LOCALHOST"):
            assert server.call("POST", "/rank", {"query_id": 11}, headers={"Host": good}).status_code == 200
        form = server.call("POST", "/rank", content=b'{"query_id": 11}', headers={"Content-Type": "text/plain"})
        assert form.status_code == 415
        answer = server.post("/rank", {"query_id": 11})
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


def test_sizes_are_limited(folder, tmp_path) -> None:
    with local(folder, log=tmp_path, limits=Limits(body=5000)) as server:
        long = {"query_id": 11, "items": [f"i{n}" for n in range(3000)]}
        assert server.post("/rank", long).status_code == 413
        chunks = iter([b'{"query_id": 11, "items": [', *[b'"i1",'] * 2000, b'"i1"]}'])

        async def body():
            for chunk in chunks:
                yield chunk

        headers = {"Content-Type": "application/json"}
        assert server.call("POST", "/rank", content=body(), headers=headers).status_code == 413
    with local(folder, log=tmp_path / "more") as server:
        cases = [
            ("/rank", {"requests": [{}] * 257}), ("/rank", {"requests": []}), ("/rank", {"K": K + 1}), ("/rank", {"K": 0}),
            ("/rank", {"K": 10**30}), ("/rank", {"items": ["i1"] * 10_001}), ("/rank", {"query_id": "x" * 257}),
            ("/rank", {"query_id": 2**63}), ("/rank", {"query_id": 1.5}), ("/rank", {"query_id": True}),
            ("/rank", {"query_features": {f"f{n}": 1 for n in range(201)}}), ("/rank", {"misspelt": 1}), ("/rank", [1]),
            ("/feedback", {"impression_id": "x", "events": [{"item": 1}] * 1001}),
            ("/feedback", {"impression_id": "x", "events": []}),
            ("/feedback", {"impression_id": "x", "events": [{"item": 1, "timestamp": 1e300}]}),
        ]  # fmt: skip
        for path, wrong in cases:
            assert server.post(path, wrong).status_code == 422, wrong
        for broken in (b"", b"{", b"\xff\xfe", b'{"query_id": NaN}', b"[" * 100_000, b'{"query_id": "\\ud800"}'):
            found = server.call("POST", "/rank", content=broken, headers={"Content-Type": "application/json"})
            assert found.status_code in (400, 422), broken[:20]
            assert found.json().keys() == {"error"}


@pytest.mark.parametrize(
    "name",
    [
        "../policy-0",
        "..",
        ".",
        "",
        "/etc",
        "policy-1/../../x",
        "outside",
        "policy-0\0",
        "a" * 250,
        "~root",
        "policy-0/config.json",
    ],
)
def test_no_path_outside_the_folder_is_loaded(tmp_path, name) -> None:
    saved(tmp_path / "elsewhere", 1)
    inside = saved(tmp_path / "policies", 0)
    (inside / "outside").symlink_to(tmp_path / "elsewhere" / "policy-1")
    with local(inside, log=tmp_path / "log") as server:
        found = server.post("/policies", {"folder": name}, admin=True)
        assert found.status_code == 422
        assert str(tmp_path) not in found.text
        assert len(server.get("/status").json()["policies"]) == 1


def test_no_trace_in_an_answer(folder, tmp_path, monkeypatch, caplog) -> None:
    with local(folder, log=tmp_path) as server:

        def broken(*args, **options):
            raise RuntimeError("a secret detail")

        monkeypatch.setattr(server.context.service.server, "rank", broken)
        found = server.post("/rank", {"query_id": 11})
        assert found.status_code == 500
        assert found.json() == {"error": "the server failed; its log says why."}
        assert "a secret detail" in caplog.text
        assert [server.get(path).status_code for path in ("/nothing", "/rank")] == [404, 405]


def raw(url: str, data: bytes) -> bytes:
    """What comes back on a connection until the server ends it."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(data)
        found = b""
        while part := connection.recv(65536):
            found += part
    return found


def test_slow_and_endless_requests_are_ended_and_the_token_stays_secret(folder, tmp_path) -> None:
    """On a real socket, with the time shortened: connections that wait are ended by the server, not by us."""
    from tandemrank.serving import app

    bounded = Limits(seconds=0.2, head=2000)
    ports: asyncio.Queue[int] = asyncio.Queue()
    server = app.server(
        Settings(folder / "policy-0", log=tmp_path), Address(port=0, token=TOKEN, limits=bounded),
        listening=ports.put_nowait,
    )  # fmt: skip
    requests = {
        "silent": b"",
        "half": b"POST /rank HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
        "endless": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 5000 + b"\r\n\r\n",
        "nonsense": b"\x00\x01\x02 nonsense\r\n\r\n",
        "status": b"GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    }

    async def go() -> dict[str, bytes]:
        task = asyncio.create_task(server.serve())
        url = f"http://127.0.0.1:{await ports.get()}"
        found = await asyncio.gather(*(asyncio.to_thread(raw, url, x) for x in requests.values()))
        server.should_exit = True
        await task
        return dict(zip(requests, found, strict=True))

    found = asyncio.run(go())
    assert found["silent"] == b""
    assert b"200" not in found["half"][:20]
    assert found["endless"].startswith(b"HTTP/1.1 400")
    assert found["nonsense"].startswith(b"HTTP/1.1 400")
    head, _, body = found["status"].partition(b"\r\n\r\n")
    assert b"server:" not in head.lower()
    assert json.loads(body)["ready"]
    for text in (*found.values(), *(path.read_bytes() for path in tmp_path.iterdir())):
        assert TOKEN.encode() not in text


def test_connections_are_limited_and_it_listens_on_the_loopback_unless_told(folder, tmp_path) -> None:
    from tandemrank.serving import app

    assert Address().host == "127.0.0.1"
    ports: asyncio.Queue[int] = asyncio.Queue()
    address = Address(port=0, token=TOKEN, limits=Limits(connections=3))
    server = app.server(Settings(folder / "policy-0", log=tmp_path), address, listening=ports.put_nowait)
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"

    async def go() -> list[bytes]:
        task = asyncio.create_task(server.serve())
        url = f"http://127.0.0.1:{await ports.get()}"
        found = [await asyncio.to_thread(raw, url, request)]
        silent = [await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2])) for _ in range(3)]
        found.append(await asyncio.to_thread(raw, url, request))
        for _, writer in silent:
            writer.close()
        server.should_exit = True
        await task
        return found

    found = asyncio.run(go())
    assert [answer[9:12] for answer in found] == [b"200", b"503"]


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), RuntimeError("a mistake of ours")])
def test_what_fails_in_the_background_is_told_and_tried_again(folder, tmp_path, monkeypatch, failure, caplog) -> None:
    from tandemrank.serving import app

    with local(folder, log=tmp_path) as server:
        context, calls = server.context, []
        done = asyncio.Event()

        def broken(*args: object) -> None:
            calls.append(1)
            if len(calls) > 2:
                context.loop.call_soon_threadsafe(done.set)
            raise failure

        async def go(loop) -> None:
            context.loop = asyncio.get_running_loop()
            task = asyncio.create_task(loop(context))
            await done.wait()
            task.cancel()

        context.tick = context.seal = 0.001
        for name, loop in (("seal", app._sealing), ("tick", app._ticking)):
            monkeypatch.setattr(context.service, name, broken)
            asyncio.run(go(loop))
            calls.clear()
            done = asyncio.Event()
        assert "no segment was made" in caplog.text
        assert "outcomes could not be looked at" in caplog.text
        assert "tandemrank_seal_failures_total 0.0" not in server.get("/metrics").text


def test_neither_journal_nor_metrics_have_features(folder, tmp_path) -> None:
    with local(folder, log=tmp_path) as server:
        server.post("/rank", {"query_features": {"age": 61.25, "land": "atlantis"}})
        everything = b"".join(path.read_bytes() for path in tmp_path.iterdir()) + server.get("/metrics").content
        assert b"61.25" not in everything
        assert b"atlantis" not in everything


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:18080@evil.com", "[::1].evil.com", "[::1]evil", "[::1", "localhost.evil.com", "127.0.0.1:80:90",
        "127.0.0.1:x", "localhost:", "user@localhost", "localhost/x", "", " localhost", "127.0.0.1\t", "0x7f.1",
    ],
)  # fmt: skip
def test_a_host_is_parsed_strictly(folder, tmp_path, host) -> None:
    address = Address(token=TOKEN)
    with pytest.raises(run.Refused, match=r"127\.0\.0\.1 and localhost only"):
        address.check(run.headers_of([(b"host", host.encode())]), admin=False)


def test_what_must_be_said_once_is_refused_twice(folder, tmp_path) -> None:
    with local(folder, log=tmp_path) as server:
        for name, values in (
            ("host", ("evil.example", "localhost")),
            ("host", ("localhost", "localhost")),
            ("authorization", ("Bearer x", f"Bearer {TOKEN}")),
            ("content-type", ("text/plain", "application/json")),
        ):
            twice = [(name, value) for value in values]
            for path in ("/rank", "/rollback", "/healthz"):
                method = "GET" if path == "/healthz" else "POST"
                found = server.call(method, path, None if path == "/healthz" else {}, headers=Headers(twice))
                assert found.status_code == 400, (name, path)
                assert name in found.json()["error"]


def test_nobody_is_sent_elsewhere(folder, tmp_path) -> None:
    with local(folder, log=tmp_path) as server:
        for method, path in (("POST", "/rank/"), ("GET", "/status/"), ("GET", "/healthz/"), ("POST", "/policies/")):
            found = server.call(method, path, headers={"Host": "evil.example"})
            assert (found.status_code, found.headers.get("location")) == (404, None)


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:81", "http://127.0.0.1.evil.com"])
def test_calls_from_pages_of_other_origins_change_nothing(folder, tmp_path, origin) -> None:
    calls = [
        ("/rank", {"query_id": 11}),
        ("/feedback", {"impression_id": "x", "events": [{"item": "i1"}]}),
        ("/explain", {}),
        *ADMIN,
    ]
    with local(folder, log=tmp_path) as server:
        for path, body in calls:
            found = server.post(path, body, admin=True, headers={"Origin": origin, "Host": "127.0.0.1"})
            assert found.status_code == 403, path
        assert server.context.service.outcomes.fates["unknown"] == 0
        for good in ("http://127.0.0.1", "https://127.0.0.1", "HTTP://127.0.0.1"):
            found = server.post("/rank", {"query_id": 11}, headers={"Origin": good, "Host": "127.0.0.1"})
            assert found.status_code == 200
        for path in ("/status", "/"):
            assert server.call("GET", path, headers={"Origin": "http://127.0.0.1", "Host": "127.0.0.1"}).is_success


def test_a_saved_policy_whose_files_are_links_to_outside_is_refused(tmp_path) -> None:
    elsewhere = saved(tmp_path / "elsewhere", 1) / "policy-1"
    inside = saved(tmp_path / "policies", 0)
    (inside / "linked").mkdir()
    for file in elsewhere.iterdir():
        (inside / "linked" / file.name).symlink_to(file)
    (inside / "near").mkdir()
    for file in (inside / "policy-0").iterdir():
        (inside / "near" / file.name).symlink_to(file)  # stays in the folder
    with local(inside, log=tmp_path / "log") as server:
        found = server.post("/policies", {"folder": "linked"}, admin=True)
        assert found.status_code == 422
        assert "leads out of the folder" in found.json()["error"]
        assert str(tmp_path) not in found.text
        assert server.get("/status").json()["folders"] == ["near", "policy-0"]
        assert server.post("/policies", {"folder": "near"}, admin=True).status_code == 200


@pytest.mark.parametrize("name", ["a" * 256, "a" * 300, "é" * 200, "a/" * 120 + "b", "\ud800"])
def test_a_name_that_no_file_can_have_is_a_refusal(folder, tmp_path, name) -> None:
    with local(folder, log=tmp_path) as server:
        found = server.call(
            "POST", "/policies", content=json.dumps({"folder": name}).encode(),
            headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"},
        )  # fmt: skip
        assert found.status_code in (400, 422)
        assert found.json().keys() == {"error"}


def test_names_that_are_not_utf_8_are_left_out(tmp_path) -> None:
    folder = saved(tmp_path / "policies", 0)
    strange = os.fsdecode(b"\xff\xfe")
    (folder / "policy-0").rename(folder / "first")
    for name in ("policy-0", strange):
        shutil.copytree(folder / "first", folder / name)
    with local(folder, log=tmp_path / "log") as server:
        assert server.get("/status").json()["folders"] == ["first", "policy-0"]


@pytest.mark.parametrize(
    "line", [b"GET /healthz\r\n\r\n", b"GET /healthz HTTP/0.9\r\n\r\n", b"GET /healthz HTTP/2.0\r\n\r\n"]
)
def test_other_versions_of_http_are_refused(line) -> None:
    class Transport:
        def __init__(self) -> None:
            self.sent = b""

        def get_extra_info(self, name: str) -> None:
            return None

        def write(self, data: bytes) -> None:
            self.sent += data

        def is_closing(self) -> bool:
            return False

        def close(self) -> None:
            pass

    async def go() -> bytes:
        async def app(scope, receive, send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"answered"})

        config = run.server(app, Address(port=0)).config
        config.load()
        transport = Transport()
        connection = config.http_protocol_class(config, run.uvicorn.server.ServerState(), {})
        connection.connection_made(transport)
        connection.data_received(line)
        if connection.timeout_keep_alive_task is not None:
            connection.timeout_keep_alive_task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        return transport.sent

    found = asyncio.run(go())
    assert found.startswith(b"HTTP/1.1 400")
    assert b"answered" not in found
