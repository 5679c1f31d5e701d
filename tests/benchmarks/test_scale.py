"""The measurement of scale runs, and its figures are what their names say."""

import math

import pytest

import scale
from tandemrank.errors import ConfigError


def test_a_small_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "NOISE_AT", 2000)
    monkeypatch.setattr(scale, "NOISE_K2", 50)
    found = scale.measure(items=2000, K2=20, queries=4, turns=1)
    assert found.growth_exact == pytest.approx(found.sparse_ms / found.sparse_ms_tenth)
    assert found.sparse_speedup == pytest.approx(found.dense_ms / found.sparse_ms)
    assert 20 < found.ranker_items_per_query <= 2 * 21 + scale.CLICKED
    assert [row.items for row in found.recommend_ms] == [200, 2000, 4000]
    assert all(row.exact_ms > 0 for row in found.recommend_ms)
    assert 0.8 < found.noise_ratio < 3
    assert math.isfinite(found.dense_ms)
    with pytest.raises(ConfigError, match="at least 10 x 20 items"):
        scale.measure(items=100, K2=20)
