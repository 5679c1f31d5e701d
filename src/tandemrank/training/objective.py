"""The objective of a minibatch, whose gradient training follows: the utility of its queries by the stages as they are.

    U = sum_d w_d rho_cr(d)                                                           (paper: cltr-obj-2s, cltr-grad-2s)

Up to 20,000 items rho_cr is by the race over all of them, or by REINFORCE, as the paper has it. Of more items the re-ranker
scores candidates, weighted documents and who just missed (`gradients.sparse_race`): where more than K2 documents of a query
have a weight, as those of a reward model have, a sample of them (`thinned`): the utility is linear in the weights. A stage
alone shows the first ranks of its own race (`gradients.sparse_alone`); a re-ranker that cannot score everything is trained for
the candidates of the generator as it stands.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank._base.random import GOLDEN, mix, uniforms
from tandemrank.errors import ConfigError
from tandemrank.gradients import plackett_luce, race, sparse_alone, sparse_race
from tandemrank.policies import candidates
from tandemrank.policies.scorers import Scorer
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.config import Gradient, TrainingConfig
from tandemrank.training.schedules import Stage, View, stages_of

CELLS = 2**25  # scores of all items in memory at once, where they are no products
SAMPLES = 2  # of the sparse race, at least: one takes the sum out of the other's gradient
_THINNING = np.uint64(0xA0761D6478BD642F)  # which documents are kept is independent of the clocks of the same key


@dataclass(frozen=True)
class Objective:
    """The two stages and how their utility is found. `is_sparse`: the re-ranker is not asked about everything."""

    models: Mapping[Stage, Scorer]
    K2: int
    gradient: Gradient
    samples: int
    is_sparse: bool

    @staticmethod
    def of(policy: TwoStagePolicy, config: TrainingConfig) -> "Objective":
        """Of a policy that is trained; refuses, now, stages whose scores are none."""
        is_sparse = policy.is_large
        if is_sparse and config.gradient == "reinforce":
            raise ConfigError(
                f"gradient = reinforce needs scores of all items by both stages, for at most {candidates.LARGE:,} of them; "
                f"this policy has {len(policy.vocabulary.item_ids):,}, or a re-ranker that scores candidates only. Leave it "
                "out."
            )
        if is_sparse:
            candidates.check_ranker(policy.ranker)
        else:
            policy.plain_scores([0])
        models: dict[Stage, Scorer] = {"generator": policy.generator, "ranker": policy.ranker}
        samples = max(config.samples, SAMPLES) if is_sparse else config.samples
        return Objective(models, policy.K2, config.gradient, samples, is_sparse)

    def utility(
        self, view: View, moving: Collection[Stage], q: Tensor, w: csr_matrix, alpha: Tensor, keys: NDArray[np.uint64]
    ) -> Tensor:
        """The utility of each query, with a gradient for the stages that move: of the pair, or of a stage alone, K2 = D.

        Shapes: q, keys [B]; w CSR [B, D]; alpha [n], the weights of the ranks -> [B].
        """
        if self.is_sparse:
            return self._sparse(view, moving, q, w, alpha, keys)
        scores = {}
        for stage in stages_of(view):
            with torch.set_grad_enabled(stage in moving):
                found = self.models[stage](q)
            scores[stage] = found if stage in moving else found.detach()
        if view == "pair":
            s_c, s_r, K2 = scores["generator"], scores["ranker"], self.K2
        else:
            s_c, s_r, K2 = scores[view].detach(), scores[view], w.shape[1]
        estimator = race.utility if self.gradient == "race" else plackett_luce.reinforce
        return estimator(s_c, s_r, w, alpha, K2, samples=self.samples, generator=keys)

    def _sparse(
        self, view: View, moving: Collection[Stage], q: Tensor, w: csr_matrix, alpha: Tensor, keys: NDArray[np.uint64]
    ) -> Tensor:
        if view != "generator":
            w = thinned(w, self.K2, keys)
        is_alone = view != "pair" and self.models[view].scores_everything
        first = self.models[view if view != "pair" and is_alone else "generator"]
        size = len(q) if first.factors(q[:1]) is not None else max(1, CELLS // w.shape[1])
        parts = []
        for rows in (slice(i, i + size) for i in range(0, len(q), size)):
            if is_alone:
                parts.append(self._alone(first, q[rows], w[rows], alpha, keys[rows]))
            else:
                parts.append(self._pair(moving, q[rows], w[rows], alpha, keys[rows]))
        return torch.cat(parts)

    def _pair(
        self, moving: Collection[Stage], q: Tensor, w: csr_matrix, alpha: Tensor, keys: NDArray[np.uint64]
    ) -> Tensor:
        generator, ranker = self.models["generator"], self.models["ranker"]
        scores = candidates.generator_scores(generator, q)
        plan = sparse_race.plan(
            scores, w, self.K2, samples=self.samples, moves_generator="generator" in moving, generator=keys
        )
        with torch.set_grad_enabled("ranker" in moving):
            s_r = candidates.ranker_scores(ranker, q, plan.ranker_documents)
        s_c = generator.score(q, plan.documents) if "generator" in moving else plan.scores
        return sparse_race.utility(s_c, s_r, plan, alpha)

    def _alone(self, model: Scorer, q: Tensor, w: csr_matrix, alpha: Tensor, keys: NDArray[np.uint64]) -> Tensor:
        scores = candidates.generator_scores(model, q)
        plan = sparse_alone.plan(scores, w, alpha, samples=self.samples, generator=keys)
        return sparse_alone.utility(model.score(q, plan.documents), plan)


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
