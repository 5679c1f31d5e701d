"""Caution in the loop: the weights of a minibatch, changed by the exposures of the pair as it is now and of the logger.

    w -> w'(w, rho, rho_0),    rho = E[alpha_k(d)] of what is trained,  rho_0 of the logging policy, both by the race

`safe` has the objectives and their weights. Both exposures are of the rank weights alpha that training maximises (the
examination curve itself with rank_weights = examination), so w' is the exact gradient of the safe objective; only the noise of
the exposures' race is left in it. The same for every stage, view and method: what is trained alone is compared as it is, alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from tandemrank._base.ids import Vocabulary, positions_of
from tandemrank.gradients import race
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training import safe

Floats = NDArray[np.float64]
SafeObjective = Literal["exposure", "prpo", "smoothing"]

SAMPLES = 4  # of the race, for exposures
LEAST = 1e-2  # of the mean exposure: what the logger hardly ever shows counts as shown so much


@dataclass(frozen=True)
class Caution:
    """A safe objective and what it measures by: the logging policy, and the impressions of each query of the training log.

    `delta`: of the exposure risk. `reach`: the largest rho / rho_0 that is rewarded is 1 + reach (prpo); where smoothing sets
    in (L). Shapes: impressions [Q].
    """

    objective: SafeObjective
    logger: TwoStagePolicy
    vocabulary: Vocabulary
    impressions: Floats
    delta: float
    reach: float

    @property
    def N(self) -> float:
        """Of all queries."""
        return float(self.impressions.sum())

    @property
    def needs_total(self) -> bool:
        """Whether queries are coupled, so that the divergence of all of them must be known."""
        return self.objective == "exposure"

    def logger_scores(self, q: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """The logger's scores in the training's vocabulary, -inf for items that it does not know.  Shapes: q [B] -> [B, D]."""
        own = self.logger.vocabulary
        if own is self.vocabulary:
            return self.logger.plain_scores(q)
        s_c, s_r = self.logger.plain_scores(own.queries(self.vocabulary.query_ids.gather(q)))
        at = torch.tensor(positions_of(own.item_ids, self.vocabulary.item_ids, "item", missing="mark"))
        known = (at >= 0)[None, :]
        s_c, s_r = (torch.where(known, s[:, at.clamp(min=0)], -torch.inf) for s in (s_c, s_r))
        return s_c, s_r.where(known, 0.0)

    def exposures(
        self,
        q: NDArray[np.int64],
        s_c: Tensor,
        s_r: Tensor,
        alpha: Tensor,
        K2: int,
        generator: torch.Generator,
        documents: csr_matrix | None = None,
    ) -> tuple[Floats, Floats]:
        """rho and rho_0 of all documents, or of those of a pattern.  Shapes: s_c, s_r [B, D] -> [B, D] or [nnz], twice."""
        theirs = self.logger_scores(q)
        rho, rho_0 = (
            race.exposure(c, r, alpha, k, samples=SAMPLES, generator=generator, documents=documents)[0].double().numpy()
            for c, r, k in ((s_c.detach(), s_r.detach(), K2), (*theirs, min(self.logger.K2, s_c.shape[1])))
        )
        return rho, np.maximum(rho_0, LEAST * float(alpha.sum()) / s_c.shape[1])

    def divergence(self, q: NDArray[np.int64], rho: Floats, rho_0: Floats, alpha: Tensor) -> float:
        """What these queries add to N d2.  Shapes: rho, rho_0 [B, D]."""
        return safe.divergence(rho, rho_0, self.impressions[q], float(alpha.sum()))

    def weights(
        self,
        q: NDArray[np.int64],
        w: csr_matrix,
        s_c: Tensor,
        s_r: Tensor,
        alpha: Tensor,
        K2: int,
        generator: torch.Generator,
        total: float | None = None,
    ) -> csr_matrix:
        """The weights of a minibatch with caution; `total` is N d2 of all queries (exposure).  Shapes: w [B, D] -> [B, D]."""
        if self.objective == "exposure":
            rho, rho_0 = self.exposures(q, s_c, s_r, alpha, K2, generator)
            found = safe.exposure(
                w.toarray().astype(np.float64), rho, rho_0, self.impressions[q], Z=float(alpha.sum()), N=self.N,
                delta=self.delta, total=total,
            )  # fmt: skip
            return csr_matrix(found.weights.astype(np.float32))
        rho, rho_0 = self.exposures(q, s_c, s_r, alpha, K2, generator, w)
        data = w.data.astype(np.float64)
        if self.objective == "prpo":
            changed = safe.prpo(data, rho, rho_0, eps=1 / (1 + self.reach)).weights
        else:
            changed = safe.smoothing(data, rho, rho_0, L=self.reach).weights
        return csr_matrix((changed.astype(np.float32), w.indices, w.indptr), shape=w.shape)

    def identity(self) -> tuple[Sequence[object], list[NDArray[Any]]]:
        """What a training with it depends on: switches and arrays."""
        stages = (self.logger.generator, self.logger.ranker)
        arrays = [t.detach().numpy() for stage in stages for t in stage.state_dict().values()]
        return [self.objective, self.delta, self.reach, self.logger.K2], [*arrays, self.impressions]
