"""How the ranks of a policy are examined: readers who stop by enumeration, mixtures of curves, and values that are right."""

from itertools import product

import numpy as np
import polars as pl
import pytest

import tandemrank as tr
from independent import worlds
from tandemrank.logs import reading
from tandemrank.logs.impressions import CLICKS, By
from tandemrank.offpolicy import examined, exposure
from tandemrank.offpolicy.examined import Curves


def test_the_chance_to_be_examined_over_all_clicks_and_all_stops() -> None:
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
    assert examined.examined(1.0, a, b, R[None])[0] == pytest.approx(expected)


def world(seed: int, n: int = 8000, *, stop: bool = True) -> worlds.World:
    rng = np.random.default_rng(seed)
    w = worlds.graded("stop", rng, queries=50, items=25, K=4, K2=12, knows=0.4, middle=-0.8)
    return worlds.logged(w, n, rng, stop=stop)


def frame(w: worlds.World) -> pl.DataFrame:
    lists = {"items": w.items, "clicks": w.clicks}
    return pl.DataFrame({"query_id": w.query, **{name: pl.Series(x).arr.to_list() for name, x in lists.items()}})


def policy(scores: np.ndarray, K: int = 4) -> tr.TwoStagePolicy:
    q, d = (x.ravel() for x in np.meshgrid(*map(np.arange, scores.shape), indexing="ij"))
    table = {"query_id": q, "item_id": d, "candidate_score": scores.ravel(), "ranker_score": scores.ravel()}
    return tr.policies.outside.policy_from_scores(pl.DataFrame(table), K2=scores.shape[1], K=K)


def test_readers_go_on_as_they_did() -> None:
    w = world(0, 30_000)
    log = reading.read(frame(w), by=By(CLICKS))
    theta = tr.clicks.examination.cells_of(log).array
    a, b = examined.reading_on(log, theta)
    assert a == pytest.approx(w.theta[1:] / w.theta[:-1], rel=0.1)
    assert b == pytest.approx((1 - worlds.STOPS) * w.theta[1:] / w.theta[:-1], rel=0.3)


def test_a_mixture_of_curves_is_the_exposure_by_the_mixed_curve() -> None:
    w = world(1, 500)
    log, new = reading.read(frame(w)), policy(np.log(w.R))
    few = np.array([[1.0, 0.5, 0.2, 0.1], [0.9, 0.8, 0.7, 0.6]])
    share = np.tile([0.25, 0.75], (log.Q, 1))
    mixed = exposure.exposure_on(new, log, Curves(few, share), exposure.Races(20, 3))
    alone = exposure.exposure_on(new, log, share[0] @ few, exposure.Races(20, 3))
    assert mixed.rho == pytest.approx(alone.rho, abs=2e-3)
    assert mixed.total == pytest.approx(alone.total, rel=1e-5)
    at = Curves(few, share).at(np.array([0, 1]), np.array([0, 3]))
    assert at == pytest.approx([0.25 + 0.75 * 0.9, 0.25 * 0.1 + 0.75 * 0.6])


def test_by_a_column_a_query_has_the_curve_of_its_states() -> None:
    w = world(2, 600)
    log = frame(w).with_columns(device=pl.Series(np.where(np.arange(600) % 3 == 0, "phone", "desk")))
    read = reading.read(log, by=By("device", ("desk", "phone")))
    theta = np.array([[1.0, 1.0], [0.5, 0.2], [0.4, 0.1], [0.3, 0.05]])
    found = examined.curves_of(policy(np.log(w.R)), read, theta)
    assert found.few.tolist() == theta.T.tolist()
    phones = np.bincount(w.query[::3], minlength=50) / np.bincount(w.query, minlength=50)
    assert found.share[:, 1] == pytest.approx(phones)
    seen = np.bincount(read.query, read.shown * theta[read.rank, read.state], 50) / read.impressions
    assert found.share @ theta.sum(0) == pytest.approx(seen)


def test_values_are_right_where_readers_stop() -> None:
    """A policy that is better above: by the curve of the ranks alone it was promised a sixth too much."""
    off, said = [], []
    for seed in range(2):
        w = world(seed + 10, 6000)
        scores = 2.0 * np.log(w.R / (1 - w.R))
        value = tr.estimate(policy(scores), frame(w), examination=w.theta, seed=seed)
        times = np.bincount(w.query, minlength=50)
        rng = np.random.default_rng(seed)
        rows = np.repeat(np.arange(50), 20 * times // 10)
        lists = worlds.best(scores[rows] + rng.gumbel(size=(len(rows), 25)), 4)
        truth = worlds.expected_clicks(w, rows, lists).mean()
        off.append(value.value / truth - 1)
        said.append(" ".join(value.reasons))
        assert value.interval[0] < truth < value.interval[1]
    assert abs(np.mean(off)) < 0.06
    assert all("readers stop after a click" in words and "is used" in words for words in said)


def test_values_are_right_where_readers_trust_what_stands_high() -> None:
    """Found in the log, taken out of what the clicks at low ranks say, and given back to the places of the policy."""
    w = trusting(3)
    scores = 2.0 * np.log(w.R / (1 - w.R))
    value = tr.estimate(policy(scores), frame(w), examination=w.theta)
    times = np.bincount(w.query, minlength=50)
    rows = np.repeat(np.arange(50), times)
    lists = worlds.best(scores[rows] + np.random.default_rng(0).gumbel(size=(len(rows), 25)), 4)
    truth = worlds.expected_clicks(w, rows, lists).mean()
    assert value.value == pytest.approx(truth, rel=0.04)
    assert abs(value.value - truth) < 5 * value.standard_error
    assert any("trust bias" in reason and "taken out" in reason for reason in value.reasons)
    assert value.lower_bound < value.value
    assert value.excess >= 1


def trusting(seed: int) -> worlds.World:
    rng = np.random.default_rng(seed)
    w = worlds.graded("trust", rng, queries=50, items=25, K=4, K2=12, knows=0.4, middle=-0.8)
    return worlds.logged(w, 20_000, rng, trust=0.4)
