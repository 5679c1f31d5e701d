"""A re-ranker of one's own, as a user would write it: a small network over features of the items, for candidates only."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tandemrank.policies.scorers import Scorer


class OwnNetwork(Scorer):
    """score(q, d) = <v, relu(W x_d + u_q)>.  Shapes: features [D, J]; u [Q, width]."""

    kind = "own-network"
    lengths = ("J", "width")
    scores_everything = False
    features: Tensor

    def __init__(self, Q: int, features: Tensor, width: int = 4) -> None:
        super().__init__()
        self.register_buffer("features", torch.as_tensor(features, dtype=torch.float32).contiguous())
        generator = torch.Generator().manual_seed(2)
        self.own = nn.Parameter(torch.zeros(Q, width))
        self.first = nn.Parameter(torch.randn(self.features.shape[1], width, generator=generator))
        self.last = nn.Parameter(0.1 * torch.randn(width, generator=generator))

    def score(self, q: Tensor, items: Tensor) -> Tensor:
        return torch.relu(self.features[items] @ self.first + self.own[q][:, None]) @ self.last

    def spec(self) -> dict[str, Any]:
        D, J = self.features.shape
        return {"Q": len(self.own), "D": D, "J": J, "width": len(self.last)}

    @classmethod
    def from_spec(cls, spec: dict[str, Any]) -> "OwnNetwork":
        return cls(spec["Q"], torch.zeros(spec["D"], spec["J"]), spec["width"])

    def per_query_parameters(self) -> Sequence[nn.Parameter]:
        return [self.own]
