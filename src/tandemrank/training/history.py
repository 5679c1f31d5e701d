"""How a training went, where it stands, and when to stop: the judgement on held-out clicks, smoothed over epochs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tandemrank.logs.feedback import Feedback, exposure
from tandemrank.offpolicy.estimators import Floats, check_exposures, safe_ratio


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


Judge = Callable[[NDArray[np.int64], NDArray[np.int32]], float]


def held_out_dcg(rho_0: Floats, feedback: Feedback, theta: Floats) -> Judge:
    """A judge of lists: their self-normalised DCG on held-out clicks, which follows the true NDCG closely.

        sum_{q, d in list} disc_k c(q, d) / rho_0(d)  /  sum_{q, d in list} disc_k e(q, d) / rho_0(d)

    with disc_k = 1 / log2(k + 1), c the clicks and e the exposure of the held-out log. NaN where no list meets the log.
    Shapes: rho_0 [P], theta [K]; the judge takes queries [n] and lists [n, K].
    """
    check_exposures(rho_0, rho_0, feedback)
    w = safe_ratio(np.ones(len(rho_0)), rho_0, feedback.shown)
    key, first = np.unique(feedback.query.astype(np.int64) * feedback.D + feedback.item, return_index=True)
    clicks, seen = (np.add.reduceat(w * x, first) for x in (feedback.clicks, exposure(feedback, theta)))

    def judge(q: NDArray[np.int64], lists: NDArray[np.int32]) -> float:
        wanted = q[:, None] * np.int64(feedback.D) + lists
        at = np.minimum(np.searchsorted(key, wanted), len(key) - 1)
        discount = np.where((key[at] == wanted) & (lists >= 0), 1 / np.log2(np.arange(2, lists.shape[1] + 2)), 0.0)
        total = float((discount * seen[at]).sum())
        return float((discount * clicks[at]).sum()) / total if total > 0 else float("nan")

    return judge


# A judgement is the mean of this many epochs': held-out clicks are few, and the noise of one epoch would choose for us.
SMOOTH = 5


def smoothed_judgement(epochs: Sequence[Epoch], window: int = SMOOTH) -> float:
    """Of the last of these epochs of one phase: the mean over `window` of them.

    NaN for the first ones, which would have had to be lucky only once, and where no held-out clicks are met.
    """
    own = [epoch for epoch in epochs if epoch.epoch > 0]
    lately = [epoch.held_out for epoch in own[-window:] if not np.isnan(epoch.held_out)]
    return sum(lately) / len(lately) if lately and len(own) >= window else float("nan")


@dataclass
class Best:
    """The best judgement of a phase so far, and its epoch.

    The start is among those that may be chosen: an epoch is better only by its smoothed judgement, and never where its own
    is below the start's, so that no phase ends worse than it began on the held-out clicks.
    """

    judgement: float = -float("inf")
    epoch: int = 0
    start: float = -float("inf")

    def improves(self, epochs: Sequence[Epoch], window: int) -> bool:
        """Takes note of the last of these epochs of one phase, and says whether it is the best so far."""
        last = epochs[-1]
        if last.epoch == 0:
            if not np.isnan(last.held_out):
                self.judgement = self.start = last.held_out
            return True
        found = smoothed_judgement(epochs, window)
        if not (found > self.judgement and last.held_out >= self.start):
            return False
        self.judgement, self.epoch = found, last.epoch
        return True

    def has_stalled(self, epoch: int, patience: int) -> bool:
        """Whether nothing was better for so many epochs; waiting begins when the first judgement is whole."""
        return epoch - max(self.epoch, SMOOTH) >= patience


def chosen_epochs(history: Sequence[Epoch]) -> dict[str, int]:
    """The epoch whose weights each phase ended with: the first with the best judgement, or the last without any."""
    phases: dict[str, list[Epoch]] = {}
    for epoch in history:
        phases.setdefault(epoch.phase, []).append(epoch)
    found = {}
    for phase, epochs in phases.items():
        best, window = Best(), min(SMOOTH, epochs[-1].epoch)
        for n in range(len(epochs)):
            best.improves(epochs[: n + 1], window)
        found[phase] = best.epoch if np.isfinite(best.judgement) else epochs[-1].epoch
    return found
