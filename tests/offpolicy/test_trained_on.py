"""A pair knows the log that it was trained on, and that log does not judge it."""

import numpy as np
import polars as pl
import pytest

import tandemrank as tr
from tandemrank.logs.feedback import fingerprint
from tandemrank.logs.reading import read
from tandemrank.offpolicy.verdicts import SEEN, Verdict

Q, D, K = 6, 9, 3


def log(N: int, seed: int) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    items = np.argsort(rng.random((N, D)), axis=1)[:, :K]
    clicks = (rng.random((N, K)) < 0.5 * (items < 4) / np.arange(1, K + 1)).astype(int)
    return pl.DataFrame(
        {"query_id": rng.integers(Q, size=N), "items": items.tolist(), "clicks": clicks.tolist()}
    ).with_columns(propensities=pl.lit([float(1 / D * sum(1 / k for k in range(1, K + 1)))] * K))


@pytest.fixture(scope="module")
def seen() -> pl.DataFrame:
    return log(6000, 0)


def test_the_log_of_its_training_does_not_judge_a_pair(seen, tmp_path) -> None:
    config = tr.LearningConfig.model_validate({"candidates": 6})
    pair = tr.learn(seen, config, seed=0).policy
    pair = tr.load(pair.save(tmp_path / "pair"))
    found = tr.estimate(pair, seen)
    assert found.reasons[0] == SEEN
    assert found.verdict == Verdict.CARE
    call = tr.decide(pair, seen)
    assert call.call != "ship"
    assert "trained on this very log" in call.why
    other = tr.estimate(pair, log(6000, 1))
    assert SEEN not in other.reasons


def test_a_log_has_one_name_however_it_is_cut(seen) -> None:
    whole, first, rest = (read(part) for part in (seen, seen[:500], seen[500:]))
    assert fingerprint([whole]) == fingerprint([rest, first])
    assert fingerprint([whole]) != fingerprint([first])
    turned = seen.with_columns(query_id=pl.col("query_id") + 100)
    assert fingerprint([read(turned)]) == fingerprint([whole])
