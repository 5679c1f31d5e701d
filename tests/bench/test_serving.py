"""The measurement of serving, as small as it can be: its counters see what is lost, and find nothing lost."""

import polars as pl
import pytest

from tandemrank.bench import serving
from tandemrank.bench.serving import Size
from tandemrank.serving import replay

SIZE = Size(
    D=60, K2=20, K=5, rank=4, queries=10, swaps=2, swap_requests=40, kills=1, kill_seconds=1.3, replayed=50, million=200,
    million_requests=5,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("bench")
    for number in range(2):
        serving.random_pair(SIZE, number).save(found / "pairs" / f"pair-{number}")
    return found


def test_swaps_fail_nobody_and_mix_nothing(folder) -> None:
    found = serving.swapped(folder, SIZE)
    assert (found.failed, found.mixed) == (0, 0)
    assert found.requests >= 40
    names = {p for s in replay.segments([folder / "log-swaps"]) for p in pl.read_parquet(s)["policy"]}
    assert len(names) == 2


def test_a_kill_loses_nothing_that_was_acknowledged(folder) -> None:
    found = serving.killed(folder, SIZE)
    assert (found.lost, found.torn, found.double) == (0, 0, 0)
    assert found.acknowledged > 0


def test_replay_and_the_large_catalogue(folder) -> None:
    assert serving._replayed(folder, SIZE) == 1
    found = serving.large(SIZE, 0)
    assert 0 < found.kept_p50_ms <= found.p99_ms
