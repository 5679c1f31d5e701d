"""The driver of methods: a stage alone is trained once, seeds are those of the phases, interruptions leave no trace."""

from collections import Counter
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_matrix

from tandemrank._base.ids import Vocabulary
from tandemrank._base.random import derive
from tandemrank.errors import ConfigError
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training import schedules
from tandemrank.training.checkpoint import Progress
from tandemrank.training.config import TrainingConfig
from tandemrank.training.loop import train
from tandemrank.training.methods import Methods, check_methods, of_trials

Q, D = 20, 24
THETA = [1.0, 0.5, 0.3]
CONFIG = TrainingConfig(epochs=2, minibatch=10)
ALL = ("baseline", "independent", "joint")


def start() -> TwoStagePolicy:
    rng = np.random.default_rng(0)
    scorer = MatrixFactorisation(rng.normal(size=(Q, 4)) * 0.3, rng.normal(size=(D, 4)) * 0.3)
    return TwoStagePolicy(scorer, scorer, 8, 3, Vocabulary(pl.Series(range(Q)), pl.Series(range(D))))


def weights() -> csr_matrix:
    return csr_matrix((np.random.default_rng(1).random((Q, D)) < 0.15).astype(np.float32))


def driver(config: TrainingConfig = CONFIG, **more) -> Methods:
    return Methods(start(), None, weights(), THETA, config, **{"seed": 7, **more})


def bits(policy: TwoStagePolicy) -> list[torch.Tensor]:
    return [*policy.generator.state_dict().values(), *policy.ranker.state_dict().values()]


def same(a: TwoStagePolicy, b: TwoStagePolicy) -> bool:
    return all(torch.equal(x, y) for x, y in zip(bits(a), bits(b), strict=True))


class Counting:
    """Trains, and counts how often each phase is trained."""

    def __init__(self) -> None:
        self.phases: Counter[str] = Counter()

    def __call__(self, *arguments, schedule, **options):
        self.phases.update(phase.key for phase in schedule)
        return train(*arguments, schedule=schedule, **options)


def test_a_stage_alone_is_trained_once_for_all_methods_and_all_K2() -> None:
    """Three methods are four phases, not seven; another K2 adds only those of the pair."""
    counting = Counting()
    asked = driver(run=counting)
    for method in ALL:
        asked.train(method)
    once = {"ranker alone": 1, "generator for the ranker": 1, "generator alone": 1, "both": 1}
    assert counting.phases == once
    for method in ALL:
        assert asked.train(method, 12).policy.K2 == 12
    assert counting.phases == once | {"generator for the ranker": 2, "both": 2}


def test_a_pair_does_not_depend_on_what_else_is_trained() -> None:
    asked = driver()
    found = {method: asked.train(method) for method in reversed(ALL)}
    for method in ALL:
        alone = driver().train(method)
        assert same(alone.policy, found[method].policy)
        assert [e.objective for e in alone.history] == [e.objective for e in found[method].history]


def test_every_phase_has_the_seed_of_its_key_and_the_pair_also_of_K2() -> None:
    asked = driver(coordinates=(1000,))
    seed = derive(7, "training", 1000, "generator alone") % 2**32
    alone = train(start(), weights(), THETA, CONFIG, schedule=[schedules.GENERATOR_ALONE], seed=seed).policy
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            asked.train("independent").policy.generator.parameters(), alone.generator.parameters(), strict=True
        )
    )
    ranker = asked.train("independent").policy.ranker
    pair = TwoStagePolicy(start().generator, ranker, 12, 3, start().vocabulary)
    seed = derive(7, "training", 1000, "generator for the ranker", 12) % 2**32
    second = train(pair, weights(), THETA, CONFIG, schedule=[schedules.GENERATOR_FOR_RANKER], seed=seed)
    assert same(asked.train("baseline", 12).policy, second.policy)


def test_another_name_for_a_phase_changes_no_number(monkeypatch) -> None:
    before = driver().train("independent").policy
    renamed = tuple(replace(phase, name=phase.name.upper()) for phase in schedules.ALONE)
    monkeypatch.setattr(schedules, "ALONE", renamed)
    after = driver().train("independent")
    assert {e.phase for e in after.history} == {phase.name for phase in renamed}
    assert same(before, after.policy)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("killed_at", range(1, 9))
def test_interrupted_anywhere_and_resumed_all_methods_end_in_the_same_bits(tmp_path, killed_at) -> None:
    whole = [driver().train(method) for method in ALL]
    left = killed_at

    def kill(state: Progress) -> None:
        nonlocal left
        left -= state.done == 0.0
        if left == 0:
            raise Killed

    killed = driver(checkpoints=tmp_path)
    with pytest.raises(Killed):
        [killed.train(method, progress=kill) for method in ALL]
    again = driver(checkpoints=tmp_path, resume=True)
    # In another order, and with the same bits.
    found = {method: again.train(method) for method in reversed(ALL)}
    for method, wanted in zip(ALL, whole, strict=True):
        assert same(found[method].policy, wanted.policy)
        assert [e.objective for e in found[method].history] == [e.objective for e in wanted.history]
    names = {"both-K2-8", "generator-alone", "generator-for-the-ranker-K2-8", "ranker-alone"}
    assert {path.stem for path in tmp_path.iterdir()} == names


def test_progress_counts_the_phases_of_the_method() -> None:
    told: list[Progress] = []
    driver().train("joint", progress=told.append)
    assert {(state.phase, state.phases) for state in told} == {(0, 3), (1, 3), (2, 3)}


def test_more_candidates_than_items_are_refused_before_any_training() -> None:
    with pytest.raises(ConfigError, match="K2 = 25 candidates, but there are only 24 items"):
        driver().train("joint", 25)


def test_methods_by_name() -> None:
    assert check_methods(["joint", "baseline", "joint"]) == ["joint", "baseline"]
    with pytest.raises(
        ConfigError, match="a method is one of beliefs, baseline, independent, stacking, joint; got 'magic'"
    ):
        check_methods(["magic"])


def test_the_beliefs_are_trained_by_nothing() -> None:
    """They need no start, and have as many candidates as are asked for."""
    counting = Counting()
    asked = Methods(None, start(), weights(), THETA, CONFIG, seed=7, run=counting)
    found = asked.train("beliefs", 12)
    assert (found.history, found.policy.K2, counting.phases) == ((), 12, {})
    assert same(found.policy, start())
    with pytest.raises(ConfigError, match="the method joint needs a policy to start from; got none"):
        asked.train("joint")
    with pytest.raises(ConfigError, match="the method beliefs needs the beliefs of the log"):
        driver().train("beliefs")


@pytest.mark.parametrize(("queries", "epochs"), [(0, 16), (10_000, 16), (40_000, 4), (1_000_000, 2)])
def test_methods_are_tried_by_fewer_epochs_of_more_queries(queries, epochs) -> None:
    assert of_trials(TrainingConfig(), queries).epochs == epochs
    assert of_trials(TrainingConfig(epochs=16), queries).epochs == 16
