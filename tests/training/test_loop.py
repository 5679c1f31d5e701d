"""One loop, three schedules: who moves and who is frozen, stopping, checkpoints, and that learning learns."""

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_matrix

from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training import stopping
from tandemrank.training.config import TrainingConfig
from tandemrank.training.history import Progress
from tandemrank.training.loop import _Loop, train
from tandemrank.training.schedules import BOTH, GENERATOR_ALONE, RANKER_ALONE, SCHEDULES, Phase, Step, schedule_of
from tandemrank.training.weights import SparseWeights

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
@pytest.mark.parametrize(("gradient", "samples"), [("race", 1), ("reinforce", 30), ("reinforce+baseline", 30)])
def test_every_method_and_gradient_improves_the_objective(method, gradient, samples) -> None:
    config = TrainingConfig(
        method=method, gradient=gradient, samples=samples, epochs=15, minibatch=10, learning_rate=0.1
    )
    trained = train(start(), weights(), THETA, config)
    assert value(trained.policy) > 1.2 * value(start())


def test_the_schedules_move_the_stage_they_name_and_no_other() -> None:
    for stage, view in (("candidate", "pair"), ("ranker", "pair"), ("candidate", "candidate"), ("ranker", "ranker")):
        phase = Phase("one", (Step(stage, view),), view)
        policy = start()
        found = train(policy, weights(), THETA, TrainingConfig(epochs=2, minibatch=10), schedule=[phase]).policy
        moved, frozen = (found.generator, found.ranker) if stage == "candidate" else (found.ranker, found.generator)
        before = (policy.generator, policy.ranker) if stage == "candidate" else (policy.ranker, policy.generator)
        assert not same(state(moved), state(before[0]))
        assert same(state(frozen), state(before[1]))


def test_baseline_freezes_the_ranker_bit_by_bit_in_its_second_phase() -> None:
    config = TrainingConfig(method="baseline", epochs=3, minibatch=10)
    first = train(start(), weights(), THETA, config, schedule=SCHEDULES["baseline"][:1]).policy
    both = train(start(), weights(), THETA, config).policy
    assert same(state(first.ranker), state(both.ranker))
    assert not same(state(first.generator), state(both.generator))


def test_joint_updates_the_generator_then_the_ranker_for_each_minibatch(monkeypatch) -> None:
    order = []
    original = _Loop.objective

    def spy(self, view, stages, scores, w):
        order.append(("+".join(stages), w.shape[0]))
        return original(self, view, stages, scores, w)

    monkeypatch.setattr(_Loop, "objective", spy)
    train(
        start(), weights(), THETA, TrainingConfig(epochs=1, minibatch=10, joint_start="start", joint_step="alternate")
    )
    last = int((np.diff(weights().indptr) > 0).sum()) - 20  # queries without a click have no gradient and no turn
    assert order == [(stage, n) for n in (10, 10, last) for stage in ("candidate", "ranker")]
    order.clear()
    train(
        start(), weights(), THETA, TrainingConfig(epochs=1, minibatch=10, joint_start="start", joint_step="every-other")
    )
    assert [stage for stage, _ in order] == ["candidate", "ranker", "candidate"]
    order.clear()
    train(start(), weights(), THETA, TrainingConfig(epochs=1, minibatch=10, joint_start="start", joint_step="together"))
    assert order == [("candidate+ranker", n) for n in (10, 10, last)]


def test_joint_begins_with_both_stages_trained_alone() -> None:
    """Unless told to begin with the policy itself: the same stages as Independent's, then both."""
    config = TrainingConfig(epochs=2, joint_epochs=3, minibatch=10)
    history = train(one_start(), weights(), THETA, config).history
    assert [e.phase for e in history] == ["generator alone"] * 2 + ["ranker alone"] * 2 + ["both"] * 3
    alone = train(one_start(), weights(), THETA, config.model_copy(update={"method": "independent"}))
    assert [e.objective for e in history[:4]] == [e.objective for e in alone.history]
    cold = train(start(), weights(), THETA, config.model_copy(update={"joint_start": "start"}))
    assert [e.phase for e in cold.history] == ["both"] * 2


def test_joint_begins_with_the_mean_of_two_stages_that_had_one_start() -> None:
    """At a rate of almost nothing joint training ends where it begins."""
    config = TrainingConfig(epochs=2, joint_epochs=1, minibatch=10, joint_rate=1e-12)
    alone = train(one_start(), weights(), THETA, config.model_copy(update={"method": "independent"})).policy
    both = train(one_start(), weights(), THETA, config).policy
    assert not same(state(alone.generator), state(alone.ranker))
    mean = [(a + b) / 2 for a, b in zip(state(alone.generator), state(alone.ranker), strict=True)]
    for found in (both.generator, both.ranker):
        for a, b in zip(state(found), mean, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("policy", "joint_start", "wanted"),
    [
        (one_start, "mean", [GENERATOR_ALONE, RANKER_ALONE, BOTH._replace(from_mean=True)]),
        (start, "mean", [GENERATOR_ALONE, RANKER_ALONE, BOTH]),
        (one_start, "alone", [GENERATOR_ALONE, RANKER_ALONE, BOTH]),
        (one_start, "start", [BOTH]),
    ],
)
def test_the_schedule_of_joint(policy, joint_start, wanted) -> None:
    """Two models that have nothing to do with each other have no mean."""
    found = schedule_of("joint", joint_start, policy())
    assert list(found) == wanted


def test_rates_fall_in_a_straight_line_over_a_phase_and_joint_training_goes_slower(monkeypatch) -> None:
    seen: list[tuple[float, ...]] = []
    original = _Loop.minibatch

    def spy(self, q, number):
        seen.append(tuple(group["lr"] for optimiser in self.all_optimisers() for group in optimiser.param_groups))
        return original(self, q, number)

    monkeypatch.setattr(_Loop, "minibatch", spy)
    switches = {"epochs": 2, "joint_epochs": 1, "learning_rate": 0.8, "shared_rate": 0.5, "joint_rate": 0.25}
    train(one_start(), weights(), THETA, TrainingConfig(minibatch=Q, **switches))
    alone = [(0.8, 0.4), (0.4, 0.2)]
    assert np.concatenate(seen) == pytest.approx(np.concatenate([*alone, *alone, (0.2, 0.1, 0.2, 0.1)]))
    seen.clear()
    train(start(), weights(), THETA, TrainingConfig(minibatch=Q, rate="constant", method="independent", **switches))
    assert np.array(seen) == pytest.approx(np.array([(0.8, 0.4)] * 4))


def test_the_ranker_step_sees_the_updated_generator() -> None:
    """Joint on one minibatch equals a generator step followed by a ranker step on the new generator."""
    config = TrainingConfig(epochs=1, minibatch=Q, joint_start="start", joint_step="alternate")
    together = train(start(), weights(), THETA, config, seed=3).policy
    alone = train(
        start(), weights(), THETA, config, seed=3, schedule=[Phase("c", (Step("candidate", "pair"),), "pair")]
    ).policy
    assert same(state(together.generator), state(alone.generator))
    ranker_first = Phase("r", (Step("ranker", "pair"), Step("candidate", "pair")), "pair")
    other = train(start(), weights(), THETA, config, seed=3, schedule=[ranker_first]).policy
    assert not same(state(together.ranker), state(other.ranker))


def test_a_phase_stops_after_its_patience_and_restores_the_best_weights() -> None:
    """The best by the mean of the last five judgements: the lucky third epoch does not decide alone."""
    seen: list[list[np.ndarray]] = []
    judgements = iter([0.1, 0.5, 0.9, 0.2, 0.1, 0.4, 0.0, 0.1, 9.0])

    def criterion(policy: TwoStagePolicy) -> float:
        seen.append(state(policy.ranker))
        return next(judgements)

    config = TrainingConfig(epochs=50, patience=2, minibatch=10, joint_start="start", stopping="dcg")
    trained = train(start(), weights(), THETA, config, criterion=criterion)
    assert [e.held_out for e in trained.history] == [0.1, 0.5, 0.9, 0.2, 0.1, 0.4, 0.0, 0.1]
    assert same(state(trained.policy.ranker), seen[5])
    assert stopping.chosen_epochs(trained.history) == {"both": 6}


def test_what_all_queries_share_goes_slower() -> None:
    """The first step is as long as its learning rate, for whatever has a gradient: a row's mean, or with Adam each number."""
    before = dict(start().ranker.named_parameters())
    for query_step in ("direction", "adam"):
        config = TrainingConfig(
            epochs=1, minibatch=Q, learning_rate=0.02, shared_rate=0.25, query_step=query_step, joint_start="start"
        )
        last = dict(train(start(), weights(), THETA, config).policy.ranker.named_parameters())
        queries, items = ((last[n] - before[n]).detach() for n in ("queries", "items"))
        clicked = queries[torch.from_numpy(np.flatnonzero(np.diff(weights().indptr)))]
        assert clicked.square().mean(1).sqrt() == pytest.approx(0.02, rel=1e-2)
        assert (float(clicked.abs().max()) == pytest.approx(0.02, rel=1e-2)) == (query_step == "adam")
        assert float(items.abs().max()) == pytest.approx(0.005, rel=1e-2)


def test_fixed_stopping_has_all_epochs_and_never_asks_the_criterion() -> None:
    def criterion(policy: TwoStagePolicy) -> float:
        raise AssertionError("asked")

    trained = train(
        start(), weights(), THETA, TrainingConfig(epochs=4, stopping="fixed", joint_start="start"), criterion=criterion
    )
    assert len(trained.history) == 4
    assert stopping.chosen_epochs(trained.history) == {"both": 4}


@pytest.mark.parametrize(
    ("switches", "K2", "wanted"),
    [
        ({"alpha": "examination"}, 500, THETA),
        ({"alpha": "flat", "depth": 40}, 500, [1.0] * 40),
        ({"alpha": "flat", "depth": 400}, 500, [1.0] * 100),  # a fifth of the candidates
        ({"alpha": "flat", "depth": 2}, 500, [1.0] * 3),  # never less than what is shown
    ],
)
def test_list_utility_the_weights_of_the_ranks(switches, K2, wanted) -> None:
    config = TrainingConfig(**switches)
    loop = _Loop(start(), SparseWeights(weights()), THETA, config, SCHEDULES["joint"], None, 0, None)
    found = loop.alpha(K2)
    assert found.tolist() == pytest.approx(wanted)


def test_the_automatic_depth_is_deeper_where_clicks_are_fewer() -> None:
    w = weights()
    clicked = w.nnz / int((np.diff(w.indptr) > 0).sum())
    loop = _Loop(start(), SparseWeights(w), THETA, TrainingConfig(alpha="flat"), SCHEDULES["joint"], None, 0, None)
    assert len(loop.alpha(1000)) == int(200 / clicked)
    assert 20 < len(loop.alpha(1000)) < 100


@pytest.mark.parametrize(("minibatch", "wanted"), [(None, 2), (7, 7)])
def test_an_epoch_has_a_dozen_minibatches_or_more(monkeypatch, minibatch, wanted) -> None:
    seen: list[int] = []
    monkeypatch.setattr(_Loop, "minibatch", lambda self, q, number: float(seen.append(len(q)) or 0))
    config = TrainingConfig(epochs=1, minibatch=minibatch, joint_start="start")
    train(start(), weights(), THETA, config)
    clicked = int((np.diff(weights().indptr) > 0).sum())
    assert sum(seen) == clicked
    assert max(seen) == wanted
    assert minibatch or wanted == clicked // 12


class Killed(BaseException):
    pass


@pytest.mark.parametrize("method", ["baseline", "joint"])
@pytest.mark.parametrize("killed_at", [1, 2, 4, 5, 7])
def test_an_interrupted_training_ends_in_bit_identical_weights(tmp_path, method, killed_at) -> None:
    config = TrainingConfig(method=method, epochs=3, joint_epochs=3, minibatch=10, patience=2, stopping="dcg")

    def criterion(policy: TwoStagePolicy) -> float:
        return float(policy.most_likely().sum())

    whole = train(one_start(), weights(), THETA, config, criterion=criterion, seed=5)

    def kill(progress: Progress) -> None:
        epochs = progress.phase * config.epochs + progress.epoch
        if epochs == killed_at and progress.done > 0.5:
            raise Killed

    path = tmp_path / "checkpoint.safetensors"
    options = {"criterion": criterion, "seed": 5, "checkpoint": path}
    try:
        train(one_start(), weights(), THETA, config, progress=kill, **options)
    except Killed:
        assert path.exists()
    resumed = train(one_start(), weights(), THETA, config, resume=True, **options)
    for a, b in ((whole.policy.generator, resumed.policy.generator), (whole.policy.ranker, resumed.policy.ranker)):
        assert same(state(a), state(b))
    assert [e._replace(seconds=0) for e in whole.history] == [e._replace(seconds=0) for e in resumed.history]
    assert list(tmp_path.iterdir()) == [path]


def test_a_checkpoint_of_another_training_is_refused(tmp_path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    config = TrainingConfig(epochs=1)
    train(start(), weights(), THETA, config, checkpoint=path)
    with pytest.raises(ConfigError, match="of another training"):
        train(start(), weights(), THETA, config, seed=1, checkpoint=path, resume=True)
    with pytest.raises(ConfigError, match="of another training"):
        train(start(), weights(2), THETA, config, checkpoint=path, resume=True)
    path.write_bytes(b"half")
    with pytest.raises(ConfigError, match="not a whole checkpoint"):
        train(start(), weights(), THETA, config, checkpoint=path, resume=True)


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
        TrainingConfig(epochs=2, minibatch=10, joint_start="start"),
        progress=told.append,
        watch=lambda p: {"K": p.K},
    )
    assert [e.watched for e in trained.history] == [{"K": 3}, {"K": 3}]
    config = TrainingConfig(epochs=5, minibatch=10, joint_start="start")
    seldom = train(start(), weights(), THETA, config, watch=lambda p: {"K": p.K}, watch_every=2)
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
