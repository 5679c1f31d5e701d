"""Every scorer that can be saved conforms; what is special to some."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from scipy.sparse import csr_matrix

import believing
from conformance import check_ranker, check_scorer
from own_models import OwnNetwork
from tandemrank._base.ids import Vocabulary
from tandemrank.errors import PolicyError
from tandemrank.experiments.stage_models import FeatureWeights, Stacked, scaled
from tandemrank.policies.ahead import Ahead, Foresight
from tandemrank.policies.memory import Memory, Remembering, Retrieval
from tandemrank.policies.scorers import GivenScores, MatrixFactorisation, Scorer
from tandemrank.policies.two_stage import TwoStagePolicy

NUMBERS = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)


MEMORY = Memory(
    np.array([0, 2, 2, 3, 3, 3, 4]), np.array([1, 5, 0, 7], np.int32), np.array([3.0, -2.0, 1.5, 0.5], np.float32), 8
)


LEADS = Foresight.of(np.full(6, 0.5), np.linspace(0.5, 1, 6), np.linspace(0, 2, 8), MEMORY)


EXAMPLES = {
    "matrix factorisation": lambda: MatrixFactorisation(NUMBERS[:6], NUMBERS[6:14]),
    "given scores": lambda: GivenScores(NUMBERS[:6] @ NUMBERS[6:14].T),
    "given scores of some items": lambda: GivenScores(csr_matrix(NUMBERS[:6] @ NUMBERS[6:14].T > -1) * 1.0),
    "memory": lambda: Remembering(MatrixFactorisation(NUMBERS[:6], NUMBERS[6:14]), MEMORY),
    "belief": believing.believed,
    "retrieval": lambda: Retrieval(NUMBERS[:6], NUMBERS[6:14], MEMORY),
    "features": lambda: FeatureWeights(6, scaled(NUMBERS[:8])),
    "memory of a belief": lambda: Remembering(believing.believed(), MEMORY),
    "ahead": lambda: Ahead(believing.believed(), LEADS, np.full(6, 2.0)),
}


RANKERS = {
    "own network": lambda: OwnNetwork(6, NUMBERS[:8]),
    "memory of an own network": lambda: Remembering(OwnNetwork(6, NUMBERS[:8]), MEMORY),
    "stacked factorisation": lambda: Stacked(MatrixFactorisation(NUMBERS[:6], NUMBERS[6:14])),
}


def test_there_is_an_example_of_every_scorer() -> None:
    ours = {kind for kind, scorer in Scorer.kinds.items() if scorer.__module__.startswith("tandemrank.")}
    assert ours - {"Hybrid"} <= {make().kind for make in (EXAMPLES | RANKERS).values()}  # its own tests: test_hybrid.py


@pytest.mark.parametrize("name", RANKERS)
def test_a_re_ranker_of_candidates_conforms(name: str, tmp_path: Path) -> None:
    check_ranker(RANKERS[name](), tmp_path)


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_conforms(name: str, tmp_path: Path) -> None:
    check_scorer(EXAMPLES[name](), tmp_path)


def test_a_stacked_re_ranker_is_handed_the_score_of_its_own_pair() -> None:
    """Also of a copy and of another generator; the pair that it came from keeps its own."""
    users, items = NUMBERS[:6], NUMBERS[6:14]
    generator, stacked = MatrixFactorisation(users, items), Stacked(MatrixFactorisation(0 * users, items))
    with torch.no_grad():
        stacked.weight.fill_(3)
    ids = Vocabulary(pl.Series(range(6)), pl.Series(range(8)))
    pair = TwoStagePolicy(generator, stacked, 4, 2, ids)
    other = replace(pair, generator=MatrixFactorisation(-users, items))
    copied = pair.copy()
    with torch.no_grad():
        copied.generator.queries.mul_(2)
    q = torch.arange(6)
    for one, factor in ((pair, 3), (other, -3), (copied, 6)):
        assert torch.allclose(one.ranker(q), factor * generator(q))
    with pytest.raises(PolicyError, match="generator"):
        TwoStagePolicy(pair.ranker, generator, 4, 2, ids)
