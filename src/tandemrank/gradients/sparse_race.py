"""Two-stage utility and exposure over many documents: the race gradient on a few of them, unbiased (docs/explanation/race.md).

S >= 2 independent races are drawn lazily (`lazy_race`). The re-ranker is asked only about their candidates, who just missed,
and the documents with weight. Let g_d be the gradient that the dense race gives document d in one of them. It depends on
everything but d's own clocks, which are integrated out; so d's own clocks may decide whether it is looked at:

    generator   1(d is a candidate of some race) / pi_d * g_d,   pi_d = 1 - exp(-lambda_d (tau_d^1 + ... + tau_d^S))
    re-ranker   1(d is a candidate of this race) * dV(d)/dr_d

tau_d^i, the time of the K2-th of the others in race i, does not depend on d's clock either: both are unbiased
(Horvitz-Thompson). Documents with weight are always in, with the integrated forms g_d and p_d dV(d)/dr_d.

Both gradients sum to 0 over the documents in expectation, and what a sample's sum is instead is taken out by a pattern h,

    g_d  <-  g_d - h_d sum(g) / sum(h)

which must not depend on what sum(g) depends on. For the re-ranker h is read off the *other* races; for the generator it
is a sample of its own, of documents that only the generator has to score.

    plan = sparse_race.plan(Products(queries, items), w, K2, generator=generator)  # which documents
    s_c = products.at(queries, items, plan.documents)                    # or any other model
    s_r = ranker(q, plan.ranker_documents)
    value = sparse_race.utility(s_c, s_r, plan, theta)                             # differentiable in both
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank.errors import ConfigError, PolicyError
from tandemrank.gradients._bridge import (
    Randomness,
    check_scores,
    check_sizes,
    check_theta,
    checked_weights,
    compiling,
    entries,
    keys_for,
    over_rows,
    row_major,
    with_gradients,
)
from tandemrank.gradients.lazy_race import LazyRaces, races, streams
from tandemrank.gradients.products import GeneratorScores, Source
from tandemrank.gradients.race import ratio_estimate

_SAMPLE = 2**32 - 1  # the number of the pattern's sample, behind those of all races
_SIZE = 2  # documents of that sample, for each candidate


@dataclass(frozen=True)
class SparsePlan:
    """Which documents a step looks at, and what is known of them before the re-ranker is asked.

    `documents` [B, M]: of each query the documents that both stages score, in the first `ranker_columns` columns, and
    behind them those that only the generator scores. Rows are filled up with a document of their own, whose gradient is
    0 there; `listed` [B, 2] tells how many are real, for both stages and for the generator alone.
    `scores` [B, M] are the generator's, as the race saw them. What follows `w` is for `utility` and `exposure`.
    """

    documents: Tensor
    scores: Tensor
    ranker_columns: int
    listed: NDArray[np.int64]
    w: csr_matrix
    keys: NDArray[np.uint64]
    places: NDArray[np.int32]
    count: NDArray[np.int64]
    log_edge: NDArray[np.float32]
    inverse: NDArray[np.float32]
    pattern: NDArray[np.float32]

    @property
    def ranker_documents(self) -> Tensor:
        """[B, M_r]: what the re-ranker has to score."""
        return self.documents[:, : self.ranker_columns]

    @property
    def samples(self) -> int:
        return int(self.count.shape[1])


def plan(
    scores: GeneratorScores,
    w: csr_matrix,
    K2: int,
    *,
    samples: int = 2,
    moves_generator: bool = True,
    generator: Randomness,
) -> SparsePlan:
    """Draws the races of each query's generator scores and says which documents have to be scored with gradient.

    `w` holds the weights of `utility`, or as its pattern the documents whose `exposure` is wanted. The re-ranker gets at most
    S (K2 + 1) + |w| documents of a query, usually fewer, as candidates repeat. `moves_generator`: whether the gradient by the
    generator's scores is wanted, whose known sum is taken out by a sample of its own.
    Shapes: scores [B, D], as products or given; w CSR [B, D].
    """
    source = Source.of(scores)
    check_sizes(K2, samples)
    w, keys = checked_weights(w, (source.B, source.D)), keys_for(source.B, generator)
    own, others = streams(keys, range(samples)), streams(keys, [_SAMPLE] if moves_generator else [])
    return _collected(source, w, keys, races(source, min(K2, source.D), own, others, _SIZE * K2))


def _collected(source: Source, w: csr_matrix, keys: NDArray[np.uint64], drawn: LazyRaces) -> SparsePlan:
    """One list of documents of each query out of the races, the weights and the sample."""
    from tandemrank.gradients._kernels import sparse_race as kernel

    (B, S, last), (indptr, indices, _) = drawn.first.shape, entries(w)
    count, log_edge = (drawn.first[:, :, :-1] >= 0).sum(2), _edges(drawn.log_t)
    for_both = max(1, min(source.D, int(np.diff(indptr).max(initial=0)) + S * last))
    room = for_both + int(drawn.count.max(initial=0))
    documents, listed = np.zeros((B, room), np.int64), np.zeros((B, 2), np.int64)
    inverse, pattern = np.zeros((B, room), np.float32), np.zeros((B, room), np.float32)
    # A row without documents has none available: any one of them stands for that, with its score of -inf.
    scores, places = np.full((B, room), -np.inf, np.float32), np.full(drawn.first.shape, -1, np.int32)
    with compiling():
        over_rows(
            kernel.collect, B, source.arrays, indptr, indices, drawn.first, drawn.s, count, log_edge, drawn.sampled,
            drawn.sampled_s, drawn.count, drawn.log_tau, drawn.log_reach, for_both,
            documents, scores, places, listed, inverse, pattern,
        )  # fmt: skip
    columns, extra = np.maximum(listed.max(0, initial=0), [1, 0])
    used = np.r_[:columns, for_both : for_both + extra]
    return SparsePlan(
        documents=torch.from_numpy(np.take(documents, used, 1)),
        scores=torch.from_numpy(np.take(scores, used, 1)),
        ranker_columns=int(columns),
        listed=listed,
        w=w,
        keys=keys,
        places=places,
        count=count,
        log_edge=log_edge,
        inverse=np.ascontiguousarray(inverse[:, :columns]),
        pattern=np.take(pattern, used, 1),
    )


def _edges(log_t: NDArray[np.float32]) -> NDArray[np.float32]:
    """When the last candidate and who missed arrive, +inf where everybody is a candidate.  Shapes: [B, S, n] -> [B, S, 2]."""
    missed = log_t[:, :, -1]
    # Two times that are equal in float32 are kept apart: who missed came later.
    last = np.where(missed < np.inf, np.minimum(log_t[:, :, 0], np.nextafter(missed, np.float32(-np.inf))), np.inf)
    return np.stack([last, missed], 2).astype(np.float32)


def utility(s_c: Tensor, s_r: Tensor, plan: SparsePlan, theta: Tensor) -> Tensor:
    """Two-stage utility of each query, differentiable in the scores of the plan's documents.

        U = sum_d rho_cr(d) w_d,   rho_cr(d) = E[theta_{k(d)}]            (paper: cltr-obj-2s, 2stage-true-utility)

    Its gradient is the sparse race gradient: unbiased for every document, the ones that are not in the plan have 0. The
    scores of the generator must be those that the plan was made for; its -inf means "not available", the
    re-ranker's "a candidate, but never shown".
    Shapes: s_c [B, M], of plan.documents; s_r [B, M_r], of plan.ranker_documents; theta [K] -> [B].
    """
    if plan.samples < 2:
        raise ConfigError("the gradient takes the sum of one race out by another: make the plan with samples >= 2.")
    _check(s_r, plan, theta)
    _check_generator(s_c, plan)
    from tandemrank.gradients._kernels import sparse_race as kernel

    r, s, (indptr, _, weights) = row_major(s_r), row_major(plan.scores), entries(plan.w)
    value, grad_c, grad_r = np.zeros(len(r)), np.zeros_like(s), np.zeros_like(r)
    with compiling():
        over_rows(
            kernel.utility, len(r), s, r, plan.documents.numpy(), plan.listed, plan.keys, indptr, weights, plan.places,
            plan.count, plan.log_edge, plan.inverse, plan.pattern, row_major(theta), value, grad_c, grad_r,
        )  # fmt: skip
    return with_gradients(value, (s_c, grad_c), (s_r, grad_r))


def exposure(s_r: Tensor, plan: SparsePlan, theta: Tensor) -> tuple[Tensor, Tensor]:
    """The exposure of the plan's weighted documents, in the order of `plan.w`, and its standard error.

        rho_cr(d) = E[ p_d (theta_1 + sum_k exp(-mu_d t_k) (theta_{k+1} - theta_k)) ]     (paper: 2stage-true-utility)

    Scaled by the known sum of a query's exposures, as `race.exposure`; a race's own sum is estimated by its candidates. A
    candidate that is never shown (-inf) makes the sum unknown, and the plain mean is returned for that query.
    Shapes: s_r [B, M_r]; theta [K] -> two of [nnz]. The standard error is NaN for one sample.
    """
    from tandemrank.gradients._kernels import sparse_race as kernel

    _check(s_r, plan, theta)
    r, indptr = row_major(s_r), entries(plan.w)[0]
    moments, totals = np.zeros((3, plan.w.nnz)), np.zeros((2, len(r)))
    with compiling():
        over_rows(
            kernel.exposure, len(r), row_major(plan.scores), r, plan.documents.numpy(), plan.listed, plan.keys, indptr,
            plan.places, plan.count, plan.log_edge, row_major(theta), moments, totals,
        )  # fmt: skip
    curve = np.concatenate([[0.0], np.cumsum(theta.detach().double().numpy())])
    known = curve[np.minimum(plan.count[:, 0], len(theta))]
    known[(r == -np.inf).any(1)] = np.nan
    mean, error = ratio_estimate(indptr, moments, totals, torch.from_numpy(known), plan.samples, theta)
    return mean.to(s_r), error.to(s_r)


def _check(s_r: Tensor, plan: SparsePlan, theta: Tensor) -> None:
    if tuple(s_r.shape) != tuple(plan.ranker_documents.shape):
        raise PolicyError(
            f"the re-ranker's scores must be those of plan.ranker_documents, {tuple(plan.ranker_documents.shape)}; "
            f"got {tuple(s_r.shape)}."
        )
    check_scores(s_r.detach(), "ranker")
    check_theta(theta)


def _check_generator(s_c: Tensor, plan: SparsePlan) -> None:
    """The plan's races are draws from its own scores; a generator that has moved since would be biased by them."""
    if s_c.shape != plan.documents.shape:
        raise PolicyError(
            f"the generator's scores must be those of plan.documents, {tuple(plan.documents.shape)}; "
            f"got {tuple(s_c.shape)}."
        )
    gap = (s_c.detach().to(plan.scores) - plan.scores).abs()
    # -inf less -inf is NaN, and both agree; anything else that is not close is refused.
    far = ~(gap <= 1e-2 + 1e-3 * plan.scores.abs()) & ~((s_c.detach() == -torch.inf) & (plan.scores == -torch.inf))
    if bool(far.any()):
        q, place = torch.nonzero(far)[0].tolist()
        raise PolicyError(
            f"{int(far.sum())} generator scores are not those of the plan (first: row {q}, document "
            f"{int(plan.documents[q, place])}: {float(s_c[q, place]):.6g}, planned {float(plan.scores[q, place]):.6g}). "
            f"Make a new plan after each step of the generator."
        )
