"""A memory on both stages: added exactly, seen by lists, draws and exposures, saved, and refused where it is damaged."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.sparse import csr_matrix

import enumeration
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import PolicyError
from tandemrank.gradients.products import Source
from tandemrank.policies import candidates, two_stage
from tandemrank.policies.memory import Memory, Remembering, Retrieval, excluding, nearest, some
from tandemrank.policies.scorers import GivenScores, MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy

Q, D, K2, K = 3, 5, 3, 2
THETA = [1.0, 0.5]
DENSE = np.array([[0, 2.0, 0, -1.0, 0], [0, 0, 0, 0, 0], [0.5, 0, 0, 0, -3.0]], np.float32)


def memory() -> Memory:
    query, item = np.nonzero(DENSE)
    first = np.searchsorted(query, np.arange(Q + 1))
    return Memory(first, item.astype(np.int32), DENSE[query, item], D)


def base(seed: int = 0) -> MatrixFactorisation:
    rng = np.random.default_rng(seed)
    return MatrixFactorisation(rng.normal(size=(Q, 2)), rng.normal(size=(D, 2)))


def pair() -> TwoStagePolicy:
    vocabulary = Vocabulary(pl.Series(range(Q)), pl.Series([f"item {d}" for d in range(D)]))
    return TwoStagePolicy(Remembering(base(0), memory()), Remembering(base(1), memory()), K2, K, vocabulary)


def dense(seed: int) -> np.ndarray:
    return (base(seed)(torch.arange(Q)).detach().numpy() + DENSE).astype(np.float32)


def test_what_is_excluded_is_not_available_and_the_rest_stays(tmp_path: Path) -> None:
    """On a scorer with a memory and on one without; after saving too; also where nothing is left to show."""
    pairs = csr_matrix(np.array([[0, 1, 0, 0, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]))
    barred = np.where(pairs.toarray() > 0, -np.inf, 0).astype(np.float32)
    wanted = TwoStagePolicy(GivenScores(dense(0) + barred), GivenScores(dense(1) + barred), K2, K, pair().vocabulary)
    stages = [excluding(stage, pairs) for stage in (pair().generator, pair().ranker)]
    TwoStagePolicy(*stages, K2, K, pair().vocabulary).save(tmp_path / "pair")
    found = two_stage.load(tmp_path / "pair")
    for mine, other in zip(found.plain_scores(range(Q)), wanted.plain_scores(range(Q)), strict=True):
        assert mine.numpy() == pytest.approx(other.numpy(), rel=1e-6)
    assert found.most_likely().tolist() == wanted.most_likely().tolist()
    assert found.most_likely()[2].tolist() == [-1, -1]
    plain = excluding(base(), pairs)(torch.arange(Q)).detach().numpy()
    assert plain == pytest.approx(base()(torch.arange(Q)).detach().numpy() + barred, rel=1e-6)


def test_scores_are_those_of_the_base_and_what_is_remembered() -> None:
    s_c, s_r = pair().plain_scores([2, 0])
    assert s_c.numpy() == pytest.approx(dense(0)[[2, 0]], rel=1e-6)
    assert s_r.numpy() == pytest.approx(dense(1)[[2, 0]], rel=1e-6)


def test_products_with_what_is_remembered_are_the_scores() -> None:
    """Of a base with a memory, of lists that are merged in, and of a memory over such lists; by pairs, too."""
    q = torch.tensor([2, 0, 1])
    light = Retrieval(base(0).queries, base(0).items, memory())
    twice = Remembering(light, replace(memory(), item=np.array([0, 3, 0, 4], np.int32)))
    for scorer in (Remembering(base(0), memory()), light, twice):
        found = scorer.factors(q)
        assert found is not None
        assert found.whole().detach().numpy() == pytest.approx(scorer(q).detach().numpy(), rel=1e-6)
        rows, items = (x.ravel() for x in np.meshgrid(np.arange(3), np.arange(D), indexing="ij"))
        assert Source.of(found).at(rows, items) == pytest.approx(scorer(q).detach().numpy().ravel(), rel=1e-6)


def test_lists_draws_and_exposures_are_those_of_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair with a memory is the pair of given scores that are the sums, draw by draw; its exposure is by enumeration."""
    ours, vocabulary = pair(), pair().vocabulary
    given = TwoStagePolicy(GivenScores(dense(0)), GivenScores(dense(1)), K2, K, vocabulary)
    keys = np.arange(60, dtype=np.uint64)
    assert np.array_equal(ours.sample(keys.astype(int) % Q, keys), given.sample(keys.astype(int) % Q, keys))
    assert ours.recommend().equals(given.recommend())
    rho, error = ours.exposure([0] * D, range(D), THETA, samples=4000, seed=1)
    exact = enumeration.exposure(dense(0)[0].tolist(), dense(1)[0].tolist(), THETA, K2)
    assert (np.abs(rho - exact) < 5 * error + 1e-9).all()
    monkeypatch.setattr(candidates, "LARGE", 0)
    rho, error = ours.exposure([0] * D, range(D), THETA, samples=4000, seed=1)
    assert (np.abs(rho - exact) < 5 * error + 1e-9).all()
    assert ours.recommend().equals(given.recommend())


def test_training_moves_the_base_and_not_the_memory() -> None:
    scorer = pair().generator
    assert {name for name, _ in scorer.named_parameters()} == {"base.queries", "base.items"}
    scorer(torch.arange(Q)).sum().backward()
    assert scorer.base.queries.grad is not None


def test_a_saved_memory_is_the_same(tmp_path: Path) -> None:
    loaded = two_stage.load(pair().save(tmp_path / "pair"))
    assert np.array_equal(loaded.generator.memory.value, memory().value)
    assert np.array_equal(loaded.ranker.memory.item, memory().item)
    assert torch.equal(loaded.plain_scores([0])[1], pair().plain_scores([0])[1])


def damage(folder: Path, what: str) -> None:
    tensors = load_file(folder / "weights.safetensors")
    config = json.loads((folder / "config.json").read_text())
    sizes = config["stages"]["generator"]["sizes"]
    if what == "range":
        tensors["generator.item"][0] = D
    elif what == "order":
        tensors["generator.item"][:2] = torch.tensor([3, 1])
    elif what == "finite":
        tensors["generator.value"][0] = torch.nan
    elif what == "rows":
        tensors["generator.first"][-1] = 99
    elif what == "unknown kind":
        sizes["base"]["kind"] = "magic"
    elif what == "sizes":
        sizes["base"]["sizes"]["F"] = 10**9
    else:
        sizes.pop("base")
    save_file(tensors, folder / "weights.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("what", ["range", "order", "finite", "rows", "unknown kind", "sizes", "no base"])
def test_a_damaged_memory_is_refused(what: str, tmp_path: Path) -> None:
    folder = pair().save(tmp_path / "pair")
    damage(folder, what)
    with pytest.raises(PolicyError, match="unknown kind 'magic'" if what == "unknown kind" else "damaged saved policy"):
        two_stage.load(folder)


def test_a_memory_that_does_not_fit_is_refused() -> None:
    with pytest.raises(PolicyError, match="3 queries and 5 items"):
        Remembering(MatrixFactorisation(np.zeros((2, 1)), np.zeros((5, 1))), memory())
    with pytest.raises(PolicyError, match="has a memory already"):
        Remembering(Remembering(base(), memory()), memory())


def test_scores_that_are_products_give_their_vectors_and_constants_back() -> None:
    rng = np.random.default_rng(0)
    x, y = (torch.from_numpy(rng.normal(size=(n, 3)).astype(np.float32)) for n in (5, 40))
    c = torch.arange(5.0)
    found, constant = nearest(x @ y.T + c[:, None], y)
    assert torch.allclose(found, x, atol=2e-3)
    assert torch.allclose(constant, c, atol=2e-3)


def test_it_is_the_least_weighted_square_error_near_the_top() -> None:
    rng = np.random.default_rng(1)
    s, Y = rng.normal(size=(1, 12)), rng.normal(size=(12, 2))
    m = 12 * np.exp(s[0]) / np.exp(s[0]).sum() + 0.1
    A = np.vstack([np.column_stack([Y, np.ones(12)]) * np.sqrt(m)[:, None], np.eye(3)])
    A[12:] *= np.sqrt([1e-4 * np.square(Y).mean() * 12 + 1e-9] * 2 + [1e-9])[:, None]
    expected = np.linalg.lstsq(A, np.append(s[0] * np.sqrt(m), np.zeros(3)))[0]
    x, c = nearest(torch.from_numpy(s), torch.from_numpy(Y))
    assert np.allclose(x[0], expected[:2], atol=1e-5)
    assert np.isclose(c[0], expected[2], atol=1e-5)


def test_without_a_constant_a_level_is_in_the_vectors() -> None:
    y = torch.tensor([[1.0, 2.0], [1.0, -1.0], [1.0, 0.5]])
    x, c = nearest(torch.tensor([[3.0, 3.0, 3.0]]), y, constant=False)
    assert torch.allclose(x, torch.tensor([[3.0, 0.0]]), atol=2e-3)
    assert not c.any()


def test_some_are_spread_evenly_and_never_more_than_there_are() -> None:
    assert some(3).tolist() == [0, 1, 2]
    assert some(100, 3).tolist() == [0, 49, 99]
