"""PL-Rank-3 on the CPU: the best published gradient of a one-stage Plackett-Luce policy, as a rival for `race`.

Oosterhuis, "Learning-to-Rank at the Speed of Sampling" (SIGIR 2022), from the published formulas. For a sampled list y
of the K first arrivals, with Z_k the rates not drawn before place k and rank(d) = K for a document that is not shown,

    PR_k = sum_{x >= k} theta_x w_{y_x},   RI_k = sum_{x <= k} PR_x / Z_x,   DR_k = sum_{x <= k} theta_x / Z_x

    dU/dr_d = E[ 1[d shown] PR_{rank(d) + 1} + exp(r_d) (w_d DR_{rank(d)} - RI_{rank(d)}) ]

A sample costs the draw and O(K): all documents that are not shown share DR_K and RI_K, so these are summed over the
samples and multiplied by a document's rate once. It draws its lists by the clocks and the selection of `_kernels.draws`.
"""

import numpy as np

from tandemrank.gradients._kernels.compiled import kernel
from tandemrank.gradients._kernels.draws import arrivals, first_arrivals, stream
from tandemrank.gradients._kernels.float32 import f32, u64
from tandemrank.gradients._kernels.reinforce import _rates


@kernel()
def _add_shown(shown, filled, left, rate, w, theta, PR, total, DR_less, RI_less):
    """Adds what the shown documents differ in from the others; returns DR and RI of the others.

    total gets PR of the places behind a document; DR_less and RI_less what a shown document's sums lack at the end.
    """
    PR[filled] = 0.0
    for k in range(filled - 1, -1, -1):
        PR[k] = PR[k + 1] + theta[k] * w[shown[k]]
    DR, RI = 0.0, 0.0
    for k in range(filled):
        d = shown[k]
        DR += theta[k] / left
        RI += PR[k] / left
        left -= rate[d]
        total[d] += PR[k + 1]
        # Sums up to this place, as negative differences: the sums over all places are added for everybody at the end.
        DR_less[d] += DR
        RI_less[d] += RI
    for k in range(filled):
        DR_less[shown[k]] -= DR
        RI_less[shown[k]] -= RI
    return DR, RI


@kernel()
def utility(first, stop, r, keys, indptr, indices, weights, theta, samples, value, grad):
    """Mean reward and PL-Rank-3 gradient of a one-stage policy for the rows first ... stop - 1, means over the samples.

    Shapes: r, grad [B, D]; keys, value [B]; indptr [B + 1]; indices, weights [nnz]; theta [K]. `value` comes in as zeros.
    """
    D, K = r.shape[1], theta.size
    everybody = np.arange(D).astype(np.int32)
    log_Q, rate, w = np.empty(D, np.float32), np.empty(D), np.zeros(D)
    shown, times, PR, sums = np.empty(K, np.int32), np.empty(K, np.float32), np.empty(K + 1), np.empty((3, D))
    for q in range(first, stop):
        for j in range(indptr[q], indptr[q + 1]):
            w[indices[j]] = weights[j]
        _rates(r[q], r[q], rate)
        everything, DR, RI = rate.sum(), 0.0, 0.0
        sums[:] = 0.0
        for sample in range(samples):
            arrivals(r[q], stream(stream(keys[q], u64(sample)), u64(1)), log_Q)
            filled = first_arrivals(everybody, log_Q, D, shown, times)
            DR_sample, RI_sample = _add_shown(shown, filled, everything, rate, w, theta, PR, sums[0], sums[1], sums[2])
            DR += DR_sample
            RI += RI_sample
            value[q] += PR[0] / samples
        for d in range(D):
            own = w[d] * (DR + sums[1, d]) - (RI + sums[2, d])
            grad[q, d] = f32((sums[0, d] + rate[d] * own) / samples)
        for j in range(indptr[q], indptr[q + 1]):
            w[indices[j]] = 0.0
