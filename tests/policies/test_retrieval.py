"""An index of the items: what it finds, what it misses, whose it is, where it is saved."""

import builtins
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from tandemrank._base.ids import Vocabulary
from tandemrank.errors import ConfigError, PolicyError
from tandemrank.policies import retrieval, two_stage
from tandemrank.policies.scorers import GivenScores, MatrixFactorisation
from tandemrank.policies.two_stage import TwoStagePolicy

faiss = pytest.importorskip("faiss")
RNG = np.random.default_rng(0)
USERS, ITEMS = (RNG.normal(size=(n, 4)).astype(np.float32) for n in (5, 300))


def pair() -> TwoStagePolicy:
    generator, ranker = MatrixFactorisation(USERS, ITEMS), MatrixFactorisation(-USERS, ITEMS)
    return TwoStagePolicy(generator, ranker, 20, 3, Vocabulary(pl.Series(range(5)), pl.Series(range(300))))


def test_recall_is_that_of_a_look_at_every_list() -> None:
    """All lists find everything, and the same lists are shown; one list finds some of it, and says how much."""
    q, model = np.arange(5), pair().generator
    whole, some = (retrieval.build(model, probed=n) for n in (10_000, 1))
    assert retrieval.recall(whole, model, 20, q) == 1.0
    exact = np.argsort(-(USERS @ ITEMS.T), axis=1)[:, :20]
    found, _ = some.top(USERS, 20)
    by_hand = np.mean([d in found[u] for u in range(5) for d in exact[u]])
    assert retrieval.recall(some, model, 20, q) == pytest.approx(by_hand)
    assert by_hand < 1
    assert np.array_equal(replace(pair(), index=whole).most_likely(), pair().most_likely())


def test_it_is_saved_with_the_policy_and_belongs_to_its_embeddings(tmp_path: Path) -> None:
    indexed = pair().with_index(probed=10_000)
    loaded = two_stage.load(indexed.save(tmp_path / "pair"))
    assert loaded.index is not None
    assert loaded.index.digest == indexed.index.digest
    assert np.array_equal(loaded.most_likely(), indexed.most_likely())
    assert indexed.copy().index is None
    with torch.no_grad():
        indexed.generator.items += 1
    with pytest.raises(PolicyError, match="of other embeddings than the generator's"):
        indexed.save(tmp_path / "moved")
    replace(indexed, index=None).save(tmp_path / "moved")
    (tmp_path / "moved" / "index.faiss").write_bytes((tmp_path / "pair" / "index.faiss").read_bytes())
    with pytest.raises(PolicyError, match="of other embeddings than the generator's"):
        two_stage.load(tmp_path / "moved")
    file = tmp_path / "pair" / "index.faiss"
    file.write_bytes(file.read_bytes()[:-50])
    with pytest.raises(PolicyError, match=r"damaged|whole"):
        two_stage.load(tmp_path / "pair")


def test_lists_through_an_index_of_other_embeddings_are_refused() -> None:
    """Whether it is another policy's, or its own whose items have moved in place since."""
    indexed = replace(pair(), generator=MatrixFactorisation(USERS, ITEMS.copy())).with_index()
    indexed.recommend()
    with torch.no_grad():
        indexed.generator.items += 1
    with pytest.raises(PolicyError, match="other embeddings"):
        indexed.recommend()
    with pytest.raises(PolicyError, match="other embeddings"):
        replace(pair(), index=indexed.with_index().index).most_likely()


def test_scores_that_are_no_products_have_no_index() -> None:
    with pytest.raises(PolicyError, match="a given-scores has none"):
        retrieval.build(GivenScores(USERS @ ITEMS.T))


def test_without_faiss_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name, *rest, **more):
        if name == "faiss":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ConfigError, match=r"pip install 'tandemrank\[ann\]'"):
        pair().with_index()
