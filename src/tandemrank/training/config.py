"""The switches of training and of the way to it; docs/explanation/experiment.md has reasons."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from tandemrank.clicks import models
from tandemrank.clicks.models import CellCurve
from tandemrank.logs.impressions import By
from tandemrank.training.schedules import ScheduleName

LIST_LENGTH = 10  # K where neither a switch nor a log says otherwise
EVALUATION_SHARE = 0.2
LARGEST = 10_000_000  # of any number of things: what is larger is a slip, and no machine has the memory

Gradient = Literal["race", "reinforce"]
RankWeights = Literal["flat", "examination"]


class TrainingConfig(BaseModel):
    """The switches of training."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    schedule: ScheduleName = Field(
        default="tandem",
        description="the phases of Joint: both stages alone and then from their mean for each other (tandem); or the paper's, "
        "for each other from the start, one after the other",
    )
    gradient: Gradient = Field(default="race", description="gradient estimator")
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
    optimiser: Literal["rows", "adam"] = Field(
        default="rows",
        description="how parameters move: a query's vector along its gradient by steps of one length, all rates falling to 0 "
        "over a phase (rows); or everything by Adam at a constant rate, as in the paper",
    )
    epochs: int = Field(default=16, ge=1, le=LARGEST, description="epochs per phase")
    rank_weights: RankWeights = Field(
        default="flat",
        description="weights of the ranks that training maximises, the paper's alpha_k: 1 down to a depth that is deeper where "
        "clicks are fewer, or the examination curve",
    )


class LearningConfig(BaseModel):
    """The switches from the log to the trained policy. What is None is decided by the log, or has no meaning there."""

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
    examination: Literal["reciprocal", "dcg"] | CellCurve | tuple[float, ...] = Field(
        default="reciprocal",
        description="examination curve: 1/k, 1/log2(k+1), a number for each rank, or for each rank and state",
    )
    propensity: Literal["auto", "exact", "frequency", "logged", "fitted"] = Field(
        default="auto",
        description="exact by the race over the logging policy, the frequency in the log, what was logged, or by the race over "
        "a policy fitted to the logged lists; auto takes the best that is there",
    )
    clip: Literal["paper", "quantile", "none"] = Field(
        default="quantile",
        description="propensities below it are raised to it: min(10/sqrt(N), 1), a small quantile of them, or none",
    )
    objective: Literal["beliefs", "ips"] = Field(
        default="beliefs",
        description="what training maximises: the clicks that the beliefs expect, or clicks weighted by inverse propensities",
    )
    model: str | None = Field(
        default=None,
        description="the model of features f that the beliefs may use: none, linear, towers, network, trees, or the class of a "
        "module of one's own (--plugin); by default all but the last are tried",
    )
    context: tuple[str, ...] = Field(
        default=(),
        description="columns of an own log that are the context of an impression, such as device and hour",
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
    safe: bool = Field(
        default=False, description="whether production is kept unless what was learned is surely better (the gate)"
    )
    training: TrainingConfig = TrainingConfig()

    @model_validator(mode="after")
    def _applies(self) -> "LearningConfig":
        """Refuses switches that would be ignored."""
        if self.exclude is not None and self.objective == "ips":
            raise ValueError(
                "exclude leaves clicked pairs out, and objective = ips has weights of no others: nothing would be learned. "
                "Use objective = beliefs"
            )
        if self.exclude is not None and self.safe:
            raise ValueError(
                "exclude and safe cannot be combined: the gate compares with production, which shows items again"
            )
        return self

    @property
    def K(self) -> int:
        """The places of a shown list."""
        return self.list_length or LIST_LENGTH

    @property
    def theta(self) -> NDArray[np.float64]:
        """The examination curve.  Shapes: -> [K], or [K, states] where it is by more than the rank."""
        if isinstance(self.examination, CellCurve):
            return self.examination.array
        return models.examination_curve(self.K, self.examination)

    @property
    def by(self) -> By | None:
        """What examination depends on beside the rank."""
        return self.examination.states if isinstance(self.examination, CellCurve) else None

    @property
    def offset(self) -> NDArray[np.float64] | None:
        """What is clicked beside what the curve says.  Shapes: -> [K]."""
        cells = self.examination
        return np.array(cells.offset) if isinstance(cells, CellCurve) and cells.offset else None
