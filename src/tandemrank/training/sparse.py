"""The objective of a minibatch over very many items: the re-ranker scores candidates, weighted documents and who just missed.

    U = sum_d w_d rho_cr(d),   rho_cr by the sparse race (`gradients.sparse_race`)                    (paper: cltr-obj-2s)

A stage alone shows the first ranks of its own race (`gradients.sparse_alone`). A re-ranker that cannot score everything is
trained for the candidates of the generator as it stands, also alone; and where more than K2 documents of a query have a
weight, as those of a reward model have, for a sample of them (`thinned`): the utility is linear in the weights.
"""

from collections.abc import Collection, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank._base.random import GOLDEN, mix, uniforms
from tandemrank.errors import ConfigError
from tandemrank.gradients import sparse_alone, sparse_race
from tandemrank.gradients._bridge import Drawn, Randomness, keys_for
from tandemrank.policies import candidates
from tandemrank.policies.scorers import Scorer
from tandemrank.training.config import TrainingConfig
from tandemrank.training.schedules import Stage, View

CELLS = 2**25  # scores of all items in memory at once, where they are no products
SAMPLES = 2  # of the sparse race, at least: one takes the sum out of the other's gradient
_THINNING = np.uint64(0xA0761D6478BD642F)  # which documents are kept is independent of the clocks of the same key


def is_sparse(config: TrainingConfig, generator: Scorer, ranker: Scorer) -> bool:
    """Whether training uses the sparse race: as the switch says, or where the catalogue is large."""
    if config.race == "dense" and not ranker.scores_everything:
        raise ConfigError(f"race = dense needs scores of all items; a {ranker.kind} scores candidates only. Use auto.")
    found = config.race == "sparse" or (config.race == "auto" and candidates.is_large(generator, ranker))
    if found and config.gradient == "reinforce":
        raise ConfigError(
            f"gradient = reinforce needs scores of all items by both stages, for at most {candidates.LARGE:,} of them; this "
            f"policy has {generator.spec()['D']:,}, or a re-ranker that scores candidates only. Leave it out, or give "
            "race = dense."
        )
    if found:
        candidates.check_ranker(ranker)
    return found


def utility(
    models: Mapping[Stage, Scorer],
    view: View,
    moving: Collection[Stage],
    q: Tensor,
    w: csr_matrix,
    alpha: Tensor,
    K2: int,
    *,
    samples: int,
    generator: Randomness,
) -> Tensor:
    """The utility of each query, with a gradient for the stages that move.  Shapes: q [B]; w CSR [B, D]; alpha [n] -> [B]."""
    samples = max(samples, SAMPLES)
    if not models["ranker"].scores_everything and view != "generator":
        generator = Drawn(keys := keys_for(len(q), generator))
        w = thinned(w, K2, keys)
    first = models["generator"] if view == "pair" or not models[view].scores_everything else models[view]
    size = len(q) if first.factors(q[:1]) is not None else max(1, CELLS // w.shape[1])
    parts = []
    for rows in (slice(i, i + size) for i in range(0, len(q), size)):
        if view == "pair" or first is not models[view]:
            parts.append(_pair(models, moving, q[rows], w[rows], alpha, K2, samples, generator))
        else:
            parts.append(_alone(first, q[rows], w[rows], alpha, samples, generator))
    return torch.cat(parts)


def thinned(w: csr_matrix, n: int, keys: NDArray[np.uint64]) -> csr_matrix:
    """Weights of about n documents of each query, in expectation those that came: E[thinned(w)] = w.

        kept with chance p_d = min(1, n |w_d| / sum |w|), and then w_d / p_d

    Rows of at most n stay as they are.  Shapes: w CSR [B, D]; keys [B], of the queries -> [B, D].
    """
    count = np.diff(w.indptr)
    if count.max(initial=0) <= n:
        return w
    size = np.abs(w.data, dtype=np.float64)
    total = np.add.reduceat(np.append(size, 0.0), w.indptr[:-1])
    p = np.where(
        np.repeat(count <= n, count), 1.0, np.minimum(1.0, n * size / np.maximum(np.repeat(total, count), 1e-300))
    )
    kept = uniforms(mix(np.repeat(mix(keys ^ _THINNING), count) + GOLDEN * w.indices.astype(np.uint64))) < p
    first = np.concatenate([[0], np.cumsum(kept)])[w.indptr]
    return csr_matrix(((w.data[kept] / p[kept]).astype(w.dtype), w.indices[kept], first), shape=w.shape)


def _pair(
    models: Mapping[Stage, Scorer],
    moving: Collection[Stage],
    q: Tensor,
    w: csr_matrix,
    alpha: Tensor,
    K2: int,
    samples: int,
    generator: Randomness,
) -> Tensor:
    reach = sparse_race.PATTERN_REACH if "generator" in moving else None
    scores = candidates.generator_scores(models["generator"], q)
    plan = sparse_race.plan(scores, w, K2, samples=samples, pattern=reach, generator=generator)
    with torch.set_grad_enabled("ranker" in moving):
        s_r = candidates.ranker_scores(models["ranker"], q, plan.ranker_documents)
    s_c = models["generator"].score(q, plan.generator_documents) if "generator" in moving else plan.scores
    return sparse_race.utility(s_c, s_r, plan, alpha)


def _alone(
    model: Scorer,
    q: Tensor,
    w: csr_matrix,
    alpha: Tensor,
    samples: int,
    generator: Randomness,
) -> Tensor:
    plan = sparse_alone.plan(candidates.generator_scores(model, q), w, alpha, samples=samples, generator=generator)
    return sparse_alone.utility(model.score(q, plan.documents), plan)
