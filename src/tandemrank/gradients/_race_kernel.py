"""The race on the CPU: one query and one sample at a time, everything that depends on a document vectorised.

`race` has the mathematics and the tensor path with the same law; this file has the same steps as compiled loops. For a
query and a sample

1. `first_race` draws the arrival times T of all documents and finds the candidates, the last of them, `l`, and the
   first document that just missed, `x`;
2. `second_race` draws the arrival times of the candidates, and keeps the first K + 1;
3. `own_terms` and `others_terms` integrate each document's own clocks out: `_sweep` for a block of documents that see the
   same list, the at most K + 1 shown candidates are then done one by one;
4. `balance_kernel` takes out of each gradient its sum over the documents, which is noise.

Random numbers are a function of (key of the query, sample, stage, document): the result does not depend on threads,
batches or order.
"""

import numpy as np
from numba import njit, prange

from tandemrank.gradients._balance_kernel import MATHS, balance, chances
from tandemrank.gradients._float32_kernel import bits_of, exp, f32, i32, log, minus_log_1m, stream, u32, u64, uniform

_BUCKETS = 2048
_BLOCK = 1024


@njit(inline="always")
def ordered(x):
    """The bits of a float32 as a uint32 in the order of the floats."""
    i = bits_of(x)
    return u32(u32(i) ^ u32(u32(i32(i >> i32(31))) | u32(0x80000000)))


@njit(inline="always")
def _arrives_before(key_a, a, key_b, b):
    return key_a < key_b or (key_a == key_b and a < b)


@njit(cache=True, nogil=True)
def _select(keys, docs, n, rank):
    """Puts the entry of that rank, by (key, document), at its place: Hoare's selection."""
    low, high = 0, n - 1
    while low < high:
        middle = (low + high) >> 1
        pivot, pivot_doc = keys[middle], docs[middle]
        i, j = low, high
        while i <= j:
            while _arrives_before(keys[i], docs[i], pivot, pivot_doc):
                i += 1
            while _arrives_before(pivot, pivot_doc, keys[j], docs[j]):
                j -= 1
            if i <= j:
                keys[i], keys[j] = keys[j], keys[i]
                docs[i], docs[j] = docs[j], docs[i]
                i += 1
                j -= 1
        if rank <= j:
            high = j
        elif rank >= i:
            low = i
        else:
            return


@njit(cache=True, nogil=True, fastmath=MATHS)
def arrivals(score, key, log_T):
    """log T_d = log E_d - s_d for all documents; +inf for those that are not available (score -inf)."""
    low, high = u32(key & u64(0xFFFFFFFF)), u32(key >> u64(32))
    # Two short loops run faster than one long one: the values of each fit in the registers.
    for d in range(score.size):
        log_T[d] = uniform(d, low, high)
    for d in range(score.size):
        log_T[d] = log(minus_log_1m(log_T[d])) - score[d]


@njit(cache=True, nogil=True)
def first_race(log_T, K2, histogram, bucket_keys, bucket_docs, candidates):
    """The candidates, in the order of their numbers. Returns (x, l, n): who just missed, the last to arrive, how many.

    A histogram of the leading bits of the times finds the few documents that can have rank K2; only they are sorted
    out. Where at most K2 documents are available all of them are candidates, and x = l = -1.
    """
    histogram[:] = 0
    for d in range(log_T.size):
        histogram[ordered(log_T[d]) >> u32(21)] += 1
    # The bucket of +inf holds those who never arrive: no finite time is as large.
    available = log_T.size - histogram[ordered(f32(np.inf)) >> u32(21)]
    x, key_x = -1, f32(np.inf)
    if available > K2:
        bucket, below = 0, 0
        while below + histogram[bucket] <= K2:
            below += histogram[bucket]
            bucket += 1
        n = 0
        for d in range(log_T.size):
            bucket_keys[n], bucket_docs[n] = log_T[d], d
            n += ordered(log_T[d]) >> u32(21) == bucket
        _select(bucket_keys, bucket_docs, n, K2 - below)
        x = bucket_docs[K2 - below]
        key_x = log_T[x]
    n = 0
    for d in range(log_T.size):
        candidates[n] = d
        n += (log_T[d] < key_x) | ((log_T[d] == key_x) & (d < x))
    last = -1
    if x >= 0:
        last = candidates[0]
        for j in range(1, n):
            if log_T[candidates[j]] >= log_T[last]:
                last = candidates[j]
    return x, last, n


@njit(cache=True, nogil=True)
def first_arrivals(docs, log_Q, n, shown, shown_log_Q):
    """The first of docs[:n] in `shown`, in order of arrival, -1 behind them; returns how many there are."""
    size, filled = shown.size, 0
    limit = f32(np.inf)
    for j in range(n):
        if log_Q[j] < limit:
            # Documents come in no order of time, so a new one is put in its place, ties behind.
            place = min(filled, size - 1)
            filled = min(filled + 1, size)
            while place > 0 and shown_log_Q[place - 1] > log_Q[j]:
                shown[place], shown_log_Q[place] = shown[place - 1], shown_log_Q[place - 1]
                place -= 1
            shown[place], shown_log_Q[place] = docs[j], log_Q[j]
            if filled == size:
                limit = shown_log_Q[size - 1]
    for place in range(filled, size):
        shown[place], shown_log_Q[place] = -1, f32(np.inf)
    return filled


@njit(cache=True, nogil=True, fastmath=MATHS)
def second_race(score, key, candidates, n, scores, log_Q, shown, shown_log_Q):
    """The first arrivals among `candidates[:n]`, in order; returns how many there are."""
    low, high = u32(key & u64(0xFFFFFFFF)), u32(key >> u64(32))
    # The look-up apart from the arithmetic, so that the arithmetic runs on whole vectors.
    for j in range(n):
        scores[j] = score[candidates[j]]
    for j in range(n):
        log_Q[j] = uniform(candidates[j], low, high)
    for j in range(n):
        log_Q[j] = log(minus_log_1m(log_Q[j])) - scores[j]
    return first_arrivals(candidates, log_Q, n, shown, shown_log_Q)


@njit(cache=True, nogil=True, fastmath=MATHS)
def _sweep(score, n, log_t, coefficient, value, slope, y_first):
    """For a block of documents that see the same list: adds sum_k c_k exp(-mu t_k), and its derivative by the score.

    Shapes: score, value, slope [n]; log_t, coefficient [K]; y_first [_BLOCK], working space. Terms with c_k = 0 or
    t_k = inf cost nothing.
    """
    # A piece at a time, so that what every k reads and writes stays in the cache.
    for start in range(0, n, _BLOCK):
        size = min(n - start, _BLOCK)
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


@njit(cache=True, nogil=True, fastmath=MATHS)
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


@njit(cache=True, nogil=True)
def working_space(D, K):
    """Working space of one thread: nothing is allocated while queries are answered."""
    floats, documents = np.empty((7, D + 1), np.float32), np.empty((2, D + 1), np.int32)
    lists, histogram = np.empty((4, K + 1), np.float32), np.empty(_BUCKETS, np.int32)
    return floats, documents, lists, histogram, np.empty(K + 1, np.int32), np.empty(_BLOCK, np.float32)


@njit(cache=True, nogil=True)
def _draw(s, r, key, K2, w, scratch):
    """Both races of one sample. Returns (x, l, number of candidates); the lists are in the scratch.

    `shown` has the first K + 1 arrivals of the second race; rows of `lists`: 0 and 1, their times and weights; the
    others are free.
    x = -1 where everybody available is a candidate (the one-stage case).
    """
    floats, documents, lists, histogram, shown, _ = scratch
    log_T, log_Q, candidates = floats[0], floats[1], documents[0]
    D = s.size
    if K2 < D:
        arrivals(s, stream(key, u64(0)), log_T[:D])
        x, last, n = first_race(log_T[:D], K2, histogram, log_Q, documents[1], candidates)
    else:
        # Nobody can miss: only availability matters, and no clock needs to be drawn for it.
        x, last, n = -1, -1, 0
        for d in range(D):
            log_T[d] = f32(0.0) if s[d] > f32(-np.inf) else f32(np.inf)
            candidates[n] = d
            n += s[d] > f32(-np.inf)
    second_race(r, stream(key, u64(1)), candidates, n, floats[4], log_Q, shown, lists[0])
    for k in range(shown.size):
        lists[1, k] = w[shown[k]] if shown[k] >= 0 else f32(0.0)
    return x, last, n


@njit(cache=True, nogil=True, fastmath=MATHS)
def own_terms(s, r, docs, theta, delta, state, scratch, block):
    """What multiplies a document's own weight, for each of `docs`.

    Rows of `block`: 0, theta_1 + sum_k exp(-mu_d t_k) delta_k, the examination of d if it is a candidate; 1, its
    derivative by r_d; 2, the chance p_d; 3, lambda_d tau_d exp(-lambda_d tau_d).  Shapes: docs [n]; block [5, n].
    """
    floats, _, lists, _, shown, y_first = scratch
    x, last, _ = state
    log_T, K, n = floats[0], theta.size, docs.size
    value, slope, chance, density, score = block[0], block[1], block[2], block[3], block[4]
    for j in range(n):
        score[j], value[j], slope[j] = r[docs[j]], theta[0], f32(0.0)
    outside = min(_place_of(last, shown), K) if x >= 0 else K
    log_t = lists[2, :K]
    _without(outside, lists[0], log_t)
    _sweep(score, n, log_t, delta, value, slope, y_first)
    for j in range(n):
        d = docs[j]
        is_candidate = x < 0 or _arrives_before(log_T[d], d, log_T[x], x)
        if log_T[d] == f32(np.inf) or r[d] == f32(-np.inf):
            # Never a candidate, or a candidate whom the re-ranker never shows: its own weight counts for nothing.
            chance[j], density[j] = f32(0.0), f32(0.0)
        elif x < 0:
            chance[j], density[j] = f32(1.0), f32(0.0)
        else:
            chance[j], density[j] = chances(s[d], log_T[x] if is_candidate else log_T[last])
        # Who is shown sees the list without itself; a candidate also sees the last candidate, others do not.
        place = min(_place_of(d, shown), K) if is_candidate else outside
        if place != outside:
            _without(place, lists[0], log_t)
            value[j], slope[j] = theta[0], f32(0.0)
            _sweep(score[j : j + 1], 1, log_t, delta, value[j : j + 1], slope[j : j + 1], y_first)


@njit(cache=True, nogil=True, fastmath=MATHS)
def _joining(r_d, w_d, base, log_t, c, theta, delta):
    """V(d), the expected utility if `d` joins the list that was last seen by `_see`: its second clock integrated out."""
    value = base + theta[0] * w_d
    for k in range(theta.size):
        if delta[k] != f32(0.0) and log_t[k] < f32(np.inf):
            value += exp(-min(exp(r_d + log_t[k]), f32(100.0))) * (delta[k] * w_d + c[k])
    return value


@njit(cache=True, nogil=True, fastmath=MATHS)
def others_terms(r, theta, delta, w, state, scratch):
    """V(d) - V(b), less the part of d's own weight: what d changes by taking the place of b, the K2-th of the others.

    In `floats[2]`, and its derivative by r_d in `floats[3]`. First all documents as if outside, where b = l, then the
    candidates, where b = x, then those of them who are shown and see a list of their own.
    """
    floats, documents, lists, _, shown, y_first = scratch
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
    _sweep(r, D, log_t, c, value, slope, y_first)
    if x >= 0:
        base_inside = _see(K, lists[0], lists[1], theta, delta, log_t, c)
        V_inside = _joining(r[x], w_x, base_inside, log_t, c, theta, delta)
        if outside < K:
            inside[:n] = base_inside - V_inside
            inside_slope[:n] = f32(0.0)
            for j in range(n):
                score[j] = r[candidates[j]]
            _sweep(score, n, log_t, c, inside, inside_slope, y_first)
            for j in range(n):
                value[candidates[j]], slope[candidates[j]] = inside[j], inside_slope[j]
        else:
            for j in range(n):
                value[candidates[j]] += V_outside - V_inside
    base = _see(0, lists[0], lists[1], theta, delta, log_t, c)
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
            _sweep(r[d : d + 1], 1, log_t, c, value[d : d + 1], slope[d : d + 1], y_first)


@njit(cache=True, nogil=True, fastmath=MATHS)
def _add_others(s, state, scratch, grad_s, grad_r):
    """Adds the terms of `others_terms` to the gradients; to one of size 0 nothing."""
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
    for d in range(grad_s.size):
        grad_s[d] += density[d] * value[d]
    for d in range(grad_r.size):
        grad_r[d] += chance[d] * slope[d]


@njit(inline="always")
def others_matter(w, state, scratch):
    """Whether anybody on the list, or on the edge of the candidates, carries weight."""
    x, last, _ = state
    edge = x >= 0 and (w[x] != f32(0.0) or w[last] != f32(0.0))
    return edge or np.any(scratch[2][1] != f32(0.0))


@njit(cache=True, nogil=True)
def steps(theta):
    """delta_k = theta_{k+1} - theta_k with theta_{K+1} = 0."""
    delta = np.empty_like(theta)
    for k in range(theta.size):
        delta[k] = (theta[k + 1] if k + 1 < theta.size else f32(0.0)) - theta[k]
    return delta


@njit(cache=True, nogil=True, parallel=True)
def utility(s, r, keys, indptr, indices, weights, theta, K2, samples, chunks, value, grad_s, grad_r):
    """Value and both gradients of the two-stage utility, each the mean over the samples.

    Shapes: s, r, grad_s, grad_r [B, D]; keys, value [B]; indptr [B + 1]; indices, weights [nnz]; theta [K].
    The outputs come in as zeros; a gradient that comes in as [B, 0] is not wanted, and not computed.
    """
    B, D = s.shape
    delta = steps(theta)
    # Where an arrival changes something, on average over the ranks: the last place that counts if the curve is flat.
    places = np.abs(theta).sum() / np.abs(theta).max() if np.any(theta != f32(0.0)) else f32(1.0)
    wants_s, wants_r = grad_s.shape[1] > 0, grad_r.shape[1] > 0
    for chunk in prange(chunks):
        scratch = working_space(D, theta.size)
        w = np.zeros(D, np.float32)
        for q in range(chunk * B // chunks, (chunk + 1) * B // chunks):
            docs, own = indices[indptr[q] : indptr[q + 1]], weights[indptr[q] : indptr[q + 1]]
            block = np.empty((5, docs.size), np.float32)
            for j in range(docs.size):
                w[docs[j]] = own[j]
            for sample in range(samples):
                state = _draw(s[q], r[q], stream(keys[q], u64(sample)), K2, w, scratch)
                if (wants_s or wants_r) and others_matter(w, state, scratch):
                    others_terms(r[q], theta, delta, w, state, scratch)
                    _add_others(s[q], state, scratch, grad_s[q], grad_r[q])
                own_terms(s[q], r[q], docs, theta, delta, state, scratch, block)
                total = 0.0
                for j in range(docs.size):
                    if wants_s:
                        grad_s[q, docs[j]] += block[3, j] * own[j] * block[0, j]
                    if wants_r:
                        grad_r[q, docs[j]] += block[2, j] * own[j] * block[1, j]
                    total += block[2, j] * own[j] * block[0, j]
                value[q] += (total - value[q]) / (sample + 1)
            for j in range(docs.size):
                w[docs[j]] = f32(0.0)
            if samples > 1:
                grad_s[q] /= f32(samples)
                grad_r[q] /= f32(samples)
            if wants_s or wants_r:
                balance(s[q], r[q], K2, places, scratch, grad_s[q], grad_r[q])


@njit(cache=True, nogil=True, parallel=True)
def exposure(s, r, keys, indptr, indices, theta, K2, samples, chunks, moments, totals):
    """Sums over the samples of what the exposures are made of; rho_j(d) is the closed form of sample j, S_j = sum_d rho_j(d).

    moments: rho, rho^2, rho S for the documents in `indices`; totals: S, S^2 for each query. The outputs come in as zeros.
    Shapes: s, r [B, D]; keys [B]; indptr [B + 1]; indices [nnz]; theta [K]; moments [3, nnz]; totals [2, B].
    """
    B, D = s.shape
    delta = steps(theta)
    for chunk in prange(chunks):
        scratch = working_space(D, theta.size)
        w, block, everybody = np.zeros(D, np.float32), np.empty((5, D), np.float32), np.arange(D).astype(np.int32)
        for q in range(chunk * B // chunks, (chunk + 1) * B // chunks):
            for sample in range(samples):
                state = _draw(s[q], r[q], stream(keys[q], u64(sample)), K2, w, scratch)
                own_terms(s[q], r[q], everybody, theta, delta, state, scratch, block)
                S = 0.0
                for d in range(D):
                    block[0, d] *= block[2, d]
                    S += block[0, d]
                totals[0, q] += S
                totals[1, q] += S * S
                for j in range(indptr[q], indptr[q + 1]):
                    rho = np.float64(block[0, indices[j]])
                    moments[0, j] += rho
                    moments[1, j] += rho * rho
                    moments[2, j] += rho * S


@njit(cache=True, nogil=True, parallel=True)
def lists(s, r, rows, keys, K2, chunks, shown):
    """The list shown in one draw of both races, for each key; -1 where fewer documents are available.

    Shapes: s, r [B, D]; rows, keys [n]; shown [n, K] -> None, `shown` is filled.
    """
    n, D = rows.size, s.shape[1]
    for chunk in prange(chunks):
        scratch = working_space(D, shown.shape[1])
        w = np.zeros(D, np.float32)
        for i in range(chunk * n // chunks, (chunk + 1) * n // chunks):
            _draw(s[rows[i]], r[rows[i]], stream(keys[i], u64(0)), K2, w, scratch)
            shown[i] = scratch[4][: shown.shape[1]]


@njit(cache=True, nogil=True, parallel=True)
def best(s, r, K2, chunks, shown):
    """The most likely list of each query: the K2 highest by s, of them the K highest by r; -1 where too few are left.

    Shapes: s, r [B, D]; shown [B, K] -> None, `shown` is filled. Ties go to the lower number.
    """
    B, D = s.shape
    for chunk in prange(chunks):
        floats, documents, lists, histogram, _, _ = working_space(D, shown.shape[1])
        for q in range(chunk * B // chunks, (chunk + 1) * B // chunks):
            for d in range(D):
                floats[0, d] = -s[q, d]
            _, _, n = first_race(floats[0, :D], K2, histogram, floats[1], documents[1], documents[0])
            for j in range(n):
                floats[1, j] = -r[q, documents[0, j]]
            first_arrivals(documents[0], floats[1], n, shown[q], lists[0])
