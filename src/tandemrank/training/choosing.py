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

from tandemrank.gradients import race
from tandemrank.policies import candidates
from tandemrank.policies.scorers import Scorer
from tandemrank.policies.two_stage import BATCH, TwoStagePolicy
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
    ranker: Scorer,
    weights: Weights,
    impressions: NDArray[np.float64],
    theta: NDArray[np.float64],
    *,
    seed: int,
) -> tuple[Trained, MethodChoice]:
    """The method of which the beliefs expect most; the first of the best. `ranker`: the beliefs as a stage.
    Shapes: impressions [Q]; theta [K]."""
    q = weights.queries
    some = np.sort(np.random.default_rng(seed).permutation(q)[:QUERIES])

    shown = float(impressions[some].sum())

    def expected(policy: TwoStagePolicy) -> float:
        return expected_clicks(policy, weights, theta, some, seed=seed) / shown

    found = train(UNTRAINED)
    everything = expected_over_all(ranker, weights, theta, some, seed=seed) / shown
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


def expected_over_all(
    ranker: Scorer, weights: Weights, theta: NDArray[np.float64], q: NDArray[np.int64], *, seed: int
) -> float:
    """The same of a re-ranker that ranks every item that has a weight itself.  Shapes: theta [K]; q [n]."""
    curve, generator, total = torch.as_tensor(theta, dtype=torch.float32), torch.Generator().manual_seed(seed), 0.0
    for part in (q[first : first + BATCH] for first in range(0, len(q), BATCH)):
        w = weights.rows(part)
        each = np.diff(w.indptr)
        there = np.arange(each.max(initial=1)) < each[:, None]
        items, values = np.full(there.shape, -1, np.int32), np.zeros(there.shape, np.float32)
        items[there], values[there] = w.indices, w.data
        s = candidates.scores_of(ranker, part, items)
        found = race.utility(s, s, torch.from_numpy(values), curve, s.shape[1], samples=SAMPLES, generator=generator)
        total += float(found.sum())
    return total
