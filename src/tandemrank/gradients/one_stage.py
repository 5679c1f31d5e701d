"""One stage over very many documents: lists and exposure from the first arrivals of a lazy race.

    rho(d) = E[ theta_1 + sum_k exp(-lambda_d t_k) (theta_{k+1} - theta_k) ]              (paper: eq:propensity_def)

t_k is the time of the k-th arrival among the documents other than d: whether d itself came early changes nothing about
them, so d's own clock integrates out. K + 1 arrivals are enough for all documents.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank.gradients import lazy_race
from tandemrank.gradients._bridge import keys_for
from tandemrank.gradients.products import GeneratorScores, Source


def draw(scores: GeneratorScores, K: int, *, rows: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[np.int32]:
    """One Plackett-Luce list of K documents for each key; -1 where too few are available.

    Shapes: scores [B, D]; rows [n], the row of the scores for each list; keys [n] -> [n, K].
    """
    source = Source.of(scores)
    grid, place = by_row(rows, keys, source.B)
    found, _, _ = lazy_race.first_arrivals(source, K, grid)
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
    first, _, log_t = lazy_race.first_arrivals(source, K, keys.astype(np.uint64))
    rows = np.repeat(np.arange(source.B), np.diff(documents.indptr))
    s = _scores_of(source, rows, documents.indices)
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
    return torch.from_numpy(np.where(available, mean, 0.0)).float(), torch.from_numpy(
        np.where(available, error, 0.0)
    ).float()


def _scores_of(source: Source, rows: NDArray[np.int64], documents: NDArray[np.integer]) -> NDArray[np.float64]:
    if source.given.size:
        given: NDArray[np.float64] = source.given[rows, documents].astype(np.float64)
        return given
    found: NDArray[np.float64] = np.einsum("nf,nf->n", source.X[rows], source.Y[documents]).astype(np.float64)
    return found
