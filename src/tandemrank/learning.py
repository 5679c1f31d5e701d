"""From a log to what training needs: propensities, clipping, weights of the clicked pairs, and the held-out judgement.

w[q, d] = sum_i c_i(d) / max(rho_0(d), clip)                                         (paper: cltr-obj-2s, propensity_def)
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from scipy.sparse import csr_matrix

from tandemrank import clicks, feedback, objectives
from tandemrank.errors import ConfigError, LogError
from tandemrank.feedback import Feedback
from tandemrank.policies import TwoStagePolicy
from tandemrank.training import Criterion, TrainingConfig

Floats = NDArray[np.float64]


class LearningConfig(BaseModel):
    """The switches from the log to the trained pair."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shown: int = Field(default=10, ge=1, description="places of a shown list, K")
    candidates: int = Field(default=500, ge=1, description="candidates of the generator, K2")
    examination: Literal["reciprocal", "dcg"] = Field(
        default="reciprocal", description="examination curve: 1/k or 1/log2(k+1)"
    )
    propensity: Literal["exact", "frequency", "logged"] = Field(
        default="exact",
        description="exact by the race over the logging policy, the frequency in the log, or what was logged",
    )
    propensity_samples: int = Field(default=50, ge=2, description="samples of the exact propensities")
    clip: Literal["paper", "quantile", "none"] | float = Field(
        default="quantile",
        description="propensities are clipped from below: min(10/sqrt(N), 1), a small quantile, a number",
    )
    clip_quantile: float = Field(default=0.001, ge=0, lt=1, description="the small quantile")
    held_out: float = Field(default=0.15, gt=0, lt=1, description="share of the impressions held out for stopping")
    training: TrainingConfig = TrainingConfig()

    @property
    def theta(self) -> Floats:
        """The examination curve.  Shapes: -> [K]."""
        return clicks.examination(self.shown, self.examination)


@dataclass(frozen=True)
class Clicks:
    """What a log says: weights for training, and the held-out part with its propensities for judging."""

    weights: csr_matrix
    held_out: Feedback
    rho_0: Floats
    clip: float

    def criterion(self, config: LearningConfig, seed: int) -> Criterion | None:
        """The judgement that `training.stopping` names; only held-out clicks enter, never the truth."""
        q = np.flatnonzero(self.held_out.impressions).astype(np.int64)
        rho_0 = feedback.clip(self.rho_0, self.clip)
        if config.training.stopping == "dcg":
            judge = objectives.held_out_dcg(rho_0, self.held_out, config.theta)
            return lambda policy: judge(q, policy.most_likely(q))
        if config.training.stopping == "value":
            weights, total = objectives.click_weights(rho_0, self.held_out), self.held_out.N
            return lambda policy: float(policy.utility(weights, config.theta, samples=4, seed=seed).sum() / total)
        return None


def prepare(
    used: Feedback,
    held_out: Feedback,
    config: LearningConfig,
    *,
    logging_policy: TwoStagePolicy | None = None,
    seed: int = 0,
) -> Clicks:
    """The weights of the clicks in `used`, and `held_out` with its propensities."""
    if used.clicks.sum() == 0 or held_out.clicks.sum() == 0:
        raise LogError(
            f"not enough clicks to learn from: {used.clicks.sum():g} for training, {held_out.clicks.sum():g} held out, "
            f"in {used.N + held_out.N:g} impressions. Give a longer log."
        )
    rho_used, rho_held_out = (propensity(part, config, logging_policy, seed) for part in (used, held_out))
    minimum = clip_at(config, rho_used[used.clicks > 0], used.N + held_out.N)
    weights = objectives.click_weights(feedback.clip(rho_used, minimum), used)
    return Clicks(weights, held_out, rho_held_out, minimum)


def propensity(rows: Feedback, config: LearningConfig, logging_policy: TwoStagePolicy | None, seed: int) -> Floats:
    """rho_0 of every row by the switch `propensity` (paper: propensity_def).  Shapes: -> [P]."""
    if config.propensity == "frequency":
        return feedback.frequency_propensity(rows, config.theta)
    if config.propensity == "logged":
        if rows.propensity is None:
            raise LogError(
                "the log has no column `propensities`. Use exact propensities with a logging policy, or frequency."
            )
        return rows.propensity
    if logging_policy is None:
        raise ConfigError(
            "exact propensities need the policy that drew the log. Give it, or use propensity = frequency."
        )
    rho_0, _ = logging_policy.exposure(
        rows.query, rows.item, config.theta, samples=config.propensity_samples, seed=seed
    )
    return rho_0


def clip_at(config: LearningConfig, rho_0: Floats, N: float) -> float:
    """The number below which propensities are raised to it."""
    if config.clip == "paper":
        return feedback.paper_clip(N)
    if config.clip == "quantile":
        return feedback.quantile_clip(rho_0, config.clip_quantile)
    return 0.0 if config.clip == "none" else float(config.clip)
