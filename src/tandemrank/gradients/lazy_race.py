"""Candidates out of very many documents: the first race without drawing every clock.

    T_d ~ Exp(lambda_d),  lambda_d = exp(s_d);    the candidates are the K2 first arrivals (Plackett-Luce)

Only who arrives before a horizon T matters. *Head*: documents with s_d > b; they have clocks, as in the dense race.
*Tail*: the others, whose rates are at most e^b. All arrivals of the tail before T are a thinned Poisson stream: proposals
come with rate n e^b, each is a uniform document out of n, kept with chance lambda_d / e^b; the first kept proposal of a
document is its arrival. If fewer than K2 + 1 have arrived by T the race goes on with new clocks for all others, as clocks
have no memory. So the law is exact whatever b and T are: they are chosen, from a sample of the scores, to make it cheap.

The scores come as products of factors (`products.Products`), computed in blocks, once for all races; no [B, D] object exists.
Or as a tensor. Random numbers are a function of (key of the query, sample, stage, document or proposal).

Of one stage alone, the first K + 1 arrivals are its list, and the exposure of any document:

    rho(d) = E[ theta_1 + sum_k exp(-lambda_d t_k) (theta_{k+1} - theta_k) ]              (paper: eq:propensity_def)

t_k is the time of the k-th arrival among the documents other than d: whether d itself came early changes nothing about
them, so d's own clock integrates out.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank._base.random import GOLDEN, mix
from tandemrank.gradients._bridge import compiling, keys_for, over_rows
from tandemrank.gradients.products import GeneratorScores, Source, longer, refuse, room

# The numbers of the samples of documents, behind those of all races.
_PATTERN, _SECOND = 2**32 - 1, 2**32 - 2


@dataclass(frozen=True)
class Races:
    """The candidates of S independent races of each query, and a further sample of the documents.

    Shapes: candidates, s [B, S, K2 + 1], documents and scores, the last to arrive first, and behind the candidates who just
    missed, -1 where nobody is; count [B, S], how many are candidates; log_edge [B, S, 2], the times of the last candidate
    and of who missed, +inf where everybody is a candidate; log_tau [B], when K2 arrivals are expected; sample, sample_s
    [B, n], sample_n [B]: all who arrive before `wide` times tau in a race of its own.
    """

    candidates: NDArray[np.int32]
    s: NDArray[np.float32]
    count: NDArray[np.int64]
    log_edge: NDArray[np.float32]
    log_tau: NDArray[np.float32]
    sample: NDArray[np.int32]
    sample_s: NDArray[np.float32]
    sample_n: NDArray[np.int64]


@dataclass(frozen=True)
class Horizons:
    """Level b, rounding margin, horizons of the races (and of the sample), typical time.  Shapes: [B], [B], [B, U], [B]."""

    b: NDArray[np.float32]
    margin: NDArray[np.float32]
    log_T: NDArray[np.float32]
    log_tau: NDArray[np.float32]


def horizons(source: Source, K2: int, samples: int, wide: float | None) -> Horizons:
    """What makes the races cheap: functions of the scores alone."""
    from tandemrank.gradients._kernels import lazy_race as kernel

    B, units = source.B, samples + (wide is not None)
    b, margin, log_tau = (np.empty(B, np.float32) for _ in range(3))
    log_T = np.empty((B, units), np.float32)
    over_rows(
        kernel.set_horizons, B, source.X, source.Y, source.given, source.some(), K2, samples, wide or 1.0, b, margin, log_T,
        log_tau,
    )  # fmt: skip
    return Horizons(b, margin, log_T, log_tau)


def races(source: Source, K2: int, samples: int, keys: NDArray[np.uint64], wide: float | None = None) -> Races:
    """S independent races to K2 candidates and who just missed; with `wide` a sample of the documents too."""
    K2 = min(K2, source.D)
    with compiling():
        at = horizons(source, K2, samples, wide)
        own = _streams(keys, [*range(samples), *([_PATTERN] if wide is not None else [])])
        entries = _arrived(source, at, own, K2)
        candidates, s, log_t = _first(source, at, own, entries, K2, samples)
    missed = log_t[:, :, K2]
    # Two times that are equal in float32 are kept apart: who missed came later.
    last = np.where(missed < np.inf, np.minimum(log_t[:, :, 0], np.nextafter(missed, np.float32(-np.inf))), np.inf)
    return Races(
        candidates=candidates,
        s=s,
        count=(candidates[:, :, :K2] >= 0).sum(2),
        log_edge=np.stack([last, missed], 2).astype(np.float32),
        log_tau=at.log_tau,
        sample=entries[0][:, -1],
        sample_s=entries[1][:, -1],
        sample_n=entries[3][:, -1] if wide is not None else np.zeros(source.B, np.int64),
    )


def _streams(keys: NDArray[np.uint64], numbers: list[int]) -> NDArray[np.uint64]:
    """The keys of each query's races, as `stream` of the kernels makes them.  Shapes: keys [B], numbers [U] -> [B, U]."""
    return mix(keys[:, None] + GOLDEN * (np.array(numbers, np.uint64) + np.uint64(1)))


# Who arrived: documents, scores, log times [B, U, capacity], and how many of them there are [B, U].
Entries: TypeAlias = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]


def _arrived(source: Source, at: Horizons, keys: NDArray[np.uint64], K2: int) -> Entries:
    """All who arrive before the horizons: documents, scores, times [B, U, capacity] and how many there are [B, U]."""
    from tandemrank.gradients._kernels import lazy_race as kernel
    from tandemrank.gradients._kernels.products import BLOCK

    # Horizons are late where few of very many are wanted: what little a sample knows of these is doubted.
    shape, capacity = at.log_T.shape, min(source.D, 2 * (K2 + BLOCK))
    docs, filled = room((*shape, capacity), np.int32), np.zeros(shape, np.int64)
    scores, times = room((*shape, capacity), np.float32), room((*shape, capacity), np.float32)
    bad = np.full(source.B, -1, np.int64)
    for tile, start, part in source.blocks():
        if filled[tile : tile + len(part)].max(initial=0) + min(BLOCK, source.D - start) > capacity:
            capacity, used = min(source.D, 2 * capacity), int(filled.max())
            docs, scores, times = (
                longer(docs, capacity, used),
                longer(scores, capacity, used),
                longer(times, capacity, used),
            )
        over_rows(
            kernel.scan, len(part), part, tile, start, source.X, source.Y, at.b, at.margin, at.log_T, keys,
            docs, scores, times, filled, bad,
        )  # fmt: skip
    refuse(bad)
    return docs, scores, times, filled


Arrivals: TypeAlias = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]


def _first(source: Source, at: Horizons, keys: NDArray[np.uint64], entries: Entries, K: int, samples: int) -> Arrivals:
    """The K first arrivals of each query's first races, the last of them in front, and at place K who comes next.

    Shapes: keys [B, U] -> documents, scores, log times [B, S, K + 1]; -1, -inf and +inf where nobody is left.
    """
    from tandemrank.gradients._kernels import lazy_race as kernel

    shape = (source.B, samples, K + 1)
    first, s, log_t = np.empty(shape, np.int32), np.empty(shape, np.float32), np.empty(shape, np.float32)
    over_rows(kernel.finish, source.B, source.X, source.Y, source.given, at.log_T, keys, K, *entries, first, s, log_t)
    return first, s, log_t


def _in_order(arrived: Arrivals) -> Arrivals:
    first, s, log_t = arrived
    order = np.argsort(log_t, axis=2, kind="stable")
    return np.take_along_axis(first, order, 2), np.take_along_axis(s, order, 2), np.take_along_axis(log_t, order, 2)


def first_arrivals(source: Source, K: int, keys: NDArray[np.uint64]) -> Arrivals:
    """The K + 1 first arrivals of a race for each key, in their order: documents, scores, log times.

    The first K are a Plackett-Luce list. One pass over the scores serves all races of a query.
    Shapes: keys [B, U] -> three of [B, U, K + 1]; -1, -inf and +inf where nobody is left.
    """
    with compiling():
        at = horizons(source, K, keys.shape[1], None)
        arrived = _first(source, at, keys, _arrived(source, at, keys, K), K, keys.shape[1])
    return _in_order(arrived)


@dataclass(frozen=True)
class ListsAndSamples:
    """The K + 1 first arrivals of S races in their order, and two independent samples of the documents.

    A sample is all who arrive, by clocks of its own, before exp(log_reach), when `size` arrivals are expected.
    Shapes: first, log_t [B, S, K + 1]; log_reach [B]; sampled, sampled_s [B, 2, n], documents and scores, of which count
    [B, 2] are filled.
    """

    first: NDArray[np.int32]
    log_t: NDArray[np.float32]
    log_reach: NDArray[np.float32]
    sampled: NDArray[np.int32]
    sampled_s: NDArray[np.float32]
    count: NDArray[np.int64]


def lists_and_samples(source: Source, K: int, samples: int, size: int, keys: NDArray[np.uint64]) -> ListsAndSamples:
    """S races to a list of K, and two samples of about `size` documents each, from one pass over the scores."""
    size = min(size, source.D)
    with compiling():
        own, wide = horizons(source, K, samples, None), horizons(source, size, 2, None)
        reach = np.repeat(wide.log_tau[:, None], 2, 1)
        # Where nearly all are to be sampled there is no horizon, and the level is that of no race. Every clock is drawn then:
        # proposals up to `reach` at the level of the highest score would never end where scores differ much.
        level = np.where(wide.log_T[:, 0] > -np.inf, wide.b, np.float32(-np.inf))
        at = Horizons(level, wide.margin, np.concatenate([own.log_T, reach], 1), own.log_tau)
        streams = _streams(keys, [*range(samples), _SECOND, _PATTERN])
        entries = _arrived(source, at, streams, max(K, size))
        first, _, log_t = _in_order(_first(source, at, streams, entries, K, samples))
    return ListsAndSamples(
        first=first,
        log_t=log_t,
        log_reach=wide.log_tau,
        sampled=entries[0][:, samples:],
        sampled_s=entries[1][:, samples:],
        count=entries[3][:, samples:],
    )


def draw(scores: GeneratorScores, K: int, *, rows: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[np.int32]:
    """One Plackett-Luce list of K documents for each key; -1 where too few are available.

    Shapes: scores [B, D]; rows [n], the row of the scores for each list; keys [n] -> [n, K].
    """
    source = Source.of(scores)
    grid, place = by_row(rows, keys, source.B)
    found, _, _ = first_arrivals(source, K, grid)
    return found[rows, place, :K]


def by_row(rows: NDArray[np.int64], keys: NDArray[np.uint64], B: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The keys of each row side by side, filled up with zeros, and the place of each.  Shapes: [n], [n] -> [B, U], [n]."""
    order, count = np.argsort(rows, kind="stable"), np.bincount(rows, minlength=B)
    place = np.empty(len(rows), np.int64)
    place[order] = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    grid = np.zeros((B, max(1, int(count.max(initial=0)))), np.uint64)
    grid[rows, place] = keys
    return grid, place


def exposure(
    scores: GeneratorScores, theta: Tensor, documents: csr_matrix, *, samples: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The exposure of some documents and its standard error, in the order of the CSR pattern `documents`.

    The plain mean of the samples.  Shapes: scores [B, D]; theta [K]; documents [B, D] -> two of [nnz].
    """
    source, K = Source.of(scores), len(theta)
    keys = np.stack([keys_for(samples, generator) for _ in range(source.B)]) if source.B else np.empty((0, samples))
    first, _, log_t = first_arrivals(source, K, keys.astype(np.uint64))
    rows = np.repeat(np.arange(source.B), np.diff(documents.indptr))
    s = scores_of(source, rows, documents.indices)
    curve = theta.detach().double().numpy()
    steps = np.append(curve[1:], 0.0) - curve
    mean, square = np.zeros(len(rows)), np.zeros(len(rows))
    for i in range(samples):
        # With d among the first K the others' k-th arrival is the next entry from d's place on.
        before = np.logical_or.accumulate(first[rows, i, :K] == documents.indices[:, None], axis=1)
        t = np.where(before, log_t[rows, i, 1:], log_t[rows, i, :K]).astype(np.float64)
        left = np.exp(-np.exp(np.minimum(s[:, None] + t, 700.0)))
        rho = curve[0] + left @ steps
        mean += rho
        square += rho**2
    mean /= samples
    left_over = np.maximum(square / samples - mean**2, 0.0)
    error = np.sqrt(left_over / (samples - 1)) if samples > 1 else np.full(len(rows), np.nan)
    available = s > -np.inf
    rho, its_error = (torch.from_numpy(np.where(available, x, 0.0)).float() for x in (mean, error))
    return rho, its_error


def scores_of(source: Source, rows: NDArray[np.int64], documents: NDArray[np.integer]) -> NDArray[np.float64]:
    """The scores of some documents, one by one.  Shapes: rows, documents [m] -> [m]."""
    if source.given.size:
        given: NDArray[np.float64] = source.given[rows, documents].astype(np.float64)
        return given
    found: NDArray[np.float64] = np.einsum("nf,nf->n", source.X[rows], source.Y[documents]).astype(np.float64)
    return found
