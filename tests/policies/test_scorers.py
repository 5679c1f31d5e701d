"""Every scorer that can be saved conforms."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_matrix

from conformance import check_ranker, check_scorer
from own_models import OwnNetwork
from tandemrank._base.ids import Vocabulary
from tandemrank.experiments.stage_models import FeatureWeights, Stacked, scaled
from tandemrank.policies import towers
from tandemrank.policies.memory import Memory, Remembering
from tandemrank.policies.scorers import GivenScores, MatrixFactorisation, Scorer

NUMBERS = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)


MEMORY = Memory(
    np.array([0, 2, 2, 3, 3, 3, 4]), np.array([1, 5, 0, 7], np.int32), np.array([3.0, -2.0, 1.5, 0.5], np.float32), 8
)


def two_towers() -> Scorer:
    features = pl.DataFrame({"item_id": range(8), "x": NUMBERS[:8, 0], "kind": list("aabbccab")})
    vocabulary = Vocabulary(pl.Series(range(6)), pl.Series(range(8)))
    return towers.from_features(None, features, vocabulary, width=5, dimension=3, seed=1)


EXAMPLES = {
    "matrix factorisation": lambda: MatrixFactorisation(NUMBERS[:6], NUMBERS[6:14]),
    "given scores": lambda: GivenScores(NUMBERS[:6] @ NUMBERS[6:14].T),
    "given scores of some items": lambda: GivenScores(csr_matrix(NUMBERS[:6] @ NUMBERS[6:14].T > -1) * 1.0),
    "two towers": two_towers,
    "memory": lambda: Remembering(MatrixFactorisation(NUMBERS[:6], NUMBERS[6:14]), MEMORY),
    "features": lambda: FeatureWeights(6, scaled(NUMBERS[:8])),
    "memory of two towers": lambda: Remembering(two_towers(), MEMORY),
}


RANKERS = {
    "own network": lambda: OwnNetwork(6, NUMBERS[:8]),
    "memory of an own network": lambda: Remembering(OwnNetwork(6, NUMBERS[:8]), MEMORY),
    "stacked factorisation": lambda: Stacked(MatrixFactorisation(NUMBERS[:6], NUMBERS[6:14])),
}


def test_there_is_an_example_of_every_scorer() -> None:
    ours = {kind for kind, scorer in Scorer.kinds.items() if scorer.__module__.startswith("tandemrank.")}
    assert ours <= {make().kind for make in (EXAMPLES | RANKERS).values()}


@pytest.mark.parametrize("name", RANKERS)
def test_a_re_ranker_of_candidates_conforms(name: str, tmp_path: Path) -> None:
    check_ranker(RANKERS[name](), tmp_path)


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_conforms(name: str, tmp_path: Path) -> None:
    check_scorer(EXAMPLES[name](), tmp_path)
