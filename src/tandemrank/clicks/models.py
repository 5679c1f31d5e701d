"""Click models and examination curves.

P(C = 1 | d, q, k) = theta_k R[q, d]                   the position-based model      (paper: click-model)
P(C = 1 | d, q, k) = alpha_k R[q, d] + beta_k          with trust bias; theta = alpha and beta = 0 is the first
P(C = 1 | q, d, k, state) = theta[k, state] R[q, d] + offset_k      by what else it depends on (`CellCurve`)
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tandemrank._base.arguments import checked
from tandemrank._base.files import regular
from tandemrank.errors import ConfigError

if TYPE_CHECKING:
    from tandemrank.logs.impressions import By

MOST_LENGTH = 10**8  # of a list that is simulated
MOST_RANKS = 512  # of a list in a log
SMALLEST = 1e-6  # of what is looked at at all: what is rarer gives one click the weight of a million


@dataclass(frozen=True)
class ClickModel:
    """Click probability alpha_k R + beta_k at rank k. Shapes: alpha, beta [K]."""

    alpha: NDArray[np.float64]
    beta: NDArray[np.float64]

    def __post_init__(self) -> None:
        """Refuses curves that are not probabilities for every relevance in [0, 1]."""
        check_examination(self.alpha)
        if self.beta.shape != self.alpha.shape or not (np.all(self.beta >= 0) and np.all(self.alpha + self.beta <= 1)):
            raise ConfigError(
                f"expected trust bias beta >= 0 with alpha + beta <= 1 at each of {len(self.alpha)} ranks; "
                f"got beta = {self.beta}."
            )


@checked
def examination_curve(K: int = 10, curve: str | Sequence[float] = "reciprocal") -> NDArray[np.float64]:
    """The chance theta_k that rank k is looked at; 0 after rank K.

    "reciprocal" 1/k, "dcg" 1/log2(k+1), or a curve of one's own, of which the first K ranks count.
    Shapes: -> [K].
    """
    if not 1 <= K <= MOST_LENGTH:
        raise ConfigError(f"expected K from 1 to {MOST_LENGTH:,}; got {K}.")
    if isinstance(curve, str):
        k = np.arange(1, K + 1, dtype=np.float64)
        if curve == "reciprocal":
            return 1 / k
        if curve == "dcg":
            return 1 / np.log2(k + 1)
        raise ConfigError(f'expected the curve "reciprocal" or "dcg", or one of your own; got {curve!r}.')
    own = check_examination(curve)
    if len(own) < K:
        raise ConfigError(
            f"expected an examination curve of {K} ranks or more; got {len(own)}. Give a longer one (--curve), or show "
            "fewer places (--list-length)."
        )
    return own[:K]


def read_curve(path: str | Path) -> tuple[float, ...]:
    """The curve in a JSON file: what `tandemrank examine --json` prints, or a list of numbers, rank 1 first."""
    expected = f"{path}: expected JSON with `theta`, a list of numbers, as `tandemrank examine --json` prints"
    try:
        found = json.loads(regular(path).read_text(encoding="utf-8"))
        theta = [float(x) for x in (found["theta"] if isinstance(found, dict) else found)]
    except OSError as error:
        raise ConfigError(f"{expected}; it cannot be read ({error.strerror}).") from error
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{expected}; got something else ({error}).") from error
    try:
        return tuple(check_examination(theta).tolist())
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def check_examination(theta: ArrayLike) -> NDArray[np.float64]:
    """A curve given by the user as an array, refused unless its values are chances and the first is above 0.

    Shapes: theta [K] -> [K].
    """
    try:
        given = theta.detach() if hasattr(theta, "detach") else theta  # a tensor, of which there may be a gradient
        curve = np.ascontiguousarray(given, dtype=np.float64) if np.ndim(given) else np.asarray(given, np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ConfigError(f"expected an examination curve, one number per rank; got {str(theta)[:60]}.") from error
    if curve.ndim != 1 or not len(curve):
        raise ConfigError(f"expected an examination curve, one number per rank; got shape {curve.shape}.")
    if len(curve) > MOST_RANKS:
        raise ConfigError(
            f"expected an examination curve of at most {MOST_RANKS} ranks; got {len(curve):,}. Leave out the last ones."
        )
    bad = np.flatnonzero(~(((curve >= SMALLEST) | (curve == 0)) & (curve <= 1)))
    if len(bad) and 0 < curve[bad[0]] < SMALLEST:
        raise ConfigError(
            f"expected examination of 0, or at least {SMALLEST:g}; rank {bad[0] + 1} has {curve[bad[0]]}. "
            "Give 0 where nobody looks."
        )
    if len(bad):
        raise ConfigError(
            f"expected examination from 0 to 1 at every rank; rank {bad[0] + 1} has {curve[bad[0]]}. "
            "Divide the curve by its largest value if it is only known up to a factor."
        )
    if curve[0] == 0:
        raise ConfigError("expected examination above 0 at rank 1; got 0. Leave out ranks nobody looks at.")
    return curve


def position_based(theta: ArrayLike) -> ClickModel:
    """The position-based click model of an examination curve (paper: click-model). Shapes: theta [K]."""
    theta = check_examination(theta)
    return ClickModel(theta, np.zeros_like(theta))


def noisy(theta: ArrayLike, relevant: float = 1.0, irrelevant: float = 0.0, trust_bias: float = 0.0) -> ClickModel:
    """Users who also click what is irrelevant, the more so the higher it stands (trust bias).

        P(C = 1) = theta_k (r0_k + (r1 - r0_k) R),   r0_k = irrelevant + trust_bias / k,   r1 = relevant

    With the defaults it is the position-based model. Shapes: theta [K].
    """
    theta = check_examination(theta)
    if irrelevant < 0 or trust_bias < 0 or not irrelevant + trust_bias < relevant <= 1:
        raise ConfigError(
            f"expected irrelevant + trust_bias < relevant <= 1, none below 0; got {irrelevant}, {trust_bias} and {relevant}."
        )
    r0 = irrelevant + trust_bias / np.arange(1, len(theta) + 1)
    return ClickModel(theta * (relevant - r0), theta * r0)


def click_probability(model: ClickModel, R: NDArray[np.floating]) -> NDArray[np.float64]:
    """P(C = 1) of documents with relevance R at ranks 1, 2, ... of their list. Shapes: R [..., K] -> [..., K]."""
    K = R.shape[-1]
    return model.alpha[:K] * R + model.beta[:K]


RANK = "rank"


@dataclass(frozen=True)
class CellCurve:
    """Clicks by rank and by what else they depend on:  P(C = 1) = theta[k, state] R + offset_k.

    `by` the last click above, or a column of the log with these `values` (`logs.impressions.By`), or "rank": one state alone.
    `offset`: what is clicked at a rank whatever stands there, less what R would be there (`clicks.trust`); none where empty.
    `down`: of last clicks, how readers go on (`clicks.stopping`).
    `positions`: the names of the ranks, or their cells in a grid (`logs.layouts`), where they have some.
    """

    theta: tuple[tuple[float, ...], ...]
    by: str = RANK
    values: tuple[str, ...] = ()
    offset: tuple[float, ...] = ()
    positions: tuple[str, ...] = ()
    down: bool = True

    def __post_init__(self) -> None:
        """Refuses what is no chance, and rows of different lengths."""
        right = bool(self.theta) and len({len(row) for row in self.theta}) == 1
        if not right or len(self.offset) not in (0, len(self.theta)):
            raise ConfigError(
                "expected examination with as many states for every rank, as `tandemrank examine` prints it."
            )
        if self.positions and len(set(self.positions)) != len(self.theta):
            raise ConfigError(
                f"expected a name for each of {len(self.theta)} positions, all different; got {len(set(self.positions))}."
            )
        for state in zip(*self.theta, strict=True):
            check_examination(state)

    @property
    def states(self) -> "By | None":
        """What examination depends on beside the rank."""
        from tandemrank.logs.impressions import By

        return None if self.by == RANK else By(self.by, self.values, self.down)

    @property
    def array(self) -> NDArray[np.float64]:
        """Shapes: -> [K], or [K, states]."""
        found = np.array(self.theta)
        return found[:, 0] if self.by == RANK else found


def theta_of(examination: "ArrayLike | CellCurve") -> NDArray[np.float64]:
    """Shapes: -> [K], or [K, states] where it is by more than the rank."""
    return examination.array if isinstance(examination, CellCurve) else np.asarray(examination, np.float64)


def read_examination(path: str | Path) -> tuple[float, ...] | CellCurve:
    """As `read_curve`; where the file has examination by more than the rank, or of positions with names, that."""
    theta = read_curve(path)
    found = json.loads(regular(path).read_text(encoding="utf-8"))
    found = found if isinstance(found, dict) else {}
    cells, names = found.get("cells"), found.get("positions", ())
    if cells is None and not names:
        return theta
    try:
        if cells is None:
            order = np.argsort(-np.array(theta), kind="stable")
            return CellCurve(tuple((theta[k],) for k in order), positions=tuple(str(names[k]) for k in order))
        rows = tuple(tuple(float(x) for x in row) for row in cells["theta"])
        values, offset = tuple(map(str, cells["values"])), tuple(map(float, cells["offset"]))
        names = tuple(map(str, cells.get("positions", ())))
        return CellCurve(rows, str(cells["by"]), values, offset, names, down=bool(cells.get("down", True)))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(
            f"{path}: expected `cells` as `tandemrank examine --json` prints, or `positions`, a name for each rank; got "
            f"something else ({error})."
        ) from error
