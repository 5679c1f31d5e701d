"""Values under other curves: draws from the curve's interval, both errors together, steepness, what is refused."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError
from tandemrank.logs import counting
from tandemrank.logs.impressions import Impressions
from tandemrank.offpolicy import uncertainty, valuation
from tandemrank.offpolicy.uncertainty import CurveInterval
from tandemrank.policies.scorers import GivenScores
from tandemrank.policies.two_stage import TwoStagePolicy

THETA = np.array([1.0, 0.5, 1 / 3])
CURVE = CurveInterval(THETA, np.array([1.0, 0.4, 0.22]), np.array([1.0, 0.62, 0.5]), 0.95)
Q, D, K = 80, 7, 3
VOCABULARY = Vocabulary(pl.Series(range(Q)), pl.Series(range(D)))


def pair(scores: np.ndarray, K2: int) -> TwoStagePolicy:
    return TwoStagePolicy(GivenScores(scores), GivenScores(scores), K2, K, VOCABULARY)


def test_draws_have_the_curve_and_its_interval() -> None:
    drawn = CURVE.draws(20_000, seed=1)
    assert np.median(drawn, axis=0) == pytest.approx(THETA, rel=0.02)
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    wide = np.sqrt(CURVE.high / CURVE.low)
    assert low == pytest.approx(THETA / wide, rel=0.03)
    assert high == pytest.approx(THETA * wide, rel=0.03)
    assert np.corrcoef(np.log(drawn[:, 1]), np.log(drawn[:, 2]))[0, 1] == pytest.approx(0.5, abs=0.03)
    assert (drawn <= 1).all()
    assert (drawn[:, 0] == 1).all()


def test_a_value_with_its_curve() -> None:
    """Users look further down than the curve says; it is within the curve's interval, and the truth within the value's."""
    rng = np.random.default_rng(0)
    liked = rng.normal(size=(Q, D))
    true_theta, R = uncertainty.steeper(THETA, 0.8), 1 / (1 + np.exp(-liked))
    query = rng.integers(Q, size=20_000)
    items = np.argsort(-(0.3 * liked[query] + rng.gumbel(size=(20_000, D))), axis=1)[:, :K]
    clicks = rng.random(items.shape) < true_theta * R[query[:, None], items]
    log = counting.from_impressions(
        [Impressions(query.astype(np.int32), items.astype(np.int32), clicks.astype(np.uint8))], VOCABULARY
    )
    new, asked = pair(1.5 * liked, 5), valuation.Question(estimator="ips", logging_policy=pair(0.3 * liked, D), seed=3)
    value, found = valuation.sensitivity_of(new, log, asked, CURVE)
    plain = valuation.estimate(
        new, log, examination=THETA, estimator="ips", logging_policy=pair(0.3 * liked, D), seed=3
    )
    assert value.value == plain.value
    low, high = found.interval_with_curve
    assert low < value.interval[0] < value.interval[1] < high
    assert [row.steepness for row in found.by_steepness] == list(uncertainty.STEEPNESS)
    assert found.by_steepness[2].value == value.value
    assert found.curve_error > 0.05 * value.standard_error
    by = [row.value for row in found.by_steepness]
    assert by == sorted(by)  # this pair gains at the top, so it gains the more the steeper the curve is
    q, d = np.divmod(np.arange(Q * D), D)
    rho = new.exposure(q, d, true_theta, samples=500)[0].reshape(Q, D)
    truth = float(log.impressions @ (rho * R).sum(1)) / log.N
    assert low < truth < high
    live = log.clicks.sum() / log.N
    assert found.by_steepness[0].above_production == pytest.approx(found.by_steepness[0].value - live)


def test_files_and_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "curve.json"
    path.write_text(
        json.dumps({"theta": [1, 0.5], "low": [1, 0.4], "high": [1, 0.6], "level": 0.9, "method": "harvest"})
    )
    assert uncertainty.read_curve_interval(path).high.tolist() == [1, 0.6]
    path.write_text(json.dumps({"theta": [1, 0.5]}))
    with pytest.raises(ConfigError, match="expected JSON with theta, low, high and level"):
        uncertainty.read_curve_interval(path)
    with pytest.raises(ConfigError, match="it cannot be read"):
        uncertainty.read_curve_interval(tmp_path / "absent.json")
    with pytest.raises(ConfigError, match="of one length, 0 < low <= theta <= high"):
        CurveInterval(THETA, THETA, 0.5 * THETA, 0.95)
