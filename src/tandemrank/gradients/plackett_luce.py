"""Plackett-Luce lists: documents drawn one after another without replacement, each in proportion to exp(score); and the paper's
gradient, by the gradient of their log-probability, the reference that `race` is held to.

    log pi(y) = sum_k ( s_{y_k} - log sum_{d not in y_{<k}} exp(s_d) )          (paper: section 3, the PL policies)

    grad_c U = E[ U(y_r) grad log pi_c(y_c) ],    grad_r U = E[ U(y_r) grad log pi_r(y_r | y_c) ]

A score of -inf keeps a document out; -1 pads a list that has run out of documents.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tandemrank.errors import ConfigError, PolicyError
from tandemrank.gradients._bridge import Randomness, Weights, check_scores, dense_utility
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


def reinforce(
    s_c: Tensor,
    s_r: Tensor,
    w: Weights,
    theta: Tensor,
    K2: int,
    *,
    samples: int = 300,
    generator: Randomness,
    baseline: bool = False,
) -> Tensor:
    """Two-stage utility of each query, the mean over lists of the race, differentiable by REINFORCE.

        U = E[ sum_k theta_k w_{y_r[k]} ]                          (paper: cltr-obj-2s; gradients: cand-grad, ranker-grad)

    With `baseline` each sample's reward is measured from the mean of the others': unbiased still, and less noisy.
    K2 >= D is the one-stage case: every order of the candidates gives the same list, so only `s_r` has a gradient.
    Shapes: s_c, s_r [B, D]; w [B, D], a tensor or a scipy CSR matrix; theta [K] -> [B].
    """
    from tandemrank.gradients._kernels import reinforce as kernel

    if baseline and samples < 2:
        raise ConfigError(f"the mean-of-others baseline needs at least 2 samples; got {samples}.")
    return dense_utility(kernel.utility, s_c, s_r, w, theta, K2, samples, generator, baseline)
