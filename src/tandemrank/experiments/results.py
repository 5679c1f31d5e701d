"""What experiments come to, as types: the record of a cell, the table of a grid and its parts, the figures of saved policies.

They become JSON at the edge only (`_base.files.as_json`), and again what they were (`from_json`). JSON has no NaN: a number
that is not known is null there.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BeforeValidator, JsonValue, TypeAdapter

from tandemrank._base.results import Result, within
from tandemrank.training.checkpoint import Epoch

Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
Setting = tuple[int, int]  # K2, N

Figure = Literal["ndcg", "ndcg_new", "ndcg_expected", "recall_at_K2", "utility", "generator_alone", "ranker_alone"]
FIGURES: tuple[Figure, ...] = get_args(Figure)


@dataclass(frozen=True)
class Mean:
    """A mean over queries or runs with its 95% interval."""

    mean: Number = math.nan
    low: Number = math.nan
    high: Number = math.nan
    n: int = 0


UNKNOWN = Mean()


def _interval(found: Mean) -> dict[str, float]:
    return {"value": found.mean, "low": found.low, "high": found.high}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What one policy is truly worth, each figure a mean: see `evaluation.Evaluation`."""

    ndcg: Mean = UNKNOWN
    ndcg_new: Mean = UNKNOWN
    ndcg_expected: Mean = UNKNOWN
    recall_at_K2: Mean = UNKNOWN
    utility: Mean = UNKNOWN
    generator_alone: Mean = UNKNOWN
    ranker_alone: Mean = UNKNOWN

    def of(self, figure: Figure) -> Mean:
        """The figure of that name."""
        found: Mean = getattr(self, figure)
        return found


@dataclass(frozen=True, kw_only=True)
class Reference(Figures):
    """Something to compare with: random lists, popularity, production, full information."""

    name: str


@dataclass(frozen=True)
class Curve:
    """How one training went, epoch by epoch."""

    method: str
    K2: int
    N: int
    run: int
    history: tuple[Epoch, ...]


@dataclass(frozen=True, kw_only=True)
class Record(Figures):
    """One finished cell of a grid. `ndcg_users`: NDCG of every user, where there is one run, so that users are compared."""

    method: str
    K2: int
    N: int
    run: int
    seconds: Number
    history: tuple[Epoch, ...]
    ndcg_users: tuple[Number, ...] = ()

    @property
    def curve(self) -> Curve:
        """How it went."""
        return Curve(self.method, self.K2, self.N, self.run, self.history)


@dataclass(frozen=True, kw_only=True)
class Row(Figures):
    """A method in a setting: means over its runs; intervals are over runs, over users where there is one run."""

    method: str
    K2: int
    N: int
    runs: int
    seconds: Number
    ndcg_runs: tuple[Number, ...]

    @property
    def setting(self) -> Setting:
        """(K2, N)."""
        return self.K2, self.N


@dataclass(frozen=True, kw_only=True)
class NdcgDifference(Mean):
    """NDCG of `method` less that of `against`, paired over the runs, or over the users of one run."""

    K2: int
    N: int
    method: str
    against: str
    runs: int
    kind: Literal["runs", "users"]

    @property
    def verdict(self) -> Literal["ahead", "behind", "level"]:
        """Level: 0 is inside the interval, or there is none."""
        return "ahead" if self.low > 0 else "behind" if self.high < 0 else "level"


@dataclass(frozen=True)
class PaperRow:
    """What the paper prints for a method in a setting."""

    method: str
    K2: int
    N: int
    ndcg: Number


@dataclass(frozen=True)
class WorldFacts:
    """What an experiment ran on, how long and where."""

    data: str
    queries: int
    items: int
    logged_users: int
    positives: int
    machine: str
    seconds: Number


@dataclass(frozen=True, kw_only=True, repr=False)
class Table(Result):
    """The result of a grid: everything that a report shows."""

    drawn_by = "experiment"

    title: str
    command: str
    version: str
    world: WorldFacts
    switches: dict[str, JsonValue]
    rows: tuple[Row, ...]
    references: tuple[Reference, ...]
    differences: tuple[NdcgDifference, ...]
    curves: tuple[Curve, ...]
    paper: tuple[PaperRow, ...]

    def _lines(self) -> list[str]:
        each = [
            f"K2 = {x['K2']}, N = {x['N']}, {x['method']}: {x['value']:.3f} {within(x['low'], x['high'])}"
            for x in self._rows()
        ]
        return [f"{self.title}: NDCG on {self.world.data}", *each]

    def _rows(self) -> list[dict[str, Any]]:
        return [{"K2": x.K2, "N": x.N, "method": x.method, **_interval(x.ndcg), "runs": x.runs} for x in self.rows]

    @cached_property
    def methods(self) -> list[str]:
        """The methods in the order of the rows."""
        return list(dict.fromkeys(row.method for row in self.rows))

    @cached_property
    def settings(self) -> list[Setting]:
        """Every (K2, N), in order."""
        return sorted({row.setting for row in self.rows})

    def ndcg(self, method: str, setting: Setting) -> Mean:
        """NDCG of a method in a setting."""
        return next((row.ndcg for row in self.rows if (row.method, row.setting) == (method, setting)), UNKNOWN)

    def leader(self, setting: Setting) -> str | None:
        """The method with the highest NDCG in a setting."""
        known = {row.method: row.ndcg.mean for row in self.rows if row.setting == setting}
        return max(known, key=lambda method: known[method], default=None)

    def paper_ndcg(self, method: str, setting: Setting) -> float:
        """The paper's figure for a setting; its N (0.32M) and ours (316,228) may be rounded differently."""
        for row in self.paper:
            if (row.method, row.K2) == (method, setting[0]) and math.isclose(row.N, setting[1], rel_tol=0.05):
                return row.ndcg
        return math.nan

    @property
    def K(self) -> int:
        """The places of a shown list."""
        length = self.switches.get("list_length")
        return length if isinstance(length, int) else 10


@dataclass(frozen=True, kw_only=True)
class PolicyFigures(Figures):
    """The figures of a saved policy."""

    policy: str


@dataclass(frozen=True, kw_only=True)
class FigureDifference(Mean):
    """A figure of `policy` less that of `against`, paired by query."""

    policy: str
    against: str
    figure: Figure


@dataclass(frozen=True, repr=False)
class Evaluated(Result):
    """Saved policies on the truth, and the first less each other one."""

    data: str
    policies: tuple[PolicyFigures, ...]
    differences: tuple[FigureDifference, ...]
    notes: tuple[str, ...] = ()

    def _lines(self) -> list[str]:
        each = [f"{x.policy}: NDCG {x.ndcg.mean:.3f} {within(x.ndcg.low, x.ndcg.high)}" for x in self.policies]
        return [f"on {self.data}", *each, *self.notes]

    def _rows(self) -> list[dict[str, Any]]:
        found = [(one.policy, figure, one.of(figure)) for one in self.policies for figure in FIGURES]
        return [{"policy": name, "figure": figure, **_interval(x)} for name, figure, x in found]


@dataclass(frozen=True)
class SimulatedLog:
    """A log that was drawn, and the policy that drew it."""

    data: str
    impressions: int
    users: int
    items: int
    log: str
    production: str


Kept = TypeVar("Kept")

_READERS: dict[object, TypeAdapter[Any]] = {}  # making one takes longer than reading a record


def from_json(kind: type[Kept], text: str | bytes) -> Kept:
    """The result that a JSON text holds; a `ValueError` where it holds none."""
    if kind not in _READERS:
        _READERS[kind] = TypeAdapter(kind)
    found: Kept = _READERS[kind].validate_json(text)
    return found
