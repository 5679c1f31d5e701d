"""Sessions of the world: truth by simulation against dynamic programming, logs, and how policies are asked."""

import json
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from pydantic import ValidationError

import tandemrank as tr
from session_worlds import SMALL, by_state, log, relevance, world
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError
from tandemrank.policies.scorers import GivenScores
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.sessions import simulation
from tandemrank.sessions.simulation import MOST_TIRED, SessionWorld, SessionWorldConfig


def value_by_dynamic_programming(of: SessionWorld, rho: np.ndarray, discount: float) -> float:
    """From the start of a session, over the queries.  Shapes: rho [states, items], exposures."""
    R, c, every = relevance(of), of.config, np.arange(of.config.items)
    V = np.zeros(len(R))
    for _ in range(c.steps):
        after = np.stack([of.after(np.full(c.items, x), every) for x in range(len(R))])
        rested = of.after(np.arange(len(R)), np.full(len(R), -1))
        click = rho * R
        V = (click * (1 + discount * V[after])).sum(1) + (1 - click.sum(1)) * (1 - c.leaving) * discount * V[rested]
    return float(V[:: of.each].mean())


@pytest.mark.parametrize(("switches", "discount"), [({}, 1.0), ({"leaving": 0.0, "boredom": 0.0}, 0.5)])
def test_the_truth_is_that_of_dynamic_programming(switches: dict, discount: float) -> None:
    of = world(**switches)
    policy = by_state(of, 2 * relevance(of))
    x, d = np.divmod(np.arange(relevance(of).size), of.config.items)
    rho = policy.exposure(x, d, of.theta, samples=300)[0].reshape(relevance(of).shape)
    clicks = simulation.clicks_of(policy, of, 20_000, discount=discount, seed=1)
    error = clicks.std() / np.sqrt(len(clicks))
    assert abs(clicks.mean() - value_by_dynamic_programming(of, rho, discount)) < 5 * error


def test_a_log_has_what_sessions_need_and_its_clicks_move_its_states() -> None:
    of, frame = world(), log(2000)
    assert frame.columns == ["session_id", "step", "query_id", "state", "items", "clicks", "propensities"]
    assert tr.validate(frame).fit
    ids = {name: n for n, name in enumerate(of.state_ids)}
    ordered = frame.sort("session_id", "step")
    rows = ordered.select("session_id", "state", "items", "clicks").rows()
    for (session, state, items, clicks), (other, after, _, _) in pairwise(rows):
        assert sum(clicks) <= 1
        if session == other:
            moved = items[clicks.index(1)] if 1 in clicks else -1
            assert of.after(np.array([ids[state]]), np.array([moved]))[0] == ids[after]
    ended = [sum(a[3]) for a, b in pairwise(rows) if a[0] != b[0]]
    longest = ordered.group_by("session_id").len()["len"]
    assert 0 < np.mean(ended) < 1
    assert longest.max() == 4
    assert longest.min() == 1


def test_nobody_leaves_where_nobody_can_and_several_clicks_may_happen() -> None:
    frame = log(300, leaving=0.0, several_clicks=True)
    assert len(frame) == 1200
    assert frame["clicks"].list.sum().max() > 1


def test_clicks_follow_examination_and_relevance() -> None:
    of, frame = world(), log(3000)
    items, clicks = (np.array(frame[name].to_list()) for name in ("items", "clicks"))
    state = frame["state"].replace_strict(of.state_ids.to_list(), range(len(of.state_ids))).to_numpy()
    p = of.theta * relevance(of)[state[:, None], items]
    error = np.sqrt((p * (1 - p)).sum(0))
    assert (np.abs(clicks.sum(0) - p.sum(0)) < 5 * error).all()


def test_sessions_depend_on_the_seed_and_their_number_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    of = world()
    whole = simulation.clicks_of(of.production(), of, 50, seed=4)
    monkeypatch.setattr(simulation, "PART", 7)
    np.testing.assert_array_equal(simulation.clicks_of(of.production(), of, 50, seed=4), whole)
    assert not np.array_equal(simulation.clicks_of(of.production(), of, 50, seed=5), whole)


def test_a_policy_is_asked_by_whatever_its_queries_are() -> None:
    of = world()
    last = pl.Series([f"{d}|{s}" for d in [*range(16), ""] for s in (1, 2, 3)])
    kinds = {
        "state": of.state_ids,
        "query": pl.Series([0, 1]),
        "last click": last,
        "query and last click": pl.Series([f"{q}|{one}" for q in range(2) for one in last]),
    }
    for by, ids in kinds.items():
        # Scores that show which query is asked: its number decides the only item with a score.
        scores = np.where(np.arange(16) == np.arange(len(ids))[:, None] % 16, 30.0, 0.0)
        policy = TwoStagePolicy(*[GivenScores(scores)] * 2, 6, 3, Vocabulary(ids, of.item_ids))
        asking = simulation.Asking(policy, of)
        assert asking.by == by
        state, clicked, since = np.array([0, 13, 20]), np.array([-1, 3, 15]), np.array([1, 2, 3])
        shown = asking.lists(state, clicked, since, np.arange(3, dtype=np.uint64))[:, 0]
        names = {
            "state": of.state_ids.gather(state).to_list(),
            "query": [x // 13 for x in state],
            "last click": ["|1", "3|2", "15|3"],
            "query and last click": ["0||1", "1|3|2", "1|15|3"],
        }[by]
        assert shown.tolist() == [ids.to_list().index(name) % 16 for name in names]


def test_policies_of_another_world_are_refused() -> None:
    of = world()
    ids = Vocabulary(pl.Series(["nobody"]), of.item_ids)
    stranger = TwoStagePolicy(*[GivenScores(np.zeros((1, 16)))] * 2, 6, 3, ids)
    with pytest.raises(ConfigError, match="knows no state and no query"):
        simulation.clicks_of(stranger, of, 5)
    other = SessionWorld.of(SessionWorldConfig(**{**SMALL, "items": 20})).production()
    with pytest.raises(ConfigError, match="items that this world does not have"):
        simulation.clicks_of(other, of, 5)


def test_evaluation_pairs_policies_session_by_session() -> None:
    of = world()
    production = of.production()
    same, better = simulation.evaluate({"a": production, "b": by_state(of, 6 * relevance(of))}, of, 4000, seed=2)
    assert (same.difference, same.difference_error) == (0, 0)
    assert better.difference == pytest.approx(better.clicks - same.clicks)
    assert better.difference > 5 * better.difference_error > 0


def test_a_log_is_written_with_the_policy_that_drew_it(tmp_path) -> None:
    config = SessionWorldConfig(**SMALL)
    found = simulation.write_log(config, tmp_path / "out", 40, seed=3, logged=True)
    frame = pl.read_parquet(tmp_path / "out" / "log" / "*.parquet")
    assert (found.sessions, found.steps) == (40, len(frame))
    assert "propensities" in frame.columns
    assert json.loads((tmp_path / "out" / "config.json").read_text())["seed"] == 3
    assert tr.load(tmp_path / "out" / "production").K == 3
    with pytest.raises(ConfigError, match="exists"):
        simulation.write_log(config, tmp_path / "out", 40)


def by_hand(of, query: int, last: int, tired: int, item: int) -> float:
    c, z = of.config, item % of.config.topics
    pull = c.influence if last >= 0 and last % 2 == 1 else 0.0
    taste = (1 - pull) * of.taste[query, z] + (pull if z == last else 0.0)
    worn = (1 - c.boredom) ** tired if z == last else 1.0
    return 0.95 / (1 + 1 / 2 + 1 / 3) * of.quality[item] * taste * worn


def test_relevance_and_the_next_state_by_hand() -> None:
    of = world()
    ids = of.state_ids.to_list()
    for state, name in enumerate(ids):
        query, topic, tired = name.split("|")
        last, k = (int(topic), int(tired)) if topic else (-1, 0)
        for item in range(16):
            assert relevance(of)[state, item] == pytest.approx(by_hand(of, int(query), last, k, item), rel=1e-12)
            z = item % 4
            k_next = min(k + 1, MOST_TIRED) if z == last else 1
            assert ids[of.after(np.array([state]), np.array([item]))[0]] == f"{query}|{z}|{k_next}"
        rested = f"{query}|{topic}|{k - 1}" if k > 1 else f"{query}||"
        assert ids[of.after(np.array([state]), np.array([-1]))[0]] == rested
    assert (relevance(of)[:, :3] @ [1, 1 / 2, 1 / 3] <= 1).all()


def test_each_effect_can_be_switched_off() -> None:
    def differs(**switches) -> np.ndarray:
        """Of every state of a query, how far it is from the one without a click."""
        R = relevance(world(**switches))[: world().each]
        return np.abs(R - R[0]).max(1)

    assert (differs()[1:] > 0).all()
    assert (differs(boredom=0.0)[1:4] == 0).all()  # a topic that does not pull
    assert (differs(boredom=0.0)[4:7] > 0).all()
    assert (differs(influence=0.0)[1:] > 0).all()
    assert (differs(boredom=0.0, influence=0.0) == 0).all()
    still = world(boredom=0.0, influence=0.0)
    assert still.after(np.array([0, 13]), np.array([5, -1])).tolist() == [0, 13]


@pytest.mark.parametrize("switches", [{"candidates": 2}, {"candidates": 17}, {"topics": 17}, {"boredom": 1.1}])
def test_what_makes_no_world_is_refused(switches: dict) -> None:
    with pytest.raises(ValidationError):
        SessionWorldConfig(**{**world().config.model_dump(), **switches})
