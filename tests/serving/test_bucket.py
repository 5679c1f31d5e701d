"""Servers that share no folder write one log into a bucket path: nothing is overwritten or half there, sums are the same."""

import shutil

import fsspec
import numpy as np
import polars as pl
import pytest

from served import Clock, local, policy, saved
from tandemrank._base import buckets
from tandemrank.cli.serving import seal
from tandemrank.errors import ConfigError, LogError, OutputError
from tandemrank.logs import reading, validation
from tandemrank.serving import replay
from tandemrank.serving.engine import Server
from tandemrank.serving.live_policy import LivePolicy
from tandemrank.serving.propensities import Propensities
from tandemrank.serving.recorder import Bucket, Recorder, finished
from tandemrank.serving.records import Event

MEMORY = fsspec.filesystem("memory")


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    """An empty bucket path."""
    yield f"memory://{tmp_path.name}/log" if request.param == "memory" else f"file://{tmp_path}/bucket/log"
    if MEMORY.exists(tmp_path.name):
        MEMORY.rm(tmp_path.name, recursive=True)


def write(folder, *, replica="0", first=0, seed=0, n=8):
    """A segment of a server that is done."""
    log = Recorder(folder, Propensities(samples=2), replica=replica, first=first, clock=Clock())
    server = Server(policy(), recorder=log, seed=seed)
    for i in range(n):
        found = server.rank(10 + i % 6)
        if i % 3 == 0:
            server.feedback(found.impression_id, [Event(found.items[0])])
    [sealed] = log.seal(everything=True)
    log.close()
    return sealed.path


def test_two_machines_make_one_log_whose_sums_are_the_same_bits(tmp_path, url) -> None:
    paths = [write(tmp_path / name, replica=name, seed=n) for n, name in enumerate(("a", "b"))]
    assert [Bucket(url).copy(tmp_path / name).segments for name in ("a", "b")] == [1, 1]
    together = tmp_path / "together"
    together.mkdir()
    for path in paths:
        shutil.copy(path, together)
    here, there = reading.read(together), reading.read(url)
    assert here.N == there.N == 16
    for name, value in vars(here).items():
        other = getattr(there, name)
        if isinstance(value, np.ndarray):
            assert np.array_equal(value, other), name
    assert reading.read(f"{url}/*-b-*.parquet").N == 8
    assert reading.read([f"{url}/{path.name}" for path in paths]).N == 16
    assert validation.validate(url).fit
    assert replay.replay([url], [policy()]) == replay.replay([together], [policy()])
    assert replay.digests([url]) == {LivePolicy(policy()).digest}


def test_what_is_there_is_not_copied_again_and_never_overwritten(tmp_path, url) -> None:
    path = write(tmp_path / "log")
    bucket, target = Bucket(url), f"{url}/{path.name}"
    assert bucket.copy(tmp_path / "log").segments == 1
    assert bucket.copy(tmp_path / "log") == Bucket(url).copy(tmp_path / "log") == Bucket(url).copy(tmp_path / "log")
    assert Bucket(url).copy(tmp_path / "log").problems == ()
    store, place = fsspec.core.url_to_fs(target)
    bytes_of = path.read_bytes()
    for other in (bytes_of[:-1], b"x" + bytes_of[1:]):  # another size, another byte
        store.pipe_file(place, other)
        more = write(tmp_path / "log", first=7, seed=1)
        found = Bucket(url).copy(tmp_path / "log")
        assert found.segments == 1  # the other one is copied all the same
        assert path.name in found.problems[0]
        assert "--replica" in found.problems[0]
        assert store.cat_file(place) == other
        store.rm_file(fsspec.core.url_to_fs(f"{url}/{more.name}")[1])
        more.unlink()
    store.rm_file(place)
    assert bucket.copy(tmp_path / "log").segments == 1  # nothing is remembered beside what the bucket has
    assert store.cat_file(place) == bytes_of


@pytest.mark.parametrize("fails", ["put_file", "mv"])
def test_nothing_is_ever_half_there_and_it_is_tried_again(tmp_path, url, fails, monkeypatch) -> None:
    path = write(tmp_path / "log")
    store = type(fsspec.core.url_to_fs(url)[0])

    def full(self, source, target, *args, **kwargs):
        if fails == "put_file":
            self.pipe_file(target, b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(store, fails, full)
        found = Bucket(url).copy(tmp_path / "log")
    assert found.segments == 0
    assert "No space left" in found.problems[0]
    assert buckets.sizes(url) == {}
    assert Bucket(url).copy(tmp_path / "log").segments == 1
    assert list(buckets.sizes(url)) == [path.name]


def test_where_an_object_appears_whole_it_is_put_at_once_and_only_if_there_is_none(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(buckets, "_AT_ONCE", {"memory"})
    url, path = f"memory://{tmp_path.name}/at-once", write(tmp_path / "log")
    monkeypatch.setattr(type(MEMORY), "mv", None)
    assert Bucket(url).copy(tmp_path / "log").segments == 1
    with pytest.raises(FileExistsError):
        buckets.create(path, f"{url}/{path.name}")
    real = buckets.sizes
    answers = iter([{}])  # as if it had come since the bucket was listed
    monkeypatch.setattr(buckets, "sizes", lambda url: next(answers, None) or real(url))
    found = Bucket(url).copy(tmp_path / "log")
    assert (found.segments, found.problems) == (0, ())


def test_a_segment_that_a_kill_left_beside_its_journal_waits(tmp_path) -> None:
    """It will be made once more, perhaps with more clicks: copied now, it would be there with other bytes."""
    path = write(tmp_path)
    journal = tmp_path / "journal-0-000000.bin"
    journal.touch()
    assert finished(tmp_path) == []
    assert Bucket(f"memory://{tmp_path.name}").copy(tmp_path).segments == 0
    journal.unlink()
    assert [x.path for x in finished(tmp_path)] == [path]


def test_a_server_copies_counts_failures_and_goes_on_after_a_lost_disk(tmp_path, url, monkeypatch, caplog) -> None:
    def served(log):
        with local(saved(tmp_path / "policies", 0), log=log, bucket=url) as server:
            assert server.post("/rank", {"query_id": 11}).status_code == 200
            [sealed] = server.context.service.seal(everything=True)
            if log.name == "first":
                with monkeypatch.context() as broken:
                    broken.setattr(buckets, "create", lambda *_: (_ for _ in ()).throw(OSError("no network")))
                    server.context.service.copy()
                assert "no network" in caplog.text
                assert "tandemrank_copy_failures_total 1.0" in server.get("/metrics").text
            server.context.service.copy()
            assert "tandemrank_copied_segments_total 1.0" in server.get("/metrics").text
            return sealed.path.name

    names = [served(tmp_path / "first"), served(tmp_path / "second")]
    assert names == ["segment-0-000000.parquet", "segment-0-000001.parquet"]
    assert sorted(buckets.sizes(url)) == names


def test_sealing_copies(tmp_path, url, capsys) -> None:
    saved(tmp_path / "policies", 0)
    log = Recorder(tmp_path / "log", Propensities(samples=2))
    Server(policy(), recorder=log, seed=0).rank(11)
    log.close()
    seal(tmp_path / "log", tmp_path / "policies", everything=True, bucket=url, as_json=True)
    assert '"copied": 1' in capsys.readouterr().out
    assert reading.read(url).N == 1


def test_half_of_a_log_at_a_url_is_told_by_its_name(tmp_path) -> None:
    url = f"memory://{tmp_path.name}/damaged"
    path = write(tmp_path)
    MEMORY.pipe_file(f"{url}/part.parquet", path.read_bytes()[:100])
    MEMORY.pipe_file(f"{url}/.hidden/part.parquet", b"half")
    MEMORY.pipe_file(f"{url}/notes.txt", b"not a log")
    found = validation.validate(url)
    assert [problem.file for problem in found.problems] == [f"{url}/part.parquet"]
    with pytest.raises(LogError, match=r"part\.parquet"):
        reading.read(url)
    MEMORY.pipe_file(f"{url}/part.parquet", path.read_bytes())
    with pytest.raises(LogError, match="given before"):
        reading.read([url, f"{url}/part.parquet"])


@pytest.mark.parametrize(
    ("kind", "words"),
    [(PermissionError("denied"), "no permission"), (RuntimeError("no\ncredentials"), "does not answer as it should")],
)
def test_what_a_store_refuses_is_one_line(kind, words, monkeypatch, tmp_path) -> None:
    def refuse(*args, **kwargs):
        raise kind

    monkeypatch.setattr(type(MEMORY), "find", refuse)
    with pytest.raises(LogError, match=words) as caught:
        reading.read("memory://nowhere/log")
    assert "\n" not in str(caught.value)
    with pytest.raises(OutputError, match=words):
        Bucket("memory://nowhere/log").next_number("0")
    monkeypatch.undo()
    MEMORY.pipe_file(f"{tmp_path.name}/x.parquet", b"x")
    monkeypatch.setattr(type(MEMORY), "get_file", refuse)
    with pytest.raises(LogError, match=words):
        reading.read(f"memory://{tmp_path.name}")


def test_without_the_extra_or_the_package_of_a_store_one_line_names_it(monkeypatch) -> None:
    import importlib

    def missing(name, *rest):
        raise ImportError("Install s3fs to access S3", name=name)

    with monkeypatch.context() as without:
        without.setattr(fsspec.core, "url_to_fs", missing)
        with pytest.raises(ConfigError, match="pip install s3fs"):
            Bucket("s3://bucket/log")
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install 'tandemrank\[bucket\]'"):
        reading.read("s3://bucket/log")


def test_a_clean_copy_never_replaces_the_log_that_a_url_names(tmp_path) -> None:
    pl.DataFrame({"query_id": [1], "items": [[1, 2]], "clicks": [[0, 1]]}).write_parquet(
        tmp_path / "part-00000.parquet"
    )
    with pytest.raises(ConfigError, match="is the log itself"):
        validation.fix(f"file://{tmp_path}", tmp_path)
