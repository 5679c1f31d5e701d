"""The switches of the experiment, of which every choice that the paper leaves open is one (docs/explanation/experiment.md), and
the cells of a grid of experiments.
"""

from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from tandemrank.experiments.stage_models import Stages
from tandemrank.experiments.synthetic import LARGE
from tandemrank.policies.two_stage import CANDIDATES
from tandemrank.training.config import LARGEST, LearningConfig
from tandemrank.training.schedules import Method

# What an experiment would ignore.
OF_OWN_LOGS = {
    **{name: name for name in ("evaluation_share", "context", "exclude", "safe")},
    "by": "examination by more than the rank",
}
# Of a live production, but for what is given.
LIVE: dict[str, Any] = {
    "production": "live",
    "production_share": 0.5,
    "production_candidates": CANDIDATES,
    "logged_users": "all",
}


class ExperimentConfig(BaseModel):
    """The switches of the experiment; the paper's reading and ours are in PRESETS."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    data: str = Field(
        default="synthetic", description="synthetic, ml-1m, a zip or folder of MovieLens-1M, a ratings file"
    )
    queries: int | None = Field(default=None, ge=2, le=LARGEST, description="users of the synthetic world")
    items: int | None = Field(default=None, ge=2, le=LARGEST, description="items of the synthetic world")
    world_seed: int = Field(
        default=0, ge=0, lt=2**63, description="seed of the synthetic world; --seed does not change the world"
    )
    threshold: float | None = Field(default=None, description="a rating above it is relevant (3 for MovieLens)")
    relevant: float = Field(default=1.0, gt=0, le=1, description="chance of a click on an examined item of relevance 1")
    irrelevant: float = Field(
        default=0.0, ge=0, lt=1, description="chance of a click on an examined item of relevance 0"
    )
    production: Literal["mean", "ratings", "all", "live"] = Field(
        default="mean",
        description="production policy: SVD of the ratings of a share of users, the others start from their mean vector; or "
        "SVD of a share of all ratings; or SVD of all ratings; or live, a system of any size that has served all users: SVD "
        "of half of all ratings, two stages, lists that vary (the default above 50,000 items)",
    )
    production_share: float = Field(
        default=0.1, gt=0, lt=1, description="share of users or ratings that production knows; of live .5"
    )
    logged_users: Literal["rest", "all"] = Field(
        default="rest", description="users who are logged and evaluated: those production does not know, or all"
    )
    production_candidates: int | None = Field(
        default=None,
        ge=1,
        le=LARGEST,
        description="candidates of production's own generator, where production has two stages; by default it has one, and "
        "live has 500",
    )
    production_generator_rank: int | None = Field(
        default=None,
        ge=1,
        le=LARGEST,
        description="rank of production's own generator, with production_candidates; by default that of its re-ranker",
    )
    rank: int = Field(default=50, ge=1, le=LARGEST, description="dimension of the embeddings")
    temperature: float = Field(
        default=1.0,
        ge=1e-6,
        le=1e6,
        description="the logging policy's scores are divided by it; those of live, whose size depends on that of the world, "
        "have been made comparable first",
    )
    impressions: int = Field(default=100_000, ge=1, le=10**12, description="length of the log, N")
    item_features: bool = Field(default=False, description="whether the beliefs know the features of the items")
    learning: LearningConfig = LearningConfig()
    stages: Stages = Stages()

    @model_validator(mode="before")
    @classmethod
    def _live(cls, values: Any) -> Any:
        """What production is where nothing is said of it: of a large world a tenth of the users tell nothing of its items."""
        if not isinstance(values, dict):
            return values
        items, of_production = values.get("items"), {*LIVE, "temperature", "production_generator_rank"}
        if isinstance(items, int) and items > LARGE and not of_production & values.keys():
            values = values | {"production": "live"}
        return LIVE | values if values.get("production") == "live" else values

    @model_validator(mode="after")
    def _applies(self) -> "ExperimentConfig":
        """Refuses a name that no file can have here, and switches that would be ignored."""
        if not self.data.isprintable() or "\0" in self.data:
            raise ValueError("data: expected a name or a path of plain text")
        for name, what in OF_OWN_LOGS.items():
            if getattr(self.learning, name):
                raise ValueError(f"{what} is for logs of one's own (learn); an experiment is judged by the truth")
        if self.production_generator_rank is not None and self.production_candidates is None:
            raise ValueError(
                "production_generator_rank is for a production of two stages: give production_candidates too, or leave it out"
            )
        if (self.production_generator_rank or 1) > self.rank:
            raise ValueError(
                f"production_generator_rank = {self.production_generator_rank}, but production's embeddings have rank = "
                f"{self.rank}. Give fewer"
            )
        return self


# By the plain names of the switches.
PRESETS: dict[str, dict[str, Any]] = {
    "tandem": {},
    # The study of two models (`when_joint`): from what production knows, by inverse propensities, as the paper does.
    # Steps are twice as long as for one model that starts from itself: on pilot runs every method gained by it.
    "stages": {"objective": "ips", "learning_rate": 0.4},
    "paper": {
        "objective": "ips",
        "propensity": "frequency",
        "clip": "paper",
        "schedule": "paper",
        "gradient": "reinforce",
        "samples": 300,
        "epochs": 30,
        "learning_rate": 0.01,
        "shared_rate": 1.0,
        "optimiser": "adam",
        "rank_weights": "examination",
    },
}


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
