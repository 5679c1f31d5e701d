"""Two models for two stages that know different things: those of the demo and of the study (`when_joint`).

    factorisation    score(q, d) = <x_q, y_d>, of a lower rank where it is the generator
    features         score(q, d) = <a + a_q, x_d>          x the items' features as numbers, a and a_q 0 before training
    stacked          score(q, d) = r(q, d) + c s(q, d)     s the generator's score, c learned, 0 before training

Features are scaled together so that an item's have the mean square sum 1: the same learning rate then serves any number of
them. No gradient of the re-ranker reaches the generator through its score.
"""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import svds
from torch import Tensor, nn
from torch.nn import functional

from tandemrank.errors import ConfigError, PolicyError
from tandemrank.gradients import products
from tandemrank.gradients.products import Products
from tandemrank.policies import features
from tandemrank.policies.features import FeatureSource
from tandemrank.policies.scorers import MatrixFactorisation, OnTop, Scorer
from tandemrank.policies.two_stage import TwoStagePolicy

ModelName = Literal["factorisation", "features"]


class Stages(BaseModel):
    """Which model each stage is; by default both are the factorisation that training starts from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    generator: ModelName = Field(
        default="factorisation",
        description="model of the generator: a factorisation, or weights of the items' features",
    )
    ranker: Literal["factorisation", "features", "belief"] = Field(
        default="factorisation",
        description="model of the re-ranker: a factorisation, weights of the items' features, or the beliefs of the log, whose "
        "generator is the product nearest to them",
    )
    generator_rank: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="dimension of the generator, where it is a factorisation; by default that of the re-ranker",
    )
    generator_score: Literal["off", "stacked"] = Field(
        default="off", description="whether the re-ranker is given the generator's score, with a weight that it learns"
    )

    @model_validator(mode="after")
    def _applies(self) -> "Stages":
        """Refuses a switch that would be ignored."""
        if self.generator_rank is not None and self.generator != "factorisation":
            raise ValueError("generator_rank is the dimension of a factorisation, but the generator is one of features")
        if self.ranker == "belief" and (self.generator, self.generator_score) != ("factorisation", "off"):
            raise ValueError(
                "a re-ranker that is the belief has the product nearest to it as its generator, and takes no scores"
            )
        return self


class FeatureWeights(Scorer):
    """Scores linear in features.  Shapes: features x [D, J] -> shared a [J], own a_q [Q, J]."""

    kind = "feature-weights"
    lengths = ("J",)
    features: Tensor

    def __init__(self, Q: int, features: ArrayLike | Tensor) -> None:
        super().__init__()
        x = torch.as_tensor(np.asarray(features), dtype=torch.float32).contiguous()
        if x.ndim != 2 or x.shape[1] == 0:
            raise PolicyError(f"expected features of the shape [items, J], J at least 1; got {tuple(x.shape)}.")
        self.Q = Q
        self.register_buffer("features", x)
        self.own = nn.Parameter(torch.zeros(Q, x.shape[1]))
        self.shared = nn.Parameter(torch.zeros(x.shape[1]))

    def forward(self, q: Tensor) -> Tensor:
        return (self.own[q] + self.shared) @ self.features.T

    def score(self, q: Tensor, items: Tensor) -> Tensor:
        return products.at(functional.embedding(q, self.own, sparse=True) + self.shared, self.features, items)

    def factors(self, q: Tensor) -> Products:
        return Products(self.own[q] + self.shared, self.features)

    def spec(self) -> dict[str, Any]:
        D, J = self.features.shape
        return {"Q": self.Q, "D": D, "J": J}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> "FeatureWeights":
        return cls(spec["Q"], torch.zeros(spec["D"], spec["J"]))

    def per_query_parameters(self) -> Sequence[nn.Parameter]:
        return [self.own]


class Stacked(OnTop):
    """The scores of `base` and, with a weight, the generator's.  Shapes: q [B], items [B, M] -> [B, M]."""

    kind = "stacked"
    needs_generator = True

    def __init__(self, base: Scorer) -> None:
        super().__init__()
        self.base = base
        self.scores_everything = base.scores_everything
        self.weight = nn.Parameter(torch.zeros(1))
        self._generator: tuple[Scorer, ...] = ()  # in a tuple: none of its weights are this scorer's

    def linked(self, generator: Scorer) -> "Stacked":
        """The same scorer, its weights shared, for the candidates of this generator."""
        if self._generator and self._generator[0] is generator:
            return self
        other = copy.copy(self)
        other._generator = (generator,)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> "Stacked":
        """Weights of its own, and no generator: the policy that it becomes part of links its own."""
        other = Stacked(copy.deepcopy(self.base, memo))
        other.load_state_dict(self.state_dict())
        return other

    @property
    def generator(self) -> Scorer:
        """Whose scores it is given."""
        if not self._generator:
            raise PolicyError("a stacked re-ranker needs its generator: make it the ranker of a `TwoStagePolicy`.")
        return self._generator[0]

    def forward(self, q: Tensor) -> Tensor:
        with torch.no_grad():
            s = self.generator(q)
        scores: Tensor = self.base(q)
        return scores + self.weight * _finite(s)

    def score(self, q: Tensor, items: Tensor) -> Tensor:
        with torch.no_grad():
            s = self.generator.score(q, items)
        return self.base.score(q, items) + self.weight * _finite(s)

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> "Stacked":
        return cls(cls.base_from(spec))


def _finite(s: Tensor) -> Tensor:
    """What is not available to the generator is no candidate: its score says nothing."""
    return torch.where(s == -torch.inf, 0.0, s)


def staged(stages: Stages, start: TwoStagePolicy, item_features: FeatureSource | None) -> TwoStagePolicy:
    """The policy before training with the models that are asked for; `start` is what a factorisation starts from."""
    generator = start.generator
    if stages.generator == "features":
        generator = _of_features(start, item_features)
    elif stages.generator_rank is not None and isinstance(generator, MatrixFactorisation):
        generator = low_rank(generator, stages.generator_rank)
    ranker = _of_features(start, item_features) if stages.ranker == "features" else start.ranker
    if stages.generator_score == "stacked":
        ranker = Stacked(ranker)
    return replace(start, generator=generator, ranker=ranker)


def _of_features(start: TwoStagePolicy, item_features: FeatureSource | None) -> FeatureWeights:
    ids = start.vocabulary
    if item_features is None:
        raise ConfigError(
            "a stage of features needs features of the items, and this world has none. Use a factorisation."
        )
    return FeatureWeights(len(ids.query_ids), scaled(features.numbers(item_features, "item_id", ids.item_ids)))


def scaled(x: ArrayLike) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Features scaled together: the mean over the items of the sum of their squares is 1.  Shapes: [D, J] -> [D, J]."""
    values = np.asarray(x, np.float64)
    size = np.sqrt((values**2).sum(1).mean()) if values.size else 0.0
    return (values / size if size > 0 else values).astype(np.float32)


def truncated_svd(ratings: csr_matrix, rank: int, *, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Embeddings whose products are the best approximation of that rank: ratings ~ queries items^T.

    The singular values are shared evenly, queries = U sqrt(S), items = V sqrt(S), so that both sides have one scale.
    Shapes: ratings [Q, D] -> [Q, F], [D, F].
    """
    if not 1 <= rank < min(ratings.shape):
        raise ConfigError(
            f"rank: a factorisation of {ratings.shape[0]} queries and {ratings.shape[1]} items has a rank below both, and at "
            f"least 1; got {rank}. Give a smaller rank, or more data."
        )
    U, S, Vt = svds(ratings.astype(np.float64), k=rank, rng=np.random.default_rng(seed))
    root = np.sqrt(S[::-1])
    # The sign of a singular pair is arbitrary; the same one everywhere makes a seed mean the same everywhere.
    sign = np.sign(Vt.sum(1)[::-1])
    sign[sign == 0] = 1
    return (U[:, ::-1] * root * sign).astype(np.float32), (Vt[::-1].T * root * sign).astype(np.float32)


def low_rank(scorer: MatrixFactorisation, rank: int) -> MatrixFactorisation:
    """A factorisation of lower rank whose scores are nearest to those of another, up to a constant of each query, which no
    list depends on.

        X (Y - mean)^T = U S V^T  ->  queries U sqrt(S), items V sqrt(S), their first `rank` columns
    """
    F = scorer.items.shape[1]
    if rank >= F:
        if rank > F:
            raise ConfigError(f"generator_rank = {rank}, but what training starts from has {F} dimensions. Give fewer.")
        return scorer
    with torch.no_grad():
        X, Y = scorer.queries.double(), scorer.items.double()
        (Qx, Rx), (Qy, Ry) = torch.linalg.qr(X), torch.linalg.qr(Y - Y.mean(0))
        U, S, Vt = torch.linalg.svd(Rx @ Ry.T)
        n = min(rank, len(S))
        root = S[:n].sqrt()
        # The sign of a singular pair is arbitrary; the same one everywhere makes a seed mean the same everywhere.
        V = Qy @ Vt[:n].T
        sign = torch.where(V.sum(0) < 0, -1.0, 1.0)
        return MatrixFactorisation((Qx @ U[:, :n] * root * sign).numpy(), (V * root * sign).numpy())
