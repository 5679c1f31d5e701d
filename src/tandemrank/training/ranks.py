"""The weights of the ranks that training maximises (paper: list-utility, its alpha_k)."""

import numpy as np
import torch
from torch import Tensor

from tandemrank.errors import ConfigError
from tandemrank.training.config import RankWeights


def rank_weights(wanted: RankWeights, theta: Tensor, clicked: float, K2: int) -> Tensor:
    """alpha_k by name, for lists out of K2 candidates and `clicked` clicked items per query.  Shapes: theta [K] -> [depth].

    Flat and deep overfits far less where clicks are few: it asks that the clicked come near the top, and leaves it to all
    clicks together who comes first. The automatic depth, 200 / clicked, between 20 and 100, was chosen on MovieLens-1M
    (docs/results); it is at most a fifth of the candidates. Where that is no more than K, flat weights would leave the
    re-ranker little to decide, and not the order of what is shown (at K2 = K: nothing): ranks then count 1/log2(k + 1), down to
    twice K, so that what is nearly shown has a say, too.
    """
    if wanted == "examination":
        return theta
    if not isinstance(wanted, str):
        check_depth(wanted, K2)
        return torch.ones(wanted)
    K = len(theta)
    if K2 // 5 <= K:
        return 1 / torch.log2(torch.arange(2.0, max(K, min(2 * K, K2)) + 2))
    return torch.ones(max(K, min(int(np.clip(200 / max(clicked, 1), 20, 100)), K2 // 5)))


def check_depth(wanted: RankWeights, K2: int) -> None:
    """Refuses a depth at which the re-ranker has no say: every candidate would count the same."""
    if isinstance(wanted, int) and wanted >= K2:
        raise ConfigError(
            f"rank_weights = {wanted} counts every one of the {K2} candidates the same, whatever the re-ranker does. Give a "
            "smaller depth, or flat."
        )
