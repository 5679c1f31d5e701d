"""Whether training the generator pays: what the beliefs expect of a policy, in clicks per impression.

    U = sum_q n_q sum_d rho_cr(d) R_hat(q, d) / sum_q n_q

Nothing gets more than the belief would by ranking all items itself. Where the untrained stages already get nearly all of that
there is nothing to train. Else the generator is trained alone, for its re-ranker, and both in
turns, and what is expected to get most is kept: a generator approximates what is believed, and no click is looked at twice.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tandemrank.policies.two_stage import TwoStagePolicy
from tandemrank.training.loop import Trained
from tandemrank.training.schedules import UNTRAINED, Method
from tandemrank.training.weights import Weights

AUTO = "auto"
TRIED: tuple[Method, ...] = (UNTRAINED, "independent", "baseline", "joint")
ENOUGH = 0.998  # of what the re-ranker would get by ranking all items: then the generator is not trained
QUERIES, SAMPLES = 2_000, 4  # that an expectation is taken over


@dataclass(frozen=True)
class Tried:
    """One method that was tried, and the clicks per impression that the beliefs expect of it."""

    method: Method
    expected: float


@dataclass(frozen=True)
class MethodChoice:
    """What the beliefs expect of every method that was tried, and of the re-ranker over all items (`everything`)."""

    method: Method
    tried: tuple[Tried, ...]
    everything: float


def choose(
    train: Callable[[Method], Trained],
    over_all: TwoStagePolicy,
    weights: Weights,
    impressions: NDArray[np.float64],
    theta: NDArray[np.float64],
    *,
    seed: int,
) -> tuple[Trained, MethodChoice]:
    """The method of which the beliefs expect most; the first of the best. `over_all`: the beliefs over all items.
    Shapes: impressions [Q]; theta [K]."""
    q = weights.queries
    some = np.sort(np.random.default_rng(seed).permutation(q)[:QUERIES])

    def expected(policy: TwoStagePolicy) -> float:
        return expected_clicks(policy, weights, theta, some, seed=seed) / float(impressions[some].sum())

    found = train(UNTRAINED)
    everything = expected(over_all)
    tried = [Tried(UNTRAINED, expected(found.policy))]
    if tried[0].expected < ENOUGH * everything:
        for method in TRIED[1:]:
            one = train(method)
            tried.append(Tried(method, expected(one.policy)))
            if tried[-1].expected > max(other.expected for other in tried[:-1]):
                found = one
    method = max(tried, key=lambda one: one.expected).method
    return found, MethodChoice(method, tuple(tried), everything)


def expected_clicks(
    policy: TwoStagePolicy, weights: Weights, theta: NDArray[np.float64], q: NDArray[np.int64], *, seed: int
) -> float:
    """The sum of the clicks that are expected of some queries, by the race.  Shapes: theta [K]; q [n]."""
    curve, generator = torch.as_tensor(theta, dtype=torch.float32), torch.Generator().manual_seed(seed)
    return sum(
        float(policy.batch_utility(part, weights.rows(part), curve, SAMPLES, generator).sum())
        for part in policy.parts(q)
    )
