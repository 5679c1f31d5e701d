"""Rewards of the whole list: unbiased by enumeration where they are sums over places, else refused or said."""

from functools import cache
from itertools import permutations

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import enumeration
from tandemrank.cli.main import app
from tandemrank.errors import LogError
from tandemrank.offpolicy.exposure import MostLikely
from tandemrank.offpolicy.verdicts import Verdict
from tandemrank.offpolicy.whole_lists import LARGEST, pseudo_inverse, value_of_lists
from tandemrank.policies.outside import policy_from_scores

D, K2, K = 4, 3, 2
PHI = np.random.default_rng(0).normal(1, 1, (2, K, D))  # of two queries: what an item at a rank is worth
S_C, S_R = np.random.default_rng(1).normal(size=(2, 2, D)), np.random.default_rng(2).normal(size=(2, 2, D))


def policy(which: int):
    q, d = np.indices((2, D))
    both = {"candidate_score": S_C[which].ravel(), "ranker_score": S_R[which].ravel()}
    return policy_from_scores(pl.DataFrame({"query_id": q.ravel(), "item_id": d.ravel(), **both}), K2, K)


@cache
def chances(which: int, q: int) -> dict[tuple[int, ...], float]:
    """The chance of every list of a two-stage policy."""
    found = dict.fromkeys(permutations(range(D), K), 0.0)
    for candidates, p, _ in enumeration.rankings(S_C[which][q].tolist(), range(D), K2):
        for shown, then, _ in enumeration.rankings(S_R[which][q].tolist(), candidates, K):
            found[shown] += p * then
    return found


def everything(which: int = 0) -> pl.DataFrame:
    """Every list as an impression, its chance as its weight and its expected reward."""
    rows = [
        {
            "query_id": q,
            "items": list(one),
            "clicks": [0] * K,
            "weight": 1000 * p,
            "reward": PHI[q][range(K), one].sum(),
        }
        for q in range(2)
        for one, p in chances(which, q).items()
    ]
    return pl.DataFrame(rows)


def test_the_value_is_the_expected_reward_over_all_lists() -> None:
    for side, lists in ((MostLikely(policy(1)), policy(1).most_likely()), (policy(1), None)):
        truth = np.mean([
            PHI[q][range(K), lists[q]].sum() if lists is not None
            else sum(p * PHI[q][range(K), one].sum() for one, p in chances(1, q).items())
            for q in range(2)
        ])  # fmt: skip
        found = value_of_lists(side, everything())
        assert found.value == pytest.approx(truth, rel=1e-9 if lists is not None else 0.03)
        assert found.unsupported == pytest.approx(0.0, abs=1e-9)
        live = np.mean([sum(p * PHI[q][range(K), one].sum() for one, p in chances(0, q).items()) for q in range(2)])
        assert found.production == pytest.approx(live, rel=1e-9)
        assert found.verdict == Verdict.TRUST
    exact = value_of_lists(MostLikely(policy(1)), everything(), logging_policy=policy(0))
    by_count = value_of_lists(MostLikely(policy(1)), everything())
    assert exact.value == pytest.approx(by_count.value, rel=0.1)


def test_on_policy_the_mean_weight_is_one() -> None:
    lists = np.array(list(permutations(range(D), K)))
    p = np.array(list(chances(0, 0).values()))
    drawn = np.repeat(lists, np.round(20_000 * p).astype(int), axis=0)
    worth, lost = pseudo_inverse(lists, drawn, lists, p)
    assert p @ worth == pytest.approx(1.0, abs=1e-3)
    assert lost == pytest.approx(0.0, abs=1e-9)


def test_noise_is_in_the_interval() -> None:
    rng, q = np.random.default_rng(3), np.repeat([0, 1], 3000)
    lists = [list(chances(0, n)) for n in range(2)]
    drawn = [lists[n][rng.choice(len(lists[n]), p=list(chances(0, n).values()))] for n in q]
    reward = np.array([PHI[n][range(K), one].sum() for n, one in zip(q, drawn, strict=True)]) + rng.normal(size=len(q))
    log = pl.DataFrame({"query_id": q, "items": drawn, "clicks": [[0] * K] * len(q), "thumbs": reward})
    found = value_of_lists(MostLikely(policy(1)), log, "thumbs")
    truth = np.mean([PHI[n][range(K), policy(1).most_likely()[n]].sum() for n in range(2)])
    assert abs(found.value - truth) < 5 * found.standard_error
    assert found.interval[0] < found.value < found.interval[1]


def test_what_the_logger_never_put_there_is_unsupported() -> None:
    log = pl.DataFrame({"query_id": [0, 1], "items": [[0, 1], [0, 1]], "clicks": [[0, 0]] * 2, "reward": [1.0, 3.0]})
    q, d = np.indices((2, D))
    scores = 100.0 * np.array([[0, 1, 2, 3], [3, 2, 0, 1]])
    both = {"candidate_score": scores.ravel(), "ranker_score": scores.ravel()}
    side = policy_from_scores(pl.DataFrame({"query_id": q.ravel(), "item_id": d.ravel(), **both}), D, K)
    found = value_of_lists(MostLikely(side), log)  # 3, 2 for the first query, 0, 1 for the second
    assert found.unsupported == pytest.approx(0.5)
    assert found.value == pytest.approx(1.5)
    assert found.verdict == Verdict.REFUSE


def test_long_lists_and_other_columns_are_refused(tmp_path) -> None:
    wide = pl.DataFrame({"query_id": [0], "items": [list(range(60))], "clicks": [[0] * 60], "reward": [1.0]})
    q, d = np.indices((1, 60))
    rows = {"query_id": q.ravel(), "item_id": d.ravel(), "candidate_score": 0.0, "ranker_score": 0.0}
    with pytest.raises(LogError, match=f"of at most {LARGEST}; got 60 x 60"):
        value_of_lists(policy_from_scores(pl.DataFrame(rows), 60, 10), wide)
    small = everything()
    with pytest.raises(LogError, match="expected the column 'thumbs'"):
        value_of_lists(policy(1), small, "thumbs")
    with pytest.raises(LogError, match="expected a finite number for each impression"):
        value_of_lists(policy(1), small.with_columns(reward=pl.lit("good")))
    small.write_parquet(tmp_path / "log.parquet")
    policy(1).save(tmp_path / "policy")
    asked = ["estimate", "--logs", str(tmp_path / "log.parquet"), "--policy", str(tmp_path / "policy")]
    found = CliRunner().invoke(app, [*asked, "--list-reward", "reward"])
    assert found.exit_code == 0, found.output
    assert "unsupported" in found.stdout


def test_what_is_not_spanned_is_a_share() -> None:
    rng = np.random.default_rng(0)
    lists = np.array([rng.permutation(8)[:3] for _ in range(13)])
    _, unsupported = pseudo_inverse(lists[:2], lists[12:], lists[:12])
    assert 0.5 < unsupported <= 1
    _, spanned = pseudo_inverse(lists[:2], lists[:2], lists[:12])
    assert spanned == pytest.approx(0.0, abs=1e-9)
