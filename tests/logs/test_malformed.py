"""Every malformed log is refused by name, reported whole, and leaves nothing behind."""

import polars as pl
import pytest

from malformed import CORPUS, K, long_columns, wide_columns
from tandemrank.errors import LogError
from tandemrank.logs import reading, validation


def test_the_corpus_is_large_and_its_good_logs_are_good():
    assert len(CORPUS) >= 30
    for good in (wide_columns(), long_columns()):
        assert validation.validate(pl.DataFrame(good), K=K).fit


@pytest.mark.parametrize("name", CORPUS)
def test_a_malformed_log_is_refused_by_file_row_and_column(name, tmp_path):
    bad = CORPUS[name]
    file = bad.write(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(LogError) as refused:
        reading.read(tmp_path, K=K)
    row = "" if bad.row is None else f", row {bad.row}"
    column = f", column {bad.column}" if bad.column else ""
    assert str(refused.value).startswith(f"{file}{row}{column}: ")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", CORPUS)
def test_a_malformed_log_is_reported(name, tmp_path):
    bad = CORPUS[name]
    file = bad.write(tmp_path)
    found = validation.validate(tmp_path, K=K)
    assert not found.fit
    first = [p for p in found.problems if p.column == bad.column and p.file == str(file)]
    assert first
    if bad.row is None:
        assert first[0].rows == ()
    else:
        assert any(bad.row == p.rows[0] and p.count >= len(p.rows) for p in first)
    assert found.usable <= found.impressions


@pytest.mark.parametrize("name", CORPUS)
def test_a_malformed_log_is_mended_or_leaves_nothing(name, tmp_path):
    bad = CORPUS[name]
    (tmp_path / "log").mkdir()
    bad.write(tmp_path / "log")
    try:
        fixed = validation.fix(tmp_path / "log", tmp_path / "clean", K=K)
    except LogError:
        assert [p.name for p in tmp_path.iterdir()] == ["log"]
        return
    assert fixed.dropped
    assert fixed.kept + sum(d.impressions for d in fixed.dropped) == fixed.impressions
    clean = validation.validate(fixed.path, K=K)
    assert clean.fit
    assert clean.impressions == fixed.kept
    assert sorted(p.name for p in tmp_path.iterdir()) == ["clean", "log"]
