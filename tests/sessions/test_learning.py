"""Learning from sessions: what clicks lead to is found, and the policy that looks ahead gets more."""

import numpy as np
import polars as pl
import pytest

import tandemrank as tr
from session_worlds import log, world
from tandemrank.errors import ConfigError
from tandemrank.policies.ahead import Ahead
from tandemrank.policies.memory import Retrieval
from tandemrank.sessions import simulation
from tandemrank.sessions.learning import RewardAhead, learn, transitions_of
from tandemrank.sessions.reading import read
from tandemrank.training.config import LearningConfig

CONFIG = LearningConfig(candidates=6)


@pytest.fixture(scope="module")
def learned() -> dict[float, "tr.sessions.learning.LearnedSessions"]:
    """By discount."""
    return {g: learn(log(5000, steps=8), CONFIG, discount=g, method="beliefs") for g in (0.0, 1.0)}


def test_transitions_are_those_of_the_log() -> None:
    of, found = world(), transitions_of(read(log(500)))
    ids = log(500)["state"].unique().sort().to_list()
    every = {name: n for n, name in enumerate(of.state_ids)}
    state = np.array([every[ids[x]] for x in found.state])
    after = of.after(state, found.item)
    stays = found.after < found.X
    assert [every[ids[x]] for x in found.after[stays]] == after[stays].tolist()
    assert (found.item[~stays] == -1).all()  # nobody leaves after a click
    assert 0.2 < (~stays).sum() / (found.item == -1).sum() < 0.4
    assert [ids[x].split("|")[0] for x in range(found.X)] == [str(q) for q in found.query_of]


def test_the_policy_is_of_states_and_looks_ahead(learned) -> None:
    far, near = learned[1.0], learned[0.0]
    assert set(far.policy.vocabulary.query_ids) == set(log(5000, steps=8)["state"])
    assert isinstance(far.policy.ranker, Ahead)
    assert isinstance(far.policy.generator, Retrieval)
    assert not isinstance(near.policy.ranker, Ahead)
    value = far.values["beliefs"]
    assert value.asked_by == "state"
    assert value.horizon == 8
    assert value.sessions == far.sessions[1]
    assert sum(far.sessions) == 5000
    assert near.values["beliefs"].horizon == 1
    assert far.summary()["methods"][0]["method"] == "beliefs"


def test_looking_ahead_gets_more_where_clicks_have_consequences(learned) -> None:
    policies = {"near": learned[0.0].policy, "far": learned[1.0].policy}
    _, far = simulation.evaluate(policies, world(steps=8), 8000, seed=5)
    assert far.difference > 3 * far.difference_error > 0


def test_what_was_learned_is_not_trusted_on_its_own_log_and_survives_saving(learned, tmp_path) -> None:
    policy = learned[1.0].policy
    assert "trained on this very log" in tr.sessions.valuation.estimate(policy, log(5000, steps=8)).reasons[0]
    again = tr.load(policy.save(tmp_path / "policy"))
    for one, other in zip(policy.scores([0, 3]), again.scores([0, 3]), strict=True):
        assert (one == other).all()


def test_the_generator_looks_ahead_as_the_re_ranker_does(learned) -> None:
    """The candidates that the generator likes most have what the re-ranker shows."""
    policy = learned[1.0].policy
    s_c, s_r = (s.numpy() for s in policy.plain_scores(np.arange(len(policy.vocabulary.query_ids))))
    top, shown = np.argsort(-s_c, 1)[:, :6], np.argsort(-s_r, 1)[:, :3]
    assert np.mean([len(set(a) & set(b)) / 3 for a, b in zip(top, shown, strict=True)]) > 0.9


def test_training_goes_by_the_same_weights() -> None:
    """A method that trains is given R A, here with an own generator that starts from nothing."""

    class StateVectors(tr.Generator):
        def __init__(self) -> None:
            super().__init__()

        def prepare(self) -> None:
            Q, D = len(self.vocabulary.query_ids), len(self.vocabulary.item_ids)
            rng = np.random.default_rng(0)
            self.queries, self.items = (
                tr.policies.own.nn.Parameter(
                    tr.policies.own.torch.tensor(rng.normal(0, 0.1, (n, 4)), dtype=tr.policies.own.torch.float32)
                )
                for n in (Q, D)
            )

    config = LearningConfig(candidates=6, training={"epochs": 4})
    found = learn(log(3000), config, generator=StateVectors(), method="joint")
    assert found.trained["joint"].history
    assert isinstance(found.policy.ranker, Ahead)
    first, *_, last = found.trained["joint"].history
    assert last.objective > first.objective


def test_rewards_ahead_are_relevance_times_worth() -> None:
    class Half(tr.beliefs.model.RewardModel):
        kind = "half"

        def at(self, q, d):
            return tr.beliefs.model.Belief(np.full(len(q), 0.5), np.full(len(q), 0.1))

        def matrix(self, q):
            return np.full((len(q), 4), 0.5)

        def constants(self):
            return {"half": True}

        def arrays(self):
            return {"half": np.array([0.5])}

    leads = tr.policies.ahead.Foresight.of(
        np.array([0.5]), np.array([2.0]), np.array([0.0, 1.0, -1.0]), tr.policies.memory.no_memory(1, 3)
    )
    found = RewardAhead(Half(), leads)
    assert found.matrix(np.array([0]))[0].tolist() == [0.25, 1.25, -0.75, 0.5]
    pair = found.at(np.array([0]), np.array([1]))
    assert (pair.mean[0], pair.variance[0]) == pytest.approx((1.25, 0.1 * 2.5**2))
    assert found.constants() == {"half": True}
    assert set(found.arrays()) == {"half", "ahead.start", "ahead.after", "ahead.pairs"}


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"config": LearningConfig(safe=True)}, "cannot be combined with sessions"),
        ({"context": ["device"]}, "cannot be combined with sessions"),
        ({"start": tr.Start(world().production())}, "leave other starts"),
        ({"reward": "worth"}, "and rewards out"),
        ({"colour": 1}, "unknown keyword 'colour'"),
        ({"horizon": 0}, "horizon"),
        ({"discount": -1.0}, "discount"),
        ({"state": "colour"}, "got 'colour'"),
    ],
)
def test_what_sessions_cannot_do_is_refused(how: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        learn(log(500), **how)


def test_features_of_states_are_taken() -> None:
    states = log(3000)["state"].unique().sort()
    table = pl.DataFrame(
        {"query_id": states, "tired": states.str.split("|").list.get(2).cast(pl.Float64, strict=False).fill_null(0.0)}
    )
    found = learn(log(3000), CONFIG, start=tr.Start(query_features=table), method="beliefs")
    assert found.policy.ranker.query_columns == ("tired",)
