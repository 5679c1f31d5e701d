"""One loop, three schedules: who moves and who is frozen, checkpoints, and that learning learns."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csc_matrix, csr_array, csr_matrix

import believing
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError
from tandemrank.experiments.stage_models import Stacked
from tandemrank.gradients import race
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training import loop
from tandemrank.training.checkpoint import Progress
from tandemrank.training.config import TrainingConfig
from tandemrank.training.loop import _Loop, train
from tandemrank.training.objective import Objective
from tandemrank.training.schedules import (
    ALONE,
    BASELINE,
    BOTH,
    BOTH_FROM_MEAN,
    GENERATOR_ALONE,
    JOINT,
    RANKER_ALONE,
    TANDEM,
    Phase,
    Step,
    schedule_of,
)

Q, D = 30, 24
THETA = [1.0, 0.5, 0.3]


def start(seed: int = 0) -> TwoStagePolicy:
    rng = np.random.default_rng(seed)
    stages = [MatrixFactorisation(rng.normal(size=(Q, 4)) * 0.3, rng.normal(size=(D, 4)) * 0.3) for _ in range(2)]
    return TwoStagePolicy(*stages, 8, 3, Vocabulary(pl.Series(range(Q)), pl.Series(range(D))))


def one_start() -> TwoStagePolicy:
    """Both stages the same model."""
    return TwoStagePolicy(start().generator, start().generator, 8, 3, start().vocabulary)


def weights(seed: int = 1) -> csr_matrix:
    rng = np.random.default_rng(seed)
    dense = (rng.random((Q, D)) < 0.15) * rng.random((Q, D))
    dense[5] = 0
    return csr_matrix(dense.astype(np.float32))


def state(model) -> list[np.ndarray]:
    return [p.detach().numpy().copy() for p in model.parameters()]


def same(a, b) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def value(policy: TwoStagePolicy) -> float:
    return float(policy.utility(weights(), THETA, samples=50).sum())


@pytest.mark.parametrize("method", ["baseline", "independent", "joint"])
@pytest.mark.parametrize(("gradient", "samples"), [("race", 1), ("reinforce", 30)])
def test_every_method_and_gradient_improves_the_objective(method, gradient, samples) -> None:
    config = TrainingConfig(gradient=gradient, samples=samples, epochs=15, minibatch=10, learning_rate=0.1)
    trained = train(start(), weights(), THETA, config, method=method)
    assert value(trained.policy) > 1.2 * value(start())


def test_weights_of_every_sparse_form_train_the_same() -> None:
    plain = weights()
    halves = csr_matrix(
        (np.repeat(plain.data / 2, 2), np.repeat(plain.indices, 2), plain.indptr * 2), shape=plain.shape
    )
    config = TrainingConfig(epochs=2, minibatch=10)
    expected = state(train(start(), plain, THETA, config).policy.ranker)
    for form in (csc_matrix(plain), csr_array(plain), halves):
        assert same(state(train(start(), form, THETA, config).policy.ranker), expected)


def test_the_schedules_move_the_stage_they_name_and_no_other() -> None:
    for stage, view in (("generator", "pair"), ("ranker", "pair"), ("generator", "generator"), ("ranker", "ranker")):
        phase = Phase("one", "one", (Step(stage, view),), view)
        policy = start()
        found = train(policy, weights(), THETA, TrainingConfig(epochs=2, minibatch=10), schedule=[phase]).policy
        moved, frozen = (found.generator, found.ranker) if stage == "generator" else (found.ranker, found.generator)
        before = (policy.generator, policy.ranker) if stage == "generator" else (policy.ranker, policy.generator)
        assert not same(state(moved), state(before[0]))
        assert same(state(frozen), state(before[1]))


def test_baseline_freezes_the_ranker_bit_by_bit_in_its_second_phase() -> None:
    config = TrainingConfig(epochs=3, minibatch=10)
    first = train(start(), weights(), THETA, config, schedule=BASELINE[:1]).policy
    both = train(start(), weights(), THETA, config, method="baseline").policy
    assert same(state(first.ranker), state(both.ranker))
    assert not same(state(first.generator), state(both.generator))


def test_joint_updates_the_generator_then_the_ranker_for_each_minibatch(monkeypatch) -> None:
    order = []
    original = Objective.utility

    def spy(self, view, stages, q, *more):
        order.append(("+".join(stages), len(q)))
        return original(self, view, stages, q, *more)

    monkeypatch.setattr(Objective, "utility", spy)
    config = TrainingConfig(epochs=1, minibatch=10, schedule="paper")
    train(start(), weights(), THETA, config)
    last = int((np.diff(weights().indptr) > 0).sum()) - 20  # queries without a click have no gradient and no turn
    assert order == [(stage, n) for n in (10, 10, last) for stage in ("generator", "ranker")]
    order.clear()
    train(start(), weights(), THETA, config, schedule=[BOTH])
    assert order == [("generator+ranker", n) for n in (10, 10, last)]


def test_joint_begins_with_both_stages_trained_alone() -> None:
    """Unless the paper's schedule is asked for: the same stages as Independent's, then both."""
    config = TrainingConfig(epochs=2, minibatch=10)
    history = train(one_start(), weights(), THETA, config).history
    names = [phase.name for phase in JOINT["tandem"]]
    assert [e.phase for e in history] == [name for name in names for _ in range(2)]
    alone = train(one_start(), weights(), THETA, config, method="independent")
    assert [e.objective for e in history[:4]] == [e.objective for e in alone.history]
    cold = train(start(), weights(), THETA, config.model_copy(update={"schedule": "paper"}))
    assert [e.phase for e in cold.history] == [BOTH.name] * 2


def test_joint_training_from_the_mean_has_its_own_most_epochs() -> None:
    config = TrainingConfig(epochs=10, minibatch=Q)
    history = train(one_start(), weights(), THETA, config).history
    assert [sum(e.phase == phase.name for e in history) for phase in JOINT["tandem"]] == [10, 10, 8]


def test_joint_begins_with_the_mean_of_two_stages_that_had_one_start() -> None:
    """At a rate of almost nothing joint training ends there."""
    config = TrainingConfig(epochs=2, minibatch=10)
    alone = train(one_start(), weights(), THETA, config, method="independent").policy
    assert not same(state(alone.generator), state(alone.ranker))
    mean = [(a + b) / 2 for a, b in zip(state(alone.generator), state(alone.ranker), strict=True)]
    slow = replace(BOTH_FROM_MEAN, rate=1e-12)
    both = train(one_start(), weights(), THETA, config, schedule=(*ALONE, slow)).policy
    for found in (both.generator, both.ranker):
        for a, b in zip(state(found), mean, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("policy", "name", "wanted"),
    [
        (one_start, "tandem", [GENERATOR_ALONE, RANKER_ALONE, BOTH_FROM_MEAN]),
        (start, "tandem", [TANDEM]),
        (start, "paper", [replace(BOTH, at_once=False)]),
    ],
)
def test_the_schedule_of_joint(policy, name, wanted) -> None:
    """Two models that have nothing to do with each other have no mean."""
    pair = policy()
    assert list(schedule_of("joint", name, pair.generator, pair.ranker)) == wanted


def test_joint_of_two_models_moves_the_generator_for_a_place_and_then_both_for_each_other(monkeypatch) -> None:
    """Two draws per minibatch, as Stacking has: the generator over all items with flat weights of K2 ranks; the pair."""
    seen, plain = [], race.utility

    def recorded(s_c, s_r, w, alpha, K2, **more):
        seen.append((K2, alpha.tolist(), s_c.requires_grad, s_r.requires_grad))
        return plain(s_c, s_r, w, alpha, K2, **more)

    monkeypatch.setattr(race, "utility", recorded)
    found = train(start(), weights(), THETA, TrainingConfig(epochs=1, minibatch=Q), schedule=[TANDEM]).policy
    place = (D, [1.0] * 8, False, True)  # alone, it is its own re-ranker over everything
    pair = (8, pytest.approx([1, 0.63093, 0.5, 0.43068, 0.38685, 0.35621], abs=1e-5), True, True)
    assert seen == [place, pair]
    only = (replace(TANDEM, steps=TANDEM.steps[1:], among_candidates=False),)
    other = train(start(), weights(), THETA, TrainingConfig(epochs=1, minibatch=Q), schedule=only).policy
    assert not torch.equal(found.generator.items, other.generator.items)


def epochs_of(method: str, pair: TwoStagePolicy) -> dict[str, int]:
    """How many epochs each stage moves in, of a pair of two models."""
    history = train(pair, weights(), THETA, TrainingConfig(epochs=4, minibatch=Q), method=method).history
    phases = {phase.name: phase for phase in schedule_of(method, "tandem", pair.generator, pair.ranker)}
    found = {"generator": 0, "ranker": 0}
    for epoch in history:
        for stage in phases[epoch.phase].stages:
            found[stage] += 1
    return found


@pytest.mark.parametrize("method", ["baseline", "independent", "stacking", "joint"])
def test_two_models_have_as_many_epochs_in_every_method(method) -> None:
    assert epochs_of(method, start()) == {"generator": 4, "ranker": 4}


@pytest.mark.parametrize(
    ("method", "keys"),
    [
        ("beliefs", []),
        ("independent", ["generator among K2"]),
        ("stacking", ["generator among K2"]),
        ("baseline", ["generator for the ranker"]),
        ("joint", ["tandem"]),
    ],
)
def test_a_re_ranker_that_is_not_trained_has_no_steps(method, keys) -> None:
    """The belief re-ranks as it is: only the generator moves, alone or for it."""
    policy = believing.policy(Q, D, 8, 3)
    phases = schedule_of(method, "tandem", policy.generator, policy.ranker)
    assert [phase.key for phase in phases] == keys
    assert {step.stage for phase in phases for step in phase.steps} <= {"generator"}
    if method != "beliefs":
        trained = train(policy, weights(), THETA, TrainingConfig(epochs=1, minibatch=Q), method=method).policy
        assert torch.equal(trained.ranker(torch.arange(Q)), policy.ranker(torch.arange(Q)))
        assert not torch.equal(trained.generator.queries, policy.generator.queries)
        assert torch.equal(trained.generator.value, policy.generator.value)  # what is remembered stays


def test_a_generator_of_its_own_is_trained_for_a_place_among_the_candidates(monkeypatch) -> None:
    """The weights of the ranks that the race sees: K2 ones for the generator alone, those of a list for the re-ranker."""
    seen = []
    real = race.utility
    monkeypatch.setattr(race, "utility", lambda *a, **more: seen.append(a[3].tolist()) or real(*a, **more))
    config = TrainingConfig(epochs=1, minibatch=Q, rank_weights="examination")
    train(start(), weights(), THETA, config, method="independent")
    assert seen == [[1.0] * 8, pytest.approx(THETA)]


def test_a_re_ranker_that_is_given_the_score_learns_with_its_generator_or_after_it() -> None:
    pair = start()
    stacked = replace(pair, ranker=Stacked(pair.ranker))
    for method in ("baseline", "independent"):
        with pytest.raises(ConfigError, match=f"{method} trains it without one. Use stacking or joint"):
            train(stacked, weights(), THETA, method=method)
    found = train(stacked, weights(), THETA, TrainingConfig(epochs=6, minibatch=10)).policy
    assert value(found) > 1.2 * value(stacked)


def test_a_phase_is_known_by_its_key_and_not_by_its_name(tmp_path) -> None:
    """Another name for readers changes no number, and a checkpoint goes on under it."""
    path = tmp_path / "checkpoint.safetensors"
    config = TrainingConfig(epochs=2, minibatch=10)
    renamed = tuple(replace(phase, name=f"another {phase.name}") for phase in ALONE)
    one = train(start(), weights(), THETA, config, schedule=ALONE, checkpoint=path)
    other = train(start(), weights(), THETA, config, schedule=renamed, checkpoint=path, resume=True)
    assert same(state(one.policy.generator), state(other.policy.generator))


def test_rates_fall_in_a_straight_line_over_a_phase_and_joint_training_goes_slower(monkeypatch) -> None:
    seen: list[tuple[float, ...]] = []
    original = _Loop.minibatch

    def spy(self, q):
        seen.append(tuple(group["lr"] for optimiser in self.all_optimisers() for group in optimiser.param_groups))
        return original(self, q)

    monkeypatch.setattr(_Loop, "minibatch", spy)
    switches = {"epochs": 2, "learning_rate": 0.8, "shared_rate": 0.5}
    slower = replace(BOTH_FROM_MEAN, most_epochs=1)
    train(one_start(), weights(), THETA, TrainingConfig(minibatch=Q, **switches), schedule=(*ALONE, slower))
    alone = [(0.8, 0.4), (0.4, 0.2)]
    assert np.concatenate(seen) == pytest.approx(np.concatenate([*alone, *alone, (0.2, 0.1, 0.2, 0.1)]))
    seen.clear()
    config = TrainingConfig(minibatch=Q, optimiser="adam", **switches)
    train(start(), weights(), THETA, config, method="independent")
    assert np.array(seen) == pytest.approx(np.array([(0.8, 0.4)] * 4))


def test_the_ranker_step_sees_the_updated_generator(monkeypatch) -> None:
    """Joint on one minibatch equals a generator step followed by a ranker step on the new generator."""
    config = TrainingConfig(epochs=1, minibatch=Q, schedule="paper")
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    plain = MatrixFactorisation.forward

    def recorded(self, q):
        seen.append((q, plain(self, q)))
        return seen[-1][1]

    with monkeypatch.context() as patch:
        patch.setattr(MatrixFactorisation, "forward", recorded)
        together = train(start(), weights(), THETA, config, seed=3).policy
    del seen[:2]  # the check of both stages, before training
    assert len(seen) == 4  # both, and again after the generator's step
    q, again = seen[2]
    assert torch.equal(again, plain(together.generator, q))
    assert not torch.equal(again, seen[0][1])
    alone = train(
        start(), weights(), THETA, config, seed=3, schedule=[Phase("c", "c", (Step("generator", "pair"),), "pair")]
    ).policy
    assert same(state(together.generator), state(alone.generator))
    ranker_first = Phase("r", "r", (Step("ranker", "pair"), Step("generator", "pair")), "pair", at_once=False)
    other = train(start(), weights(), THETA, config, seed=3, schedule=[ranker_first]).policy
    assert not same(state(together.ranker), state(other.ranker))


def test_what_all_queries_share_goes_slower() -> None:
    """The first step is as long as its learning rate, for whatever has a gradient: a row's mean, or with Adam each number."""
    before = dict(start().ranker.named_parameters())
    for optimiser in ("rows", "adam"):
        config = TrainingConfig(epochs=1, minibatch=Q, learning_rate=0.02, shared_rate=0.25, optimiser=optimiser)
        last = dict(train(start(), weights(), THETA, config, schedule=[BOTH]).policy.ranker.named_parameters())
        queries, items = ((last[n] - before[n]).detach() for n in ("queries", "items"))
        clicked = queries[torch.from_numpy(np.flatnonzero(np.diff(weights().indptr)))]
        assert clicked.square().mean(1).sqrt() == pytest.approx(0.02, rel=1e-2)
        assert (float(clicked.abs().max()) == pytest.approx(0.02, rel=1e-2)) == (optimiser == "adam")
        assert float(items.abs().max()) == pytest.approx(0.005, rel=1e-2)


@pytest.mark.parametrize(("minibatch", "wanted"), [(None, 2), (7, 7)])
def test_an_epoch_has_a_dozen_minibatches_or_more(monkeypatch, minibatch, wanted) -> None:
    seen: list[int] = []
    monkeypatch.setattr(_Loop, "minibatch", lambda self, q: float(seen.append(len(q)) or 0))
    config = TrainingConfig(epochs=1, minibatch=minibatch)
    train(start(), weights(), THETA, config, schedule=[BOTH])
    clicked = int((np.diff(weights().indptr) > 0).sum())
    assert sum(seen) == clicked
    assert max(seen) == wanted
    assert minibatch or wanted == clicked // 12


class Killed(BaseException):
    pass


@pytest.mark.parametrize("method", ["baseline", "joint"])
@pytest.mark.parametrize("killed_at", [1, 2, 6, 8, 10, 13])
def test_an_interrupted_training_ends_in_bit_identical_weights(tmp_path, method, killed_at) -> None:
    config = TrainingConfig(epochs=7, minibatch=10)
    whole = train(one_start(), weights(), THETA, config, method=method, seed=5)

    def kill(progress: Progress) -> None:
        if progress.phase * config.epochs + progress.epoch == killed_at and progress.done > 0.5:
            raise Killed

    path = tmp_path / "checkpoint.safetensors"
    options = {"method": method, "seed": 5, "checkpoint": path}
    with pytest.raises(Killed):
        train(one_start(), weights(), THETA, config, progress=kill, **options)
    assert path.exists()
    resumed = train(one_start(), weights(), THETA, config, resume=True, **options)
    for a, b in ((whole.policy.generator, resumed.policy.generator), (whole.policy.ranker, resumed.policy.ranker)):
        assert same(state(a), state(b))
    plain = [[e._replace(seconds=0, objective=repr(e.objective)) for e in t.history] for t in (whole, resumed)]
    assert plain[0] == plain[1]
    assert list(tmp_path.iterdir()) == [path]


def test_the_same_seed_gives_the_same_weights_and_the_start_is_left_alone() -> None:
    policy = start()
    before = state(policy.generator)
    a, b, c = (train(policy, weights(), THETA, TrainingConfig(epochs=2), seed=s).policy for s in (1, 1, 2))
    assert same(state(a.generator), state(b.generator))
    assert not same(state(a.generator), state(c.generator))
    assert same(state(policy.generator), before)


def test_progress_and_watch_see_every_epoch() -> None:
    told: list[Progress] = []
    trained = train(
        start(),
        weights(),
        THETA,
        TrainingConfig(epochs=2, minibatch=10),
        schedule=[BOTH],
        progress=told.append,
        watch=lambda p: {"K": p.K},
    )
    assert [e.watched for e in trained.history] == [{"K": 3}, {"K": 3}]
    config = TrainingConfig(epochs=5, minibatch=10)
    seldom = train(start(), weights(), THETA, config, schedule=[BOTH], watch=lambda p: {"K": p.K}, watch_every=2)
    assert [bool(e.watched) for e in seldom.history] == [False, True, False, True, True]
    assert max(p.done for p in told) == 1.0
    assert {p.epoch for p in told} == {0, 1, 2}


def test_no_clicks_no_change() -> None:
    policy = start()
    found = train(policy, csr_matrix((Q, D), dtype=np.float32), THETA, TrainingConfig(epochs=2))
    assert found.history == ()
    assert torch.equal(found.policy.generator.items, policy.generator.items)
    with pytest.raises(ConfigError, match="another size"):
        train(policy, csr_matrix((Q, D + 1)), THETA)


def test_a_phase_with_nothing_to_do_makes_no_optimiser(monkeypatch) -> None:
    """The first one of a process imports torch's compiler, two seconds that a pair from the posterior need not wait."""
    made = []
    monkeypatch.setattr(loop, "optimisers_of", lambda *given: made.append(given) or [])
    trained = train(start(), weights(), THETA, schedule=[replace(BOTH, most_epochs=0)])
    assert not made
    assert trained.history == ()
    assert all(np.array_equal(*both) for both in zip(state(start().ranker), state(trained.policy.ranker), strict=True))
