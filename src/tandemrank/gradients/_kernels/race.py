"""The race on the CPU: one query and one sample at a time, everything that depends on a document vectorised.

`race` has the mathematics, `tests/race_oracle.py` the same steps on whole arrays. For a query and a sample

1. and 2. `draws.draw` runs both races: the candidates, the last of them, `l`, the first document that just
   missed, `x`, and the first K + 1 arrivals of the second race;
3. `own_terms` and `others_terms` integrate each document's own clocks out: `_sweep` for a block of documents that see the
   same list, the at most K + 1 shown candidates are then done one by one;
4. `balance` takes out of each gradient its sum over the documents: adding a number to all scores of a stage changes no list,
   so the sum is noise.

Random numbers are a function of (key of the query, sample, stage, document): the result does not depend on threads,
batches or order.
"""

import numpy as np
from numba import njit

from tandemrank.gradients._kernels.compiled import MATHS, SUMS, kernel
from tandemrank.gradients._kernels.draws import BLOCK, draw, scratch_space, stream
from tandemrank.gradients._kernels.float32 import exp, f32, log, u64

MOST = f32(80.0)  # rate times time from which on somebody has surely arrived
# A typical time is found from about so many documents, in so many steps: it only has to be near.
TYPICAL_DOCUMENTS, TYPICAL_STEPS = 512, 8


@njit(inline="always")
def chances_at(y):
    """(1 - exp(-y), y exp(-y)): the chance to arrive before rate times time is y, accurate for tiny ones too, and its slope."""
    e = exp(-y)
    series = y * (f32(1.0) - y * (f32(0.5) - y * f32(1.0 / 6.0)))
    return f32(1.0) - e if y > f32(0.02) else series, y * e


@njit(inline="always")
def chances(s_d, log_tau):
    """(p, lambda tau exp(-lambda tau)) with p = 1 - exp(-lambda tau)."""
    return chances_at(min(exp(s_d + log_tau), MOST))


@kernel(fastmath=SUMS)
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


@kernel(fastmath=SUMS)
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


@njit(inline="always")
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
        log_tau = typical_time(s, chance[:D], f32(K2), rate, weight)
        for d in range(D):
            chance[d], pattern[d] = chances(s[d], log_tau)
        _take_out_sum(grad_s, pattern)
    if grad_r.size > 0:
        log_t = typical_time(r, chance[:D], places, rate, weight)
        for d in range(D):
            pattern[d] = chance[d] * chances(r[d], log_t)[1]
        _take_out_sum(grad_r, pattern)


@kernel(fastmath=MATHS)
def _sweep(score, log_t, coefficient, value, slope, y_first):
    """For a block of documents that see the same list: adds sum_k c_k exp(-mu t_k), and its derivative by the score.

    Shapes: score, value, slope [n]; log_t, coefficient [K]; y_first [BLOCK], working space. Terms with c_k = 0 or
    t_k = inf cost nothing.
    """
    # A piece at a time, so that what every k reads and writes stays in the cache.
    n = score.size
    for start in range(0, n, BLOCK):
        size = min(n - start, BLOCK)
        piece, piece_value, piece_slope = score[start:], value[start:], slope[start:]
        log_t_first = f32(-np.inf)
        for k in range(log_t.size):
            c, log_t_k = coefficient[k], log_t[k]
            if c != f32(0.0) and log_t_k < f32(np.inf):
                # mu t_k = mu t_first * (t_k / t_first) saves an exponential, unless the times are far apart.
                if not log_t_k - log_t_first < f32(40.0):
                    log_t_first = log_t_k
                    for j in range(size):
                        y_first[j] = min(exp(piece[j] + log_t_first), f32(100.0))
                ratio = exp(log_t_k - log_t_first)
                for j in range(size):
                    y = min(y_first[j] * ratio, f32(100.0))
                    e = c * exp(-y)
                    piece_value[j] += e
                    piece_slope[j] -= y * e


@njit(inline="always")
def _without(place, source, target):
    """`source` less the entry at `place`, cut to the length of `target`."""
    for k in range(min(place, target.size)):
        target[k] = source[k]
    for k in range(place, target.size):
        target[k] = source[k + 1]


@njit(inline="always")
def _place_of(d, shown):
    """Where `d` stands in `shown`; its length if it does not."""
    for k in range(shown.size):
        if shown[k] == d:
            return k
    return shown.size


@kernel(fastmath=MATHS)
def _see(place, log_t_rest, w_rest, theta, delta, log_t, c_plain):
    """The list that a document sees: the rest less the entry at `place`. Returns the utility if the document were first.

    U_in(d) = base + w_d theta_1 + sum_k exp(-mu_d t_k) delta_k (w_d - w_{b_k}),   base = sum_k theta_{k+1} w_{b_k}.
    The document's own weight is left to the caller; `c_plain` gets the coefficients -delta_k w_{b_k} of the others.
    """
    _without(place, log_t_rest, log_t)
    _without(place, w_rest, c_plain)
    base = f32(0.0)
    for k in range(theta.size):
        base += (theta[k] + delta[k]) * c_plain[k]
        c_plain[k] = -delta[k] * c_plain[k]
    return base


@kernel(fastmath=MATHS)
def own_terms(s, r, docs, theta, delta, state, scratch, block):
    """What multiplies a document's own weight, for each of `docs`.

    Rows of `block`: 0, theta_1 + sum_k exp(-mu_d t_k) delta_k, the examination of d if it is a candidate; 1, its
    derivative by r_d; 2, the chance p_d; 3, lambda_d tau_d exp(-lambda_d tau_d).  Shapes: docs [n]; block [5, n].
    """
    floats, _, lists, shown, y_first = scratch
    x, last, _ = state
    log_T, K, n = floats[0], theta.size, docs.size
    value, slope, chance, density, score = block[0], block[1], block[2], block[3], block[4]
    for j in range(n):
        score[j], value[j], slope[j] = r[docs[j]], theta[0], f32(0.0)
    outside = min(_place_of(last, shown), K) if x >= 0 else K
    log_t = lists[2, :K]
    _without(outside, lists[0], log_t)
    _sweep(score[:n], log_t, delta, value, slope, y_first)
    log_T_x, log_T_last = (log_T[x], log_T[last]) if x >= 0 else (f32(np.inf), f32(np.inf))
    for j in range(n):
        d = docs[j]
        is_candidate = x < 0 or log_T[d] < log_T_x or (log_T[d] == log_T_x and d < x)
        if log_T[d] == f32(np.inf) or r[d] == f32(-np.inf):
            # Never a candidate, or a candidate whom the re-ranker never shows: its own weight counts for nothing.
            chance[j], density[j] = f32(0.0), f32(0.0)
        elif x < 0:
            chance[j], density[j] = f32(1.0), f32(0.0)
        else:
            chance[j], density[j] = chances(s[d], log_T_x if is_candidate else log_T_last)
        # Who is shown sees the list without itself; a candidate also sees the last candidate, others do not.
        place = min(_place_of(d, shown), K) if is_candidate else outside
        if place != outside:
            _without(place, lists[0], log_t)
            value[j], slope[j] = theta[0], f32(0.0)
            _sweep(score[j : j + 1], log_t, delta, value[j : j + 1], slope[j : j + 1], y_first)


@kernel(fastmath=MATHS)
def _joining(r_d, w_d, base, log_t, c, theta, delta):
    """V(d), the expected utility if `d` joins the list that was last seen by `_see`: its second clock integrated out."""
    value = base + theta[0] * w_d
    for k in range(theta.size):
        if delta[k] != f32(0.0) and log_t[k] < f32(np.inf):
            value += exp(-min(exp(r_d + log_t[k]), f32(100.0))) * (delta[k] * w_d + c[k])
    return value


@njit(inline="always")
def others_terms(r, theta, delta, w, state, scratch):
    """V(d) - V(b), less the part of d's own weight: what d changes by taking the place of b, the K2-th of the others.

    In `floats[2]`, and its derivative by r_d in `floats[3]`. First all documents as if outside, where b = l, then the
    candidates, where b = x, then those of them who are shown and see a list of their own.
    """
    floats, documents, lists, shown, y_first = scratch
    x, last, n = state
    K, D = theta.size, r.size
    value, slope, score, inside, inside_slope = floats[2], floats[3], floats[4], floats[5], floats[6]
    candidates = documents[0]
    log_t, c = lists[2, :K], lists[3, :K]
    # A document that the re-ranker never shows takes a place, but its own weight counts for nothing.
    w_x = w[x] if x >= 0 and r[x] > f32(-np.inf) else f32(0.0)
    w_last = w[last] if x >= 0 and r[last] > f32(-np.inf) else f32(0.0)
    outside = min(_place_of(last, shown), K) if x >= 0 else K
    base = _see(outside, lists[0], lists[1], theta, delta, log_t, c)
    V_outside = _joining(r[last], w_last, base, log_t, c, theta, delta) if x >= 0 else f32(0.0)
    value[:D] = base - V_outside
    slope[:D] = f32(0.0)
    _sweep(r, log_t, c, value, slope, y_first)
    if x >= 0:
        base_inside = _see(K, lists[0], lists[1], theta, delta, log_t, c)
        V_inside = _joining(r[x], w_x, base_inside, log_t, c, theta, delta)
        if outside < K:
            inside[:n] = base_inside - V_inside
            inside_slope[:n] = f32(0.0)
            for j in range(n):
                score[j] = r[candidates[j]]
            _sweep(score[:n], log_t, c, inside, inside_slope, y_first)
            for j in range(n):
                value[candidates[j]], slope[candidates[j]] = inside[j], inside_slope[j]
        else:
            for j in range(n):
                value[candidates[j]] += V_outside - V_inside
    base = _see(np.int64(0), lists[0], lists[1], theta, delta, log_t, c)
    for place in range(shown.size):
        d = shown[place]
        if place > 0:
            # The next one sees the list of the one before, but for that one in its own place.
            k, joins, leaves = place - 1, lists[1, place - 1], lists[1, place]
            base += (theta[k] + delta[k]) * (joins - leaves)
            log_t[k], c[k] = lists[0, k], -delta[k] * joins
        if d >= 0:
            value[d] = base - (_joining(r[x], w_x, base, log_t, c, theta, delta) if x >= 0 else f32(0.0))
            slope[d] = f32(0.0)
            _sweep(r[d : d + 1], log_t, c, value[d : d + 1], slope[d : d + 1], y_first)


@njit(inline="always")
def _add_others(s, always, inverse, state, scratch, grad_s, grad_r):
    """Adds the terms of `others_terms` to the gradients; to one of size 0 nothing. The arguments are those of `add_race`."""
    x, last, _ = state
    floats = scratch[0]
    log_T, value, slope, chance, density = floats[0], floats[2], floats[3], floats[5], floats[6]
    if x < 0:
        for d in range(grad_r.size):
            grad_r[d] += slope[d] if log_T[d] < f32(np.inf) else f32(0.0)
        return
    log_T_x, log_T_last = log_T[x], log_T[last]
    for d in range(s.size):
        # A candidate that ties with x needs no care: the last candidate's time is the same then.
        chance[d], density[d] = chances(s[d], log_T_x if log_T[d] < log_T_x else log_T_last)
    for d in range(min(always, grad_s.size)):
        grad_s[d] += density[d] * value[d]
    for d in range(always, grad_s.size):
        grad_s[d] += density[d] * value[d] * inverse[d]
    for d in range(min(always, grad_r.size)):
        grad_r[d] += chance[d] * slope[d]
    for d in range(always, grad_r.size):
        grad_r[d] += slope[d] if log_T[d] < log_T_x else f32(0.0)


@njit(inline="always")
def _others_matter(w, state, scratch):
    """Whether anybody on the list, or on the edge of the candidates, carries weight."""
    x, last, _ = state
    matter = x >= 0 and (w[x] != f32(0.0) or w[last] != f32(0.0))
    for weight in scratch[2][1]:
        matter |= weight != f32(0.0)
    return matter


@njit(inline="always")
def add_race(s, r, docs, always, inverse, theta, delta, w, state, scratch, block, grad_s, grad_r):
    """Adds the gradients of one race, to one of size 0 nothing; returns its value.

    `docs`: the documents with weight. The first `always` documents are looked at whatever their clocks say, and have the
    integrated form. The others are looked at if they are candidates: by the generator's score their part is times
    `inverse`, one over the chance of that, and by the re-ranker's it is that of the candidates.
    Shapes: s, r, inverse [D]; docs [n]; w [D or more]; block [5, n], working space; grad_s, grad_r [D] or [0].
    """
    if grad_s.size + grad_r.size > 0 and _others_matter(w, state, scratch):
        others_terms(r, theta, delta, w, state, scratch)
        _add_others(s, always, inverse, state, scratch, grad_s, grad_r)
    own_terms(s, r, docs, theta, delta, state, scratch, block)
    total = 0.0
    for j in range(docs.size):
        d = docs[j]
        if grad_s.size > 0:
            grad_s[d] += block[3, j] * w[d] * block[0, j]
        if grad_r.size > 0:
            grad_r[d] += block[2, j] * w[d] * block[1, j]
        total += block[2, j] * w[d] * block[0, j]
    return total


@njit(inline="always")
def steps(theta):
    """delta_k = theta_{k+1} - theta_k with theta_{K+1} = 0."""
    delta = np.empty_like(theta)
    for k in range(theta.size):
        delta[k] = (theta[k + 1] if k + 1 < theta.size else f32(0.0)) - theta[k]
    return delta


@kernel()
def places_of(theta):
    """Where an arrival changes something, on average over the ranks: the last place that counts if the curve is flat."""
    total, top = f32(0.0), f32(0.0)
    for k in range(theta.size):
        total += abs(theta[k])
        top = max(top, abs(theta[k]))
    return total / top if top > f32(0.0) else f32(1.0)


@kernel(fastmath=MATHS)
def utility(first, stop, s, r, keys, indptr, indices, weights, theta, K2, samples, value, grad_s, grad_r):
    """Value and both gradients of the two-stage utility of the queries first ... stop - 1, each the mean over the samples.

    Shapes: s, r, grad_s, grad_r [B, D]; keys, value [B]; indptr [B + 1]; indices, weights [nnz]; theta [K].
    The outputs come in as zeros; a gradient that comes in as [B, 0] is not wanted, and not computed.
    """
    D, delta, places = s.shape[1], steps(theta), places_of(theta)
    scratch, w, nothing = scratch_space(D, theta.size), np.zeros(D, np.float32), np.empty(0, np.float32)
    for q in range(first, stop):
        docs, own = indices[indptr[q] : indptr[q + 1]], weights[indptr[q] : indptr[q + 1]]
        block = np.empty((5, docs.size), np.float32)
        for j in range(docs.size):
            w[docs[j]] = own[j]
        for sample in range(samples):
            state = draw(s[q], r[q], stream(keys[q], u64(sample)), K2, w, scratch)
            total = add_race(s[q], r[q], docs, D, nothing, theta, delta, w, state, scratch, block, grad_s[q], grad_r[q])
            value[q] += (total - value[q]) / (sample + 1)
        for j in range(docs.size):
            w[docs[j]] = f32(0.0)
        for d in range(grad_s.shape[1]):
            grad_s[q, d] /= f32(samples)
        for d in range(grad_r.shape[1]):
            grad_r[q, d] /= f32(samples)
        if grad_s.shape[1] + grad_r.shape[1] > 0:
            balance(s[q], r[q], K2, places, scratch, grad_s[q], grad_r[q])


@njit(inline="always")
def add_exposures(s, r, everybody, always, docs, theta, delta, state, scratch, block, moments, totals, start, q):
    """Adds what the exposures of one race say: rho, rho^2, rho S of `docs` from the entry `start` on; S, S^2 of the query.

    S, the sum of the exposures, has the closed forms of the first `always` documents; of the others it has the candidates,
    whose p_d is 1 then.  Shapes: everybody [D], 0, 1, ...; block [5, D], working space; moments [3, nnz]; totals [2, B].
    """
    own_terms(s, r, everybody, theta, delta, state, scratch, block)
    rho, chance, candidates, total = block[0], block[2], scratch[1][0], 0.0
    for d in range(always):
        rho[d] *= chance[d]
        total += rho[d]
    for j in range(state[2]):
        d = candidates[j]
        if d >= always and r[d] > f32(-np.inf):
            total += rho[d]
    totals[0, q] += total
    totals[1, q] += total * total
    for j in range(docs.size):
        one = np.float64(rho[docs[j]])
        moments[0, start + j] += one
        moments[1, start + j] += one * one
        moments[2, start + j] += one * total


@kernel(fastmath=MATHS)
def exposure(first, stop, s, r, keys, indptr, indices, theta, K2, samples, moments, totals):
    """Sums over the samples of what the exposures are made of; rho_j(d) is the closed form of sample j, S_j = sum_d rho_j(d).

    moments: rho, rho^2, rho S for the documents in `indices`; totals: S, S^2 for each query. The outputs come in as zeros.
    Shapes: s, r [B, D]; keys [B]; indptr [B + 1]; indices [nnz]; theta [K]; moments [3, nnz]; totals [2, B].
    """
    D, delta = s.shape[1], steps(theta)
    scratch, block = scratch_space(D, theta.size), np.empty((5, D), np.float32)
    w, everybody = np.empty(D, np.float32), np.empty(D, np.int32)
    for d in range(D):
        w[d], everybody[d] = f32(0.0), d
    for q in range(first, stop):
        docs = indices[indptr[q] : indptr[q + 1]]
        for sample in range(samples):
            state = draw(s[q], r[q], stream(keys[q], u64(sample)), K2, w, scratch)
            add_exposures(
                s[q], r[q], everybody, D, docs, theta, delta, state, scratch, block, moments, totals, indptr[q], q
            )
