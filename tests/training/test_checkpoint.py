"""Checkpoints: of this training, whole and untouched, or refused."""

import contextlib
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from scipy.sparse import csr_matrix

from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError
from tandemrank.policies.scorers import MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training import checkpoint
from tandemrank.training.checkpoint import Checkpoint, Epoch
from tandemrank.training.config import TrainingConfig
from tandemrank.training.loop import train
from tandemrank.training.schedules import BOTH

THETA = [1.0, 0.5, 0.3]
CONFIG = TrainingConfig(epochs=1, minibatch=5)


def start(seed: int = 0) -> TwoStagePolicy:
    rng = np.random.default_rng(seed)
    stages = [MatrixFactorisation(rng.normal(size=(10, 2)), rng.normal(size=(12, 2))) for _ in range(2)]
    return TwoStagePolicy(*stages, 8, 3, Vocabulary(pl.Series(range(10)), pl.Series(range(12))))


def weights(seed: int = 1) -> csr_matrix:
    return csr_matrix((np.random.default_rng(seed).random((10, 12)) < 0.2).astype(np.float32))


@pytest.fixture
def path(tmp_path):
    """The checkpoint of a finished training."""
    train(start(), weights(), THETA, CONFIG, checkpoint=tmp_path / "checkpoint.safetensors")
    return tmp_path / "checkpoint.safetensors"


def test_what_is_written_is_read(tmp_path) -> None:
    path = tmp_path / "one"
    assert checkpoint.read(path, "me") is None
    history = (Epoch("both", 0, float("nan"), 0.5, {"ndcg": 0.1}),)
    found = Checkpoint(1, 2, history, {"a": torch.arange(6.0).reshape(2, 3).T})
    checkpoint.write(path, "me", found)
    again = checkpoint.read(path, "me")
    assert again is not None
    assert torch.equal(again.tensors.pop("a"), found.tensors.pop("a"))
    assert repr(again) == repr(found)


def test_every_epoch_is_written_once_the_last_of_a_phase_with_its_end(tmp_path, monkeypatch) -> None:
    config, written, whole_write = TrainingConfig(epochs=4, minibatch=5), [], checkpoint.write

    def write(path, identity, found) -> None:
        written.append((found.phase, found.epoch))
        whole_write(path, identity, found)

    monkeypatch.setattr(checkpoint, "write", write)
    whole = train(start(), weights(), THETA, config, schedule=[BOTH], seed=3)

    def stop(progress) -> None:
        if progress.epoch == 3 and progress.done > 0:
            raise KeyboardInterrupt

    options = {"schedule": [BOTH], "seed": 3, "checkpoint": tmp_path / "one"}
    with contextlib.suppress(KeyboardInterrupt):
        train(start(), weights(), THETA, config, progress=stop, **options)
    assert written == [(0, 1), (0, 2), (0, 3)]
    again = train(start(), weights(), THETA, config, resume=True, **options)
    assert written[-2:] == [(0, 3), (1, 4)]
    for stage in ("generator", "ranker"):
        ours, theirs = (getattr(one.policy, stage).state_dict() for one in (whole, again))
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_finished_training_keeps_its_weights_alone(path) -> None:
    with safe_open(path, "pt") as file:
        assert {name.split(".")[0] for name in file.keys()} == {"now", "random"}  # noqa: SIM118


def test_a_file_of_somebody_else_is_not_replaced(path) -> None:
    train(start(), weights(), THETA, CONFIG, checkpoint=path)  # one of ours is, if one starts anew
    save_file({"a": torch.zeros(1)}, path)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="exists and is not a checkpoint of ours"):
        train(start(), weights(), THETA, CONFIG, checkpoint=path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"weights": weights(2)},
        {"policy": start(3)},
        {"policy": replace(start(), K2=9)},
        {"theta": [1.0, 0.5, 0.2]},
        {"config": CONFIG.model_copy(update={"learning_rate": 0.1})},
        {"method": "independent"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_checkpoint_of_another_training_is_refused(path, other) -> None:
    """Other switches, seed, clicks, start, candidates, method; another examination curve, even where only its length counts."""
    asked = {"policy": start(), "weights": weights(), "theta": THETA, "config": CONFIG} | other
    with pytest.raises(ConfigError, match="of another training"):
        train(**asked, checkpoint=path, resume=True)


def test_an_edited_checkpoint_is_refused(path) -> None:
    with safe_open(path, "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for changed in (
        (tensors | {"now.ranker.items": tensors["now.ranker.items"] + 1e-3}, metadata),
        ({name: t for name, t in tensors.items() if name != "now.ranker.items"}, metadata),
        (tensors, metadata | {"state": metadata["state"].replace('"phase": 1', '"phase": 0')}),
        (tensors, {"state": metadata["state"]}),
        (tensors, {}),
    ):
        save_file(*changed[:1], path, changed[1])
        with pytest.raises(ConfigError, match="not a whole checkpoint"):
            train(start(), weights(), THETA, CONFIG, checkpoint=path, resume=True)
    save_file(tensors, path, metadata)
    train(start(), weights(), THETA, CONFIG, checkpoint=path, resume=True)


@pytest.mark.parametrize("kept", [0, 4, 200, -1])
def test_a_truncated_checkpoint_is_refused(path, kept) -> None:
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ConfigError, match=r"not a whole checkpoint.*Delete it to start anew"):
        train(start(), weights(), THETA, CONFIG, checkpoint=path, resume=True)


def test_a_flipped_bit_is_refused(path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="changed after it was written"):
        train(start(), weights(), THETA, CONFIG, checkpoint=path, resume=True)
