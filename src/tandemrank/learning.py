"""From a log to what training needs: propensities, clipping, weights of the documents, and the held-out judgement.

w[q, d] = sum_i c_i(d) / max(rho_0(d), clip)                                         (paper: cltr-obj-2s, propensity_def)

or, with the doubly robust objective, the same for what a reward model leaves unexplained, and the model's promise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from scipy.sparse import csr_matrix

from tandemrank import clicks, feedback, objectives, propensities
from tandemrank.errors import ConfigError, LogError
from tandemrank.feedback import Feedback
from tandemrank.objectives import DoublyRobustWeights
from tandemrank.policies import TwoStagePolicy
from tandemrank.propensities import Kind, Lists
from tandemrank.training import Criterion, TrainingConfig
from tandemrank.validation import always_the_same

Floats = NDArray[np.float64]
Shows = Callable[[TwoStagePolicy], tuple[NDArray[np.int64], NDArray[np.int32]]]

FIXED = 0.9  # share of the queries that always saw the same list from which on a logger counts as deterministic


class LearningConfig(BaseModel):
    """The switches from the log to the trained pair."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shown: int = Field(default=10, ge=1, description="places of a shown list, K")
    candidates: int = Field(default=500, ge=1, description="candidates of the generator, K2")
    examination: Literal["reciprocal", "dcg"] | tuple[float, ...] = Field(
        default="reciprocal", description="examination curve: 1/k, 1/log2(k+1), or a number for each rank"
    )
    propensity: Literal["auto", "exact", "frequency", "logged", "fitted"] = Field(
        default="auto",
        description="exact by the race over the logging policy, the frequency in the log, what was logged, or by the race over "
        "a policy fitted to the logged lists; auto takes the best that is there",
    )
    propensity_samples: int = Field(default=50, ge=2, description="samples of the exact propensities")
    clip: Literal["paper", "quantile", "none"] | float = Field(
        default="quantile",
        description="propensities are clipped from below: min(10/sqrt(N), 1), a small quantile, a number",
    )
    clip_quantile: float = Field(default=0.001, ge=0, lt=1, description="the small quantile")
    objective: Literal["ips", "doubly-robust"] = Field(
        default="ips",
        description="clicks weighted by inverse propensities, or the same for what a reward model leaves unexplained",
    )
    held_out: float = Field(
        default=0.15,
        gt=0,
        lt=1,
        description="share of the impressions held out to say when to stop; none with stopping = fixed",
    )
    judged: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        description="share of an own log's impressions that only value what was trained",
    )
    training: TrainingConfig = TrainingConfig()

    @property
    def theta(self) -> Floats:
        """The examination curve.  Shapes: -> [K]."""
        return clicks.examination(self.shown, self.examination)

    @property
    def apart(self) -> float:
        """The share of the impressions that training does not see, because they say when to stop."""
        return 0.0 if self.training.stopping == "fixed" else self.held_out


@dataclass(frozen=True)
class Clicks:
    """What a log says: weights for training, and the part that was held out for judging, if any, with its propensities.

    `propensity` is the kind that was used, `why` the reason in words, `logger` the policy it comes from, if from any.
    """

    weights: csr_matrix | DoublyRobustWeights
    held_out: Feedback | None
    rho_0: Floats
    clip: float
    propensity: Kind
    why: str
    logger: TwoStagePolicy | None

    def criterion(self, config: LearningConfig, seed: int, *, lists: Shows | None = None) -> Criterion | None:
        """The judgement that `training.stopping` names; only held-out clicks enter, never the truth.

        `lists` makes the lists that are judged, by default the most likely ones of the held-out queries.
        """
        if config.training.stopping == "fixed":
            return None
        if self.held_out is None:
            raise ConfigError(
                f"stopping = {config.training.stopping} needs held-out clicks: give `prepare` a held-out part."
            )
        q = np.flatnonzero(self.held_out.impressions).astype(np.int64)
        show = lists or (lambda policy: (q, policy.most_likely(q)))
        rho_0 = feedback.clip(self.rho_0, self.clip)
        if config.training.stopping == "dcg":
            judge = objectives.held_out_dcg(rho_0, self.held_out, config.theta)
            return lambda policy: judge(*show(policy))
        weights, total = objectives.click_weights(rho_0, self.held_out), self.held_out.N
        return lambda policy: float(policy.utility(weights, config.theta, samples=4, seed=seed).sum() / total)


def prepare(
    used: Feedback | tuple[Feedback, Feedback],
    config: LearningConfig,
    *,
    held_out: Feedback | None = None,
    logging_policy: TwoStagePolicy | None = None,
    lists: Callable[[], Lists] | None = None,
    seed: int = 0,
) -> Clicks:
    """The weights of the documents by `used`, and `held_out`, which only judges, with its propensities.

    `used` may come in two parts by impression: the reward model of the doubly robust objective then learns from the one for
    the other, and else from some queries for the others. `lists` reads the lists of the log; it is called only for
    propensities that are fitted to them.
    """
    if isinstance(used, Feedback):
        folds = objectives.query_folds(used, seed) if config.objective == "doubly-robust" else []
    else:
        folds, used = [used, used[::-1]], feedback.merge(used)
    parts = [used] if held_out is None else [used, held_out]
    if any(part.clicks.sum() == 0 for part in parts):
        came = " and ".join(
            f"{part.clicks.sum():g} {n}" for part, n in zip(parts, ("for training", "held out"), strict=False)
        )
        raise LogError(
            f"not enough clicks to learn from: {came}, in {sum(part.N for part in parts):g} impressions. Give a longer log."
        )
    kind, why = choose(config.propensity, used, logging_policy)
    logger = logging_policy if kind == "exact" else None
    if kind == "fitted":
        if lists is None:
            raise ConfigError("fitted propensities need the lists of the log: give `lists`, or another propensity.")
        logger = propensities.fit(lists(), used.vocabulary, seed=seed).policy
    rho_used, *rho_held_out = (
        propensities.of_rows(part, config.theta, kind, logger, samples=config.propensity_samples, seed=seed)
        for part in parts
    )
    minimum = clip_at(config, rho_used[used.clicks > 0], sum(part.N for part in parts))
    rho_used = feedback.clip(rho_used, minimum)
    weights: csr_matrix | DoublyRobustWeights = (
        objectives.click_weights(rho_used, used)
        if config.objective == "ips"
        else objectives.doubly_robust_weights(rho_used, used, config.theta, folds)
    )
    return Clicks(weights, held_out, rho_held_out[0] if rho_held_out else np.empty(0), minimum, kind, why, logger)


def choose(wanted: Literal["auto"] | Kind, log: Feedback, logging_policy: TwoStagePolicy | None) -> tuple[Kind, str]:
    """Which propensities to use, and why: for `auto` the best that there is a source for."""
    if wanted != "auto":
        return wanted, "as asked"
    if logging_policy is not None:
        return "exact", "the policy that drew the log is given"
    if log.logged is not None:
        return "logged", "the log has a column of them"
    repeated = log.impressions >= 2
    fixed = float(always_the_same(log)[repeated].mean()) if repeated.any() else 0.0
    if fixed >= FIXED:
        return (
            "frequency",
            f"{fixed:.0%} of the queries always saw the same list, so what was shown is all that is known",
        )
    return "fitted", "the log has none, nor is the policy given that drew it; its lists vary, so a policy can be fitted"


def clip_at(config: LearningConfig, rho_0: Floats, N: float) -> float:
    """The number below which propensities are raised to it."""
    if config.clip == "paper":
        return feedback.paper_clip(N)
    if config.clip == "quantile":
        return feedback.quantile_clip(rho_0, config.clip_quantile)
    return 0.0 if config.clip == "none" else float(config.clip)
