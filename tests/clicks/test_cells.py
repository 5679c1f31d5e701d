"""Clicks by cells: the last click above, columns of a log, their examination from the log, and the file it is in."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tandemrank._base.files import as_json
from tandemrank.clicks import examination
from tandemrank.clicks.models import CellCurve, read_examination, theta_of
from tandemrank.errors import ConfigError, LogError
from tandemrank.logs import feedback, reading, sums
from tandemrank.logs.impressions import CLICKS, By, FlatImpressions, after_clicks

Q, D, K = 30, 8, 3


def frame(n: int, seed: int, *, stops: float = 0.0, device: bool = False) -> pl.DataFrame:
    """Random lists of readers who look at rank k with chance 1/k, and on phones with chance 1/k^2."""
    rng = np.random.default_rng(seed)
    R = np.random.default_rng(0).uniform(0.1, 0.7, (Q, D))
    query, phone = rng.integers(0, Q, n), rng.random(n) < 0.5
    items = np.argsort(rng.random((n, D)), axis=1)[:, :K]
    clicks, reading_on = np.zeros((n, K), np.int64), np.ones(n, np.bool_)
    for k in range(K):
        theta = (k + 1.0) ** -np.where(phone & device, 2, 1)
        clicks[:, k] = reading_on & (rng.random(n) < theta * R[query, items[:, k]])
        reading_on &= (clicks[:, k] == 0) | (rng.random(n) >= stops)
    columns = {"items": pl.Series(items).arr.to_list(), "clicks": pl.Series(clicks).arr.to_list()}
    return pl.DataFrame({"query_id": query, **columns, "device": np.where(phone, "phone", "desk")})


def test_the_last_click_above_by_hand() -> None:
    flat = FlatImpressions(
        query=np.array([0, 1]), length=np.array([4, 3]), weight=None, item=np.arange(7), rank=np.array([0, 1, 2, 3, 2, 0, 1]),
        click=np.array([0, 1, 0, 1, 1, 1, 0], np.uint8), propensity=None,
    )  # fmt: skip
    found = after_clicks(flat, By(CLICKS))
    assert found.state is not None
    assert found.state.tolist() == [0, 0, 2, 2, 1, 0, 1]
    assert found.by == By(CLICKS)


def test_rows_of_a_log_have_states_and_together_they_are_the_log() -> None:
    log = frame(2000, 1, stops=0.8)
    plain, by_clicks = reading.read(log), reading.read(log, by=By(CLICKS))
    assert by_clicks.state is not None
    assert len(by_clicks.query) > len(plain.query)
    key = sums.pack(by_clicks.query, by_clicks.item, by_clicks.rank)
    at = np.searchsorted(sums.pack(plain.query, plain.item, plain.rank), key)
    for name in ("shown", "clicks", "others"):
        assert np.array_equal(np.bincount(at, getattr(by_clicks, name)), getattr(plain, name))
    assert feedback.fingerprint([plain]) == feedback.fingerprint([by_clicks])
    halves = sums.merge([reading.read(log[1000:], by=By(CLICKS)), reading.read(log[:1000], by=By(CLICKS))])
    for name in ("query", "item", "rank", "state", "shown", "clicks"):
        assert np.array_equal(getattr(halves, name), getattr(by_clicks, name))
    with pytest.raises(LogError, match="same states"):
        sums.merge([plain, by_clicks])
    theta = np.arange(1.0, 10).reshape(3, 3) / 10
    assert np.array_equal(feedback.examination(by_clicks, theta), theta[by_clicks.rank, by_clicks.state])
    with pytest.raises(LogError, match="by more than the rank"):
        feedback.examination(plain, theta)
    mean = [(theta[k, by_clicks.state] * by_clicks.shown)[by_clicks.rank == k].sum() / 2000 for k in range(K)]
    assert feedback.by_rank(by_clicks, theta) == pytest.approx(mean)


def test_examination_by_the_last_click_is_found_where_readers_stop() -> None:
    found = examination.examine(frame(30_000, 2, stops=0.8))
    assert found.dependence is not None
    assert found.dependence.stops
    cells = found.cells
    assert cells is not None
    assert cells.states == By(CLICKS, down=False)
    assert cells.array[1, :2] == pytest.approx([0.5, 0.1], rel=0.15)
    assert cells.array[2, 1:] == pytest.approx([0.2 / 3, 0.2 / 3], rel=0.3)
    quiet = examination.examine(frame(10_000, 2))
    assert quiet.cells is None
    assert quiet.curve == tuple(quiet.theta.tolist())


def test_examination_by_a_column() -> None:
    log = frame(30_000, 3, device=True)
    cells = examination.examine(log, by="device").cells
    assert cells is not None
    assert (cells.by, cells.values) == ("device", ("desk", "phone"))
    assert cells.array[:, 0] == pytest.approx([1, 1 / 2, 1 / 3], rel=0.1)
    assert cells.array[:, 1] == pytest.approx([1, 1 / 4, 1 / 9], rel=0.15)
    with pytest.raises(LogError, match="expected a column 'place'"):
        examination.examine(log, by="place")
    with pytest.raises(LogError, match="expected one of desk; got 'phone'"):
        reading.read(log, by=By("device", ("desk",)))
    with pytest.raises(ConfigError, match="sums of a log have no columns"):
        examination.examine(reading.read(log), by="device")


def test_states_are_drawn_to_their_mean_and_clicks_and_ranks_to_their_neighbours() -> None:
    x = np.array([0.0, 1.0, 2.0, 5.0, 3.0, 1.0])  # two ranks in three states
    column, clicks = (x @ examination.drawn_together(2, 3, clicks=of_clicks) @ x for of_clicks in (False, True))
    down = 25 + 4 + 1
    assert column == pytest.approx(down + (1 + 0 + 1) + (4 + 0 + 4))
    assert clicks == pytest.approx(down + 1 + 4, abs=100 * examination.FAINT)


def test_the_curves_of_a_column_have_intervals_that_hold() -> None:
    held = []
    for seed in range(3, 8):
        found = examination.examine(frame(8_000, seed, device=True), by="device")
        assert found.cells is not None
        assert found.cells_low is not None
        assert found.cells_high is not None
        k = np.arange(1, K + 1)[:, None]
        true = 1.0 / k ** np.array([1, 2])
        held.append((found.cells_low <= true) & (true <= found.cells_high))
        assert (found.cells_low[1:] < found.cells.array[1:]).all()
    assert np.mean(held) >= 0.85  # 30 intervals of 95%


def test_the_file_of_examine_is_what_commands_take(tmp_path: Path) -> None:
    found = examination.examine(frame(20_000, 2, stops=0.8))
    path = tmp_path / "curve.json"
    path.write_text(as_json(found), encoding="utf-8")
    assert read_examination(path) == found.cells
    path.write_text(json.dumps([1, 0.5]), encoding="utf-8")
    assert read_examination(path) == (1.0, 0.5)
    assert theta_of((1.0, 0.5)).tolist() == [1.0, 0.5]
    path.write_text(json.dumps({"theta": [1, 0.5], "cells": {"theta": [[1], [0.5]]}}), encoding="utf-8")
    with pytest.raises(ConfigError, match="expected `cells` as"):
        read_examination(path)


def test_curves_that_are_none() -> None:
    assert CellCurve(((1.0,), (0.5,)), offset=(0.0, -0.1)).array.tolist() == [1.0, 0.5]
    for wrong in (((1.0,), (0.5, 0.2)), (), ((1.0,), (2.0,))):
        with pytest.raises(ConfigError, match="expected examination"):
            CellCurve(wrong)
    with pytest.raises(ConfigError, match="expected examination"):
        CellCurve(((1.0,), (0.5,)), offset=(0.0,))


def test_long_lists_have_no_states() -> None:
    log = pl.DataFrame({"query_id": [1], "items": [list(range(40))], "clicks": [[0] * 40]})
    with pytest.raises(LogError, match="at most 32 places"):
        reading.read(log, by=By(CLICKS))
