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


def matters(scores: Tensor) -> Tensor:
    """How much each item matters to its row, 1.1 in the mean.  Shapes: [B, M] -> [B, M]."""
    return torch.softmax(scores, 1) * scores.shape[1] + LEAST


def some(n: int, most: int = SOME) -> Tensor:
    """Places among n, evenly spread.  Shapes: -> [min(n, most)]."""
    return torch.from_numpy(np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64)))


@torch.no_grad()
def nearest(scores: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """x and c of every row of scores.  Shapes: scores [B, M]; vectors [M, F] -> [B, F], [B]."""
    s, Y = scores.double(), torch.cat([vectors.double(), torch.ones(len(vectors), 1, dtype=torch.float64)], 1)
    m = matters(s)
    weighted = m[:, None, :] * Y.T
    G = weighted @ Y
    ridge = torch.full((Y.shape[1],), RIDGE * float(Y[:, :-1].square().mean()) * len(Y), dtype=torch.float64)
    ridge[-1] = 1e-9
    found = torch.linalg.solve(G + ridge.diag(), (weighted @ s[:, :, None])[..., 0])
    return found[:, :-1].float(), found[:, -1].float()
