"""Saved policies: the same after loading, and whatever is damaged is one `PolicyError`."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file

import believing
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import PolicyError
from tandemrank.policies import storage, two_stage
from tandemrank.policies.memory import Memory, Remembering
from tandemrank.policies.scorers import GivenScores, MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy

Damage = Callable[[Path], object]

Q, D = 4, 6
IDS = Vocabulary(pl.Series("query_id", ["a", "b", "c", "d"]), pl.Series("item_id", range(10, 10 + D)))
NUMBERS = np.random.default_rng(0).normal(size=(Q + D, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> dict[str, Path]:
    """A pair of every kind of scorer."""
    folder = tmp_path_factory.mktemp("saved")
    factors = MatrixFactorisation(NUMBERS[:Q], NUMBERS[Q:])
    scorers = {
        "factors": factors,
        "given": GivenScores(NUMBERS[:Q] @ NUMBERS[Q:].T),
        "belief": believing.believed(Q, D),
    }
    for name, scorer in scorers.items():
        TwoStagePolicy(scorer, scorer, 4, 2, IDS).save(folder / name)
    return {name: folder / name for name in scorers}


def test_it_is_the_same_after_loading(saved) -> None:
    for folder in saved.values():
        policy = two_stage.load(folder)
        assert (policy.K2, policy.K) == (4, 2)
        assert policy.vocabulary.item_ids.equals(IDS.item_ids)
        assert policy.recommend(["a"])["items"].list.len().to_list() == [2]


def test_every_file_may_be_read_by_those_who_may_read_the_others(saved) -> None:
    for folder in saved.values():
        assert len({file.stat().st_mode for file in folder.iterdir()}) == 1


def test_what_could_not_be_loaded_is_not_saved(tmp_path) -> None:
    scorer = MatrixFactorisation(NUMBERS[:Q], NUMBERS[Q:])
    with torch.no_grad():
        scorer.items[1, 1] = torch.nan
    with pytest.raises(PolicyError, match="not finite"):
        TwoStagePolicy(scorer, scorer, 4, 2, IDS).save(tmp_path / "pair")
    assert not list(tmp_path.iterdir())


# --- what is damaged: each changes one thing of a whole folder --------------------------------------------------------


def set_config(*path: str, to: Any) -> Damage:
    def damage(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        place = config
        for name in path[:-1]:
            place = place[int(name)] if isinstance(place, list) else place[name]
        place[path[-1]] = to
        (folder / "config.json").write_text(json.dumps(config))

    return damage


def write_config(text: str | bytes) -> Damage:
    content = text if isinstance(text, bytes) else text.encode()
    return lambda folder: (folder / "config.json").write_bytes(content)


def set_weights(name: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Damage:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "weights.safetensors")
        old = tensors.pop(name, torch.zeros(1))
        if (new := change(old.clone())) is not None:
            tensors[name] = new.contiguous()
        save_file(tensors, folder / "weights.safetensors")

    return damage


def set_ids(change: Callable[[pl.DataFrame], pl.DataFrame]) -> Damage:
    def damage(folder: Path) -> None:
        change(pl.read_parquet(folder / "vocabulary.parquet")).write_parquet(folder / "vocabulary.parquet")

    return damage


def put(index: Any, value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(t: torch.Tensor) -> torch.Tensor:
        t[index] = value
        return t

    return change


def truncate(name: str) -> Damage:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return damage


def flip(name: str) -> Damage:
    def damage(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[4] ^= 0xFF
        (folder / name).write_bytes(bytes(content))

    return damage


STAGE = ("stages", "generator")
SIZES = (*STAGE, "sizes")
ITEMS = (*SIZES, "items")
ANY: dict[str, Damage] = {
    "no configuration": write_config(""),
    "half a configuration": write_config('{"format": 1,'),
    "a list": write_config("[]"),
    "a number": write_config("1"),
    "not UTF-8": write_config(b"\xff\xfe"),
    "nested deeply": write_config("[" * 100_000),
    "an endless number": write_config('{"format": 1' + "0" * 10_000 + "}"),
    "an infinite format": write_config('{"format": Infinity}'),
    "format true": set_config("format", to=True),
    "format a text": set_config("format", to="1"),
    "a configuration more": set_config("more", to=1),
    "K = 2.5": set_config("K", to=2.5),
    "K = 2.0": set_config("K", to=2.0),
    "K = true": set_config("K", to=True),
    "K = null": set_config("K", to=None),
    "K a text": set_config("K", to="2"),
    "K = 0": set_config("K", to=0),
    "K above K2": set_config("K", to=5),
    "K2 above D": set_config("K2", to=D + 1),
    "K2 huge": set_config("K2", to=10**30),
    "no stages": set_config("stages", to={}),
    "stages a list": set_config("stages", to=[]),
    "a stage more": set_config("stages", "third", to={"kind": "given-scores", "sizes": {}}),
    "unknown kind": set_config(*STAGE, "kind", to="forest"),
    "kind a list": set_config(*STAGE, "kind", to=["given-scores"]),
    "kind of the other": set_config(*STAGE, "kind", to="nothing"),
    "sizes a list": set_config(*SIZES, to=[]),
    "no sizes": set_config(*SIZES, to={}),
    "Q = 4.0": set_config(*SIZES, "Q", to=float(Q)),
    "Q = true": set_config(*SIZES, "Q", to=True),
    "Q of others": set_config(*SIZES, "Q", to=Q + 1),
    "Q negative": set_config(*SIZES, "Q", to=-1),
    "D huge": set_config(*SIZES, "D", to=10**18),
    "D a text": set_config(*SIZES, "D", to=str(D)),
    "weights cut": truncate("weights.safetensors"),
    "weights of other bytes": flip("weights.safetensors"),
    "weights empty": lambda folder: (folder / "weights.safetensors").write_bytes(b""),
    "weights of no stage": set_weights("third.x", lambda t: t),
    "ids cut": truncate("vocabulary.parquet"),
    "ids of other bytes": flip("vocabulary.parquet"),
    "no item ids": set_ids(lambda f: f.drop("item_id")),
    "ids twice": set_ids(lambda f: f.with_columns(item_id=pl.Series([10, 10, 12, 13, 14, 15]))),
    "query ids twice": set_ids(lambda f: f.with_columns(query_id=pl.Series(["a", "a", "c", "d", None, None]))),
    "ids with a gap": set_ids(lambda f: f.with_columns(query_id=pl.Series(["a", None, "c", "d", "b", None]))),
    "ids with fractions": set_ids(lambda f: f.with_columns(pl.col("item_id") + 0.5)),
    "ids of truth": set_ids(lambda f: f.with_columns(item_id=pl.Series([True] * D))),
    "an id less": set_ids(lambda f: f.head(D - 1)),
    "a folder in place of a file": lambda folder: (
        (folder / "config.json").unlink(), (folder / "config.json").mkdir()
    ),
}  # fmt: skip
OF_FACTORS: dict[str, Damage] = {
    "F = 2": set_config(*SIZES, "F", to=2),
    "F = 3.0": set_config(*SIZES, "F", to=3.0),
    "F huge": set_config(*SIZES, "F", to=10**15),
    "F negative": set_config(*SIZES, "F", to=-3),
    "NaN": set_weights("generator.items", put((0, 0), np.nan)),
    "infinite": set_weights("generator.queries", put((0, 0), np.inf)),
    "other numbers": set_weights("generator.items", lambda t: t.double()),
    "whole numbers": set_weights("generator.items", lambda t: t.long()),
    "another shape": set_weights("generator.items", lambda t: t.T),
    "missing": set_weights("ranker.items", lambda t: None),
    "one more": set_weights("ranker.more", lambda t: t),
    "kind": set_config(*STAGE, "kind", to="given-scores"),
}
OF_GIVEN: dict[str, Damage] = {
    "entries huge": set_config(*SIZES, "entries", to=10**15),
    "entries less": set_config(*SIZES, "entries", to=3),
    "entries negative": set_config(*SIZES, "entries", to=-1),
    "an item too large": set_weights("generator.item", put(0, D)),
    "an item too small": set_weights("generator.item", put(0, -1)),
    "an item twice": set_weights("generator.item", put(1, 0)),
    "rows that fall": set_weights("generator.first", put(1, 99)),
    "rows that begin late": set_weights("generator.first", put(0, 1)),
    "rows that end early": set_weights("generator.first", put(-1, 5)),
    "NaN": set_weights("generator.given", put(0, np.nan)),
    "infinite": set_weights("generator.given", put(0, np.inf)),
    "items of other numbers": set_weights("generator.item", lambda t: t.int()),
}
ENCODER = (*SIZES, "features", "query", "encoder")
OF_BELIEF: dict[str, Damage] = {
    "F huge": set_config(*SIZES, "F", to=10**12),
    "F 2.5": set_config(*SIZES, "F", to=2.5),
    "a spread of text": set_config(*SIZES, "spread", to="wide"),
    "a spread below 0": set_config(*SIZES, "spread", to=-1.0),
    "nobody missing": set_config(*SIZES, "nobody", to=None),
    "columns out of range": set_config(*SIZES, "nobody", "opinion", to=[3, 1000]),
    "a model of another kind": set_config(*SIZES, "features", "model", "kind", to="magic"),
    "a model of other sizes": set_config(*SIZES, "features", "model", "sizes", to=[1, 2, 3]),
    "no encoder": set_config(*ENCODER, to=None),
    "a column without a mean": set_config(*ENCODER, "numeric", to=[{"name": "age"}]),
    "scale 0": set_config(*ENCODER, "numeric", to=[{"name": "age", "mean": 0.0, "scale": 0.0}]),
    "a category twice": set_config(*ENCODER, "categorical", to=[{"name": "land", "values": ["a", "a", "c"]}]),
}
DAMAGES = [
    (kind, name, damage)
    for kind, damages in (
        ("factors", ANY | OF_FACTORS), ("given", OF_GIVEN), ("belief", OF_BELIEF),
    )
    for name, damage in damages.items()
]  # fmt: skip


@pytest.mark.parametrize(("kind", "damage"), [(k, d) for k, _, d in DAMAGES], ids=[f"{k}: {n}" for k, n, _ in DAMAGES])
def test_what_is_damaged_is_one_error(saved, tmp_path, kind, damage) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(saved[kind], folder)
    damage(folder)
    with pytest.raises(PolicyError) as raised:
        two_stage.load(folder)
    message = str(raised.value)
    assert str(folder) in message
    assert "ave the policy again" in message
    assert len(message) < 600


def test_the_message_says_what_is_wrong(saved, tmp_path) -> None:
    folder = tmp_path / "policy"
    for damage, words in (
        (ANY["K = 2.5"], r"config.json, K: input should be a valid integer; got 2.5"),
        (ANY["ids twice"], r"item_ids: expected each id once; got 10 more than once"),
        (ANY["ids with a gap"], r"query_ids: expected an id at every place; got null at 1"),
        (ANY["unknown kind"], r"unknown kind .forest..*If it is a model of your own"),
        (ANY["K above K2"], r"needed: 1 <= K <= K2 <= 6"),
        (OF_FACTORS["F huge"], r"F = 1000000000000000, but no weights with more than 6 rows or columns"),
        (OF_FACTORS["NaN"], r"items of the matrix-factorisation has numbers that are not finite"),
    ):
        shutil.copytree(saved["factors"], folder)
        damage(folder)
        with pytest.raises(PolicyError, match=words):
            two_stage.load(folder)
        shutil.rmtree(folder)


def test_another_version_and_a_missing_file_are_told(saved, tmp_path) -> None:
    folder = tmp_path / "policy"
    shutil.copytree(saved["factors"], folder)
    set_config("format", to=99)(folder)
    with pytest.raises(PolicyError, match="has format 99, this version reads format 1"):
        two_stage.load(folder)
    (folder / "weights.safetensors").unlink()
    with pytest.raises(PolicyError, match=r"not a whole saved policy: weights.safetensors is missing"):
        two_stage.load(folder)
    with pytest.raises(PolicyError, match="not a whole saved policy"):
        two_stage.load(tmp_path / "nowhere")


def test_the_folder_keeps_its_names(saved) -> None:
    """Policies that were saved before load still: the keys are part of the format."""
    config = json.loads((saved["factors"] / "config.json").read_text())
    assert config == {
        "format": storage.FORMAT,
        "K2": 4,
        "K": 2,
        "stages": {
            stage: {"kind": "matrix-factorisation", "sizes": {"Q": Q, "D": D, "F": 3}} for stage in ("generator", "ranker")
        },
    }  # fmt: skip


def test_a_policy_with_a_memory_loads_in_a_new_process(tmp_path) -> None:
    """Nothing but the package is imported there, so loading itself must know the kinds that `learn` makes."""
    memory = Memory(np.array([0, 1, 1]), np.zeros(1, np.int32), np.ones(1, np.float32), 3)
    scorer = Remembering(MatrixFactorisation(np.ones((2, 2)), np.ones((3, 2))), memory)
    ids = Vocabulary(pl.Series([1, 2]), pl.Series([1, 2, 3]))
    folder = TwoStagePolicy(scorer, scorer, 3, 1, ids).save(tmp_path / "policy")
    code = f"import tandemrank; print(tandemrank.load({str(folder)!r}).ranker.kind)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "remembering"
