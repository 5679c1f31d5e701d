"""What must not be lost or made up: damaged journals and segments, disks and folders that fail, clocks that leap, refusals."""

import errno
import json
import os
import shutil
import time
import tracemalloc

import numpy as np
import polars as pl
import pytest

from served import K2, Clock, Q, local, policy, rows, saved
from tandemrank.cli.serving import seal as seal_command
from tandemrank.errors import ConfigError, InputError, LogError
from tandemrank.logs import reading, validation
from tandemrank.serving import journal, replay
from tandemrank.serving.live_policy import LivePolicy
from tandemrank.serving.records import steady_clock

YEAR = 365 * 86400.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("policies"), 0, 1)


def journals(log):
    return sorted(log.glob("journal-*.bin"))


def sealed_by_command(log, policies, capsys) -> list[dict]:
    capsys.readouterr()
    seal_command(log, policies, everything=True, as_json=True)
    return json.loads(capsys.readouterr().out)["segments"]


def test_the_command_seals_with_the_curve_of_the_server(folder, tmp_path, capsys) -> None:
    theta = (0.9, 0.85, 0.8)
    with local(folder, log=tmp_path / "log", theta=theta, samples=50) as server:
        for _ in range(40):
            server.post("/rank", {"query_id": 11})
    sealed_by_command(tmp_path / "log", folder, capsys)
    frame = pl.read_parquet(tmp_path / "log" / "*.parquet")
    [wanted] = [how_exposed(theta)]
    for row in frame.iter_rows(named=True):
        for item, rho, error in zip(row["items"], row["propensities"], row["propensity_errors"], strict=True):
            assert abs(rho - wanted[item][0]) <= 5 * np.hypot(error, wanted[item][1]) + 1e-6


def how_exposed(theta) -> dict[str, tuple[float, float]]:
    import torch

    from tandemrank.serving.drawing import Exploration

    live = LivePolicy(policy())
    everything, curve = np.arange(len(live.items)), torch.tensor(theta)
    rho, error = Exploration().exposure(*rows(live.scores(11)), everything, curve, K2, samples=3000, seed=9)
    return {item: (rho[d], error[d]) for d, item in enumerate(live.items)}


def test_a_curve_of_fewer_ranks_than_the_lists_have_is_refused(folder, tmp_path) -> None:
    with pytest.raises(ConfigError, match="3 ranks or more"), local(folder, log=tmp_path / "log", theta=(1.0, 0.5)):
        pass


def test_a_refused_batch_leaves_no_trace(folder, tmp_path) -> None:
    with local(folder, log=tmp_path / "log") as server:
        asked = [{"query_id": 11}] * 50 + [{"query_id": "nobody"}]
        assert server.post("/rank", {"requests": asked}).status_code == 422
        assert "tandemrank_impressions_total{" not in server.get("/metrics").text
        server.context.service.outcomes.settle(1e12)
        assert server.get("/status").json()["tallies"] == {}
        assert sum(path.stat().st_size for path in journals(tmp_path / "log")) == 0
        assert len(server.post("/rank", {"requests": asked[:50]}).json()["answers"]) == 50
        [sealed] = server.context.service.seal(everything=True)
        assert sealed.impressions == 50


@pytest.mark.parametrize("leap", [YEAR, -YEAR])
def test_a_clock_that_was_set_between_two_processes_does_not_stop_the_log(folder, tmp_path, leap) -> None:
    for ahead in (leap, 0.0):
        clock = Clock()
        clock.now += ahead
        with local(folder, log=tmp_path / "log", clock=clock, window=100.0) as server:
            server.post("/rank", {"query_id": 11})
            if ahead == 0:
                clock.now += 200
                assert sum(s.impressions for s in server.context.service.seal()) == 2


def test_the_clock_of_a_server_is_that_of_the_wall_when_it_began_and_never_leaps() -> None:
    wall, passed = Clock(), Clock()
    now = steady_clock(wall, passed)
    assert now() == wall.now
    wall.now += YEAR
    passed.now += 5
    assert now() == wall.now - YEAR + 5
    assert abs(steady_clock()() - time.time()) < 5


@pytest.mark.parametrize("place", range(9))
def test_a_flipped_bit_costs_one_record(folder, tmp_path, capsys, place) -> None:
    log = tmp_path / "log"
    with local(folder, log=log) as server:
        names = [server.post("/rank", {"query_id": 11}).json()["impression_id"] for _ in range(20)]
    [path] = journals(log)
    content = bytearray(path.read_bytes())
    at = np.random.default_rng(place).integers(len(content) * 8)
    if place < 6:  # in a header: its magic, its length, its checksum
        at = [3, 35, 47, 60, 66, 90][place]
    content[at // 8] ^= 1 << at % 8
    path.write_bytes(content)
    [found] = sealed_by_command(log, folder, capsys)
    assert found["impressions"] == 19
    assert found["damaged"] == 1
    assert found["dropped"] > 0
    kept = pl.read_parquet(log / "segment-*.parquet")["impression_key"].to_list()
    assert set(kept) < set(names)
    assert (log / ".set-aside" / path.name).read_bytes() == content
    assert not journals(log)


@pytest.mark.parametrize("end", [bytes(8), bytes(4096), b"\xff" * 100, b"torn"])
def test_bytes_at_the_end_are_no_record(folder, tmp_path, capsys, end) -> None:
    log = tmp_path / "log"
    with local(folder, log=log) as server:
        server.post("/rank", {"query_id": 11})
    [path] = journals(log)
    path.write_bytes(path.read_bytes() + end)
    with local(folder, log=log) as server:  # the next process starts all the same
        server.post("/rank", {"query_id": 11})
    found = sealed_by_command(log, folder, capsys)
    assert [(one["impressions"], one["dropped"]) for one in found] == [(1, len(end)), (1, 0)]


def test_a_log_folder_that_is_removed_is_told_and_one_that_is_there_again_is_used(folder, tmp_path, capsys) -> None:
    log = tmp_path / "log"
    with local(folder, log=log) as server:
        assert server.post("/rank", {"query_id": 11}).json()["logged"]
        assert server.get("/healthz").json() == {"status": "alive", "log": "ok"}
        shutil.rmtree(log)
        found = server.post("/rank", {"query_id": 11}).json()
        assert not found["logged"]
        body = {"impression_id": found["impression_id"], "events": [{"item": found["items"][0]}]}
        assert not server.post("/feedback", body).json()["recorded"]
        health = server.get("/healthz")
        assert health.status_code == 200  # it answers; what is wrong is said
        assert "No such file" in health.json()["log"]
        text = server.get("/metrics").text
        assert "tandemrank_unlogged_total 1.0" in text
        assert "tandemrank_log_failing 1.0" in text
        assert capsys.readouterr().err.count("Answers go on unlogged") == 1
        log.mkdir()
        assert server.post("/rank", {"query_id": 11}).json()["logged"]
        assert "tandemrank_log_failing 0.0" in server.get("/metrics").text
        assert [s.impressions for s in server.context.service.seal(everything=True)] == [1]


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_disk_that_fails_is_told(folder, tmp_path, monkeypatch, call) -> None:
    with local(folder, log=tmp_path / "log", sync_seconds=3600) as server:
        assert server.post("/rank", {"query_id": 11}).json()["logged"]

        def broken(*args: object) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        with monkeypatch.context() as patch:
            patch.setattr(os, call, broken)
            if call == "fsync":  # what was written may not be on disk, and the thread that syncs hears of it
                written = server.context.service.recorder._journal
                written.append(b"{}")
                written.sync()
            assert not server.post("/rank", {"query_id": 11}).json()["logged"]
            assert "Input/output error" in server.get("/healthz").json()["log"]
        assert server.post("/rank", {"query_id": 11}).json()["logged"]
        assert sum(s.impressions for s in server.context.service.seal(everything=True)) == 2


def test_where_the_next_journal_cannot_be_opened_the_current_one_goes_on(folder, tmp_path, monkeypatch) -> None:
    with local(folder, log=tmp_path / "log") as server:
        recorder, real = server.context.service.recorder, os.open
        recorder.rotate = recorder._turn_at = 10
        assert server.post("/rank", {"query_id": 11}).json()["logged"]

        def none_left(path, flags, *mode):
            if "journal-" in str(path):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return real(path, flags, *mode)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", none_left)
            assert [server.post("/rank", {"query_id": 11}).json()["logged"] for _ in range(5)] == [True] * 5
        server.post("/rank", {"query_id": 11})
        assert len(journals(tmp_path / "log")) > 1
        assert sum(s.impressions for s in server.context.service.seal(everything=True)) == 7


def test_an_answer_without_items_makes_no_row(folder, tmp_path, capsys) -> None:
    log = tmp_path / "log"
    with local(folder, log=log) as server:
        for asked in ([{"items": []}], [{"items": []}, {"query_id": 11}]):
            assert server.post("/rank", {"requests": asked}).status_code == 200
            [found] = server.context.service.seal(everything=True)
            assert (found.impressions, found.empty) == (len(asked) - 1, 1)
        assert [p.name for p in log.glob("*.parquet")] == ["segment-0-000001.parquet"]
    assert validation.validate(log).fit
    assert reading.read(log).N == 1


def segment(folder, log, n: int = 30):
    with local(folder, log=log) as server:
        for _ in range(n):
            server.post("/rank", {"query_id": 11})
        [found] = server.context.service.seal(everything=True)
    return found.path


def test_every_flipped_bit_of_a_segment_is_found(folder, tmp_path) -> None:
    from tandemrank._base import frames

    path = segment(folder, tmp_path / "log")
    good = path.read_bytes()
    assert frames.damage_of(path) is None
    rng, other = np.random.default_rng(0), tmp_path / "other.parquet"
    marked = range(good.index(frames.KEY.encode()) - 8, good.index(frames.VALUE) + 100)
    places = [*rng.integers(len(good), size=150), *marked, *range(len(good) - 12, len(good))]
    for at in places:
        content = bytearray(good)
        content[at] ^= 1 << int(rng.integers(8))
        other.write_bytes(content)
        assert frames.damage_of(other) is not None, at
    for at in places[:4]:
        content = bytearray(good)
        content[at] ^= 1
        path.write_bytes(content)
        assert not validation.validate(tmp_path / "log").fit
        with pytest.raises(LogError):
            reading.read(tmp_path / "log")


def test_files_without_a_checksum_are_read_as_ever(tmp_path) -> None:
    from tandemrank._base import frames

    pl.DataFrame({"query_id": [1], "items": [[1]], "clicks": [[0]]}).write_parquet(tmp_path / "log.parquet")
    assert frames.damage_of(tmp_path / "log.parquet") is None
    (tmp_path / "short.parquet").write_bytes(b"PAR1")
    assert frames.damage_of(tmp_path / "short.parquet") is None
    assert reading.read(tmp_path / "log.parquet").N == 1


def shapes(good: dict) -> list[bytes]:
    """Records with a valid checksum and another shape than an impression, or an event, has."""
    wrong: list[bytes] = [
        b"",
        b"[]",
        b"null",
        b"7",
        b"{}",
        b'{"impression": 7}',
        b'{"event": {}}',
        b"\xff\xfe{}",
        b"[" * 5000,
    ]
    values = [None, [], [["a"]], {}, "x", "\\ud800", -1, 2**70, 1.5, True, [[1]], [None], {"a": {"b": 1}}, "NaN"]
    for name in good:
        left = {key: value for key, value in good.items() if key != name}
        wrong.append(json.dumps({"impression": left}).encode())
        for value in values:
            record = json.dumps({"impression": {**good, "id": f"other {len(wrong)}", name: value}})
            wrong.append(record.replace("\\\\ud800", "\\ud800").replace('"NaN"', "NaN").encode())
    event = {"impression": good["id"], "item": good["items"][0], "type": "click", "value": None, "time": good["time"]}
    for name in event:
        for value in ([], {}, [[1]], -1e400 if name == "time" else {"a": 1}):
            wrong.append(json.dumps({"event": {**event, name: value}}).encode())
    return wrong


def test_records_of_another_shape_are_set_aside_and_the_rest_is_sealed(folder, tmp_path, capsys) -> None:
    log = tmp_path / "log"
    with local(folder, log=log) as server:
        for _ in range(5):
            server.post("/rank", {"query_id": 11})
    [path] = journals(log)
    payloads = journal.read(path).records
    good = json.loads(payloads[0])["impression"]
    cases = shapes(good)
    assert len(cases) > 150
    path.write_bytes(b"".join(map(journal.framed, (*payloads[:2], *cases, *payloads[2:]))))
    [found] = sealed_by_command(log, folder, capsys)
    kept = set(pl.read_parquet(log / "segment-*.parquet")["impression_key"])
    assert {json.loads(payload)["impression"]["id"] for payload in payloads} <= kept
    assert len(kept) == found["impressions"] < 5 + 25  # another key, time, query and so on are as good as before
    assert found["damaged"] > 150
    assert sum(found[name] for name in ("impressions", "damaged", "empty")) == len(payloads) + len(cases)
    assert (log / ".set-aside" / path.name).exists()
    assert validation.validate(log).fit


def test_a_record_that_is_there_twice_counts_once(folder, tmp_path, capsys) -> None:
    log = tmp_path / "log"
    with local(folder, log=log) as server:
        for _ in range(3):
            server.post("/rank", {"query_id": 11})
    [path] = journals(log)
    path.write_bytes(2 * path.read_bytes())
    [found] = sealed_by_command(log, folder, capsys)
    assert (found["impressions"], found["damaged"]) == (3, 3)


def test_the_command_has_no_path_of_a_segment_that_is_not_written(folder, tmp_path, capsys) -> None:
    log = tmp_path / "log"
    with local(folder, log=log) as server:
        server.post("/rank", {"query_id": 11, "items": []})
    [found] = sealed_by_command(log, folder, capsys)
    assert (found["path"], found["empty"]) == (None, 1)


def test_validate_names_seal_where_there_are_journals_alone(folder, tmp_path) -> None:
    log = tmp_path / "log"
    with local(folder, log=log) as server:
        server.post("/rank", {"query_id": 11})
    with pytest.raises(LogError, match="tandemrank seal"):
        validation.validate(log)
    (tmp_path / "empty").mkdir()
    with pytest.raises(LogError, match="nothing is at"):
        validation.validate(tmp_path / "empty")


def test_sealing_holds_one_journal_at_a_time(folder, tmp_path) -> None:
    peaks = []
    for n in (1, 6):
        with local(folder, log=tmp_path / f"log-{n}") as server:
            recorder = server.context.service.recorder
            for _ in range(n):
                server.post("/rank", {"requests": [{"query_id": 10 + k % Q} for k in range(250)]})
                with recorder._lock:
                    recorder._turn_over()
            server.context.service.outcomes.settle(1e12)
            tracemalloc.start()
            assert sum(s.impressions for s in server.context.service.seal(everything=True)) == 250 * n
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert peaks[1] < 1.6 * peaks[0]


def test_a_folder_that_parquet_cannot_name_is_refused_before_anything_is_logged(folder, tmp_path) -> None:
    strange = tmp_path / os.fsdecode(b"log\xff")
    with pytest.raises(InputError, match="UTF-8"), local(folder, log=strange):
        pass
    strange.mkdir()
    (strange / "segment-0-000000.parquet").write_bytes(b"")
    with pytest.raises(InputError, match="UTF-8"):
        seal_command(strange, folder, everything=True)
    with pytest.raises(InputError, match="UTF-8"):
        replay.replay([strange], [policy()])
