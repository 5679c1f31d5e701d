"""Plackett-Luce lists: documents drawn one after another without replacement, each in proportion to exp(score).

    log pi(y) = sum_k ( s_{y_k} - log sum_{d not in y_{<k}} exp(s_d) )          (paper: section 3, the PL policies)

A score of -inf keeps a document out; -1 pads a list that has run out of documents.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from tandemrank.errors import PolicyError
from tandemrank.gradients._bridge import check_scores
from tandemrank.gradients._kernels import plackett_luce as kernel


def draw(scores: NDArray[np.float32], rows: NDArray[np.int64], keys: NDArray[np.uint64], K: int) -> NDArray[np.int32]:
    """Draws one list for each key from the scores of its row: the compiled sampler for simulation.

    Sequential draws from the row's cumulative sum of exp(score - max), so a list costs about K log D; where almost
    all the mass is drawn (peaked scores), a race over the rest. A list depends on its scores and its key alone.
    Shapes: scores [B, D]; rows, keys [n] -> [n, K].
    """
    scores = np.ascontiguousarray(scores, dtype=np.float32)
    rows = np.ascontiguousarray(rows, dtype=np.int64)
    keys = np.ascontiguousarray(keys, dtype=np.uint64)
    D = scores.shape[-1]
    if not 1 <= K <= D:
        raise PolicyError(f"expected a list length K from 1 to {D}, the number of documents; got {K}.")
    check_scores(torch.from_numpy(scores), "drawn")
    if rows.shape != keys.shape or (len(rows) and (rows.min() < 0 or rows.max() >= len(scores))):
        raise PolicyError(f"expected one key for each row and rows from 0 to {len(scores) - 1}; check the arguments.")
    out = np.empty((len(rows), K), dtype=np.int32)
    kernel.draw_lists(scores, rows, keys, np.argsort(rows, kind="stable"), out)
    return out
