"""The switches of training and of the way from a log to it; docs/experiment.md has a row with the reasons for each."""

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tandemrank.clicks import models
from tandemrank.training.schedules import ScheduleName

LIST_LENGTH = 10  # K where neither a switch nor a log says otherwise
EVALUATION_SHARE = 0.2
LARGEST = 10_000_000  # of any number of things: what is larger is a slip, and no machine has the memory

RankWeights = Literal["flat", "examination"] | Annotated[int, Field(ge=1, le=LARGEST)]


class EarlyStopping(BaseModel):
    """A phase ends when its validation score, from held-out clicks, stops improving; it keeps the weights of its best epoch."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    patience: int = Field(
        default=10, ge=1, le=LARGEST, description="epochs without a better validation score before a phase ends"
    )
    held_out_share: float = Field(
        default=0.15, gt=0, lt=1, description="share of the impressions that are held out for early stopping"
    )


class TrainingConfig(BaseModel):
    """The switches of training."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    schedule: ScheduleName = Field(
        default="tandem",
        description="the phases of joint training: both stages alone and then from their mean for each other; the paper's, "
        "for each other from the start, one after the other; the mean and nothing else; or one stage alone for both, with "
        "twice the draws, and then for each other (once)",
    )
    gradient: Literal["race", "reinforce"] = Field(default="race", description="gradient estimator")
    race: Literal["auto", "dense", "sparse"] = Field(
        default="auto",
        description="the race over all items, or over candidates only and a sample (sparse); auto takes the sparse one above "
        "20,000 items, and for a re-ranker that cannot score everything",
    )
    samples: int = Field(default=1, ge=1, le=LARGEST, description="Monte-Carlo samples per gradient")
    minibatch: int | None = Field(
        default=None,
        ge=1,
        le=LARGEST,
        description="queries per minibatch; by default 256, or a twelfth of the queries with clicks where those are fewer",
    )
    learning_rate: float = Field(default=0.2, gt=0, le=1000, description="learning rate of what belongs to one query")
    shared_rate: float = Field(
        default=0.04,
        gt=0,
        le=1000,
        description="learning rate of what all queries share, the items, as a share of learning_rate",
    )
    rate: Literal["falling", "constant"] = Field(
        default="falling", description="learning rates over a phase: linear decay to 0, or constant"
    )
    query_step: Literal["direction", "adam"] = Field(
        default="direction",
        description="how the vector of a query moves: along its gradient by steps of one length, or by Adam",
    )
    epochs: int = Field(default=16, ge=1, le=LARGEST, description="epochs per phase, at most")
    refine: int = Field(
        default=0,
        ge=0,
        le=LARGEST,
        description="epochs per phase, at most, where both stages start from the posterior: training on top of it",
    )
    rank_weights: RankWeights = Field(
        default="flat",
        description="weights of the ranks that training maximises, the paper's alpha_k: 1 down to a depth that is deeper where "
        "clicks are fewer, the examination curve, or 1 down to the given depth",
    )
    early_stopping: EarlyStopping | None = Field(
        default=None,
        description="whether a phase is stopped early, by held-out clicks; without it a phase has all its epochs",
    )

    @field_validator("early_stopping", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        """True and false as a switch: with the defaults, or not at all."""
        if isinstance(value, bool):
            return EarlyStopping() if value else None
        return value


class Safety(BaseModel):
    """Caution: training that stays near production as long as clicks are few, and a pair that is surely not worse."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    safe_objective: Literal["exposure", "prpo", "smoothing"] = Field(
        default="exposure",
        description="what limits training: the exposure risk, the clip of PRPO, or logarithmic smoothing of the weights",
    )
    safe_delta: float = Field(
        default=0.05, gt=0, lt=1, description="the chance with which the exposure risk may be exceeded"
    )
    safe_reach: float | None = Field(
        default=None,
        gt=0,
        description="how far from production's exposure is rewarded: 1 + reach times (prpo), or where smoothing sets in; by "
        "default the impressions per query",
    )
    gate: bool = Field(
        default=True,
        description="whether a pair is kept only if it is surely better than production on the part that values it",
    )
    gate_independent: Literal["impressions", "queries"] | None = Field(
        default=None, description="what the gate takes as independent of each other, as in `decide`"
    )


class LearningConfig(BaseModel):
    """The switches from the log to the trained pair. What is None is decided by the log, or has no meaning there."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    list_length: int | None = Field(
        default=None,
        ge=1,
        le=LARGEST,
        description="places of a shown list, K; by default the longest list of an own log, 10 in an experiment",
    )
    candidates: int | None = Field(
        default=None,
        ge=1,
        le=LARGEST,
        description="candidates of the generator, K2; by default 500, or all items if fewer",
    )
    examination: Literal["reciprocal", "dcg"] | tuple[float, ...] = Field(
        default="reciprocal", description="examination curve: 1/k, 1/log2(k+1), or a number for each rank"
    )
    propensity: Literal["auto", "exact", "frequency", "logged", "fitted"] = Field(
        default="auto",
        description="exact by the race over the logging policy, the frequency in the log, what was logged, or by the race over "
        "a policy fitted to the logged lists; auto takes the best that is there",
    )
    propensity_samples: int | None = Field(
        default=None,
        ge=2,
        le=LARGEST,
        description="samples of propensities by the race, exact or fitted; by default 50",
    )
    clip: Literal["paper", "quantile", "none"] | float = Field(
        default="quantile",
        description="propensities below it are raised to it: min(10/sqrt(N), 1), a small quantile of them, or a number",
    )
    clip_quantile: float | None = Field(
        default=None, ge=0, lt=1, description="the small quantile, with clip = quantile; by default 0.001"
    )
    initial: Literal["posterior", "given"] | None = Field(
        default=None,
        description="what both stages are before training: the posterior of the log with its memory, to which what is given is "
        "the prior, or what is given; by default the posterior, with `safe` what is given",
    )
    memory: int = Field(
        default=20_000_000,
        ge=0,
        description="shown pairs that each stage remembers at most, those that say most; one takes 8 bytes",
    )
    objective: Literal["posterior", "doubly-robust", "ips"] = Field(
        default="posterior",
        description="what training maximises: clicks that the posterior of the log expects, the same and what it leaves "
        "unexplained weighted by inverse propensities, or clicks weighted by inverse propensities",
    )
    evaluation_share: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="share of an own log's impressions that are held out to value what was trained; by default 0.2",
    )
    exclude: Literal["clicked", "shown"] | None = Field(
        default=None,
        description="for recommenders that must not repeat: what a query has clicked, or was shown, in the log is not "
        "available to either stage, and does not count",
    )
    safe: Safety | None = Field(
        default=None, description="whether training is careful, and keeps production where nothing is surely better"
    )
    training: TrainingConfig = TrainingConfig()

    @field_validator("safe", mode="before")
    @classmethod
    def _careful(cls, value: Any) -> Any:
        """True and false as a switch, and the name of an objective alone."""
        if isinstance(value, bool):
            return Safety() if value else None
        return {"safe_objective": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _applies(self) -> "LearningConfig":
        """Refuses switches that would be ignored."""
        if self.propensity_samples is not None and self.propensity in ("frequency", "logged"):
            raise ValueError(
                f"propensity_samples is for propensities by the race, exact or fitted; propensity is {self.propensity}, "
                "which draws no samples. Leave one of the two out"
            )
        if self.exclude is not None and self.objective == "ips":
            raise ValueError(
                "exclude leaves clicked pairs out, and objective = ips has weights of no others: nothing would be learned. "
                "Choose objective = posterior or doubly-robust"
            )
        if self.exclude is not None and self.safe is not None:
            raise ValueError("exclude and safe cannot be had together: caution compares with what production repeats")
        if self.clip_quantile is not None and self.clip != "quantile":
            raise ValueError(f"clip_quantile is for clip = quantile; clip is {self.clip}. Leave one of the two out")
        return self

    @property
    def from_posterior(self) -> bool:
        """Whether both stages start from the posterior of the log."""
        return self.initial == "posterior" or (self.initial is None and self.safe is None)

    @property
    def K(self) -> int:
        """The places of a shown list."""
        return self.list_length or LIST_LENGTH

    @property
    def theta(self) -> NDArray[np.float64]:
        """The examination curve.  Shapes: -> [K]."""
        return models.examination_curve(self.K, self.examination)

    @property
    def held_out_share(self) -> float:
        """The share of the impressions that training does not see, because they say when to stop."""
        stopping = self.training.early_stopping
        return 0.0 if stopping is None else stopping.held_out_share
