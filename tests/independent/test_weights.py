"""A log that keeps one impression in a hundred gives each the weight 100: it says no more than its impressions do."""

import numpy as np
import polars as pl
import pytest

from independent import simulator
from tandemrank.logs import feedback, sums
from tandemrank.logs.reading import read
from tandemrank.offpolicy.valuation import estimate
from tandemrank.offpolicy.values import PRODUCTION

LOGS, IMPRESSIONS = 60, 200
WORLD = simulator.world(11, queries=80, items=40, K=4, K2=12)


def frame(seed: int, weight: float | None) -> pl.DataFrame:
    log = simulator.impressions(WORLD, IMPRESSIONS, seed)
    columns = {"query_id": log.query, "items": log.items, "clicks": log.clicks.astype(np.uint8)}
    found = pl.DataFrame({name: list(x) if x.ndim == 2 else x for name, x in columns.items()})
    return found if weight is None else found.with_columns(weight=pl.lit(weight))


@pytest.mark.parametrize("weight", [None, 1.0, 2.0, 100.0, 100.5])
def test_intervals_and_bounds_hold_whatever_the_weight_of_an_impression(weight: float | None) -> None:
    queries = np.arange(len(WORLD.p))
    each = simulator.value_by_query(WORLD, queries, WORLD.s_c, WORLD.s_r, WORLD.K2, 4, samples=4000, seed=1)
    truth, held, above = float(WORLD.p @ each), 0, 0
    for seed in range(LOGS):
        found = estimate(PRODUCTION, frame(seed, weight), replicates=200)
        held += found.interval[0] <= truth <= found.interval[1]
        above += found.lower_bound > truth
        unit = "impressions" if weight in (None, 1.0) else "queries"
        assert found.sample.independent == unit
    assert held >= 52  # 95% of 60 less 2.5 standard errors
    assert above <= 7


def test_a_log_remembers_that_it_has_weights_when_it_is_merged_and_saved(tmp_path) -> None:  # type: ignore[no-untyped-def]
    log = read(frame(0, 2.0))
    merged = sums.merge([read(frame(1, None)), log])
    feedback.save(log, tmp_path / "sums")
    for one in (log, merged, sums.merge([log]), feedback.load(tmp_path / "sums")):
        assert (one.impressions == np.round(one.impressions)).all()
        assert one.weighted
    assert not sums.merge([read(frame(0, 1.0)), read(frame(1, None))]).weighted
