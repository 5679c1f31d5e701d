"""Vectors of a product by the scores of another model, whatever it is: the nearest ones, near the top of a list above all.

    c, x = argmin sum_d m_d (score(d) - c - <x, y_d>)^2 + ridge |x|^2,      m_d = n softmax(score)_d + 0.1

So a generator gets its vectors of queries that it has not seen from the scores that its re-ranker gives some items.
"""

import numpy as np
import torch
from torch import Tensor

RIDGE = 1e-4  # as a share of the mean square of the vectors
SOME = 512  # items, or queries, that are enough
LEAST = 0.1  # of what an item matters
TINY = 1e-9  # so that there is always one answer


def matters(scores: Tensor) -> Tensor:
    """How much each item matters to its row, 1.1 in the mean.  Shapes: [B, M] -> [B, M]."""
    return torch.softmax(scores, 1) * scores.shape[1] + LEAST


def some(n: int, most: int = SOME) -> Tensor:
    """Places among n, evenly spread.  Shapes: -> [min(n, most)]."""
    return torch.from_numpy(np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64)))


@torch.no_grad()
def nearest(scores: Tensor, vectors: Tensor, *, constant: bool = True) -> tuple[Tensor, Tensor]:
    """x and c of every row of scores; c = 0 without a constant.  Shapes: scores [B, M]; vectors [M, F] -> [B, F], [B]."""
    s, one = scores.double(), torch.full((len(vectors), 1), float(constant), dtype=torch.float64)
    Y = torch.cat([vectors.double(), one], 1)
    weighted = matters(s)[:, None, :] * Y.T
    ridge = torch.full((Y.shape[1],), RIDGE * float(vectors.square().mean()) * len(Y) + TINY, dtype=torch.float64)
    ridge[-1] = TINY
    found = torch.linalg.solve(weighted @ Y + ridge.diag(), (weighted @ s[:, :, None])[..., 0])
    return found[:, :-1].float(), found[:, -1].float()
