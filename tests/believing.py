"""Beliefs with features that nobody had to fit: random vectors, two towers of random weights."""

import numpy as np
import polars as pl
import torch

from tandemrank._base.ids import Vocabulary
from tandemrank.beliefs.features import PairNumbers, Side
from tandemrank.beliefs.models import FeatureModel, Towers
from tandemrank.beliefs.scorer import BeliefSpread, Believed, Nobody, generator_of
from tandemrank.policies import features as tables
from tandemrank.policies.memory import Memory
from tandemrank.policies.two_stage import TwoStagePolicy

F, OPINION = 3, 2  # columns of vectors, the last one the level of the query; of production's opinion


def queries(n: int = 6, first: int = 0) -> pl.DataFrame:
    """Features of queries."""
    rng = np.random.default_rng(first)
    return pl.DataFrame(
        {"query_id": np.arange(first, first + n), "age": rng.normal(size=n), "land": list("abc" * n)[:n]}
    )


def items(n: int = 8, first: int = 0) -> pl.DataFrame:
    """Features of items."""
    rng = np.random.default_rng(100 + first)
    return pl.DataFrame(
        {"item_id": np.arange(first, first + n), "price": rng.normal(size=n), "kind": list("xy" * n)[:n]}
    )


def _side(frame: pl.DataFrame, column: str) -> Side:
    side = Side(tables.fit(frame, column).as_json(), len(frame), OPINION)
    side.opinion.normal_()
    side.rows[:] = side.unseen(side.of_table(frame, len(frame)))
    side.seen[:] = True
    return side


def believed(Q: int = 6, D: int = 8, *, seed: int = 1, entries: bool = True) -> Believed:
    """The re-ranker."""
    rng = np.random.default_rng(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sides = _side(queries(Q), "query_id"), _side(items(D), "item_id")
        model = Towers((sides[0].width, sides[1].width, 0)).requires_grad_(False)
        torch.nn.init.normal_(model.level.weight)
    f = FeatureModel(model, *sides, PairNumbers(0, (), D))
    x, y = rng.normal(size=(Q, F)), rng.normal(size=(D, F))
    y[:, -1] = 1
    opinions = [
        side.opinions(side.of_table(t, len(t))).numpy() for side, t in zip(sides, (queries(Q), items(D)), strict=True)
    ]
    vectors = [v.numpy() for v in f.vectors]
    X = np.hstack([x, 0.5 * opinions[0], vectors[0], np.ones((Q, 1))])
    Y = np.hstack([y, opinions[1], vectors[1], rng.normal(size=(D, 1))])
    width = X.shape[1]
    query, item = np.zeros(width, np.float32), np.zeros(width, np.float32)
    query[-1], item[F - 1] = 1, 1
    places = (F, F + OPINION), (F + OPINION, width - 1)
    by_query, by_item = (np.zeros((side.features + 1, width), np.float32) for side in sides)
    by_query[:, 0], by_item[:, -1] = 0.25, -0.5
    nobody = Nobody(query, item, (1.0, 0.5), *places, weight=0.5, by_query=by_query, by_item=by_item)
    spread = BeliefSpread(0.7, rng.random(Q).astype(np.float32), rng.random(D).astype(np.float32))
    own = rng.random((Q, D)) < (0.3 if entries else 0)
    first = np.append(0, np.cumsum(own.sum(1)))
    memory = Memory(first, np.nonzero(own)[1].astype(np.int32), rng.normal(size=int(own.sum())).astype(np.float32), D)
    return Believed(X, Y, spread, memory, nobody, f)


def policy(
    Q: int = 6, D: int = 8, K2: int = 5, K: int = 3, *, seed: int = 1, ids: Vocabulary | None = None
) -> TwoStagePolicy:
    """Both stages."""
    ranker = believed(Q, D, seed=seed)
    ids = ids or Vocabulary(pl.Series("query_id", np.arange(Q)), pl.Series("item_id", np.arange(D)))
    return TwoStagePolicy(generator_of(ranker, 4), ranker, K2, K, ids)
