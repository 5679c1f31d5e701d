"""The sparse race, compiled: the dense race's formulas on the few documents that matter; `sparse_race` has the mathematics.

`collect` makes one short list of documents of each query: those with weight, the candidates of all races and who just
missed. `utility` and `exposure` then run the kernels of the dense race on that list, in which places (0, 1, ...) stand
for documents; only the clocks of the second race go by the documents' own numbers.
"""

import numpy as np
from numba import njit

from tandemrank.gradients._kernels.compiled import MATHS, kernel
from tandemrank.gradients._kernels.draws import arrivals_of, first_arrivals, scratch_space, stream
from tandemrank.gradients._kernels.float32 import exp, f32, log, u64
from tandemrank.gradients._kernels.products import own_score
from tandemrank.gradients._kernels.race import (
    MOST,
    add_moments,
    chances,
    chances_at,
    others_matter,
    others_terms,
    own_terms,
    places_of,
    steps,
    typical_time,
)

# The time of documents that arrive after all that matters.
_LATE = f32(3e38)


@njit(inline="always")
def _put(d, table, numbers, n):
    """The place of document d in `numbers`, where it is appended if it is new; returns (place, new n)."""
    mask = table.size - 1
    slot = ((d * 0x9E3779B1) >> 7) & mask
    while table[slot] >= 0 and numbers[table[slot]] != d:
        slot = (slot + 1) & mask
    if table[slot] < 0:
        table[slot], numbers[n] = n, d
        return n, n + 1
    return table[slot], n


@kernel()
def _slots(n):
    """A power of two with room for n documents."""
    size = 16
    while size < 4 * n:
        size *= 2
    return size


@kernel(fastmath=MATHS)
def _inverse_chances(s, n, own, places, count, log_edge, arrived_y, inside, inverse):
    """1 / pi_d of each document in the list: the chance to be a candidate of at least one of the races.

        pi_d = 1 - exp(-lambda_d (tau_d of race 1 + tau_d of race 2 + ...))

    tau_d as in the dense race: who missed for a candidate, the last candidate for others. 1 for the first `own`
    documents, which are always in the list, 0 for those that are there for another reason than their clocks.
    """
    arrived_y[:n] = f32(0.0)
    inverse[:n] = f32(0.0)
    for i in range(count.size):
        inside[:n] = False
        for j in range(count[i]):
            inside[places[i, j]] = True
            inverse[places[i, j]] = f32(1.0)
        for d in range(n):
            arrived_y[d] += min(exp(s[d] + log_edge[i, 1 if inside[d] else 0]), MOST)
    for d in range(n):
        p = chances_at(min(arrived_y[d], MOST))[0]
        inverse[d] = f32(1.0) if d < own else inverse[d] / max(p, f32(1e-30))


@kernel()
def collect(
    first, stop, X, Y, given, indptr, indices, candidates, s, count, log_edge, pattern_docs, pattern_s, pattern_n, log_tau,
    wide, documents, scores, places, listed, inverse, pattern,
):  # fmt: skip
    """The list of each query: weighted documents first, candidates and who missed, then the rest of the pattern's sample.

    Shapes: indptr [B + 1], indices [nnz], the weighted documents; candidates, s, places [B, S, K2 + 1]; count [B, S];
    log_edge [B, S, 2]; pattern_docs, pattern_s [B, capacity]; pattern_n, log_tau [B]; documents, scores, inverse,
    pattern [B, room], pattern divided by its sum; listed [B, 2], how many there are without and with the sample.
    """
    S, room = count.shape[1], documents.shape[1]
    table, late = np.empty(_slots(room), np.int32), np.empty(room, np.float32)
    inside = np.empty(room, np.bool_)
    for q in range(first, stop):
        table[:] = -1
        docs, n = documents[q], np.int64(0)
        for j in range(indptr[q], indptr[q + 1]):
            place, n = _put(np.int64(indices[j]), table, docs, n)
            scores[q, place] = own_score(X, Y, given, q, indices[j])
        own = n
        for i in range(S):
            for j in range(candidates.shape[2]):
                if candidates[q, i, j] >= 0:
                    place, n = _put(np.int64(candidates[q, i, j]), table, docs, n)
                    scores[q, place], places[q, i, j] = s[q, i, j], place
        listed[q, 0] = n
        _inverse_chances(scores[q], n, own, places[q], count[q], log_edge[q], late, inside, inverse[q])
        mass = 0.0
        for j in range(own):
            pattern[q, j] = chances(scores[q, j], log_tau[q])[1]
            mass += pattern[q, j]
        for j in range(pattern_n[q]):
            place, n = _put(np.int64(pattern_docs[q, j]), table, docs, n)
            if place >= own:
                scores[q, place] = pattern_s[q, j]
                pi = chances(pattern_s[q, j], log_tau[q] + log(f32(wide)))[0]
                pattern[q, place] = chances(pattern_s[q, j], log_tau[q])[1] / max(pi, f32(1e-30))
                mass += pattern[q, place]
        listed[q, 1] = n
        for j in range(n):
            pattern[q, j] = f32(pattern[q, j] / mass) if mass > 0.0 else f32(0.0)


@kernel()
def _draw(s, r, documents, key, places, n_candidates, log_edge, w, numbers, scratch):
    """The second race, and the first as the dense kernel wants to see it. Returns (x, l, number of candidates), places.

    `shown` has the first K + 1 arrivals of the second race; rows of `lists`: 0 and 1, their times and weights.
    """
    floats, where, lists, _, shown, _ = scratch
    log_T, log_Q, scores, own = floats[0], floats[1], floats[4], where[0]
    one_stage = log_edge[1] == f32(np.inf)
    for d in range(s.size):
        log_T[d] = _LATE if s[d] > f32(-np.inf) else f32(np.inf)
    for j in range(n_candidates):
        own[j], numbers[j] = places[j], documents[places[j]]
        log_T[own[j]] = f32(0.0) if one_stage else log_edge[0]
    for j in range(n_candidates):
        scores[j] = r[own[j]]
    arrivals_of(numbers, n_candidates, scores, stream(key, u64(1)), log_Q)
    first_arrivals(own, log_Q, n_candidates, shown, lists[0])
    for k in range(shown.size):
        lists[1, k] = w[shown[k]] if shown[k] >= 0 else f32(0.0)
    if one_stage:
        return -1, -1, n_candidates
    x = places[n_candidates]
    log_T[x] = log_edge[1]
    return x, places[0], n_candidates


@kernel(fastmath=MATHS)
def _add_others(s, own, state, scratch, inverse, grad_s, grad_r):
    """Adds the terms of `others_terms`: to the generator's gradient by 1 / pi_d, to the re-ranker's for candidates.

    Documents with weight, the first `own`, are in the list whatever their clocks, and keep the integrated form.
    """
    x, last, _ = state
    log_T, value, slope = scratch[0][0], scratch[0][2], scratch[0][3]
    if x < 0:
        for d in range(s.size):
            grad_r[d] += slope[d] if log_T[d] < f32(np.inf) else f32(0.0)
        return
    log_T_x, log_T_last = log_T[x], log_T[last]
    for d in range(s.size):
        candidate = log_T[d] < log_T_x
        chance, density = chances(s[d], log_T_x if candidate else log_T_last)
        grad_s[d] += density * value[d] * inverse[d]
        grad_r[d] += slope[d] * (chance if d < own else f32(1.0) if candidate else f32(0.0))


@kernel(fastmath=MATHS)
def _ranker_pattern(r, own, state, chance, places, scratch, pattern):
    """How strongly each document's place depends on r_d, as one race sees it; returns the sum.

        h_d = z_d y exp(-y),  y = mu_d t,   z_d = 1 for a candidate; p_d for a document with weight

    with t the time by which `places` of the candidates are expected.  Shapes: r, pattern [n]; chance [own].
    """
    x, _, _ = state
    floats = scratch[0]
    log_T, rate, weight, z = floats[0], floats[3], floats[4], floats[5]
    for d in range(r.size):
        inside = log_T[d] < f32(np.inf) if x < 0 else log_T[d] < log_T[x]
        z[d] = chance[d] if d < own else (f32(1.0) if inside else f32(0.0))
    log_t = typical_time(r, z[: r.size], places, rate, weight)
    mass = f32(0.0)
    for d in range(r.size):
        pattern[d] = z[d] * chances(r[d], log_t)[1] if log_t > f32(-np.inf) else f32(0.0)
        mass += pattern[d]
    return mass


@kernel(fastmath=MATHS)
def _balanced(grad, pattern, mass, n, grad_r):
    """The mean over the races, each less its sum: shared out by the pattern of the others, which is independent of it.

    Shapes: grad, pattern [S, room]; mass [S]; grad_r [n] -> None, `grad_r` is filled.
    """
    S = mass.size
    everything, share = mass.sum(), np.zeros(S, np.float32)
    for i in range(S):
        total = f32(0.0)
        for d in range(n):
            total += grad[i, d]
        others = everything - mass[i]
        for j in range(S):
            if j != i and others > f32(0.0):
                share[j] += total / others
    for i in range(S):
        for d in range(n):
            grad_r[d] += (grad[i, d] - share[i] * pattern[i, d]) / f32(S)


@kernel()
def utility(
    first, stop, scores, r, documents, listed, keys, indptr, weights, places, count, log_edge, inverse, pattern, theta,
    value, grad_s, grad_r,
):  # fmt: skip
    """Value and both gradients of the two-stage utility, each the mean over the races; shapes as in `collect`.

    Shapes: r, grad_r [B, M_r]; grad_s [B, M], M >= M_r; theta [K]; value [B]. The outputs come in as zeros.
    """
    S, room, delta, reach = count.shape[1], r.shape[1], steps(theta), places_of(theta)
    scratch = scratch_space(room, theta.size)
    w, numbers = np.zeros(room + 1, np.float32), np.empty(room, np.int32)
    by_race, its_pattern = np.zeros((S, room), np.float32), np.zeros((S, room), np.float32)
    mass = np.zeros(S, np.float32)
    for q in range(first, stop):
        n, nw = listed[q], indptr[q + 1] - indptr[q]
        s_q, r_q, own = scores[q, :n], r[q, :n], weights[indptr[q] : indptr[q + 1]]
        block, docs = np.empty((5, nw), np.float32), np.arange(nw).astype(np.int32)
        w[:] = f32(0.0)
        w[:nw] = own
        by_race[:] = f32(0.0)
        for i in range(S):
            key = stream(keys[q], u64(i))
            state = _draw(s_q, r_q, documents[q], key, places[q, i], count[q, i], log_edge[q, i], w, numbers, scratch)
            if others_matter(w, state, scratch):
                others_terms(r_q, theta, delta, w, state, scratch)
                _add_others(s_q, nw, state, scratch, inverse[q], grad_s[q], by_race[i])
            own_terms(s_q, r_q, docs, theta, delta, state, scratch, block)
            total = 0.0
            for j in range(nw):
                grad_s[q, j] += block[3, j] * own[j] * block[0, j]
                by_race[i, j] += block[2, j] * own[j] * block[1, j]
                total += block[2, j] * own[j] * block[0, j]
            value[q] += total / S
            mass[i] = _ranker_pattern(r_q, nw, state, block[2], reach, scratch, its_pattern[i])
        _balanced(by_race, its_pattern, mass, n, grad_r[q])
        total_s = f32(0.0)
        for d in range(n):
            grad_s[q, d] /= f32(S)
            total_s += grad_s[q, d]
        for d in range(grad_s.shape[1]):
            grad_s[q, d] -= total_s * pattern[q, d]


@kernel()
def exposure(
    first, stop, scores, r, documents, listed, keys, indptr, places, count, log_edge, theta, moments, totals
):  # fmt: skip
    """Sums over the races of what the exposures are made of, as `race.exposure`, for the weighted documents.

    S_j, the sum of the exposures of race j, is estimated by its candidates: p_d is 1 for them, and 0 for others.
    Shapes: moments [3, nnz]; totals [2, B]; the outputs come in as zeros.
    """
    room, delta = r.shape[1], steps(theta)
    scratch, block = scratch_space(room, theta.size), np.empty((5, room), np.float32)
    w, numbers = np.zeros(room + 1, np.float32), np.empty(room, np.int32)
    everybody = np.arange(room).astype(np.int32)
    for q in range(first, stop):
        n, nw = listed[q], indptr[q + 1] - indptr[q]
        s_q, r_q = scores[q, :n], r[q, :n]
        for i in range(count.shape[1]):
            key = stream(keys[q], u64(i))
            state = _draw(s_q, r_q, documents[q], key, places[q, i], count[q, i], log_edge[q, i], w, numbers, scratch)
            own_terms(s_q, r_q, everybody[:n], theta, delta, state, scratch, block)
            total = 0.0
            for j in range(nw):
                block[0, j] *= block[2, j]
                total += block[0, j]
            for j in range(count[q, i]):
                d = places[q, i, j]
                if d >= nw and r_q[d] > f32(-np.inf):
                    total += block[0, d]
            add_moments(block[0], everybody[:nw], total, moments, totals, indptr[q], q)
