"""Every scorer that can be saved conforms."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_matrix

from conformance import check_ranker, check_scorer
from tandemrank._base.ids import Vocabulary
from tandemrank.policies import linear, storage, towers
from tandemrank.policies.linear import LinearScores
from tandemrank.policies.memory import Memory
from tandemrank.policies.remembering import Remembering
from tandemrank.policies.scorers import GivenScores, MatrixFactorisation, Scorer
from tandemrank.policies.stacked import Stacked
from tandemrank.policies.stages import Known, Stages, build

NUMBERS = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)


MEMORY = Memory(
    np.array([0, 2, 2, 3, 3, 3, 4]), np.array([1, 5, 0, 7], np.int32), np.array([3.0, -2.0, 1.5, 0.5], np.float32), 8
)


def two_towers() -> Scorer:
    features = pl.DataFrame({"item_id": range(8), "x": NUMBERS[:8, 0], "kind": list("aabbccab")})
    vocabulary = Vocabulary(pl.Series(range(6)), pl.Series(range(8)))
    return towers.from_features(None, features, vocabulary, width=5, dimension=3, seed=1)


PAIRS = pl.DataFrame(
    {"query_id": [0, 0, 3, 5], "item_id": [1, 7, 2, 0], "x": [1.0, 2.0, None, -1.0], "y": [0, 1, 1, 0]}
)


def of_pairs(name: str, score: str = "off") -> Scorer:
    """A re-ranker over features of pairs."""
    items = pl.DataFrame({"item_id": range(8), "x": NUMBERS[:8, 0], "kind": list("aabbccab")})
    queries = pl.DataFrame({"query_id": range(6), "z": NUMBERS[8:14, 1]})
    vocabulary = Vocabulary(pl.Series(range(6)), pl.Series(range(8)))
    known = Known(vocabulary, np.zeros(8), query_features=queries, item_features=items, pair_features=PAIRS)
    factors = MatrixFactorisation(NUMBERS[:6], NUMBERS[6:14])
    return build(Stages(ranker=name, generator_score=score), factors, factors, known, seed=3)[1]


EXAMPLES = {
    "matrix factorisation": lambda: MatrixFactorisation(NUMBERS[:6], NUMBERS[6:14]),
    "given scores": lambda: GivenScores(NUMBERS[:6] @ NUMBERS[6:14].T),
    "given scores of some items": lambda: GivenScores(csr_matrix(NUMBERS[:6] @ NUMBERS[6:14].T > -1) * 1.0),
    "two towers": two_towers,
    "memory": lambda: Remembering(MatrixFactorisation(NUMBERS[:6], NUMBERS[6:14]), MEMORY),
    "features": lambda: LinearScores(6, linear.scaled(NUMBERS[:8])),
    "popularity": lambda: LinearScores(6, np.zeros((8, 0)), NUMBERS[:8, 0]),
    "popularity and features": lambda: LinearScores(6, linear.scaled(NUMBERS[:8]), NUMBERS[:8, 1]),
    "memory of two towers": lambda: Remembering(two_towers(), MEMORY),
}


RANKERS = {
    "cross network": lambda: of_pairs("cross"),
    "cross network with the generator's score": lambda: of_pairs("cross", "stacked"),
    "trees": lambda: of_pairs("trees"),
    "trees plus the generator's score": lambda: of_pairs("trees", "sum"),
    "trees with the generator's score": lambda: of_pairs("trees", "stacked"),
    "memory of a cross network": lambda: Remembering(of_pairs("cross"), MEMORY),
    "stacked factorisation": lambda: Stacked(MatrixFactorisation(NUMBERS[:6], NUMBERS[6:14]), "stacked"),
}


def test_there_is_an_example_of_every_scorer() -> None:
    assert {make().kind for make in (EXAMPLES | RANKERS).values()} == set(storage.SCORERS)


@pytest.mark.parametrize("name", RANKERS)
def test_a_re_ranker_of_candidates_conforms(name: str, tmp_path: Path) -> None:
    check_ranker(RANKERS[name](), tmp_path)


@pytest.mark.parametrize("name", EXAMPLES)
def test_it_conforms(name: str, tmp_path: Path) -> None:
    check_scorer(EXAMPLES[name](), tmp_path)
