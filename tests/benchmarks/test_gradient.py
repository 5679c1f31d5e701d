"""The benchmarks on small sizes: the rows they return; and that the rival they measure, PL-Rank-3, is right."""

from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

import _common
import enumeration
import epoch
import gradient
import logs
import pl_rank
from tandemrank._base.files import as_json
from tandemrank.experiments.results import from_json
from tandemrank.gradients import _bridge, race
from tandemrank.logs import writing
from worlds import assert_mean, seeded, world

SMALL = gradient.Effort(reinforce=200, race=8000, truth=20_000, turns=1, batch=200)


@pytest.fixture(scope="module")
def measured() -> gradient.Measured:
    return gradient.gradient(
        D=30, K=3, weighted=5, K2=(10, 20), large_D=60, reinforce_samples=20, race_samples=(1, 4), effort=SMALL
    )


def test_gradient_has_a_row_for_each_method_and_prints_as_json(measured: gradient.Measured) -> None:
    assert from_json(gradient.Measured, as_json(measured)) == measured
    found = {(row.method, row.K2, row.samples, row.scores) for row in measured.rows}
    methods = [("reinforce", 20), ("reinforce+baseline", 20), ("credit-assigned", 20), ("race", 1), ("race", 4)]
    assert found == {(m, K2, n, shape) for m, n in methods for K2 in (10, 20) for shape in ("flat", "peaked")}
    assert [(row.D, row.scores) for row in measured.draws] == [
        (30, "flat"), (30, "peaked"), (60, "flat"), (60, "peaked")
    ]  # fmt: skip
    assert all(row.draw_ratio > 0 and row.ms_per_query > 0 for row in measured.draws)


def test_errors_fall_with_the_square_root_of_the_samples(measured: gradient.Measured) -> None:
    """Four samples halve the error of one: so the truth they are measured from is the truth."""
    for rows in (measured.rows, measured.one_stage):
        error = {(r.K2, r.scores, r.samples): r for r in rows if r.method == "race"}
        for (K2, shape, samples), row in error.items():
            if samples == 1:
                for stage in ("generator", "ranker"):
                    one, four = (getattr(x, f"relative_error_{stage}") for x in (row, error[K2, shape, 4]))
                    assert one is None or abs(one / four / 2 - 1) < 0.25, (K2, shape, stage, one, four)


def test_the_race_is_sharper_than_its_rivals(measured: gradient.Measured) -> None:
    for row in (row for row in measured.rows if (row.method, row.samples) == ("race", 4)):
        rivals = [r for r in measured.rows if (r.K2, r.scores) == (row.K2, row.scores) and r.method != "race"]
        assert row.relative_error_generator < min(r.relative_error_generator for r in rivals)
        assert row.relative_error_ranker < min(r.relative_error_ranker for r in rivals if r.method != "credit-assigned")
    assert min(measured.ratio_generator, measured.ratio_ranker, measured.pl_rank_ratio) > 0


def test_threads_are_restored() -> None:
    before = numba.get_num_threads(), torch.get_num_threads()
    with _common.threads(1):
        assert (numba.get_num_threads(), torch.get_num_threads()) == (1, 1)
    assert (numba.get_num_threads(), torch.get_num_threads()) == before


def test_epoch_compares_with_its_floor() -> None:
    row = epoch.epoch(users=40, items=60, F=8, K2=20, K=3, clicked=4, minibatch=16, turns=2)
    assert from_json(epoch.Measured, as_json(row)) == row
    assert row.ratio == row.seconds / row.floor_seconds
    assert 0 < row.weighted_shown <= 3


def test_reading_a_log_is_compared_with_the_bare_group_by() -> None:
    written: list[int] = []
    row = logs.reading(2000, queries=20, items=80, K=10, turns=1, progress=written.append)
    assert from_json(logs.Measured, as_json(row)) == row
    assert row.ratio == row.seconds / row.bare_seconds
    assert row.same_sums
    assert row.shown == 20_000
    assert min(row.peak_mb, row.bare_peak_mb) > 30  # an interpreter with polars
    assert written == [2000]


def test_the_peak_is_that_of_the_process_alone(tmp_path: Path) -> None:
    here = np.ones(2**26)  # 512 MB, which must not count
    assert logs.peak_mb() > 512
    writing.write(logs.simulated(10, 5, 80, 10, seed=0), tmp_path / "log", logs.names(5, 80))
    assert logs.alone(logs.ours, tmp_path / "log").peak_mb < 512
    assert here.sum() == 2**26


def test_the_simulated_log_is_one_log_whatever_asks_for_it() -> None:
    """Lists of distinct items, the same for the same seed, in parts; items are shown at several ranks."""
    (one,), (other,) = (list(logs.simulated(500, 10, 80, 10, seed=3)) for _ in range(2))
    assert np.array_equal(one.items, other.items)
    assert np.array_equal(one.clicks, other.clicks)
    assert all(len(set(row)) == 10 for row in one.items.tolist())
    asked = np.bincount(one.query, minlength=10)
    assert asked[0] > 2 * asked[9]
    assert len(np.unique(one.items[one.query == 0][:, 3])) > 3


def test_a_stage_alone_gets_the_gradient_it_gets_beside_the_other() -> None:
    """What autograd does not ask for is skipped, and changes nothing else."""
    of = gradient.world("peaked", 50, K=4, weighted=6, seed=0).times(8)
    both = torch.autograd.grad(race.utility(of.s, of.r, of.w, of.theta, 20, generator=seeded(0)).sum(), (of.s, of.r))
    for stage, scores in enumerate([(of.s, of.r.detach()), (of.s.detach(), of.r)]):
        value = race.utility(*scores, of.w, of.theta, 20, generator=seeded(0))
        (alone,) = torch.autograd.grad(value.sum(), scores[stage])
        assert torch.equal(alone, both[stage])
    with torch.no_grad():
        again = race.utility(of.s, of.r, of.w, of.theta, 20, generator=seeded(0))  # by another kernel
        assert torch.allclose(again, value, rtol=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_pl_rank_3_by_enumeration(seed: int) -> None:
    _, r, w, theta, _ = world(seed)
    value, _, by_r = enumeration.utility([0.0] * len(r), r, w, theta, len(r))
    n = 20_000
    weights = csr_matrix(np.tile(np.array(w, np.float32), (n, 1)))
    found, grad = np.zeros(n), np.empty((n, len(r)), np.float32)
    pl_rank.utility(
        0, n, np.tile(np.array(r, np.float32), (n, 1)), _bridge.keys_for(n, seeded(seed)), *_bridge.entries(weights),
        np.array(theta, np.float32), 2, found, grad,
    )  # fmt: skip
    assert_mean(torch.from_numpy(found), value, f"world {seed}, value")
    assert_mean(torch.from_numpy(grad), by_r, f"world {seed}, gradient")
