"""The utility of one stage alone over very many documents, with the race gradient on a sample of them, unbiased (docs/race.md).

A document's own clock integrates out. With t_k and b_k the time and the document of the k-th arrival among the others, and
steps delta_k = alpha_k - alpha_{k+1} of the weights of the ranks, one race gives

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
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank.errors import ConfigError, PolicyError
from tandemrank.gradients import lazy_race
from tandemrank.gradients._bridge import Randomness, differentiable, keys_for
from tandemrank.gradients.products import GeneratorScores, Source

SIZE = 500  # documents that are looked at beside the weighted ones, about: with fewer the noise grows, with more little falls
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """The documents to score with gradient, filled up with one of their row, the gradient by their scores, and the value.

    Shapes: documents, gradient [B, M]; value [B].
    """

    documents: Tensor
    gradient: Tensor
    value: Tensor


def plan(
    scores: GeneratorScores,
    w: csr_matrix,
    alpha: Tensor,
    *,
    samples: int = 1,
    size: int = SIZE,
    generator: Randomness,
) -> Plan:
    """Races and samples of each query's scores.  Shapes: scores [B, D], as products or given; w CSR [B, D]; alpha [n]."""
    source = Source.of(scores)
    if w.shape != (source.B, source.D):
        raise ConfigError(f"weights must have the shape of the scores, {(source.B, source.D)}, not {w.shape}.")
    if samples < 1 or size < 1 or len(alpha) < 1:
        raise ConfigError(f"at least 1 sample, document and rank are needed; got {samples}, {size}, {len(alpha)}.")
    if not w.has_canonical_format:
        w = w.copy()
        w.sum_duplicates()
    curve = alpha.detach().double().numpy()
    drawn = lazy_race.lists_and_samples(source, len(curve), samples, size, keys_for(source.B, generator))
    looked_at, other = (_list_of(source, w, drawn, number) for number in range(2))
    value, g = _race_gradient(looked_at, w, drawn, curve)
    # When so many are expected as the ranks count for: the pattern of the pushes.
    log_t = drawn.log_tau + np.log(max(abs(curve).sum() / max(abs(curve).max() * len(curve), 1e-300), 1e-300))
    pattern = other.x * _pattern(other, log_t)
    mass = _summed(other, pattern)
    c = np.divide(1.0, mass, out=np.zeros_like(mass), where=mass > 0)
    g = _without_sum(looked_at, g, _pattern(looked_at, log_t), c)
    rest = -(c * _summed(looked_at, g))[other.row] * pattern
    return _padded([(looked_at, g), (other, rest)], value)


def utility(s: Tensor, plan: Plan) -> Tensor:
    """The utility of each query, differentiable in the scores of the plan's documents, which must be those it was made for.

    Shapes: s [B, M], of plan.documents -> [B].
    """
    if s.shape != plan.documents.shape:
        raise PolicyError(
            f"scores must be those of plan.documents, {tuple(plan.documents.shape)}; got {tuple(s.shape)}."
        )
    return differentiable(s, s.detach(), lambda s, _: (plan.value.to(s), plan.gradient.to(s), None))


@dataclass(frozen=True)
class _List:
    """Documents of the queries one after the other: query, document, score, weight and x.  Shapes: each [m]; B queries."""

    B: int
    row: NDArray[np.int64]
    document: NDArray[np.int64]
    s: Floats
    w: Floats
    x: Floats


def _list_of(source: Source, w: csr_matrix, drawn: lazy_race.ListsAndSamples, number: int) -> _List:
    """The weighted documents and those of a sample, each once."""
    row, document = drawn.sample(number)
    weighted = np.repeat(np.arange(source.B), np.diff(w.indptr)) * source.D + w.indices
    key = np.unique(np.concatenate([weighted, row * source.D + document]))
    row, document = key // source.D, key % source.D
    weight, is_weighted = np.zeros(len(key)), np.zeros(len(key), bool)
    at = np.searchsorted(key, weighted)
    weight[at], is_weighted[at] = w.data, True
    s = lazy_race.scores_of(source, row, document)
    chance = -np.expm1(-_rate(s, drawn.log_reach[row]))
    return _List(
        source.B, row, document, s, weight, np.where(is_weighted, 1.0, 1.0 / np.where(is_weighted, 1.0, chance))
    )


def _rate(s: Floats, log_t: Floats) -> Floats:
    """lambda t, at most 700; 0 for what is not available, whatever the time."""
    available = s > -np.inf
    found: Floats = np.where(available, np.exp(np.minimum(np.where(available, s, 0.0) + log_t, np.log(700.0))), 0.0)
    return found


def _race_gradient(own: _List, w: csr_matrix, drawn: lazy_race.ListsAndSamples, alpha: Floats) -> tuple[Floats, Floats]:
    """Value [B] and g [m], the means over the races."""
    first, log_t = drawn.first, drawn.log_t
    B, S, n = first.shape
    delta = alpha - np.append(alpha[1:], 0.0)
    w_first = _entries(w, np.repeat(np.arange(B), S * n), first.ravel()).reshape(first.shape)
    value, g = np.zeros(B), np.zeros(len(own.row))
    for i in range(S):
        place = _places(own, first[:, i], w.shape[1])
        for k in np.flatnonzero(delta):
            # With d among the first k the others' k-th arrival is one entry further on.
            at = k + (place <= k)
            y = _rate(own.s, log_t[own.row, i, at])
            left = np.exp(-y)
            value += delta[k] / S * _summed(own, own.w * (1.0 - left))
            g += delta[k] / S * y * left * (own.w - w_first[own.row, i, at])
    return value, g


def _places(own: _List, first: NDArray[np.int32], D: int) -> NDArray[np.int64]:
    """The place of each document in its query's list, the list's length where it is not.  Shapes: first [B, n] -> [m]."""
    B, n = first.shape
    entry = (np.arange(B)[:, None] * D + first).ravel()[first.ravel() >= 0]
    at = np.searchsorted(own.row * D + own.document, entry)
    at = np.minimum(at, len(own.row) - 1)
    is_here = own.row[at] * D + own.document[at] == entry if len(own.row) else np.zeros(len(entry), bool)
    place = np.full(len(own.row), n, np.int64)
    place[at[is_here]] = np.broadcast_to(np.arange(n), first.shape).ravel()[first.ravel() >= 0][is_here]
    return place


def _entries(w: csr_matrix, row: NDArray[np.int64], column: NDArray[np.int32]) -> Floats:
    """The entries of a sparse matrix, 0 where there is none, or no document (-1).  Shapes: [m], [m] -> [m]."""
    key = np.repeat(np.arange(w.shape[0]), np.diff(w.indptr)) * w.shape[1] + w.indices
    if not len(key):
        return np.zeros(len(row))
    wanted = row * w.shape[1] + column
    at = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
    found: Floats = np.where((key[at] == wanted) & (column >= 0), w.data[at], 0.0)
    return found


def _pattern(own: _List, log_t: Floats) -> Floats:
    y = _rate(own.s, log_t[own.row])
    found: Floats = y * np.exp(-y)
    return found


def _summed(own: _List, values: Floats) -> Floats:
    """The sums over each query's documents.  Shapes: [m] -> [B]."""
    return np.bincount(own.row, values, own.B).astype(np.float64)


def _without_sum(own: _List, g: Floats, h: Floats, c: Floats) -> Floats:
    """x (g - c h (g + the others' sum of x g)).  Shapes: g, h [m]; c [B] -> [m]."""
    total = _summed(own, own.x * g)[own.row] - own.x * g + g
    return own.x * (g - c[own.row] * h * total)


def _padded(parts: Sequence[tuple[_List, Floats]], value: Floats) -> Plan:
    """The lists side by side, a row per query; what stands in several of them stands there several times."""
    row, document = (np.concatenate([getattr(own, name) for own, _ in parts]) for name in ("row", "document"))
    order, count = np.argsort(row, kind="stable"), np.bincount(row, minlength=len(value))
    row, document, g = row[order], document[order], np.concatenate([g for _, g in parts])[order]
    start = np.cumsum(count) - count
    documents, gradient = (
        np.zeros((len(value), max(1, int(count.max(initial=0)))), dtype) for dtype in (np.int64, np.float32)
    )
    has = count > 0
    documents[has] = document[start[has], None]
    place = np.arange(len(row)) - start[row]
    documents[row, place], gradient[row, place] = document, g
    return Plan(torch.from_numpy(documents), torch.from_numpy(gradient), torch.from_numpy(value))
