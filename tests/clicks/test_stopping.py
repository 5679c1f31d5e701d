"""Readers who stop after a click: what they see of a list, by enumeration; and which of the two ways the log tells."""

from dataclasses import replace
from itertools import product

import numpy as np
import polars as pl
import pytest

from independent import worlds
from tandemrank.clicks import stopping
from tandemrank.clicks.examination import cells_of, examine
from tandemrank.logs import reading
from tandemrank.logs.impressions import CLICKS, By


def test_down_the_list_over_all_clicks_and_all_stops() -> None:
    """Every way in which a reader clicks and goes on, or not."""
    R, a, b = np.array([0.5, 0.2, 0.9]), np.array([0.8, 0.6]), np.array([0.3, 0.1])
    expected = np.zeros(3)
    for clicks in product((0, 1), repeat=3):
        for stays in product((0, 1), repeat=2):
            chance, reads = 1.0, [1]
            for k in range(2):
                on = b[k] if clicks[k] else a[k]
                chance *= on if stays[k] else 1 - on
                reads.append(reads[-1] * stays[k])
            for k in range(3):
                chance *= R[k] if clicks[k] else 1 - R[k]
            expected += chance * np.array(reads)
    assert stopping.down_the_list(1.0, a, b, R[None])[0] == pytest.approx(expected)


def test_here_and_there_over_all_looks_and_clicks() -> None:
    """Every way in which places are looked at and clicked, the last click above deciding the chance of the next look."""
    R = np.array([0.5, 0.2, 0.9])
    theta = np.array([[0.9, 0.0, 0.0], [0.6, 0.2, 0.0], [0.5, 0.3, 0.1]])
    expected = np.zeros(3)
    for looks, clicks in product(product((0, 1), repeat=3), repeat=2):
        chance, last = 1.0, 0
        for k in range(3):
            chance *= theta[k, last] if looks[k] else 1 - theta[k, last]
            chance *= (R[k] if clicks[k] else 1 - R[k]) if looks[k] else 1 - clicks[k]
            last = k + 1 if clicks[k] else last
        expected += chance * np.array(looks)
    assert stopping.here_and_there(theta, R[None])[0] == pytest.approx(expected)


def test_nobody_who_stops_is_the_curve_of_the_ranks() -> None:
    R, theta = np.random.default_rng(0).random((4, 3)), np.array([1.0, 0.5, 0.3])
    assert stopping.here_and_there(np.repeat(theta[:, None], 3, 1), R) == pytest.approx(np.tile(theta, (4, 1)))
    assert stopping.down_the_list(1.0, theta[1:] / theta[:-1], theta[1:] / theta[:-1], R) == pytest.approx(
        np.tile(theta, (4, 1))
    )


def world(seed: int, n: int, *, down: bool) -> worlds.World:
    """Readers who stop: down the list, or gone after a click on what they looked at here and there."""
    rng = np.random.default_rng(seed)
    w = worlds.graded("stop", rng, queries=50, items=25, K=5, K2=12, knows=0.4, middle=-0.8)
    w = worlds.logged(w, n, rng, stop=down)
    return w if down else replace(w, clicks=w.clicks * (np.cumsum(w.clicks, 1) == 1))


def frame(w: worlds.World) -> pl.DataFrame:
    lists = {"items": w.items, "clicks": w.clicks}
    return pl.DataFrame({"query_id": w.query, **{name: pl.Series(x).arr.to_list() for name, x in lists.items()}})


def test_readers_go_on_as_they_did() -> None:
    w = world(0, 30_000, down=True)
    log = reading.read(frame(w), by=By(CLICKS))
    theta = cells_of(log).array
    a, b = stopping.going_on(log, theta)
    assert a == pytest.approx(w.theta[1:] / w.theta[:-1], rel=0.1)
    assert b == pytest.approx((1 - worlds.STOPS) * w.theta[1:] / w.theta[:-1], rel=0.3)


@pytest.mark.parametrize("down", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_the_log_tells_how_readers_go_on(seed: int, down: bool) -> None:
    found = examine(frame(world(seed, 6_000, down=down)))
    assert found.cells is not None
    assert found.cells.down == down


def test_a_list_of_two_places_cannot_tell_and_is_read_down() -> None:
    w = world(1, 4_000, down=False)
    log = frame(replace(w, items=w.items[:, :2], clicks=w.clicks[:, :2]))
    read = reading.read_parts(log, lists=4_000)
    by_clicks = reading.read(log, vocabulary=read.train[0].vocabulary, by=By(CLICKS))
    assert stopping.reads_down(by_clicks, read.first, np.array([[1.0, 1.0], [0.6, 0.1]]))
