"""Files that are not logs, and bad names: one sentence each, never a traceback or an endless wait."""

import os
import sys

import numpy as np
import polars as pl
import pytest

from tandemrank.cli.main import main
from tandemrank.cli.terminal import show, two_columns
from tandemrank.errors import LogError
from tandemrank.logs import reading, validation

FRAME = pl.DataFrame({"query_id": [1, 2], "items": [[7, 8], [8, 9]], "clicks": [[0, 1], [1, 0]]})
LONG = {"impression_id": [1, 2, 1, 2], "query_id": [5, 6, 5, 6], "item_id": [1, 1, 2, 2], "click": [0, 0, 1, 1]}


def test_a_pipe_among_logs_is_refused_and_not_waited_for(tmp_path):
    FRAME.write_parquet(tmp_path / "a.parquet")
    for name in ("b.parquet", "c.csv", "d.jsonl"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(LogError, match=rf"{name}: cannot be read: it is a pipe or a device"):
            reading.read(tmp_path)
        found = validation.validate(tmp_path)
        assert [p.file for p in found.problems] == [str(tmp_path / name)]
        assert found.usable == 2
        (tmp_path / name).unlink()


def test_a_link_to_itself_is_refused_by_its_name(tmp_path):
    loop = tmp_path / "loop.parquet"
    loop.symlink_to(loop)
    with pytest.raises(LogError, match=r"loop\.parquet: cannot be read: Too many levels of symbolic links"):
        reading.read(loop)
    with pytest.raises(LogError, match="Too many levels"):
        validation.fix(loop, tmp_path / "clean")


def test_a_name_that_is_not_utf_8_is_refused_in_print(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"\xff.parquet")
    FRAME.write_parquet("a.parquet")
    os.rename("a.parquet", name)
    with pytest.raises(LogError, match="its name is not UTF-8"):
        reading.read(name)
    monkeypatch.setattr(sys, "argv", ["tandemrank", "validate", name])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 1
    assert "\\udcff.parquet" in capsys.readouterr().out


def test_patterns_name_each_file_once_and_pass_over_what_is_no_log(tmp_path, monkeypatch):
    (tmp_path / "day").mkdir()
    FRAME.write_parquet(tmp_path / "day" / "a.parquet")
    (tmp_path / "README").write_text("a note")
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    for pattern in ("*", "**/*", "**"):
        assert reading.read(pattern).N == 2


def test_markup_in_a_path_is_printed_as_it_is(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "[bold]" / "[" / "b]"
    folder.mkdir(parents=True)
    (folder / "x.csv").write_text("a,b\n1,2\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tandemrank", "validate", "[bold]/[/b]/x.csv"])
    with pytest.raises(SystemExit):
        main()
    assert "[bold]/[/b]/x.csv" in capsys.readouterr().out
    show(two_columns({"log": "[bold]/[/b]"}))
    assert "[bold]/[/b]" in capsys.readouterr().out


@pytest.mark.parametrize("dtype", [pl.Int8, pl.UInt8, pl.Int16, pl.UInt64])
def test_positions_of_any_width_are_read(dtype):
    rows = {name: [x for x, i in zip(v, LONG["impression_id"], strict=True) if i == 1] for name, v in LONG.items()}
    log = pl.DataFrame({**rows, "position": pl.Series([1, 2], dtype=dtype)})
    assert reading.read(log).rank.tolist() == [0, 1]
    with pytest.raises(LogError, match="row 1, column position: expected positions from 1 to 1"):
        reading.read(log, K=1)


def test_arrays_of_a_fixed_size_are_lists_for_every_reader():
    log = pl.DataFrame({"query_id": [1, 2], "items": np.array([[7, 8], [8, 9]]), "clicks": np.array([[0, 1], [1, 0]])})
    assert isinstance(log.schema["items"], pl.Array)
    assert reading.read(log).clicks.sum() == 2


def test_a_long_log_whose_rows_lie_apart_is_not_cut_to_fragments(tmp_path):
    pl.DataFrame({**LONG, "position": [1, 1, 2, 2]}).write_parquet(tmp_path / "log.parquet")
    with pytest.raises(LogError, match="import --from long"):
        validation.fix(tmp_path / "log.parquet", tmp_path / "clean")
    assert not (tmp_path / "clean").exists()
