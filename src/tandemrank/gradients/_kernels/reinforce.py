"""REINFORCE on the CPU: the lists of many samples and the gradients of their log-probabilities, in compiled loops.

It draws its lists by the same race as `draws`, with the same vectorised clocks and selection, and uses that the
gradient of a Plackett-Luce log-probability needs only the running sum of 1 / Z: the rival is compiled with the same care.
"""

import numpy as np

from tandemrank.gradients._kernels.compiled import kernel
from tandemrank.gradients._kernels.draws import WORTH, candidates_of, first_arrivals, latest, second_race, stream
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
def utility(
    first, stop, s, r, keys, indptr, indices, weights, theta, K2, samples, baseline, value, grad_s, grad_r
):  # fmt: skip
    """Mean reward and REINFORCE gradients of both stages, each the mean over the samples (cand-grad, ranker-grad).

    Shapes: s, r, grad_s, grad_r [B, D]; keys, value [B]; indptr [B + 1]; indices, weights [nnz]; theta [K].
    With `baseline` each reward is measured from the mean of the other samples' rewards. Outputs come in as zeros. A gradient
    that comes in as [B, 0] is not wanted, and not computed; the generator has none where everybody is a candidate.
    """
    D, K = s.shape[1], theta.size
    wants_s, wants_r = grad_s.shape[1] > 0 and K2 < D, grad_r.shape[1] > 0
    # Everybody available is a candidate, and of the second race the first K alone matter.
    is_one_stage = K2 >= D > K
    size = K if is_one_stage else K2
    floats, documents, nothing = (
        np.empty((3, D + 1), np.float32),
        np.empty((2, D + 1), np.int32),
        np.empty((1, 0), np.float32),
    )
    candidates, everybody = np.empty(D, np.int32), np.arange(D).astype(np.int32)
    below, masked, shown, times = (
        np.empty(D, np.float32),
        np.empty(D, np.float32),
        np.empty(K, np.int32),
        np.empty(K, np.float32),
    )
    rate_c, rate_r, w, drawn = np.empty(D), np.empty(D), np.zeros(D, np.float32), np.zeros(D, np.bool_)
    sums, common, Z = np.empty((4, D)), np.empty((2, 2)), np.empty(D)
    packed, counts = np.empty((2, D), np.uint64), np.empty(257, np.int32)
    for q in range(first, stop):
        for j in range(indptr[q], indptr[q + 1]):
            w[indices[j]] = weights[j]
        total_c, total_r = _rates(s[q], s[q], rate_c), _rates(r[q], s[q], rate_r)
        for d in range(D):
            masked[d] = r[q, d] if is_one_stage and s[q, d] > f32(-np.inf) else s[q, d]
        sums[:], common[:], limit = 0.0, 0.0, f32(np.inf)
        scores = nothing[0], nothing, masked, nothing[0], f32(0.0)
        for sample in range(samples):
            key = stream(keys[q], u64(sample))
            n, missed = candidates_of(scores, key, np.bool_(True), size, below, limit, floats, documents, candidates)
            if limit == f32(np.inf) or missed >= limit:
                pays = missed < f32(np.inf) and samples - sample > WORTH
                limit = latest(masked, missed, size, below) if pays else f32(np.inf)
            if is_one_stage:
                filled = first_arrivals(candidates, floats[0], n, shown, times)
            else:
                for j in range(n):
                    floats[1, j] = r[q, candidates[j]]
                filled = second_race(candidates, n, floats[1], key, np.bool_(True), floats[2], shown, times)
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
        _finish(sums[:2], value[q], samples, baseline, grad_s[q])
        _finish(sums[2:], value[q], samples, baseline, grad_r[q])
        for j in range(indptr[q], indptr[q + 1]):
            w[indices[j]] = f32(0.0)


@kernel()
def _finish(sums, mean, samples, baseline, gradient):
    """The mean over the samples; with a baseline, of the rewards less the mean of the others'.  Shapes: gradient [D] or [0]."""
    for d in range(gradient.size):
        if baseline:
            gradient[d] = (sums[0, d] - mean * sums[1, d]) / max(samples - 1, 1)
        else:
            gradient[d] = sums[0, d] / samples
