"""Relevance that depends on the device: learned, valued, shown, served and judged in its context; without one as before."""

import json

import numpy as np
import polars as pl
import pytest

import tandemrank as tr
from tandemrank.cli.main import main
from tandemrank.errors import ConfigError, InputError, LogError
from tandemrank.serving.propensities import Propensities
from tandemrank.serving.recorder import Recorder
from tandemrank.serving.replay import replay

Q, D, K = 80, 30, 4
THETA = 1 / np.arange(1, K + 1)
RNG = np.random.default_rng(3)
SHIFT = np.outer([1, -1], RNG.normal(size=D))  # of phone and tv
R = 1 / (1 + np.exp(1 - 0.7 * RNG.normal(size=(Q, 3)) @ RNG.normal(size=(3, D)) - SHIFT[:, None, :]))
DEVICES = ("phone", "tv")


def log_of(n: int = 5000, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    q, device = rng.integers(Q, size=n), rng.integers(2, size=n)
    items = np.argsort(rng.random((n, D)), axis=1)[:, :K]
    clicks = rng.random((n, K)) < THETA * R[device[:, None], q[:, None], items]
    lists = {"items": items.tolist(), "clicks": clicks.astype(int).tolist()}
    return pl.DataFrame(
        {"query_id": q, **lists, "device": [DEVICES[d] for d in device], "noise": rng.integers(3, size=n)}
    )


def truth(policy: tr.TwoStagePolicy, *, knows: bool = True) -> float:
    """Clicks of the most likely lists, each device half of the time."""
    shown = [(policy.in_context({"device": x}) if knows else policy).most_likely() for x in DEVICES]
    return float(np.mean([np.take_along_axis(R[d], lists, 1) @ THETA for d, lists in enumerate(shown)]))


@pytest.fixture(scope="module")
def plain() -> tr.Learned:
    return tr.learn(log_of(), tr.LearningConfig(candidates=12, model="none"))


@pytest.fixture(scope="module")
def learned() -> tr.Learned:
    return tr.learn(log_of(), tr.LearningConfig(candidates=12, model="none"), context=["device"])


def test_with_context_more_is_clicked_and_the_value_says_so(plain, learned) -> None:
    before, after = truth(plain.policy, knows=False), truth(learned.policy)
    assert after > 1.1 * before
    best = np.mean([-np.sort(-R[d], 1)[:, :K] @ THETA for d in range(2)])
    assert after > 0.93 * best
    [value] = learned.most_likely.values()
    assert abs(value.value - after) < 4 * value.standard_error
    assert value.value > next(iter(plain.most_likely.values())).value
    assert learned.beliefs.constants()["context"]["columns"] == ["device"]
    assert learned.config.context == ("device",)
    assert truth(learned.policy, knows=False) > 0.97 * before  # who does not say is answered as on average


def test_where_a_context_changes_nothing_all_is_as_without_to_the_bit(plain) -> None:
    found = tr.learn(log_of(), tr.LearningConfig(candidates=12, model="none"), context=["noise"])
    assert found.notes == ["The context (noise) is not used: held-out pairs are not surely likelier with it."]
    assert found.policy.context_columns == ()
    for ours, theirs in zip(plain.policy.scores(range(Q)), found.policy.scores(range(Q)), strict=True):
        assert np.array_equal(ours.detach().numpy(), theirs.detach().numpy())
    assert [v.value for v in plain.values.values()] == [v.value for v in found.values.values()]


def test_estimates_take_the_context_of_the_log(learned) -> None:
    """Logged propensities, so that the truth can be asked for."""
    policy, late = learned.policy, log_of(3000, seed=8)
    uniform = np.full(K, THETA.sum() / D)
    late = late.with_columns(propensities=pl.lit(uniform.tolist()))
    value = tr.estimate(policy, late)
    q, d = (x.ravel() for x in np.meshgrid(np.arange(Q), np.arange(D), indexing="ij"))
    inside = [policy.in_context({"device": x}) for x in DEVICES]
    expected = np.mean([(one.exposure(q, d, THETA)[0] * R[n, q, d]).sum() / Q for n, one in enumerate(inside)])
    assert abs(value.value - expected) < 4 * value.standard_error
    without = tr.estimate(policy, late.drop("device"))
    assert without.value < value.value
    assert without.reasons[-1] == "valued in the average context: device is not in the log"
    found = tr.decide(policy, late, segment="device")
    assert sorted(s.segment for s in found.candidates[0].segments) == ["phone", "tv"]
    assert found.call == "ship"


def test_serve_answers_in_a_context_logs_it_and_draws_it_again(learned, tmp_path) -> None:
    policy = learned.policy
    recorder = Recorder(tmp_path / "log", Propensities(samples=20))
    server = tr.Server(policy, recorder=recorder, seed=1)
    for n in range(30):
        shown = server.rank(n % 5, context={"device": DEVICES[n % 2], "page": 3})
        assert len(shown.items) == K
    server.rank(1)
    server.rank(900, context={"device": "phone"})
    [sealed] = recorder.seal(everything=True)
    recorder.close()
    again = replay([sealed.path], [policy])
    assert again.equal == again.impressions == 32
    frame = pl.read_parquet(sealed.path)
    assert frame["device"].to_list()[:3] == ["phone", "tv", "phone"]
    assert frame["page"].to_list()[0] == "3"
    for x in DEVICES:
        rows = frame.filter((pl.col("device") == x) & (pl.col("query_id") == 2))
        rho = dict(zip(rows["items"][0].to_list(), rows["propensities"][0].to_list(), strict=True))
        q, items = np.full(len(rho), 2), np.array(list(rho))
        expected, error = policy.in_context({"device": x}).exposure(q, items, THETA, samples=400)
        assert np.abs(np.array(list(rho.values())) - expected).max() < 0.2
        assert error.max() < 0.1
    phone, tv = (server.explain(2, context={"device": x})[0].candidates for x in DEVICES)
    best = [[c.item for c in sorted(found, key=lambda c: c.place or 99)[:K]] for found in (phone, tv)]
    expected = [policy.recommend([2], context={"device": x})["items"].to_list()[0] for x in DEVICES]
    assert best == expected
    with pytest.raises(InputError, match="expected names that a served log does not use itself; got 'mixture'"):
        server.rank(1, context={"mixture": "x"})
    with pytest.raises(InputError, match="expected columns that a log does not use itself; got 'clicks'"):
        server.rank(1, context={"clicks": "x"})


def test_the_command_line(learned, tmp_path, capsys, monkeypatch) -> None:
    log_of().write_parquet(tmp_path / "log.parquet")
    run = ["learn", "--logs", str(tmp_path / "log.parquet"), "--context", "device", "--candidates", "12"]
    run += ["--set", "model=none", "--out", str(tmp_path / "out"), "--json"]

    def call(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["tandemrank", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert ended.value.code in (0, None), err
        return out

    summary = json.loads(call(*run))
    assert summary["switches"]["context"] == ["device"]
    assert summary["beliefs"]["context"]["columns"] == ["device"]
    folder = summary["methods"][0]["policy"]
    lists = [
        json.loads(call("recommend", folder, "--queries", "3", "--context", f"device={x}", "--json")) for x in DEVICES
    ]
    expected = [learned.policy.recommend([3], context={"device": x}).to_dicts() for x in DEVICES]
    assert lists == expected


@pytest.mark.parametrize(
    ("more", "error", "told"),
    [
        ({"context": ["shop"]}, LogError, "expected a column shop in the log"),
        ({"context": "device"}, ConfigError, "expected a list of columns"),
        ({"context": ["device"], "reward": "values"}, ConfigError, "a reward is learned without a context"),
        (
            {"context": ["device"], "config": tr.LearningConfig(context=("device",))},
            ConfigError,
            "expected context once",
        ),
    ],
)
def test_refusals(more, error, told) -> None:
    with pytest.raises(error, match=told):
        tr.learn(log_of(300), **more)


def test_known_ids_are_those_of_the_logging_policy() -> None:
    """Whatever the log has, and in the same places."""
    ids = tr.Vocabulary([*range(Q), 900], list(range(D))[::-1])
    factors = tr.MatrixFactorisation(np.zeros((Q + 1, 1)), np.zeros((D, 1)))
    drew = tr.TwoStagePolicy(factors, factors, D, K, ids)
    config = tr.LearningConfig(candidates=12, model="none")
    found = tr.learn(log_of(2500), config, context=["device"], logging_policy=drew)
    assert found.propensity == "exact"
    assert found.policy.vocabulary.item_ids.equals(ids.item_ids)
    assert found.policy.context_columns == ("device",)
    inside = found.policy.in_context({"device": "phone"})
    assert R[0, 3, inside.recommend([3])["items"].to_list()[0]].mean() > R[0, 3].mean()
