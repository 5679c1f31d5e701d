"""The experiment on a small world: every method learns, no decision sees the truth, seeds decide everything."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from tandemrank._base.config import resolve, validated
from tandemrank._base.random import Stream, derive, random_keys
from tandemrank.errors import ConfigError, LogError
from tandemrank.experiments import datasets
from tandemrank.experiments.config import PRESETS, ExperimentConfig
from tandemrank.experiments.trainer import Trainer, references, simulate_log
from tandemrank.experiments.world import build_world, impressions, load_task, start_policy
from tandemrank.logs.counting import from_impressions
from tandemrank.training.schedules import are_same

SMALL = {
    "queries": 200,
    "items": 120,
    "rank": 10,
    "learning": {"candidates": 30, "objective": "ips", "training": {"epochs": 25, "minibatch": 64}},
}


@pytest.fixture(scope="module")
def config() -> ExperimentConfig:
    return validated(ExperimentConfig, SMALL)


@pytest.fixture(scope="module")
def world(config):
    return build_world(load_task(config), config, 0)


@pytest.fixture(scope="module")
def trainer(config, world) -> Trainer:
    return Trainer(world, config, simulate_log(world, config, 20_000, 0), 0)


@pytest.mark.parametrize("method", ["baseline", "independent", "joint"])
def test_every_method_improves_on_production(trainer, world, method) -> None:
    outcome = trainer.run(method, 30)
    production = trainer.evaluate(world.production)
    gap = outcome.evaluation.ndcg - production.ndcg
    assert np.nanmean(gap) > 5 * np.nanstd(gap) / len(gap) ** 0.5
    assert outcome.evaluation.figures().utility.mean > production.figures().utility.mean


def test_a_trainer_leaves_no_circle_behind(config, world) -> None:
    """The 25 runs of a table go through one process: a log that waits for the collector of circles would be 23 too many."""
    mine = Trainer(world, config, simulate_log(world, config, 500, seed=3), seed=3)
    mine.run("independent", 30)
    left = [weakref.ref(x) for x in (mine, mine.log, mine.methods)]
    gc.collect()
    gc.disable()
    try:
        del mine
        assert [ref() for ref in left] == [None] * 3
    finally:
        gc.enable()


def test_a_stage_alone_is_trained_once_for_all_K2(trainer) -> None:
    a, b = trainer.run("independent", 30), trainer.run("independent", 60)
    assert a.policy.ranker is b.policy.ranker
    assert trainer.run("baseline", 30).policy.ranker is a.policy.ranker


def test_no_decision_sees_the_test_relevance(trainer, world) -> None:
    """With the truth replaced after the log was drawn, training ends in the same weights."""
    other = datasets.Task(
        world.task.name, world.task.ratings, csr_matrix(world.task.relevance[::-1]), world.task.vocabulary
    )
    blind = Trainer(replace(world, task=other), trainer.config, trainer.log, 0)
    a, b = trainer.run("joint", 30), blind.run("joint", 30)
    assert np.array_equal(a.policy.most_likely(), b.policy.most_likely())
    assert np.nanmean(a.evaluation.ndcg) > np.nanmean(b.evaluation.ndcg)


@pytest.mark.parametrize(
    ("switches", "known"),
    [
        ({"production": "mean"}, False),
        ({"production": "ratings", "logged_users": "all"}, True),
        ({"production": "all", "logged_users": "all"}, True),
    ],
)
def test_the_production_policies_of_the_readings(switches, known) -> None:
    chosen = validated(ExperimentConfig, {**SMALL, **switches})
    world = build_world(load_task(chosen), chosen, 0)
    users = world.production.generator.queries.detach().numpy()
    assert {"rest": 180, "all": 200}[chosen.logged_users] == len(world.q)
    assert (np.unique(users[world.q], axis=0).shape[0] > 1) == known


def test_exact_and_frequency_propensities_agree_on_a_long_log(config, world) -> None:
    """Summed over a query's documents, both give the same exposure."""
    from tandemrank.logs import counting
    from tandemrank.offpolicy import propensities

    rows = counting.from_impressions(impressions(world, 60_000, 1), world.task.vocabulary)
    exact = propensities.row_propensities(rows, config.learning.theta, "exact", world.production)
    frequency = propensities.frequency_propensity(rows, world.theta)
    often = np.bincount(rows.query)[rows.query] > 200
    ratio = frequency[often].mean() / exact[often].mean()
    assert ratio == pytest.approx(1, abs=0.15)


def test_seeds_are_functions_of_their_coordinates() -> None:
    assert derive(1, "a", 2) == derive(1, "a", 2)
    assert len({derive(0, "x", n) for n in range(100)} | {derive(n, "x", 0) for n in range(100)}) == 199


def test_the_paper_preset_is_the_papers_reading() -> None:
    paper = resolve(ExperimentConfig, preset=PRESETS["paper"]).learning
    assert (paper.propensity, paper.clip) == ("frequency", "paper")
    assert (paper.training.gradient, paper.training.samples) == ("reinforce", 300)
    assert (paper.training.schedule, paper.training.rank_weights) == ("paper", "examination")


def test_noise_is_in_the_clicks_and_not_in_the_truth(config) -> None:
    """Users who click what is irrelevant: clicks follow them, NDCG is of the relevance alone."""
    noisy = validated(ExperimentConfig, {**SMALL, "relevant": 0.8, "irrelevant": 0.2})
    worlds = [build_world(load_task(c), c, 0) for c in (config, noisy)]
    pairs = zip(worlds, (config, noisy), strict=True)
    truths = [Trainer(w, c, simulate_log(w, c, 8000, 0), 0).evaluate(worlds[0].production) for w, c in pairs]
    assert np.array_equal(truths[0].ndcg, truths[1].ndcg, equal_nan=True)
    assert np.array_equal(truths[0].utility, truths[1].utility, equal_nan=True)
    shown = next(impressions(worlds[1], 8000, 0))
    R = worlds[1].task.relevance[np.repeat(shown.query, 10), shown.items.ravel()].A1.reshape(-1, 10)
    k = np.arange(1, 11)
    expected = (0.2 + (0.8 - 0.2) * R) / k
    error = np.sqrt((expected * (1 - expected)).sum(0)) / len(R)
    assert (np.abs(shown.clicks.mean(0) - expected.mean(0)) < 5 * error).all()


def test_references_stand_in_their_order(config, world) -> None:
    found = references(world, config, 30, 0)
    level = {name: np.nanmean(e.ndcg) for name, e in found.items()}
    assert level["random"] < level["production"] < level["full information"]
    assert level["random"] < level["popularity"] < level["full information"]


def test_full_information_is_that_of_the_users_who_were_logged(world) -> None:
    """The truth about others must not help: with all of it turned round, the reference is the same, bit by bit."""
    brief = {**SMALL["learning"], "training": {"epochs": 2, "minibatch": 64}}
    config = validated(ExperimentConfig, {**SMALL, "learning": brief})
    R = world.task.relevance.toarray()
    others = np.setdiff1d(np.arange(world.task.Q), world.q)
    assert len(others)
    R[others] = 1 - R[others]
    turned = replace(world, task=replace(world.task, relevance=csr_matrix(R)))
    one, other = (references(w, config, 30, 0)["full information"] for w in (world, turned))
    assert np.array_equal(one.ndcg, other.ndcg, equal_nan=True)


def test_too_short_a_log_and_too_many_candidates_are_refused(config, world, trainer) -> None:
    with pytest.raises(LogError, match="expected clicks to learn from"):
        simulate_log(world, config, 1, 0)
    with pytest.raises(ConfigError, match="only 120 items"):
        trainer.run("joint", 121)


def test_a_wrong_switch_is_named(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"^epochs: input should be greater than or equal to 1; got 0"):
        resolve(ExperimentConfig, switches=["epochs=0"])
    with pytest.raises(ConfigError, match=r"no such switch; it is called epochs, wherever it is used"):
        resolve(ExperimentConfig, switches=["learning.training.epochs=5"])
    with pytest.raises(ConfigError, match=r"nonsense: there is no such switch\. There are: data"):
        resolve(ExperimentConfig, switches=["nonsense=1"])
    with pytest.raises(ConfigError, match="name=value"):
        resolve(ExperimentConfig, switches=["nonsense"])
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        resolve(ExperimentConfig, file=tmp_path / "absent.toml")
    (tmp_path / "sections.toml").write_text("[learning]\nclip = 0.1\n")
    with pytest.raises(ConfigError, match=r"switches have no sections; write epochs = 5 without \[learning\]"):
        resolve(ExperimentConfig, file=tmp_path / "sections.toml")
    (tmp_path / "bad.toml").write_text("= 1")
    with pytest.raises(ConfigError, match="is not TOML"):
        resolve(ExperimentConfig, file=tmp_path / "bad.toml")


def test_flags_override_switches_override_the_file_overrides_the_preset(tmp_path) -> None:
    (tmp_path / "c.toml").write_text('impressions = 5\nrank = 7\nclip = "none"\nepochs = 3\n')
    found = resolve(
        ExperimentConfig,
        preset=PRESETS["paper"],
        file=tmp_path / "c.toml",
        switches=["rank=8", "propensity=exact"],
        flags={"rank": 9, "impressions": None},
    )
    assert (found.impressions, found.rank, found.learning.clip, found.learning.training.epochs) == (5, 9, "none", 3)
    assert (found.learning.propensity, found.learning.training.gradient) == ("exact", "reinforce")


def test_a_production_of_two_stages_draws_and_is_weighed_by_both(config) -> None:
    """Lists are the pair's own draws, propensities the pair's exposures, and training starts from the re-ranker's vectors."""
    two = config.model_copy(update={"production_candidates": 20, "production_generator_rank": 2})
    world = build_world(load_task(two), two, 0)
    assert world.production.K2 == 20
    assert world.production.generator.spec()["F"] == 2
    shown = next(iter(impressions(world, 2000, 0)))
    keys = random_keys(derive(0, "clicks", 2000) % 2**32, Stream.LISTS, np.arange(2000))
    assert np.array_equal(shown.items, world.production.sample(shown.query, keys))
    log = from_impressions(impressions(world, 2000, 0), world.task.vocabulary)
    exact, _ = world.production.exposure(log.query, log.item, world.theta, samples=4000, seed=3)
    rho_0 = simulate_log(world, two, 2000, 0).clicks.propensities.rho_0
    one_stage = build_world(load_task(config), config, 0)
    other, _ = one_stage.production.exposure(log.query, log.item, world.theta, samples=4000, seed=3)
    error, as_one_stage = (np.abs(found - exact).mean() for found in (rho_0, other))
    assert error < 0.2 * as_one_stage
    start = start_policy(world, two, 30)
    assert are_same(start.ranker, one_stage.production.ranker)
    assert are_same(start.generator, one_stage.production.ranker)


@pytest.mark.parametrize(
    ("switches", "said"),
    [
        ({"production_generator_rank": 3}, "give production_candidates too"),
        ({"production_candidates": 20, "production_generator_rank": 11}, "have rank = 10"),
    ],
)
def test_a_production_of_two_stages_that_cannot_be_is_refused(switches, said) -> None:
    with pytest.raises(ConfigError, match=said):
        validated(ExperimentConfig, {**SMALL, **switches})


def test_production_has_at_most_as_many_candidates_as_there_are_items(config) -> None:
    with pytest.raises(ConfigError, match="production_candidates = 121, but there are only 120 items"):
        build_world(load_task(config), config.model_copy(update={"production_candidates": 121}), 0)
