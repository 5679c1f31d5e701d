"""The credit-assigned policy gradient of a generator (Kiyohara et al. 2026, arXiv 2605.26385), a rival of the race gradient.

REINFORCE follows the probability of the whole candidate set. Credit assignment follows, for each document that earned
something, the probability that the document itself is a candidate, whatever the others are:

    grad = E[ sum_d theta_{k(d)} w_d grad log P(d in C) ] = sum_d v_d grad P(d in C),     v_d = w_d rho_cr(d) / P(d in C)

It leaves out how a candidate changes what the re-ranker makes of the others, so it is biased unless the chance to be shown
depends on being a candidate alone. P and its gradient have no closed form for Plackett-Luce; here they come from the race,
which integrates each document's own clock out:

    P(d in C) = E[1 - exp(-lambda_d tau_d)],     d/ds_d sum_e v_e P(e in C) = E[lambda_d tau_d exp(-lambda_d tau_d) (v_d - v_b)]

(`docs/explanation/race.md`: tau_d is the time of the K2-th of the others, and b that document).
"""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank.gradients import lazy_race, race
from tandemrank.gradients._bridge import keys_for
from tandemrank.gradients.lazy_race import streams
from tandemrank.gradients.products import Source

Floats = NDArray[np.float64]


def gradient(
    s_c: Tensor, s_r: Tensor, w: csr_matrix, theta: Tensor, K2: int, *, samples: int, generator: torch.Generator
) -> Tensor:
    """The credit-assigned gradient by the generator's scores, from lists and candidate sets of so many draws.

    Shapes: s_c, s_r [B, D]; w CSR [B, D]; theta [K] -> [B, D].
    """
    weights, reward = w.toarray().astype(np.float64), _rewards(s_c, s_r, w, theta, K2, samples, generator)
    found = lazy_race.races(Source.of(s_c.detach()), K2, streams(keys_for(len(s_c), generator), range(samples)))
    s = s_c.detach().double().numpy()
    candidate = _is_candidate(found, s.shape[1])
    edge = np.where(candidate, found.log_t[:, :, K2:], found.log_t[:, :, :1]).astype(np.float64)
    y = np.exp(np.minimum(s[:, None] + edge, np.log(700.0)))
    chance = -np.expm1(-y).mean(1)
    v = np.divide(reward, chance, out=np.zeros_like(reward), where=(weights != 0) & (chance > 0))
    rows = np.arange(len(s))[:, None]
    missed, last = found.first[:, :, K2], found.first[:, :, 0]
    v_b = np.where(candidate, v[rows, missed][:, :, None], v[rows, last][:, :, None])
    return torch.from_numpy((y * np.exp(-y) * (v[:, None] - v_b)).mean(1)).to(s_c)


def _rewards(
    s_c: Tensor, s_r: Tensor, w: csr_matrix, theta: Tensor, K2: int, samples: int, generator: torch.Generator
) -> Floats:
    """What each document earned, theta_k(d) w_d, the mean over drawn lists.  Shapes: -> [B, D]."""
    B, D = w.shape
    rows = np.repeat(np.arange(B), samples)
    lists = race.draw(
        s_c.detach(), s_r.detach(), K2, len(theta), rows=rows, keys=keys_for(len(rows), generator)
    ).astype(np.int64)
    shown = lists >= 0
    examined = np.broadcast_to(theta.detach().double().numpy(), lists.shape)[shown]
    seen = np.bincount((rows[:, None] * D + lists)[shown], examined, B * D).reshape(B, D) / samples
    earned: Floats = seen * w.toarray()
    return earned


def _is_candidate(found: lazy_race.LazyRaces, D: int) -> NDArray[np.bool_]:
    """Shapes: -> [B, S, D]."""
    B, S, _ = found.first.shape
    inside = np.zeros((B, S, D), bool)
    candidates = found.first[:, :, :-1]
    b, i, _ = np.nonzero(candidates >= 0)
    inside[b, i, candidates[candidates >= 0]] = True
    return inside
