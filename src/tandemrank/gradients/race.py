"""Two-stage exposure and utility with their gradients, by a race of exponential clocks (docs/explanation/race.md).

Plackett-Luce is a race: document d arrives at T_d ~ Exp(rate exp(s_d)), and the order of arrival is the ranking. The
candidates are the K2 first arrivals; the shown list is the K first arrivals, among the candidates, of a second race with
the re-ranker's scores. Each score moves one clock only, so with all other clocks fixed a document's own two clocks
integrate out in closed form: an unbiased estimate of value, exposure and both gradients, sharp with one sample.

Equations: 2stage-true-utility and cltr-obj-2s (value), cand-grad and ranker-grad (gradients), eq:propensity_def (K2 = D).

Clocks come from counter-based random numbers, so neither threads nor the split of a batch change a result. The same law as
whole arrays, readable, is the reference that the compiled kernel is tested against (`tests/race_oracle.py`).
"""

from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank.errors import ConfigError
from tandemrank.gradients._bridge import (
    Randomness,
    Weights,
    checked_candidates,
    checked_weights,
    compiling,
    dense_utility,
    entries,
    keys_for,
    over_rows,
    row_major,
)

PAIRS = 200_000  # whose ratios are taken at once


def utility(
    s_c: Tensor,
    s_r: Tensor,
    w: Weights,
    theta: Tensor,
    K2: int,
    *,
    samples: int = 1,
    generator: Randomness,
) -> Tensor:
    """Two-stage utility of each query, differentiable in both stages' scores.

        U = sum_d rho_cr(d) w_d,   rho_cr(d) = E[theta_{k(d)}]            (paper: cltr-obj-2s, 2stage-true-utility)

    Its gradient is the race gradient: unbiased, one sample is usually enough. K2 >= D is the one-stage case, where the
    generator's scores only say who is available. A generator's score of -inf means "not available", a re-ranker's
    "a candidate, but never shown"; weights may be negative.
    Shapes: s_c, s_r [B, D]; w [B, D], a tensor or a scipy CSR matrix; theta [K] -> [B].
    """
    K2 = checked_candidates(s_c, s_r, theta, K2, samples)
    if not torch.is_grad_enabled() or not (s_c.requires_grad or s_r.requires_grad):
        return _value(s_c, s_r, w, theta, K2, samples, generator)
    from tandemrank.gradients._kernels import race as kernel

    return dense_utility(kernel.utility, s_c, s_r, w, theta, K2, samples, generator)


def _value(s_c: Tensor, s_r: Tensor, w: Weights, theta: Tensor, K2: int, samples: int, generator: Randomness) -> Tensor:
    """The same number where nobody wants a gradient, by exposures: the other kernel takes ten seconds to compile."""
    weights, keys = checked_weights(w, s_c.shape), keys_for(len(s_c), generator)
    _, moments, _ = _moments(s_c, s_r, weights, theta, K2, samples, keys)
    terms = csr_matrix((moments[0] * weights.data / samples, weights.indices, weights.indptr), weights.shape)
    return torch.from_numpy(np.asarray(terms.sum(1)).ravel()).to(s_c)


def exposure(
    s_c: Tensor,
    s_r: Tensor,
    theta: Tensor,
    K2: int,
    *,
    samples: int,
    generator: torch.Generator,
    documents: csr_matrix | None = None,
) -> tuple[Tensor, Tensor]:
    """The exposure of each document and its standard error.

        rho_cr(d) = E[ p_d (theta_1 + sum_k exp(-mu_d t_k) (theta_{k+1} - theta_k)) ]     (paper: 2stage-true-utility)

    With K2 = D it is the propensity of a one-stage policy (paper: eq:propensity_def). The samples' mean is scaled so that
    the exposures of a query sum to theta_1 + ... + theta_K, as they must: most of the noise is common to all documents.
    Shapes: s_c, s_r [B, D]; theta [K] -> two of [B, D], or of [nnz] where `documents`, a CSR pattern [B, D], is given.
    The standard error is NaN for one sample. A list of one out of everything needs none: rho(d) = theta_1 softmax(s_r)_d.
    """
    K2, keys = checked_candidates(s_c, s_r, theta, K2, samples), keys_for(len(s_c), generator)
    if documents is not None and not isinstance(documents, csr_matrix):
        raise ConfigError(f"documents must be a CSR matrix; got {type(documents).__name__}. Its entries are the order.")
    if documents is not None and documents.shape != s_c.shape:
        raise ConfigError(f"documents must have the shape of the scores, {tuple(s_c.shape)}, not {documents.shape}.")
    if len(theta) == 1 and s_c.shape[1] <= K2:
        return _of_the_first(s_c.detach(), s_r.detach(), theta, documents)
    indptr, moments, totals = _moments(s_c, s_r, documents, theta, K2, samples, keys)
    mean, error = ratio_estimate(indptr, moments, totals, _places_filled(s_c, s_r, theta, K2), samples, theta)
    shape = s_c.shape if documents is None else mean.shape
    return mean.to(s_c).reshape(shape), error.to(s_c).reshape(shape)


def _of_the_first(s_c: Tensor, s_r: Tensor, theta: Tensor, documents: csr_matrix | None) -> tuple[Tensor, Tensor]:
    """The exposure of a list of one, where everything that is available is a candidate: exact, so its error is 0."""
    scores = s_r.double().masked_fill(s_c == -torch.inf, -torch.inf)
    rho = theta.detach().double() * torch.softmax(scores, 1).nan_to_num()  # nothing is available: nothing is shown
    if documents is not None:
        rows = np.repeat(np.arange(len(s_r)), np.diff(documents.indptr))
        rho = rho[torch.from_numpy(rows), torch.from_numpy(documents.indices.astype(np.int64))]
    return rho.to(s_r), torch.zeros_like(rho).to(s_r)


def draw(
    s_c: Tensor, s_r: Tensor, K2: int, K: int, *, rows: NDArray[np.int64], keys: NDArray[np.uint64]
) -> NDArray[np.int32]:
    """One shown list for each key: K2 candidates by the first race, K of them by the second; -1 where too few are left.

    Shapes: s_c, s_r [B, D]; rows [n], the row of the scores for each list; keys [n] -> [n, K] int32.
    """
    from tandemrank.gradients._kernels import draws as kernel

    shown, of, by = np.empty((len(rows), K), np.int32), rows.astype(np.int64), keys.astype(np.uint64)
    with compiling():
        over_rows(kernel.lists, len(rows), row_major(s_c), row_major(s_r), of, by, K2, shown)
    return shown


def most_likely(s_c: Tensor, s_r: Tensor, K2: int, K: int) -> NDArray[np.int32]:
    """The most likely list of each query: the K2 highest generator scores, of them the K highest re-ranker scores.

    Ties go to the lower document number; -1 where fewer than K documents are available. It is NumPy's: every `learn` needs
    it, and a kernel would take seconds to compile.
    Shapes: s_c, s_r [B, D] -> [B, K].
    """
    candidates = _highest(row_major(s_c), K2)
    scores = _at(row_major(s_r), candidates)
    places = _highest(scores, K)
    order = np.argsort(-_at(scores, places), axis=1, kind="stable")
    found = np.take_along_axis(places, order, 1)
    shown = np.where(found < 0, np.int32(-1), np.take_along_axis(candidates, found, 1))
    return np.pad(shown, ((0, 0), (0, K - shown.shape[1])), constant_values=-1)


def _at(scores: NDArray[np.float32], places: NDArray[np.int32]) -> NDArray[np.float32]:
    """The scores at some places, -inf where there is no place."""
    return np.where(places < 0, np.float32(-np.inf), np.take_along_axis(scores, places, 1))


def _highest(scores: NDArray[np.float32], n: int) -> NDArray[np.int32]:
    """The places of the n highest of each row in ascending order, of equals the first; -1 behind them.

    Shapes: scores [B, D] -> [B, n].
    """
    B, D = scores.shape
    found = scores > -np.inf
    if n < D:
        found &= scores >= np.partition(scores, D - n, axis=1)[:, [D - n]]
        for q in np.flatnonzero(found.sum(1) > n):
            ties = np.flatnonzero(scores[q] == scores[q, found[q]].min())
            found[q, ties[n - found[q].sum() :]] = False
    row, place = np.nonzero(found)
    highest = np.full((B, min(n, D)), -1, np.int32)
    highest[row, np.arange(len(row)) - np.searchsorted(row, np.arange(B))[row]] = place
    return highest


def ratio_estimate(
    indptr: NDArray[np.int64],
    moments: NDArray[np.float64],
    totals: NDArray[np.float64],
    known: Tensor,
    n: int,
    theta: Tensor,
) -> tuple[Tensor, Tensor]:
    """known * sum(rho) / sum(S), and its standard error by the residuals rho_j - (sum(rho) / sum(S)) S_j.

    Where the sum of the exposures is not known in advance (NaN) it is the plain mean with its own standard error.
    Shapes: indptr [B + 1], the pairs of each query; moments [3, nnz], the sums of rho, rho^2, rho S; totals [2, B], of S and
    S^2; known [B] -> [nnz], [nnz].
    """
    mean, error = torch.empty(moments.shape[1], dtype=torch.float64), torch.empty(moments.shape[1], dtype=torch.float64)
    row = np.repeat(np.arange(len(indptr) - 1, dtype=np.int32), np.diff(indptr))
    for first in range(0, len(row), PAIRS):
        own = slice(first, first + PAIRS)
        at = row[own].astype(np.int64)
        mean[own], error[own] = _ratio(
            torch.from_numpy(moments[:, own]), torch.from_numpy(totals[:, at]), known[torch.from_numpy(at)], n
        )
    # Scaling up the mean of few samples can pass the largest examination, which no exposure does.
    return mean.clamp_(max=float(theta.max())), error


def _ratio(moments: Tensor, totals: Tensor, known: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The same of some pairs.  Shapes: moments [3, m]; totals [2, m]; known [m] -> [m], [m]."""
    rho, rho_rho, rho_S = moments
    S, S_S = totals
    plain = ~(known > 0) | (S <= 0)
    ratio = torch.where(plain, 0.0, rho / S.where(S > 0, 1.0))
    scale = torch.where(plain, 1.0, known * n / S.where(S > 0, 1.0))
    squares = torch.where(plain, rho_rho - rho * rho / n, rho_rho - 2 * ratio * rho_S + ratio**2 * S_S)
    error = scale * (squares.clamp(min=0) / (n * (n - 1))).sqrt() if n > 1 else torch.full_like(rho, torch.nan)
    return scale * rho / n, error


def _places_filled(s_c: Tensor, s_r: Tensor, theta: Tensor, K2: int) -> Tensor:
    """What the exposures of each query sum to: the curve over the places that are surely filled, NaN if that varies.

    Shapes: s_c, s_r [B, D] -> [B].
    """
    available = s_c > -torch.inf
    places = available.sum(1).clamp(max=min(K2, len(theta)))
    total = torch.cat([theta.new_zeros(1), theta.detach().cumsum(0)]).double()[places]
    return total.where(~(available & (s_r == -torch.inf)).any(1), torch.nan)


Moments: TypeAlias = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]


def _moments(
    s_c: Tensor,
    s_r: Tensor,
    documents: csr_matrix | None,
    theta: Tensor,
    K2: int,
    samples: int,
    keys: NDArray[np.uint64],
) -> Moments:
    """Bounds of the rows of pairs; the sums over the samples of (rho, rho^2, rho S) [3, nnz] and of (S, S^2) [2, B]."""
    from tandemrank.gradients._kernels import race as kernel

    s, r, (B, D) = row_major(s_c), row_major(s_r), s_c.shape
    if documents is None:
        indptr, indices = np.arange(B + 1, dtype=np.int64) * D, np.tile(np.arange(D, dtype=np.int32), B)
    else:
        indptr, indices, _ = entries(documents)
    moments, totals = np.zeros((3, len(indices))), np.zeros((2, B))
    with compiling():
        over_rows(kernel.exposure, B, s, r, keys, indptr, indices, row_major(theta), K2, samples, moments, totals)
    return indptr, moments, totals
