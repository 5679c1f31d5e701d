"""Plackett-Luce lists: documents drawn one after another without replacement, each in proportion to exp(score).

Functions only. Tensors for learning (`sample`, `log_probability`, `most_likely`), arrays for simulation (`draw`, with
`random_keys` and `uniforms`, random numbers that depend on a seed and a counter and on nothing else).

    log pi(y) = sum_k ( s_{y_k} - log sum_{d not in y_{<k}} exp(s_d) )          (paper: section 3, the PL policies)

Axes: the list axis is last, the sample axis first. A score of -inf keeps a document out; -1 pads a list that has run
out of documents.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandemrank.errors import PolicyError
from tandemrank.gradients._kernels import plackett_luce as kernel


def sample(scores: Tensor, K: int, *, samples: int, generator: torch.Generator) -> Tensor:
    """Draws lists by the Gumbel trick: the K largest of score + Gumbel noise, in order, are a PL draw.

    Shapes: scores [B, D] -> [samples, B, K], positions of documents.
    """
    check(scores, K)
    with torch.no_grad():
        centred = scores - top(scores).unsqueeze(-1)  # the noise keeps its digits next to large scores
        clocks = torch.empty((samples, *scores.shape), dtype=scores.dtype, device=scores.device)
        clocks.exponential_(generator=generator)
        values, rankings = (centred - clocks.log()).topk(K, dim=-1)
        return rankings.masked_fill(values == -torch.inf, -1)


def log_probability(scores: Tensor, rankings: Tensor) -> Tensor:
    """The log-probability that PL draws each list, or begins with it where it is shorter than D; differentiable.

    Computed in log space from the end of the list: what is left after the list, then one document more at each rank.
    Assumes that no document comes twice in a list. Shapes: scores [B, D]; rankings [..., B, K] -> [..., B].
    """
    listed = rankings >= 0
    index = rankings.clamp(min=0)
    scores = (scores - top(scores.detach()).unsqueeze(-1)).expand(*rankings.shape[:-1], scores.shape[-1])
    drawn = torch.zeros_like(scores, dtype=torch.bool).scatter_reduce(-1, index, listed, "amax")
    # The most negative finite number stands for "none": an -inf inside logsumexp has no gradient.
    none = torch.finfo(scores.dtype).min / 4
    left = torch.logsumexp(scores.masked_fill(drawn, none).clamp(min=none), dim=-1, keepdim=True)
    s = scores.gather(-1, index)
    steps = torch.cat([left, s.masked_fill(~listed, none).clamp(min=none).flip(-1)], dim=-1)
    log_mass = torch.logcumsumexp(steps, dim=-1)[..., 1:].flip(-1)
    return torch.where(listed, s - log_mass, 0.0).sum(-1)


def most_likely(scores: Tensor, K: int) -> Tensor:
    """The list of the K largest scores, the most probable PL list; equal scores by lower position.

    Shapes: scores [B, D] -> [B, K].
    """
    check(scores, K)
    with torch.no_grad():
        values, rankings = scores.topk(K, dim=-1)
        # topk breaks ties as it likes: order them inside the list, and redo the rows where a tie crosses its end.
        rankings = rankings.sort(dim=-1).values
        values, order = scores.gather(-1, rankings).sort(dim=-1, descending=True, stable=True)
        rankings = rankings.gather(-1, order)
        last = values[..., -1:]
        crossing = (scores >= last).sum(-1) > K
        if crossing.any():
            rankings[crossing] = scores[crossing].sort(dim=-1, descending=True, stable=True).indices[..., :K]
        return rankings.masked_fill(scores.gather(-1, rankings) == -torch.inf, -1)


def draw(scores: NDArray[np.float32], rows: NDArray[np.int64], keys: NDArray[np.uint64], K: int) -> NDArray[np.int32]:
    """Draws one list for each key from the scores of its row: the compiled sampler for simulation.

    Sequential draws from the row's cumulative sum of exp(score - max), so a list costs about K log D; where almost
    all the mass is drawn (peaked scores), a race over the rest. A list depends on its scores and its key alone.
    Shapes: scores [B, D]; rows, keys [n] -> [n, K].
    """
    scores = np.ascontiguousarray(scores, dtype=np.float32)
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    keys = np.ascontiguousarray(keys, dtype=np.uint64)
    check(torch.from_numpy(scores), K)
    if rows.shape != keys.shape or (len(rows) and (rows.min() < 0 or rows.max() >= len(scores))):
        raise PolicyError(f"expected one key for each row and rows from 0 to {len(scores) - 1}; check the arguments.")
    out = np.empty((len(rows), K), dtype=np.int32)
    kernel.draw_lists(scores, rows, keys, np.argsort(rows, kind="stable"), out)
    return out


def top(scores: Tensor) -> Tensor:
    """Each row's largest score, 0 where all are -inf. Shapes: scores [B, D] -> [B]."""
    largest = scores.amax(-1)
    return largest.masked_fill(largest == -torch.inf, 0.0)


def check(scores: Tensor, K: int) -> None:
    """Refuses scores that are NaN or +inf, and K outside 1 .. D."""
    D = scores.shape[-1]
    if not 1 <= K <= D:
        raise PolicyError(f"expected a list length K from 1 to {D}, the number of documents; {K} came.")
    largest = scores.amax()  # NaN where any score is
    if largest.isnan() or largest == torch.inf:
        row, d = (scores.isnan() | (scores == torch.inf)).nonzero()[0].tolist()
        raise PolicyError(
            f"expected scores that are numbers or -inf; row {row}, document {d} has {scores[row, d].item()}. "
            "Check the model that made them (a learning rate too large?)."
        )
