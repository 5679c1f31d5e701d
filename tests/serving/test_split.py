"""Two policies at once: sticky shares, propensities of the mixture by enumeration, lists drawn again, features."""

import json

import numpy as np
import polars as pl
import pytest

import believing
import enumeration
from served import rows
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError, InputError, PolicyError
from tandemrank.logs import reading, validation
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy, extended
from tandemrank.serving import records, replay
from tandemrank.serving.drawing import Exploration
from tandemrank.serving.engine import Server
from tandemrank.serving.live_policy import LivePolicy, logged_id
from tandemrank.serving.propensities import Propensities
from tandemrank.serving.recorder import Recorder
from tandemrank.serving.records import Event

Q, D, K2, K = 4, 6, 4, 2
THETA = [1.0, 0.5]


def policy(seed: int = 0, *, first: int = 0, K: int = K, queries: list | None = None) -> TwoStagePolicy:
    rng = np.random.default_rng(seed)
    stages = [MatrixFactorisation(rng.normal(size=(Q, 3)), rng.normal(size=(D, 3))) for _ in range(2)]
    ids = Vocabulary(pl.Series(queries or range(10, 10 + Q)), pl.Series([f"i{d}" for d in range(first, first + D)]))
    return TwoStagePolicy(stages[0], stages[1], K2, K, ids)


def exact(live: LivePolicy, q: int, features: dict | None = None, times: float = 1.0) -> dict[str, float]:
    """The exposure of every item by enumeration, with the scores so many times as large."""
    s_c, s_r = ((times * s.astype(float)).tolist() for s in rows(live.scores(q, features)))
    one = [[float(d == e) for e in range(D)] for d in range(D)]
    return {item: enumeration.utility(s_c, s_r, one[d], THETA, K2)[0] for d, item in enumerate(live.items)}


def test_a_unit_keeps_its_policy_and_shares_are_kept() -> None:
    old, new = LivePolicy(policy(0)), LivePolicy(policy(1))
    split = records.split(old, new, 0.3, salt="x")
    arms = [split.choose(f"user {n}") for n in range(20_000)]
    assert arms == [split.choose(f"user {n}") for n in range(20_000)]
    assert abs(np.mean(arms) - 0.3) < 5 * np.sqrt(0.21 / 20_000)
    other = [records.split(old, new, 0.3, salt="y").choose(f"user {n}") for n in range(20_000)]
    assert abs(np.mean(np.array(arms) * other) - 0.09) < 5 * np.sqrt(0.09 / 20_000)
    grown = [records.split(old, new, 0.5, salt="x").choose(f"user {n}") for n in range(20_000)]
    assert all(b >= a for a, b in zip(arms, grown, strict=True))
    for share in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(ConfigError):
            records.split(old, new, share, salt="x")


def test_impressions_carry_the_propensity_of_the_mixture_and_are_drawn_again(tmp_path) -> None:
    log = Recorder(tmp_path, Propensities(400))
    server = Server(policy(0), recorder=log)
    old, new = server.traffic.first, LivePolicy(policy(1, first=2))
    server.swap(records.split(old, new, 0.25, salt="s"))
    answers = [server.rank(11, unit=f"u{n % 7}" if n % 2 else None) for n in range(60)]
    stuck = {}
    for n, found in enumerate(answers):
        server.feedback(found.impression_id, [Event(found.items[0])])
        if n % 2:
            assert stuck.setdefault(n % 7, found.policy) == found.policy
    [sealed] = log.seal(everything=True)
    log.close()
    assert (sealed.impressions, sealed.clicks) == (60, 60)
    frame = pl.read_parquet(sealed.path)
    assert set(frame["policy"]) == {old.digest, new.digest}
    a, b = exact(old, 11), exact(new, 11)
    for row in frame.iter_rows(named=True):
        assert json.loads(row["mixture"]) == [[old.digest, 0.75], [new.digest, 0.25]]
        for item, rho, error in zip(row["items"], row["propensities"], row["propensity_errors"], strict=True):
            assert abs(rho - 0.75 * a.get(item, 0) - 0.25 * b.get(item, 0)) <= 5 * error + 1e-6
    assert validation.validate(tmp_path / "*.parquet").fit
    assert reading.read(tmp_path / "*.parquet").N == 60
    found = replay.replay([tmp_path], [policy(0), policy(1, first=2)])
    assert (found.impressions, found.equal) == (60, 60)


def test_a_policy_that_does_not_fit_is_refused_and_the_old_one_stays() -> None:
    server = Server(policy(0))
    for wrong in (policy(1, K=1), policy(1, queries=["a", "b", "c", "d"])):
        with pytest.raises(PolicyError):
            server.swap(records.single(LivePolicy(wrong)))
    assert server.rank(10).policy == server.traffic.first.digest == LivePolicy(policy(0)).digest


def featured() -> TwoStagePolicy:
    ids = Vocabulary(pl.Series(range(10, 10 + Q)), pl.Series([f"i{d}" for d in range(D)]))
    return believing.policy(Q, D, K2, K, ids=ids)


def test_a_stranger_with_features_gets_what_the_extended_policy_gives() -> None:
    live = LivePolicy(featured())
    new = pl.DataFrame({"query_id": [99], "age": [61.0], "land": ["b"]})
    wanted = extended(featured(), query_features=new).plain_scores([Q])
    for found, other in zip(rows(live.scores(99, {"age": 61.0, "land": "b"})), wanted, strict=True):
        assert np.allclose(found, other.numpy(), atol=1e-5)
    server = Server(live)
    assert server.rank(99, query_features={"age": 61.0, "land": "b"}).source == "features"
    assert server.rank(10, query_features={"age": 61.0}).source == "policy"
    assert Server(policy()).rank(99, query_features={"age": 61.0}).source == "popular"


def test_features_that_decide_are_in_the_log_and_no_others(tmp_path) -> None:
    """So that the next process, after a kill, has their propensities."""
    log = Recorder(tmp_path, Propensities(5))
    server = Server(featured(), recorder=log)
    for age in (61.25, np.float64(61.25), float("nan")):
        server.rank(query_features={"age": age, "land": "b"})
    server.rank(11, query_features={"age": 99.75, "land": "b"})  # known: they do not decide
    with pytest.raises(InputError, match="'age': expected a number or text"):
        server.rank(query_features={"age": [1.0]})
    [journal] = tmp_path.glob("journal-*.bin")
    assert b"61.25" in journal.read_bytes()
    assert b"99.75" not in journal.read_bytes()
    log.close()
    later = Recorder(tmp_path, Propensities(5))
    Server(featured(), recorder=later)
    [sealed] = later.seal(everything=True)
    later.close()
    assert sealed.impressions == 4
    assert pl.read_parquet(sealed.path)["query_id"].n_unique() == 3
    found = replay.replay([tmp_path], [featured()])
    assert found.impressions == found.equal == 4
    assert validation.validate(tmp_path).fit


def test_one_unknown_id_with_other_features_has_other_propensities(tmp_path) -> None:
    log = Recorder(tmp_path, Propensities(300))
    server = Server(featured(), recorder=log, exploration=Exploration("temperature", 0.2))
    views = [{"age": -0.4, "land": "a"}, {"age": 0.4, "land": "b"}]
    shown = {server.rank(99, query_features=views[n % 2]).impression_id: n % 2 for n in range(40)}
    [sealed] = log.seal(everything=True)
    log.close()
    live = server.traffic.first
    found: list[dict[str, set[float]]] = [{}, {}]
    wanted = [exact(live, 99, view, times=5.0) for view in views]
    for row in pl.read_parquet(sealed.path).iter_rows(named=True):
        assert row["query_id"] == 99
        view = shown[row["impression_key"]]
        for item, rho, error in zip(row["items"], row["propensities"], row["propensity_errors"], strict=True):
            found[view].setdefault(item, set()).add(rho)
            assert abs(rho - wanted[view][item]) <= 5 * error + 1e-5
    assert all(len(values) == 1 for view in found for values in view.values())
    both = set(found[0]) & set(found[1])
    assert both
    assert all(found[0][item] != found[1][item] for item in both)


def test_ids_of_strangers_have_the_kind_of_the_policies() -> None:
    for features in (None, {"age": 1.0}):
        assert isinstance(logged_id(features, int), int)
        assert isinstance(logged_id(features, str), str)
    assert logged_id({"a": 1.0, "b": 2}, int) == logged_id({"b": 2, "a": 1.0}, int) != logged_id({"a": 1.0}, int)
