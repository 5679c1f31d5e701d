"""Writing results: in one piece or not at all, and never over what is not ours."""

import errno
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
import torch
from safetensors.torch import save_file

from tandemrank._base import files
from tandemrank._base.files import Kind, claim, claimed, replacing, write_text
from tandemrank.errors import ConfigError, OutputError

PAIR = Kind("pair", r"(one|two)\.txt", lambda path: (path / "one.txt").is_file())
GRID = Kind("grid", r"config\.json|cells/([^/]+/(record\.json)?)?")


def write_pair(path: Path, text: str = "new", **options) -> None:
    with replacing(path, PAIR, **options) as folder:
        folder.mkdir()
        (folder / "one.txt").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# --- in one piece -----------------------------------------------------------------------------------------------------


def test_a_result_appears_when_it_is_whole_and_replaces_the_one_before(tmp_path) -> None:
    target = tmp_path / "deep" / "pair"
    for text in ("first", "second"):
        write_pair(target, text)
        assert (target / "one.txt").read_text() == text
        assert names(tmp_path / "deep") == ["pair"]


def fail_once(monkeypatch, name: str, nth: int, error: BaseException) -> None:
    """The nth call of a function of `os` raises, after it has done its work if the error is Ctrl-C."""
    real, calls = getattr(os, name), []

    def failing(*arguments):
        calls.append(arguments)
        if len(calls) == nth:
            if isinstance(error, KeyboardInterrupt):
                real(*arguments)
            raise error
        return real(*arguments)

    monkeypatch.setattr(files.os, name, failing)


@pytest.mark.parametrize(
    ("name", "nth", "error", "raised"),
    [
        ("replace", 1, OSError(errno.EIO, "Input/output error"), OutputError),  # the second rename fails
        ("rename", 1, KeyboardInterrupt(), KeyboardInterrupt),  # Ctrl-C between the two
        ("rename", 1, PermissionError(errno.EACCES, "Permission denied"), OutputError),
        ("fsync", 1, OSError(errno.ENOSPC, "No space left on device"), OutputError),
    ],
)
def test_what_was_there_is_put_back(tmp_path, monkeypatch, name, nth, error, raised) -> None:
    write_pair(tmp_path / "pair", "before")
    fail_once(monkeypatch, name, nth, error)
    with pytest.raises(raised):
        write_pair(tmp_path / "pair", "after")
    assert (tmp_path / "pair" / "one.txt").read_text() == "before"
    assert names(tmp_path) == ["pair"]


def test_what_cannot_be_put_back_is_kept_and_named_and_the_next_write_puts_it_back(tmp_path, monkeypatch) -> None:
    write_pair(tmp_path / "pair", "before")
    real = os.rename

    def rename(a, b):
        if "old" in Path(a).parts:
            raise OSError(errno.EIO, "Input/output error")
        real(a, b)

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "rename", rename)
        fail_once(patched, "replace", 1, OSError(errno.EIO, "Input/output error"))
        with pytest.raises(OutputError, match=r"pair could not be put back .* It is at .*old.pair"):
            write_pair(tmp_path / "pair", "after")
    write_text(tmp_path / "other.txt", "x")
    assert names(tmp_path) == ["other.txt", "pair"]
    assert (tmp_path / "pair" / "one.txt").read_text() == "before"


def test_ctrl_c_while_writing_leaves_nothing(tmp_path) -> None:
    def interrupted() -> None:
        with replacing(tmp_path / "a.txt") as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == []


def test_files_and_folders_are_on_disk_before_and_after_the_rename(tmp_path, monkeypatch) -> None:
    events = []
    fsync, replace = os.fsync, os.replace

    def noted(handle):
        events.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    monkeypatch.setattr(files.os, "fsync", noted)
    monkeypatch.setattr(files.os, "replace", lambda a, b: (events.append("rename"), replace(a, b)))
    write_pair(tmp_path / "pair")
    assert events == ["file", "folder", "rename", "folder"]


def test_whoever_may_read_other_files_may_read_these(tmp_path) -> None:
    """Whatever mode a library gives its file, as safetensors does."""
    (tmp_path / "other").touch()
    with replacing(tmp_path / "a.txt") as temporary:
        temporary.touch(mode=0o600)
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("length", [200, 254, 255])
def test_long_names_work(tmp_path, length) -> None:
    write_text(tmp_path / ("a" * length), "text")
    assert (tmp_path / ("a" * length)).read_text() == "text"
    assert len(names(tmp_path)) == 1


@pytest.mark.parametrize("name", ["a" * 256, "ä" * 128, "a\0b", "/".join(["deep" * 20] * 60)])
def test_names_that_no_system_takes_are_one_error(tmp_path, name) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        write_text(f"{tmp_path}/{name}", "text")


def polars(path: Path) -> None:
    pl.DataFrame({"a": range(20_000)}).write_parquet(path, compression="uncompressed")


def safetensors(path: Path) -> None:
    save_file({"a": torch.rand(20_000)}, path)


def plain(path: Path) -> None:
    path.write_text("a" * 80_000)


@pytest.mark.parametrize("write", [polars, safetensors, plain])
def test_a_full_disk_is_one_error(tmp_path, write) -> None:
    """A limit on the size of files is as good as a full disk: the system refuses in the middle of a write."""
    write_text(tmp_path / "there", "before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(OutputError, match="there: File too large"), replacing(tmp_path / "there") as temporary:
            write(temporary)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "there").read_text() == "before"
    assert names(tmp_path) == ["there"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        pl.exceptions.ComputeError("parquet: underlying IO error: No space left on device (os error 28)"),
    ],
)
def test_no_space_left(tmp_path, error) -> None:
    with pytest.raises(OutputError, match="No space left on device"), replacing(tmp_path / "there"):
        raise error
    assert names(tmp_path) == []


def test_a_mistake_in_our_own_code_stays_one(tmp_path) -> None:
    with pytest.raises(pl.exceptions.ShapeError), replacing(tmp_path / "there"):
        raise pl.exceptions.ShapeError("unequal lengths")


# --- what a killed process leaves -------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys, pathlib
from tandemrank._base import files
target, where = pathlib.Path(sys.argv[1]), sys.argv[2]
def stop(*_): print("here", flush=True); signal.pause()
if where == "between":
    real = os.replace
    files.os.replace = stop
kind = files.Kind("pair", r"one\\.txt")
with files.replacing(target, kind) as folder:
    folder.mkdir()
    (folder / "one.txt").write_text("after")
    if where == "writing": stop()
"""


@pytest.mark.parametrize("where", ["writing", "between"])
def test_what_a_killed_process_left_is_cleaned_by_the_next_but_not_while_it_lives(tmp_path, where) -> None:
    write_pair(tmp_path / "pair", "before")
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "pair"), where], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    write_text(tmp_path / "other.txt", "x")
    [holder] = tmp_path.glob(".tandemrank-*")
    assert (holder / "new" / "pair" / "one.txt").read_text() == "after"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    write_text(tmp_path / "other.txt", "x")
    assert names(tmp_path) == ["other.txt", "pair"]
    assert (tmp_path / "pair" / "one.txt").read_text() == "before"


def test_only_what_is_recognisably_ours_is_cleaned(tmp_path) -> None:
    for name in (".tandemrank-abcdefgh", ".tandemrank-old", ".x"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
        (tmp_path / name / "precious.txt").touch()
    (tmp_path / ".tandemrank-empty123").mkdir()
    (tmp_path / ".tandemrank-earlier1").mkdir()
    os.utime(tmp_path / ".tandemrank-earlier1", (time.time() - 120,) * 2)
    files.clean(tmp_path)
    assert names(tmp_path) == [".tandemrank-abcdefgh", ".tandemrank-empty123", ".tandemrank-old", ".x"]
    files.clean(tmp_path / "nowhere")


# --- the one rule -----------------------------------------------------------------------------------------------------


def test_a_folder_that_is_not_a_result_of_ours_is_refused(tmp_path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    write_pair(photos)  # an empty folder holds nothing that could be lost
    (photos / "cat.jpg").touch()
    with pytest.raises(ConfigError, match=r"photos exists and is not a pair of ours: cat.jpg is in it"):
        write_pair(photos)
    (photos / "cat.jpg").rename(tmp_path / "cat.jpg")
    (photos / "album").mkdir()
    with pytest.raises(ConfigError, match=r"album/ is in it"):
        write_pair(photos)
    (photos / "album").rmdir()
    (photos / "one.txt").rename(photos / "two.txt")
    with pytest.raises(ConfigError, match=r"damaged, or was written by another program"):
        write_pair(photos)
    with pytest.raises(ConfigError, match=r"it is something else"):
        write_pair(tmp_path / "cat.jpg")
    assert names(tmp_path) == ["cat.jpg", "photos"]


def test_what_becomes_foreign_while_a_result_is_written_is_refused_too(tmp_path) -> None:
    def surprised() -> None:
        with replacing(tmp_path / "pair", PAIR) as folder:
            folder.mkdir()
            (tmp_path / "pair").mkdir()
            (tmp_path / "pair" / "cat.jpg").touch()

    with pytest.raises(ConfigError, match=r"cat.jpg is in it"):
        surprised()
    assert names(tmp_path / "pair") == ["cat.jpg"]


def test_a_file_never_replaces_a_folder_or_a_device(tmp_path) -> None:
    for target in (tmp_path, Path(os.devnull)):
        with pytest.raises(ConfigError, match="expected a file; there is a folder"):
            write_text(target, "x")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


def test_an_input_and_every_folder_above_it_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = tmp_path / "data" / "log"
    write_pair(log)
    (tmp_path / "link").symlink_to(log)
    for target, source in [
        (log, log),
        (log, "data/log"),
        (log, "data/*/one.txt"),
        (tmp_path / "data", log),
        (tmp_path, "link"),
        (tmp_path / "link", log / "one.txt"),
    ]:
        with pytest.raises(ConfigError, match=r"(it is|it holds) the input"):
            write_pair(target, inputs=[object(), source])
        with pytest.raises(ConfigError, match=r"(it is|it holds) the input"):
            claim(target, GRID, inputs=[source])
    write_pair(tmp_path / "data" / "clean", inputs=[log, "data/nothing-*", 17])
    assert (log / "one.txt").read_text() == "new"


def test_a_link_is_followed(tmp_path) -> None:
    write_pair(tmp_path / "run-1", "before")
    (tmp_path / "latest").symlink_to("run-1")
    write_pair(tmp_path / "latest", "after")
    assert (tmp_path / "latest").is_symlink()
    assert (tmp_path / "run-1" / "one.txt").read_text() == "after"


def test_a_claimed_folder_is_filled_bit_by_bit(tmp_path) -> None:
    folder = claim(tmp_path / "grid", GRID)
    write_text(folder / "config.json", "{}")
    write_text(folder / "cells" / "a" / "record.json", "{}")
    (folder / "notes.txt").write_text("mine")
    assert claim(folder, GRID) == folder
    with pytest.raises(ConfigError, match="not a training of ours"):
        claim(folder, Kind("training"))


def test_a_job_that_fails_before_it_has_written_leaves_no_folder(tmp_path) -> None:
    def failing(text: str | None = None) -> None:
        with claimed(tmp_path / "grid", GRID) as folder:
            if text is not None:
                write_text(folder / "config.json", text)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing()
    assert names(tmp_path) == []
    (tmp_path / "grid").mkdir()
    with pytest.raises(ZeroDivisionError):
        failing()
    assert names(tmp_path / "grid") == []  # an empty folder of somebody else stays
    (tmp_path / "grid").rmdir()
    for text in ("{}", None):
        with pytest.raises(ZeroDivisionError):
            failing(text)
        assert names(tmp_path / "grid") == [files.MARK, "config.json"]


def test_a_folder_of_somebody_else_is_not_claimed(tmp_path) -> None:
    (tmp_path / "config.json").touch()
    with pytest.raises(ConfigError, match=r"not a grid of ours: config.json is in it"):
        claim(tmp_path, GRID)
    assert names(tmp_path) == ["config.json"]


def test_claiming_cleans_what_a_killed_process_left_in_it(tmp_path) -> None:
    folder = claim(tmp_path / "grid", GRID)
    leftover = folder / "cells" / ".tandemrank-abcdefgh"
    (leftover / "new" / "a").mkdir(parents=True)
    (leftover / "lock").touch()
    claim(folder, GRID)
    assert names(folder / "cells") == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cannot_be_read_is_not_an_empty_one(tmp_path) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    with pytest.raises(OutputError, match="Permission denied"):
        write_pair(tmp_path / "closed")


def test_a_folder_that_cannot_be_listed_is_not_an_empty_one(tmp_path, monkeypatch) -> None:
    (tmp_path / "closed").mkdir()
    real = os.scandir

    def scandir(path="."):
        if Path(path).name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(OutputError, match="Permission denied"):
        write_pair(tmp_path / "closed")


def test_keys_of_a_configuration(tmp_path) -> None:
    path = tmp_path / "config.json"
    assert not files.has_keys(path, "format")
    for text, expected in [('{"format": 1}', True), ("[]", False), ("{", False), ("[" * 100_000, False)]:
        path.write_text(text)
        assert files.has_keys(path, "format") is expected


def test_json_without_nan(tmp_path) -> None:
    path = files.write_json(tmp_path / "x.json", {"a": float("nan"), 1: [float("inf"), (2.5,)]})
    assert json.loads(path.read_text()) == {"a": None, "1": [None, [2.5]]}


def test_nothing_is_left_where_nothing_can_be_written(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"cannot write .*file/x: Not a directory"):
        write_text(tmp_path / "file" / "x", "text")
