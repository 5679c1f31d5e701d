"""REINFORCE on the CPU: the lists of many samples and the gradients of their log-probabilities, in compiled loops.

It draws its lists by the same race as `draws`, with the same vectorised clocks and selection, and uses that the
gradient of a Plackett-Luce log-probability needs only the running sum of 1 / Z: the rival is compiled with the same care.
"""

import numpy as np
from numba import prange

from tandemrank.gradients._kernels.compiled import kernel
from tandemrank.gradients._kernels.draws import (
    WORTH,
    arrivals,
    early_race,
    first_arrivals,
    first_race,
    latest,
    second_race,
    stream,
)
from tandemrank.gradients._kernels.float32 import f32, ordered, u32, u64

_ENOUGH = 1e-4  # of the sum of all rates: what must be left for a difference of sums to keep its digits


@kernel()
def _rates(score, available, rate):
    """exp(score - max): the rates of a race up to a common factor, 0 for who is not available; returns their sum.

    Shapes: score, available (by being above -inf) [D] -> rate [D].
    """
    top, total = -np.inf, 0.0
    for d in range(score.size):
        top = max(top, score[d])
    for d in range(score.size):
        rate[d] = np.exp(score[d] - top) if top > -np.inf and available[d] > -np.inf else 0.0
        total += rate[d]
    return total


@kernel()
def _sort_by_arrival(log_T, docs, n, packed, spare, counts):
    """Orders docs[:n] by arrival, log_T[:n]: time and number packed in one word each, so that words alone are compared.

    Two passes over eight bits each of the times, from the lower to the higher, then an insertion sort, which finds nearly
    everything in its place.  Shapes: packed, spare [n or more], uint64; counts [257].
    """
    first, last = u32(0xFFFFFFFF), u32(0)
    for j in range(n):
        time = ordered(log_T[j])
        packed[j] = (u64(time) << u64(32)) | u64(docs[j])
        first, last = min(first, time), max(last, time)
    shift = u64(32)
    while n > 0 and u64(last - first) >> (shift - u64(32)) > u64(0xFFFF):
        shift += u64(1)
    least = u64(first) << u64(32)
    for step in range(2):
        counts[:] = 0
        for j in range(n):
            counts[((packed[j] - least) >> (shift + u64(8 * step)) & u64(0xFF)) + u64(1)] += 1
        for bucket in range(1, 257):
            counts[bucket] += counts[bucket - 1]
        for j in range(n):
            bucket = (packed[j] - least) >> (shift + u64(8 * step)) & u64(0xFF)
            spare[counts[bucket]] = packed[j]
            counts[bucket] += 1
        packed, spare = spare, packed
    for j in range(1, n):
        word, place = packed[j], j
        while place > 0 and packed[place - 1] > word:
            packed[place] = packed[place - 1]
            place -= 1
        packed[place] = word
    for j in range(n):
        docs[j] = packed[j] & u64(0xFFFFFFFF)


@kernel()
def _add_list(rate, listed, n, docs, m, total, reward, drawn, Z, sums, common):
    """Adds reward times (to sums[0]), and once (to sums[1]), the gradient of log PL(listed[:n]), drawn from docs[:m].

        d log PL / d score_d = 1[d listed] - rate_d sum_{i <= rank(d)} 1 / Z_i,   Z_i the rates not drawn before draw i

    Who is not listed has all of the sum, H. Where docs[:m] are the same in all samples, `total` is the sum of their rates: H is
    then added up in `common`, for `_add_common`, and the listed get back what they have too much of it: n steps, not m. Where
    that would cost digits, or `total` is NaN, everybody gets their own. `drawn` is left as it came.
    Shapes: rate, drawn, Z [D]; sums [2, D]; common [2].
    """
    left = total
    for i in range(n):
        left -= rate[listed[i]]
    is_common = left > _ENOUGH * total
    if not is_common:
        for i in range(n):
            drawn[listed[i]] = True
        left = 0.0
        for j in range(m):
            left += 0.0 if drawn[docs[j]] else rate[docs[j]]
    # From the last draw to the first: sums only grow, nothing cancels.
    for i in range(n - 1, -1, -1):
        left += rate[listed[i]]
        Z[i] = left
    hazard, extra = 0.0, 0.0
    for i in range(n):
        hazard += 1.0 / Z[i] if Z[i] > 0.0 else 0.0
    if is_common:
        common[0] += reward * hazard
        common[1] += hazard
        extra = hazard
    else:
        for j in range(m):
            d = docs[j]
            if not drawn[d]:
                sums[0, d] -= rate[d] * reward * hazard
                sums[1, d] -= rate[d] * hazard
    so_far = 0.0
    for i in range(n):
        d = listed[i]
        so_far += 1.0 / Z[i] if Z[i] > 0.0 else 0.0
        gradient = 1.0 + rate[d] * (extra - so_far)
        sums[0, d] += reward * gradient
        sums[1, d] += gradient
        drawn[d] = False


@kernel()
def _add_common(rate, common, sums):
    """What `_add_list` left for all documents at once.  Shapes: rate [D]; common [2]; sums [2, D]."""
    for d in range(rate.size):
        sums[0, d] -= rate[d] * common[0]
        sums[1, d] -= rate[d] * common[1]


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
    is_one_stage = K2 >= D
    size = K if is_one_stage else K2
    for chunk in prange(chunks):
        floats, documents, below, masked = (
            np.empty((3, D + 1), np.float32),
            np.empty((2, D + 1), np.int32),
            np.empty(D, np.float32),
            np.empty(D, np.float32),
        )
        candidates, order, packed = np.empty(D + 1, np.int32), np.empty(D + 1, np.int32), np.empty((2, D), np.uint64)
        histogram, everybody = np.empty(2048, np.int32), np.arange(D).astype(np.int32)
        shown, times = np.empty(K, np.int32), np.empty(K, np.float32)
        rate_c, rate_r, w, drawn = np.empty(D), np.empty(D), np.zeros(D, np.float32), np.zeros(D, np.bool_)
        sums, common, Z, counts = np.empty((4, D)), np.empty((2, 2)), np.empty(D), np.empty(257, np.int32)
        for q in range(chunk * B // chunks, (chunk + 1) * B // chunks):
            for j in range(indptr[q], indptr[q + 1]):
                w[indices[j]] = weights[j]
            total_c, total_r = _rates(s[q], s[q], rate_c), _rates(r[q], s[q], rate_r)
            first = s[q]
            if is_one_stage:
                # Everybody available is a candidate, and of the second race the first K alone matter.
                for d in range(D):
                    masked[d] = r[q, d] if s[q, d] > f32(-np.inf) else f32(-np.inf)
                first = masked
            sums[:], common[:], limit = 0.0, 0.0, f32(np.inf)
            for sample in range(samples):
                key = stream(keys[q], u64(sample))
                n, limit = _first_race(
                    first,
                    below,
                    limit,
                    stream(key, u64(is_one_stage)),
                    size,
                    samples - sample,
                    floats,
                    documents,
                    order,
                    histogram,
                    candidates,
                )
                if is_one_stage:
                    filled = first_arrivals(candidates, floats[0], n, shown, times)
                else:
                    filled = second_race(r[q], stream(key, u64(1)), candidates, n, floats[1], floats[2], shown, times)
                reward = f32(0.0)
                for k in range(filled):
                    reward += theta[k] * w[shown[k]]
                value[q] += reward / samples
                if reward == 0.0 and not baseline:
                    continue
                if wants_s:
                    _sort_by_arrival(floats[0], candidates, n, packed[0], packed[1], counts)
                    _add_list(rate_c, candidates, n, everybody, D, total_c, reward, drawn, Z, sums[:2], common[0])
                if wants_r and is_one_stage:
                    _add_list(rate_r, shown, filled, everybody, D, total_r, reward, drawn, Z, sums[2:], common[1])
                elif wants_r:
                    _add_list(rate_r, shown, filled, candidates, n, np.nan, reward, drawn, Z, sums[2:], common[1])
            _add_common(rate_c, common[0], sums[:2])
            _add_common(rate_r, common[1], sums[2:])
            for d in range(D):
                if baseline:
                    grad_s[q, d] = (sums[0, d] - value[q] * sums[1, d]) / max(samples - 1, 1)
                    grad_r[q, d] = (sums[2, d] - value[q] * sums[3, d]) / max(samples - 1, 1)
                else:
                    grad_s[q, d] = sums[0, d] / samples
                    grad_r[q, d] = sums[2, d] / samples
            for j in range(indptr[q], indptr[q + 1]):
                w[indices[j]] = f32(0.0)
