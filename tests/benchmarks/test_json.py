"""What a measurement prints with --json: its names are fixed, whatever measures them."""

import json
from functools import cache
from typing import Any

import pytest

import bounds
import canaries
import epoch
import gradient
import logs
import scale
import serve
from tandemrank._base.files import as_json

ROW = "method K2 samples ms_per_query relative_error_generator relative_error_ranker scores"
NAMES = {
    "gradient": {
        "": "D K weighted ratio_generator ratio_ranker pl_rank_ratio rows draws one_stage",
        "rows": ROW,
        "one_stage": ROW,
        "draws": "D K2 scores ms_per_query draw_ratio",
    },
    "epoch": {"": "users items K2 samples threads weighted_shown seconds floor_seconds ratio"},
    "scale": {
        "": "items K2 sparse_ms sparse_ms_tenth dense_ms growth_exact sparse_speedup noise_ratio ranker_items_per_query "
        "recommend_ms",
        "recommend_ms": "items exact_ms",
    },
    "logs": {
        "": "seconds bare_seconds ratio peak_mb bare_peak_mb impressions shown rows same_sums file_mb threads",
    },
    "bounds": {
        "": "level simulations example example_rare_clicks example_bound examples rows",
        "examples": "bound light rare_clicks",
        "rows": "distribution over bound coverage mean_bound truth",
    },
    "canaries": {
        "": "canaries impressions share false_rollbacks false_promotions bad_policies rolled_back rolled_back_after",
        "rolled_back_after": "50% 95%",
    },
    "serve": {
        "": "p50_ratio p99_ratio throughput_ratio p50_ms p99_ms requests_per_second constant_p50_ms constant_p99_ms "
        "constant_requests_per_second cpu_ms constant_cpu_ms swaps kills replayed replay_equal large",
        "swaps": "swaps requests failed mixed",
        "kills": "kills acknowledged lost torn double",
        "large": "D p50_ms p99_ms kept_p50_ms kept_p99_ms",
    },
}
FEW = gradient.Effort(reinforce=4, race=64, truth=100, turns=1, batch=8)
TINY = serve.Size(
    D=60, K2=20, K=5, rank=4, queries=10, latency=5, throughput=80, swaps=1, swap_requests=8, kills=1, kill_seconds=1.3,
    replayed=20, million=200, million_requests=3,
)  # fmt: skip


@cache
def _served() -> serve.Served:
    return serve.measure(TINY)


MEASURED = {
    "gradient": lambda: gradient.gradient(
        D=30, K=3, weighted=5, K2=(10,), large_D=60, reinforce_samples=5, race_samples=(1,), effort=FEW
    ),
    "epoch": lambda: epoch.epoch(users=40, items=60, F=8, K2=20, K=3, clicked=4, minibatch=16, turns=1),
    "scale": lambda: scale.measure(items=2000, K2=20, queries=4, turns=1),
    "logs": lambda: logs.reading(2000, queries=20, items=80, turns=1),
    "bounds": lambda: bounds.measure(simulations=2),
    "canaries": lambda: canaries.measure(canaries=2, impressions=50, bad_policies=2),
    "serve": _served,
}


def names_in(value: dict[str, Any]) -> dict[str, str]:
    """Of the whole, and of each part that has names itself: of a list, those of its first row."""
    parts = {name: x[0] if isinstance(x, list) else x for name, x in value.items()}
    inside = {name: " ".join(x) for name, x in parts.items() if isinstance(x, dict)}
    return {"": " ".join(value), **inside}


@pytest.mark.parametrize("name", NAMES)
def test_the_names_of_a_measurement(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "NOISE_AT", 2000)
    monkeypatch.setattr(scale, "NOISE_K2", 50)
    assert names_in(json.loads(as_json(MEASURED[name]()))) == NAMES[name]


def test_serving_fails_nobody_mixes_nothing_and_loses_nothing() -> None:
    found = _served()
    assert (found.swaps.failed, found.swaps.mixed) == (0, 0)
    assert found.swaps.requests >= TINY.swap_requests
    assert (found.kills.lost, found.kills.torn, found.kills.double) == (0, 0, 0)
    assert found.kills.acknowledged > 0
    assert found.replay_equal == 1
    assert found.large is not None
    assert 0 < found.large.kept_p50_ms <= found.large.p99_ms
