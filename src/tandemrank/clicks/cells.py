"""Clicks by cells: by rank and by what else they depend on, the last click above, a column of the log, trust in high ranks.

P(C = 1 | q, d, k, state) = theta[k, state] R[q, d] + offset_k                  one state and no offset: (paper: click-model)
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tandemrank._base.files import regular
from tandemrank.clicks.models import check_examination, read_curve
from tandemrank.errors import ConfigError
from tandemrank.logs.impressions import By

RANK = "rank"


@dataclass(frozen=True)
class CellCurve:
    """Clicks by rank and by what else they depend on:  P(C = 1) = theta[k, state] R + offset_k.

    `by` the last click above, or a column of the log with these `values` (`logs.impressions.By`), or "rank": one state alone.
    `offset`: what is clicked at a rank whatever stands there, less what R would be there (`clicks.trust`); none where empty.
    """

    theta: tuple[tuple[float, ...], ...]
    by: str = RANK
    values: tuple[str, ...] = ()
    offset: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuses what is no chance, and rows of different lengths."""
        right = bool(self.theta) and len({len(row) for row in self.theta}) == 1
        if not right or len(self.offset) not in (0, len(self.theta)):
            raise ConfigError(
                "expected examination with as many states for every rank, as `tandemrank examine` prints it."
            )
        for state in zip(*self.theta, strict=True):
            check_examination(state)

    @property
    def states(self) -> By | None:
        """What examination depends on beside the rank."""
        return None if self.by == RANK else By(self.by, self.values)

    @property
    def array(self) -> NDArray[np.float64]:
        """Shapes: -> [K], or [K, states]."""
        found = np.array(self.theta)
        return found[:, 0] if self.by == RANK else found


def theta_of(examination: "ArrayLike | CellCurve") -> NDArray[np.float64]:
    """Shapes: -> [K], or [K, states] where it is by more than the rank."""
    return examination.array if isinstance(examination, CellCurve) else np.asarray(examination, np.float64)


def read_examination(path: str | Path) -> tuple[float, ...] | CellCurve:
    """As `read_curve`; where the file has examination by more than the rank, that."""
    theta = read_curve(path)
    found = json.loads(regular(path).read_text(encoding="utf-8"))
    cells = found.get("cells") if isinstance(found, dict) else None
    if cells is None:
        return theta
    try:
        rows = tuple(tuple(float(x) for x in row) for row in cells["theta"])
        values, offset = tuple(map(str, cells["values"])), tuple(map(float, cells["offset"]))
        return CellCurve(rows, str(cells["by"]), values, offset)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: expected `cells` as `tandemrank examine --json` prints; got something else ({error})."
        ) from error
