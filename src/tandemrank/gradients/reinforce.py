"""The paper's gradient: REINFORCE for both stages (paper: cand-grad, ranker-grad). The reference that `race` is held to.

    grad_c U = E[ U(y_r) grad log pi_c(y_c) ],    grad_r U = E[ U(y_r) grad log pi_r(y_r | y_c) ]

with lists drawn by the same race of exponential clocks as everywhere else.
"""

from torch import Tensor

from tandemrank.errors import ConfigError
from tandemrank.gradients._bridge import Randomness, Weights, dense_utility


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
    from tandemrank.gradients._kernels import reinforce as kernel

    if baseline and samples < 2:
        raise ConfigError(f"the mean-of-others baseline needs at least 2 samples; got {samples}.")
    return dense_utility(kernel.utility, s_c, s_r, w, theta, K2, samples, generator, baseline)
