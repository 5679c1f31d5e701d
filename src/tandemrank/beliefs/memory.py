"""The memory of a log: what a pair's own showings say about its relevance, exactly, as one number per pair that was shown.

An examined item is clicked with chance r1 if it is relevant to the query and r0 if it is not, and rank k is examined with
chance theta_k. Then the showings of a pair enter every posterior through their log-likelihood ratio alone,

    l[q, d] = sum over showings [ c log(r1 / r0) + (1 - c) log((1 - theta_k r1) / (1 - theta_k r0)) ]

It needs no propensity and no clip, and pairs that were never shown have none: it is sparse. A score that is a log-odds
plus the memory is the log-odds of the posterior.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tandemrank.errors import ConfigError
from tandemrank.logs.feedback import Feedback, exposure
from tandemrank.policies.memory import Memory, memory_from

Floats = NDArray[np.float64]

# What one showing may say at most: with r0 = 0 a click proves relevance, and two proofs against each other stay a number.
LARGEST = 30.0


@dataclass(frozen=True)
class Noise:
    """The chance that an examined item is clicked: `relevant` (r1) if it is relevant, `irrelevant` (r0) if it is not."""

    relevant: float
    irrelevant: float

    def __post_init__(self) -> None:
        """Refuses what is not 0 <= r0 < r1 <= 1."""
        if not 0 <= self.irrelevant < self.relevant <= 1:
            raise ConfigError(
                f"expected click chances 0 <= irrelevant < relevant <= 1; irrelevant = {self.irrelevant} and "
                f"relevant = {self.relevant} came."
            )

    def rate(self, p: Floats) -> Floats:
        """The click chance of an examined item that is relevant with chance p.  Shapes: p [...] -> [...]."""
        return self.irrelevant + (self.relevant - self.irrelevant) * p


def memory_of(feedback: Feedback, theta: Floats, noise: Noise) -> Memory:
    """The memory of a log, from its sums per rank.  Shapes: theta [K]."""
    starts = pair_starts(feedback)
    ratio = log_ratio(feedback, theta, noise)
    value = np.add.reduceat(ratio, starts) if len(starts) else ratio
    query, item = feedback.query[starts], feedback.item[starts]
    return memory_from(query, item, value.astype(np.float32), feedback.Q, feedback.D)


def pair_starts(feedback: Feedback) -> NDArray[np.int64]:
    """The first row of every pair.  Shapes: -> [pairs]."""
    new = (np.diff(feedback.query, prepend=-1) != 0) | (np.diff(feedback.item, prepend=-1) != 0)
    return np.flatnonzero(new)


def log_ratio(feedback: Feedback, theta: Floats, noise: Noise) -> Floats:
    """The log-likelihood ratio of the showings of every row of the feedback.  Shapes: theta [K] -> [P]."""
    exposure(feedback, theta)  # refuses a curve that is too short
    theta_k = np.asarray(theta, np.float64)[feedback.rank]
    r1, r0 = noise.relevant, noise.irrelevant
    click = min(np.log(r1) - np.log(r0), LARGEST) if r0 > 0 else LARGEST
    with np.errstate(divide="ignore"):  # theta_k r1 = 1: without a click it is irrelevant, for sure
        skip = np.maximum(np.log1p(-theta_k * r1) - np.log1p(-theta_k * r0), -LARGEST)
    found: Floats = feedback.clicks * click + (feedback.shown - feedback.clicks) * skip
    return found
