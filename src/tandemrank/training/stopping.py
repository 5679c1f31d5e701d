"""When to stop: the judgement on held-out clicks, smoothed over epochs."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tandemrank.logs.feedback import Feedback, exposure
from tandemrank.offpolicy.estimators import Floats, check_exposures, safe_ratio
from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.history import Epoch

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


Criterion = Callable[[TwoStagePolicy], float]

# A judgement is the mean of this many epochs': held-out clicks are few, and the noise of one epoch would choose for us.
SMOOTH = 5


def smoothed_judgement(epochs: Sequence[Epoch]) -> float:
    """Of the last of these epochs of one phase: the mean over SMOOTH of them.

    NaN for the first ones, which would have had to be lucky only once, and where no held-out clicks are met.
    """
    lately = [epoch.held_out for epoch in epochs[-SMOOTH:] if not np.isnan(epoch.held_out)]
    return sum(lately) / len(lately) if lately and len(epochs) >= SMOOTH else float("nan")


def chosen_epochs(history: Sequence[Epoch]) -> dict[str, int]:
    """The epoch whose weights each phase ended with: the first with the best judgement, or the last without any."""
    phases: dict[str, list[Epoch]] = {}
    for epoch in history:
        phases.setdefault(epoch.phase, []).append(epoch)
    found = {}
    for phase, epochs in phases.items():
        judged = [smoothed_judgement(epochs[: n + 1]) for n in range(len(epochs))]
        best = -1 if np.isnan(judged).all() else int(np.nanargmax(judged))
        found[phase] = epochs[best].epoch
    return found
