"""The switches of training and of the way from a log to it."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from tandemrank.clicks import models
from tandemrank.training.schedules import JointStart, Method


class TrainingConfig(BaseModel):
    """The switches of training; docs/experiment.md has the reasons."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Method = Field(default="joint", description="schedule: baseline, independent or joint")
    gradient: Literal["race", "reinforce", "reinforce+baseline"] = Field(
        default="race", description="gradient estimator"
    )
    samples: int = Field(default=1, ge=1, description="Monte-Carlo samples of a gradient")
    minibatch: int | None = Field(
        default=None,
        ge=1,
        description="queries of a minibatch; by default 256, or a twelfth of them where there are fewer",
    )
    learning_rate: float = Field(default=0.2, gt=0, description="learning rate of what belongs to one query")
    shared_rate: float = Field(
        default=0.04,
        gt=0,
        description="learning rate of what all queries share, the items, as a share of learning_rate",
    )
    rate: Literal["falling", "constant"] = Field(
        default="falling", description="learning rates over a phase: falling to 0 in a straight line, or constant"
    )
    query_step: Literal["direction", "adam"] = Field(
        default="direction",
        description="how the vector of a query moves: along its gradient by steps of one length, or by Adam",
    )
    epochs: int = Field(default=16, ge=1, description="epochs of a phase, at most")
    patience: int = Field(default=10, ge=1, description="epochs without a better judgement before a phase ends")
    stopping: Literal["fixed", "dcg", "value"] = Field(
        default="fixed",
        description="all epochs on all clicks; or by a judgement on held-out clicks: self-normalised DCG of the lists, "
        "clipped-IPS value",
    )
    alpha: Literal["examination", "flat"] = Field(
        default="flat",
        description="weights of the ranks that training maximises, the paper's alpha_k: the examination curve, or 1 to a depth",
    )
    depth: int | None = Field(
        default=None,
        ge=1,
        description="ranks that count with alpha = flat; by default deeper where clicks are fewer",
    )
    joint_start: JointStart = Field(
        default="mean",
        description="what joint training begins with: both stages trained alone and then the mean of the two for both, "
        "each its own, or the policy to start from itself",
    )
    joint_rate: float = Field(
        default=0.25, gt=0, description="learning rate of joint training that begins with the mean, as a share"
    )
    joint_epochs: int = Field(default=8, ge=1, description="epochs of joint training that begins with the mean")
    joint_step: Literal["alternate", "together", "every-other"] = Field(
        default="together",
        description="for each minibatch one step after the other, all steps from one draw, or one step in turn",
    )


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
    def theta(self) -> NDArray[np.float64]:
        """The examination curve.  Shapes: -> [K]."""
        return models.examination_curve(self.shown, self.examination)

    @property
    def apart(self) -> float:
        """The share of the impressions that training does not see, because they say when to stop."""
        return 0.0 if self.training.stopping == "fixed" else self.held_out
