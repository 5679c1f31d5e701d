"""How the ranks of a policy are examined: readers who stop by enumeration, mixtures of curves, and values that are right."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import tandemrank as tr
from independent import worlds
from tandemrank.logs import reading
from tandemrank.logs.impressions import By
from tandemrank.offpolicy import examined, exposure
from tandemrank.offpolicy.examined import Curves


def world(seed: int, n: int = 8000, *, stop: bool = True) -> worlds.World:
    rng = np.random.default_rng(seed)
    w = worlds.graded("stop", rng, queries=50, items=25, K=4, K2=12, knows=0.4, middle=-0.8)
    return worlds.logged(w, n, rng, stop=stop)


def here_and_there(seed: int, n: int) -> worlds.World:
    """Readers who look at each place by itself, and are gone after a click."""
    w = world(seed, n, stop=False)
    first = np.cumsum(w.clicks, 1) == 1
    return replace(w, clicks=w.clicks * first)


def expected(w: worlds.World, query: np.ndarray, lists: np.ndarray) -> np.ndarray:
    """What such readers click."""
    chance = w.theta * w.R[query[:, None], lists]
    return 1 - np.prod(1 - chance, 1)


def frame(w: worlds.World) -> pl.DataFrame:
    lists = {"items": w.items, "clicks": w.clicks}
    return pl.DataFrame({"query_id": w.query, **{name: pl.Series(x).arr.to_list() for name, x in lists.items()}})


def policy(scores: np.ndarray, K: int = 4) -> tr.TwoStagePolicy:
    q, d = (x.ravel() for x in np.meshgrid(*map(np.arange, scores.shape), indexing="ij"))
    table = {"query_id": q, "item_id": d, "candidate_score": scores.ravel(), "ranker_score": scores.ravel()}
    return tr.policies.outside.policy_from_scores(pl.DataFrame(table), K2=scores.shape[1], K=K)


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


@pytest.mark.parametrize("down", [True, False])
def test_values_are_right_where_readers_stop(down: bool) -> None:
    """A policy that is better above: by the curve of the ranks alone it was promised a sixth too much; by readers of the other
    kind a tenth too little where they look here and there."""
    off, said = [], []
    for seed in range(2):
        w = world(seed + 10, 6000) if down else here_and_there(seed + 10, 12_000)
        scores = 2.0 * np.log(w.R / (1 - w.R))
        value = tr.estimate(policy(scores), frame(w), examination=w.theta, seed=seed)
        times = np.bincount(w.query, minlength=50)
        rng = np.random.default_rng(seed)
        rows = np.repeat(np.arange(50), 20 * times // 10)
        lists = worlds.best(scores[rows] + rng.gumbel(size=(len(rows), 25)), 4)
        truth = (worlds.expected_clicks(w, rows, lists) if down else expected(w, rows, lists)).mean()
        off.append(value.value / truth - 1)
        said.append(" ".join(value.reasons))
        assert value.interval[0] < truth < value.interval[1]
    assert abs(np.mean(off)) < 0.06
    assert all("readers stop after a click" in words and "is used" in words for words in said)
    assert all(("(down the list)" if down else "(here and there)") in words for words in said)


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
