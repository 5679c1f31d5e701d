"""Arguments of another kind than expected: one clear refusal each, no traceback of a library below, no wait without end."""

import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_matrix

import tandemrank as tr
from tandemrank.errors import ConfigError, InputError, LogError, PolicyError
from tandemrank.gradients import race
from tandemrank.serving.replay import replay
from tandemrank.serving.run import read_token
from tandemrank.serving.service import PolicyFolder, Settings

Q, D, K = 4, 6, 2
THETA = np.array([1.0, 0.5])
LOG = pl.DataFrame(
    {"query_id": [0, 1, 2, 3] * 5, "items": [[0, 1], [2, 3], [4, 5], [1, 0]] * 5, "clicks": [[1, 0]] * 20}
)
FRAME = pl.DataFrame({"x": [1, 2]})


@pytest.fixture(scope="module")
def policy() -> tr.TwoStagePolicy:
    scorer = tr.GivenScores(np.random.default_rng(0).normal(size=(Q, D)))
    return tr.TwoStagePolicy(scorer, scorer, D, K, tr.Vocabulary(pl.Series(range(Q)), pl.Series(range(D))))


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", []), ("seed", 10**30), ("seed", -1), ("samples", {}), ("samples", 10**30), ("samples", np.array([[1]])),
     ("theta", ["x", "y"]), ("theta", 0.5)],
)  # fmt: skip
def test_a_policy_refuses_arguments_of_its_exposure_and_utility_by_name(policy, name, value) -> None:
    given = {"theta": THETA, "samples": 2, "seed": 0} | {name: value}
    words = "curve" if name == "theta" else name
    with pytest.raises(ConfigError, match=words):
        policy.exposure([0, 1], [0, 1], **given)
    with pytest.raises(ConfigError, match=words):
        policy.utility(csr_matrix(np.ones((Q, D), np.float32)), **given)


def test_a_curve_may_come_reversed_or_with_a_gradient(policy) -> None:
    wanted = policy.exposure([0, 1], [0, 1], THETA)[0]
    for curve in (
        THETA[::-1].copy()[::-1],
        torch.tensor([1.0, 0.5], requires_grad=True),
        torch.tensor([0.5, 1.0]).flip(0),
    ):
        assert np.array_equal(policy.exposure([0, 1], [0, 1], curve)[0], wanted)


def test_keys_may_be_a_list_or_a_tensor_of_whole_numbers_and_nothing_else(policy) -> None:
    wanted = policy.sample([0, 1], np.array([3, 4], np.uint64))
    assert np.array_equal(policy.sample([0, 1], [3, 4]), wanted)
    assert np.array_equal(policy.sample([0, 1], torch.tensor([3, 4])), wanted)
    for keys in ([0.5, 1.5], ["a", "b"], torch.ones(2, requires_grad=True), [[1], [1, 2]]):
        with pytest.raises(ConfigError, match="keys: expected an array of whole numbers"):
            policy.sample([0, 1], keys)


@pytest.mark.parametrize("exclude", ["x", object(), FRAME.lazy(), np.array(["a"])])
def test_pairs_to_exclude_are_a_matrix_of_numbers(policy, exclude) -> None:
    for ask in (policy.most_likely, policy.recommend):
        with pytest.raises(InputError, match="exclude"):
            ask(exclude=exclude)


SCORES = torch.zeros(2, D)


@pytest.mark.parametrize(
    ("name", "value"),
    [("s_c", 0.5), ("s_r", np.zeros((2, D))), ("s_c", torch.zeros(2, D, dtype=torch.int64)), ("theta", [1.0]), ("K2", "5"),
     ("K2", 0), ("samples", 1.5), ("samples", 10**30)],
)  # fmt: skip
def test_the_race_refuses_arguments_by_name(name, value) -> None:
    given = {"s_c": SCORES, "s_r": SCORES, "theta": torch.tensor([1.0, 0.5]), "K2": 3, "samples": 1} | {name: value}
    with pytest.raises(ConfigError, match=name):
        race.utility(w=torch.ones(2, D), generator=torch.Generator(), **given)


def test_more_candidates_than_items_are_all_items() -> None:
    def value(K2: int) -> torch.Tensor:
        w = torch.arange(2.0 * D).view(2, D)
        return race.utility(SCORES, SCORES, w, torch.tensor([1.0, 0.5]), K2, generator=torch.Generator().manual_seed(0))

    assert torch.equal(value(10**30), value(D))


@pytest.mark.parametrize("value", [np.array([]), np.zeros((2, 2)), FRAME, pl.Series([1, 1])])
def test_a_question_refuses_arrays_and_frames(policy, value) -> None:
    with pytest.raises(ConfigError, match="TwoStagePolicy"):
        tr.estimate(value, LOG)
    for name in ("propensity", "estimator"):
        with pytest.raises(ConfigError, match=f"{name}: expected a text"):
            tr.estimate(policy, LOG, **{name: value})


def test_a_decision_is_about_policies(policy) -> None:
    with pytest.raises(
        ConfigError, match="policies: expected a TwoStagePolicy or a Shadow or a mapping; got Vocabulary"
    ):
        tr.decide(policy.vocabulary, LOG)


@pytest.mark.parametrize(
    ("name", "value"),
    [("config", "x"), ("config", torch.ones(2)), ("start", np.array([[1]])), ("methods", float("nan")), ("methods", [1, "1"]),
     ("methods", "joint"), ("seed", 0.5)],
)  # fmt: skip
def test_learn_refuses_arguments_by_name(name, value) -> None:
    with pytest.raises(ConfigError, match=f"{name}: expected"):
        tr.learn(LOG, **{name: value})


@pytest.fixture
def loop(tmp_path: Path) -> Path:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    return tmp_path / "a"


def test_links_that_lead_back_to_themselves_are_no_folder_of_policies(loop) -> None:
    for ask in (
        lambda: PolicyFolder(loop),
        lambda: PolicyFolder(loop.parent).name_of(loop),
        lambda: Settings(loop).folder,
    ):
        with pytest.raises(PolicyError, match="expected a folder"):
            ask()


def test_a_link_in_a_circle_beside_a_policy_is_passed_over(loop, policy) -> None:
    policy.save(loop.parent / "good")
    assert PolicyFolder(loop.parent).names() == ["good"]


def test_a_pipe_is_not_waited_for(tmp_path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="pipe or a device"):
        read_token(pipe, "127.0.0.1")
    with pytest.raises(LogError, match="pipe or a device"):
        replay([pipe], [])
