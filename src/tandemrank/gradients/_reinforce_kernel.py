"""REINFORCE on the CPU: the lists of many samples and the gradients of their log-probabilities, in compiled loops.

It draws its lists by the same race as `_race_draw_kernel`, with the same vectorised clocks and selection, and uses that the
gradient of a Plackett-Luce log-probability needs only the running sum of 1 / Z: the rival is compiled with the same care.
"""

import numpy as np
from numba import prange

from tandemrank.gradients._compiled import kernel
from tandemrank.gradients._early_race_kernel import early_race, latest
from tandemrank.gradients._float32_kernel import f32, ordered, u64
from tandemrank.gradients._lists_kernel import WORTH
from tandemrank.gradients._race_draw_kernel import arrivals, first_race, second_race, stream


@kernel()
def _rates(score, rate):
    """exp(score - max): the rates of a race up to a common factor.  Shapes: [D] -> [D]."""
    top = -np.inf
    for d in range(score.size):
        top = max(top, score[d])
    for d in range(score.size):
        rate[d] = np.exp(score[d] - top) if top > -np.inf else 0.0


@kernel()
def _sort_by_arrival(log_T, docs, n, packed):
    """Orders docs[:n] by arrival, log_T[:n]: time and number packed in one word each, so that a plain sort does it."""
    for j in range(n):
        packed[j] = (u64(ordered(log_T[j])) << u64(32)) | u64(docs[j])
    packed[:n].sort()
    for j in range(n):
        docs[j] = packed[j] & u64(0xFFFFFFFF)


@kernel()
def _add_log_gradient(rate, listed, n, left, a, b, Z, total_a, total_b):
    """Adds a and b times the gradient of log PL(listed[:n]) for the listed; returns the sum of 1 / Z of all n draws.

        d log PL / d score_d = 1[d listed] - rate_d sum_{i <= rank(d)} 1 / Z_i,   Z_i the rates not drawn before draw i

    `left` is the sum of the rates that are never drawn; the term of those is the caller's.
    """
    # From the last draw to the first: sums only grow, nothing cancels.
    for i in range(n - 1, -1, -1):
        left += rate[listed[i]]
        Z[i] = left
    hazard = 0.0
    for i in range(n):
        d = listed[i]
        hazard += 1.0 / Z[i] if Z[i] > 0.0 else 0.0
        gradient = 1.0 - rate[d] * hazard
        total_a[d] += a * gradient
        total_b[d] += b * gradient
    return hazard


@kernel()
def _add_others(rate, docs, n, skip, a, b, total_a, total_b):
    """Adds -rate_d a and -rate_d b for docs[:n] that were never drawn (`skip` marks the drawn ones)."""
    for j in range(n):
        d = docs[j]
        if not skip[d]:
            total_a[d] -= rate[d] * a
            total_b[d] -= rate[d] * b


@kernel()
def _add_list(rate, listed, n, docs, m, reward, drawn, Z, total_a, total_b):
    """Adds reward times, and once, the gradient of log PL(listed[:n]), drawn from docs[:m]; `drawn` is left as it came."""
    for i in range(n):
        drawn[listed[i]] = True
    left = 0.0
    for j in range(m):
        left += 0.0 if drawn[docs[j]] else rate[docs[j]]
    hazard = _add_log_gradient(rate, listed, n, left, reward, 1.0, Z, total_a, total_b)
    _add_others(rate, docs, m, drawn, reward * hazard, hazard, total_a, total_b)
    for i in range(n):
        drawn[listed[i]] = False


@kernel()
def _available(score, docs):
    """The documents that may be shown at all, in `docs`; returns how many there are."""
    n = 0
    for d in range(score.size):
        docs[n] = d
        n += score[d] > f32(-np.inf)
    return n


@kernel()
def _first_race(s, below, limit, key, K2, left, floats, documents, order, histogram, candidates):
    """The candidates of one sample, their times in floats[0]; `left` samples of these scores are still to come.

    Returns how many there are, and the limit for the next sample, of `below`.
    """
    if limit < np.inf:
        n, _ = early_race(s, below, limit, key, K2, floats, documents, order, candidates)
        if n >= 0:
            return n, limit
    log_T = floats[0, : s.size]
    arrivals(s, key, log_T)
    x, _, n = first_race(log_T, K2, histogram, floats[1], documents[0], candidates)
    limit = f32(np.inf)
    if x >= 0 and left > WORTH:
        limit = latest(s, log_T[x], K2, below)
    for j in range(n):
        log_T[j] = log_T[candidates[j]]  # candidates come in the order of their numbers: none is overwritten too soon
    return n, limit


@kernel(parallel=True)
def utility(
    s, r, keys, indptr, indices, weights, theta, K2, samples, baseline, wants_s, wants_r, chunks, value, grad_s, grad_r
):  # fmt: skip
    """Mean reward and REINFORCE gradients of both stages, each the mean over the samples (cand-grad, ranker-grad).

    Shapes: s, r, grad_s, grad_r [B, D]; keys, value [B]; indptr [B + 1]; indices, weights [nnz]; theta [K].
    With `baseline` each reward is measured from the mean of the other samples' rewards. Outputs come in as zeros. A gradient
    that nobody `wants` costs nothing; neither do the clocks of a first race in which nobody can miss.
    """
    B, D = s.shape
    K = theta.size
    for chunk in prange(chunks):
        floats, documents, below = (
            np.empty((3, D + 1), np.float32),
            np.empty((2, D + 1), np.int32),
            np.empty(D, np.float32),
        )
        candidates, order, packed = np.empty(D + 1, np.int32), np.empty(D + 1, np.int32), np.empty(D, np.uint64)
        histogram, everybody = np.empty(2048, np.int32), np.arange(D).astype(np.int32)
        shown, times = np.empty(K, np.int32), np.empty(K, np.float32)
        rate_c, rate_r, w, drawn = np.empty(D), np.empty(D), np.zeros(D, np.float32), np.zeros(D, np.bool_)
        sums, Z = np.empty((4, D)), np.empty(D)
        for q in range(chunk * B // chunks, (chunk + 1) * B // chunks):
            for j in range(indptr[q], indptr[q + 1]):
                w[indices[j]] = weights[j]
            _rates(s[q], rate_c)
            _rates(r[q], rate_r)
            sums[:], n, limit = 0.0, 0, f32(np.inf)
            for sample in range(samples):
                key = stream(keys[q], u64(sample))
                if K2 < D:
                    n, limit = _first_race(
                        s[q],
                        below,
                        limit,
                        stream(key, u64(0)),
                        K2,
                        samples - sample,
                        floats,
                        documents,
                        order,
                        histogram,
                        candidates,
                    )
                elif sample == 0:
                    n = _available(s[q], candidates)
                filled = second_race(r[q], stream(key, u64(1)), candidates, n, floats[1], floats[2], shown, times)
                reward = f32(0.0)
                for k in range(filled):
                    reward += theta[k] * w[shown[k]]
                value[q] += reward / samples
                if reward == 0.0 and not baseline:
                    continue
                if wants_s:
                    _sort_by_arrival(floats[0], candidates, n, packed)
                    _add_list(rate_c, candidates, n, everybody, D, reward, drawn, Z, sums[0], sums[1])
                if wants_r:
                    _add_list(rate_r, shown, filled, candidates, n, reward, drawn, Z, sums[2], sums[3])
            for d in range(D):
                if baseline:
                    grad_s[q, d] = (sums[0, d] - value[q] * sums[1, d]) / max(samples - 1, 1)
                    grad_r[q, d] = (sums[2, d] - value[q] * sums[3, d]) / max(samples - 1, 1)
                else:
                    grad_s[q, d] = sums[0, d] / samples
                    grad_r[q, d] = sums[2, d] / samples
            for j in range(indptr[q], indptr[q + 1]):
                w[indices[j]] = f32(0.0)
