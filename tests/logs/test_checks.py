"""A file or an impression that comes twice is refused, and both places are named."""

import os

import numpy as np
import polars as pl
import pytest

from malformed import long_columns, wide_columns
from same import assert_same
from tandemrank.errors import LogError
from tandemrank.logs import reading, sources, validation
from tandemrank.logs.checks import KnownImpressions


@pytest.fixture
def log(tmp_path):
    (tmp_path / "log").mkdir()
    pl.DataFrame(wide_columns()).write_parquet(tmp_path / "log" / "a.parquet")
    return tmp_path / "log"


def refused(source, message):
    """Reading and validating say the same."""
    with pytest.raises(LogError, match=message):
        reading.read(source)
    found = validation.validate(source)
    assert not found.fit
    return found


def test_a_file_given_twice(log):
    file = log / "a.parquet"
    for source in ([file, file], [log, file], [str(log / "*.parquet"), log], [file, log / ".." / "log" / "a.parquet"]):
        found = refused(
            source, f"a.parquet: expected each file of a log once; it (was given before|is the same file as {file})"
        )
        assert found.impressions == 4  # counted once
    with pytest.raises(LogError, match="Leaving out impressions cannot fix this"):
        validation.fix([file, file], log.parent / "clean")
    assert not (log.parent / "clean").exists()


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_file_under_another_name(log, link):
    link(log / "a.parquet", log / "b.parquet")
    refused(log, f"{log / 'b.parquet'}: expected each file of a log once; it is the same file as {log / 'a.parquet'}")
    link(log / "a.parquet", log.parent / "c.jsonl")  # whatever form the name says it is
    refused([log / "a.parquet", log.parent / "c.jsonl"], "c.jsonl: expected each file of a log once")


def test_a_folder_behind_a_link(log):
    (log.parent / "other").symlink_to(log)
    refused([log, log.parent / "other"], "is the same file as")


def test_copies_are_other_files(log):
    """Nothing tells a copy of a wide log without ids from another day like it."""
    (log / "b.parquet").write_bytes((log / "a.parquet").read_bytes())
    assert reading.read(log).shown.sum() == 2 * reading.read(log / "a.parquet").shown.sum()


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_an_impression_in_two_files(tmp_path, form):
    frame = pl.DataFrame(long_columns())
    log = tmp_path / "log"
    log.mkdir()
    frame.write_parquet(log / "a.parquet")
    second = frame.with_columns(pl.col("impression_id").cast(pl.UInt16) + 1)  # 2 and 3: 2 is in both
    second.write_csv(log / "b.csv") if form == "csv" else second.write_parquet(log / "b.parquet")
    found = refused(
        log, f"b.{form}, row 0, column impression_id: expected the rows of an impression together, in one file"
    )
    assert (found.impressions, found.usable) == (4, 3)
    with pytest.raises(LogError, match="a part of each would stay"):  # both may be fragments of one
        validation.fix(log, tmp_path / "clean")


def test_a_wide_log_with_impression_ids(tmp_path):
    frame = pl.DataFrame(wide_columns()).with_columns(impression_id=pl.Series(["a", "b", "c", "d"]))
    assert_same(reading.read(frame), reading.read(frame.drop("impression_id")))
    for batch in (1, 100):
        twice = frame.with_columns(impression_id=pl.Series(["a", "b", "c", "b"]))
        with pytest.raises(LogError, match="row 3, column impression_id: expected each impression once; this one was"):
            reading.read(twice, batch=batch)
    side_by_side = frame.with_columns(impression_id=pl.Series(["a", "a", "b", "c"]))
    assert validation.validate(side_by_side).problems[0].rows == (1,)
    frame.write_parquet(tmp_path / "a.parquet")
    frame.reverse().write_ndjson(tmp_path / "b.jsonl")
    with pytest.raises(
        LogError, match=r"b.jsonl, row 0, column impression_id: .* this one was there before, in this file or"
    ):
        reading.read(tmp_path)
    fixed = validation.fix(sorted(tmp_path.iterdir()), tmp_path / "clean")
    assert (fixed.kept, [(d.column, d.impressions) for d in fixed.dropped]) == (4, [("impression_id", 4)])


def test_ids_of_many_batches_are_told_apart():
    rng = np.random.default_rng(0)
    known, met = KnownImpressions(), set()
    for _ in range(120):
        hashes = rng.integers(0, 2000, rng.integers(0, 60)).astype(np.uint64)
        expected = []
        for value in hashes.tolist():
            expected.append(value in met)
            met.add(value)
        assert known.repeated(hashes).tolist() == expected
    assert sorted(known.hashes().tolist()) == sorted(met)


def test_an_impression_without_an_id_is_a_problem_of_its_own():
    frame = pl.DataFrame(long_columns() | {"impression_id": [None, 1, None, 2]})
    columns = [problem.message for batch in sources.batches(frame) for problem in batch.found]
    assert columns == []
    with pytest.raises(LogError, match="row 0, column impression_id: expected a value; got null"):
        reading.read(frame)
