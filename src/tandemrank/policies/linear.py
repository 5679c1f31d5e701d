"""Scores linear in the features of the items, with a vector of each query's own; with popularity, a light generator.

    score(q, d) = b_d + <a + a_q, x_d>

x are the features as numbers, scaled together so that an item's have the mean square sum 1: the same learning rate then
serves any number of them. a is what all like, a_q what this query likes beyond that, both 0 before training; b, the
popularity, moves with training from log(1 + queries that clicked the item), or is not there. What neither tells is lost to it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional

from tandemrank.errors import PolicyError
from tandemrank.gradients import products
from tandemrank.gradients.products import Products
from tandemrank.policies.scorers import Scorer


class LinearScores(Scorer):
    """Scores linear in features.  Shapes: features x [D, J]; popularity b [D] -> shared a [J], own a_q [Q, J]."""

    kind = "linear"
    lengths = ("J",)
    features: Tensor

    def __init__(self, Q: int, features: ArrayLike | Tensor, popularity: ArrayLike | Tensor | None = None) -> None:
        super().__init__()
        x = torch.as_tensor(np.asarray(features), dtype=torch.float32).contiguous()
        if x.ndim != 2 or (popularity is None and x.shape[1] == 0):
            raise PolicyError(
                f"a linear scorer needs features [items, J], at least one, or popularity; {tuple(x.shape)} came."
            )
        self.Q = Q
        self.register_buffer("features", x)
        self.own = nn.Parameter(torch.zeros(Q, x.shape[1]))
        self.shared = nn.Parameter(torch.zeros(x.shape[1]))
        self.popularity = None
        if popularity is not None:
            b = torch.as_tensor(np.asarray(popularity), dtype=torch.float32)
            if b.shape != x.shape[:1]:
                raise PolicyError(f"popularity has one number per item, {x.shape[0]}; {tuple(b.shape)} came.")
            self.popularity = nn.Parameter(b.clone())

    def forward(self, q: Tensor) -> Tensor:
        scores = (self.own[q] + self.shared) @ self.features.T
        return scores if self.popularity is None else scores + self.popularity

    def score(self, q: Tensor, items: Tensor) -> Tensor:
        vectors = functional.embedding(q, self.own, sparse=True) + self.shared
        if self.features.shape[1]:
            scores = products.at(vectors, self.features, items)
        else:
            scores = vectors.sum(1, keepdim=True).expand(items.shape)  # nothing, and yet with a gradient
        return scores if self.popularity is None else scores + self.popularity[items]

    def factors(self, q: Tensor) -> Products:
        queries, items = self.own[q] + self.shared, self.features
        if self.popularity is None:
            return Products(queries, items)
        one = queries.new_ones(len(queries), 1)
        return Products(torch.cat([queries, one], 1), torch.cat([items, self.popularity[:, None]], 1))

    def spec(self) -> dict[str, Any]:
        D, J = self.features.shape
        return {"Q": self.Q, "D": D, "J": J, "popularity": self.popularity is not None}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> "LinearScores":
        if not isinstance(spec["popularity"], bool):
            raise PolicyError(f"popularity is true or false; {str(spec['popularity'])[:60]} came")
        popularity = torch.zeros(spec["D"]) if spec["popularity"] else None
        return cls(spec["Q"], torch.zeros(spec["D"], spec["J"]), popularity)

    def per_query_parameters(self) -> Sequence[nn.Parameter]:
        return [self.own]


def scaled(features: ArrayLike) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Features scaled together: the mean over the items of the sum of their squares is 1.  Shapes: [D, J] -> [D, J]."""
    x = np.asarray(features, np.float64)
    size = np.sqrt((x**2).sum(1).mean()) if x.size else 0.0
    return (x / size if size > 0 else x).astype(np.float32)
