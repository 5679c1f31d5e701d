"""Values over sessions: one step is the estimate of one list, production is its clicks, and the truth is inside."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import tandemrank as tr
from session_worlds import by_state, log, relevance, world
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError, PolicyError
from tandemrank.offpolicy.verdicts import Verdict
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.sessions import simulation
from tandemrank.sessions.reading import read
from tandemrank.sessions.valuation import StepSupport, estimate

OF = world()
SOFT = by_state(OF, 3 * relevance(OF))


@pytest.mark.parametrize("discount", [0.0, 0.7])
@pytest.mark.parametrize("estimator", ["ips", "self_normalised", "doubly_robust"])
def test_one_step_is_the_estimate_of_one_list(discount: float, estimator: str) -> None:
    frame = log()
    first = frame.filter(pl.col("step") == 1).with_columns(query_id="state").drop("state")
    wanted = tr.estimate(SOFT, tr.logs.reading.read(first), estimator="ips")  # lists alone tell that readers stop
    found = estimate(SOFT, frame, horizon=None if discount == 0 else 1, discount=discount, estimator=estimator)
    assert found.value == pytest.approx(wanted.value, rel=1e-12)
    assert (found.horizon, found.asked_by) == (1, "state")


def test_production_is_worth_its_clicks() -> None:
    """By its own propensities every weight is one."""
    frame, production = log(), OF.production()
    log_of = read(frame)
    found = estimate(production, log_of, logging_policy=production, propensity="exact", samples=200)
    assert found.asked_by == "query_id"
    assert found.production == pytest.approx(frame["clicks"].list.sum().sum() / 3000)
    # Both sides by races of their own.
    assert found.value == pytest.approx(found.production, rel=0.02)


@pytest.mark.parametrize("estimator", ["ips", "self_normalised", "doubly_robust"])
@pytest.mark.parametrize("discount", [1.0, 0.6])
def test_the_truth_is_within_five_standard_errors(estimator: str, discount: float) -> None:
    true = simulation.clicks_of(SOFT, OF, 20_000, discount=discount, seed=9)
    found = estimate(SOFT, log(6000), discount=discount, estimator=estimator, samples=100)
    error = np.hypot(found.standard_error, true.std() / np.sqrt(len(true)))
    assert abs(found.value - true.mean()) < 5 * error
    assert found.lower_bound < true.mean()
    if estimator == "ips":
        assert found.lower_bound < found.value - found.standard_error
    assert found.interval[0] < found.value < found.interval[1]
    assert found.horizon == 4
    clicks = log(6000).select(pl.col("clicks").list.sum() * discount ** (pl.col("step") - 1)).to_series().sum()
    assert found.production == pytest.approx(clicks / 6000)


def test_a_reward_model_changes_noise_and_not_the_value() -> None:
    class Known(tr.beliefs.model.RewardModel):
        """The true relevance of the states of the log."""

        kind = "known"

        def at(self, q, d):
            R = relevance(OF)[self.order][q, d]
            return tr.beliefs.model.Belief(R, 0 * R)

        def matrix(self, q):
            R = relevance(OF)[self.order][q]
            return np.column_stack([R, np.zeros(len(q))])

        def constants(self):
            return {}

        def arrays(self):
            return {}

    frame = log(6000)
    model = Known()
    ids = OF.state_ids.to_list()
    model.order = [ids.index(name) for name in frame["state"].unique().sort()]
    plain, robust = (estimate(SOFT, frame, samples=100, reward=reward) for reward in (None, model))
    assert robust.standard_error < 0.98 * plain.standard_error
    assert abs(robust.value - plain.value) < 5 * plain.standard_error


def test_the_verdict_says_down_to_which_step_the_log_supports_the_policy() -> None:
    sharp = by_state(OF, 25 * relevance(OF))
    found = estimate(sharp, log(600))
    assert found.verdict == Verdict.REFUSE
    assert found.supported < 4
    assert f"it supports the policy down to step {found.supported}" in found.reasons[0]
    assert estimate(sharp, log(600), horizon=found.supported).verdict != Verdict.REFUSE
    good = estimate(SOFT, log(6000))
    assert good.verdict == Verdict.TRUST
    assert good.reasons[0].startswith("the log supports the policy down to step 4")
    effective = [step.effective for step in good.steps]
    assert effective == sorted(effective, reverse=True)
    assert good.summary()["steps"][0]["sessions"] == 6000


@pytest.mark.parametrize(
    ("step", "verdict", "words"),
    [
        ({"effective": 500.0, "balance": 0.99}, Verdict.TRUST, "500 effective"),
        ({"effective": 100.0, "balance": 0.99}, Verdict.CARE, "leave 100 effective of 900 sessions"),
        ({"effective": 500.0, "balance": 0.9}, Verdict.CARE, "the log has 90% of the exposure"),
        ({"effective": 20.0, "balance": 0.99}, Verdict.REFUSE, "leave 20 effective"),
        ({"effective": 500.0, "balance": 0.5}, Verdict.REFUSE, "has 50% of the exposure"),
    ],
)
def test_a_step_is_judged_by_its_weights_and_by_what_the_log_never_shows(step: dict, verdict: str, words: str) -> None:
    found = StepSupport(step=2, sessions=900, **step)
    assert found.verdict == verdict
    assert words in found.words


def test_several_clicks_and_fitted_propensities_make_it_use_with_care() -> None:
    several = world(several_clicks=True)
    found = estimate(by_state(several, 2 * relevance(several)), log(several_clicks=True))
    assert found.verdict == Verdict.CARE
    assert "of the steps have several clicks" in found.reasons[0]
    counted = estimate(SOFT, log().drop("propensities"), propensity="frequency")
    assert any("propensities are frequency" in reason for reason in counted.reasons)


def test_steps_in_states_that_the_policy_does_not_know_are_counted_one_by_one() -> None:
    known, frame = SOFT.vocabulary.query_ids.head(3), log()
    stage = MatrixFactorisation(relevance(OF)[:3], np.eye(OF.config.items))
    policy = TwoStagePolicy(stage, stage, SOFT.K2, SOFT.K, Vocabulary(known, SOFT.vocabulary.item_ids))
    share = 1 - frame["state"].is_in(known.implode()).mean()
    assert round(100 * share) != round(100 * (1 - 3 / frame["state"].n_unique()))
    reasons = estimate(policy, frame).reasons
    assert f"{share:.0%} of the steps are in states that the policy answers as the average" in reasons


def test_a_policy_on_its_own_training_log_is_not_trusted() -> None:
    frame = log(6000)
    name = tr.logs.feedback.fingerprint([read(frame).feedback()])
    found = estimate(replace(SOFT, trained_on=name), frame)
    assert found.verdict == Verdict.CARE
    assert "trained on this very log" in found.reasons[0]


def test_a_policy_that_knows_neither_states_nor_queries_is_refused() -> None:
    with pytest.raises(
        PolicyError, match="expected a policy of the states or the queries of the log, such as 'elsewhere'"
    ):
        estimate(SOFT, log().with_columns(state=pl.lit("elsewhere")))


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        ({"horizon": 0}, "horizon: expected a number of steps"),
        ({"discount": 1.5}, "discount: expected a number from 0 to 1"),
        ({"estimator": "beta_ips"}, "estimator must be one of"),
        ({"colour": 1}, "unknown keyword 'colour'"),
        ({"reward_column": "values"}, "reward_column is for single lists"),
        ({"engine": "ray"}, "engine is for single lists"),
    ],
)
def test_wrong_switches_are_refused(switches: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        estimate(SOFT, log(), **switches)
