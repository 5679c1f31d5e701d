"""The journal: what was acknowledged is there after any death, a torn end is dropped, a full disk is loud."""

import errno
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemrank.errors import OutputError
from tandemrank.serving import journal as journals
from tandemrank.serving.journal import HEADER, Journal, read


def test_what_is_written_is_read(tmp_path) -> None:
    records = [b"", b"one", bytes(range(256)) * 10]
    log = Journal(tmp_path / "j.bin")
    log.append(records[0])
    log.append(*records[1:])
    log.close()
    log.close()
    assert read(tmp_path / "j.bin") == journals.Recovered(tuple(records))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_a_journal_cut_anywhere_keeps_every_whole_record(tmp_path_factory, records, data) -> None:
    path = tmp_path_factory.mktemp("cut") / "j.bin"
    log = Journal(path)
    ends = [0]
    for record in records:
        log.append(record)
        ends.append(log.size)
    log.close()
    cut = data.draw(st.integers(0, ends[-1]))
    os.truncate(path, cut)
    whole = sum(end <= cut for end in ends[1:])
    torn = cut - max(end for end in ends if end <= cut)
    assert read(path) == journals.Recovered(tuple(records[:whole]), torn, int(torn > 0))


@pytest.mark.parametrize("seed", range(2))
def test_behind_a_damaged_record_all_others_are_read(seed) -> None:
    rng = np.random.default_rng(seed)
    records = [rng.bytes(int(rng.integers(40))) for _ in range(20)]
    good = b"".join(map(journals.framed, records))
    ends = np.cumsum([HEADER.size + len(record) for record in records])
    for at in range(8 * len(good)):
        content = bytearray(good)
        content[at // 8] ^= 1 << at % 8
        hit = int(np.searchsorted(ends, at // 8, side="right"))
        found = journals.recovered(bytes(content))
        assert found.records == tuple(records[:hit] + records[hit + 1 :]), at
        assert (found.dropped, found.gaps) == (HEADER.size + len(records[hit]), 1)


def test_a_journal_is_a_new_file(tmp_path) -> None:
    (tmp_path / "j.bin").write_bytes(b"of somebody else")
    with pytest.raises(OutputError, match="File exists"):
        Journal(tmp_path / "j.bin")
    assert (tmp_path / "j.bin").read_bytes() == b"of somebody else"


@pytest.mark.parametrize("partly", [False, True])
def test_a_full_disk_leaves_no_trace(tmp_path, monkeypatch, partly) -> None:
    log = Journal(tmp_path / "j.bin")
    log.append(b"before")
    real = os.write

    def full(file: int, data: bytes) -> int:
        if partly and len(data) > 3:
            return real(file, data[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    for _ in range(2):
        with pytest.raises(OutputError, match="No space left on device"):
            log.append(b"lost")
    monkeypatch.setattr(os, "write", real)
    log.append(b"after")
    log.close()
    assert read(tmp_path / "j.bin") == journals.Recovered((b"before", b"after"))


def test_what_cannot_be_taken_back_ends_the_journal(tmp_path, monkeypatch) -> None:
    log = Journal(tmp_path / "j.bin")
    log.append(b"before")

    def broken(*args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", broken)
        patch.setattr(os, "ftruncate", broken)
        with pytest.raises(OutputError, match="Input/output error"):
            log.append(b"lost")
    assert not log.is_usable
    log.close()


def test_refused_after_the_end_and_when_too_long(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(journals, "LONGEST", 10)
    log = Journal(tmp_path / "j.bin")
    with pytest.raises(OutputError, match="longer than the 10"):
        log.append(b"x" * 11)
    log.close()
    with pytest.raises(OutputError, match="is closed"):
        log.append(b"x")


def test_every_record_on_disk_before_it_is_acknowledged_if_asked(tmp_path, monkeypatch) -> None:
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (synced.append(os.fstat(file).st_size), real(file))[1])
    log = Journal(tmp_path / "j.bin", sync_seconds=0)
    synced.clear()
    log.append(b"one")
    assert synced == [log.size] == [log.synced]
    log.close()


def test_everything_is_on_disk_within_a_second_also_if_nobody_asks(tmp_path, monkeypatch) -> None:
    assert 0 < journals.SYNC_SECONDS <= 1
    synced, real = threading.Event(), os.fsync
    log = Journal(tmp_path / "j.bin", sync_seconds=0.001)
    log.append(b"one")  # the first is there at once
    assert log.synced == log.size
    monkeypatch.setattr(os, "fsync", lambda file: (real(file), synced.set())[0])
    log.append(b"two")
    assert synced.wait(60)
    log.close()
    assert log.synced == log.size


def test_a_disk_that_fails_at_the_end_is_told_and_stops_nothing(tmp_path, monkeypatch, capsys) -> None:
    log = Journal(tmp_path / "j.bin", sync_seconds=3600)
    log.append(b"one")
    log.append(b"two")

    def broken(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", broken)
    log.close()
    assert "cannot be synced" in capsys.readouterr().err


WRITER = """
import sys
from tandemrank.serving.journal import Journal
log = Journal(sys.argv[1], sync_seconds=0)
for number in range(10_000_000):
    log.append(b"%d" % number)
    print(number, flush=True)
"""


def test_killed_at_any_moment_every_acknowledged_record_is_there(tmp_path) -> None:
    for turn in range(5):
        path = tmp_path / f"{turn}.bin"
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(3 + 7 * turn)]
            writer.send_signal(signal.SIGKILL)
            lines += writer.stdout.readlines()
        acknowledged = [int(line) for line in lines if line.endswith("\n")]  # the last one may be torn itself
        found = [int(record) for record in read(path).records]
        assert found == list(range(len(found)))
        assert len(found) >= len(acknowledged) > 2
