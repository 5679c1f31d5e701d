"""Two-stage utility and exposure over very many documents: the race gradient on a few of them, unbiased (docs/race.md).

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
    s_c = products.at(queries, items, plan.generator_documents)                    # or any other model
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
from tandemrank.gradients import lazy_race
from tandemrank.gradients._bridge import (
    MOST_SAMPLES,
    Randomness,
    check_scores,
    check_theta,
    checked_weights,
    compiling,
    differentiable,
    entries,
    keys_for,
    over_rows,
    row_major,
)
from tandemrank.gradients.products import GeneratorScores, Source
from tandemrank.gradients.race import ratio_estimate

# How far the pattern's sample reaches, in typical times: twice as far as a race, for little.
PATTERN_REACH = 2.0


@dataclass(frozen=True)
class Plan:
    """Which documents a step looks at, and what is known of them before the re-ranker is asked.

    `documents` [B, M]: of each query the documents that both stages score, in the first `ranker_columns` columns, and
    behind them those that only the generator scores. Rows are filled up with a document of their own, whose gradient is
    0 there; `ranker_count` [B] and `generator_count` [B] tell how many are real (the latter counts the former too).
    `scores` [B, M] are the generator's, as the race saw them. What follows `w` is for `utility` and `exposure`.
    """

    documents: Tensor
    scores: Tensor
    ranker_columns: int
    ranker_count: NDArray[np.int64]
    generator_count: NDArray[np.int64]
    K2: int
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
    def generator_documents(self) -> Tensor:
        """[B, M]: what the generator has to score, with gradient."""
        return self.documents

    @property
    def samples(self) -> int:
        return int(self.count.shape[1])


def plan(
    scores: GeneratorScores,
    w: csr_matrix,
    K2: int,
    *,
    samples: int = 2,
    pattern: float | None = PATTERN_REACH,
    generator: Randomness,
) -> Plan:
    """Draws the races of each query's generator scores and says which documents have to be scored with gradient.

    `w` holds the weights of `utility`, or as its pattern the documents whose `exposure` is wanted. The re-ranker gets at most
    S (K2 + 1) + |w| documents of a query, usually fewer, as candidates repeat. `pattern`: how far the sample reaches that takes
    the known sum out of the generator's gradient, in typical times; None for none of it (no gradient is wanted then).
    Shapes: scores [B, D], as products or given; w CSR [B, D].
    """
    source = Source.of(scores)
    if K2 < 1 or not 1 <= samples <= MOST_SAMPLES:
        raise ConfigError(
            f"K2 and samples must be at least 1, samples at most {MOST_SAMPLES:,}; got K2 = {K2}, samples = {samples}."
        )
    w, keys = checked_weights(w, (source.B, source.D)), keys_for(source.B, generator)
    return _collected(source, w, K2, keys, lazy_race.races(source, K2, samples, keys, pattern), pattern)


def _collected(
    source: Source, w: csr_matrix, K2: int, keys: NDArray[np.uint64], races: lazy_race.Races, wide: float | None
) -> Plan:
    """One list of documents of each query out of the races, the weights and the sample."""
    from tandemrank.gradients._kernels import sparse_race as kernel

    (B, S), (indptr, indices, _) = races.count.shape, entries(w)
    weighted, sampled = int(np.diff(indptr).max(initial=0)), int(races.sample_n.max(initial=0))
    room = max(1, min(source.D, weighted + races.candidates.shape[2] * S + sampled))
    documents, listed = np.zeros((B, room), np.int64), np.zeros((B, 2), np.int64)
    inverse, weight = np.zeros((B, room), np.float32), np.zeros((B, room), np.float32)
    # A row without documents has none available: any one of them stands for that, with its score of -inf.
    scores, places = np.full((B, room), -np.inf, np.float32), np.full(races.candidates.shape, -1, np.int32)
    with compiling():
        over_rows(
            kernel.collect, B, source.X, source.Y, source.given, indptr, indices, races.candidates, races.s, races.count,
            races.log_edge, races.sample, races.sample_s, races.sample_n, races.log_tau, wide or 1.0,
            documents, scores, places, listed, inverse, weight,
        )  # fmt: skip
    ranker, both = np.ascontiguousarray(listed.T)
    columns, extra = max(1, int(ranker.max(initial=0))), int((both - ranker).max(initial=0))
    # What the generator alone scores begins in one column for all; rows are filled up with their first entry.
    column, first = np.arange(columns + extra), ranker[:, None]
    source_column = np.where(column < columns, column, first + column - columns)
    real = np.where(column < columns, column < first, source_column < both[:, None])
    place = np.where(real, source_column, 0) + room * np.arange(B)[:, None]
    spread_documents, spread_scores, spread_weight = (np.take(x, place) for x in (documents, scores, weight))
    return Plan(
        documents=torch.from_numpy(spread_documents),
        scores=torch.from_numpy(spread_scores),
        ranker_columns=columns,
        ranker_count=ranker,
        generator_count=both,
        K2=K2,
        w=w,
        keys=keys,
        places=places,
        count=races.count,
        log_edge=races.log_edge,
        inverse=np.ascontiguousarray(inverse[:, :columns]),
        pattern=np.where(real, spread_weight, np.float32(0)),
    )


def utility(s_c: Tensor, s_r: Tensor, plan: Plan, theta: Tensor) -> Tensor:
    """Two-stage utility of each query, differentiable in the scores of the plan's documents.

        U = sum_d rho_cr(d) w_d,   rho_cr(d) = E[theta_{k(d)}]            (paper: cltr-obj-2s, 2stage-true-utility)

    Its gradient is the sparse race gradient: unbiased for every document, the ones that are not in the plan have 0. The
    scores of the generator must be those that the plan was made for; its -inf means "not available", the
    re-ranker's "a candidate, but never shown".
    Shapes: s_c [B, M], of plan.generator_documents; s_r [B, M_r], of plan.ranker_documents; theta [K] -> [B].
    """
    if plan.samples < 2:
        raise ConfigError("the gradient takes the sum of one race out by another: make the plan with samples >= 2.")
    _check(s_r, plan, theta)
    _check_generator(s_c, plan)
    return differentiable(s_c, s_r, lambda s, r: _solved(s, r, plan, theta))


def exposure(s_r: Tensor, plan: Plan, theta: Tensor) -> tuple[Tensor, Tensor]:
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
            kernel.exposure, len(r), row_major(plan.scores), r, plan.documents.numpy(), plan.ranker_count, plan.keys, indptr,
            plan.places, plan.count, plan.log_edge, row_major(theta), moments, totals,
        )  # fmt: skip
    curve = np.concatenate([[0.0], np.cumsum(theta.detach().double().numpy())])
    known = curve[np.minimum(plan.count[:, 0], len(theta))]
    known[(r == -np.inf).any(1)] = np.nan
    mean, error = ratio_estimate(indptr, moments, totals, torch.from_numpy(known), plan.samples, theta)
    return mean.to(s_r), error.to(s_r)


def _check(s_r: Tensor, plan: Plan, theta: Tensor) -> None:
    if tuple(s_r.shape) != tuple(plan.ranker_documents.shape):
        raise PolicyError(
            f"the re-ranker's scores must be those of plan.ranker_documents, {tuple(plan.ranker_documents.shape)}; "
            f"got {tuple(s_r.shape)}."
        )
    check_scores(s_r.detach(), "ranker")
    check_theta(theta)


def _check_generator(s_c: Tensor, plan: Plan) -> None:
    """The plan's races are draws from its own scores; a generator that has moved since would be biased by them."""
    if s_c.shape != plan.documents.shape:
        raise PolicyError(
            f"the generator's scores must be those of plan.generator_documents, {tuple(plan.documents.shape)}; "
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


def _solved(s_c: Tensor, s_r: Tensor, plan: Plan, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    from tandemrank.gradients._kernels import sparse_race as kernel

    r, s, (indptr, _, weights) = row_major(s_r), row_major(plan.scores), entries(plan.w)
    value, grad_c, grad_r = np.zeros(len(r)), np.zeros_like(s), np.zeros_like(r)
    with compiling():
        over_rows(
            kernel.utility, len(r), s, r, plan.documents.numpy(), plan.ranker_count, plan.keys, indptr, weights, plan.places,
            plan.count, plan.log_edge, plan.inverse, plan.pattern, row_major(theta), value, grad_c, grad_r,
        )  # fmt: skip
    by_c, by_r = torch.from_numpy(grad_c).to(s_c), torch.from_numpy(grad_r).to(s_r)
    return torch.from_numpy(value).to(s_c), by_c, by_r
