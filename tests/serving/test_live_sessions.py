"""Sessions while a policy is live: states, their log, its propensities, and a restart."""

import numpy as np
import polars as pl
import pytest

import tandemrank as tr
from served import Clock
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import InputError
from tandemrank.policies.scorers import GivenScores
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.serving import replay
from tandemrank.serving.engine import Server
from tandemrank.serving.live_policy import LivePolicy
from tandemrank.serving.live_sessions import LiveSessions, SessionState
from tandemrank.serving.propensities import Propensities
from tandemrank.serving.recorder import Recorder
from tandemrank.serving.records import Event, StoredEvent
from tandemrank.sessions.reading import read
from tandemrank.sessions.valuation import estimate

ITEMS = [f"i{d}" for d in range(6)]
STATES = [f"{last}|{since}" for last in ["", *ITEMS] for since in (1, 2, 3)]


def policy(ids: list = STATES, seed: int = 0) -> TwoStagePolicy:
    """Of states; or of whatever else."""
    scores = np.random.default_rng(seed).normal(0, 1, (len(ids), 6))
    return TwoStagePolicy(
        GivenScores(scores), GivenScores(scores[:, ::-1]), 4, 2, Vocabulary(pl.Series(ids), pl.Series(ITEMS))
    )


def server(folder, clock: Clock, of: TwoStagePolicy | None = None, **options) -> Server:
    recorder = Recorder(folder, Propensities(400), clock=clock, **options)
    return Server(of or policy(), recorder=recorder, seed=1, clock=clock)


def test_the_state_is_the_last_click_and_the_lists_since(tmp_path) -> None:
    clock = Clock()
    live = server(tmp_path, clock)
    wanted, seen = [], []
    last, since = "", 0
    for step in range(8):
        since += 1
        wanted.append(f"{last}|{min(since, 3)}")
        answer = live.rank(session="s")
        clock.now += 1
        if step in (1, 2, 6):
            live.feedback(answer.impression_id, [Event(answer.items[1]), Event(answer.items[0])])
            last, since = str(answer.items[1]), 0  # the one furthest down
        if step == 3:  # neither what was not shown, nor what is no click, nor an older list moves it
            unseen = next(i for i in ITEMS if i not in answer.items)
            live.feedback(answer.impression_id, [Event(unseen), Event(answer.items[0], "view")])
            live.feedback(seen[0], [Event(ITEMS[0])])
        seen.append(answer.impression_id)
    live.recorder.seal(everything=True)
    frame = pl.read_parquet(tmp_path / "segment-*.parquet").sort("timestamp")
    assert frame["state"].to_list() == wanted
    assert frame["query_id"].to_list() == frame["state"].to_list()  # what the policy was asked
    assert frame["session_id"].unique().to_list() == ["s"]
    again = replay.replay([tmp_path], [LivePolicy(policy())])
    assert again.equal == 8


def test_a_policy_is_asked_by_the_most_that_it_knows() -> None:
    for ids, wanted in (
        (STATES, "|1"),
        (["11", *STATES], "|1"),
        ([f"11|{state}" for state in STATES], "11||1"),
        (["11", "12"], "11"),
        ([11, 12], 11),
    ):
        live = Server(policy(ids), seed=0)
        shown = []
        live.sessions.shown = shown.append  # type: ignore[method-assign]
        live.rank(11, session="s")
        assert shown[0].query_id == wanted
        assert shown[0].state == "|1"


def test_sessions_survive_a_restart_and_are_forgotten_when_there_are_many(tmp_path) -> None:
    clock = Clock()
    first = server(tmp_path, clock)
    for name in ("a", "b"):
        answer = first.rank(session=name)
        clock.now += 1
        first.feedback(answer.impression_id, [Event(answer.items[1])])
        clock.now += 1
    before = {name: first.sessions.state(name) for name in ("a", "b")}
    first.recorder.close()
    second = server(tmp_path, clock)
    assert {name: second.sessions.state(name) for name in ("a", "b")} == before
    assert before["a"].id.endswith("|1")
    assert not before["a"].id.startswith("|")
    few = LiveSessions(most=1)
    few.recover(*second.recorder.recent())
    assert len(few) == 1
    assert few.state("a") == SessionState()
    assert few.state("b") == before["b"]
    few.clicked([StoredEvent(before["a"].impression, "i1", "click", None, 0.0)])  # of a session that is forgotten
    second.recorder.close()


def test_the_log_of_a_server_values_another_policy_over_sessions(tmp_path) -> None:
    clock = Clock()
    live = server(tmp_path, clock)
    rng = np.random.default_rng(0)
    for n in range(300):
        for _ in range(3):
            answer = live.rank(session=f"s{n}")
            clock.now += 1
            if rng.random() < 0.5:
                live.feedback(answer.impression_id, [Event(answer.items[int(rng.random() < 0.3)])])
    live.rank("i1|1")  # without a session: one of its own
    live.recorder.seal(everything=True)
    log = read(tmp_path)
    assert log.sessions == 301
    assert tr.validate(tmp_path).sessions.longest == 3
    own = estimate(policy(), log, examination=[1.0, 0.5], samples=400)
    assert own.asked_by == "state"
    assert own.propensity == "logged"
    # On policy the weights are one up to the noise of the races.
    assert own.value == pytest.approx(own.production, rel=0.05)
    other = estimate(policy(seed=3), log, examination=[1.0, 0.5])
    assert other.steps[0].sessions == 301


def test_a_session_comes_once_in_a_batch_and_a_refusal_leaves_no_trace() -> None:
    live = Server(policy(), seed=0)
    with pytest.raises(InputError, match="each session once in a batch"):
        live.rank_all([{"session": "s"}, {"session": "s"}])
    with pytest.raises(InputError, match="K must be"):
        live.rank_all([{"session": "s"}, {"K": 99}])
    assert len(live.sessions) == 0
    live.rank_all([{"session": "s"}, {"session": "t"}, {}])
    assert len(live.sessions) == 2


def test_a_session_of_two_replicas_is_told_of_once(tmp_path, capsys) -> None:
    clock = Clock()
    one, other = (server(tmp_path, clock, replica=name) for name in ("one", "other"))
    one.rank(session="own")
    for live in (one, other):
        live.rank(session="torn")
        live.rank()
    one.recorder.seal(everything=True)
    said = capsys.readouterr().err
    assert "1 sessions have lists of several replicas (first: 'torn', of one, other)" in said
    assert "'own'" not in said
    other.rank(session="torn")
    one.rank(session="torn")
    one.recorder.seal(everything=True)
    assert "several replicas" not in capsys.readouterr().err
