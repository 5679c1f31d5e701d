"""Lists of the race: many of several queries, one at a time for live answers, and the most likely ones.

Many lists of the same scores are drawn among those alone who may arrive early (`draws.early_race`).
"""

import numpy as np
from numba import prange

from tandemrank.gradients._kernels.compiled import MATHS, kernel
from tandemrank.gradients._kernels.draws import (
    WORTH,
    arrivals,
    draw,
    early_race,
    first_arrivals,
    first_race,
    latest,
    scratch_space,
    second_race,
    stream,
)
from tandemrank.gradients._kernels.float32 import f32, log, minus_log_1m, u32, u64, uniform


@kernel(parallel=True)
def lists(s, r, rows, keys, K2, chunks, shown):
    """The list shown in one draw of both races, for each key; -1 where fewer documents are available.

    Many lists of one row in succession are drawn faster.
    Shapes: s, r [B, D]; rows, keys [n]; shown [n, K] -> None, `shown` is filled.
    """
    n, D = rows.size, s.shape[1]
    for chunk in prange(chunks):
        scratch = scratch_space(D, shown.shape[1])
        floats, documents, times = scratch[0], scratch[1], scratch[2][0]
        w, below, order, candidates = (
            np.zeros(D, np.float32),
            np.empty(D, np.float32),
            np.empty(D + 1, np.int32),
            np.empty(D, np.int32),
        )
        start, stop, limit = chunk * n // chunks, (chunk + 1) * n // chunks, f32(np.inf)
        for i in range(start, stop):
            row, key, found = rows[i], stream(keys[i], u64(0)), -1
            if i > start and rows[i - 1] == row and limit < np.inf:
                found, _ = early_race(
                    s[row], below, limit, stream(key, u64(0)), K2, floats, documents, order, candidates
                )
            if found >= 0:
                second_race(r[row], stream(key, u64(1)), candidates, found, floats[1], floats[2], shown[i], times)
                continue
            x, _, _ = draw(s[row], r[row], key, K2, w, scratch)
            shown[i] = scratch[4][: shown.shape[1]]
            limit = f32(np.inf)
            if x >= 0 and i + WORTH < stop and rows[i + WORTH] == row:
                limit = latest(s[row], floats[0, x], K2, below)


@kernel()
def one_first_race(s, key, is_drawn, K2, below, limit, floats, documents, order, histogram, candidates):
    """The candidates of one key, in the order of their numbers, on the calling thread and in space that is there.

    Returns their number and the time of who just missed. `below` and `limit`, of `latest`, never change a result; without them
    (an empty `below`) all times are computed. Without chance (`is_drawn`) the K2 highest scores.
    Shapes: s [D]; below [D] or [0]; floats [3, D + 1], documents [2, D + 1], order [D + 1]; candidates [K2], filled.
    """
    D = s.size
    if K2 >= D:
        n = 0
        for d in range(D):
            if s[d] > f32(-np.inf):
                candidates[n] = d
                n += 1
        return n, f32(np.inf)
    first = stream(stream(key, u64(0)), u64(0))
    if is_drawn and below.size == D:
        n, missed = early_race(s, below, limit, first, K2, floats, documents, order, candidates)
        if n >= 0:
            return n, missed
    log_T = floats[0, :D]
    if is_drawn:
        arrivals(s, first, log_T)
    else:
        for d in range(D):
            log_T[d] = f32(0.0) - s[d]  # never -0, which comes before 0 by its bits
    x, _, n = first_race(log_T, K2, histogram, floats[1], documents[0], documents[1])
    for j in range(n):
        candidates[j] = documents[1, j]
    return n, log_T[x] if x >= 0 else f32(np.inf)


@kernel(fastmath=MATHS)
def one_second_race(score, key, is_drawn, candidates, log_Q, times, shown):
    """The list of one key, given its candidates and their scores; -1 where there are too few.

    Shapes: score, candidates [n]; log_Q [n or more]; times, shown [K], `shown` is filled.
    """
    n = candidates.size
    second = stream(stream(key, u64(0)), u64(1))
    low, high = u32(second & u64(0xFFFFFFFF)), u32(second >> u64(32))
    if is_drawn:
        for j in range(n):
            log_Q[j] = uniform(candidates[j], low, high)
        for j in range(n):
            log_Q[j] = log(minus_log_1m(log_Q[j])) - score[j]
    else:
        for j in range(n):
            log_Q[j] = -score[j]
    first_arrivals(candidates, log_Q, n, shown, times)


@kernel()
def one_list(s, r, key, is_drawn, K2, below, limit, floats, documents, order, histogram, candidates, times, shown):
    """Both races of one key, where the re-ranker's scores of everything are there. Returns the time of who just missed.

    Shapes: as of `one_first_race` and `one_second_race`; r [D].
    """
    n, missed = one_first_race(s, key, is_drawn, K2, below, limit, floats, documents, order, histogram, candidates)
    for j in range(n):
        floats[0, j] = r[candidates[j]]
    one_second_race(floats[0, :n], key, is_drawn, candidates[:n], floats[1], times, shown)
    return missed


@kernel(parallel=True)
def best(s, r, K2, chunks, shown):
    """The most likely list of each query: the K2 highest by s, of them the K highest by r; -1 where too few are left.

    Shapes: s, r [B, D]; shown [B, K] -> None, `shown` is filled. Ties go to the lower number.
    """
    B, D = s.shape
    for chunk in prange(chunks):
        floats, documents, lists, histogram, _, _ = scratch_space(D, shown.shape[1])
        for q in range(chunk * B // chunks, (chunk + 1) * B // chunks):
            for d in range(D):
                floats[0, d] = f32(0.0) - s[q, d]  # never -0, which comes before 0 by its bits
            _, _, n = first_race(floats[0, :D], K2, histogram, floats[1], documents[1], documents[0])
            for j in range(n):
                floats[1, j] = -r[q, documents[0, j]]
            first_arrivals(documents[0], floats[1], n, shown[q], lists[0])
