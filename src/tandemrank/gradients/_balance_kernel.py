"""The known sum of a gradient: adding a number to all scores of a stage changes no list, so the sum over documents is noise.

docs/race.md has the reasons; `tests/race_oracle.py` has the same for whole arrays.
"""

import numpy as np
from numba import njit

from tandemrank.gradients._compiled import MATHS, kernel
from tandemrank.gradients._float32_kernel import exp, f32, log

# Sums over documents that say how much noise to take out: eight at a time, in an order that D alone decides.
_SUMS = MATHS | {"reassoc"}
# A typical time is found from about so many documents, in so many steps: it only has to be near.
TYPICAL_DOCUMENTS, TYPICAL_STEPS = 512, 8


@njit(inline="always")
def chances(s_d, log_tau):
    """(p, lambda tau exp(-lambda tau)) with p = 1 - exp(-lambda tau), accurate for tiny chances too."""
    a = min(exp(s_d + log_tau), f32(80.0))
    e = exp(-a)
    series = a * (f32(1.0) - a * (f32(0.5) - a * f32(1.0 / 6.0)))
    return f32(1.0) - e if a > f32(0.02) else series, a * e


@kernel(fastmath=_SUMS)
def typical_time(score, chance, target, rate, weight):
    """log t with sum_d chance_d (1 - exp(-mu_d t)) = target: when so many are expected to have arrived; -inf for never.

    At most half of all are waited for. Newton's steps from below, on every n-th document. A function of the scores alone:
    no clock enters.  Shapes: score, chance [D]; rate, weight [D], working space.
    """
    D = score.size
    stride = max(1, D // TYPICAL_DOCUMENTS)
    n, top = 0, f32(-np.inf)
    for d in range(0, D, stride):
        rate[n], weight[n] = score[d], chance[d]
        top = max(top, score[d] if chance[d] > f32(0.0) else f32(-np.inf))
        n += 1
    if top == f32(-np.inf):
        return top
    everybody, pace = f32(0.0), f32(0.0)
    for j in range(n):
        rate[j] = exp(rate[j] - top)
        everybody += weight[j]
        pace += weight[j] * rate[j]
    target = min(f32(target * n / D), f32(0.5) * everybody)
    t = target / pace
    for _ in range(TYPICAL_STEPS):
        arrived, pace = f32(0.0), f32(0.0)
        for j in range(n):
            still = weight[j] * exp(-min(rate[j] * t, f32(100.0)))
            arrived += weight[j] - still
            pace += still * rate[j]
        t = min(t + max(target - arrived, f32(0.0)) / max(pace, f32(1e-30)), f32(1e30))
    return log(t) - top


@kernel(fastmath=_SUMS)
def _take_out_sum(gradient, pattern):
    """gradient - pattern sum(gradient) / sum(pattern)."""
    total, mass = f32(0.0), f32(0.0)
    for d in range(gradient.size):
        total += gradient[d]
        mass += pattern[d]
    if mass > f32(0.0):
        share = total / mass
        for d in range(gradient.size):
            gradient[d] -= share * pattern[d]


@kernel(fastmath=MATHS)
def balance(s, r, K2, places, scratch, grad_s, grad_r):
    """Takes out of each gradient its sum over the documents; one of size 0 is left alone.

    Adding a number to all scores of a stage changes nothing, so the sum is 0 in expectation, and all of it is noise. It is
    shared out by how strongly a document's chance at the edge depends on its score, y exp(-y) with y = exp(score) t at a
    typical time t. That is a function of the scores alone, so nothing becomes biased.
    """
    chance, pattern, rate, weight = scratch[0][0], scratch[0][1], scratch[0][2], scratch[0][3]
    D, available = s.size, 0
    for d in range(D):
        chance[d] = f32(1.0) if s[d] > f32(-np.inf) else f32(0.0)
        available += s[d] > f32(-np.inf)
    if available > K2:
        log_tau = typical_time(s, chance[:D], K2, rate, weight)
        for d in range(D):
            chance[d], pattern[d] = chances(s[d], log_tau)
        _take_out_sum(grad_s, pattern)
    if grad_r.size > 0:
        log_t = typical_time(r, chance[:D], places, rate, weight)
        for d in range(D):
            pattern[d] = chance[d] * chances(r[d], log_t)[1]
        _take_out_sum(grad_r, pattern)
