"""The engine: answers, a log that others read as it is, propensities against enumeration, replay, recovery."""

from dataclasses import replace

import fsspec
import numpy as np
import polars as pl
import pytest
import torch

import enumeration
import served
from served import Clock
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError, InputError, LogError, OutputError
from tandemrank.gradients import race
from tandemrank.logs import reading, validation
from tandemrank.offpolicy.valuation import estimate
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.serving import drawing, engine, recorder, replay
from tandemrank.serving.drawing import Exploration
from tandemrank.serving.engine import Server
from tandemrank.serving.live_policy import LivePolicy, digest
from tandemrank.serving.propensities import Propensities
from tandemrank.serving.recorder import Recorder
from tandemrank.serving.records import Event, Impression, StoredEvent
from tandemrank.serving.sealing import Sealer, join_clicks
from tandemrank.serving.verdict import Outcomes

Q, D, K2, K = 4, 6, 4, 2
THETA = [1.0, 0.5]
STRATEGIES = [Exploration(), Exploration("temperature", 2.0), Exploration("uniform", 0.3), Exploration("deterministic")]


def policy(seed: int = 0, items: list | None = None) -> TwoStagePolicy:
    rng = np.random.default_rng(seed)
    stages = [MatrixFactorisation(rng.normal(size=(Q, 3)), rng.normal(size=(D, 3))) for _ in range(2)]
    ids = Vocabulary(pl.Series(range(10, 10 + Q)), pl.Series(items or [f"i{d}" for d in range(D)]))
    return TwoStagePolicy(stages[0], stages[1], K2, K, ids)


def rows(live: LivePolicy, query: int, available: list[str] | None = None) -> tuple[np.ndarray, np.ndarray]:
    return served.rows(live.scores(query, None, available))


def exposed(how: Exploration, s_c: np.ndarray, s_r: np.ndarray, *, samples: int, seed: int):
    """rho of all items, and its error."""
    return how.exposure(s_c, s_r, np.arange(D), torch.tensor(THETA), K2, samples=samples, seed=seed)


def exact_exposure(s_c: np.ndarray, s_r: np.ndarray) -> np.ndarray:
    """rho of every document by enumeration of all candidate sets and lists."""
    return np.array([enumeration.utility(s_c, s_r, [float(d == e) for e in range(D)], THETA, K2)[0] for d in range(D)])


@pytest.mark.parametrize("how", STRATEGIES, ids=lambda how: how.name)
def test_exposure_of_every_strategy_by_enumeration(how) -> None:
    live = LivePolicy(policy())
    s_c, s_r = rows(live, 11)
    rho, error = exposed(how, s_c, s_r, samples=20_000, seed=1)
    a, b = (s.astype(float).tolist() for s in (s_c, s_r))
    if how.strategy == "temperature":
        wanted = exact_exposure([x / 2 for x in a], [x / 2 for x in b])
    elif how.strategy == "uniform":
        wanted = 0.7 * exact_exposure(a, b) + 0.3 * exact_exposure([0.0] * D, [0.0] * D)
    elif how.strategy == "deterministic":
        wanted = np.zeros(D)
        wanted[race.most_likely(torch.from_numpy(s_c)[None], torch.from_numpy(s_r)[None], K2, K)[0]] = THETA
    else:
        wanted = exact_exposure(a, b)
    assert np.all(np.abs(rho - wanted) <= 5 * error + 1e-6)
    assert rho.sum() == pytest.approx(sum(THETA), abs=1e-5)


@pytest.mark.parametrize("how", STRATEGIES, ids=lambda how: how.name)
def test_lists_are_drawn_as_often_as_their_exposure_says(how) -> None:
    live = LivePolicy(policy(1))
    s_c, s_r = rows(live, 12)
    n = 5000
    lists = np.array([how.draw(s_c, s_r, K2, K, int(key)) for key in np.random.default_rng(0).integers(2**63, size=n)])
    seen = sum(np.bincount(lists[:, k], minlength=D) * THETA[k] for k in range(K)) / n
    rho, error = exposed(how, s_c, s_r, samples=5000, seed=1)
    assert np.all(np.abs(seen - rho) <= 5 * np.sqrt(rho.clip(0, 1) / n + error**2) + 1e-9)


class Heavy(MatrixFactorisation):
    """A re-ranker that cannot score everything."""

    kind = "heavy, of a test"
    scores_everything = False

    def forward(self, q: torch.Tensor) -> torch.Tensor:
        raise AssertionError("it was asked about every item")

    def factors(self, q: torch.Tensor) -> None:
        """By `score`, not by its factors."""


@pytest.mark.parametrize("how", STRATEGIES, ids=lambda how: how.name)
def test_a_heavy_re_ranker_is_asked_about_candidates_alone_and_its_log_is_as_exact(tmp_path, how, monkeypatch) -> None:
    plain = policy(2)
    heavy = Heavy(plain.ranker.queries.detach(), plain.ranker.items.detach())
    made = TwoStagePolicy(plain.generator, heavy, K2, K, plain.vocabulary)
    live = LivePolicy(made)
    asked: list[int] = []
    score = heavy.score
    monkeypatch.setattr(heavy, "score", lambda q, items: (asked.append(items.shape[1]), score(q, items))[1])
    log = Recorder(tmp_path, Propensities(1000))
    server = Server(live, recorder=log, exploration=how)
    for n in range(20):
        server.rank(11, items=["i1", "i2", "i5"] if n % 4 == 0 else None)
    assert server.rank(999).source == "popular"
    assert max(asked) <= K2
    [sealed] = log.seal(everything=True)
    log.close()
    wanted = {}
    for available in (None, ("i1", "i2", "i5")):
        wanted[available] = exposed(how, *rows(LivePolicy(plain), 11, available), samples=5000, seed=1)
    frame = pl.read_parquet(sealed.path)
    for row in frame.filter(pl.col("query_id") == 11).iter_rows(named=True):
        rho, error = wanted[None if row["available"] is None else ("i1", "i2", "i5")]
        at = [live.item_at[item] for item in row["items"]]
        assert np.all(np.abs(rho[at] - row["propensities"]) <= 5 * np.hypot(error[at], row["propensity_errors"]) + 1e-6)
    assert replay.replay([tmp_path], [live]).equal == 21


def counted(made: TwoStagePolicy, monkeypatch) -> tuple[LivePolicy, set[int]]:
    """The policy with a heavy re-ranker, and the items that it is asked about."""
    heavy, asked = Heavy(made.ranker.queries.detach(), made.ranker.items.detach()), set[int]()
    score = heavy.score
    monkeypatch.setattr(heavy, "score", lambda q, items: (asked.update(items.flatten().tolist()), score(q, items))[1])
    return LivePolicy(TwoStagePolicy(made.generator, heavy, made.K2, made.K, made.vocabulary)), asked


def steep(D: int) -> TwoStagePolicy:
    """A generator whose candidates are nearly always its first items."""
    rng = np.random.default_rng(3)
    generator = MatrixFactorisation(np.ones((Q, 1)), -3.0 * np.arange(D)[:, None])
    ranker = MatrixFactorisation(rng.normal(size=(Q, 3)), rng.normal(size=(D, 3)))
    return TwoStagePolicy(generator, ranker, K2, K, Vocabulary(pl.Series(range(10, 10 + Q)), pl.Series(range(D))))


def test_a_heavy_re_ranker_is_explained_by_candidates_alone(monkeypatch) -> None:
    monkeypatch.setattr(engine, "SAMPLES", 500)
    monkeypatch.setattr(engine, "FEW", 500)
    [wanted] = Server(steep(40), theta=THETA).explain(11)
    live, asked = counted(steep(40), monkeypatch)
    assert live.ranks_candidates
    [found] = Server(live, theta=THETA).explain(11)
    assert max(asked) < 12
    by_item = {c.item: c for c in wanted.candidates}
    assert [c.item for c in found.candidates if c.place] == [c.item for c in wanted.candidates if c.place]
    for c in found.candidates:
        assert replace(c, exposure=0) == replace(by_item[c.item], exposure=0)
        assert c.exposure == pytest.approx(by_item[c.item].exposure, abs=0.1)  # few samples of the other


def test_the_error_of_a_mixture_is_that_of_its_parts_by_their_shares() -> None:
    """sqrt((1 - e)^2 se_policy^2 + e^2 se_uniform^2): what many estimates scatter by, not more."""
    s_c, s_r = rows(LivePolicy(policy()), 11)
    found = [exposed(Exploration("uniform", 0.3), s_c, s_r, samples=50, seed=seed) for seed in range(200)]
    scatter = np.std([rho for rho, _ in found], axis=0)
    said = np.sqrt(np.mean([np.square(error) for _, error in found], axis=0))
    assert said == pytest.approx(scatter, rel=0.25)  # five standard errors of a deviation of 200


@pytest.mark.parametrize("how", STRATEGIES, ids=lambda how: how.name)
def test_no_strategy_shows_what_is_not_available(how) -> None:
    live = LivePolicy(policy())
    s_c, s_r = rows(live, 11, ["i1", "i2", "i5"])
    assert {d for key in range(200) for d in how.draw(s_c, s_r, K2, K, key).tolist()} <= {1, 2, 5}
    rho, _ = exposed(how, s_c, s_r, samples=200, seed=0)
    assert rho[[0, 3, 4]].tolist() == [0.0, 0.0, 0.0]


def test_names_of_strategies_are_read_back() -> None:
    for how in STRATEGIES:
        assert drawing.parse(how.name).name == how.name
    for wrong in ("", "greedy", "temperature", "temperature:x", "uniform:2", "temperature:-1", "trained:3"):
        with pytest.raises(ConfigError):
            drawing.parse(wrong)


def test_an_answer_and_its_click_become_a_log_that_is_fit(tmp_path) -> None:
    clock = Clock()
    log = Recorder(tmp_path, Propensities(500), clock=clock)
    server = Server(policy(), recorder=log, seed=3)
    answers = [server.rank(10 + n % Q) for n in range(40)]
    assert {len(a.items) for a in answers} == {K}
    assert all(a.logged and a.source == "policy" and a.policy == digest(policy()) for a in answers)
    for a in answers[::4]:
        for _ in range(2):  # the same event twice counts once
            assert server.feedback(a.impression_id, [Event(a.items[0])]).recorded
    server.feedback(answers[1].impression_id, [Event("nothing"), Event(answers[1].items[0], "view")])
    server.feedback(answers[2].impression_id, [Event(answers[2].items[0], time=clock.now + 10**6)])
    assert log.seal() == []  # clicks may still come
    clock.now += 10**5
    [sealed] = log.seal()
    assert (sealed.impressions, sealed.clicks, sealed.late, sealed.unmatched) == (40, 10, 1, 1)
    assert log.seal() == []
    assert validation.validate(tmp_path / "*.parquet").fit
    feedback = reading.read(tmp_path / "*.parquet")
    assert (feedback.N, feedback.clicks.sum()) == (40, 10)
    row = pl.read_parquet(sealed.path).row(0, named=True)
    live = LivePolicy(policy())
    exact = exact_exposure(*(s.astype(float).tolist() for s in rows(live, row["query_id"])))
    for item, rho, error in zip(row["items"], row["propensities"], row["propensity_errors"], strict=True):
        assert abs(rho - exact[live.item_at[item]]) <= 5 * error + 1e-6
    log.close()


def test_a_click_in_time_is_not_late_as_well() -> None:
    """A user who comes back and clicks again has clicked once, in time; only who clicked late alone is late."""
    shown = [
        Impression(
            id=name,
            time=100.0,
            query_id=11,
            items=("i1", "i2"),
            policy="p",
            strategy="trained",
            key=0,
            places=2,
            available=None,
            mixture=(("p", 1.0),),
            theta=(1.0, 0.5),
        )
        for name in ("a", "b")
    ]
    times = [("a", "i1", 105.0), ("a", "i1", 500.0), ("a", "i2", 110.0), ("b", "i1", 110.1), ("b", "i1", 300.0)]
    clicks = [StoredEvent(name, item, "click", None, at) for name, item, at in times]
    found, *counts = join_clicks(shown, clicks, 10.0)
    assert ({name: set(items) for name, items in found.items()}, counts) == ({"a": {"i1", "i2"}}, [1, 0])


def test_a_purchase_is_a_click_and_the_most_that_was_said_is_its_value(tmp_path) -> None:
    clock = Clock()
    log = Recorder(tmp_path, Propensities(500), clock=clock)
    server = Server(policy(), recorder=log, seed=3, outcomes=Outcomes(), clock=clock)
    a, b, c = (server.rank(10 + n) for n in range(3))
    first = [Event(a.items[0]), Event(a.items[0], "purchase", 12.5), Event(a.items[0], "value", 2.0)]
    assert server.feedback(a.impression_id, first).counted == 1
    assert server.feedback(a.impression_id, [Event(a.items[0], "purchase", 12.5)]).other == 1  # sent again: counts once
    assert server.feedback(b.impression_id, [Event(b.items[1], "purchase")]).counted == 1
    server.feedback(c.impression_id, [Event(c.items[0], "value", -3.0), Event(c.items[1], "view", 9.0)])
    clock.now += 10**5
    [sealed] = log.seal()
    rows = pl.read_parquet(sealed.path).select("clicks", "values").rows()
    assert rows == [([1, 0], [14.5, 0.0]), ([0, 1], [0.0, 1.0]), ([1, 0], [0.0, 0.0])]
    assert validation.validate(sealed.path).fit
    assert estimate("production", sealed.path, reward_column="values").value == pytest.approx(15.5 / 3)
    log.close()


def test_a_propensity_does_not_depend_on_who_else_was_asked(tmp_path) -> None:
    found = []
    for name, queries in (("alone", [11]), ("many", [10, 12, 11, 13])):
        log = Recorder(tmp_path / name, Propensities())
        server = Server(policy(), recorder=log, exploration=Exploration("deterministic"))
        for q in queries:
            server.rank(q)
        [sealed] = log.seal(everything=True)
        found.append(pl.read_parquet(sealed.path).filter(pl.col("query_id") == 11)["propensities"].to_list())
        log.close()
    assert found[0] == found[1]


@pytest.mark.parametrize("how", STRATEGIES, ids=lambda how: how.name)
def test_replay_draws_every_list_again(tmp_path, how) -> None:
    log = Recorder(tmp_path, Propensities(2))
    server = Server(policy(), recorder=log, exploration=how)
    for n in range(30):
        server.rank(10 + n % Q, K=1 + n % 2, items=["i1", "i2", "i5", "never"] if n % 3 == 0 else None)
        server.rank(999)
    log.seal(everything=True)
    log.close()
    found = replay.replay([tmp_path], [policy()])
    assert (found.impressions, found.equal, found.first) == (60, 60, None)
    assert replay.replay([f"file://{tmp_path}"], [policy()]) == found
    store, url = fsspec.filesystem("memory"), f"{tmp_path.name}/log"
    store.put(f"{tmp_path}/*.parquet", f"{url}/")
    assert replay.replay([f"memory://{url}"], [policy()]) == found
    store.rm(url, recursive=True)
    if how.strategy != "deterministic":
        [path] = replay.segments([tmp_path])
        frame = pl.read_parquet(path)
        frame.with_columns(key=pl.col("key") ^ pl.lit(12345, pl.UInt64)).write_parquet(path)
        other = replay.replay([tmp_path], [policy()])
        assert other.equal < 60
        assert other.first is not None
    with pytest.raises(LogError, match="which was not given"):
        replay.replay([tmp_path], [policy(5)])
    (tmp_path / "empty").mkdir()
    for where, message in (("empty", "no segment"), ("nowhere", "cannot read")):
        with pytest.raises(LogError, match=message):
            replay.replay([tmp_path / where], [policy()])


@pytest.mark.parametrize(
    "columns",
    [
        {"available": "[" * 5000}, {"available": '[["i1"]]'}, {"available": '{"a": {"b": 1}}'}, {"available": "[1.5]"},
        {"features": "{" * 5000}, {"features": '{"age": {"b": [1]}}'}, {"features": '{"age": [1]}'}, {"features": "[1]"},
        {"mixture": "[" * 5000}, {"mixture": '[["x", {"a": 1}]]'}, {"mixture": "[[[1], 2]]"}, {"mixture": "7"},
        {"mixture": "[]"}, {"items": [[["i1"]]]}, {"items": [[1.5]]}, {"query_id": [[1]]}, {"query_id": [{"a": 1}]},
        {"query_id": [1.5]}, {"key": [-1]}, {"strategy": "uniform:9"}, {"policy": "nobody"}, {"places": [99]},
    ],
    ids=lambda columns: next(iter(columns.items()))[0] + str(next(iter(columns.values())))[:12],
)  # fmt: skip
def test_replay_refuses_what_is_no_row_of_a_served_log(tmp_path, columns) -> None:
    log = Recorder(tmp_path, Propensities(2))
    server = Server(policy(), recorder=log)
    server.rank(10, query_features={"age": 3.0})
    [sealed] = log.seal(everything=True)
    log.close()
    frame = pl.read_parquet(sealed.path)
    changed = {name: pl.Series([x] if isinstance(x, str) else x) for name, x in columns.items()}
    frame.with_columns(**changed).write_parquet(sealed.path)
    with pytest.raises(LogError) as refused:
        replay.replay([tmp_path], [policy()])
    assert "segment-0" in str(refused.value)
    assert len(str(refused.value)) < 1000


def test_replay_refuses_a_damaged_segment(tmp_path) -> None:
    log = Recorder(tmp_path, Propensities(2))
    Server(policy(), recorder=log).rank(10)
    [sealed] = log.seal(everything=True)
    log.close()
    content = bytearray(sealed.path.read_bytes())
    content[40] ^= 1
    sealed.path.write_bytes(content)
    with pytest.raises(LogError, match="is damaged"):
        replay.replay([tmp_path], [policy()])


def test_available_items_and_strangers(tmp_path) -> None:
    server = Server(policy(), seed=0)
    for _ in range(20):
        found = server.rank(10, items=["i0", "i3", "i0", "never"])
        assert sorted(found.items) == ["i0", "i3"]
        assert found.unknown == ("never",)
        assert not found.logged
    assert server.rank(10, items=[]).items == ()
    assert server.rank(999).source == "popular"
    assert server.rank("10").source == "policy"
    for wrong in ("nobody", "1e1", "010", True, 2**63, -(2**63)):
        with pytest.raises(InputError, match="query ids"):
            server.rank(wrong)
    assert server.rank().source == "popular"
    for K_ in (0, 3):
        with pytest.raises(InputError, match="K must be from 1 to 2"):
            server.rank(10, K=K_)
    runs = [
        [server.rank(10).items for _ in range(20)] for server in (Server(policy(), seed=4), Server(policy(), seed=4))
    ]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) > 1


def test_after_a_kill_the_next_process_has_every_impression_and_says_what_was_torn(tmp_path, capsys) -> None:
    log = Recorder(tmp_path, Propensities(), sync_seconds=0)
    server = Server(policy(), recorder=log)
    answers = [server.rank(10) for _ in range(5)]
    log.close()  # as a killed process leaves it: nothing sealed
    with (tmp_path / "journal-0-000000.bin").open("ab") as file:
        file.write(b"\x40\x00\x00\x00torn")
    later = Recorder(tmp_path, Propensities())
    with pytest.raises(OutputError, match="which is not loaded"):
        later.seal(everything=True)
    after = Server(policy(), recorder=later)
    after.feedback(answers[0].impression_id, [Event(answers[0].items[1])])
    sealed = later.seal(everything=True)
    assert [(s.impressions, s.clicks, s.damaged, s.dropped) for s in sealed] == [(5, 1, 1, 8)]
    assert "has 1 records that cannot be used and 8 bytes that are in no record" in capsys.readouterr().err
    assert not list(tmp_path.glob("journal-0-000000.bin"))
    later.close()


@pytest.mark.parametrize("when", ["while it is written", "before the journal goes", "before events go"])
def test_no_segment_is_half_written_and_none_is_made_twice(tmp_path, monkeypatch, when) -> None:
    log = Recorder(tmp_path, Propensities(2))
    server = Server(policy(), recorder=log)
    found = [server.rank(11) for _ in range(3)]
    server.feedback(found[1].impression_id, [Event(found[1].items[0])])
    write = pl.DataFrame.write_parquet

    def broken(*args, **options):
        if when == "while it is written":
            write(pl.DataFrame({"a": [1]}), args[1])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        places = {
            "while it is written": (pl.DataFrame, "write_parquet"),
            "before the journal goes": (Sealer, "_set_down"),
        }
        patch.setattr(*places.get(when, (Sealer, "_clean")), broken)
        with pytest.raises((OSError, OutputError), match="No space left"):
            log.seal(everything=True)
    assert len(list(tmp_path.glob("*.parquet"))) == (0 if when == "while it is written" else 1)
    log.seal(everything=True)
    log.close()
    frame = pl.read_parquet(tmp_path / "*.parquet")
    assert sorted(frame["impression_key"]) == sorted(x.impression_id for x in found)
    assert frame["clicks"].list.sum().sum() == 1
    Sealer(tmp_path, Propensities(2)).seal(everything=True)
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith(".")) == ["segment-0-000000.parquet"]


def test_without_room_for_the_next_journal_the_one_that_there_is_goes_on(tmp_path, monkeypatch) -> None:
    log = Recorder(tmp_path, Propensities(2))
    server = Server(policy(), recorder=log)
    assert server.rank(11).logged

    def full(*args, **options):
        raise OutputError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(recorder, "Journal", full)
        with pytest.raises(OutputError):
            log.seal(everything=True)
    assert server.rank(11).logged
    assert [s.impressions for s in log.seal(everything=True)] == [2]
    log.close()


def test_replicas_write_side_by_side_and_each_may_hear_the_clicks_of_the_other(tmp_path) -> None:
    clock = Clock()
    logs = {
        name: Recorder(tmp_path, Propensities(5), replica=name, clock=clock, window=100.0) for name in ("a", "b", "a-b")
    }
    servers = {name: Server(policy(), recorder=log) for name, log in logs.items()}
    first = servers["a"].rank(11)
    clock.now += 50
    second = servers["b"].rank(11)
    for heard_by, found in (("b", first), ("a", second), ("a-b", second), ("a-b", first)):
        servers[heard_by].feedback(found.impression_id, [Event(found.items[0])])
    assert logs["b"].seal() == []
    clock.now += 60
    assert [(s.impressions, s.clicks) for s in logs["a"].seal()] == [(1, 1)]
    assert logs["a"].seal() == []  # what it heard of b's stays until b has sealed
    assert [p.name for p in tmp_path.glob("events-*")] == ["events-a-000000.bin"]
    assert [s.impressions for s in logs["a-b"].seal()] == []
    clock.now += 60
    logs["a-b"].close()
    logs["a"].close()  # ended: whoever seals next has what these left
    assert [(s.impressions, s.clicks) for s in logs["b"].seal()] == [(1, 1)]
    logs["b"].close()
    assert not Sealer(tmp_path, Propensities()).seal(everything=True)
    assert sorted(p.suffix for p in tmp_path.iterdir() if not p.name.startswith(".")) == [".parquet"] * 2
    found = reading.read(tmp_path / "*.parquet")
    assert (found.N, found.clicks.sum()) == (2, 2)
    with pytest.raises(InputError, match="name of a replica"):
        Recorder(tmp_path, Propensities(), replica="../x")


def test_a_journal_waits_for_the_clicks_of_its_last_impression(tmp_path) -> None:
    clock = Clock()
    log = Recorder(tmp_path, Propensities(5), clock=clock, window=100.0)
    server = Server(policy(), recorder=log)
    server.rank(11)
    clock.now += 60
    last = server.rank(11)
    clock.now += 50  # the first can get no more clicks, the last can
    assert log.seal() == []
    server.feedback(last.impression_id, [Event(last.items[0])])
    clock.now += 60
    assert sum(s.clicks for s in log.seal()) == 1
    log.close()


def test_a_replica_that_runs_is_left_alone_and_one_that_ended_is_sealed_by_others(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(recorder, "PATIENCE", 0.0)
    one, other = (Recorder(tmp_path, Propensities(5), replica=name) for name in ("one", "other"))
    with pytest.raises(OutputError, match="under the name 'one'"):
        Recorder(tmp_path, Propensities(), replica="one")
    ranked = Server(policy(), recorder=one).rank(11)
    lost = Server(policy(5), recorder=other)
    stranger = Sealer(tmp_path, Propensities(5))
    assert stranger.seal(everything=True) == []
    lost.rank(11)
    other.close()
    with pytest.raises(OutputError, match="which is not loaded"):  # the policy of the other is not known here
        one.seal(everything=True)
    [sealed] = tmp_path.glob("*.parquet")  # and yet its own is sealed
    assert pl.read_parquet(sealed)["impression_key"].to_list() == [ranked.impression_id]
    stranger.propensities.know(LivePolicy(policy(5)))
    assert [(s.path.name, s.impressions) for s in stranger.seal(everything=True)] == [
        ("segment-other-000000.parquet", 1)
    ]
    one.close()


def test_a_full_disk_does_not_stop_answers(tmp_path, monkeypatch) -> None:
    log = Recorder(tmp_path, Propensities())
    server = Server(policy(), recorder=log)
    server.rank(10)

    def full(*payloads: bytes) -> None:
        raise OutputError("No space left on device")

    monkeypatch.setattr(log._journal, "append", full)
    found = server.rank(10)
    assert len(found.items) == K
    assert not found.logged
    assert server.unlogged == 1
    assert not server.feedback(found.impression_id, [Event(found.items[0])]).recorded
    log.close()


def test_digests_tell_policies_apart() -> None:
    one, other = policy(), policy(1)
    halves = [(one.generator, other.ranker), (other.generator, one.ranker)]
    others = [TwoStagePolicy(*stages, K2, K, one.vocabulary) for stages in halves]
    longer = TwoStagePolicy(one.generator, one.ranker, K2 + 1, K, one.vocabulary)
    names = {digest(p) for p in (one, other, *others, longer, policy(0, [f"x{d}" for d in range(D)]))}
    assert len(names) == 6
    assert digest(policy()) == digest(policy())


def test_journals_turn_over(tmp_path) -> None:
    log = Recorder(tmp_path, Propensities(), rotate=200)
    server = Server(policy(), recorder=log)
    for _ in range(6):
        server.rank(10)
    assert len(list(tmp_path.glob("journal-*.bin"))) > 2
    assert sum(s.impressions for s in log.seal(everything=True)) == 6
    log.close()
