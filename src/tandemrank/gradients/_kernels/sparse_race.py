"""The sparse race, compiled: the dense race's formulas on the few documents that matter.

A short list of documents is made of each query. Kernels of the dense race then run on that list, in which places (0, 1, ...)
stand for documents; only the clocks of a second race go by the documents' own numbers.

- Two stages (`sparse_race` has the mathematics): `collect` lists the documents with weight, the candidates of all races and who
  just missed; `utility` and `exposure` are what the race says of them.
- One stage alone (`sparse_alone`): `alone` lists those with weight and two samples, and has their gradients.
"""

import numpy as np
from numba import njit

from tandemrank.gradients._kernels.compiled import MATHS, kernel
from tandemrank.gradients._kernels.draws import arrivals_of, first_arrivals, scratch_space, stream
from tandemrank.gradients._kernels.float32 import exp, f32, u64
from tandemrank.gradients._kernels.products import own_score
from tandemrank.gradients._kernels.race import (
    MOST,
    TYPICAL_DOCUMENTS,
    add_exposures,
    add_race,
    chances,
    chances_at,
    places_of,
    steps,
    typical_time,
)

# The time of documents that arrive after all that matters.
_LATE = f32(3e38)


@njit(inline="always")
def _slot(d, table, numbers):
    """Where the table has, or would have, the place of document d in `numbers`."""
    mask = table.size - 1
    slot = ((d * 0x9E3779B1) >> 7) & mask
    while table[slot] >= 0 and numbers[table[slot]] != d:
        slot = (slot + 1) & mask
    return slot


@njit(inline="always")
def _put(d, table, numbers, n):
    """The place of document d in `numbers`, where it is appended if it is new; returns (place, new n)."""
    slot = _slot(d, table, numbers)
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
    first, stop, source, indptr, indices, candidates, s, count, log_edge, sampled, sampled_s, sampled_n, log_tau,
    log_reach, ranker_room, documents, scores, places, listed, inverse, pattern,
):  # fmt: skip
    """The lists of each query: for both stages weighted documents first, candidates and who missed; and from the column
    `ranker_room` on for the generator alone who else is in the pattern's sample.

    Shapes: indptr [B + 1], indices [nnz], the weighted documents; candidates, s, places [B, S, K2 + 1]; count [B, S];
    log_edge [B, S, 2]; sampled, sampled_s [B, P, capacity]; sampled_n [B, P]; log_tau, log_reach [B]; documents, scores,
    inverse, pattern [B, room], pattern divided by its sum; listed [B, 2], how many there are for both and for one alone.
    """
    S, room = count.shape[1], documents.shape[1]
    table, late = np.empty(_slots(room), np.int32), np.empty(room, np.float32)
    inside = np.empty(room, np.bool_)
    for q in range(first, stop):
        table[:] = -1
        docs, n, weight = documents[q], np.int64(0), pattern[q]
        for j in range(indptr[q], indptr[q + 1]):
            place, n = _put(np.int64(indices[j]), table, docs, n)
            scores[q, place] = own_score(source, q, indices[j])
            weight[place] = chances(scores[q, place], log_tau[q])[1]
        own = n
        for i in range(S):
            for j in range(candidates.shape[2]):
                if candidates[q, i, j] >= 0:
                    place, n = _put(np.int64(candidates[q, i, j]), table, docs, n)
                    scores[q, place], places[q, i, j] = s[q, i, j], place
        _inverse_chances(scores[q], n, own, places[q], count[q], log_edge[q], late, inside, inverse[q])
        end = np.int64(ranker_room)
        for p in range(sampled.shape[1]):
            for j in range(sampled_n[q, p]):
                place, end = _put(np.int64(sampled[q, p, j]), table, docs, end)
                if place >= own:
                    scores[q, place] = sampled_s[q, p, j]
                    pi = chances(scores[q, place], log_reach[q])[0]
                    weight[place] = chances(scores[q, place], log_tau[q])[1] / max(pi, f32(1e-30))
        listed[q, 0], listed[q, 1] = n, end - ranker_room
        # What is filled up is the first of the row, without a part in anything.
        docs[n:ranker_room], docs[end:] = docs[0], docs[0]
        scores[q, n:ranker_room], scores[q, end:] = scores[q, 0], scores[q, 0]
        mass = 0.0
        for j in range(room):
            mass += weight[j]
        for j in range(room):
            weight[j] = f32(weight[j] / mass) if mass > 0.0 else f32(0.0)


@kernel()
def _draw(s, r, documents, key, places, n_candidates, log_edge, w, numbers, scratch):
    """The second race, and the first as the dense kernel wants to see it. Returns (x, l, number of candidates), places.

    `shown` has the first K + 1 arrivals of the second race; rows of `lists`: 0 and 1, their times and weights.
    """
    floats, where, lists, shown, _ = scratch
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
        n, nw = listed[q, 0], indptr[q + 1] - indptr[q]
        s_q, r_q = scores[q, :n], r[q, :n]
        block, docs = np.empty((5, nw), np.float32), np.arange(nw).astype(np.int32)
        w[:] = f32(0.0)
        w[:nw] = weights[indptr[q] : indptr[q + 1]]
        by_race[:] = f32(0.0)
        for i in range(S):
            key = stream(keys[q], u64(i))
            state = _draw(s_q, r_q, documents[q], key, places[q, i], count[q, i], log_edge[q, i], w, numbers, scratch)
            value[q] += add_race(
                s_q, r_q, docs, nw, inverse[q], theta, delta, w, state, scratch, block, grad_s[q, :n], by_race[i, :n]
            ) / S  # fmt: skip
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

    Shapes: moments [3, nnz]; totals [2, B]; the outputs come in as zeros.
    """
    room, delta = r.shape[1], steps(theta)
    scratch, block = scratch_space(room, theta.size), np.empty((5, room), np.float32)
    w, numbers = np.zeros(room + 1, np.float32), np.empty(room, np.int32)
    everybody = np.arange(room).astype(np.int32)
    for q in range(first, stop):
        n, nw = listed[q, 0], indptr[q + 1] - indptr[q]
        s_q, r_q = scores[q, :n], r[q, :n]
        for i in range(count.shape[1]):
            key = stream(keys[q], u64(i))
            state = _draw(s_q, r_q, documents[q], key, places[q, i], count[q, i], log_edge[q, i], w, numbers, scratch)
            add_exposures(
                s_q, r_q, everybody[:n], nw, everybody[:nw], theta, delta, state, scratch, block, moments, totals,
                indptr[q], q,
            )  # fmt: skip


# One stage alone


@kernel()
def typical_time_of(source, q, target):
    """When `target` documents are expected to have arrived, from the documents that the dense race asks; -inf for never."""
    D = source[1].shape[0]
    stride = max(1, D // TYPICAL_DOCUMENTS)
    n = (D + stride - 1) // stride
    floats = np.empty((4, n), np.float32)
    s, chance, rate, weight = floats[0], floats[1], floats[2], floats[3]
    for j in range(n):
        s[j] = own_score(source, q, j * stride)
        chance[j] = f32(1.0) if s[j] > f32(-np.inf) else f32(0.0)
    return typical_time(s, chance, f32(target * n / D), rate, weight)


@kernel()
def _arrived(s, first, log_t, table, documents, w, scratch):
    """The first arrivals of a race as the dense kernel wants to see the list of one stage, where not all are in our list."""
    floats, _, lists, shown, _ = scratch
    for d in range(s.size):
        floats[0, d] = f32(0.0) if s[d] > f32(-np.inf) else f32(np.inf)
    for k in range(shown.size):
        shown[k] = table[_slot(np.int64(first[k]), table, documents)]
        lists[0, k], lists[1, k] = log_t[k], w[shown[k]] if shown[k] >= 0 else f32(0.0)
    return -1, -1, s.size


@kernel()
def _look_at(sampled, scores, log_reach, own, table, documents, s, x, n):
    """Appends who is in a sample and has no weight; x_d = 1 / pi_d. Returns how many are listed.  Shapes: s, x [room]."""
    for j in range(sampled.size):
        place, n = _put(np.int64(sampled[j]), table, documents, n)
        if place >= own:
            s[place], x[place] = scores[j], f32(1.0) / max(chances(scores[j], log_reach)[0], f32(1e-30))
    return n


@kernel()
def alone(
    start, stop, source, indptr, indices, weights, first, log_t, theta, log_reach, sampled, sampled_s, count,
    documents, gradient, listed,
):  # fmt: skip
    """The documents of each query, weighted ones first, then both samples, and the gradients by their scores.

    Shapes: indptr [B + 1]; indices, weights [nnz]; first, log_t [B, S, K + 1]; theta [K]; log_reach [B]; sampled, sampled_s
    [B, 2, n]; count [B, 2]; documents, gradient [B, room], of which listed [B] are real.
    """
    S, room = first.shape[1], documents.shape[1]
    delta, target, scratch = steps(theta), places_of(theta), scratch_space(room, theta.size)
    floats, table, nothing = np.empty((5, room), np.float32), np.empty(_slots(room), np.int32), np.empty(0, np.float32)
    s, w, x, other, g = floats[0], floats[1], floats[2], floats[3], floats[4]
    for q in range(start, stop):
        docs, n = documents[q], np.int64(0)
        floats[:], table[:] = f32(0.0), -1
        for j in range(indptr[q], indptr[q + 1]):
            place, n = _put(np.int64(indices[j]), table, docs, n)
            s[place], w[place] = own_score(source, q, indices[j]), weights[j]
        own, one, two = n, count[q, 0], count[q, 1]
        x[:own], other[:own] = f32(1.0), f32(1.0)
        n = _look_at(sampled[q, 0, :one], sampled_s[q, 0], log_reach[q], own, table, docs, s, x, n)
        block, mine = np.empty((5, own), np.float32), np.arange(own).astype(np.int32)
        for i in range(S):
            state = _arrived(s[:n], first[q, i], log_t[q, i], table, docs, w, scratch)
            add_race(s[:n], s[:n], mine, n, nothing, theta, delta, w, state, scratch, block, nothing, g[:n])
        n = _look_at(sampled[q, 1, :two], sampled_s[q, 1], log_reach[q], own, table, docs, s, other, n)
        _take_out(s[:n], typical_time_of(source, q, target), x, other, g, S, gradient[q])
        listed[q] = n
        docs[n:] = docs[0]


@kernel()
def _take_out(s, log_t, x, other, g, S, gradient):
    """x_d (g_d - c h_d (g_d + sum_{e != d} x_e g_e)), the mean of S races; what is left of the sum goes by the other sample.

    Shapes: s [n]; others [n or more]; `gradient` is filled.
    """
    mass, total, left = 0.0, 0.0, 0.0
    for j in range(s.size):
        mass += np.float64(other[j] * chances(s[j], log_t)[1])
        total += np.float64(x[j]) * np.float64(g[j])
    c = 1.0 / mass if mass > 0.0 else 0.0
    for j in range(s.size):
        h, own, part = c * np.float64(chances(s[j], log_t)[1]), np.float64(g[j]), np.float64(x[j])
        others = total - part * own + own
        gradient[j] = part * (own - h * others) / S
        left += np.float64(gradient[j])
    for j in range(s.size):
        gradient[j] -= f32(c * left * np.float64(other[j] * chances(s[j], log_t)[1]))
