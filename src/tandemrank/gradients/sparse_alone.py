"""One stage alone over many documents: its lists, its exposure, and its utility with a gradient (docs/explanation/race.md).

The first K arrivals of its race are its list. A document's own clock integrates out: whether it came early changes nothing
about the others. So one race gives the exposure of any document,

    rho(d) = E[ theta_1 + sum_k exp(-lambda_d t_k) (theta_{k+1} - theta_k) ]              (paper: eq:propensity_def)

and the race gradient on a sample of the documents, unbiased. With t_k and b_k the time and the document of the k-th arrival
among the others, and steps delta_k = alpha_k - alpha_{k+1} of the weights of the ranks,

    U   = sum_d w_d sum_k delta_k (1 - exp(-lambda_d t_k))
    g_d = sum_k delta_k lambda_d t_k exp(-lambda_d t_k) (w_d - w_{b_k})

Documents with weight are always looked at, others with a chance pi_d = 1 - exp(-lambda_d tau), by clocks of their own that
no race sees: x_d = 1 / pi_d for who is looked at, x_d = 1 for the weighted, 0 for the rest. The gradients of a query sum to 0
in expectation, and what the sum of a sample is instead is taken out by a pattern h, on the same sample:

    x_d (g_d - c h_d (g_d + sum_{e != d} x_e g_e)),           h_d = y exp(-y),  y = lambda_d t,   1 / c ~ sum_d h_d

Who is looked at is independent from document to document, so the bracket without d's own chance is independent of x_d: its mean
is the sum of all gradients, whose mean is 0. Pulls and pushes thus cancel document by document, as in the dense race. c comes
from a second sample, independent of both; what is still left of the sum has mean 0 given that sample, and is taken out by its
pattern, c h: the gradients of a query then sum to 0 in every sample.

t, when so many are expected as the ranks count for, is found from the same few documents as in the dense race. Any t is
unbiased; but a query steps along the *direction* of its gradient, and the mean direction depends on what noise is taken out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank.errors import ConfigError, PolicyError
from tandemrank.gradients import lazy_race
from tandemrank.gradients._bridge import (
    Randomness,
    checked_weights,
    compiling,
    entries,
    keys_for,
    over_rows,
    row_major,
    with_gradients,
)
from tandemrank.gradients.products import GeneratorScores, Source

_SAMPLES = 2**32 - 2, 2**32 - 1  # the numbers of the samples of documents, behind those of all races
SIZE = 500  # documents that are looked at beside the weighted ones, about: with fewer the noise grows, with more little falls


def draw(scores: GeneratorScores, K: int, *, rows: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[np.int32]:
    """One Plackett-Luce list of K documents for each key; -1 where too few are available.

    Shapes: scores [B, D]; rows [n], the row of the scores for each list; keys [n] -> [n, K].
    """
    source = Source.of(scores)
    grid, place = by_row(rows, keys, source.B)
    found = lazy_race.races(source, K, grid).in_order().first
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
    source = Source.of(scores)
    keys = np.stack([keys_for(samples, generator) for _ in range(source.B)]) if source.B else np.empty((0, samples))
    drawn = lazy_race.races(source, len(theta), keys.astype(np.uint64)).in_order()
    mean, square = np.zeros(documents.nnz), np.zeros(documents.nnz)
    for rho in _exposures(source, drawn, documents, theta):
        mean += rho / samples
        square += rho**2 / samples
    variance = np.maximum(square - mean**2, 0.0)
    error = np.sqrt(variance / (samples - 1)) if samples > 1 else np.where(mean > 0, np.nan, 0.0)
    return torch.from_numpy(mean).float(), torch.from_numpy(error).float()


def _exposures(
    source: Source, drawn: lazy_race.LazyRaces, documents: csr_matrix, theta: Tensor
) -> Iterator[NDArray[np.float64]]:
    """What each race says of the exposure of some documents.  Shapes: documents CSR [B, D]; theta [K] -> [nnz] each."""
    rows, docs = np.repeat(np.arange(source.B), np.diff(documents.indptr)), documents.indices
    s = source.at(rows, docs)
    available, rate = s > -np.inf, np.where(s > -np.inf, s, 0.0).astype(np.float64)[:, None]
    curve = theta.detach().double().numpy()
    steps = curve - np.append(curve[1:], 0.0)
    counts, K = np.flatnonzero(steps), drawn.first.shape[2] - 1
    pairs = rows * source.D + docs
    for first, log_t in zip(drawn.first.swapaxes(0, 1), drawn.log_t.swapaxes(0, 1), strict=True):
        # With d among the first K the others' k-th arrival is the next entry from d's place on.
        arrived = (np.arange(source.B)[:, None] * source.D + first[:, :-1]).ravel()
        arrived[first[:, :-1].ravel() < 0] = -1
        order = np.argsort(arrived, kind="stable")
        at = order[np.minimum(np.searchsorted(arrived, pairs, sorter=order), len(order) - 1)]
        place = np.where(arrived[at] == pairs, at % K, K)
        t = log_t[rows[:, None], counts + (place[:, None] <= counts)]
        yield np.where(available, -np.expm1(-np.exp(np.minimum(rate + t, 700.0))) @ steps[counts], 0.0)


@dataclass(frozen=True)
class AlonePlan:
    """The documents to score with gradient, filled up with one of their row, the gradient by their scores, and the value.

    Shapes: documents, gradient [B, M]; value [B].
    """

    documents: Tensor
    gradient: NDArray[np.float32]
    value: NDArray[np.float64]


def plan(
    scores: GeneratorScores,
    w: csr_matrix,
    alpha: Tensor,
    *,
    samples: int = 1,
    size: int = SIZE,
    generator: Randomness,
) -> AlonePlan:
    """Races and samples of each query's scores.  Shapes: scores [B, D], as products or given; w CSR [B, D]; alpha [n]."""
    from tandemrank.gradients._kernels import sparse_race as kernel

    source = Source.of(scores)
    if samples < 1 or size < 1 or len(alpha) < 1:
        raise ConfigError(f"at least 1 sample, document and rank are needed; got {samples}, {size}, {len(alpha)}.")
    w = checked_weights(w, (source.B, source.D))
    keys = keys_for(source.B, generator)
    own, others = lazy_race.streams(keys, range(samples)), lazy_race.streams(keys, _SAMPLES)
    drawn = lazy_race.races(source, len(alpha), own, others, size).in_order()
    room = max(1, int(np.diff(w.indptr).max(initial=0)) + int(drawn.count.max(initial=0, axis=0).sum()))
    documents, gradient = np.zeros((source.B, room), np.int64), np.zeros((source.B, room), np.float32)
    listed = np.zeros(source.B, np.int64)
    with compiling():
        over_rows(
            kernel.alone, source.B, source.arrays, *entries(w), drawn.first, drawn.log_t, row_major(alpha),
            drawn.log_reach, drawn.sampled, drawn.sampled_s, drawn.count, documents, gradient, listed,
        )  # fmt: skip
    columns = max(1, int(listed.max(initial=0)))
    real, by = (
        torch.from_numpy(np.ascontiguousarray(documents[:, :columns])),
        np.ascontiguousarray(gradient[:, :columns]),
    )
    rho = sum(_exposures(source, drawn, w, alpha)) / samples
    rows = np.repeat(np.arange(source.B), np.diff(w.indptr))
    return AlonePlan(real, by, np.bincount(rows, rho * w.data, source.B).astype(np.float64))


def utility(s: Tensor, plan: AlonePlan) -> Tensor:
    """The utility of each query, differentiable in the scores of the plan's documents, which must be those it was made for.

    Shapes: s [B, M], of plan.documents -> [B].
    """
    if s.shape != plan.documents.shape:
        raise PolicyError(
            f"scores must be those of plan.documents, {tuple(plan.documents.shape)}; got {tuple(s.shape)}."
        )
    return with_gradients(plan.value, (s, plan.gradient))
