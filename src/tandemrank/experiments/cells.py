"""What a grid is made of: its switches and its cells."""

from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from tandemrank.experiments.config import ExperimentConfig
from tandemrank.policies.two_stage import CANDIDATES
from tandemrank.training.config import LARGEST
from tandemrank.training.schedules import Method


class GridConfig(BaseModel):
    """What a table is made of."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    experiment: ExperimentConfig = ExperimentConfig()
    methods: tuple[Method, ...] = Field(
        default=("beliefs", "baseline", "independent", "joint"), min_length=1, description="the methods to compare"
    )
    candidates: tuple[PositiveInt, ...] = Field(
        default=(CANDIDATES,), min_length=1, description="numbers of candidates, K2"
    )
    impressions: tuple[PositiveInt, ...] = Field(default=(100_000,), min_length=1, description="lengths of the log, N")
    runs: int = Field(
        default=3, ge=1, le=LARGEST, description="independent runs: production policy, log and training anew"
    )
    references: bool = Field(
        default=True, description="rows to compare with: random, popularity, production, full information"
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="the seed that every other seed is derived from")

    @model_validator(mode="after")
    def _applies(self) -> "GridConfig":
        """Refuses a switch that would be ignored."""
        if self.experiment.learning.candidates is not None:
            raise ValueError("a table has its own list of candidates: leave the number of what it is made of out")
        return self


class Cell(NamedTuple):
    """The coordinates of one training."""

    method: Method
    K2: int
    N: int
    run: int

    @property
    def name(self) -> str:
        """The name of its record."""
        return f"{self.method}-K2-{self.K2}-N-{self.N}-run-{self.run}"


def cells(config: GridConfig) -> list[Cell]:
    """All cells, run by run, so that a table that is not finished has whole runs; of a run the longest logs first."""
    return [
        Cell(method, K2, N, run)
        for run in range(config.runs)
        for N in sorted(config.impressions, reverse=True)
        for K2 in config.candidates
        for method in config.methods
    ]
