"""The paper's gradient: REINFORCE for both stages (paper: cand-grad, ranker-grad). The reference that `race` is held to.

    grad_c U = E[ U(y_r) grad log pi_c(y_c) ],    grad_r U = E[ U(y_r) grad log pi_r(y_r | y_c) ]

with lists drawn by the same race of exponential clocks as everywhere else.
"""

import numpy as np
import torch
from torch import Tensor

from tandemrank.errors import ConfigError
from tandemrank.gradients._bridge import (
    Problem,
    Randomness,
    Solution,
    Weights,
    checked_weights,
    chunks,
    compiling,
    differentiable,
    row_major,
    sparse,
)


def utility(
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
    """Two-stage utility of each query, the mean over sampled lists, differentiable by REINFORCE.

        U = E[ sum_k theta_k w_{y_r[k]} ]                          (paper: cltr-obj-2s; gradients: cand-grad, ranker-grad)

    With `baseline` each sample's reward is measured from the mean of the others': unbiased still, and less noisy.
    K2 >= D is the one-stage case: every order of the candidates gives the same list, so only `s_r` has a gradient.
    Shapes: s_c, s_r [B, D]; w [B, D], a tensor or a scipy CSR matrix; theta [K] -> [B].
    """
    if baseline and samples < 2:
        raise ConfigError(f"the mean-of-others baseline needs at least 2 samples; got {samples}.")
    problem = Problem.checked(s_c, s_r, theta, K2, samples, generator)
    w = checked_weights(w, s_c)
    wants = s_c.requires_grad and s_c.shape[1] > K2, s_r.requires_grad
    return differentiable(s_c, s_r, lambda s, r: _solve(s, r, w, problem, baseline, wants))


def _solve(
    s_c: Tensor, s_r: Tensor, w: Weights, problem: Problem, baseline: bool, wants: tuple[bool, bool]
) -> Solution:
    from tandemrank.gradients._kernels import reinforce as kernel

    s, r, weights = row_major(s_c), row_major(s_r), sparse(w)
    value, grad_c, grad_r = np.zeros(len(s)), np.zeros_like(s), np.zeros_like(s)
    with compiling():
        kernel.utility(
            s, r, problem.keys, weights.indptr.astype(np.int64), weights.indices.astype(np.int32),
            weights.data.astype(np.float32), row_major(problem.theta), problem.K2, problem.samples, baseline,
            *wants, chunks(len(s)), value, grad_c, grad_r,
        )  # fmt: skip
    return torch.from_numpy(value).to(s_c), torch.from_numpy(grad_c).to(s_c), torch.from_numpy(grad_r).to(s_c)
