"""How a training went, and where it stands."""

from collections.abc import Sequence
from typing import NamedTuple


class Epoch(NamedTuple):
    """One line of the history; `held_out` is the judgement, `watched` what a caller asked to record beside it; `lost_share`,
    where items were drawn by cells, the share of the arrivals that this kept away.

    Where held-out clicks judge, epoch 0 is what the phase starts from.
    """

    phase: str
    epoch: int
    objective: float
    held_out: float
    seconds: float
    watched: dict[str, float]
    lost_share: float | None = None


class Progress(NamedTuple):
    """Where a training stands: phase `phase` of `phases`, share `done` of epoch `epoch`, and the last full epoch."""

    phase: int
    phases: int
    epoch: int
    epochs: int
    done: float
    last: Epoch | None


def lost_share(history: Sequence[Epoch]) -> float | None:
    """What draws by cells kept away of an epoch's arrivals, where it was most; None where every item was looked at."""
    return max((epoch.lost_share for epoch in history if epoch.lost_share is not None), default=None)


def lost_words(history: Sequence[Epoch]) -> str | None:
    """The same in words."""
    share = lost_share(history)
    words = "was drawn by cells of items, which kept away {:.2%} of an epoch's arrivals at most, as far as was seen."
    return None if share is None else words.format(share)
