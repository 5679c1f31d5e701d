"""A log at a URL: the same sums as of one that is here, and whatever a store refuses in one line."""

import fsspec
import numpy as np
import polars as pl
import pytest

from tandemrank.errors import ConfigError, LogError
from tandemrank.logs import reading, validation

MEMORY = fsspec.filesystem("memory")


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    """An empty place."""
    yield f"memory://{tmp_path.name}/log" if request.param == "memory" else f"file://{tmp_path}/there/log"
    if MEMORY.exists(tmp_path.name):
        MEMORY.rm(tmp_path.name, recursive=True)


def write(folder, name: str, query: int):
    """A log of three impressions in a file."""
    path = folder / f"part-{name}.parquet"
    rows = {"query_id": [query, query, 0], "items": [[1, 2], [2, 3], [3, 1]], "clicks": [[0, 1], [0, 0], [1, 1]]}
    pl.DataFrame(rows).write_parquet(path)
    return path


def test_the_sums_of_a_log_at_a_url_are_the_same_bits(tmp_path, url) -> None:
    paths = [write(tmp_path, name, n) for n, name in enumerate(("a", "b"))]
    store, place = fsspec.core.url_to_fs(url)
    store.makedirs(place, exist_ok=True)
    for path in paths:
        store.put_file(str(path), f"{place}/{path.name}")
    here, there = reading.read(tmp_path / "*.parquet"), reading.read(url)
    assert here.N == there.N == 6
    for name, value in vars(here).items():
        if isinstance(value, np.ndarray):
            assert np.array_equal(value, getattr(there, name)), name
    assert reading.read(f"{url}/*-b.parquet").N == 3
    assert reading.read(f"{url}/{paths[0].name}").N == 3
    assert reading.read([f"{url}/{path.name}" for path in paths]).N == 6
    assert validation.validate(url).fit


def test_half_of_a_log_at_a_url_is_told_by_its_name(tmp_path) -> None:
    url = f"memory://{tmp_path.name}/damaged"
    path = write(tmp_path, "a", 1)
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
            reading.read("s3://bucket/log")
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ConfigError, match=r"pip install 'tandemrank\[bucket\]'"):
        reading.read("s3://bucket/log")


def test_a_clean_copy_never_replaces_the_log_that_a_url_names(tmp_path) -> None:
    pl.DataFrame({"query_id": [1], "items": [[1, 2]], "clicks": [[0, 1]]}).write_parquet(
        tmp_path / "part-00000.parquet"
    )
    with pytest.raises(ConfigError, match="is the log itself"):
        validation.fix(f"file://{tmp_path}", tmp_path)
