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

t, when so many are expected as the ranks count for, is found from the same few documents as in the dense race. Any t is
unbiased; but a query steps along the *direction* of its gradient, and the mean direction depends on what noise is taken out.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank.errors import ConfigError, PolicyError
from tandemrank.gradients import lazy_race
from tandemrank.gradients._bridge import (
    Randomness,
    checked_weights,
    compiling,
    differentiable,
    entries,
    keys_for,
    over_rows,
)
from tandemrank.gradients.products import GeneratorScores, Source

SIZE = 500  # documents that are looked at beside the weighted ones, about: with fewer the noise grows, with more little falls


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
    from tandemrank.gradients._kernels import sparse_alone as kernel

    source = Source.of(scores)
    if samples < 1 or size < 1 or len(alpha) < 1:
        raise ConfigError(f"at least 1 sample, document and rank are needed; got {samples}, {size}, {len(alpha)}.")
    w = checked_weights(w, (source.B, source.D))
    curve, keys = alpha.detach().double().numpy(), keys_for(source.B, generator)
    drawn = lazy_race.lists_and_samples(source, len(curve), samples, size, keys)
    places = abs(curve).sum() / max(abs(curve).max(), 1e-300)
    delta = ((curve - np.append(curve[1:], 0.0)) / samples).astype(np.float32)
    room = max(1, int(np.diff(w.indptr).max(initial=0)) + int(drawn.count.max(initial=0, axis=0).sum()))
    documents, gradient = np.empty((source.B, room), np.int64), np.zeros((source.B, room), np.float32)
    listed, value = np.zeros(source.B, np.int64), np.zeros(source.B)
    with compiling():
        over_rows(
            kernel.gradients, source.B, source.X, source.Y, source.given, *entries(w), drawn.first, drawn.log_t, delta,
            max(places, 1e-30), drawn.log_reach, drawn.sampled, drawn.sampled_s, drawn.count,
            documents, gradient, listed, value,
        )  # fmt: skip
    columns = max(1, int(listed.max(initial=0)))
    real, g = (torch.from_numpy(np.ascontiguousarray(x[:, :columns])) for x in (documents, gradient))
    return Plan(real, g, torch.from_numpy(value))


def utility(s: Tensor, plan: Plan) -> Tensor:
    """The utility of each query, differentiable in the scores of the plan's documents, which must be those it was made for.

    Shapes: s [B, M], of plan.documents -> [B].
    """
    if s.shape != plan.documents.shape:
        raise PolicyError(
            f"scores must be those of plan.documents, {tuple(plan.documents.shape)}; got {tuple(s.shape)}."
        )
    return differentiable(s, s.detach(), lambda s, _: (plan.value.to(s), plan.gradient.to(s), None))
