"""How a training went, and where it stands."""

from typing import NamedTuple


class Epoch(NamedTuple):
    """One line of the history; `held_out` is the judgement, `watched` what a caller asked to record beside it.

    Where held-out clicks judge, epoch 0 is what the phase starts from.
    """

    phase: str
    epoch: int
    objective: float
    held_out: float
    seconds: float
    watched: dict[str, float]


class Progress(NamedTuple):
    """Where a training stands: phase `phase` of `phases`, share `done` of epoch `epoch`, and the last full epoch."""

    phase: int
    phases: int
    epoch: int
    epochs: int
    done: float
    last: Epoch | None
